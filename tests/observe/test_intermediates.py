"""Captured steps through every transformation: their names, order, values, and that the result stays the same."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import atbfn.fusion
from atbfn.fusion import layer
from atbfn.observe import intermediates

pytestmark = pytest.mark.usefixtures("unoptimized")

ROWS, N, LAYERS = 2, 3, 4
STEPS = ("size", "gate", "out")
Toy = Callable[..., Any]


@pytest.fixture(autouse=True)
def step_by_step() -> Any:
    with atbfn.fusion(mode="step_by_step"):
        yield


@pytest.fixture
def x() -> jax.Array:
    return jax.random.normal(jax.random.key(0), (ROWS, N))


@pytest.fixture
def w() -> jax.Array:
    return jax.random.normal(jax.random.key(1), (LAYERS, N, N))


def expected(x: Any, w: Any) -> dict[str, np.ndarray]:
    """The steps of one call, in float64."""
    x, w = np.asarray(x, np.float64), np.asarray(w, np.float64)
    gate = np.sin(x @ w)
    return {"size": x.sum(-1), "gate": gate, "out": gate + x}


def chain(x: Any, weights: Any) -> list[dict[str, np.ndarray]]:
    """The steps of a call after the other, one for each weight."""
    calls = []
    for w in weights:
        calls.append(expected(x, w))
        x = calls[-1]["out"]
    return calls


def stacked(calls: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {step: np.stack([call[step] for call in calls]) for step in STEPS}


def named(prefixes: list[str], calls: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {f"{prefix}/{step}": call[step] for prefix, call in zip(prefixes, calls, strict=True) for step in STEPS}


def check(fn: Callable[..., Any], args: tuple[Any, ...], steps: dict[str, np.ndarray], *, jitted: bool = False) -> None:
    """`fn`'s captured steps are `steps`, in this order, and its result is that of the plain function."""
    wrapped = jax.jit(intermediates(fn)) if jitted else intermediates(fn)
    result, found = wrapped(*args)
    assert isinstance(found, dict)
    assert list(found) == list(steps)
    for name, value in found.items():
        np.testing.assert_allclose(value, steps[name], rtol=1e-5, atol=1e-5, err_msg=name)
        assert np.abs(steps[name]).max() > 1e-2, "zeros would pass"
    chex.assert_trees_all_close(result, jax.jit(fn)(*args), rtol=1e-6, atol=1e-6)
    # In a function that is jitted around it, the same comes out (traced only: the value was compared above).
    traced = jax.eval_shape(jax.jit(intermediates(fn)), *args)[1]
    assert list(traced) == list(steps)


@pytest.mark.parametrize("jitted", [True, False], ids=["jitted", "eager"])
def test_names_order_and_repeats(toy: Toy, x: Any, w: Any, jitted: bool) -> None:
    def fn(x: Any, w: Any) -> Any:
        with layer("b"):
            x = toy(x, w[0])
        with layer("a/1"):
            x = toy(x, w[1])
            x = toy(x, w[2])
        return toy(x, w[3])

    check(fn, (x, w), named(["b/toy", "a/1/toy", "a/1/toy[1]", "toy"], chain(x, w)), jitted=jitted)


def test_through_nested_jit(toy: Toy, x: Any, w: Any) -> None:
    """The same jitted function twice: one jaxpr, two calls."""
    op = jax.jit(jax.jit(toy))

    def fn(x: Any, w: Any) -> Any:
        return op(toy(op(x, w[0]), w[1]), w[2])

    check(fn, (x, w), named(["toy", "toy[1]", "toy[2]"], chain(x, w[:3])))


@pytest.mark.parametrize("jitted", [True, False], ids=["jitted", "eager"])
def test_scan_puts_the_layer_first(toy: Toy, x: Any, w: Any, jitted: bool) -> None:
    def fn(x: Any, w: Any) -> Any:
        def body(x: Any, w: Any) -> Any:
            with layer("decoder/*"):
                return toy(x, w), x.sum()

        return jax.lax.scan(body, x, w)

    check(fn, (x, w), named(["decoder/*/toy"], [stacked(chain(x, w))]), jitted=jitted)


@pytest.mark.parametrize("options", [{"reverse": True}, {"unroll": 2}, {"unroll": True}])
def test_scan_options(toy: Toy, x: Any, w: Any, options: dict) -> None:
    def fn(x: Any, w: Any) -> Any:
        return jax.lax.scan(lambda x, w: (toy(x, w), x), x, w, **options)

    order = w[::-1] if "reverse" in options else w
    steps = stacked(chain(x, order))
    if "reverse" in options:
        steps = {name: value[::-1] for name, value in steps.items()}
    check(fn, (x, w), named(["toy"], [steps]))


