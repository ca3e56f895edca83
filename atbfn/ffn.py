"""`fused_ffn`: the feed-forward block of a Transformer as one operator."""

from __future__ import annotations

import jax

from atbfn import arguments
from atbfn.activation import check_activation
from atbfn.fusion import Resolved, resolve
from atbfn.primitives.activation import Activation, ActivationArgs, ActivationSpec, PairArgs, PairSpec, add, multiply
from atbfn.primitives.activation import activation as activation_op
from atbfn.primitives.errors import bad_value
from atbfn.primitives.ffn import FFNArgs, FFNSpec, check_nodes
from atbfn.primitives.ffn import fused_ffn as fused_ffn_op
from atbfn.primitives.linear import LinearArgs, LinearSpec
from atbfn.primitives.linear import linear as linear_op
from atbfn.primitives.norm import Norm, NormArgs, NormSpec
from atbfn.primitives.norm import norm as norm_op
from atbfn.primitives.tag import Call


def fused_ffn(
    x: jax.Array,
    w_gate: jax.Array | None,
    w_up: jax.Array,
    w_down: jax.Array,
    *,
    activation: Activation = "silu",
    b_gate: jax.Array | None = None,
    b_up: jax.Array | None = None,
    b_down: jax.Array | None = None,
    norm: Norm | None = None,
    residual: jax.Array | None = None,
    post_norm: Norm | None = None,
    mode: str | None = None,
    target: str | None = None,
) -> jax.Array:
    """post_norm(w_down (activation(w_gate n) * (w_up n)) + residual) with n = norm(x).

    Steps: norm, gate, up, act, gated, down, summed, out. The gated form is Shazeer's ("GLU Variants Improve
    Transformer", 2020); with `w_gate=None` it is the plain MLP, activation(w_up n).

    Args:
      x: [..., hidden], float16, bfloat16 or float32.
      w_gate, w_up: [intermediate, hidden], x's dtype; w_gate=None is the ungated MLP.
      w_down: [hidden, intermediate], x's dtype.
      activation: "silu", "gelu" (with erf), "gelu_tanh", "relu", "identity", or a traceable elementwise function that
        is hashable and closes over no traced arrays.
      b_gate, b_up, b_down: biases of the three products, or None.
      norm: LayerNorm(...) or RMSNorm(...), applied to x first; None for none. Float32 parameters are fine.
      residual: [..., hidden], added after w_down; None for none.
      post_norm: applied to that sum (as BERT does); None for none.
      mode, target: override the surrounding configuration.

    Returns:
      [..., hidden] in x's dtype.

    Raises:
      ValueError: shapes that do not fit, an unknown activation or mode. TypeError: dtypes that do not fit.
      NotImplementedError: the named target cannot do this call. Each names the argument and the fix.
    """
    op = "fused_ffn"
    how = resolve(op, mode=mode, target=target)
    activation = check_activation(op, "activation", activation)
    args = _check(op, how, x, w_gate, w_up, w_down, b_gate, b_up, b_down, norm, residual, post_norm)
    if how.mode == "step_by_step":
        out = _step_by_step(op, how, activation, args)
    else:
        spec = FFNSpec(activation, how.target, checks=how.mode == "fused_with_checkpoints")
        outs = arguments.bind(fused_ffn_op, spec, args)
        out = outs.main[0]
        if spec.checks:
            nodes = zip(check_nodes(args), outs.aux, strict=True)
            out = Call(how.path, op).check(out, [(node, rule, ratio) for (node, rule), ratio in nodes])
    return out.astype(x.dtype)


def _check(
    op: str,
    how: Resolved,
    x: jax.Array,
    w_gate: jax.Array | None,
    w_up: jax.Array,
    w_down: jax.Array,
    b_gate: jax.Array | None,
    b_up: jax.Array | None,
    b_down: jax.Array | None,
    norm: Norm | None,
    residual: jax.Array | None,
    post_norm: Norm | None,
) -> FFNArgs:
    x, w_up = arguments.rows(op, "x", x), arguments.array(op, "w_up", w_up, 2)
    hidden, intermediate = x.shape[-1], w_up.shape[0]
    arguments.shape(op, "w_up", w_up, intermediate=intermediate, hidden=hidden)
    if w_gate is not None:
        w_gate = arguments.array(op, "w_gate", w_gate, 2)
        arguments.shape(op, "w_gate", w_gate, intermediate=intermediate, hidden=hidden)
    elif b_gate is not None:
        bad_value(op, "b_gate", "an array", "None when w_gate is None", "pass w_gate too, or give the bias as b_up")
    w_down = arguments.array(op, "w_down", w_down, 2)
    arguments.shape(op, "w_down", w_down, hidden=hidden, intermediate=intermediate)
    biases = {"b_gate": b_gate, "b_up": b_up, "b_down": b_down}
    for name, bias in biases.items():
        if bias is not None:
            biases[name] = bias = arguments.array(op, name, bias, 1)
            size = {"hidden": hidden} if name == "b_down" else {"intermediate": intermediate}
            arguments.shape(op, name, bias, **size)
    if residual is not None:
        residual = arguments.array(op, "residual", residual)
        arguments.same_shape(op, "residual", residual, "x", x)
    norms = {
        "norm": arguments.check_norm(op, "norm", norm, x, how.cross_precision),
        "post_norm": arguments.check_norm(op, "post_norm", post_norm, x, how.cross_precision),
    }
    operands = arguments.same_dtype(
        op, how.cross_precision, x=x, w_gate=w_gate, w_up=w_up, w_down=w_down, **biases, residual=residual
    )
    return FFNArgs(**operands, **norms)


def _step_by_step(op: str, how: Resolved, activation: Activation, args: FFNArgs) -> jax.Array:
    call = Call(how.path, op)
    target = how.target

    def normed(norm: Norm, x: jax.Array) -> jax.Array:
        return arguments.bind(norm_op, NormSpec(target), NormArgs(x, norm)).main[0]

    def product(x: jax.Array, w: jax.Array, b: jax.Array | None) -> jax.Array:
        return arguments.bind(linear_op, LinearSpec(target), LinearArgs(x, w, b)).main[0]

    def activated(x: jax.Array) -> jax.Array:
        return arguments.bind(activation_op, ActivationSpec(activation, target), ActivationArgs(x)).main[0]

    x = args.x if args.norm is None else call.step("norm", normed(args.norm, args.x))
    if args.w_gate is not None:
        gate = call.step("gate", product(x, args.w_gate, args.b_gate))
        up = call.step("up", product(x, args.w_up, args.b_up))
        act = call.step("act", activated(gate))
        inner = call.step("gated", arguments.bind(multiply, PairSpec(target), PairArgs(act, up)).main[0])
    else:
        up = call.step("up", product(x, args.w_up, args.b_up))
        inner = call.step("act", activated(up))
    out = call.step("down", product(inner, args.w_down, args.b_down))
    if args.residual is not None:
        out = call.step("summed", arguments.bind(add, PairSpec(target), PairArgs(out, args.residual)).main[0])
    if args.post_norm is not None:
        out = normed(args.post_norm, out)
    return call.step("out", out)
