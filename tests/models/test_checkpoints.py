"""Files of weights: the usual wrappings load, broken, foreign and hostile ones end in one clear line."""

import contextlib
import pickle
import zipfile

import hollow
import numpy as np
import pytest
import timm
import torch
from archive_forms import zip_bytes
from golden import rules
from hostile import Payload
from marks import first_quick
from random_networks import randomize

import cog
from cog.errors import CogError
from cog.models import checkpoint, containers
from cog.models.fetch import sha256

#: A model of each container: zip and older files of torch, of TensorFlow, Haiku, TorchScript.
NAMES = ("deit_small_distilled", "nat_m4", "simclrv2_resnet50", "byol_resnet50", "clip_resnet50")


def refusal(name, path) -> str:
    """Return the one line with which a checkpoint is refused."""
    with pytest.raises(CogError) as error:
        cog.load_backbone(name, path)
    assert "\n" not in str(error.value)
    return str(error.value)


#: Entries and beginnings of names in files of training scripts; after "over", those of other weights.
WRAPPINGS = """
state_dict |
| module.
state_dict | _orig_mod.
model_state_dict | module._orig_mod.
| _orig_mod.module.
state_dict | model.
model state_dict | module.backbone.
model backbone |
state_dict_ema | module. over state_dict |
model_ema | module. over model |
ema shadow | over model_state_dict |
model_ema | module._orig_mod. over model | _orig_mod.
state_dict | teacher.backbone. over state_dict | backbone.
teacher | backbone. over student | module.backbone.
""".strip().splitlines()


def put(data: dict, where: str, state: dict) -> None:
    entries, prefix = (part.split() for part in where.split("|"))
    for entry in entries:
        data = data.setdefault(entry, {})
    data |= {"".join(prefix) + name: value for name, value in state.items()}


@pytest.fixture(scope="module")
def state():
    return randomize(timm.create_model("test_resnet")).state_dict()


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_files_of_training_scripts(wrapping, state, tmp_path, caplog):
    caplog.set_level("INFO", logger="cog")
    where, _, other = wrapping.partition("over")
    data: dict = {"epoch": np.int64(3), "best": np.float32(1), "n_averaged": torch.tensor(5), "model_ema": {}}
    if other:
        put(data, other, {name: value + 1 for name, value in state.items()})
    put(data, where, state)
    if "backbone." in where:
        put(data, where.replace("backbone.", "head."), {"weight": torch.zeros(3, 3)})
    torch.save(data, tmp_path / "model.ckpt")
    assert_loads(tmp_path / "model.ckpt", state)
    assert ("averaged weights" in caplog.text) == (bool(other) and "student" not in other)


def assert_loads(path, state):
    loaded = cog.load_backbone("timm_test_resnet", path).network.state_dict()
    assert loaded and all(torch.equal(value, state[name]) for name, value in loaded.items())


def test_pickles_of_arrays_and_files_with_another_or_no_classifier(state, tmp_path):
    path = tmp_path / "model.ckpt"
    path.write_bytes(pickle.dumps({"state_dict": {name: value.numpy() for name, value in state.items()}}))
    assert_loads(path, state)
    bare = {name: value for name, value in state.items() if not name.startswith("fc.")}
    for head in ({}, {"fc.weight": torch.zeros(7, 3), "fc.bias": torch.zeros(7)}):
        torch.save(bare | head, path)
        assert_loads(path, state)


@pytest.mark.parametrize(
    "edit, says",
    [
        (lambda s: {f"net.{n}": v for n, v in s.items()}, r"missing .*unexpected .*net\..*, rename them"),
        (lambda s: {"state_dict": s, "state_dict_ema": {"conv1.0.weight": s["conv1.0.weight"]}}, "missing"),
        (lambda s: s | {"extra": torch.zeros(3)}, r"unexpected 1 \(extra\)"),
        (lambda s: {"state_dict": {"conv1.weight": 3}}, "expected a dict of parameter tensors"),
        (lambda s: s | {"conv1.0.weight": s["conv1.0.weight"].char()}, "architecture: .*conv1.0.weight"),
        (lambda s: s.update(a=s) or s, "without end"),
    ],
)
def test_files_that_do_not_fit_are_not_replaced_by_others(edit, says, state, tmp_path):
    torch.save(edit(state), tmp_path / "model.ckpt")
    with pytest.raises(CogError, match=says):
        cog.load_backbone("timm_test_resnet", tmp_path / "model.ckpt")


