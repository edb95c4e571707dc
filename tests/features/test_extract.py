"""Extraction as users run it: rows, files, failures, and the same numbers however it was run."""

import hashlib
import json
import os
import shutil
import time

import extraction
import pytest
import tiny
import torch
from plain_pixels import plain_inputs

import cog
from cog.commands import extract_features
from cog.errors import CogError, FailedImagesError
from cog.features import run

PLAIN = {"resize": 16, "crop": 12, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
RESIZE = ["FT_EXTRACT.IMAGE_RESIZE_SIZE", "16", "FT_EXTRACT.IMAGE_CROP_SIZE", "12"]


def arguments(images, loader, output, *extra, workers=0):
    words = f"--model tiny_net --dataset birds --split test --images_root {images} --output_dir {output}"
    words += f" --model_loader {loader}:load_my_model FT_EXTRACT.N_WORKERS {workers} FT_EXTRACT.BATCH_SIZE 4"
    return [*words.split(), *RESIZE, *extra]


@pytest.fixture
def extract_birds(image_tree, loader_file, tmp_path):
    """Return a function that extracts the test images of the birds, into ``tmp_path / "out"`` by default."""

    def extract_(*extra, output="out", workers=0):
        given = arguments(image_tree, loader_file, tmp_path / output, *extra, workers=workers)
        return extract_features.main(given)

    return extract_


def write_network(loader_file, body, network="Identity()"):
    text = f"def load_my_model(init_args):\n    return torch.nn.{network}, lambda x: {body}\n"
    loader_file.write_text(f"import torch\nimport torch.nn.functional as F\n\n\n{text}")


def features_of(folder):
    return torch.load(folder / "X_Y.pth", weights_only=True)


def test_features_are_those_of_a_plain_torchvision_pipeline(extract_birds, image_tree, loader_file, tmp_path):
    weights, out = tmp_path / "weights.pth", tmp_path / "out"
    torch.save({"mix": torch.tensor([1.0, 2.0, 3.0])}, weights)
    assert extract_birds("--ckpt_file", str(weights)) == 0
    stored = features_of(out)
    paths = (out / "image_paths.txt").read_text().splitlines()
    assert paths == [f"{c}/{c}_{i}.png" for c in ("crow", "duck", "wren") for i in range(3)]
    network = cog.load_backbone("tiny_net", weights, loader=f"{loader_file}:load_my_model")
    with torch.inference_mode():
        expected = network(plain_inputs(out, image_tree / "test", **PLAIN))
    torch.testing.assert_close(stored["X"], expected, rtol=1e-6, atol=1e-6)
    assert stored["Y"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2] and stored["name"] == "tiny_net_birds_test"
    data = json.loads((out / "features.json").read_text())
    assert data["identity"]["checkpoint_sha256"] == hashlib.sha256(weights.read_bytes()).hexdigest()
    expected = {"resize": 16, "size": 12, "squash": False, "mean": [0.485, 0.456, 0.406]}
    assert data["identity"]["preprocessing"].items() >= expected.items()
    assert data.items() >= {"n_images": 9, "n_failed": 0, "n_classes": 3, "device": "cpu"}.items()
    assert data["class_list_sha256"] == hashlib.sha256(b"crow\nduck\nwren").hexdigest()
    assert sorted(p.name for p in out.iterdir()) == ["X_Y.pth", "features.json", "image_paths.txt"]


def test_failed_images_end_with_code_3_and_lose_nothing(extract_birds, image_tree, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "CHUNK", 1)  # three chunks
    extract_birds(output="all")
    everything, out = features_of(tmp_path / "all")["X"], tmp_path / "out"
    broken = [image_tree / f"test/{name}.png" for name in ("duck/duck_1", "wren/wren_0", "wren/wren_2")]
    whole = [path.read_bytes() for path in broken]
    huge = b"P6 100000 100000 255\n"  # 30 GB
    for path, data in zip(broken, (huge, whole[1][:60], b""), strict=True):
        path.write_bytes(data)
    with pytest.raises(FailedImagesError, match="3 of 9 images.*--allow_failures 3"):
        extract_birds("--allow_failures", "2", workers=2)
    lines = (tmp_path / ".out.work/failed_images.txt").read_text().splitlines()
    failed = dict(line.split("\t") for line in lines)
    assert [*failed] == ["duck/duck_1.png", "wren/wren_0.png", "wren/wren_2.png"] and not out.exists()
    assert all(reason and str(image_tree) not in reason for reason in failed.values())
    broken[2].write_bytes(whole[2])  # it is read again
    assert extract_birds("--allow_failures", "2") == 0
    found = features_of(out)
    assert found["Y"].tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert torch.equal(found["X"], everything[[0, 1, 2, 3, 5, 7, 8]])
    assert json.loads((out / "features.json").read_text())["n_failed"] == 2
    assert (out / "failed_images.txt").read_text().splitlines() == lines[:2]
    for path in (image_tree / "test").rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(FailedImagesError, match="9 of 9"):
        extract_birds("--allow_failures", "9", output="none")
    assert not list((tmp_path / "none").glob("*.pth"))


def test_existing_output_is_kept_skipped_or_replaced(extract_birds, tmp_path, caplog):
    out = tmp_path / "out"
    extract_birds()
    before = tiny.snapshot(out)
    assert extract_birds() == 0
    bits, exact = (out / "X_Y.pth").read_bytes(), features_of(out)["X"]
    half = "FT_EXTRACT.SAVE_DTYPE", "float16"
    with pytest.raises(CogError, match=r"save_dtype: float32 -> float16.*--overwrite"):
        extract_birds(*half)
    assert tiny.snapshot(out) == before
    assert extract_birds(*half, "--overwrite") == 0
    assert torch.equal(features_of(out)["X"], exact.half())
    (out / "features.json").unlink()  # features of the original toolkit
    before = tiny.snapshot(out)
    assert extract_birds() == 0 and tiny.snapshot(out) == before
    assert "X_Y.pth is kept, and no features.json tells how it was made" in caplog.text
    (out / "X_Y.pth").unlink()  # features that were deleted are extracted again
    assert extract_birds("--overwrite") == 0 and (out / "X_Y.pth").read_bytes() == bits


def test_images_that_changed_since_are_told(extract_birds, image_tree, tmp_path):
    """Other bytes; a copy of the same images is newer, too."""
    extract_birds()
    before, path = tiny.snapshot(tmp_path / "out"), image_tree / "test/duck/duck_1.png"
    os.utime(path, (time.time() + 5, time.time() + 5))
    assert extract_birds() == 0
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1  # of the same size
    other_pixels = (image_tree / "test/wren/wren_0.png").read_bytes()
    for change in (path.unlink, lambda: path.write_bytes(content), lambda: path.write_bytes(other_pixels)):
        change()
        with pytest.raises(CogError, match="another result .*image_contents_crc32: .*--overwrite"):
            extract_birds()
        assert tiny.snapshot(tmp_path / "out") == before
    assert extract_birds("--overwrite") == extract_birds() == 0
    assert tiny.snapshot(tmp_path / "out") != before


def test_mixed_precision_stays_close_and_tf32_needs_a_gpu(extract_birds, tmp_path):
    extract_birds(output="fp32")
    extract_birds("FT_EXTRACT.PRECISION", "bf16", output="bf16")
    exact, mixed = features_of(tmp_path / "fp32")["X"], features_of(tmp_path / "bf16")["X"]
    torch.testing.assert_close(mixed, exact, rtol=0.02, atol=0.02)
    with pytest.raises(CogError, match=r"FT_EXTRACT\.PRECISION tf32 needs an NVIDIA GPU since Ampere"):
        extract_birds("FT_EXTRACT.PRECISION", "tf32")
    assert not (tmp_path / "out").exists()


# Of different lengths: Python keeps the bytecode of a file of the same size and second.
@pytest.mark.parametrize("case", ["float16 65519.00 65520", "bfloat16 3.395e38 3.4e+38", "float32 0 nan"])
def test_values_beyond_the_range_of_the_type_are_refused(extract_birds, loader_file, tmp_path, case):
    dtype, largest, beyond = case.split()
    says = rf"NaN or too large .*crow/crow_0.png \({beyond}, {dtype}, fp32\)".replace("+", r"\+")
    write_network(loader_file, f"torch.full((len(x), 2), -float('{beyond}'))")
    with pytest.raises(CogError, match=says):
        extract_birds("FT_EXTRACT.SAVE_DTYPE", dtype)
    write_network(loader_file, f"torch.full((len(x), 2), -float('{largest}'))", "Conv3d(1, 1, 1)")
    assert extract_birds("FT_EXTRACT.SAVE_DTYPE", dtype) == 0
    assert torch.isfinite(features_of(tmp_path / "out")["X"]).all()


def test_limit_takes_the_first_images_of_the_first_classes_into_a_root_of_its_own(many, workshop):
    everything = many(["in1k"], "train", "test")
    assert extract_features.main([*everything, "--limit", "2"]) == 0
    before = tiny.snapshot(workshop.models / "limit-2")
    assert not (workshop.models / "tiny/net/in1k").exists()
    assert extract_features.main(everything) == 0
    assert tiny.snapshot(workshop.models / "limit-2") == before
    for place in ("tiny/net/in1k/features_train", "tiny/net/in1k/features_test"):
        few, full = (features_of(workshop.models / root / place) for root in ("limit-2", "."))
        rows = [row for label in (0, 1) for row in (full["Y"] == label).nonzero().flatten().tolist()[:2]]
        assert torch.equal(few["X"], full["X"][rows]) and torch.equal(few["Y"], full["Y"][rows])


RANDOM, EQUAL = "is random at evaluation", "gives equal features for all"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("F.dropout(x.flatten(1), 0.5)", RANDOM),
        ("x.flatten(1) + torch.rand(len(x), 1)", RANDOM),
        ("x.mean((2, 3)) - x.mean((0, 2, 3))", RANDOM),
        ("x.flatten(1) * 0", EQUAL),
        ("1e6 + x.mean((2, 3))", EQUAL),
        ("x.flatten(1)", None),
        ("x.view(len(x), -1)", None),  # refuses channels-last tensors
    ],
)
def test_useless_features_are_told(extract_birds, image_tree, loader_file, tmp_path, body, message, caplog):
    write_network(loader_file, body)
    assert extract_birds() == 0
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == (message is not None) and all(message in warning for warning in warnings)
    given = extract_features.parse_args(arguments(image_tree, loader_file, tmp_path))
    (planned,), _ = extract_features.plan(given)
    if message is None:
        plain = plain_inputs(tmp_path / "out", image_tree / "test", **PLAIN)
        assert torch.equal(features_of(tmp_path / "out")["X"], plain.flatten(1))
        assert "root mean square" in run.try_model(planned.model, planned.images)
    else:
        with pytest.raises(CogError, match=f"tried on crow/crow_0.png: tiny_net .*{message}"):
            run.try_model(planned.model, planned.images)


