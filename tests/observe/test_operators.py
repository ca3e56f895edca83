"""The wrappers on the public operators: DESIGN's step names, layers under scan, and faults by node name."""

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import atbfn
from atbfn import fusion

pytestmark = pytest.mark.usefixtures("unoptimized")

BATCH, Q_LEN, HIDDEN, INTERMEDIATE, HEADS, HEAD_DIM, MAX_SEQ, LAYERS = 2, 3, 8, 12, 2, 4, 6, 2
ATTENTION_STEPS = ["norm", "q", "k", "v", "q_rope", "k_rope", "k_cache", "v_cache"]
ATTENTION_STEPS += ["scores", "probs", "context", "proj", "summed", "out"]
FFN_STEPS = ["norm", "gate", "up", "act", "gated", "down", "summed", "out"]


@pytest.fixture(scope="module")
def params() -> Any:
    """The parameters of all layers, stacked."""
    random = np.random.default_rng(0)

    def weight(*shape: int) -> Any:
        return jnp.asarray(random.normal(size=(LAYERS, *shape)) / np.sqrt(shape[-1]), jnp.float32)

    return {
        "attention": atbfn.AttentionWeights(*(weight(HIDDEN, HIDDEN) for _ in range(4))),
        "gate": weight(INTERMEDIATE, HIDDEN),
        "up": weight(INTERMEDIATE, HIDDEN),
        "down": weight(HIDDEN, INTERMEDIATE),
        "gamma": jnp.ones((LAYERS, HIDDEN)),
    }


@pytest.fixture(scope="module")
def x() -> Any:
    return jnp.asarray(np.random.default_rng(1).normal(size=(BATCH, Q_LEN, HIDDEN)), jnp.float32)


def decoder(params: Any, x: Any, pos: Any) -> tuple[Any, Any]:
    caches = jnp.zeros((2, LAYERS, BATCH, HEADS, MAX_SEQ, HEAD_DIM))

    def layer(x: Any, scanned: Any) -> Any:
        p, caches = scanned
        norm = atbfn.RMSNorm(p["gamma"])
        with atbfn.layer("decoder/*"):
            rope = atbfn.Rope.create(HEAD_DIM, MAX_SEQ)
            x, *caches = atbfn.attention_with_kv_cache(
                x, *caches, pos, weights=p["attention"], num_heads=HEADS, rope=rope, norm=norm, residual=x
            )
            x = atbfn.fused_ffn(x, p["gate"], p["up"], p["down"], norm=norm, residual=x)
        return x, caches

    return jax.lax.scan(layer, x, (params, list(caches)))


