"""Text generation: one jitted loop over tokens, with the caches donated.

`generate` is the whole answer in one call. `start` and `advance` are its two halves, for streaming: each call of
`advance` runs the same loop for a few tokens more and hands the donated state back, so nothing is copied in between.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from atbfn.models.llama import Cache, LlamaConfig, forward, init_cache


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
      temperature: logits are divided by it before drawing; 0 takes the most likely token.
      eos: a sequence ends with any of these tokens.
      pad: fills up sequences that have ended.
    """

    temperature: float = 0.0
    eos: tuple[int, ...] = ()
    pad: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(
                f"Sampling: temperature: got {self.temperature!r}; expected a finite number of at least 0; "
                "pass 0 for the most likely token"
            )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """A generation under way. Donate it to the next call.

    Attributes:
      cache: keys and values of the tokens before `token`.
      pos: int32, scalar or [batch]: how many tokens the cache holds.
      token: int32 [batch]: chosen last, not in the cache yet.
      done: bool [batch]: sequences that have ended.
      key: random key; it advances with every draw.
    """

    cache: Cache
    pos: jax.Array
    token: jax.Array
    done: jax.Array
    key: jax.Array


def _choose(logits: jax.Array, key: jax.Array, sampling: Sampling) -> tuple[jax.Array, jax.Array]:
    logits = logits.astype(jnp.float32)
    if sampling.temperature == 0:
        token = jnp.argmax(logits, axis=-1)
    else:
        key, draw = jax.random.split(key)
        token = jax.random.categorical(draw, logits / sampling.temperature, axis=-1)
    # NaN logits have no best token: -1 says so, and the model answers it with NaN again.
    return jnp.where(jnp.any(jnp.isnan(logits), axis=-1), -1, token).astype(jnp.int32), key


def _check_tokens(tokens: Sequence[int]) -> Sequence[int]:
    if min(tokens, default=0) < 0:
        raise FloatingPointError(
            "generate: the logits became NaN; check the weights (float16 overflows where bfloat16 does not), and run "
            "in mode fused_with_checkpoints to see where"
        )
    return tokens


def _ends(token: jax.Array, sampling: Sampling) -> jax.Array:
    return jnp.isin(token, jnp.asarray(sampling.eos, jnp.int32)) if sampling.eos else jnp.zeros(token.shape, bool)


def start(
    params: Any,
    config: LlamaConfig,
    tokens: jax.Array,
    cache: Cache,
    key: jax.Array,
    sampling: Sampling,
    *,
    lengths: jax.Array | None = None,
) -> State:
    """Feed the prompts and choose each sequence's first token.

    Args:
      params, config: the model.
      tokens: int32 [batch, q_len], padded at the end; `lengths` int32 [batch] of at least 1 says how many are valid.
      cache: empty, as `init_cache` gives; donate it.
      key: random key.
      sampling: static.
    """
    logits, cache = forward(params, config, tokens, cache, 0, lengths=lengths, last_only=True)
    token, key = _choose(logits, key, sampling)
    pos = jnp.asarray(tokens.shape[1] if lengths is None else lengths, jnp.int32)
    return State(cache, pos, token, _ends(token, sampling), key)


def _step(params: Any, config: LlamaConfig, state: State, sampling: Sampling) -> State:
    """Feed the last token of each sequence and choose its next; sequences that have ended stay."""
    logits, cache = forward(params, config, state.token[:, None], state.cache, state.pos, last_only=True)
    token, key = _choose(logits, state.key, sampling)
    token = jnp.where(state.done, sampling.pad, token)
    # A sequence that has ended is fed padding until all have: its own cache rows are all that this touches.
    return State(cache, state.pos + 1, token, state.done | _ends(token, sampling), key)


def advance(
    params: Any, config: LlamaConfig, state: State, steps: int, sampling: Sampling
) -> tuple[State, jax.Array, jax.Array]:
    """Up to `steps` more tokens, in one loop that stops early when every sequence has ended.

    Args:
      params, config: the model.
      state: as `start` or `advance` gives; donate it. Its cache needs room for `steps` more tokens.
      steps: static, at least 1.
      sampling: static.

    Returns:
      The state, tokens int32 [batch, steps], and how many of the steps ran.
    """
    batch = state.token.shape[0]

    def more(carry: tuple[State, jax.Array, jax.Array]) -> jax.Array:
        state, _, count = carry
        return (count < steps) & ~jnp.all(state.done)

    def body(carry: tuple[State, jax.Array, jax.Array]) -> tuple[State, jax.Array, jax.Array]:
        state, out, count = carry
        state = _step(params, config, state, sampling)
        return state, jax.lax.dynamic_update_slice(out, state.token[:, None], (jnp.int32(0), count)), count + 1

    out = jnp.full((batch, steps), sampling.pad, jnp.int32)
    return jax.lax.while_loop(more, body, (state, out, jnp.int32(0)))


