"""Small decoders on disk, in both formats, with a tokenizer: what the loader and command line tests read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from atbfn.models import llama

CONFIG = llama.LlamaConfig(
    vocab_size=300,
    hidden=32,
    intermediate=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rope_theta=10000.0,
    norm_eps=1e-5,
    max_positions=128,
)


def params(config: llama.LlamaConfig = CONFIG, seed: int = 0) -> Any:
    """Random parameters with norms that are not all one, and biases that are not zero."""
    drawn = llama.init_params(config, jax.random.key(seed))
    leaves, tree = jax.tree.flatten(drawn)
    rng = np.random.default_rng(seed)
    return jax.tree.unflatten(
        tree, [leaf + 0.3 * rng.standard_normal(leaf.shape, np.float32) if leaf.ndim < 3 else leaf for leaf in leaves]
    )


def tensors(config: llama.LlamaConfig = CONFIG, seed: int = 0) -> dict[str, np.ndarray]:
    """The parameters under their Hugging Face names."""
    drawn = params(config, seed)
    plan = llama._plan(config, llama._huggingface_name)
    found: dict[str, np.ndarray] = {}

    def collect(leaf: Any, value: jax.Array) -> None:
        for i, name in enumerate(leaf.names):
            found[name] = np.asarray(value[i] if leaf.stacked else value)

    jax.tree.map(collect, plan, drawn, is_leaf=lambda node: hasattr(node, "names"))
    return found


def huggingface_config(config: llama.LlamaConfig = CONFIG) -> dict[str, Any]:
    """config.json."""
    return {
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.max_positions,
        "tie_word_embeddings": config.tie_word_embeddings,
    }


def write_safetensors(folder: Path, seed: int = 0, **changed: np.ndarray | None) -> Path:
    """A Hugging Face folder. `changed` replaces tensors by name with "." written "__"; None leaves one out."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    values = tensors(seed=seed)
    for name, value in changed.items():
        name = name.replace("__", ".")
        if value is None:
            del values[name]
        else:
            values[name] = value
    save_file(values, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(huggingface_config()))
    return folder


def byte_tokens() -> list[str]:
    """300 tokens: two special ones, the 256 bytes in GPT-2's alphabet, and a few merges."""
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = sorted(ByteLevel.alphabet())
    merged = ["he", "ll", "hell", "Ġw", "or", "Ġwor"]
    tokens = ["<|endoftext|>", "<|im_start|>", *alphabet, *merged]
    return tokens + [f"<|unused{i}|>" for i in range(CONFIG.vocab_size - len(tokens))]


MERGES = ["h e", "l l", "he ll", "Ġ w", "o r", "Ġw or"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}:{{ m['content'] }}{% endfor %}"


def write_gguf(file: Path, seed: int = 0, *, architecture: str = "llama", **fields: Any) -> Path:
    """The same model as GGUF, with llama.cpp's order of query and key rows, and a byte-level tokenizer.

    `fields` replaces tokenizer entries (model, pre, tokens, template), or leaves them out if None.
    """
    import gguf

    config = CONFIG
    writer = gguf.GGUFWriter(str(file), architecture)
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.intermediate)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    tokens = byte_tokens()
    entries = {"model": "gpt2", "pre": "smollm", "tokens": tokens, "template": TEMPLATE, **fields}
    if entries["model"] is not None:
        writer.add_tokenizer_model(entries["model"])
        writer.add_tokenizer_pre(entries["pre"])
        writer.add_token_list(entries["tokens"])
        writer.add_token_types([3 if token.startswith("<|") else 1 for token in entries["tokens"]])
        writer.add_token_merges(MERGES)
        writer.add_eos_token_id(0)
        if entries["template"] is not None:
            writer.add_chat_template(entries["template"])

    names = llama._plan(
        config, lambda name, layer: (llama._huggingface_name(name, layer), llama._gguf_name(name, layer))
    )
    values = tensors(seed=seed)
    for leaf in jax.tree.leaves(names, is_leaf=lambda node: hasattr(node, "names")):
        for theirs, ours in leaf.names:
            value = values[theirs]
            if "q_proj" in theirs or "k_proj" in theirs:
                heads = config.num_heads if "q_proj" in theirs else config.num_kv_heads
                value = value.reshape(heads, 2, value.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(value.shape)
            writer.add_tensor(ours, np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
