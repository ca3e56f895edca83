"""Text to token ids and back: tokenizer.json files and the vocabularies inside GGUF files, through `tokenizers`."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from atbfn.models.extras import require
from atbfn.models.weights import Checkpoint, WeightError, open_checkpoint, read_json

# Tokens that end a turn or a document in the models people use; a file names only one of them as its end.
_ENDINGS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "</s>", "<|end|>")

_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type

# How GGUF's pre-tokenizers split text before merging, by tokenizer.ggml.pre. None: as GPT-2 splits.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_SPLITS = {
    "gpt-2": (None, False),
    "default": (None, False),
    "smollm": (None, True),
    "llama-bpe": (_LLAMA3, False),
    "llama3": (_LLAMA3, False),
    "qwen2": (_QWEN2, False),
    "deepseek-r1-qwen": (_QWEN2, False),
}


class Tokenizer:
    """A `tokenizers.Tokenizer` with what generation needs besides.

    Attributes:
      tokenizer: the underlying `tokenizers.Tokenizer`.
      eos_ids: tokens at which generation stops.
      chat_template: Jinja template of a conversation, or None for a base model.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        eos_ids: Iterable[int] = (),
        bos_id: int | None = None,
        add_bos: bool = False,
        chat_template: str | None = None,
        template_tokens: Mapping[str, str] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        endings = (tokenizer.token_to_id(name) for name in _ENDINGS)
        self.eos_ids = tuple(sorted({*eos_ids, *(i for i in endings if i is not None)}))
        self.chat_template = chat_template
        self._bos = [bos_id] if add_bos and bos_id is not None else []
        self._template_tokens = dict(template_tokens or {})

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Token ids of `text`; add_special puts what the model wants around it (such as a first token)."""
        ids = self.tokenizer.encode(text, add_special_tokens=add_special).ids
        return self._bos + ids if add_special and ids[:1] != self._bos else ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of token ids; bytes that are no character become U+FFFD."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=skip_special)

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation, ready for the model's answer.

        Args:
          messages: {"role": "system" | "user" | "assistant", "content": text} in order.

        Raises:
          ValueError: the model has no chat template, or its template refuses the messages.
        """
        if self.chat_template is None:
            raise ValueError("Tokenizer.chat: the model has no chat template; use encode(text), as for a base model")
        jinja2 = require("jinja2", "applying a chat template")
        sandbox = require("jinja2.sandbox", "applying a chat template")

        def refuse(reason: str) -> None:
            raise jinja2.TemplateError(reason)

        # The settings that templates are written for, in a sandbox: a template comes with the weights.
        environment = sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
        environment.globals["raise_exception"] = refuse
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        try:
            text = environment.from_string(self.chat_template).render(
                messages=list(messages), add_generation_prompt=True, **self._template_tokens
            )
        except jinja2.TemplateError as error:
            raise ValueError(f"Tokenizer.chat: the model's chat template refuses the messages: {error}") from error
        return self.encode(text, add_special=False)

    def stream(self) -> TextStream:
        """A decoder for tokens that come a few at a time."""
        return TextStream(self)


class TextStream:
    """Decodes tokens as they come; the pieces of a character are held back until it is complete."""

    # A character has at most four bytes, so at most four tokens; after more the bytes are simply no UTF-8.
    _LONGEST = 4

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []  # decoded already; some decoders treat the first token of a text differently
        self._pending: list[int] = []

    def push(self, ids: Iterable[int]) -> str:
        """Text that `ids` complete; may be empty."""
        text = ""
        for token in ids:
            self._pending.append(int(token))
            new = self._new_text()
            if not new.endswith("�") or len(self._pending) > self._LONGEST:
                text += new
                self._context, self._pending = self._pending, []
        return text

    def finish(self) -> str:
        """What was held back, with U+FFFD for a character that never was completed."""
        text = self._new_text()
        self._context, self._pending = [], []
        return text

    def _new_text(self) -> str:
        decode = self._tokenizer.decode
        return decode(self._context + self._pending)[len(decode(self._context)) :]


def load_tokenizer(source: str | Path | Checkpoint) -> Tokenizer:
    """The tokenizer that belongs to a checkpoint: tokenizer.json beside safetensors, or the vocabulary in a GGUF file.

    Args:
      source: file, folder, or an open checkpoint (`open_checkpoint`).

    Raises:
      WeightError: there is none, it is damaged, or its kind is not supported.
    """
    checkpoint = open_checkpoint(source)
    return _from_gguf(checkpoint) if checkpoint.kind == "gguf" else _from_folder(checkpoint.path)


