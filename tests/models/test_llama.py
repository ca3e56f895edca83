"""The decoder: its cache, scan, gradient, and agreement with transformers on small random models."""

from __future__ import annotations

import dataclasses
import json
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import atbfn
from atbfn.models import llama
from tests.models import tiny

MODES = ("step_by_step", "fused", "fused_with_checkpoints")
TOKENS = np.random.default_rng(1).integers(0, tiny.CONFIG.vocab_size, (3, 9)).astype(np.int32)

jit_forward = jax.jit(llama.forward, static_argnames=("config", "last_only"))
jit_full = jax.jit(llama.forward_full, static_argnames="config")


@pytest.fixture(scope="module")
def params():
    return tiny.params()


@pytest.mark.parametrize("mode, window", [("fused", 4), *((mode, None) for mode in MODES)])
def test_chunks_of_a_prompt_and_single_steps_give_the_logits_of_one_pass(params, mode, window):
    config = dataclasses.replace(tiny.CONFIG, sliding_window=window)
    with atbfn.fusion(mode=mode):
        whole = jit_full(params, config, TOKENS)
        cache, pieces, pos = llama.init_cache(config, 3, 16), [], 0
        for size in (4, 4, 1):
            logits, cache = jit_forward(params, config, TOKENS[:, pos : pos + size], cache, pos)
            pieces.append(logits)
            pos += size
    np.testing.assert_allclose(np.concatenate(pieces, axis=1), whole, rtol=0, atol=2e-5 * float(np.abs(whole).max()))


def test_the_order_of_tokens_matters(params):
    # Otherwise the test above would pass without attention.
    a = jit_full(params, tiny.CONFIG, TOKENS)[:, -1]
    b = jit_full(params, tiny.CONFIG, TOKENS[:, [1, 0, 2, 3, 4, 5, 6, 7, 8]])[:, -1]
    assert float(jnp.abs(a - b).max()) > 0.01 * float(jnp.abs(a).max())


@pytest.mark.parametrize("mode", MODES)
def test_sequences_of_different_lengths_in_one_batch_give_what_each_gives_alone(params, mode):
    config, first, second = tiny.CONFIG, np.array([5, 2, 4], np.int32), np.array([1, 4, 2], np.int32)
    with atbfn.fusion(mode=mode):
        cache = llama.init_cache(config, 3, 16)
        last, cache = jit_forward(params, config, TOKENS[:, :5], cache, 0, lengths=first, last_only=True)
        more, cache = jit_forward(params, config, TOKENS[:, 5:], cache, first, lengths=second, last_only=True)
        for i in range(3):
            a, b = TOKENS[i, : first[i]], TOKENS[i, 5 : 5 + second[i]]
            alone = jit_full(params, config, np.concatenate([a, b])[None])[0]
            np.testing.assert_allclose(last[i], alone[len(a) - 1], rtol=0, atol=1e-4)
            np.testing.assert_allclose(more[i], alone[-1], rtol=0, atol=1e-4)


def test_scanned_and_unrolled_layers_agree(params):
    unrolled = dataclasses.replace(tiny.CONFIG, scan_layers=False)
    for config in (tiny.CONFIG, unrolled):
        assert jit_full(params, config, TOKENS).shape == (3, 9, config.vocab_size)
    chex.assert_trees_all_close(
        jit_full(params, tiny.CONFIG, TOKENS), jit_full(params, unrolled, TOKENS), rtol=1e-5, atol=1e-5
    )
    a = jit_forward(params, tiny.CONFIG, TOKENS, llama.init_cache(tiny.CONFIG, 3, 12), 0)
    b = jit_forward(params, unrolled, TOKENS, llama.init_cache(unrolled, 3, 12), 0)
    chex.assert_trees_all_close(a, b, rtol=1e-5, atol=1e-5)


