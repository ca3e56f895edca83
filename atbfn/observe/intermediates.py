"""The values between the steps of the operators in a function."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax

from atbfn.observe.interpreter import Found
from atbfn.observe.wrapper import collecting


@jax.tree_util.register_pytree_with_keys_class
class Steps(dict[str, Any]):
    """Captured steps by name, in the order of execution; a pytree that keeps this order (JAX sorts a dict's keys)."""

    def tree_flatten_with_keys(self) -> tuple[tuple[Any, ...], tuple[str, ...]]:
        return tuple((jax.tree_util.DictKey(name), value) for name, value in self.items()), tuple(self)

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[str, ...]]:
        return tuple(self.values()), tuple(self)

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], values: Any) -> Steps:
        return cls(zip(names, values, strict=True))


def intermediates(fn: Callable[..., Any]) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """`fn`, also returning every step of the operators in it that run step by step.

    Args:
      fn: any function of arrays that JAX can trace. Array arguments are traced, as by `jax.jit`; other arguments reach
        `fn` as they are. Keep the returned function to keep what was compiled for it.

    Returns:
      A function of the same arguments that returns `(result, steps)`. `steps` is a dict in the order of execution, from
      "<layer path>/<operator>/<step>" to the array; the n-th further call of an operator in a layer is "<operator>[n]".
      It can itself be jitted, differentiated and batched, and sees into `jit`, `jax.checkpoint`, `vmap`, `grad`, `jvp`,
      functions with custom derivatives, `scan` (a step gets the scan's axis first) and `shard_map` (the shards'
      values come stacked along a first axis). In a gradient these are the steps of the forward pass that it needs.

    Raises:
      NotImplementedError: an operator runs step by step inside `while_loop` or `cond`.

    Warns:
      UserWarning: nothing was captured, because no operator in `fn` runs step by step.

        with atbfn.fusion(mode="step_by_step"):
            out, steps = atbfn.intermediates(model)(params, tokens)
        steps["decoder/3/fused_ffn/gate"]
    """

    def finish(found: Found) -> Steps:
        return Steps((key.name, value) for key, value in found)

    call = collecting("intermediates", "step", fn, finish)

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        result, steps, seen = call(*args, **kwargs)
        if not steps:
            what = f"what ran fused: {', '.join(seen.operators)}" if seen.operators else "it called no operator"
            warnings.warn(
                f"atbfn.intermediates: captured nothing ({what}); steps exist only where operators run step by step: "
                "call it under `with atbfn.fusion(mode='step_by_step'):`, and pass no other mode= to the operators",
                stacklevel=2,
            )
        return result, steps

    return wrapped
