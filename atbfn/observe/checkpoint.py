"""The check values that fused operators emit, and the verdict on them."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from atbfn.observe.interpreter import Found, split
from atbfn.observe.wrapper import collecting


class CheckpointError(RuntimeError):
    """A check at a node of an operator failed. The message names every failing node."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Check:
    """The verdict of one rule at one node.

    Args:
      passed: bool[]: the worst violation is within its bound.
      worst: float32[]: the worst violation over its bound; at most 1 passes, and nan or infinity does not.
      where: int32[rank]: the index of the worst entry among the check values, e.g. (layer of a scan, batch, row);
        all -1 if there were no entries.
      rule: what was verified.
    """

    passed: Any
    worst: Any
    where: Any
    rule: str = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Node:
    """The checks at one node, one for each rule.

    `passed` and `worst` are over all of them; `rule` and `where` are those of the worst one, and need concrete values
    if there are several.
    """

    checks: tuple[Check, ...]

    @property
    def passed(self) -> Any:
        return jnp.all(jnp.stack([check.passed for check in self.checks]), axis=0)

    @property
    def worst(self) -> Any:
        return jnp.max(jnp.stack([check.worst for check in self.checks]), axis=0)

    def _worst_check(self) -> Check:
        if len(self.checks) == 1:
            return self.checks[0]
        return max(self.checks, key=lambda check: _rank(_concrete(check)[0]))

    @property
    def rule(self) -> str:
        return self._worst_check().rule

    @property
    def where(self) -> Any:
        return self._worst_check().where


def _rank(worst: float) -> float:
    return np.inf if np.isnan(worst) else worst


def _concrete(check: Check) -> tuple[float, tuple[int, ...]]:
    """The worst value and its index as Python numbers; the axes of a batched check come first in the index."""
    worst, where = np.asarray(check.worst), np.asarray(check.where)
    if worst.size == 0:
        return 0.0, ()
    at = np.unravel_index(int(np.argmax(worst)), worst.shape)  # the first nan, if there is one
    return float(worst[at]), tuple(int(i) for i in (*at, *where[at]))


@jax.tree_util.register_pytree_with_keys_class
class Report:
    """What the checks in a function found. A pytree: it can be returned from a jitted function.

    Attributes:
      nodes: dict from "<layer path>/<operator>/<node>" to `Node`, in the order of execution.
    """

    def __init__(self, nodes: dict[str, Node]) -> None:
        self.nodes = nodes

    def tree_flatten_with_keys(self) -> tuple[tuple[Any, ...], tuple[str, ...]]:
        return tuple((jax.tree_util.DictKey(n), node) for n, node in self.nodes.items()), tuple(self.nodes)

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[str, ...]]:
        return tuple(self.nodes.values()), tuple(self.nodes)

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], nodes: Any) -> Report:
        return cls(dict(zip(names, nodes, strict=True)))

    @property
    def ok(self) -> jax.Array:
        """bool[]: every check passed. With a leading axis for each `vmap` that the report came out of."""
        if not self.nodes:
            return jnp.asarray(True)
        return jnp.all(jnp.stack([node.passed for node in self.nodes.values()]), axis=0)

    def failures(self) -> dict[str, tuple[Check, ...]]:
        """The failed checks by node. Not inside jitted code: it needs concrete values."""
        failed = {}
        for name, node in self.nodes.items():
            bad = tuple(check for check in node.checks if not np.all(np.asarray(check.passed)))
            if bad:
                failed[name] = bad
        return failed

    def raise_if_failed(self) -> None:
        """Raise if a check failed. It waits for the values, so it cannot be called inside a jitted function.

        Raises:
          CheckpointError: names every failing node, its rule, the violation and the index.
        """
        if self._traced():
            raise TypeError(
                "Report.raise_if_failed: got values that are being traced; return the report from the jitted function "
                "and call it on what comes out"
            )
        failed = self.failures()
        if failed:
            raise CheckpointError(f"{len(failed)} of {len(self.nodes)} checked nodes failed\n{self._table(failed)}")

    def _traced(self) -> bool:
        return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(self))

    @staticmethod
    def _table(nodes: dict[str, tuple[Check, ...]]) -> str:
        rows = [("node", "rule", "worst / bound", "at", "")]
        for name, checks in nodes.items():
            for check in checks:
                worst, where = _concrete(check)
                at = "-" if -1 in where else "(" + ", ".join(map(str, where)) + ")"
                rows.append((name, check.rule, f"{worst:.3g}", at, "ok" if np.all(check.passed) else "FAILED"))
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        return "\n".join(
            "  ".join((*(cell.ljust(w) for cell, w in zip(row[:4], widths, strict=True)), row[4])).rstrip()
            for row in rows
        )

    def __str__(self) -> str:
        if self._traced():
            return f"Report of {len(self.nodes)} nodes, being traced"
        if not self.nodes:
            return "Report: no checks"
        failed = self.failures()
        verdict = f"{len(failed)} of {len(self.nodes)} checked nodes FAILED" if failed else "all checks passed"
        return f"{verdict}\n{self._table({name: node.checks for name, node in self.nodes.items()})}"

    def __repr__(self) -> str:
        return f"<{self}>" if self._traced() or not self.nodes else str(self)


