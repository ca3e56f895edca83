"""A function jitted in one mode and called in another runs the other mode. Shown by counting traces, and by results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import atbfn.fusion
from atbfn.fusion import layer, reload_config, resolve

FACTOR = {"fused": 1.0, "step_by_step": 2.0, "fused_with_checkpoints": 3.0}


@pytest.fixture(autouse=True)
def clean_environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ATBFN_MODE", "ATBFN_TARGET", "ATBFN_CROSS_PRECISION", "ATBFN_CONFIG"):
            patch.delenv(name, raising=False)
        reload_config()
        yield
    reload_config()


class Counted:
    """x times a number that tells the mode; counts how often Python runs it."""

    def __init__(self) -> None:
        self.traces = 0

    def __call__(self, x: Any) -> Any:
        self.traces += 1
        return x * FACTOR[resolve("op").mode]


def _scan(op: Counted) -> Callable[[Any], Any]:
    return lambda x: jax.lax.scan(lambda c, _: (op(c), None), x, length=1)[0]


def _while(op: Counted) -> Callable[[Any], Any]:
    return lambda x: jax.lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, op(c[1])), (0, x))[1]


def _hidden_by_a_jit(op: Counted) -> Callable[[Any], Any]:
    inner = jax.jit(op)
    return lambda x: inner(x) + 0


FORMS: dict[str, Callable[[Counted], Callable[[Any], Any]]] = {
    "jit": lambda op: op,
    "nested jit": _hidden_by_a_jit,
    "scan": _scan,
    "while": _while,
    "cond": lambda op: lambda x: jax.lax.cond(True, op, lambda x: x, x),
    "switch": lambda op: lambda x: jax.lax.switch(jnp.int32(x > 0), [lambda x: x, op], x),
    "remat": lambda op: jax.checkpoint(op),
    "grad of jit": lambda op: jax.grad(jax.jit(op)),
    "grad of remat of jit": lambda op: jax.grad(jax.checkpoint(jax.jit(op))),
    "vmap of jit": lambda op: lambda x: jax.vmap(jax.jit(op))(x[None])[0],
    "jvp of jit": lambda op: lambda x: jax.jvp(jax.jit(op), (x,), (jnp.ones_like(x),))[1],
    "jit in scan": lambda op: _scan(jax.jit(op)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("outer", [True, False], ids=["jitted", "eager"])
@pytest.mark.parametrize("form", FORMS)
def test_mode_change_traces_again(form: str, outer: bool) -> None:
    op = Counted()
    fn = FORMS[form](op)
    if outer:
        fn = jax.jit(fn)
    x = jnp.float32(1)

    assert fn(x) == 1
    for mode, factor in FACTOR.items():
        with atbfn.fusion(mode=mode):
            assert fn(x) == factor
    traced = op.traces
    # Back in a mode it was in before, what was compiled is found again.
    assert fn(x) == 1
    for mode, factor in FACTOR.items():
        with atbfn.fusion(mode=mode):
            assert fn(x) == factor
    if outer:
        assert op.traces == traced


def test_exactly_one_trace_per_mode() -> None:
    op = Counted()
    fn = jax.jit(op)
    for _ in range(3):
        for mode in FACTOR:
            with atbfn.fusion(mode=mode):
                fn(1.0)
    assert op.traces == len(FACTOR)


def test_equal_contexts_share_a_trace() -> None:
    """What counts is what is in force, not how the `with` statements are nested."""
    op = Counted()
    fn = jax.jit(op)
    with atbfn.fusion(mode="step_by_step"):
        fn(1.0)
        with atbfn.fusion(mode="step_by_step"):
            fn(1.0)
    with atbfn.fusion(mode="fused", target=None), atbfn.fusion(mode="step_by_step"):
        fn(1.0)
    with atbfn.fusion(layers={"a": {"mode": "fused"}}), atbfn.fusion(mode="step_by_step"):
        fn(1.0)
    assert op.traces == 1


def test_layer_name_is_in_the_key() -> None:
    fn = jax.jit(Counted())
    with atbfn.fusion(layers={"a/1": {"mode": "step_by_step"}}):
        found = []
        for name in ("a/0", "a/1", "a/0"):
            with layer(name):
                found.append(float(fn(1.0)))
    assert found == [1, 2, 1]


def test_context_inside_a_jitted_function_and_around_it() -> None:
    op = Counted()

    @jax.jit
    def fn(x: Any) -> Any:
        with atbfn.fusion(mode="step_by_step"):
            inside = op(x)
        return inside, op(x)

    assert fn(1.0) == (2, 1)
    with atbfn.fusion(mode="fused_with_checkpoints"):
        assert fn(1.0) == (2, 3)


def test_reload_traces_again_in_every_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    op = Counted()
    fn = jax.jit(lambda x: jax.jit(op)(x))
    results = []

    def call() -> None:
        results.append(float(fn(1.0)))

    def in_thread() -> None:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join(30)

    call(), in_thread()
    assert op.traces == 1
    monkeypatch.setenv("ATBFN_MODE", "step_by_step")
    reload_config()
    call(), in_thread()
    monkeypatch.delenv("ATBFN_MODE")
    reload_config()
    call(), in_thread()
    assert results == [1, 1, 2, 2, 1, 1]
    assert op.traces == 2


def test_threads_trace_for_themselves() -> None:
    fn = jax.jit(Counted())
    results: dict[str, list[float]] = {mode: [] for mode in FACTOR}
    start = threading.Barrier(len(FACTOR))

    def work(mode: str) -> None:
        with atbfn.fusion(mode=mode):
            start.wait(30)
            for _ in range(50):
                results[mode].append(float(fn(1.0)))

    threads = [threading.Thread(target=work, args=(mode,)) for mode in FACTOR]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {mode: [factor] * 50 for mode, factor in FACTOR.items()}


def test_compiled_ahead_of_time_keeps_its_mode() -> None:
    with atbfn.fusion(mode="step_by_step"):
        compiled = jax.jit(Counted()).lower(jnp.float32(1)).compile()
    assert compiled(jnp.float32(1)) == 2


def test_a_pullback_keeps_its_mode() -> None:
    with atbfn.fusion(mode="step_by_step"):
        _, pull = jax.vjp(Counted(), 1.0)
    assert pull(1.0)[0] == 2