@pytest.mark.gpu
def test_features_of_a_gpu_are_those_of_their_rows(extract_birds, image_tree, tmp_path, monkeypatch):
    """They are copied while the device works on the next ones."""
    monkeypatch.setattr(run, "CHUNK", 1)
    for name in ("crow/crow_1", "wren/wren_0"):
        (image_tree / f"test/{name}.png").write_bytes(b"broken")
    for device in ("cpu", "cuda"):
        flags = ("--allow_failures", "2", "--device", device)
        assert extract_birds(*flags, output=device, workers=2) == 0
    reference, found = features_of(tmp_path / "cpu"), features_of(tmp_path / "cuda")
    torch.testing.assert_close(found["X"], reference["X"], rtol=1e-4, atol=1e-4)
    assert torch.equal(found["Y"], reference["Y"])


# --- several data sets and splits in one run


@pytest.fixture
def many(workshop):
    """Return a function for a command line for everything in the workshop."""
    words = f"--model tiny_net --model_loader {workshop.loader}:load_my_model"
    words += f" --models_root_dir {workshop.models} --in1k_images_root {workshop.in1k}"
    words += f" --imagenet_images_root {workshop.in21k} --cog_levels_mapping_file {workshop.levels_file}"
    words += f" --cog_concepts_split_file {workshop.split_file} FT_EXTRACT.N_WORKERS 0"
    return lambda datasets, *more: [*words.split(), *RESIZE, "--dataset", *datasets, "--split", *more]