def test_steps_of_a_scanned_decoder(params: Any, x: Any) -> None:
    pos = jnp.int32(1)
    plain = jax.jit(decoder)(params, x, pos)
    with atbfn.fusion(mode="step_by_step"):
        result, steps = atbfn.intermediates(decoder)(params, x, pos)
    assert list(steps) == [
        f"decoder/*/{operator}/{step}"
        for operator, names in (("attention_with_kv_cache", ATTENTION_STEPS), ("fused_ffn", FFN_STEPS))
        for step in names
    ]
    assert {value.shape[0] for value in steps.values()} == {LAYERS}
    chex.assert_trees_all_close(result, plain, rtol=1e-5, atol=1e-5)

    # The captured numbers are those of the reference, given the captured input of the second layer's FFN.
    captured = {step: np.asarray(steps[f"decoder/*/fused_ffn/{step}"][1]) for step in FFN_STEPS}
    normed = captured["norm"].astype(np.float64)
    gate = normed @ np.asarray(params["gate"][1], np.float64).T
    np.testing.assert_allclose(captured["gate"], gate, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(captured["act"], gate / (1 + np.exp(-gate)), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(steps["decoder/*/fused_ffn/out"][-1], result[0])


def test_checks_of_a_scanned_decoder(params: Any, x: Any) -> None:
    with atbfn.fusion(mode="fused_with_checkpoints"):
        run = atbfn.checkpoint(decoder)
        result, report = run(params, x, jnp.int32(0))
        chex.assert_trees_all_close(result, jax.jit(decoder)(params, x, jnp.int32(0)), rtol=1e-6, atol=1e-6)
        assert bool(report.ok), str(report)
        assert all(name.startswith("decoder/*/") for name in report.nodes)
        assert {name.split("/")[2] for name in report.nodes} == {"attention_with_kv_cache", "fused_ffn"}

        # A position past the end of the cache, in one row of the batch, known only at run time.
        _, report = run(params, x, jnp.array([0, MAX_SEQ], jnp.int32))
        node = report.nodes["decoder/*/attention_with_kv_cache/pos"]
        assert not node.passed
        assert tuple(node.where.tolist()) == (0, 1)  # layer, batch
        with pytest.raises(atbfn.observe.CheckpointError, match="decoder/\\*/attention_with_kv_cache/pos"):
            report.raise_if_failed()

        # A weight that makes the product overflow in the second layer only.
        broken = {**params, "up": params["up"].at[1, 5].set(3e38)}
        _, report = run(broken, x, jnp.int32(0))
        failed = report.failures()
        assert "decoder/*/fused_ffn/up" in failed
        assert "decoder/*/fused_ffn/gate" not in failed
        assert failed["decoder/*/fused_ffn/up"][0].where.tolist()[0] == 1


def test_gradients_through_both_wrappers(params: Any, x: Any) -> None:
    def loss(params: Any, x: Any) -> Any:
        return jnp.sum(decoder(params, x, jnp.int32(0))[0] ** 2)

    plain = jax.jit(jax.grad(loss))(params, x)
    for mode, wrapper in (("step_by_step", atbfn.intermediates), ("fused_with_checkpoints", atbfn.checkpoint)):
        with atbfn.fusion(mode=mode):
            inside, _ = wrapper(jax.grad(loss))(params, x)
            outside, _ = jax.jit(jax.grad(wrapper(loss), has_aux=True))(params, x)
        chex.assert_trees_all_close(inside, plain, rtol=1e-4, atol=1e-5)
        chex.assert_trees_all_close(outside, plain, rtol=1e-4, atol=1e-5)


def test_one_jitted_model_in_three_modes(params: Any, x: Any) -> None:
    """What ran is seen in the traced program: single operators, one fused operator, or that with check values."""
    traces = []

    @jax.jit
    def model(p: Any, x: Any) -> Any:
        traces.append(fusion.resolve("model").mode)
        return atbfn.fused_ffn(x, p["gate"][0], p["up"][0], p["down"][0])

    results, programs = {}, {}
    for mode in (*fusion.MODES, *fusion.MODES):
        with atbfn.fusion(mode=mode):
            results[mode] = model(params, x)
            programs[mode] = str(jax.make_jaxpr(model)(params, x))
    assert traces == list(fusion.MODES)
    assert " fused_ffn[" not in programs["step_by_step"]
    assert " linear[" in programs["step_by_step"]
    assert " fused_ffn[" in programs["fused"]
    assert "atbfn_tag" not in programs["fused"]
    assert " fused_ffn[" in programs["fused_with_checkpoints"]
    assert "kind='check'" in programs["fused_with_checkpoints"]
    for result in results.values():
        np.testing.assert_allclose(result, results["fused"], rtol=1e-5, atol=1e-5)


def test_a_pattern_that_would_split_the_scan_raises(params: Any, x: Any) -> None:
    with (
        atbfn.fusion(layers={"decoder/1": {"mode": "step_by_step"}}),
        pytest.raises(ValueError, match=r"attention_with_kv_cache: layers: the pattern 'decoder/1'.*of one scan"),
    ):
        decoder(params, x, jnp.int32(0))


def test_what_ran_fused_is_named(params: Any, x: Any) -> None:
    with pytest.warns(UserWarning, match=r"what ran fused: .*fused_ffn"):
        atbfn.intermediates(decoder)(params, x, jnp.int32(0))
    with pytest.warns(UserWarning, match=r"operators ran without checks: .*fused_ffn"):
        atbfn.checkpoint(decoder)(params, x, jnp.int32(0))