def test_scan_in_scan_and_constants(toy: Toy, x: Any, w: Any) -> None:
    shift = np.arange(N, dtype=np.float32)

    def fn(x: Any, w: Any) -> Any:
        def inner(x: Any, w: Any) -> Any:
            return toy(x + shift, w), None

        return jax.lax.scan(lambda x, w: jax.lax.scan(inner, x, w), x, w.reshape(2, 2, N, N))[0]

    calls, value = [], x
    for each in w:
        calls.append(expected(np.asarray(value) + shift, each))
        value = calls[-1]["out"]
    steps = {name: value.reshape(2, 2, *value.shape[1:]) for name, value in stacked(calls).items()}
    check(fn, (x, w), named(["toy"], [steps]))


def test_vmap_puts_the_batch_first(toy: Toy, x: Any, w: Any) -> None:
    fn = jax.vmap(toy, in_axes=(None, 0), out_axes=1)
    calls = [expected(x, each) for each in w]
    steps = stacked(calls)
    steps["size"] = calls[0]["size"]  # it does not depend on what is batched
    check(fn, (x, w), named(["toy"], [steps]))
    wrapped = jax.vmap(intermediates(toy), in_axes=(None, 0))
    found = wrapped(x, w)[1]
    np.testing.assert_allclose(found["toy/gate"], steps["gate"], rtol=1e-5, atol=1e-5)
    assert found["toy/size"].shape == (LAYERS, ROWS)


