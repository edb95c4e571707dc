"""Which files make up a data set, in which order."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest
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


def birds(root):
    return images.from_class_folders("birds", "train", root, flag="--images_root")


def test_in1k_order_equals_torchvisions_image_folder(tmp_path):
    names = ("n02/n02_10", "n02/n02_9", "n01/b", "n01/B", "n01/a", "n10/é", "n10/z")
    touch(tmp_path / "val", *(f"{name}.{'JPEG' if len(name) > 5 else 'png'}" for name in names))
    found = datasets.DATASETS["in1k"].images("in1k", "test", {"in1k_images_root": str(tmp_path)})
    reference = ImageFolder(tmp_path / "val")
    assert [str(found.root / file) for file in listed(found)] == [path for path, _ in reference.samples]
    assert found.labels.tolist() == reference.targets and list(found.classes) == reference.classes
    assert found.counts().tolist() == [3, 2, 2]
    same = images.from_class_folders("other", "train", tmp_path / "val", flag="")
    assert same.digest() == found.digest() != same.first(2).digest()


@pytest.mark.parametrize(
    ("added", "line"),
    [
        (["crow/a.avif", "crow/b.txt"], r"2 .*crow/a.avif, .*crow/b.txt"),
        (["@eaDir/thumb.jpg"], "1 .*@eaDir"),
        (["crow/@eaDir/a.png/thumb.jpg"], "1 .*crow/@eaDir/a.png/thumb.jpg"),
        (["crow/__MACOSX/crow_0.png"], "1 .*MACOSX/crow_0.png"),
        (["crow/boxes/0.xml"], "1 .*boxes/0.xml"),
        (["a.png", "b.jpe", "read.me"], r"2 .*/a.png, .*/b.jpe"),
        (["duck.tar.gz", "goose.zip", "owl.tar"], "3 .*duck.tar.gz, .*goose.zip, .*owl.tar"),
    ],
)
def test_what_is_not_read_is_told(tmp_path, caplog, added, line):
    names = [f"{name}/{i}.png" for name in ("crow", "wren") for i in range(2)]
    touch(tmp_path, *names, *added)
    assert listed(birds(tmp_path)) == names
    (told,) = [record.getMessage() for record in caplog.records]
    assert re.match(f"birds train: {line}", told)


def test_what_is_read_needs_no_word(tmp_path, caplog):
    """Hidden files, all suffixes of JPEG files, and links."""
    files = ["crow/a.JPE", "crow/b.jfif", "crow/c.Jpeg"]
    touch(tmp_path, *files, "crow/.DS_Store", ".cache/x.png", "notes.txt")
    (tmp_path / "wren").symlink_to(tmp_path / "crow")
    assert listed(birds(tmp_path)) == [*files, *(file.replace("crow", "wren") for file in files)]
    assert not caplog.records


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ("crow/more/crow_9.png", "crow has folders with images, such as crow/more/crow_9.png"),
        ("crow/day/1/crow_9.jfif", "crow has folders with images, such as crow/day/1"),
        ("wren/thumbnails/wren_0.jpg", "wren has folders with images, such as wren/thumbnails"),
        ("thumbnails/wren_0.jpg", "thumbnails, which is a class or holds thumbnails"),
        ("_Thumbs/wren_0.jpg", "_Thumbs, which is a class or holds thumbnails"),
        ("empty/.hidden.png", "1 of 3 class folders without images .empty"),
    ],
)
def test_folders_that_may_be_classes_or_not_are_refused(tmp_path, added, message):
    touch(tmp_path, "crow/0.png", "wren/0.png", added)
    with pytest.raises(CogError, match=message):
        birds(tmp_path)


def test_no_form_fits(tmp_path):
    touch(tmp_path, "list.txt")
    for place in (tmp_path, tmp_path / "no", tmp_path / "no/train"):
        with pytest.raises(CogError, match="holds no class folders.*tar or zip files|No such file"):
            birds(place)


def test_level_sorts_concepts_and_files_and_drops_leading_slashes(tmp_path):
    level_files = {"root": tmp_path, "levels_file": tmp_path / "l.pkl", "split_file": tmp_path / "s.pkl"}
    levels, split = [["n00000003", "n00000001"], ["n00000002"]], {}
    for wnid in (*levels[0], *levels[1]):
        train = np.array([f"{wnid}/{wnid}_2.JPEG", f"/{wnid}/{wnid}_10.JPEG"])
        split[wnid] = {"train": train, "test": np.array([f"\\{wnid}/{wnid}_1.JPEG"])}
        touch(tmp_path, f"{wnid}/{wnid}_1.JPEG")
    level_files["levels_file"].write_bytes(pickle.dumps(levels))
    level_files["split_file"].write_bytes(pickle.dumps(split))
    found = images.from_level("cog_l1", "train", **level_files)
    assert found.classes == ("n00000001", "n00000003") and found.labels.tolist() == [0, 0, 1, 1]
    assert listed(found) == [f"{name}/{name}_{i}.JPEG" for name in found.classes for i in (10, 2)]
    assert listed(images.from_level("cog_l2", "test", **level_files)) == ["n00000002/n00000002_1.JPEG"]
    (level_files["root"] / "n00000003/n00000003_1.JPEG").unlink()
    with pytest.raises(CogError, match=r"1 of the 2 concepts of cog_l1 \(n00000003\)"):
        images.from_level("cog_l1", "test", **level_files)