def test_layers_carry_their_names(params):
    with atbfn.fusion(mode="step_by_step"):
        run = atbfn.intermediates(partial(llama.forward_full, config=tiny.CONFIG))
        _, scanned = run(params, tokens=TOKENS)
        config = dataclasses.replace(tiny.CONFIG, scan_layers=False)
        _, unrolled = atbfn.intermediates(partial(llama.forward_full, config=config))(params, tokens=TOKENS)
    assert scanned["decoder/*/fused_ffn/gate"].shape == (2, 3, 9, tiny.CONFIG.intermediate)
    for i in range(2):
        np.testing.assert_allclose(
            unrolled[f"decoder/{i}/fused_ffn/gate"], scanned["decoder/*/fused_ffn/gate"][i], atol=1e-4
        )


def test_every_parameter_gets_the_gradient_that_differences_give(params):
    def loss(params):
        logits = jax.nn.log_softmax(llama.forward_full(params, tiny.CONFIG, TOKENS[:, :-1]))
        return -jnp.mean(jnp.take_along_axis(logits, TOKENS[:, 1:, None], axis=-1))

    grads = jax.jit(jax.grad(loss))(params)
    for path, grad in jax.tree_util.tree_leaves_with_path(grads):
        assert float(jnp.abs(grad).max()) > 1e-6, f"{jax.tree_util.keystr(path)} has no gradient"
    direction = jax.tree.map(lambda leaf: jax.random.normal(jax.random.key(leaf.size), leaf.shape), params)
    size, value = 1e-3, jax.jit(loss)
    ahead = value(jax.tree.map(lambda p, d: p + size * d, params, direction))
    behind = value(jax.tree.map(lambda p, d: p - size * d, params, direction))
    expected = sum(jax.tree.leaves(jax.tree.map(lambda g, d: jnp.vdot(g, d), grads, direction)))
    np.testing.assert_allclose((ahead - behind) / (2 * size), expected, rtol=1e-2)


def test_a_token_outside_the_vocabulary_gives_nan(params):
    for bad in (-1, tiny.CONFIG.vocab_size):
        assert np.isnan(jit_full(params, tiny.CONFIG, np.array([[1, bad]], np.int32))[0, 1]).all()


@pytest.mark.parametrize("max_seq", [0, -3, 129])
def test_a_cache_longer_than_the_context_is_refused(max_seq):
    with pytest.raises(ValueError, match=rf"max_seq: got {max_seq}; expected 1 to 128"):
        llama.init_cache(tiny.CONFIG, 1, max_seq)


FAMILIES = {
    "llama3 scaling, tied": (
        "Llama",
        {
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "linear scaling, biases": (
        "Llama",
        {"attention_bias": True, "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}},
    ),
    "sliding window": ("Mistral", {"sliding_window": 4}),
    "qkv biases": ("Qwen2", {}),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_random_models_agree_with_transformers(name, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    family, settings = FAMILIES[name]
    settings = {
        "vocab_size": 96,
        "hidden_size": 48,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "attn_implementation": "eager",
        **settings,
    }
    torch.manual_seed(0)
    theirs = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**settings)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(0.0, 0.2)
    # Two shards: the index is read too.
    theirs.save_pretrained(tmp_path, max_shard_size="40KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    tokens = np.random.default_rng(0).integers(0, 96, (2, 40)).astype(np.int32)
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens, dtype=torch.long)).logits.numpy()
    ours = llama.load(tmp_path)
    got = jit_full(ours.params, ours.config, tokens)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"mlp_bias": True}, "feed-forward layers have biases"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "scaled with 'yarn'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "lacks low_freq_factor"),
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"num_attention_heads": "four"}, "num_attention_heads is 'four', expected int"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers is 2.5, expected int"),
    ],
)
def test_configurations_that_are_not_supported_say_why(tmp_path, changes, reason):
    folder = tiny.write_safetensors(tmp_path)
    settings = tiny.huggingface_config() | changes
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(llama.WeightError, match=reason):
        llama.load(folder)