def loss(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: jnp.sum(fn(*args) ** 2)


@pytest.mark.parametrize("form", ["plain", "jit", "remat", "remat of jit", "policy"])
@pytest.mark.parametrize("order", [1, 2])
def test_gradients_capture_the_forward_pass_once(toy: Toy, x: Any, w: Any, form: str, order: int) -> None:
    """Steps that `jax.checkpoint` computes again in the backward pass are dropped, also in a second derivative."""
    wrap: Callable[[Any], Any] = {
        "plain": lambda f: f,
        "jit": jax.jit,
        "remat": jax.checkpoint,
        "remat of jit": lambda f: jax.checkpoint(jax.jit(f)),
        "policy": lambda f: jax.checkpoint(f, policy=jax.checkpoint_policies.dots_saveable),
    }[form]
    body = wrap(lambda x, w: toy(toy(x, w[0]), w[1]))
    fn = jax.grad(loss(body))
    if order == 2:
        fn = jax.grad(loss(fn))
    check(fn, (x, w), named(["toy", "toy[1]"], chain(x, w[:2])))


@pytest.mark.parametrize("jitted", [True, False], ids=["jitted", "eager"])
@pytest.mark.parametrize("remat", [False, True])
def test_gradient_of_scan(toy: Toy, x: Any, w: Any, remat: bool, jitted: bool) -> None:
    def body(x: Any, w: Any) -> Any:
        return toy(x, w), None

    fn = jax.value_and_grad(loss(lambda x, w: jax.lax.scan(jax.checkpoint(body) if remat else body, x, w)[0]))
    check(fn, (x, w), named(["toy"], [stacked(chain(x, w))]), jitted=jitted)


def test_jvp_and_hessian_vector_product(toy: Toy, x: Any, w: Any) -> None:
    def tangent(x: Any, w: Any) -> Any:
        return jax.jvp(lambda x: toy(x, w), (x,), (jnp.ones_like(x),))

    check(tangent, (x, w[0]), named(["toy"], [expected(x, w[0])]))

    def hvp(x: Any, w: Any) -> Any:
        return jax.jvp(jax.grad(lambda x: loss(jax.checkpoint(toy))(x, w)), (x,), (jnp.ones_like(x),))

    check(hvp, (x, w[0]), named(["toy"], [expected(x, w[0])]))


def test_custom_derivatives_keep_their_rule(toy: Toy, x: Any, w: Any) -> None:
    by_vjp = jax.custom_vjp(toy)
    by_vjp.defvjp(lambda x, w: (toy(x, w), w), lambda w, g: (7 * g, jnp.zeros_like(w)))
    by_jvp = jax.custom_jvp(toy)
    by_jvp.defjvp(lambda primals, tangents: (by_jvp(*primals), 7 * tangents[0]))
    for fn in (by_vjp, by_jvp):
        steps = named(["toy"], [expected(x, w[0])])
        check(fn, (x, w[0]), steps)
        check(jax.grad(loss(fn)), (x, w[0]), steps)
        # The wrapped function's own derivative is by the rule too.
        wrapped = intermediates(fn)
        grad = jax.grad(lambda x, fn=wrapped: jnp.sum(fn(x, w[0])[0]))(x)
        np.testing.assert_allclose(grad, np.full_like(x, 7))


def test_shard_map(toy: Toy, x: Any, w: Any) -> None:
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    fn = jax.shard_map(toy, mesh=mesh, in_specs=(P("rows"), P()), out_specs=P("rows"))
    steps = {step: value[None] for step, value in expected(x, w[0]).items()}
    check(fn, (x, w[0]), named(["toy"], [steps]))
    check(jax.grad(loss(fn)), (x, w[0]), named(["toy"], [steps]))


def test_gradient_through_the_wrapped_function(toy: Toy, x: Any, w: Any) -> None:
    """Also of a captured step: it is an ordinary output."""
    wrapped = intermediates(lambda x: jax.lax.scan(lambda x, w: (toy(x, w), None), x, w)[0])
    plain = jax.grad(lambda x: jnp.sum(jax.lax.scan(lambda x, w: (toy(x, w), None), x, w)[0]))(x)
    np.testing.assert_allclose(jax.grad(lambda x: jnp.sum(wrapped(x)[0]))(x), plain, rtol=1e-6)
    found = jax.grad(lambda x: jnp.sum(wrapped(x)[1]["toy/gate"][0]))(x)
    np.testing.assert_allclose(found, jax.grad(lambda x: jnp.sum(jnp.sin(x @ w[0])))(x), rtol=1e-5, atol=1e-6)


def test_structure_is_kept(toy: Toy, x: Any, w: Any) -> None:
    """Scans stay scans, of the same length, and jitted functions keep their name."""

    def body(x: Any, w: Any) -> Any:
        return jax.jit(toy)(x, w), None

    jaxpr = str(jax.make_jaxpr(intermediates(lambda x, w: jax.lax.scan(body, x, w)))(x, w))
    assert jaxpr.count("scan[") == 1
    assert jaxpr.count("name=_toy") == 1
    assert jaxpr.count(" sin ") == 1


def test_nothing_is_traced_twice_for_equal_calls(toy: Toy, x: Any, w: Any) -> None:
    traces = []

    def fn(x: Any, w: Any, scale: float, names: tuple[str, ...]) -> Any:
        traces.append((scale, names))
        return toy(x, w) * scale

    wrapped = intermediates(fn)
    for _ in range(2):
        wrapped(x, w[0], 2.0, names=("a", "b"))
    assert traces == [(2.0, ("a", "b"))]  # what is not an array reaches the function as it is
    wrapped(x, w[0], 3.0, names=("a", "b"))
    with atbfn.fusion(cross_precision=True):
        wrapped(x, w[0], 3.0, names=("a", "b"))
    assert len(traces) == 3


def test_result_pytree_and_keywords(toy: Toy, x: Any, w: Any) -> None:
    def fn(x: Any, *, w: Any, extra: Any = None) -> Any:
        return {"out": toy(x, w), "nothing": None, "pair": (x, 3)}

    result, steps = intermediates(fn)(x, w=w[0])
    assert result["nothing"] is None
    assert result["pair"][1] == 3
    assert list(steps) == ["toy/size", "toy/gate", "toy/out"]
    assert intermediates(fn).__name__ == "fn"
    functools.partial(intermediates(fn), x)(w=w[0], extra="static")


def test_equal_arguments_of_other_types_are_told_apart(toy: Toy, x: Any, w: Any) -> None:
    captured = intermediates(lambda x, y: (toy(x, w[0]), jnp.asarray(y), jnp.copysign(1, y)))
    for value in (1, 1.0, True):
        assert captured(x, value)[0][1].dtype == jnp.asarray(value).dtype
    assert [float(captured(x, zero)[0][2]) for zero in (0.0, -0.0)] == [1, -1]


def test_unhashable_argument_and_wrong_function(toy: Toy, x: Any) -> None:
    with pytest.raises(TypeError, match=r"intermediates: got an argument of type set, which is neither an array nor"):
        intermediates(lambda x, s: x)(x, {1})
    with pytest.raises(TypeError, match=r"intermediates: fn: got an object of type ArrayImpl; expected a function"):
        intermediates(toy(x, jnp.eye(N)))


@pytest.mark.parametrize("form", ["while_loop", "cond", "switch", "fori_loop"])
def test_loops_and_branches_raise_only_if_they_hold_steps(toy: Toy, x: Any, w: Any, form: str) -> None:
    def with_inner(inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return {
            "while_loop": lambda x: jax.lax.while_loop(lambda c: jnp.sum(c) < 0, inner, x),
            "fori_loop": lambda x: jax.lax.fori_loop(0, jnp.int32(x[0, 0] > 9), lambda _, c: inner(c), x),
            "cond": lambda x: jax.lax.cond(jnp.sum(x) < 0, inner, lambda x: x, x),
            "switch": lambda x: jax.lax.switch(jnp.int32(jnp.sum(x) > 0), [jnp.cos, jax.jit(inner)], x),
        }[form]

    what = "while_loop" if form == "fori_loop" else "cond or jax.lax.switch" if form == "switch" else form
    with pytest.raises(
        NotImplementedError, match=rf"atbfn\.intermediates: got steps .* inside .*{what}.*use jax.lax.scan"
    ):
        intermediates(with_inner(lambda x: toy(x, w[0])))(x)
    fn = with_inner(lambda x: jnp.sin(x @ w[1]))
    result, steps = intermediates(lambda x: fn(toy(x, w[0])))(x)
    assert list(steps) == ["toy/size", "toy/gate", "toy/out"]
    np.testing.assert_allclose(result, fn(steps["toy/out"]), rtol=1e-6)


def test_unknown_container_raises(toy: Toy, x: Any, w: Any) -> None:
    def fn(x: Any) -> Any:
        return jax.lax.custom_linear_solve(lambda v: v, toy(x, w[0]), lambda _, b: toy(b, w[1]), symmetric=True)

    with pytest.raises(
        NotImplementedError, match=r"inside the primitive 'custom_linear_solve'.*call the operator outside"
    ):
        intermediates(fn)(x)


def test_nothing_captured_warns(toy: Toy, x: Any, w: Any) -> None:
    with (
        atbfn.fusion(mode="fused"),
        pytest.warns(UserWarning, match=r"captured nothing .*`with atbfn\.fusion\(mode='step_by_step'\):`"),
    ):
        result, steps = intermediates(toy)(x, w[0])
    assert steps == {}
    np.testing.assert_allclose(result, expected(x, w[0])["out"], rtol=1e-5, atol=1e-5)


def test_only_the_layers_that_run_step_by_step(toy: Toy, x: Any, w: Any) -> None:
    def fn(x: Any) -> Any:
        for i in range(LAYERS):
            with layer(f"decoder/{i}"):
                x = toy(x, w[i])
        return x

    with atbfn.fusion(mode="fused", layers={"decoder/[12]": {"mode": "step_by_step"}}):
        _, steps = intermediates(fn)(x)
    assert list(steps) == [f"decoder/{i}/toy/{step}" for i in (1, 2) for step in STEPS]
    calls = chain(x, w)
    np.testing.assert_allclose(steps["decoder/2/toy/gate"], calls[2]["gate"], rtol=1e-5, atol=1e-5)


def test_mode_changes_between_calls_of_one_wrapper(toy: Toy, x: Any, w: Any) -> None:
    wrapped = jax.jit(intermediates(toy))
    assert len(wrapped(x, w[0])[1]) == 3
    with atbfn.fusion(mode="fused"), pytest.warns(UserWarning, match="captured nothing"):
        assert len(wrapped(x, w[0])[1]) == 0
    assert len(wrapped(x, w[0])[1]) == 3


def test_marks_cost_nothing_in_plain_jit(toy: Toy, x: Any, w: Any) -> None:
    """Nobody looks: the step that has no user of its own is not computed."""
    text = jax.jit(toy).lower(x, w[0]).compile().as_text()
    assert "reduce" not in text


def test_eager_call_is_the_plain_function(toy: Toy, x: Any, w: Any) -> None:
    np.testing.assert_array_equal(toy(x, w[0]), toy(x, w[0], mode="fused"))
    transposed = jax.linear_transpose(lambda y: toy.__globals__["tag"].Call("", "t").step("s", 2 * y), x)
    np.testing.assert_array_equal(transposed(x)[0], 2 * x)
