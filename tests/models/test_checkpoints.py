"""Broken, foreign and hostile checkpoints of every model: one clear line, nothing run or written."""

from __future__ import annotations

import contextlib
import io
import pickle
import zipfile

import hollow
import numpy as np
import pytest
import torch
from golden import rules
from hostile import Payload
from marks import first_quick

import cog
from cog.commands import extract_features
from cog.errors import CogError
from cog.models.fetch import sha256
from cog.runtime import cli as cli_tools

#: One model per container and kind of layout; the other rows are slow.
QUICK = ("deit_small_distilled", "simclrv2_resnet50", "byol_resnet50", "mocov2_resnet50")


def rows(names=tuple(rules.load_index()), quick=QUICK):
    return [pytest.param(name, marks=[] if name in quick else [pytest.mark.slow]) for name in names]


def refusal(name, path) -> str:
    """Return the one line with which a checkpoint is refused."""
    with pytest.raises(CogError) as error:
        cog.load_backbone(name, path)
    assert "\n" not in str(error.value)
    return str(error.value)


def truncate(path, *, share: float) -> None:
    victim = path if path.is_file() else path.with_name(path.name + ".data-00000-of-00001")
    data = victim.read_bytes()
    victim.write_bytes(data[: int(len(data) * share)])


@pytest.mark.parametrize("name", rows())
@pytest.mark.parametrize("kind", ["missing", "unexpected", "shape"])
def test_files_that_do_not_fit_are_refused_with_the_first_names_and_advice(name, kind, tmp_path):
    key = hollow.backbone_key(name)
    before, separator, leaf = key.rpartition("/" if "/" in key else ".")

    def edit(state):
        if kind == "missing":
            del state[key]
        elif kind == "unexpected":
            state[f"{before}{separator}more{separator}{leaf}"] = state[key]
        else:
            state[key] = state[key][None].repeat(2, axis=0) if state[key].ndim < 2 else state[key][:1, :1]

    line = refusal(name, hollow.write(name, tmp_path / "model.ckpt", edit=edit))
    says = {
        "missing": "parameters missing 1 (",
        "unexpected": "parameters unexpected 1 (",
        "shape": " instead of (",
    }
    assert "does not fit the architecture: " in line and says[kind] in line
    assert kind == "shape" or "rename them, or load the file with a loader of your own" in line


@pytest.mark.parametrize("name", rows())
@pytest.mark.parametrize("share", first_quick(1, [0.97, 0.0, 0.3]))
def test_truncated_file(name, share, tmp_path):
    path = hollow.write(name, tmp_path / "model.ckpt")
    truncate(path, share=share)
    line = refusal(name, path)
    assert "download complete?" in line or "is it complete?" in line or "is empty" in line


@pytest.mark.parametrize("name", rows(n for n in rules.load_index() if hollow.container(n) != "tf_bundle"))
def test_global_outside_the_allow_list(name, tmp_path):
    canary = tmp_path / "canary"
    path = tmp_path / "model.ckpt"
    kind = hollow.container(name)
    if kind == "torch":
        hollow.write(name, path, add={"zz": Payload(canary)})
    elif kind == "dill_pickle":
        path.write_bytes(pickle.dumps({"experiment_state": {}, "step": Payload(canary)}, protocol=2))
    else:
        hollow.write(name, path)
        replace_in_zip(path, "/data.pkl", pickle.dumps(Payload(canary), protocol=2))
    line = refusal(name, path)
    assert "refused to read" in line and "posix.system" in line
    assert not canary.exists()


def replace_in_zip(path, ending, data):
    buffer = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(buffer, "w") as new:
        for info in old.infolist():
            new.writestr(info.filename, data if info.filename.endswith(ending) else old.read(info))
    path.write_bytes(buffer.getvalue())


def test_hash_of_a_checkpoint_in_parts(tmp_path):
    prefix = tmp_path / "model.ckpt"
    prefix.with_name("model.ckpt.index").write_bytes(b"ab")
    prefix.with_name("model.ckpt.data-00000-of-00001").write_bytes(b"c")
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, appendix B.1
    assert sha256(prefix) == sha256(prefix.with_name("model.ckpt.index")) == abc


