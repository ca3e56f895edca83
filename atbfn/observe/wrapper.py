"""What `intermediates` and `checkpoint` share: tracing a function once and collecting what its operators marked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from atbfn.observe.interpreter import Collector, Found, primitives_in
from atbfn.primitives.operator import operators


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Seen:
    """The fused operators' primitives in the traced function, by name."""

    operators: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class _Structure:
    """The arguments without their arrays. Hashable: it is a static argument."""

    tree: Any
    leaves: tuple[Any, ...]  # an array's place holds _ARRAY
    kinds: tuple[Any, ...]  # 1, 1.0 and True are equal, as 0.0 and -0.0 are, and make different programs

    def restore(self, arrays: tuple[Any, ...]) -> Any:
        remaining = iter(arrays)
        return jax.tree.unflatten(self.tree, [next(remaining) if x is _ARRAY else x for x in self.leaves])


_ARRAY = object()


def _kind(value: Any) -> Any:
    return type(value), math.copysign(1, value) if isinstance(value, float) else None


def collecting(wrapper: str, kind: str, fn: Callable[..., Any], finish: Callable[[Found], Any]) -> Callable[..., Any]:
    """A function that returns (fn's result, what `finish` makes of the marked values, Seen).

    Arrays among the arguments are traced, everything else is passed on as it is. The compiled function is kept with the
    returned one, and is traced again when shapes, other arguments or the configuration change.
    """
    if not callable(fn):
        raise TypeError(
            f"{wrapper}: fn: got an object of type {type(fn).__name__}; expected a function; pass it without calling it"
        )

    def run(structure: _Structure, *arrays: Any) -> Any:
        out_tree = None

        def flat(*arrays: Any) -> list[Any]:
            nonlocal out_tree
            args, kwargs = structure.restore(arrays)
            leaves, out_tree = jax.tree.flatten(fn(*args, **kwargs))
            return leaves

        jaxpr = jax.make_jaxpr(flat)(*arrays)
        results, found = Collector(kind).evaluate(jaxpr, arrays)
        seen = Seen(tuple(sorted(primitives_in(jaxpr) & set(operators))))
        return jax.tree.unflatten(out_tree, results), finish(found), seen

    run.__name__ = run.__qualname__ = getattr(fn, "__name__", wrapper)
    jitted = jax.jit(run, static_argnums=0)

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        is_array = [isinstance(x, (jax.Array, np.ndarray, np.generic)) for x in leaves]
        others = tuple(_ARRAY if array else x for x, array in zip(leaves, is_array, strict=True))
        for other in others:
            try:
                hash(other)
            except TypeError:
                raise TypeError(
                    f"{wrapper}: got an argument of type {type(other).__name__}, which is neither an array nor "
                    "hashable; pass arrays, pytrees of arrays, and hashable values, or bind it with functools.partial"
                ) from None
        arrays = [x for x, array in zip(leaves, is_array, strict=True) if array]
        return jitted(_Structure(tree, others, tuple(map(_kind, others))), *arrays)

    return call
