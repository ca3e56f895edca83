"""Tokenizers: vocabularies inside GGUF files, chat templates, and text that comes in pieces."""

from __future__ import annotations

import pytest

from atbfn.models import WeightError, load_tokenizer
from tests.models import tiny

pytest.importorskip("gguf")
tokenizers = pytest.importorskip("tokenizers")

TEXTS = [
    "hello world",
    "",
    " ",
    "  two  spaces\n\ttab\r\n",
    "x = [1, 22, 333]  # code",
    "naïve café 日本語 العربية",
    "😀👩‍👩‍👧 e\u0301",
    "\x00\x01\x7f",
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_tokenizer(tiny.write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf"))


def test_merges_are_applied(tokenizer):
    tokens = tiny.byte_tokens()
    assert tokenizer.encode("hello world") == [tokens.index(t) for t in ("hell", "o", "Ġwor", "l", "d")]


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_whole_characters_and_join_to_the_text(tokenizer, text):
    stream = tokenizer.stream()
    pieces = [stream.push([i]) for i in tokenizer.encode(text)] + [stream.finish()]
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces)


def test_a_character_is_held_back_until_it_is_complete(tokenizer):
    stream, ids = tokenizer.stream(), tokenizer.encode("é!")
    assert [stream.push([i]) for i in ids] == ["", "é", "!"]


def test_bytes_that_are_no_character_do_not_hold_back_the_text(tokenizer):
    bad = tokenizer.encode("é")[:1]
    stream = tokenizer.stream()
    assert stream.push(bad + tokenizer.encode("a")) == "\ufffda"
    assert stream.push(bad) == ""
    assert stream.finish() == "\ufffd"
    assert "\ufffd" in tokenizer.stream().push(bad * 6)


def test_special_tokens_are_recognised_and_left_out(tokenizer):
    ids = tokenizer.encode("<|im_start|>hell<|endoftext|>")
    assert ids == [1, tiny.byte_tokens().index("hell"), 0]
    assert tokenizer.decode(ids) == "hell"
    assert tokenizer.decode(ids, skip_special=False) == "<|im_start|>hell<|endoftext|>"
    assert tokenizer.eos_ids == (0,)


def test_chat(tokenizer):
    ids = tokenizer.chat([{"role": "user", "content": "hell"}, {"role": "assistant", "content": "o"}])
    assert tokenizer.decode(ids, skip_special=False) == "<|im_start|>user:hell<|im_start|>assistant:o"


def test_chat_without_a_template_says_so(tmp_path):
    bare = load_tokenizer(tiny.write_gguf(tmp_path / "bare.gguf", template=None))
    with pytest.raises(ValueError, match=r"has no chat template; use encode\(text\)"):
        bare.chat([{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('roles must alternate') }}", "{{ ''.__class__.__mro__ }}", "{% if"]
)
def test_a_template_that_refuses_or_reaches_out_is_an_error(tmp_path, template):
    tokenizer = load_tokenizer(tiny.write_gguf(tmp_path / "t.gguf", template=template))
    with pytest.raises(ValueError, match="chat template refuses the messages"):
        tokenizer.chat([{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    "fields, reason",
    [
        ({"model": None}, "carries no tokenizer"),
        ({"model": "t5"}, "tokenizer.ggml.model is 't5'; supported are 'gpt2'"),
        ({"pre": "unheard-of"}, "tokenizer.ggml.pre is 'unheard-of'; supported are"),
        ({"model": "llama"}, "SentencePiece vocabulary has no scores"),
    ],
)
def test_vocabularies_that_cannot_be_used_say_why(tmp_path, fields, reason):
    with pytest.raises(WeightError, match=reason):
        load_tokenizer(tiny.write_gguf(tmp_path / "bad.gguf", **fields))


def test_tokenizer_json(tmp_path):
    folder = tiny.write_safetensors(tmp_path)
    with pytest.raises(WeightError, match=r"tokenizer.json: missing; put the model's tokenizer.json beside"):
        load_tokenizer(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(WeightError, match=r"tokenizer.json: cannot be read as a tokenizer"):
        load_tokenizer(folder)
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "</s>": 2, "?": 3}, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.enable_padding(length=16)
    made.enable_truncation(max_length=2)
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": {"content": "b"}, "chat_template": "a"}')
    (folder / "generation_config.json").write_text('{"eos_token_id": [3]}')
    loaded = load_tokenizer(folder / "model.safetensors")
    assert loaded.encode("a b a b") == [0, 1, 0, 1]
    assert loaded.eos_ids == (1, 2, 3)
    assert loaded.chat([]) == [0]


def test_sentencepiece_vocabularies_agree_with_transformers(tmp_path):
    gguf, transformers = pytest.importorskip("gguf"), pytest.importorskip("transformers")
    text = "the cat sat on the mat; the dog sat on the log. a b c hello world "
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    trained.train_from_iterator([text * 3], tokenizers.trainers.BpeTrainer(vocab_size=60, show_progress=False))
    learned = sorted(trained.get_vocab().items(), key=lambda entry: entry[1])
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *(token for token, _ in learned)]
    writer = gguf.GGUFWriter(str(tmp_path / "sp.gguf"), "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(i) for i in range(len(tokens))])
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * len(learned)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ours = load_tokenizer(tmp_path / "sp.gguf")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="sp.gguf")
    for text in ("the cat sat", "hello world. a log", "on the   mat", "naïve 日本 😀"):
        ids = ours.encode(text)
        assert ids == theirs(text).input_ids, text
        assert ours.decode(ids) == text
        stream = ours.stream()
        assert "".join([stream.push([i]) for i in ids]) + stream.finish() == text
