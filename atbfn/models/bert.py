"""Encoders of the BERT family, written with atbfn's public operators, and sentence embeddings from them.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", 2019; Reimers,
Gurevych, "Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks", 2019. A layer is two calls: attention and
feed-forward, each with its residual and the norm behind it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import atbfn
from atbfn.models.tokenizer import Tokenizer, load_tokenizer
from atbfn.models.weights import (
    Checkpoint,
    Leaf,
    Progress,
    WeightError,
    load_parameters,
    open_checkpoint,
    read_json,
    setting,
)


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Shape of an encoder.

    Attributes:
      vocab_size, hidden, intermediate, num_layers, num_heads: sizes.
      max_positions: rows of the position embedding.
      token_types: rows of the token type embedding.
      norm_eps: epsilon of every LayerNorm.
      activation: of the feed-forward layers.
      scan_layers: layers run under `lax.scan`, named "encoder/*"; False unrolls them, named "encoder/<index>".
    """

    vocab_size: int
    hidden: int
    intermediate: int
    num_layers: int
    num_heads: int
    max_positions: int = 512
    token_types: int = 2
    norm_eps: float = 1e-12
    activation: str = "gelu"
    scan_layers: bool = True


def forward(
    params: Any,
    config: BertConfig,
    tokens: jax.Array,
    *,
    lengths: jax.Array | None = None,
    token_types: jax.Array | None = None,
) -> jax.Array:
    """Contextual embeddings of every token.

    Args:
      params: as `load` gives.
      config: static.
      tokens: int32 [batch, q_len], at most max_positions long. Ids outside the vocabulary give NaN.
      lengths: int32 [batch] of valid tokens in each row, or None for all; the rows beyond are zeros.
      token_types: int32 [batch, q_len], which of two sentences a token belongs to; None for the first.

    Returns:
      [batch, q_len, hidden].

    Raises:
      ValueError: the sequences are longer than max_positions.
    """
    q_len = tokens.shape[1]
    if q_len > config.max_positions:
        raise ValueError(
            f"bert.forward: tokens: got rows of {q_len}; expected at most max_positions={config.max_positions}; "
            "truncate or split the text"
        )
    types = jnp.zeros_like(tokens) if token_types is None else token_types

    def look_up(table: str, ids: jax.Array) -> jax.Array:
        return params[table].at[ids].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)

    embedded = look_up("token_embedding", tokens) + look_up("type_embedding", types)
    embedded = embedded + params["position_embedding"][:q_len]
    x = atbfn.layernorm(embedded, params["norm"]["gamma"], params["norm"]["beta"], eps=config.norm_eps)

    def layer(x: jax.Array, weights: Any) -> jax.Array:
        x = atbfn.self_attention(
            x,
            weights=weights["attention"],
            num_heads=config.num_heads,
            mask=atbfn.Full(),
            lengths=lengths,
            residual=x,
            post_norm=atbfn.LayerNorm(**weights["attention_norm"], eps=config.norm_eps),
        )
        return atbfn.fused_ffn(
            x,
            None,
            weights["w_up"],
            weights["w_down"],
            activation=config.activation,
            b_up=weights["b_up"],
            b_down=weights["b_down"],
            residual=x,
            post_norm=atbfn.LayerNorm(**weights["ffn_norm"], eps=config.norm_eps),
        )

    if config.scan_layers:

        def body(x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
            with atbfn.layer("encoder/*"):
                return layer(x, weights), None

        x = jax.lax.scan(body, x, params["layers"])[0]
    else:
        for i in range(config.num_layers):
            with atbfn.layer(f"encoder/{i}"):
                x = layer(x, jax.tree.map(lambda leaf, i=i: leaf[i], params["layers"]))
    if lengths is None:
        return x
    return jnp.where(_valid(q_len, lengths)[..., None], x, jnp.zeros((), x.dtype))


def _valid(q_len: int, lengths: jax.Array) -> jax.Array:
    return jnp.arange(q_len, dtype=jnp.int32) < lengths[:, None]


def sentence_embedding(hidden: jax.Array, lengths: jax.Array | None = None) -> jax.Array:
    """Mean of the valid tokens' embeddings, scaled to length one, as sentence-transformers does for all-MiniLM-L6-v2.

    Args:
      hidden: [batch, q_len, hidden], as `forward` gives.
      lengths: as in `forward`.

    Returns:
      float32 [batch, hidden]; zeros for a sequence without tokens.
    """
    hidden = hidden.astype(jnp.float32)
    if lengths is None:
        mean = jnp.mean(hidden, axis=1)
    else:
        valid = _valid(hidden.shape[1], lengths)[..., None]
        total = jnp.sum(jnp.where(valid, hidden, 0), axis=1)
        mean = total / jnp.maximum(jnp.sum(valid, axis=1), 1)
    return mean / jnp.maximum(jnp.linalg.norm(mean, axis=-1, keepdims=True), 1e-12)


@dataclasses.dataclass(frozen=True)
class SentenceEncoder:
    """A loaded encoder with its tokenizer: `encode(texts)` gives sentence embeddings.

    Attributes:
      config, params: the encoder.
      tokenizer: its tokenizer.
      max_tokens: longer texts are cut to this many tokens, the last one kept.
    """

    config: BertConfig
    params: Any
    tokenizer: Tokenizer
    max_tokens: int

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Embeddings float32 [len(texts), hidden] of length one.

        Rows are padded to a power of two tokens, so that few programs are compiled. It takes text and returns NumPy
        arrays, so JAX cannot trace it: to look inside, give `forward` and `sentence_embedding` token ids.

        Raises:
          TypeError: a single string.
        """
        if isinstance(texts, str):
            raise TypeError("SentenceEncoder.encode: texts: got str; expected a sequence of strings; pass [text]")
        if not texts:
            return np.zeros((0, self.config.hidden), np.float32)
        rows = [self.tokenizer.encode(text) for text in texts]
        rows = [row if len(row) <= self.max_tokens else [*row[: self.max_tokens - 1], row[-1]] for row in rows]
        longest = max(len(row) for row in rows)
        width = min(1 << (longest - 1).bit_length(), self.config.max_positions)
        tokens = np.zeros((len(rows), width), np.int32)
        for out, row in zip(tokens, rows, strict=True):
            out[: len(row)] = row
        return np.asarray(_embed(self.params, self.config, tokens, np.array([len(row) for row in rows], np.int32)))


@partial(jax.jit, static_argnames="config")
def _embed(params: Any, config: BertConfig, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
    return sentence_embedding(forward(params, config, tokens, lengths=lengths), lengths)


# Loading


@dataclasses.dataclass(frozen=True)
class Bert:
    """A loaded encoder: `config` and `params`."""

    config: BertConfig
    params: Any


def load(
    source: str | Path | Checkpoint, dtype: Any = jnp.float32, *, progress: Progress | None = None, **changes: Any
) -> Bert:
    """Load an encoder from Hugging Face safetensors.

    Args:
      source: file, folder, or an open checkpoint (`open_checkpoint`).
      dtype: of the parameters; norms are kept in float32.
      progress: called with (done, total, tensor name), in elements.
      **changes: fields of the configuration to set, e.g. scan_layers=False.

    Raises:
      WeightError: a file that is truncated, foreign or incomplete, or an architecture that is not supported.
    """
    checkpoint = open_checkpoint(source)
    config = _config(checkpoint)
    # Checkpoints of models with heads keep the encoder below "bert."; heads are left out.
    prefix = "bert." if any(name.startswith("bert.") for name in checkpoint.shapes) else ""

    def head(name: str) -> bool:
        return (bool(prefix) and not name.startswith(prefix)) or name.removeprefix(prefix).startswith(
            ("pooler.", "embeddings.position_ids")
        )

    params = load_parameters(checkpoint, _plan(config, prefix), dtype, expected_extra=head, progress=progress)
    return Bert(dataclasses.replace(config, **changes), params)


def load_sentence_encoder(
    source: str | Path | Checkpoint, dtype: Any = jnp.float32, *, progress: Progress | None = None
) -> SentenceEncoder:
    """Load an encoder and its tokenizer for sentence embeddings (all-MiniLM-L6-v2 and its like: mean pooling).

    Args:
      source, dtype, progress: as in `load`.

    Raises:
      WeightError: as `load` and `load_tokenizer` do.
    """
    checkpoint = open_checkpoint(source)
    model = load(checkpoint, dtype, progress=progress)
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    settings = folder / "sentence_bert_config.json"
    limit = read_json(settings).get("max_seq_length") if settings.exists() else None
    limit = min(int(limit or model.config.max_positions), model.config.max_positions)
    return SentenceEncoder(model.config, model.params, load_tokenizer(checkpoint), limit)


def _config(checkpoint: Checkpoint) -> BertConfig:
    fields = checkpoint.metadata
    wrong = None
    if checkpoint.kind != "safetensors":
        wrong = f"it is {checkpoint.kind}"
    elif fields.get("model_type") != "bert":
        wrong = f"model_type is {fields.get('model_type')!r}"
    elif fields.get("position_embedding_type", "absolute") != "absolute":
        wrong = f"position_embedding_type is {fields['position_embedding_type']!r}"
    elif fields.get("hidden_act", "gelu") not in _ACTIVATIONS:
        wrong = f"hidden_act is {fields['hidden_act']!r}"
    if wrong:
        raise WeightError(
            f"{checkpoint.path}: {wrong}; supported are BERT encoders as safetensors with absolute positions and "
            f"{', '.join(_ACTIVATIONS)}: pass such a checkpoint"
        )
    read = partial(setting, checkpoint)
    return BertConfig(
        vocab_size=read("vocab_size", int),
        hidden=read("hidden_size", int),
        intermediate=read("intermediate_size", int),
        num_layers=read("num_hidden_layers", int),
        num_heads=read("num_attention_heads", int),
        max_positions=read("max_position_embeddings", int),
        token_types=read("type_vocab_size", int, 2),
        norm_eps=read("layer_norm_eps", float, 1e-12),
        activation=_ACTIVATIONS[fields.get("hidden_act", "gelu")],
    )


_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}


def _plan(config: BertConfig, prefix: str) -> Any:
    hidden, intermediate = config.hidden, config.intermediate

    def leaf(name: str, *shape: int, norm: bool = False) -> Leaf:
        names = tuple(f"{prefix}encoder.layer.{i}.{name}" for i in range(config.num_layers))
        return Leaf(names, shape, stacked=True, full_precision=norm)

    def top(name: str, *shape: int, norm: bool = False) -> Leaf:
        return Leaf((f"{prefix}embeddings.{name}",), shape, full_precision=norm)

    def norm(make: Any, name: str) -> dict[str, Leaf]:
        return {
            "gamma": make(f"{name}.weight", hidden, norm=True),
            "beta": make(f"{name}.bias", hidden, norm=True),
        }

    inner = "attention.self"
    return {
        "token_embedding": top("word_embeddings.weight", config.vocab_size, hidden),
        "position_embedding": top("position_embeddings.weight", config.max_positions, hidden),
        "type_embedding": top("token_type_embeddings.weight", config.token_types, hidden),
        "norm": norm(top, "LayerNorm"),
        "layers": {
            "attention": atbfn.AttentionWeights(
                w_q=leaf(f"{inner}.query.weight", hidden, hidden),
                w_k=leaf(f"{inner}.key.weight", hidden, hidden),
                w_v=leaf(f"{inner}.value.weight", hidden, hidden),
                w_o=leaf("attention.output.dense.weight", hidden, hidden),
                b_q=leaf(f"{inner}.query.bias", hidden),
                b_k=leaf(f"{inner}.key.bias", hidden),
                b_v=leaf(f"{inner}.value.bias", hidden),
                b_o=leaf("attention.output.dense.bias", hidden),
            ),
            "attention_norm": norm(leaf, "attention.output.LayerNorm"),
            "w_up": leaf("intermediate.dense.weight", intermediate, hidden),
            "b_up": leaf("intermediate.dense.bias", intermediate),
            "w_down": leaf("output.dense.weight", hidden, intermediate),
            "b_down": leaf("output.dense.bias", hidden),
            "ffn_norm": norm(leaf, "output.LayerNorm"),
        },
    }
