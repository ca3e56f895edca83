"""The generation loop on a small random model."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest

import atbfn
from atbfn.models import Sampling, generate, generation, llama, stream
from tests.models import tiny

CONFIG = tiny.CONFIG
PROMPTS = [[5, 9, 2], [7], [3, 3, 8, 1, 250]]


@pytest.fixture(scope="module")
def params():
    return tiny.params()


def streamed(*arguments, **more):
    return list(itertools.chain.from_iterable(stream(*arguments, **more)))


@pytest.fixture(scope="module")
def greedy(params):
    return generate(params, CONFIG, PROMPTS, max_new_tokens=12)


def test_greedy_takes_the_most_likely_token_each_time(params, greedy):
    full = jax.jit(llama.forward_full, static_argnames="config")
    for prompt, answer in zip(PROMPTS, greedy, strict=True):
        tokens = np.array([prompt + answer], np.int32)
        logits = np.asarray(full(params, CONFIG, np.pad(tokens, ((0, 0), (0, 20 - tokens.shape[1])))))
        likely = logits[0, len(prompt) - 1 : tokens.shape[1] - 1].argmax(-1)
        assert answer == likely.tolist()
    assert len({tuple(answer) for answer in greedy}) == 3
    assert all(len(set(answer)) > 1 for answer in greedy)


@pytest.mark.parametrize("mode", ["step_by_step", "fused_with_checkpoints"])
def test_the_modes_give_the_same_tokens(params, greedy, mode):
    with atbfn.fusion(mode=mode):
        assert generate(params, CONFIG, PROMPTS, max_new_tokens=12) == greedy


@pytest.mark.parametrize("chunk", [4, 100])
def test_a_stream_gives_the_tokens_of_generate(params, greedy, chunk):
    pieces = list(stream(params, CONFIG, PROMPTS[2], max_new_tokens=12, chunk=chunk))
    assert list(itertools.chain.from_iterable(pieces)) == greedy[2]
    assert len(pieces[0]) == 1 and all(len(piece) <= chunk for piece in pieces)
    assert len(pieces) == 1 + -(-11 // chunk)


def test_a_sequence_stops_at_an_end_token_and_the_others_go_on(params, greedy):
    end = greedy[0][3]
    sampling = Sampling(eos=(end, 299))
    answers = generate(params, CONFIG, PROMPTS, max_new_tokens=12, sampling=sampling)
    for whole, cut in zip(greedy, answers, strict=True):
        assert cut == (whole[: whole.index(end) + 1] if end in whole else whole)
    assert len(answers[0]) <= 4 < max(len(answer) for answer in answers)
    assert streamed(params, CONFIG, PROMPTS[0], max_new_tokens=12, sampling=sampling, chunk=5) == answers[0]


def test_the_loop_stops_when_every_sequence_has_ended(params, greedy):
    sampling = Sampling(eos=(greedy[0][1],))
    cache = llama.init_cache(CONFIG, 1, 40)
    state = generation.jit_start(params, CONFIG, np.array([PROMPTS[0]], np.int32), cache, jax.random.key(0), sampling)
    _, _, count = generation.jit_advance(params, CONFIG, state, 30, sampling)
    assert int(count) == 1


def test_the_first_token_can_end_a_sequence(params, greedy):
    answers = generate(params, CONFIG, PROMPTS[:1], max_new_tokens=12, sampling=Sampling(eos=(greedy[0][0],)))
    assert answers == [greedy[0][:1]]


def test_caches_are_donated(params):
    cache = llama.init_cache(CONFIG, 1, 40)
    state = generation.jit_start(params, CONFIG, np.array([[1, 2]], np.int32), cache, jax.random.key(0), Sampling())
    assert cache.k.is_deleted() and cache.v.is_deleted()
    after, _, _ = generation.jit_advance(params, CONFIG, state, 4, Sampling())
    assert state.cache.k.is_deleted()
    assert not after.cache.k.is_deleted()


def test_drawing_follows_the_seed_and_the_temperature(params, greedy):
    def draw(temperature, seed):
        return generate(params, CONFIG, PROMPTS, max_new_tokens=12, sampling=Sampling(temperature), seed=seed)

    assert draw(1.0, 0) == draw(1.0, 0)
    assert draw(1.0, 0) != draw(1.0, 1)
    assert draw(1e-4, 0) == greedy
    alone = generate(params, CONFIG, PROMPTS[:1], max_new_tokens=12, sampling=Sampling(1.0), seed=3)[0]
    assert streamed(params, CONFIG, PROMPTS[0], max_new_tokens=12, sampling=Sampling(1.0), seed=3, chunk=4) == alone


def test_draws_have_the_softmax_frequencies():
    logits = np.log(np.array([0.6, 0.3, 0.1], np.float32))
    keys = jax.random.split(jax.random.key(0), 4000)
    choose = jax.jit(jax.vmap(lambda key: generation._choose(logits[None], key, Sampling(0.5))[0][0]))
    counts = np.bincount(choose(keys), minlength=3) / 4000
    expected = np.array([0.36, 0.09, 0.01]) / 0.46
    np.testing.assert_allclose(counts, expected, atol=0.03)


def test_an_answer_may_fill_the_context_exactly(params):
    prompt = [1] * 120
    (answer,) = generate(params, CONFIG, [prompt], max_new_tokens=9)
    assert len(answer) == 9
    assert streamed(params, CONFIG, prompt, max_new_tokens=9) == answer
    with pytest.raises(ValueError, match="got 120 tokens and max_new_tokens=10; expected 129 together"):
        generate(params, CONFIG, [prompt], max_new_tokens=10)


@pytest.mark.parametrize(
    "prompts, arguments, reason",
    [
        ([], {"max_new_tokens": 1}, "got 0 prompts"),
        ([[1], []], {"max_new_tokens": 1}, r"lengths \[1, 0\]; expected at least one"),
        ([[1]], {"max_new_tokens": 0}, "max_new_tokens: got 0; expected at least 1"),
    ],
)
def test_bad_arguments_are_refused(params, prompts, arguments, reason):
    with pytest.raises(ValueError, match=reason):
        generate(params, CONFIG, prompts, **arguments)


@pytest.mark.parametrize("temperature", [-0.1, float("nan"), float("inf")])
def test_bad_temperatures_are_refused(temperature):
    with pytest.raises(ValueError, match=r"temperature: got .*; expected a finite number of at least 0"):
        Sampling(temperature)


def test_nan_logits_are_not_taken_for_a_token(params):
    broken = params | {"norm": params["norm"] * np.nan}
    with pytest.raises(FloatingPointError, match="logits became NaN"):
        generate(broken, CONFIG, PROMPTS, max_new_tokens=3)
    with pytest.raises(FloatingPointError, match="logits became NaN"):
        list(stream(broken, CONFIG, PROMPTS[0], max_new_tokens=3))