@partial(jax.jit, static_argnames=("config", "steps", "sampling"), donate_argnames=("cache",))
def _generate(
    params: Any,
    config: LlamaConfig,
    tokens: jax.Array,
    lengths: jax.Array | None,
    cache: Cache,
    key: jax.Array,
    *,
    steps: int,
    sampling: Sampling,
) -> tuple[jax.Array, State]:
    state = start(params, config, tokens, cache, key, sampling, lengths=lengths)
    out = first = state.token[:, None]
    if steps > 1:
        state, rest, _ = advance(params, config, state, steps - 1, sampling)
        out = jnp.concatenate([first, rest], axis=1)
    return out, state


jit_start = jax.jit(start, static_argnames=("config", "sampling"), donate_argnames=("cache",))
jit_advance = jax.jit(advance, static_argnames=("config", "steps", "sampling"), donate_argnames=("state",))


def pad_prompts(prompts: Sequence[Sequence[int]], pad: int = 0) -> tuple[np.ndarray, np.ndarray | None]:
    """Prompts as tokens int32 [batch, longest] and lengths int32 [batch], None when all are equally long.

    Raises:
      ValueError: there is no prompt, or one without tokens.
    """
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    if lengths.size == 0 or lengths.min() == 0:
        raise ValueError(
            f"generate: prompts: got {len(prompts)} prompts with lengths {lengths.tolist()}; expected at least one "
            "prompt, each of at least one token; drop the empty ones"
        )
    tokens = np.full((len(prompts), int(lengths.max())), pad, np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = prompt
    return tokens, None if (lengths == lengths[0]).all() else lengths


def _room(config: LlamaConfig, tokens: np.ndarray, max_new_tokens: int) -> int:
    """max_seq for the prompts and the answer; the last token of the answer is never fed."""
    if max_new_tokens < 1:
        raise ValueError(
            f"generate: max_new_tokens: got {max_new_tokens}; expected at least 1; ask for at least one token"
        )
    needed = tokens.shape[1] + max_new_tokens - 1
    if needed > config.max_positions:
        raise ValueError(
            f"generate: prompts: got {tokens.shape[1]} tokens and max_new_tokens={max_new_tokens}; expected "
            f"{config.max_positions + 1} together at most, the context of the model; shorten the prompt, or ask for "
            "fewer tokens"
        )
    return needed


def generate(
    params: Any,
    config: LlamaConfig,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    seed: int = 0,
) -> list[list[int]]:
    """Continue every prompt, in one jitted call.

    Args:
      params, config: the model.
      prompts: token ids, of any lengths.
      max_new_tokens: at most this many each.
      sampling: default: the most likely token, without an end token.
      seed: of the draws.

    Returns:
      For each prompt its new token ids, the end token included.

    Raises:
      ValueError: an empty prompt, or prompt and answer exceed the model's context.
      FloatingPointError: the logits became NaN.
    """
    sampling = sampling or Sampling()
    tokens, lengths = pad_prompts(prompts, sampling.pad)
    cache = init_cache(config, len(tokens), _room(config, tokens, max_new_tokens), params["embedding"].dtype)
    # The state comes back too: that is what lets XLA use the donated caches for it.
    out, _ = _generate(
        params, config, tokens, lengths, cache, jax.random.key(seed), steps=max_new_tokens, sampling=sampling
    )
    return [_until_end(_check_tokens(row), sampling.eos) for row in np.asarray(out).tolist()]


def _until_end(row: Sequence[int], eos: tuple[int, ...]) -> list[int]:
    end = next((i for i, token in enumerate(row) if token in eos), len(row) - 1)
    return list(row[: end + 1])


def stream(
    params: Any,
    config: LlamaConfig,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    seed: int = 0,
    chunk: int = 8,
    start_step: Any = jit_start,
    advance_step: Any = jit_advance,
) -> Iterator[list[int]]:
    """Continue one prompt, giving new token ids as they come: the first alone, then up to `chunk` at a time.

    The tokens are those of `generate`.

    Args:
      params, config, max_new_tokens, sampling, seed: as in `generate`.
      prompt: token ids.
      chunk: tokens per jitted call; more costs less overhead, fewer shows text sooner.
      start_step, advance_step: jitted `start` and `advance`, or wrappers that also verify checkpoints.

    Raises:
      ValueError: as in `generate`, at the first token.
    """
    sampling = sampling or Sampling()
    if chunk < 1:
        raise ValueError(f"stream: chunk: got {chunk}; expected at least 1; pass how many tokens to compute at a time")
    tokens, _ = pad_prompts([prompt], sampling.pad)
    left = max_new_tokens - 1
    # Whole chunks are run to the end, so that there is one program; the cache has room for them.
    calls = -(-left // chunk)
    room = _room(config, tokens, max_new_tokens)
    max_seq = min(tokens.shape[1] + calls * chunk, config.max_positions) if calls else room
    cache = init_cache(config, 1, max_seq, params["embedding"].dtype)
    state = start_step(params, config, tokens, cache, jax.random.key(seed), sampling)
    yield list(_check_tokens([int(state.token[0])]))
    while left > 0 and not bool(state.done[0]):
        steps = min(chunk, max_seq - int(state.pos))
        state, out, count = advance_step(params, config, state, steps, sampling)
        new = np.asarray(out)[0, : min(int(count), left)].tolist()
        left -= len(new)
        yield list(_check_tokens(new))