def _judge(ratio: jax.Array, rule: str) -> Check:
    if ratio.size == 0:
        where = jnp.full((ratio.ndim,), -1, jnp.int32)
        return Check(jnp.asarray(True), jnp.zeros((), ratio.dtype), where, rule)
    ratio = jax.lax.stop_gradient(ratio)
    if split(jax.typeof(ratio)):  # an index into the whole cannot be taken of types that are split
        ratio = jax.sharding.reshard(ratio, jax.sharding.PartitionSpec())
    at = jnp.argmax(ratio)  # the first nan, if there is one
    worst = jnp.max(ratio)  # nan, if there is one
    where = jnp.stack(jnp.unravel_index(at, ratio.shape)).astype(jnp.int32) if ratio.ndim else jnp.zeros(0, jnp.int32)
    return Check(worst <= 1, worst, where, rule)


def checkpoint(fn: Callable[..., Any]) -> Callable[..., tuple[Any, Report]]:
    """`fn`, also returning what the checks of its operators found (those in mode "fused_with_checkpoints").

    Nothing looks at check values outside this function, and there they are not computed.

    Args:
      fn: any function of arrays that JAX can trace. Array arguments are traced, as by `jax.jit`; other arguments reach
        `fn` as they are. Keep the returned function to keep what was compiled for it.

    Returns:
      A function of the same arguments that returns `(result, report)`; see `Report`. It can itself be jitted,
      differentiated and batched, and sees into `jit`, `jax.checkpoint`, `vmap`, `grad`, `jvp`, functions with custom
      derivatives, `scan` (index of the iteration first in `where`), `while_loop` (the worst of all iterations), `cond`
      (a branch that does not run passes; but under `vmap` both run, and both are checked) and `shard_map`.

    Warns:
      UserWarning: there was nothing to check, because no operator in `fn` runs in mode "fused_with_checkpoints".

        with atbfn.fusion(mode="fused_with_checkpoints"):
            out, report = atbfn.checkpoint(model)(params, tokens)
        report.raise_if_failed()
    """

    def finish(found: Found) -> Report:
        checks: dict[str, list[Check]] = {}
        for key, ratio in found:
            checks.setdefault(key.name, []).append(_judge(ratio, str(key.rule)))
        return Report({name: Node(tuple(each)) for name, each in checks.items()})

    call = collecting("checkpoint", "check", fn, finish)

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> tuple[Any, Report]:
        result, report, seen = call(*args, **kwargs)
        if not report.nodes:
            what = f"operators ran without checks: {', '.join(seen.operators)}" if seen.operators else "it called none"
            warnings.warn(
                f"atbfn.checkpoint: found no checks ({what}); call it under "
                "`with atbfn.fusion(mode='fused_with_checkpoints'):`, and pass no other mode= to the operators",
                stacklevel=2,
            )
        return result, report

    return wrapped
