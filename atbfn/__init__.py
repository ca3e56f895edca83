"""Fused Transformer operators as pure JAX functions, proved equal to their formulas.

Every operator is a pure function over immutable arrays. `with atbfn.fusion(mode=...)` changes how every call inside
runs (step by step, fused, or fused with checks), without touching model code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atbfn import _installed, lowering, observe  # noqa: F401 - the first is a check
from atbfn.activation import activation
from atbfn.attention import attention_with_kv_cache, flash_attention, self_attention
from atbfn.export import export
from atbfn.ffn import fused_ffn
from atbfn.fusion import ConfigError, FusionConfig, layer, reload_config
from atbfn.kv_cache import kv_cache_update
from atbfn.linear import linear
from atbfn.norm import layernorm, layernorm_residual, rmsnorm, rmsnorm_residual
from atbfn.observe import checkpoint, intermediates
from atbfn.primitives.attention import AttentionWeights
from atbfn.primitives.masks import Allowed, BlockSparse, Causal, Full, Mask, PrefixLM, Segments
from atbfn.primitives.norm import LayerNorm, RMSNorm
from atbfn.primitives.rope import LinearScaling, Llama3Scaling, Rope
from atbfn.remat import save_operators
from atbfn.rope import rope
from atbfn.softmax import softmax

if TYPE_CHECKING:  # at run time the package itself is callable, which a type checker cannot see
    from atbfn.fusion.context import fusion
else:
    from atbfn import fusion

__version__ = "0.1.0"

__all__ = [
    "Allowed",
    "AttentionWeights",
    "BlockSparse",
    "Causal",
    "ConfigError",
    "Full",
    "FusionConfig",
    "LayerNorm",
    "LinearScaling",
    "Llama3Scaling",
    "Mask",
    "PrefixLM",
    "RMSNorm",
    "Rope",
    "Segments",
    "activation",
    "attention_with_kv_cache",
    "checkpoint",
    "export",
    "flash_attention",
    "fused_ffn",
    "fusion",
    "intermediates",
    "kv_cache_update",
    "layer",
    "layernorm",
    "layernorm_residual",
    "linear",
    "lowering",
    "observe",
    "reload_config",
    "rmsnorm",
    "rmsnorm_residual",
    "rope",
    "save_operators",
    "self_attention",
    "softmax",
]

lowering.register_all()
