"""Check values through every transformation, and the report made of them."""

from __future__ import annotations

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
from atbfn.observe import CheckpointError, checkpoint

pytestmark = pytest.mark.usefixtures("unoptimized")

ROWS, N = 2, 3
Toy = Callable[..., Any]
EYE = jnp.eye(N)


@pytest.fixture(autouse=True)
def with_checkpoints() -> Any:
    with atbfn.fusion(mode="fused_with_checkpoints"):
        yield


@pytest.fixture
def good() -> jax.Array:
    return jax.random.uniform(jax.random.key(0), (ROWS, N), minval=0.1, maxval=1)


@pytest.fixture
def bad(good: jax.Array) -> jax.Array:
    """Row 1 is twice the bound."""
    return good.at[1, 2].set(8.0)


def identical(fn: Callable[..., Any], *args: Any) -> Any:
    """The report of `fn`, whose result under `checkpoint` is that of the plain function."""
    result, report = checkpoint(fn)(*args)
    chex.assert_trees_all_close(result, jax.jit(fn)(*args), rtol=1e-6, atol=1e-6)
    chex.assert_trees_all_equal_shapes(report, jax.eval_shape(jax.jit(checkpoint(fn)), *args)[1])
    return report


def scan(toy: Toy) -> Callable[[Any], Any]:
    def body(x: Any, scale: Any) -> Any:
        with layer("decoder/*"):
            return toy(x * scale, EYE), None

    return lambda x: jax.lax.scan(body, x, jnp.array([1.0, 0.1, 1.0]))[0]


def twice(toy: Toy) -> Callable[[Any], Any]:
    return lambda x: toy(0.1 * jax.jit(toy)(x, EYE), EYE)


def custom(toy: Toy) -> Callable[[Any], Any]:
    fn = jax.custom_vjp(lambda x: toy(x, EYE))
    fn.defvjp(lambda x: (toy(x, EYE), None), lambda _, g: (g,))
    return fn


def mapped(toy: Toy) -> Callable[[Any], Any]:
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    fn = jax.shard_map(toy, mesh=mesh, in_specs=(P("rows"), P()), out_specs=P("rows"))
    return lambda x: fn(x, EYE)


def while_loop(toy: Toy) -> Callable[[Any], Any]:
    return lambda x: jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, toy(c[1], EYE) / 9), (0, x))[1]


FORMS: dict[str, tuple[Callable[[Toy], Callable[[Any], Any]], str, tuple[int, ...]]] = {
    # name: (form, node that fails, index of the failing entry in the check values)
    "plain": (lambda toy: lambda x: toy(x, EYE), "toy/gate", (1,)),
    "jit": (lambda toy: lambda x: jax.jit(toy)(x, EYE), "toy/gate", (1,)),
    "twice": (twice, "toy/gate", (1,)),
    "scan": (scan, "decoder/*/toy/gate", (0, 1)),
    "remat": (lambda toy: jax.checkpoint(twice(toy)), "toy/gate", (1,)),
    "vmap": (lambda toy: lambda x: jax.vmap(toy, (0, None))(x[None], EYE)[0], "toy/gate", (0, 1)),
    "custom_vjp": (custom, "toy/gate", (1,)),
    "shard_map": (mapped, "toy/gate", (0, 1)),
    "while_loop": (while_loop, "toy/gate", (1,)),
    "cond": (lambda toy: lambda x: jax.lax.cond(x[0, 0] > 0, lambda x: toy(x, EYE), jnp.cos, x), "toy/gate", (1,)),
}
DIFFERENTIABLE = [name for name in FORMS if name != "while_loop"]


@pytest.mark.parametrize("form", FORMS)
def test_pass_and_fail(form: str, toy: Toy, good: Any, bad: Any) -> None:
    make, node, where = FORMS[form]
    fn = make(toy)
    report = identical(fn, good)
    assert bool(report.ok)
    assert node in report.nodes
    report.raise_if_failed()

    report = jax.jit(checkpoint(fn))(bad)[1]
    assert not report.ok
    assert set(report.failures()) == {node}
    (check,) = report.failures()[node]
    assert check.rule == "range"
    np.testing.assert_allclose(check.worst, 2.0, rtol=1e-6)
    assert tuple(check.where.tolist()) == where
    assert check.where.dtype == jnp.int32
    with pytest.raises(CheckpointError, match=f"1 of {len(report.nodes)} checked nodes failed"):
        report.raise_if_failed()


