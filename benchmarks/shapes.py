"""Shapes that benchmarks measure, named after the models that have them, and odd ones that no kernel is made for."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Model:
    """Sizes of a Transformer.

    Attributes:
      hidden, intermediate, heads, kv_heads, head_dim: of a layer.
      vocab: rows of the output projection.
      gated: the FFN has a gate (Llama); False is the plain MLP with biases (BERT).
      activation: of the FFN, as `fused_ffn` names it.
      qkv_bias: the query, key and value projections have biases.
      causal: False attends in both directions.
    """

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int = 0
    gated: bool = True
    activation: str = "silu"
    qkv_bias: bool = False
    causal: bool = True


MODELS = {
    "SmolLM2-135M": Model(576, 1536, 9, 3, 64, 49152),
    "Qwen2.5-1.5B": Model(1536, 8960, 12, 2, 128, 151936, qkv_bias=True),
    "Llama-2-7B": Model(4096, 11008, 32, 32, 128, 32000),
    "Llama-3-8B": Model(4096, 14336, 32, 8, 128, 128256),
    "BERT-base": Model(768, 3072, 12, 12, 64, 30522, gated=False, activation="gelu", qkv_bias=True, causal=False),
    # Llama-2-7B's layer at half the width: one layer's weights fit a server's last-level cache.
    "half-7B": Model(2048, 5504, 16, 16, 128, 32000),
    # Primes, and a head that no vector divides.
    "odd": Model(331, 887, 3, 1, 41, 1009),
    "odd-tiny": Model(61, 127, 3, 3, 7, 97),
}

# Rows of x, of the FFN and of the projections: decode of one or some sequences, and prefill.
FFN_TOKENS = {
    "half-7B": (1, 8, 32, 128, 512),
    "SmolLM2-135M": (1, 512),
    "Qwen2.5-1.5B": (1, 128),
    "Llama-2-7B": (1, 128),
    "Llama-3-8B": (1,),
    "BERT-base": (128, 512),
    "odd": (1, 7, 13, 61),
    "odd-tiny": (1, 13),
}

# model, which projection, rows. "q" is hidden to heads, "kv" the keys and values in one, "head" the output vocabulary.
LINEAR = (
    ("SmolLM2-135M", "q", 1),
    ("SmolLM2-135M", "head", 1),
    ("Qwen2.5-1.5B", "q", 1),
    ("Qwen2.5-1.5B", "q", 128),
    ("Llama-2-7B", "q", 1),
    ("Llama-2-7B", "q", 128),
    ("Llama-3-8B", "kv", 8),
    ("BERT-base", "q", 128),
    ("half-7B", "q", 512),
    ("odd", "q", 1),
    ("odd", "head", 7),
    ("odd", "q", 61),
)

# model, batch, tokens
PREFILL = (
    ("half-7B", 1, 1024),
    ("half-7B", 1, 2048),
    ("SmolLM2-135M", 1, 512),
    ("Llama-3-8B", 1, 512),
    ("BERT-base", 4, 128),
    ("odd", 1, 61),
    ("odd", 2, 127),
    ("odd-tiny", 1, 13),
)

# model, batch, keys
DECODE = (
    ("Llama-3-8B", 1, 4096),
    ("Llama-3-8B", 8, 4096),
    ("half-7B", 1, 4096),
    ("half-7B", 8, 4096),
    ("SmolLM2-135M", 1, 1024),
    ("Qwen2.5-1.5B", 1, 4096),
    ("odd", 1, 509),
    ("odd-tiny", 3, 31),
)

# model, batch, new tokens, position of the first, allocation
CACHED = (
    ("SmolLM2-135M", 1, 1, 500, 1024),
    ("SmolLM2-135M", 1, 512, 0, 1024),
    ("Qwen2.5-1.5B", 1, 1, 2000, 4096),
    ("Llama-3-8B", 1, 1, 4000, 4096),
    ("Llama-3-8B", 8, 1, 1000, 2048),
    ("half-7B", 1, 128, 0, 1024),
    ("odd", 1, 1, 100, 127),
    ("odd", 2, 13, 7, 61),
)

# rows, hidden
NORM = ((512, 4096), (1, 4096), (512, 576), (1, 576), (1, 1536), (128, 768), (13, 331), (1, 61))

# model, batch, tokens
ROPE = (
    ("Llama-3-8B", 1, 512),
    ("Llama-3-8B", 1, 1),
    ("SmolLM2-135M", 1, 512),
    ("SmolLM2-135M", 1, 1),
    ("odd", 2, 13),
)

# MiB of each of the two caches: [1, 8, max_seq, 128], so 1k to 64k positions of 16 bits (134 MB).
CACHE_MEBIBYTES = (2, 8, 32, 128)

# model, tokens
GRAD = (("SmolLM2-135M", 512), ("half-7B", 512), ("Llama-2-7B", 512), ("odd", 61))
