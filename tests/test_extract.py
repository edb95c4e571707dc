"""Extraction as users run it: rows, files, failures, and the same numbers however it was run."""

from __future__ import annotations

import hashlib
import json
import shutil

import numpy as np
import pytest
import tiny
import torch
from PIL import Image
from torchvision import transforms

import cog
from cog.commands import extract_features
from cog.errors import CogError, FailedImagesError

RESIZE = ["FT_EXTRACT.IMAGE_RESIZE_SIZE", "16", "FT_EXTRACT.IMAGE_CROP_SIZE", "12"]


def arguments(workshop_images, loader, output, *extra, workers=0, split="test"):
    return [
        "--model", "tiny_net", "--dataset", "birds", "--split", split, "--images_root", str(workshop_images),
        "--model_loader", f"{loader}:load_my_model", "--output_dir", str(output), "--device", "cpu",
        "FT_EXTRACT.N_WORKERS", str(workers), "FT_EXTRACT.BATCH_SIZE", "4", *RESIZE, *extra,
    ]  # fmt: skip


def features_of(folder):
    return torch.load(folder / "X_Y.pth", weights_only=True)


def test_features_are_those_of_a_plain_torchvision_pipeline(image_tree, loader_file, tmp_path):
    out = tmp_path / "out"
    assert extract_features.main(arguments(image_tree, loader_file, out)) == 0
    stored = features_of(out)
    transform = transforms.Compose(
        [
            transforms.Resize(16, interpolation=transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(12),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    network = cog.load_backbone("tiny_net", None, loader=f"{loader_file}:load_my_model")
    paths = (out / "image_paths.txt").read_text().splitlines()
    assert paths == [f"{c}/{c}_{i}.png" for c in ("crow", "duck", "wren") for i in range(3)]
    x = torch.stack([transform(Image.open(image_tree / "test" / path).convert("RGB")) for path in paths])
    with torch.inference_mode():
        torch.testing.assert_close(stored["X"], network(x), rtol=1e-6, atol=1e-6)
    assert stored["Y"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert stored["name"] == "tiny_net_birds_test"


@pytest.mark.parametrize(
    ("workers", "start_method"),
    [(1, "fork"), (2, "fork"), pytest.param(2, "spawn", marks=pytest.mark.slow),
     pytest.param(1, "forkserver", marks=pytest.mark.slow)],
)  # fmt: skip
def test_same_features_whatever_decodes(image_tree, loader_file, tmp_path, workers, start_method):
    extract_features.main(arguments(image_tree, loader_file, tmp_path / "a"))
    extract_features.main(
        arguments(
            image_tree,
            loader_file,
            tmp_path / "b",
            "FT_EXTRACT.WORKER_START_METHOD",
            start_method,
            workers=workers,
        )
    )
    a, b = features_of(tmp_path / "a"), features_of(tmp_path / "b")
    assert torch.equal(a["X"], b["X"])
    assert torch.equal(a["Y"], b["Y"])


def test_metadata(image_tree, loader_file, tmp_path):
    weights = tmp_path / "weights.pth"
    torch.save({"mix": torch.tensor([1.0, 2.0, 3.0])}, weights)
    out = tmp_path / "out"
    extract_features.main(arguments(image_tree, loader_file, out, "--ckpt_file", str(weights)))
    data = json.loads((out / "features.json").read_text())
    assert data["status"] == "complete"
    assert data["checkpoint_sha256"] == hashlib.sha256(weights.read_bytes()).hexdigest()
    assert (
        data["preprocessing"] | {"resize": 16, "crop": 12, "mean": [0.485, 0.456, 0.406]}
        == data["preprocessing"]
    )
    assert (data["n_images"], data["n_rows"], data["n_failed"], data["n_classes"]) == (9, 9, 0, 3)
    assert data["versions"]["torch"] == torch.__version__.split("+")[0]
    assert data["device"] == "cpu"
    assert data["precision"] == "fp32"
    assert not (out / "failed_images.txt").exists()
    assert sorted(p.name for p in out.iterdir()) == ["X_Y.pth", "features.json", "image_paths.txt"]


def spoil(image_tree):
    (image_tree / "test" / "duck" / "duck_1.png").write_bytes(b"broken")
    path = image_tree / "test" / "wren" / "wren_0.png"
    path.write_bytes(path.read_bytes()[:60])


def test_failed_images_end_with_code_3_and_lose_nothing(image_tree, loader_file, tmp_path):
    spoil(image_tree)
    out = tmp_path / "out"
    with pytest.raises(FailedImagesError, match="2 of 9 images") as error:
        extract_features.main(arguments(image_tree, loader_file, out))
    assert error.value.exit_code == 3
    failed = [line.split("\t") for line in (out / "failed_images.txt").read_text().splitlines()]
    assert [path for path, _ in failed] == ["duck/duck_1.png", "wren/wren_0.png"]
    assert all(reason for _, reason in failed)
    assert not (out / "X_Y.pth").exists()
    kept = torch.load(out / "X_Y.incomplete.pth", weights_only=True)
    assert kept["Y"].tolist() == [0, 0, 0, 1, 1, 2, 2]

    # too few allowed: the same end; enough: accepted, without another extraction
    with pytest.raises(FailedImagesError):
        extract_features.main(arguments(image_tree, loader_file, out, "--allow_failures", "1"))
    shutil.rmtree(image_tree / "test" / "crow")
    (image_tree / "test" / "crow").mkdir()
    for i in range(3):  # same names, no pixels: proof that nothing is decoded again
        (image_tree / "test" / "crow" / f"crow_{i}.png").write_bytes(b"")
    assert extract_features.main(arguments(image_tree, loader_file, out, "--allow_failures", "2")) == 0
    assert torch.equal(features_of(out)["X"], kept["X"])
    assert json.loads((out / "features.json").read_text())["status"] == "complete"
    assert len((out / "image_paths.txt").read_text().splitlines()) == 7


@pytest.mark.parametrize("allow", ["0", "2"])
def test_mended_images_are_extracted_again(image_tree, loader_file, tmp_path, allow):
    spoil(image_tree)
    out = tmp_path / "out"
    with pytest.raises(FailedImagesError):
        extract_features.main(arguments(image_tree, loader_file, out))
    for name in ("duck/duck_1.png", "wren/wren_0.png"):
        tiny.write_image(image_tree / "test" / name, seed=5)
    assert extract_features.main(arguments(image_tree, loader_file, out, "--allow_failures", allow)) == 0
    assert len(features_of(out)["X"]) == 9
    assert sorted(p.name for p in out.iterdir()) == ["X_Y.pth", "features.json", "image_paths.txt"]


def test_kept_features_of_another_preprocessing_are_not_accepted(image_tree, loader_file, tmp_path):
    spoil(image_tree)
    out = tmp_path / "out"
    with pytest.raises(FailedImagesError):
        extract_features.main(arguments(image_tree, loader_file, out))
    kept = torch.load(out / "X_Y.incomplete.pth", weights_only=True)["X"]
    crop = ["FT_EXTRACT.IMAGE_CROP_SIZE", "8"]
    assert extract_features.main(arguments(image_tree, loader_file, out, "--allow_failures", "2", *crop)) == 0
    assert not torch.equal(features_of(out)["X"], kept)


def test_failures_do_not_shift_the_other_rows(image_tree, loader_file, tmp_path):
    extract_features.main(arguments(image_tree, loader_file, tmp_path / "all"))
    spoil(image_tree)
    extract_features.main(arguments(image_tree, loader_file, tmp_path / "some", "--allow_failures", "2"))
    keep = [0, 1, 2, 3, 5, 7, 8]
    everything, some = features_of(tmp_path / "all"), features_of(tmp_path / "some")
    torch.testing.assert_close(some["X"], everything["X"][keep], rtol=1e-6, atol=1e-6)
    assert torch.equal(some["Y"], everything["Y"][keep])


def test_all_images_fail(image_tree, loader_file, tmp_path):
    for path in (image_tree / "test").rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(FailedImagesError, match="9 of 9"):
        extract_features.main(arguments(image_tree, loader_file, tmp_path / "out"))
    assert not list((tmp_path / "out").glob("*.pth"))


def test_existing_output_is_kept_skipped_or_replaced(image_tree, loader_file, tmp_path):
    out = tmp_path / "out"
    command = arguments(image_tree, loader_file, out)
    extract_features.main(command)
    before = (out / "X_Y.pth").stat().st_mtime_ns
    (out / "notes.txt").write_text("the user's own")
    with pytest.raises(CogError, match="--overwrite"):
        extract_features.main(command)
    assert extract_features.main([*command, "--skip_complete"]) == 0
    assert (out / "X_Y.pth").stat().st_mtime_ns == before
    other = [*command, "FT_EXTRACT.IMAGE_CROP_SIZE", "10"]
    with pytest.raises(CogError, match="preprocessing"):
        extract_features.main([*other, "--skip_complete"])
    assert extract_features.main([*other, "--overwrite"]) == 0
    assert (out / "X_Y.pth").stat().st_mtime_ns != before
    assert (out / "notes.txt").read_text() == "the user's own"


def test_mixed_precision_stays_close(image_tree, loader_file, tmp_path):
    extract_features.main(arguments(image_tree, loader_file, tmp_path / "fp32"))
    extract_features.main(
        arguments(image_tree, loader_file, tmp_path / "bf16", "FT_EXTRACT.PRECISION", "bf16")
    )
    exact, mixed = features_of(tmp_path / "fp32")["X"], features_of(tmp_path / "bf16")["X"]
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, exact, rtol=0.02, atol=0.02)


def test_nan_features_name_the_image(image_tree, tmp_path):
    loader = tmp_path / "nan_net.py"
    loader.write_text(
        tiny.LOADER_SOURCE.replace("mean = x.mean((2, 3))", "mean = x.mean((2, 3)) / (x.sum() * 0)")
    )
    with pytest.raises(CogError, match="crow/crow_0.png"):
        extract_features.main(arguments(image_tree, loader, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_counts_are_reported_not_asserted(workshop, tmp_path, caplog):
    caplog.set_level("WARNING", logger="cog")
    root = tmp_path / "models"
    root.mkdir()
    command = [
        "--model", "tiny_net", "--dataset", "in1k", "--split", "train", "--models_root_dir", str(root),
        "--model_loader", f"{workshop.loader}:load_my_model", "--in1k_images_root", str(workshop.in1k), *RESIZE,
        "FT_EXTRACT.N_WORKERS", "0",
    ]  # fmt: skip
    with pytest.raises(CogError, match="expected 1000 classes, found 3.*--strict_counts"):
        extract_features.main([*command, "--strict_counts"])
    assert list(root.iterdir()) == []
    assert extract_features.main(command) == 0
    assert "expected 1281167 images, found" in caplog.text
    assert (root / "tiny" / "net" / "in1k" / "features_train" / "X_Y.pth").is_file()


def test_row_order_is_the_data_sets(workshop, tmp_path):
    """A level: classes sorted by wnid, files sorted within, labels 0..C-1."""
    out = tmp_path / "out"
    extract_features.main(
        [
            "--model", "tiny_net", "--dataset", "cog_l1", "--split", "train", "--output_dir", str(out),
            "--model_loader", f"{workshop.loader}:load_my_model", "--imagenet_images_root", str(workshop.in21k),
            "--cog_levels_mapping_file", str(workshop.levels_file),
            "--cog_concepts_split_file", str(workshop.split_file),
            *RESIZE, "FT_EXTRACT.N_WORKERS", "0",
        ]
    )  # fmt: skip
    paths = (out / "image_paths.txt").read_text().splitlines()
    assert paths == sorted(paths)
    classes = sorted({path.split("/")[0] for path in paths})
    assert features_of(out)["Y"].tolist() == [classes.index(path.split("/")[0]) for path in paths]
    assert np.unique(features_of(out)["Y"]).tolist() == list(range(len(classes)))
