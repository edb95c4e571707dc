"""Which files make up a data set, in which order."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest
import tiny
from torchvision.datasets import ImageFolder

from cog.data import datasets, images
from cog.errors import CogError


def touch(root, *files):
    for file in files:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def listed(images):
    return [images.file(row) for row in range(len(images))]


def own(dataset, root):
    return datasets.OWN.images(dataset, "train", {"images_root": str(root)})


def test_in1k_order_equals_torchvisions_image_folder(tmp_path):
    touch(
        tmp_path / "val",
        "n02/n02_10.JPEG",
        "n02/n02_9.JPEG",
        "n01/b.JPEG",
        "n01/B.JPEG",
        "n01/a.jpg",
        "n10/é.png",
        "n10/z.JPEG",
    )
    images = datasets.DATASETS["in1k"].images("in1k", "test", {"in1k_images_root": str(tmp_path)})
    reference = ImageFolder(tmp_path / "val")
    assert [str(tmp_path / "val" / file) for file in listed(images)] == [
        path for path, _ in reference.samples
    ]
    assert images.labels.tolist() == reference.targets
    assert list(images.classes) == reference.classes
    assert images.counts().tolist() == [3, 2, 2]


def test_empty_class_folder_is_an_error(tmp_path):
    touch(tmp_path / "train", "a/1.png")
    (tmp_path / "train" / "b").mkdir()
    with pytest.raises(CogError, match="1 of 2 class folders.*b"):
        own("own", tmp_path)


@pytest.fixture
def level_files(tmp_path):
    levels = [["n00000003", "n00000001"], ["n00000002"]]
    wnids = sorted(wnid for level in levels for wnid in level)
    split = {
        wnid: {
            "train": np.array([f"{wnid}/{wnid}_2.JPEG", f"/{wnid}/{wnid}_10.JPEG"]),
            "test": np.array([f"\\{wnid}/{wnid}_1.JPEG"]),
        }
        for wnid in wnids
    }
    touch(tmp_path / "images", *(f"{wnid}/{wnid}_1.JPEG" for wnid in wnids))
    paths = {"levels_file": tmp_path / "levels.pkl", "split_file": tmp_path / "split.pkl"}
    paths["levels_file"].write_bytes(pickle.dumps(levels))
    paths["split_file"].write_bytes(pickle.dumps(split))
    return {"root": tmp_path / "images", **paths}


NOT_READ = {
    "unknown suffixes": (["crow/a.avif", "crow/b.txt"], r"files in class folders .*: 2 \(.*crow/[ab]"),
    "a file server's folder": (["@eaDir/thumb.jpg"], r"folders that file servers or archivers wrote: 1"),
    "an archiver's folder, in a class": (["crow/__MACOSX/crow_0.png"], r"folders that file servers .*: 1"),
    "a folder without images": (["crow/boxes/0.xml"], "folders without images inside class folders: 1"),
    "images beside the classes": (["a.png", "b.jpe"], r"images in no class folder: 2 \(.*/(a.png|b.jpe)"),
    "archives beside the classes": (["duck.tar.gz", "goose.zip"], r"archives: 2 \(.*/(duck|goose)"),
}


@pytest.mark.parametrize("case", NOT_READ)
def test_what_is_not_read_is_told(tmp_path, caplog, case):
    added, line = NOT_READ[case]
    tiny.write_class_folders(tmp_path / "train", classes=("crow", "wren"), n_images=2, suffix=".png")
    for name in added:
        (tmp_path / "train" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "train" / name).touch()
    found = images.from_class_folders("birds", "train", tmp_path / "train", flag="--images_root")
    assert [found.file(row) for row in range(len(found))] == [
        f"{name}/{name}_{i}.png" for name in ("crow", "wren") for i in range(2)
    ]
    (told,) = [record.getMessage() for record in caplog.records]
    assert re.fullmatch(rf"birds train: not read: {line}.*", told)


def test_what_is_read_needs_no_word(tmp_path, caplog):
    """Unpacked archives beside their folders, hidden files, and all suffixes of JPEG files."""
    files = ["crow/a.JPE", "crow/b.jfif", "crow/c.Jpeg"]
    for name in (*files, "crow/.DS_Store", ".cache/x.png", "crow.tar", "crow.tar.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = images.from_class_folders("birds", "train", tmp_path, flag="--images_root")
    assert [found.file(row) for row in range(len(found))] == files
    assert not caplog.records


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ("crow/more/crow_9.png", "folders inside class folders hold images: crow/more"),
        ("crow/day/1/crow_9.jfif", "folders inside class folders hold images: crow/day"),
        ("wren/thumbnails/wren_0.jpg", "folders inside class folders hold images: wren/thumbnails"),
        ("thumbnails/wren_0.jpg", "thumbnails is a class or holds thumbnails"),
        ("_Thumbs/wren_0.jpg", "_Thumbs is a class or holds thumbnails"),
    ],
)
def test_folders_that_may_be_classes_or_not_are_refused(tmp_path, added, message):
    tiny.write_class_folders(tmp_path / "train", classes=("crow", "wren"), n_images=2, suffix=".png")
    (tmp_path / "train" / added).parent.mkdir(parents=True)
    (tmp_path / "train" / added).touch()
    with pytest.raises(CogError, match=message):
        images.from_class_folders("birds", "train", tmp_path / "train", flag="--images_root")


def test_level_sorts_concepts_and_files_and_drops_leading_slashes(level_files):
    found = images.from_level("cog_l1", "train", **level_files)
    assert found.classes == ("n00000001", "n00000003")
    assert listed(found) == [
        "n00000001/n00000001_10.JPEG",
        "n00000001/n00000001_2.JPEG",
        "n00000003/n00000003_10.JPEG",
        "n00000003/n00000003_2.JPEG",
    ]
    assert found.labels.tolist() == [0, 0, 1, 1]
    assert listed(images.from_level("cog_l2", "test", **level_files)) == ["n00000002/n00000002_1.JPEG"]


def test_level_that_does_not_exist(level_files):
    with pytest.raises(CogError, match="has 2 levels"):
        images.from_level("cog_l3", "train", **level_files)


def test_concept_without_folder(level_files):
    (level_files["root"] / "n00000003" / "n00000003_1.JPEG").unlink()
    (level_files["root"] / "n00000003").rmdir()
    with pytest.raises(CogError, match=r"1 of the 2 concepts of cog_l1 \(n00000003\)"):
        images.from_level("cog_l1", "test", **level_files)


def test_digest_tells_lists_apart(tmp_path):
    touch(tmp_path / "train", "a/1.png", "b/1.png")
    first = own("own", tmp_path).digest()
    assert own("other", tmp_path).digest() == first
    touch(tmp_path / "train", "b/2.png")
    assert own("own", tmp_path).digest() != first
