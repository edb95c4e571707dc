"""Which files are images, of which class, in which order: in folders and in archives."""

import itertools
import os
import re
from pathlib import Path

import pytest
from archive_forms import tar_bytes, zip_bytes
from torchvision.datasets import ImageFolder

from cog.data import datasets, images
from cog.errors import CogError


def write(root: Path, places: str, files: str) -> None:
    """Write files ``name=content`` into folders and archives (``+`` separates those of each place).

    Content in brackets is that of an image in a tar file.
    """
    for place, part in zip(places.split(","), itertools.cycle(files.split(" + ")), strict=False):
        path, members = root / place, {}
        for name, _, data in (file.partition("=") for file in part.split()):
            is_tar = data.startswith("[")
            members[name] = tar_bytes([("1.png", data[1:-1].encode())]) if is_tar else data.encode()
        if path.suffix:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes((zip_bytes if path.suffix == ".zip" else tar_bytes)(members.items()))
            continue
        for name, data in members.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)


def birds(root: Path) -> images.ImageList:
    return images.from_class_folders("birds", "train", root, flag="--images_root")


def contents(found: images.ImageList) -> dict[str, bytes]:
    return {found.file(row): found.read(row) for row in range(len(found))}


#: Places, their files, and names and content of the images in ``train`` (of a class's archive: in the root).
LISTED = """
birds_train.zip | crow/1.png=1 __MACOSX/1.png= .cache/1.png= crow/.hidden.png= crow/a.txt= | crow/1.png=1
train-0.tar | a/1.png=1 a/1.cls=crow 2.webp=2 2.cls=duck | crow/1.png=1 duck/2.webp=2
train-0.tar | 1.jpg=1 2.jpg=2 1.cls=a 2.cls=b | a/1.jpg=1 b/2.jpg=2
train-0.tar | 2.cls=b 1.cls=a 1.jpg=1 2.jpg=2 | a/1.jpg=1 b/2.jpg=2
train-0.tar | 1.jpg=1 2.jpg=2 1.json=["n00000001"] 2.json=n00000002 | n00000001/1.JPEG=1 n00000002/2.JPEG=2
train.tar | crow/notes.json={} crow/1.png=1 duck/2.png=2 duck/2.txt=text | crow/1.png=1 duck/2.png=2
n01440764.tar | a.JPEG=1 a.json={} | n01440764/a.JPEG=1
n01440764.tar | a.JPEG=1 b.JPEG=2 ./a.JPEG=3 | n01440764/a.JPEG=3 n01440764/b.JPEG=2
birds_train.tar | crow.tar=[1] duck.tar=[2] | crow/1.png=1 duck/1.png=2
"""


@pytest.mark.parametrize("case", LISTED.strip().splitlines())
def test_which_members_are_images(case, tmp_path):
    places, files, expected = case.split(" | ")
    write(tmp_path, places, files)
    found = contents(birds(tmp_path if places.startswith("n") else tmp_path / "train"))
    assert {f"{name}={data.decode()}" for name, data in found.items()} == set(expected.split())


#: Places, their files (images that are read have the content 1), and what is told: number and examples.
TOLD = """
train | crow/a.JPE=1 crow/b.jfif=1 crow/c.Jpeg=1 crow/.DS_Store= .cache/x.png= notes.txt= |
train | crow/1.png=1 crow/a.avif= crow/b.txt= | 2 .*crow/a.avif, .*crow/b.txt
train | crow/1.png=1 @eaDir/thumb.jpg= | 1 .*@eaDir
train | crow/1.png=1 crow/@eaDir/a.png/thumb.jpg= | 1 .*crow/@eaDir/a.png/thumb.jpg
train | crow/1.png=1 crow/__MACOSX/crow_0.png= | 1 .*MACOSX/crow_0.png
train | crow/1.png=1 crow/boxes/0.xml= | 1 .*boxes/0.xml
train | crow/1.png=1 a.png= b.jpe= read.me= | 2 .*/a.png, .*/b.jpe
train | crow/1.png=1 duck.tar.gz= goose.zip= owl.tar= | 3 .*duck.tar.gz, .*goose.zip, .*owl.tar
train.tar | crow/1.png=1 crow/2.avif= crow/2.xml= | 2 .*train.tar/crow/2.avif
train.zip | crow/1.png=1 crow/@eaDir/1.png= #recycle/1.png= | 2 .*zip/#recycle/1.png
train.tar | crow/1.png=1 2.jfif= crow/0.xml= | 2 .*: .*train.tar/2.jfif,
train-0.tar | 1.jpe=1 1.cls=a 2.avif= 2.cls=a | 1 .*train-0.tar/2.cls
train.tar,train.tar.gz,val.tgz,other.tar | crow/x.png=1 | 1 .*/train.tar.gz
"""


@pytest.mark.parametrize("case", TOLD.strip().splitlines())
def test_what_is_not_read_is_told(case, tmp_path, caplog):
    """By the command that makes the index of archives, and by those after it."""
    places, files, line = case.split(" |")
    write(tmp_path, places, files)
    for _ in range(2):
        caplog.clear()
        assert [*contents(birds(tmp_path / "train")).values()] == [b"1"] * files.count("=1")
        told = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
        assert len(told) == bool(line)
        assert all(re.match(f"birds train:{line}", text) and "are not read" in text for text in told)


