"""Decoders of the Llama family (Llama, Mistral, Qwen2, SmolLM2), written with atbfn's public operators.

Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", 2023. A layer is three calls: attention with
its cache, `rmsnorm_residual`, `fused_ffn`. Parameters are plain pytrees; those of the layers are stacked.
"""

from __future__ import annotations

import dataclasses
import re
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import atbfn
from atbfn.models.weights import (
    Checkpoint,
    Leaf,
    Progress,
    WeightError,
    load_parameters,
    open_checkpoint,
    setting,
)


@dataclasses.dataclass(frozen=True)
class FrequencyFactors:
    """Rotary frequencies divided one by one, as GGUF files store scaled embeddings (`rope_freqs.weight`)."""

    factors: tuple[float, ...]

    def apply(self, frequencies: np.ndarray) -> np.ndarray:
        """Scaled frequencies in radians per token."""
        return frequencies / np.asarray(self.factors, np.float64)


@dataclasses.dataclass(frozen=True)
class LlamaConfig:
    """Shape of a decoder.

    Attributes:
      vocab_size, hidden, intermediate, num_layers, num_heads, num_kv_heads, head_dim: sizes.
      rope_theta: base of the rotary wavelengths.
      rope_scaling: how the context was lengthened, or None.
      norm_eps: epsilon of every RMSNorm.
      tie_word_embeddings: the output projection is the embedding; there is no `lm_head`.
      max_positions: context length.
      qkv_bias, output_bias: the projections of queries, keys, values, and of the attention's output, have biases
        (Qwen2 has the first).
      sliding_window: each token attends to this many tokens, itself included; None for all.
      scan_layers: layers run under `lax.scan` (one compiled body); False unrolls them, with each layer named
        "decoder/<index>" for configuration and captured intermediates instead of "decoder/*"; with parameters that
        are `unstack`ed it also spares the copy of each layer's weights.
    """

    vocab_size: int
    hidden: int
    intermediate: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float = 10000.0
    rope_scaling: atbfn.LinearScaling | atbfn.Llama3Scaling | FrequencyFactors | None = None
    norm_eps: float = 1e-5
    tie_word_embeddings: bool = False
    max_positions: int = 2048
    qkv_bias: bool = False
    output_bias: bool = False
    sliding_window: int | None = None
    scan_layers: bool = True


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """Keys and values of every layer, and the rotary tables for their positions.

    Attributes:
      k, v: [num_layers, batch, num_kv_heads, max_seq, head_dim].
      rope: float32 tables of max_seq positions.
    """

    k: jax.Array
    v: jax.Array
    rope: atbfn.Rope

    @property
    def max_seq(self) -> int:
        """How many positions a sequence can have."""
        return self.k.shape[-2]


def init_cache(config: LlamaConfig, batch: int, max_seq: int, dtype: Any = jnp.float32) -> Cache:
    """Empty caches for `batch` sequences of at most `max_seq` tokens.

    Raises:
      ValueError: max_seq is not in 1 .. config.max_positions.
    """
    if not 1 <= max_seq <= config.max_positions:
        raise ValueError(
            f"init_cache: max_seq: got {max_seq}; expected 1 to {config.max_positions}, the model's context length; "
            "shorten the prompt or generate fewer tokens"
        )
    shape = (config.num_layers, batch, config.num_kv_heads, max_seq, config.head_dim)
    return Cache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), _rope(config, max_seq))


def _rope(config: LlamaConfig, max_positions: int) -> atbfn.Rope:
    return atbfn.Rope.create(
        config.head_dim, max_positions, theta=config.rope_theta, scaling=config.rope_scaling, style="half"
    )