# ---- the command ----------------------------------------------------------------------------------------


def test_extraction_ends_in_one_line_and_writes_nothing(image_tree, tmp_path, capsys):
    path = hollow.write("deit_small_distilled", tmp_path / "model.ckpt")
    truncate(path, share=0.5)
    output = tmp_path / "features"
    arguments = (
        f"--model deit_small_distilled --ckpt_file {path} --output_dir {output} --dataset birds --split test "
        f"--images_root {image_tree} --device cpu FT_EXTRACT.N_WORKERS 0"
    ).split()
    with pytest.raises(SystemExit) as done:
        cli_tools.run(extract_features.main, arguments)
    said = capsys.readouterr().err
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert done.value.code == 2 and "is the download complete?" in line and "Traceback" not in said
    assert not output.exists()


# ---- further containers and contents --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b"<!DOCTYPE html><html></html>", "is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer"),
        (b"\x93NUMPY\x01\x00", "is not a readable checkpoint"),
        (b"PK\x03\x04 and nothing more", "is not a readable torch file"),
        (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", "is not a readable torch file"),
        (b"\x10" + bytes(7) + b"{not json at all}", "is not a readable safetensors file"),
        (bytes(257) + b"ustar" + bytes(250), "is in the container of torch 0.1"),
        (b"\x80\x04I1\n.", "holds a int"),
        (b"\x80\x04]\x94.", "holds a list"),
    ],
)
def test_no_checkpoint_at_all(content, expected, tmp_path):
    path = tmp_path / "model.ckpt"
    path.write_bytes(content)
    assert expected in refusal("dino_resnet50", path)


def test_an_archive_that_holds_the_checkpoint(tmp_path):
    path = tmp_path / "release.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("folder/student.pth.tar", b"x")
    line = refusal("obow_resnet50", path)
    assert "folder/student.pth.tar" in line and "unpack" in line


def test_entries_that_are_no_tensors(tmp_path):
    path = tmp_path / "model.ckpt"
    torch.save({"state_dict": {"module.encoder_q.conv1.weight": 3}}, path)
    assert "expected a dict of parameter tensors" in refusal("mocov2_resnet50", path)


# ---- TensorFlow's checksums -----------------------------------------------------------------------------


@pytest.mark.parametrize("victim", ["model.ckpt.index", "model.ckpt.data-00000-of-00001"])
def test_flipped_bits_in_a_tensorflow_checkpoint(victim, tmp_path):
    hollow.write("simclrv2_resnet50", tmp_path / "model.ckpt")
    path = tmp_path / victim
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if victim.endswith("index") else 1] ^= 1
    path.write_bytes(bytes(data))
    assert "checksum" in refusal("simclrv2_resnet50", tmp_path / "model.ckpt")


def test_missing_data_file_of_a_tensorflow_checkpoint(tmp_path):
    hollow.write("simclrv2_resnet50", tmp_path / "model.ckpt")
    (tmp_path / "model.ckpt.data-00000-of-00001").unlink()
    assert "there is no data file" in refusal("simclrv2_resnet50", tmp_path / "model.ckpt")
    (tmp_path / "model.ckpt.data-00000-of-00002").write_bytes(b"")
    assert "1 of 2 data files" in refusal("simclrv2_resnet50", tmp_path / "model.ckpt")


# ---- damage at random -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["dino_resnet50", "mocov2_resnet50", "clip_resnet50", "simclrv2_resnet50", "byol_resnet50"]
)
def test_random_damage_is_an_error_of_ours_or_harmless(name, tmp_path):
    """A model of each container."""
    path = hollow.write(name, tmp_path / "model.ckpt")
    victim = path if path.is_file() else path.with_name(path.name + ".index")
    original = victim.read_bytes()
    generator = np.random.default_rng(0)
    for _ in range(40):
        damaged = bytearray(original)
        for position in generator.integers(0, len(damaged), 4):
            damaged[position] = generator.integers(256)
        victim.write_bytes(
            bytes(damaged[: None if generator.random() < 0.8 else generator.integers(len(damaged))])
        )
        with contextlib.suppress(CogError):
            cog.load_backbone(name, path)