@pytest.mark.parametrize("name", first_quick(3, NAMES))
def test_parameters_that_do_not_fit_are_named(name, tmp_path):
    key = hollow.backbone_key(name)
    before, separator, leaf = key.rpartition("/" if "/" in key else ".")
    more, path = f"{before}{separator}more{separator}{leaf}", tmp_path / "model.ckpt"

    def other_shape(state):
        state[key] = state[key][None].repeat(2, axis=0) if state[key].ndim < 2 else state[key][:1, :1]

    edits = {"missing 1 (": lambda s: s.pop(key), "unexpected 1 (": lambda s: s.update({more: s[key]})}
    for says, edit in (edits | {" instead of (": other_shape}).items():
        line = refusal(name, hollow.write(name, path, edit=edit))
        assert "does not fit the architecture: " in line and says in line


@pytest.mark.parametrize("name", first_quick(3, NAMES))
def test_cut_and_damaged_files(name, tmp_path):
    path = hollow.write(name, tmp_path / "model.ckpt")
    generator = np.random.default_rng(0)
    for victim in list(tmp_path.iterdir()):
        original = victim.read_bytes()
        for share in (0.97, 0.0, 0.3):
            victim.write_bytes(original[: int(len(original) * share)])
            line = refusal(name, path)
            assert "complete?" in line or "holds nothing" in line
        for _ in range(15):
            damaged = bytearray(original)
            for position in generator.integers(0, len(damaged), 4):
                damaged[position] = generator.integers(256)
            victim.write_bytes(damaged)
            checked = name == "simclrv2_resnet50"  # its parts have checksums
            with pytest.raises(CogError) if checked else contextlib.suppress(CogError):
                checkpoint.read_state(path, ["x"])
        victim.write_bytes(original)


@pytest.mark.parametrize("name", ["byol_resnet50", "compress_resnet50"])
def test_files_of_other_versions_of_libraries_hold_the_same(name, tmp_path):
    variants = None, *rules.load_schema(name)["variants"]
    files = [hollow.write(name, tmp_path / f"{variant}.ckpt", variant=variant) for variant in variants]
    first, *others = ([key for key, _ in containers.leaves(checkpoint.read(file))] for file in files)
    assert len(first) > 300 and all(names == first for names in others)


@pytest.mark.parametrize("name", [case for case in NAMES if case != "simclrv2_resnet50"])
def test_no_code_of_a_file_is_run(name, tmp_path):
    canary, path, kind = tmp_path / "canary", tmp_path / "model.ckpt", hollow.container(name)
    if kind == "torch":
        hollow.write(name, path, add={"zz": Payload(canary)})
    elif kind == "dill_pickle":
        path.write_bytes(pickle.dumps({"experiment_state": {}, "step": Payload(canary)}, protocol=2))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("net/constants.pkl", b"")
            archive.writestr("net/data.pkl", pickle.dumps(Payload(canary), 2))
    line = refusal(name, path)
    assert "refused to read" in line and "posix.system" in line
    assert not canary.exists()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "holds nothing"),
        (b"<!DOCTYPE html><html></html>", "holds a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer"),
        (b"\x93NUMPY\x01\x00", "is no file of torch.save, "),
        (b"PK\x03\x04 and nothing more", "is not a readable torch file"),
        (zip_bytes({"a/code/constants.pkl": b"", "a/code/data.pkl": b"\x80\x02}."}.items(), 8), "complete?"),
        (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", "is not a readable torch file"),
        (b"\x10" + bytes(7) + b"{not json at all}", "is not a readable safetensors file"),
        (b"\x80\x04]\x94.", "holds a list"),
    ],
)
def test_no_checkpoint_at_all(content, expected, tmp_path):
    path = tmp_path / "model.ckpt"
    path.write_bytes(content)
    assert expected in refusal("dino_resnet50", path)


def test_parts_of_a_tensorflow_checkpoint(tmp_path):
    path = hollow.write("simclrv2_resnet50", tmp_path / "model.ckpt")
    (tmp_path / "model.ckpt.data-00000-of-00001").rename(tmp_path / "model.ckpt.data-00000-of-00002")
    assert "1 of 2 data files" in refusal("simclrv2_resnet50", path)
    for end, data in {"index": b"ab", "data-00000-of-00002": b"c"}.items():
        (tmp_path / f"model.ckpt.{end}").write_bytes(data)
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, appendix B.1
    assert sha256(path) == sha256(tmp_path / "model.ckpt.index") == abc