def forward(
    params: Any,
    config: LlamaConfig,
    tokens: jax.Array,
    cache: Cache,
    pos: Any,
    *,
    lengths: jax.Array | None = None,
    last_only: bool = False,
) -> tuple[jax.Array, Cache]:
    """Feed tokens to the model after those already in the cache.

    Args:
      params: as `load` or `init_params` gives.
      config: static.
      tokens: int32 [batch, q_len]. Ids outside the vocabulary give NaN.
      cache: as `init_cache` gives. Donate it: it is then updated in place.
      pos: int32, scalar or [batch]: how many tokens each sequence's cache holds already.
      lengths: int32 [batch] of valid tokens in each row, or None for all; logits of the others mean nothing.
      last_only: give the logits of each row's last valid token only.

    Returns:
      Logits [batch, q_len, vocab_size], or [batch, vocab_size] with last_only, and the cache.
    """
    x = _embed(params, tokens)
    pos = jnp.asarray(pos, jnp.int32)

    def layer(carry: tuple[jax.Array, ...], weights: Any, index: Any) -> tuple[jax.Array, ...]:
        x, k, v = carry
        attended, k, v = atbfn.attention_with_kv_cache(
            x,
            k,
            v,
            pos,
            weights=weights["attention"],
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            rope=cache.rope,
            mask=atbfn.Causal(window=config.sliding_window),
            lengths=lengths,
            norm=atbfn.RMSNorm(weights["attention_norm"], config.norm_eps),
            layer=index,
        )
        return _ffn(weights, config, attended, x), k, v

    # The caches ride in the carry: as scanned inputs and outputs they would be copied at every step.
    x, k, v = _layers(layer, params, config, (x, cache.k, cache.v))
    if last_only:
        x = _last_rows(x, lengths)
    return _logits(params, config, x), dataclasses.replace(cache, k=k, v=v)


def forward_full(params: Any, config: LlamaConfig, tokens: jax.Array, *, lengths: jax.Array | None = None) -> jax.Array:
    """Logits [batch, q_len, vocab_size] of whole sequences, without a cache: for training and scoring.

    Args:
      params, config, tokens, lengths: as in `forward`.
    """
    rope = _rope(config, tokens.shape[1])

    def layer(carry: tuple[jax.Array, ...], weights: Any, index: Any) -> tuple[jax.Array, ...]:
        (x,) = carry
        attended = atbfn.self_attention(
            x,
            weights=weights["attention"],
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            rope=rope,
            mask=atbfn.Causal(window=config.sliding_window),
            lengths=lengths,
            norm=atbfn.RMSNorm(weights["attention_norm"], config.norm_eps),
        )
        return (_ffn(weights, config, attended, x),)

    (x,) = _layers(layer, params, config, (_embed(params, tokens),))
    return _logits(params, config, x)


def _embed(params: Any, tokens: jax.Array) -> jax.Array:
    table = params["embedding"]
    if table.dtype.itemsize != 2:
        return table.at[tokens].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
    # Rows of 16-bit floats are taken as integers: XLA's CPU compiler would widen the whole table first.
    nan = int(np.asarray(jnp.nan, table.dtype).view(np.uint16))
    bits = jax.lax.bitcast_convert_type(table, jnp.uint16)
    rows = bits.at[tokens].get(mode="fill", fill_value=nan, wrap_negative_indices=False)
    return jax.lax.bitcast_convert_type(rows, table.dtype)


def _ffn(weights: Any, config: LlamaConfig, attended: jax.Array, x: jax.Array) -> jax.Array:
    normed, summed = atbfn.rmsnorm_residual(attended, x, weights["ffn_norm"], eps=config.norm_eps)
    return atbfn.fused_ffn(normed, weights["w_gate"], weights["w_up"], weights["w_down"], residual=summed)