#: Places, their files, and what the message says: the right reading is not clear.
UNCLEAR = r"""
train | crow/0.png= crow/more/crow_9.png= | crow has folders with images, such as crow/more/crow_9.png
train | crow/0.png= crow/day/1/crow_9.jfif= | crow has folders with images, such as crow/day/1
train | crow/0.png= crow/thumbnails/crow_0.jpg= | crow has folders with images, such as crow/thumbnails
train | crow/0.png= thumbnails/crow_0.jpg= | thumbnails, which is a class or holds thumbnails
train | crow/0.png= _Thumbs/crow_0.jpg= | _Thumbs, which is a class or holds thumbnails
train | crow/0.png= empty/.hidden.png= | 1 of 2 class folders without images .empty
train | list.txt= | holds no class folders.*tar or zip files
elsewhere | list.txt= | does not exist
train.tar | site_a/crow/0.png= site_b/crow/0.png= | in site_a/crow and site_b/crow, which cannot
train.tar | a/airport/indoor/1.png= c/church/indoor/2.png= | a/airport/indoor and c/church/indoor
train.tar | x/crow.tar=[1] y/crow.tar=[2] | x/crow and y/crow
train.tar | train/n01440764/1.png= val/n01440764/2.png= | train/n01440764 and val/n01440764
train.tar,train-1.tar | a/indoor/0.png= b/church/0.png= + b/indoor/1.png= | a/indoor and b/indoor
train.tar,train-1.tar | crow/1.png= | image crow/1.png is in .*train-1.tar .*again in .*train.tar
crow.tar | 1.png= day/2.png= | crow and crow/day
train/crow.tar,train/wren.tar | photos/1.png= + photos/2.png= | 2 archives of one class, photos
train.tar | n01440764/a/1.JPEG= n01440764/b/1.JPEG= | image n01440764/1.JPEG is in .* and again in
train-0.tar | a/1.png= a/1.cls=crow b/1.png= b/1.cls=crow | image crow/1.png is in .* again
train-0.tar | 1.jpg= 1.seg.png= 1.cls=crow | sample 1 has several images, such as 1.seg.png
train-0.tar | 1.jpg= 1.cls=../a | class '../a', expected one id or name
train-0.tar | 1.jpg= 1.json={"label":DEEP} | sample 1 has the class ''
train-000.tar | 1.png= 2.png= | images in no class folder .*no labels
train.zip | 1.png= 2.png= 3.cls=crow | images in no class folder
train.tar | crow/1.png= thumbs/1.png= | thumbs, which is a class or holds
"""


@pytest.mark.parametrize("case", UNCLEAR.strip().splitlines())
def test_what_is_unclear_is_refused(case, tmp_path):
    places, files, message = case.split(" | ")
    write(tmp_path, places, files.replace("DEEP", "[" * 100_000))
    with pytest.raises(CogError, match=message):
        birds(tmp_path if places == "crow.tar" else tmp_path / "train")


@pytest.mark.parametrize("numbers", [(0, 1, 3), (1, 2, 3), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("place", ["train", ""])
def test_archives_that_their_names_announce_must_be_there(tmp_path, numbers, place, caplog):
    for number in numbers:
        write(tmp_path, f"train-{number:05d}-of-00004.tar", f"crow/{number}.png=1")
    with pytest.raises(CogError, match="has 3 of the 4 archives train-.*-of-00004"):
        birds(tmp_path / place)
    write(tmp_path, "train-9-of-00004.tar", "crow/x.png=1 duck/y.png=2")
    assert len(contents(birds(tmp_path / place))) == 5
    for number in numbers:
        write(tmp_path, f"more-train-{number:04d}.tar", f"crow/{number}.png=1")
    assert len(birds(tmp_path / "more-train")) == 3
    assert ("train: 3 archives, numbered to 3: are some missing?" in caplog.text) == (numbers[1:] == (1, 3))


#: Names of classes: bytes that are no UTF-8, and the two forms of one letter, which are two folders.
ODD_CLASSES = (b"caf\xe9", b"caf\xe8", "caf\u00e9".encode(), "cafe\u0301".encode(), b"a b")


@pytest.mark.parametrize("form", ["folders", "tar", "shard"])
def test_classes_are_named_like_files(form, tmp_path):
    """Names that are no UTF-8 or are not normalized stay apart in every form."""
    files = {}
    for name in ODD_CLASSES:
        text = os.fsdecode(name)
        files |= {f"{text}.png": b"", f"{text}.cls": name} if form == "shard" else {f"{text}/{text}.png": b""}
    for file in files if form == "folders" else ():
        (tmp_path / "train" / file).parent.mkdir(parents=True)
        (tmp_path / "train" / file).touch()
    if form != "folders":
        (tmp_path / "train-0000.tar").write_bytes(tar_bytes(files.items()))
    found = birds(tmp_path / "train")
    assert sorted(map(os.fsencode, found.classes)) == sorted(ODD_CLASSES)
    assert sorted(found.files.tolist()) == sorted(name + b"/" + name + b".png" for name in ODD_CLASSES)
    assert [*contents(found).values()] == [b""] * len(found)


def test_in1k_order_equals_torchvisions_image_folder(tmp_path, caplog):
    write(tmp_path, "val", "n02/n02_10.JPEG= n02/n02_9.JPEG= n01/b.png= n01/B.png= n01/a.png= n10/é.png=")
    (tmp_path / "val/n11").symlink_to(tmp_path / "val/n02")
    found = datasets.DATASETS["in1k"].images("in1k", "test", {"in1k_images_root": str(tmp_path)})
    (tmp_path / "val/n12").symlink_to(tmp_path / "nowhere")
    reference = ImageFolder(tmp_path / "val")
    assert [str(found.root / file) for file in contents(found)] == [path for path, _ in reference.samples]
    assert found.labels.tolist() == reference.targets and list(found.classes) == reference.classes
    assert found.counts().tolist() == [3, 2, 1, 2]
    assert birds(tmp_path / "val").digest() == found.digest() != found.first(2).digest()
    assert "1 files or folders are not read" in caplog.text and "val/n12" in caplog.text
