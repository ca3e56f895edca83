"""The wrappers on four devices: sharded inputs, `shard_map` and explicit sharding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import atbfn.fusion
from atbfn.observe import checkpoint, intermediates

Toy = Callable[..., Any]
ROWS, N = 8, 3
EYE = jnp.eye(N)


@pytest.fixture
def mesh() -> Any:
    return jax.make_mesh((4,), ("rows",), axis_types=(AxisType.Auto,))


@pytest.fixture
def x() -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).uniform(0.1, 1, size=(ROWS, N)), jnp.float32)


@pytest.mark.parametrize("check_vma", [True, False])
def test_steps_in_shard_map_are_stacked_by_shard(toy: Toy, x: Any, mesh: Any, check_vma: bool) -> None:
    fn = jax.shard_map(toy, mesh=mesh, in_specs=(P("rows"), P()), out_specs=P("rows"), check_vma=check_vma)
    with atbfn.fusion(mode="step_by_step"):
        result, steps = intermediates(fn)(x, EYE)
        if check_vma:
            grad = jax.grad(lambda x: jnp.sum(intermediates(fn)(x, EYE)[0]))(x)
            np.testing.assert_allclose(grad, 1 + np.cos(x), rtol=1e-5)
    assert {name: value.shape for name, value in steps.items()} == {
        "toy/size": (4, 2),
        "toy/gate": (4, 2, N),
        "toy/out": (4, 2, N),
    }
    np.testing.assert_array_equal(steps["toy/out"].reshape(ROWS, N), result)
    np.testing.assert_allclose(steps["toy/size"].reshape(ROWS), x.sum(-1), rtol=1e-6)


def test_sharded_inputs_of_jitted_functions(toy: Toy, x: Any, mesh: Any) -> None:
    """Captured steps stay split as they are, nothing is gathered, and inner shardings and donation are kept."""
    rows = NamedSharding(mesh, P("rows"))
    x = jax.device_put(x, rows)
    with atbfn.fusion(mode="step_by_step"):
        inner = jax.jit(lambda x: toy(x, EYE), in_shardings=rows, out_shardings=rows, donate_argnums=0)
        run = jax.jit(intermediates(lambda x: 2 * inner(x))).lower(x).compile()
        result, steps = run(x)
    assert "all-gather" not in run.as_text()
    assert result.sharding.spec == P("rows")
    assert {value.sharding.spec for value in steps.values()} == {P("rows")}
    np.testing.assert_allclose(result, 2 * (np.sin(x) + x), rtol=1e-5)


def _once(toy: Toy) -> Callable[[Any], Any]:
    return lambda x: toy(x, EYE)


def _loop(toy: Toy) -> Callable[[Any], Any]:
    return lambda x: jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, toy(c[1], EYE) / 9), (0, x))[1]


def _branch(toy: Toy) -> Callable[[Any], Any]:
    return lambda x: jax.lax.cond(jnp.sum(x) > 0, lambda x: toy(x, EYE), lambda x: x, x)


@pytest.mark.parametrize("form", [_once, _loop, _branch])
def test_checks_in_shard_map(form: Any, toy: Toy, x: Any, mesh: Any) -> None:
    fn = jax.shard_map(form(toy), mesh=mesh, in_specs=P("rows"), out_specs=P("rows"))
    with atbfn.fusion(mode="fused_with_checkpoints"):
        run = checkpoint(fn)
        assert bool(run(x)[1].ok)
        _, report = run(x.at[5, 1].set(8.0))
    (check,) = report.failures()["toy/gate"]
    assert (float(check.worst), check.where.tolist()) == (2.0, [2, 1])  # shard, row in it


@pytest.mark.parametrize("form", [_once, _loop])
def test_checks_under_explicit_sharding(form: Any, toy: Toy, x: Any) -> None:
    mesh = jax.make_mesh((4,), ("rows",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh), atbfn.fusion(mode="fused_with_checkpoints"):
        run = checkpoint(form(toy))
        result, report = run(jax.device_put(x.at[5, 1].set(8.0), P("rows", None)))
        assert jax.typeof(result).sharding.spec == P("rows", None)
    (check,) = report.failures()["toy/gate"]
    assert (float(check.worst), check.where.tolist()) == (2.0, [5])