def _from_folder(path: Path) -> Tokenizer:
    tokenizers = require("tokenizers", "reading tokenizers")
    folder = path if path.is_dir() else path.parent
    file = folder / "tokenizer.json"
    if not file.exists():
        raise WeightError(f"{file}: missing; put the model's tokenizer.json beside its weights")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises bare Exception
        raise WeightError(f"{file}: cannot be read as a tokenizer ({error}); download it again") from error
    # Whoever batches decides how long rows are; files keep the settings of the machine that wrote them.
    tokenizer.no_padding()
    tokenizer.no_truncation()

    def read(name: str) -> dict[str, Any]:
        return read_json(folder / name) if (folder / name).exists() else {}

    config, generation = read("tokenizer_config.json"), read("generation_config.json")
    eos = generation.get("eos_token_id", [])
    eos_ids = [int(i) for i in (eos if isinstance(eos, list) else [eos])]
    tokens = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        entry = config.get(name)
        entry = entry.get("content") if isinstance(entry, dict) else entry
        if isinstance(entry, str):
            tokens[name] = entry
    if "eos_token" in tokens and (known := tokenizer.token_to_id(tokens["eos_token"])) is not None:
        eos_ids.append(known)
    template = config.get("chat_template")
    if isinstance(template, list):  # several by name
        template = next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    if template is None and (folder / "chat_template.jinja").exists():
        template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    # tokenizer.json's own post-processor adds the first token.
    return Tokenizer(tokenizer, eos_ids=eos_ids, chat_template=template, template_tokens=tokens)


def _from_gguf(checkpoint: Checkpoint) -> Tokenizer:
    tokenizers = require("tokenizers", "reading tokenizers")
    fields = checkpoint.metadata
    kind = fields.get("tokenizer.ggml.model")
    tokens, types = fields.get("tokenizer.ggml.tokens"), fields.get("tokenizer.ggml.token_type")
    if kind is None or not tokens:
        raise WeightError(
            f"{checkpoint.path}: carries no tokenizer; convert the model again with its tokenizer, or use safetensors"
        )
    if kind == "gpt2":
        tokenizer = _byte_level(checkpoint, tokens)
    elif kind == "llama":
        tokenizer = _sentencepiece(checkpoint, tokens)
    else:
        raise WeightError(
            f"{checkpoint.path}: tokenizer.ggml.model is {kind!r}; supported are 'gpt2' (byte-level BPE) and 'llama' "
            "(SentencePiece BPE): use the model's safetensors with tokenizer.json"
        )
    marked = list(zip(tokens, types or (), strict=False))
    added = lambda token, special: tokenizers.AddedToken(token, normalized=False, special=special)  # noqa: E731
    tokenizer.add_special_tokens([added(token, True) for token, kind in marked if kind == _CONTROL])
    tokenizer.add_tokens([added(token, False) for token, kind in marked if kind == _USER_DEFINED])

    def named(name: str) -> int | None:
        value = fields.get(f"tokenizer.ggml.{name}_token_id")
        return None if value is None else int(value)

    names = {"bos_token": named("bos"), "eos_token": named("eos"), "unk_token": named("unknown")}
    return Tokenizer(
        tokenizer,
        eos_ids=[i for i in (named("eos"), named("eot"), named("eom")) if i is not None],
        bos_id=named("bos"),
        # llama.cpp adds a first token to SentencePiece vocabularies that do not say otherwise.
        add_bos=bool(fields.get("tokenizer.ggml.add_bos_token", kind == "llama")),
        chat_template=fields.get("tokenizer.chat_template"),
        template_tokens={name: tokens[i] for name, i in names.items() if i is not None},
    )


def _byte_level(checkpoint: Checkpoint, tokens: Sequence[str]) -> Any:
    tokenizers = require("tokenizers", "reading tokenizers")
    fields = checkpoint.metadata
    merges = fields.get("tokenizer.ggml.merges")
    if not merges:
        raise WeightError(f"{checkpoint.path}: its byte-level vocabulary has no merges; convert the model again")
    pre = fields.get("tokenizer.ggml.pre", "default")
    if pre not in _SPLITS:
        raise WeightError(
            f"{checkpoint.path}: tokenizer.ggml.pre is {pre!r}; supported are {', '.join(sorted(_SPLITS))}: "
            "use the model's safetensors with tokenizer.json"
        )
    split, single_digits = _SPLITS[pre]
    model = tokenizers.models.BPE(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=[tuple(merge.split(" ", 1)) for merge in merges],
        # Llama 3 takes a piece that is in the vocabulary whole, whatever its merges.
        ignore_merges=split is _LLAMA3,
    )
    tokenizer = tokenizers.Tokenizer(model)
    steps = [tokenizers.pre_tokenizers.Digits(individual_digits=True)] if single_digits else []
    if split is not None:
        steps.append(tokenizers.pre_tokenizers.Split(tokenizers.Regex(split), behavior="isolated"))
    steps.append(tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(steps)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer


def _sentencepiece(checkpoint: Checkpoint, tokens: Sequence[str]) -> Any:
    tokenizers = require("tokenizers", "reading tokenizers")
    fields = checkpoint.metadata
    scores = fields.get("tokenizer.ggml.scores")
    if not scores or len(scores) != len(tokens):
        raise WeightError(f"{checkpoint.path}: its SentencePiece vocabulary has no scores; convert the model again")
    ids = {token: i for i, token in enumerate(tokens)}
    # SentencePiece joins the neighbours whose union scores best, leftmost first; as BPE merges, in that order.
    merges = []
    for token, score in zip(tokens, scores, strict=True):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                merges.append((-score, ids[left], ids[right], left, right))
    merges.sort()
    unknown = int(fields.get("tokenizer.ggml.unknown_token_id", 0))
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocab=ids,
            merges=[(left, right) for *_, left, right in merges],
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = bool(fields.get("tokenizer.ggml.add_space_prefix", True))
    normalizers, decoders = tokenizers.normalizers, tokenizers.decoders
    space = [normalizers.Prepend("▁")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*space, normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if prefix else []))
    return tokenizer