def test_all_at_once_is_each_alone_and_done_ones_are_skipped(many, workshop, caplog):
    caplog.set_level("INFO", logger="cog")
    pairs = [(dataset, split) for dataset in ("in1k", "cog_l1", "cog_l2") for split in ("test", "train")]
    assert extract_features.main(many(["in1k", "cog_l1", "cog_l2", "in1k"], "test", "train")) == 0
    assert caplog.text.count("tiny_net: images of 12 pixels") == 1  # the network is loaded once
    assert "expected 1000 classes, found 3" in caplog.text and "expected 1281167 images" in caplog.text
    folders = [workshop.models / "tiny/net" / dataset / f"features_{split}" for dataset, split in pairs]
    together = [extraction.outcome(folder) for folder in folders]
    shutil.rmtree(folders[0])
    assert extract_features.main(many(["in1k", "cog_l1"], "test", "train")) == 0
    assert caplog.text.count("is complete, skipped") == 3 and caplog.text.count(" failed images,") == 7
    shutil.rmtree(folders[3])
    assert extract_features.main(many(["cog_l1"], "train")) == 0
    assert [extraction.outcome(folder) for folder in folders] == together
    lines = (folders[3] / "image_paths.txt").read_text().splitlines()  # a level
    classes = sorted({line.split("/")[0] for line in lines})
    assert lines == sorted(lines) and len(classes) == 2
    assert features_of(folders[3])["Y"].tolist() == [classes.index(line.split("/")[0]) for line in lines]


def test_all_inputs_are_checked_first(many, workshop):
    assert extract_features.main(many(["in1k"], "train")) == 0
    (workshop.in21k / "n01484850").rename(workshop.root / "away")  # a concept of level 2
    before = tiny.snapshot(workshop.models)
    for second, more, message in (
        ("cog_l2", "", "lacks the folders of 1 of the 2 concepts"),
        ("cog_l1", "--ckpt_file x.ckpt --model a_b c_d", "--ckpt_file is of one output"),
        ("cog_l1", "--output_dir out", "--output_dir is of one output"),
        ("in1k", "FT_EXTRACT.IMAGE_CROP_SIZE 8", "another result .*size: 12 -> 8.*--overwrite"),
    ):
        with pytest.raises(CogError, match=message):
            extract_features.main(many(["in1k", second], "test", "train", *more.split()))
        assert tiny.snapshot(workshop.models) == before