@pytest.mark.parametrize("form", DIFFERENTIABLE)
def test_gradients(form: str, toy: Toy, good: Any, bad: Any) -> None:
    """The checks of the forward pass, once, inside and outside of the wrapper."""
    make, node, where = FORMS[form]
    fn = make(toy)

    def loss(x: Any) -> Any:
        return jnp.sum(fn(x) ** 2)

    plain = checkpoint(fn)(bad)[1]
    report = identical(jax.value_and_grad(loss), bad)
    assert list(report.nodes) == list(plain.nodes)
    chex.assert_trees_all_close(report, plain, rtol=1e-6)

    grads, report = jax.grad(checkpoint(loss), has_aux=True)(good)
    chex.assert_trees_all_close(grads, jax.grad(loss)(good), rtol=1e-6)
    assert bool(report.ok)


def test_hessian_vector_product(toy: Toy, good: Any) -> None:
    fn = jax.checkpoint(twice(toy))

    def hvp(x: Any) -> Any:
        return jax.jvp(jax.grad(lambda x: jnp.sum(fn(x) ** 2)), (x,), (jnp.ones_like(x),))[1]

    assert list(identical(hvp, good).nodes) == ["toy/gate", "toy/out", "toy[1]/gate", "toy[1]/out"]


def test_vmap_of_the_wrapped_function(toy: Toy, good: Any, bad: Any) -> None:
    result, report = jax.vmap(checkpoint(scan(toy)))(jnp.stack([good, bad, good]))
    assert report.ok.tolist() == [True, False, True]
    assert report.nodes["decoder/*/toy/gate"].passed.tolist() == [True, False, True]
    chex.assert_trees_all_close(result[1], jax.jit(scan(toy))(bad), rtol=1e-6)
    assert "(1, 0, 1)" in str(report)  # batch, layer, row
    with pytest.raises(CheckpointError, match="range  2 "):
        report.raise_if_failed()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nonfinite_fails(value: float, toy: Toy, good: Any) -> None:
    report = identical(scan(toy), good.at[1, 0].set(value))
    assert not report.ok
    assert set(report.failures()) == {"decoder/*/toy/gate", "decoder/*/toy/out"}
    node = report.nodes["decoder/*/toy/out"]
    assert not node.passed
    assert np.isinf(node.worst)
    assert (node.rule, tuple(node.where.tolist())) == ("finite", (0, 1))


def test_nan_ratio_is_the_worst() -> None:
    from atbfn.observe.checkpoint import _judge

    check = _judge(jnp.array([[0.5, np.nan], [7.0, np.inf]]), "r")
    assert not check.passed
    assert np.isnan(check.worst)
    assert check.where.tolist() == [0, 1]
    assert not _judge(jnp.array(np.inf), "r").passed
    assert bool(_judge(jnp.array(1.0), "r").passed)
    assert not _judge(jnp.nextafter(jnp.float32(1), jnp.float32(2)), "r").passed
    empty = _judge(jnp.zeros((0, 3)), "r")
    assert bool(empty.passed)
    assert empty.where.tolist() == [-1, -1]


def test_while_loop_keeps_the_worst_iteration(toy: Toy) -> None:
    """It fails in the second of three iterations only."""

    def fn(x: Any) -> Any:
        def body(carry: Any) -> Any:
            i, x = carry
            toy_out = toy(x * jnp.array([1.0, 6.0, 1.0])[i], EYE)
            return i + 1, jnp.where(toy_out == 0, x, x)

        return jax.lax.while_loop(lambda carry: carry[0] < 3, body, (0, x))[1]

    report = identical(fn, jnp.ones((ROWS, N)))
    np.testing.assert_allclose(report.nodes["toy/gate"].worst, 1.5)
    never = identical(
        lambda x: jax.lax.while_loop(lambda x: x[0, 0] < 0, lambda x: toy(x, EYE), x), jnp.ones((1, N)) * 9
    )
    assert bool(never.ok)
    assert list(never.nodes) == ["toy/gate", "toy/out"]