def _layers(layer: Any, params: Any, config: LlamaConfig, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    layers = params["layers"]
    if not config.scan_layers:
        for i in range(config.num_layers):
            weights = layers[i] if isinstance(layers, tuple) else jax.tree.map(lambda leaf, i=i: leaf[i], layers)
            with atbfn.layer(f"decoder/{i}"):
                carry = layer(carry, weights, i)
        return carry
    if isinstance(layers, tuple):
        raise ValueError("scan_layers: got True and parameters of one layer each; stack them, or set it to False")

    def body(carry: tuple[jax.Array, ...], inputs: Any) -> tuple[tuple[jax.Array, ...], None]:
        with atbfn.layer("decoder/*"):
            return layer(carry, *inputs), None

    return jax.lax.scan(body, carry, (params["layers"], jnp.arange(config.num_layers, dtype=jnp.int32)))[0]


def _last_rows(x: jax.Array, lengths: jax.Array | None) -> jax.Array:
    if lengths is None:
        return x[:, -1]
    # A row without tokens has no last one; its first row stands in and its logits mean nothing.
    last = jnp.maximum(jnp.asarray(lengths, jnp.int32) - 1, 0)
    return jnp.take_along_axis(x, last[:, None, None], axis=1)[:, 0]


def _logits(params: Any, config: LlamaConfig, x: jax.Array) -> jax.Array:
    x = atbfn.rmsnorm(x, params["norm"], eps=config.norm_eps)
    return atbfn.linear(x, params["embedding" if config.tie_word_embeddings else "lm_head"])


def unstack(params: Any) -> Any:
    """The same parameters with "layers" a tuple, one pytree per layer, for `scan_layers=False`.

    A layer's weights are then used where they lie; a scan copies each layer's out of the stack at every step.
    """
    layers = params["layers"]
    count = jax.tree.leaves(layers)[0].shape[0]
    return {**params, "layers": tuple(jax.tree.map(lambda leaf, i=i: leaf[i], layers) for i in range(count))}


def init_params(config: LlamaConfig, key: jax.Array, dtype: Any = jnp.float32) -> Any:
    """Random parameters: normal with variance 1 / fan-in, norms one, biases zero.

    Returns:
      {"embedding" [vocab_size, hidden], "layers": {"attention_norm", "attention": AttentionWeights, "ffn_norm",
      "w_gate", "w_up", "w_down"} with a leading layer axis, "norm" [hidden], "lm_head" unless tied}. Norms are float32.
    """
    leaves, tree = jax.tree.flatten(_plan(config, lambda name, layer: name), is_leaf=lambda x: isinstance(x, Leaf))

    def draw(leaf: Leaf, key: jax.Array) -> jax.Array:
        shape = (config.num_layers, *leaf.shape) if leaf.stacked else leaf.shape
        if leaf.full_precision:
            return jnp.ones(shape, jnp.float32)
        if len(leaf.shape) == 1:
            return jnp.zeros(shape, dtype)
        return (jax.random.normal(key, shape, jnp.float32) * leaf.shape[-1] ** -0.5).astype(dtype)

    return jax.tree.unflatten(
        tree, [draw(leaf, k) for leaf, k in zip(leaves, jax.random.split(key, len(leaves)), strict=True)]
    )


# Loading


@dataclasses.dataclass(frozen=True)
class Llama:
    """A loaded decoder: `config` and `params`."""

    config: LlamaConfig
    params: Any


def load(
    source: str | Path | Checkpoint, dtype: Any = jnp.float32, *, progress: Progress | None = None, **changes: Any
) -> Llama:
    """Load a decoder from a GGUF file or from Hugging Face safetensors.

    Args:
      source: file, folder, or an open checkpoint (`open_checkpoint`).
      dtype: of the parameters; norms are kept in float32.
      progress: called with (done, total, tensor name), in elements.
      **changes: fields of the configuration to set, e.g. scan_layers=False, which also unstacks the layers (`unstack`).

    Raises:
      WeightError: a file that is truncated, foreign or incomplete, or an architecture that is not supported.
    """
    checkpoint = open_checkpoint(source)
    if checkpoint.kind == "gguf":
        config, architecture = _config_from_gguf(checkpoint)
        plan = _plan(config, _gguf_name, unpermute=architecture == "llama")
        extra = re.compile(r"rope_freqs\.weight")
    else:
        config = _config_from_huggingface(checkpoint)
        plan = _plan(config, _huggingface_name)
        # A tied output projection may be stored as well; it is the embedding.
        tied = r"lm_head\.weight|" if config.tie_word_embeddings else ""
        extra = re.compile(tied + r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
    params = load_parameters(
        checkpoint, plan, dtype, expected_extra=lambda name: extra.fullmatch(name) is not None, progress=progress
    )
    config = dataclasses.replace(config, **changes)
    return Llama(config, params if config.scan_layers else unstack(params))


def _plan(config: LlamaConfig, spell: Any, *, unpermute: bool = False) -> Any:
    """The parameters as `Leaf`s; `spell(name, layer)` gives a tensor's name in the checkpoint."""
    hidden, intermediate = config.hidden, config.intermediate
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

    def leaf(name: str, *shape: int, norm: bool = False, heads: int | None = None) -> Leaf:
        names = tuple(spell(name, i) for i in range(config.num_layers))
        transform = partial(_unpermute, heads=heads) if unpermute and heads else None
        return Leaf(names, shape, stacked=True, full_precision=norm, transform=transform)

    def top(name: str, *shape: int, norm: bool = False) -> Leaf:
        return Leaf((spell(name, None),), shape, full_precision=norm)

    biases = {}
    if config.qkv_bias:
        biases["b_q"] = leaf("b_q", q, heads=config.num_heads)
        biases["b_k"] = leaf("b_k", kv, heads=config.num_kv_heads)
        biases["b_v"] = leaf("b_v", kv)
    if config.output_bias:
        biases["b_o"] = leaf("b_o", hidden)
    plan = {
        "embedding": top("embedding", config.vocab_size, hidden),
        "layers": {
            "attention_norm": leaf("attention_norm", hidden, norm=True),
            "attention": atbfn.AttentionWeights(
                w_q=leaf("w_q", q, hidden, heads=config.num_heads),
                w_k=leaf("w_k", kv, hidden, heads=config.num_kv_heads),
                w_v=leaf("w_v", kv, hidden),
                w_o=leaf("w_o", hidden, q),
                **biases,
            ),
            "ffn_norm": leaf("ffn_norm", hidden, norm=True),
            "w_gate": leaf("w_gate", intermediate, hidden),
            "w_up": leaf("w_up", intermediate, hidden),
            "w_down": leaf("w_down", hidden, intermediate),
        },
        "norm": top("norm", hidden, norm=True),
    }
    if not config.tie_word_embeddings:
        plan["lm_head"] = top("lm_head", config.vocab_size, hidden)
    return plan


def _unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo the order in which llama.cpp stores query and key rows: it pairs 2 i with 2 i + 1, the checkpoint's rotary
    embedding pairs i with i + head_dim / 2."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, half, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


_HUGGINGFACE = {
    "embedding": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "lm_head": "lm_head.weight",
    "attention_norm": "input_layernorm.weight",
    "ffn_norm": "post_attention_layernorm.weight",
    "w_gate": "mlp.gate_proj.weight",
    "w_up": "mlp.up_proj.weight",
    "w_down": "mlp.down_proj.weight",
    **{f"{kind}_{x}": f"self_attn.{x}_proj.{long}" for kind, long in (("w", "weight"), ("b", "bias")) for x in "qkvo"},
}
_GGUF = {
    "embedding": "token_embd.weight",
    "norm": "output_norm.weight",
    "lm_head": "output.weight",
    "attention_norm": "attn_norm.weight",
    "ffn_norm": "ffn_norm.weight",
    "w_gate": "ffn_gate.weight",
    "w_up": "ffn_up.weight",
    "w_down": "ffn_down.weight",
    **{f"{kind}_{x}": f"attn_{x}.{long}" for kind, long in (("w", "weight"), ("b", "bias")) for x in "qkv"},
    "w_o": "attn_output.weight",
    "b_o": "attn_output.bias",
}


def _huggingface_name(name: str, layer: int | None) -> str:
    return _HUGGINGFACE[name] if layer is None else f"model.layers.{layer}.{_HUGGINGFACE[name]}"


def _gguf_name(name: str, layer: int | None) -> str:
    return _GGUF[name] if layer is None else f"blk.{layer}.{_GGUF[name]}"


def _unsupported(checkpoint: Checkpoint, what: str) -> WeightError:
    return WeightError(
        f"{checkpoint.path}: {what}; supported are dense decoders of the Llama, Mistral and Qwen2 families: "
        "pass such a checkpoint"
    )


def _config_from_gguf(checkpoint: Checkpoint) -> tuple[LlamaConfig, str]:
    fields = checkpoint.metadata
    arch = str(fields.get("general.architecture"))
    if arch not in ("llama", "qwen2"):
        raise _unsupported(checkpoint, f"general.architecture is {arch!r}")
    if fields.get(f"{arch}.expert_count"):
        raise _unsupported(checkpoint, "it is a mixture of experts")
    read = partial(setting, checkpoint)
    hidden, num_heads = read(f"{arch}.embedding_length", int), read(f"{arch}.attention.head_count", int)
    head_dim = read(f"{arch}.attention.key_length", int, hidden // num_heads)
    rotary_dim = read(f"{arch}.rope.dimension_count", int, head_dim)
    if rotary_dim != head_dim:
        raise _unsupported(checkpoint, f"only {rotary_dim} of {head_dim} elements of a head rotate")
    embedding = checkpoint.shapes.get("token_embd.weight", (0,))
    config = LlamaConfig(
        vocab_size=read(f"{arch}.vocab_size", int, embedding[0]),
        hidden=hidden,
        intermediate=read(f"{arch}.feed_forward_length", int),
        num_layers=read(f"{arch}.block_count", int),
        num_heads=num_heads,
        num_kv_heads=read(f"{arch}.attention.head_count_kv", int, num_heads),
        head_dim=head_dim,
        rope_theta=read(f"{arch}.rope.freq_base", float, 10000.0),
        rope_scaling=_gguf_scaling(checkpoint, arch),
        norm_eps=read(f"{arch}.attention.layer_norm_rms_epsilon", float),
        # Files of tied models lack the output projection.
        tie_word_embeddings="output.weight" not in checkpoint.shapes,
        max_positions=read(f"{arch}.context_length", int),
        qkv_bias="blk.0.attn_q.bias" in checkpoint.shapes,
        output_bias="blk.0.attn_output.bias" in checkpoint.shapes,
        sliding_window=fields.get(f"{arch}.attention.sliding_window") or None,
    )
    return config, arch


def _gguf_scaling(checkpoint: Checkpoint, arch: str) -> Any:
    if "rope_freqs.weight" in checkpoint.shapes:
        return FrequencyFactors(tuple(checkpoint.read("rope_freqs.weight").astype(float).tolist()))
    kind = checkpoint.metadata.get(f"{arch}.rope.scaling.type", "none")
    if kind == "linear":
        return atbfn.LinearScaling(setting(checkpoint, f"{arch}.rope.scaling.factor", float))
    if kind != "none":
        raise _unsupported(checkpoint, f"the rotary embedding is scaled with {kind!r}")
    return None


def _config_from_huggingface(checkpoint: Checkpoint) -> LlamaConfig:
    fields = checkpoint.metadata
    family = fields.get("model_type")
    if family not in ("llama", "mistral", "qwen2"):
        raise _unsupported(checkpoint, f"model_type is {family!r}")
    if fields.get("hidden_act", "silu") != "silu":
        raise _unsupported(checkpoint, f"hidden_act is {fields['hidden_act']!r}")
    if fields.get("mlp_bias"):
        raise _unsupported(checkpoint, "its feed-forward layers have biases")
    if fields.get("quantization_config"):
        raise _unsupported(checkpoint, "the weights are quantised")
    read = partial(setting, checkpoint)
    hidden, num_heads = read("hidden_size", int), read("num_attention_heads", int)
    head_dim = read("head_dim", int, hidden // num_heads)
    # Transformers 5 writes rope_parameters, earlier ones rope_scaling and rope_theta.
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    windowed = fields.get("use_sliding_window", family == "mistral")
    if family == "qwen2" and windowed and fields.get("max_window_layers", 0) > 0:
        raise _unsupported(checkpoint, "only some layers have a sliding window")
    bias = bool(fields.get("attention_bias", False))
    return LlamaConfig(
        vocab_size=read("vocab_size", int),
        hidden=hidden,
        intermediate=read("intermediate_size", int),
        num_layers=read("num_hidden_layers", int),
        num_heads=num_heads,
        num_kv_heads=read("num_key_value_heads", int, num_heads),
        head_dim=head_dim,
        rope_theta=float(rope.get("rope_theta") or read("rope_theta", float, 10000.0)),
        rope_scaling=_huggingface_scaling(checkpoint, rope),
        norm_eps=read("rms_norm_eps", float, 1e-6),
        tie_word_embeddings=bool(fields.get("tie_word_embeddings", False)),
        max_positions=read("max_position_embeddings", int, 2048),
        qkv_bias=bias or family == "qwen2",
        output_bias=bias and family != "qwen2",
        sliding_window=(fields.get("sliding_window") or None) if windowed else None,
    )


def _huggingface_scaling(checkpoint: Checkpoint, rope: Any) -> Any:
    kind = rope.get("rope_type", rope.get("type", "default"))
    try:
        if kind == "linear":
            return atbfn.LinearScaling(float(rope["factor"]))
        if kind == "llama3":
            return atbfn.Llama3Scaling(
                factor=float(rope["factor"]),
                low_freq_factor=float(rope["low_freq_factor"]),
                high_freq_factor=float(rope["high_freq_factor"]),
                original_max_positions=int(rope["original_max_position_embeddings"]),
            )
    except KeyError as error:
        raise WeightError(
            f"{checkpoint.path}: the rotary scaling {kind!r} lacks {error.args[0]}; download config.json again"
        ) from None
    if kind != "default":
        raise _unsupported(checkpoint, f"the rotary embedding is scaled with {kind!r}")
    return None