def test_while_loop_condition_with_checks_raises(toy: Toy, good: Any) -> None:
    def fn(x: Any) -> Any:
        return jax.lax.while_loop(lambda x: jnp.sum(toy(x, EYE)) < 1, lambda x: x + 1, x)

    with pytest.raises(
        NotImplementedError, match=r"inside the condition of jax.lax.while_loop; compute the condition in"
    ):
        checkpoint(fn)(good)


def test_branches_are_told_apart_and_the_one_not_taken_passes(toy: Toy, good: Any, bad: Any) -> None:
    op = jax.jit(toy)

    def fn(which: Any, x: Any) -> Any:
        branches = [lambda x: op(x, EYE), lambda x: x, lambda x: op(op(x, EYE) / 9, EYE)]
        return toy(jax.lax.switch(which, branches, x) / 9, EYE)

    names = [f"{call}/{node}" for call in ("toy", "toy[1]", "toy[2]", "toy[3]") for node in ("gate", "out")]
    for which, failing in ((0, "toy/gate"), (1, None), (2, "toy[1]/gate")):
        report = identical(fn, jnp.int32(which), bad)
        assert list(report.nodes) == names
        assert set(report.failures()) == ({failing} if failing else set())
        assert bool(identical(fn, jnp.int32(which), good).ok)


def test_scan_in_while_in_cond(toy: Toy, bad: Any) -> None:
    def fn(x: Any) -> Any:
        loop = jax.lax.while_loop
        return jax.lax.cond(
            x[0, 0] > 0,
            lambda x: loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, scan(toy)(c[1])), (0, x))[1],
            jnp.cos,
            x,
        )

    report = identical(fn, bad)
    assert tuple(report.failures()["decoder/*/toy/gate"][0].where.tolist())[1:] == (1,)


def test_structure_is_kept(toy: Toy, good: Any) -> None:
    jaxpr = str(jax.make_jaxpr(checkpoint(scan(toy)))(good))
    assert jaxpr.count("scan[") == 1
    assert jaxpr.count(" sin ") == 1


def test_checks_cost_nothing_in_plain_jit(toy: Toy, good: Any) -> None:
    text = jax.jit(lambda x: toy(x, EYE)).lower(good).compile().as_text()
    assert "is-finite" not in text
    assert " maximum(" not in text


def test_report_as_text(toy: Toy, good: Any, bad: Any) -> None:
    report = checkpoint(scan(toy))(bad)[1]
    assert str(report).splitlines() == [
        "1 of 2 checked nodes FAILED",
        "node                rule    worst / bound  at",
        "decoder/*/toy/gate  range   2              (0, 1)  FAILED",
        "decoder/*/toy/gate  finite  0              (0, 0)  ok",
        "decoder/*/toy/out   finite  0              (0, 0)  ok",
    ]
    with pytest.raises(CheckpointError) as caught:
        report.raise_if_failed()
    assert str(caught.value).splitlines() == [
        "1 of 2 checked nodes failed",
        "node                rule   worst / bound  at",
        "decoder/*/toy/gate  range  2              (0, 1)  FAILED",
    ]
    assert str(checkpoint(scan(toy))(good)[1]).startswith("all checks passed\n")


def test_report_inside_a_jitted_function(toy: Toy, bad: Any) -> None:
    @jax.jit
    def fn(x: Any) -> Any:
        result, report = checkpoint(lambda x: toy(x, EYE))(x)
        assert str(report) == "Report of 2 nodes, being traced"
        return jnp.where(report.ok, result, jnp.nan), report

    result, report = fn(bad)
    assert np.isnan(result).all()
    assert list(report.nodes) == ["toy/gate", "toy/out"]

    def raising(x: Any) -> Any:
        checkpoint(lambda x: toy(x, EYE))(x)[1].raise_if_failed()

    with pytest.raises(TypeError, match="being traced; return the report from the jitted function"):
        jax.jit(raising)(bad)


def test_nothing_checked_warns(toy: Toy, good: Any) -> None:
    with atbfn.fusion(mode="fused"), pytest.warns(UserWarning, match="found no checks .*fused_with_checkpoints"):
        _, report = checkpoint(toy)(good, EYE)
    assert bool(report.ok)
    assert str(report) == "Report: no checks"
