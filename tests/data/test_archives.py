"""Images in archives are the images of the folders that were packed."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import io
import os
import pickle
import re
import struct
import tarfile
import time
import tracemalloc
import zipfile

import archive_forms
import numpy as np
import pytest
import tiny
from archive_forms import FORMS, tar_bytes, zip_bytes

from cog.commands import extract_features
from cog.data import archives, datasets, images
from cog.data.images import open_store
from cog.data.stores import FolderImages
from cog.errors import CogError

WNIDS = ("n01440764", "n02000001", "n02084071", "n15102894")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Four synsets of five images; names of one length and of another."""
    root = tmp_path_factory.mktemp("folders")
    for row, wnid in enumerate(WNIDS):
        for index in (0, 1, 2, 9, 10):
            tiny.write_image(root / wnid / f"{wnid}_{index}.JPEG", size=(17 + row, 16), seed=20 * row + index)
    return root


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("COG_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    return folder


def listed(store):
    store.prepare()
    return [name for wnid in store.classes() for name in store.names(wnid)]


def level_files(tmp_path, folders):
    """Write a level of all classes and its split, and return the values of their flags."""
    levels = tiny.write_levels_file(tmp_path / "levels.pkl", [WNIDS[::-1]])
    split = tiny.write_split_file(tmp_path / "split.pkl", folders, n_test=2)
    return {"cog_levels_mapping_file": str(levels), "cog_concepts_split_file": str(split)}


@pytest.mark.parametrize("form", FORMS)
def test_names_bytes_and_lists_are_those_of_the_folders(form, folders, root, tmp_path):
    FORMS[form](folders, root)
    expected, store = FolderImages(folders), open_store(root)
    assert store.classes() == list(WNIDS)
    for wnid in WNIDS:
        assert store.names(wnid) == expected.names(wnid) and store.has_class(wnid)
        for name in store.names(wnid):
            assert store.read(name) == (folders / name).read_bytes()
            assert pickle.loads(pickle.dumps(store)).read(name) == store.read(name)
    assert not store.has_class("n00000000") and store.names("n00000000") == []
    with pytest.raises(FileNotFoundError):
        store.read(f"{WNIDS[0]}/{WNIDS[0]}_3.JPEG")
    files = level_files(tmp_path, folders)
    for split in ("train", "test"):
        in_form, in_folders = (
            datasets.find("cog_l1").images("cog_l1", split, {"imagenet_images_root": str(place), **files})
            for place in (root, folders)
        )
        assert in_form.digest() == in_folders.digest() and in_form.root == root


def reference(folders):
    return images.from_class_folders("own", "train", folders, flag="--images_root")


# ---- ILSVRC-2012 and other data sets with splits --------------------------------------------------------------


def validation_tar(folders, root):
    """Pack the images of all classes flat, and return their classes in the order of their numbers."""
    paths = sorted(folders.glob("*/*"), key=lambda path: path.name[::-1])
    members = [(f"ILSVRC2012_val_{i:08d}.JPEG", path.read_bytes()) for i, path in enumerate(paths, start=1)]
    (root / "ILSVRC2012_img_val.tar").write_bytes(tar_bytes(members[::-1]))
    return [path.parent.name for path in paths], [data for _, data in members]


def write_solution(root, wnids):
    rows = [f"ILSVRC2012_val_{i:08d},{wnid} 1 2 3 4 {wnid} 5 6 7 8 " for i, wnid in enumerate(wnids, start=1)]
    (root / "LOC_val_solution.csv").write_text("\n".join(["ImageId,PredictionString", *rows[::-1]]) + "\n")


def write_devkit(root, wnids):
    """Class numbers that are not the sorted order, and numbers of inner nodes behind them, as in the real file."""
    from scipy.io import savemat

    table = [WNIDS[2], WNIDS[0], WNIDS[3], WNIDS[1], "n00001740"]
    synsets = np.zeros(len(table), dtype=[("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O")])
    for row, wnid in enumerate(table):
        synsets[row] = (np.int16(row + 1), wnid, "some words")
    meta = io.BytesIO()
    savemat(meta, {"synsets": synsets[:, None]})
    truth = "".join(f"{table.index(wnid) + 1}\n" for wnid in wnids)
    data = tar_bytes(
        [
            ("ILSVRC2012_devkit_t12/readme.txt", b"x"),
            ("ILSVRC2012_devkit_t12/data/meta.mat", meta.getvalue()),
            ("ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt", truth.encode()),
        ]
    )
    (root / "ILSVRC2012_devkit_t12.tar.gz").write_bytes(gzip.compress(data))


@pytest.mark.parametrize("write_labels", [write_solution, write_devkit])
def test_the_distributed_tars_of_ilsvrc2012(folders, root, write_labels):
    archive_forms.tar_of_tars(folders, root, name="ILSVRC2012_img_train")
    archive_forms.tar_of_tars(
        folders, root, name="ILSVRC2012_img_train_t3"
    )  # of another task, with the same images
    wnids, data = validation_tar(folders, root)
    values = {"in1k_images_root": str(root)}
    with pytest.raises(CogError, match="without class folders; put ILSVRC2012_devkit_t12.tar.gz"):
        datasets.find("in1k").images("in1k", "test", values)
    write_labels(root, wnids)
    train, test = (datasets.find("in1k").images("in1k", split, values) for split in ("train", "test"))
    assert train.digest() == reference(folders).digest() and train.root == root / "train"
    assert test.classes == WNIDS and test.root == root / "val" and len(test) == 20
    expected = sorted((wnid, f"ILSVRC2012_val_{i:08d}.JPEG", i) for i, wnid in enumerate(wnids, start=1))
    assert [test.file(row) for row in range(20)] == [f"{wnid}/{file}" for wnid, file, _ in expected]
    assert [test.store.read(test.file(row)) for row in range(20)] == [data[i - 1] for _, _, i in expected]
    # the root that a feature file remembers
    assert open_store(str(test.root)).read(test.file(3)) == test.store.read(test.file(3))
    assert (
        datasets.find("in1k").images("in1k", "train", {"in1k_images_root": str(root)}).digest()
        == train.digest()
    )


def test_labels_that_change_make_the_index_anew(folders, root):
    wnids, _ = validation_tar(folders, root)
    write_solution(root, wnids)
    before = listed(open_store(root / "val"))
    write_solution(root, wnids[::-1])
    os.utime(root / "LOC_val_solution.csv", ns=(0, 10**9))
    after = listed(open_store(root / "val"))
    assert before != after and sorted(name[10:] for name in before) == sorted(name[10:] for name in after)


@pytest.mark.parametrize("damage", [b"", b"ImageId,PredictionString\nx,cat 1 2\n", b"\xff\xfe"])
def test_labels_that_cannot_be_read(folders, root, damage):
    validation_tar(folders, root)
    (root / "LOC_val_solution.csv").write_bytes(damage)
    with pytest.raises(CogError, match="LOC_val_solution.csv cannot be read as the labels"):
        listed(open_store(root / "val"))
    (root / "LOC_val_solution.csv").write_text(
        "ImageId,PredictionString\nILSVRC2012_val_00000001,n01440764 1\n"
    )
    with pytest.raises(CogError, match="that the labels beside it lack"):
        listed(open_store(root / "val"))
    (root / "LOC_val_solution.csv").unlink()
    (root / "ILSVRC2012_devkit_t12.tar.gz").write_bytes(
        gzip.compress(tar_bytes([("a/data/meta.mat", b"MATLAB")]))
    )
    with pytest.raises(CogError, match="devkit_t12.tar.gz cannot be read as the labels"):
        listed(open_store(root / "val"))


def test_one_archive_with_both_splits(folders, root):
    """As Kaggle packs ILSVRC-2012; its validation images are flat."""
    numbers = [f"{i:08d}" for i in range(1, 9)]
    members = [(f"train/{name}", data) for name, data in archive_forms.images(folders)]
    members += [(f"val/ILSVRC2012_val_{number}.JPEG", number.encode()) for number in numbers]
    members += [(f"test/ILSVRC2012_test_{number}.JPEG", b"x") for number in numbers]
    (root / "imagenet-object-localization-challenge.zip").write_bytes(
        zip_bytes((f"ILSVRC/Data/CLS-LOC/{name}", data) for name, data in members)
    )
    write_solution(root, [WNIDS[i % 4] for i in range(8)])
    train, test = (
        datasets.find("in1k").images("in1k", split, {"in1k_images_root": str(root)})
        for split in ("train", "test")
    )
    assert train.digest() == reference(folders).digest()
    assert [test.file(row) for row in range(2)] == [
        f"{WNIDS[0]}/ILSVRC2012_val_0000000{i}.JPEG" for i in (1, 5)
    ]
    assert test.store.read(test.file(1)) == b"00000005" and len(test) == 8


def pack(path, text: str) -> None:
    """Write an archive of members ``name=content``; content in brackets is that of a tar file inside."""
    parts = [part.partition("=") for part in text.split()]
    members = [
        (name, tar_bytes([("1.png", data[1:-1].encode())]) if data.startswith("[") else data.encode())
        for name, _, data in parts
    ]
    path.write_bytes((zip_bytes if path.suffix == ".zip" else tar_bytes)(members))


#: Archive, its members, and names and content of the images in ``train`` (of a class's archive: in the root).
LISTED = {
    "classes are the folders below that of the split; loose images have none": (
        "birds.zip",
        "d/train/crow/1.png=a d/train/crow0/2.png=b d/train/crow-1/3.png=c d/train/4.png= d/test/crow/5.png= 6.png=",
        "crow-1/3.png=c crow/1.png=a crow0/2.png=b",
    ),
    "hidden files and others": (
        "birds_train.zip",
        "crow/1.png=1 __MACOSX/crow/._1.png= __MACOSX/crow/1.png= .cache/1.png= crow/.hidden.png= crow/notes.txt=",
        "crow/1.png=1",
    ),
    "shards without ids keep their suffix": (
        "train-0.tar",
        "a/1.png=1 a/1.cls=crow 2.webp=2 2.cls=duck 3.jpg=3 3.cls=crow",
        "crow/1.png=1 crow/3.jpg=3 duck/2.webp=2",
    ),
    "other files make no shard": (
        "train.tar",
        "crow/notes.json={} crow/1.png=1 duck/2.png=2 duck/2.txt=text",
        "crow/1.png=1 duck/2.png=2",
    ),
    "nor in the archive of a class": ("n01440764.tar", "a.JPEG=1 a.json={}", "n01440764/a.JPEG=1"),
    "the archive of a class has no other classes": (
        "n01440764.tar",
        "a.JPEG=1 n02000001/b.JPEG=2",
        "n01440764/a.JPEG=1 n01440764/b.JPEG=2",
    ),
    "of equal names the last counts": (
        "n01440764.tar",
        "a.JPEG=1 b.JPEG=2 ./a.JPEG=3",
        "n01440764/a.JPEG=3 n01440764/b.JPEG=2",
    ),
    "a tar file per class": ("birds_train.tar", "crow.tar=[1] duck.tar=[2]", "crow/1.png=1 duck/1.png=2"),
}


@pytest.mark.parametrize("case", LISTED)
def test_which_members_are_images(case, root):
    file, members, expected = LISTED[case]
    pack(root / file, members)
    store = open_store(root if file.startswith("n") else root / "train")
    found = [f"{name}={store.read(name).decode()}" for name in listed(store)]
    assert sorted(found) == sorted(expected.split())
    if file == "birds.zip":
        assert listed(open_store(root / "test")) == ["crow/5.png"]


LABELS_APART = (
    [(f"{i}.jpg", b"%d" % i) for i in range(80)],
    [(f"{i}.cls", b"ab"[i % 2 :][:1]) for i in range(80)],
)


@pytest.mark.parametrize("parts", [LABELS_APART, LABELS_APART[::-1]], ids=["labels last", "labels first"])
def test_labels_may_be_anywhere_in_a_shard(root, parts):
    (root / "train-0.tar").write_bytes(tar_bytes([member for part in parts for member in part]))
    store = open_store(root / "train")
    assert store.classes() == ["a", "b"] and len(listed(store)) == 80 and store.read("b/7.jpg") == b"7"


AIRPORT = "a/airport/indoor/1.png=1 c/church/indoor/2.png=2"
SYNSET = "image n01440764/1.JPEG"

#: Archive, its members, and what the message says: the right reading is not clear.
UNCLEAR = [
    ("train.tar", AIRPORT, "in a/airport/indoor and in c/church/indoor, .* class indoor"),
    ("train.zip", AIRPORT, "which would both be class indoor"),
    ("birds.zip", "train/a/indoor/1.png= train/b/indoor/2.png=", "would both be class indoor"),
    ("train.tar", "crow/1.png=1 crow/day/2.png=2", "class folder crow and in crow/day inside"),
    ("train.zip", "x/crow/a/b/1.png=1 x/crow/2.png=2", "class folder crow and in x/crow/a/b"),
    ("train.tar", "n01440764/a/1.JPEG=1 n01440764/b/1.JPEG=2", SYNSET),
    ("train.zip", "x/n01440764/1.JPEG=1 y/n01440764/1.JPEG=2", SYNSET),
    ("train-0.tar", "a/1.png= a/1.cls=crow b/1.png= b/1.cls=crow", "two members of .* be image crow/1.png"),
    ("train-0.tar", "1.jpg= 1.seg.png= 1.cls=crow", "sample 1 has several images, such as 1.seg.png"),
    ("train-000.tar", "1.png= 2.png=", "2 images in no class folder .*no labels"),
    ("train.zip", "1.png= 2.png= 3.cls=crow", "2 images in no class folder"),
    ("data-00000.tar", "1.png= 2.png=", "2 images in no class folder"),
    ("train.tar", "crow/1.png=1 thumbs/1.png=1", "thumbs is a class or holds"),
]


@pytest.mark.parametrize(("file", "members", "message"), UNCLEAR)
def test_archives_whose_reading_is_unclear_are_refused(root, file, members, message):
    pack(root / file, members)
    folder = root if file.startswith("data") else root / "train"
    with pytest.raises(CogError, match=message):
        images.from_class_folders("birds", "train", folder, flag="--images_root")


def test_classes_of_two_archives_that_would_merge_are_refused(root):
    """The same folders in several archives are one class; folders of another parent are not."""
    for number, folder in enumerate("aab"):
        if folder == "b":
            assert len(datasets.OWN.images("birds", "train", {"images_root": str(root)})) == 4
        pack(root / f"train-{number}.tar", f"{folder}/indoor/{number}.png= b/church/{number}.png=")
    with pytest.raises(CogError, match="(a|b)/indoor and in (a|b)/indoor, which would both be class indoor"):
        images.from_class_folders("birds", "train", root / "train", flag="--images_root")


OTHER = "files in class folders .*: 1"
NUMBERED = {f"train-{i:03d}.tar": f"crow/{i}.png=" for i in (3, 4, 6, 7, 8)}
COMPRESSED = dict.fromkeys(("more_train.tar.gz", "val.tgz", "ILSVRC2012_devkit_t12.tar.gz"), "crow/x.png=")

#: Archives, their members, and the kind and an example of what is told.
TOLD = [
    ({"train.tar": "crow/1.png= crow/2.avif= crow/2.xml="}, rf"{OTHER} \(.*train.tar/crow/2.avif\)"),
    (
        {"birds.zip": "x/train/crow/1.png= a/train/crow/1.xml= x/train/duck/2.avif="},
        rf"{OTHER} \(.*birds.zip/x/train/duck/2.avif\)",
    ),
    (
        {"train.zip": "crow/1.png= crow/@eaDir/1.png= #recycle/1.png="},
        "folders that file servers .* wrote: 2",
    ),
    ({"train.tar": "crow/1.png= 2.jfif="}, "images in no class folder: 1 .*2.jfif"),
    (
        {"train-0.tar": "1.jpe= 1.cls=a 2.avif= 2.cls=a"},
        r"samples with a label and without an image: 1 \(.*/2\)",
    ),
    (NUMBERED, r"archives that are missing between numbered ones: 1 \(train-5"),
    ({"train.tar": "crow/1.png="} | COMPRESSED, r"archives: 1 \(.*more_train.tar.gz"),
]


@pytest.mark.parametrize(("packed", "line"), TOLD)
def test_what_is_not_read_from_archives_is_told(root, caplog, packed, line):
    """By the command that makes the index, and by those after it."""
    for name, members in packed.items():
        pack(root / name, members)
    for _ in range(2):
        caplog.clear()
        images.from_class_folders("birds", "train", root / "train", flag="--images_root")
        told = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
        assert len(told) == 1 and re.match(f"birds train: not read: {line}", told[0])


@pytest.mark.parametrize(
    ("numbers", "missing"), [((0, 1, 3), 2), ((1, 2, 3), 0), ((2, 3, 4), 1), ((0, 1, 2), 3)], ids=str
)
@pytest.mark.parametrize("beside", [True, False])
def test_archives_that_their_names_announce_must_be_there(root, numbers, missing, beside):
    for number in numbers:
        data = tar_bytes([(f"crow/{number}.png", b"1")])
        (root / f"train-{number:05d}-of-00004.tar").write_bytes(data)
    with pytest.raises(
        CogError, match=f"lacks 1 of 00004 archives train-...of-00004, such as number {missing}"
    ):
        open_store(root / "train" if beside else root)
    data = tar_bytes([("crow/x.png", b"1"), ("duck/y.png", b"2")])
    (root / f"train-{missing:05d}-of-00004.tar").write_bytes(data)
    assert len(listed(open_store(root))) == 5


@pytest.mark.parametrize("label", ["json", "number", "text"])
def test_shards_of_the_splits(folders, root, label, tmp_path):
    plain = tmp_path / "plain"  # keys without ids
    for index, path in enumerate(sorted(folders.glob("*/*"))):
        (plain / path.parent.name).mkdir(parents=True, exist_ok=True)
        (plain / path.parent.name / f"{index:07d}.JPEG").write_bytes(path.read_bytes())
    archive_forms.shards(plain, root, label=label, name="imagenet1k-train")
    archive_forms.shards(plain, root, label=label, name="imagenet1k-validation")
    for split in ("train", "test"):
        images = datasets.find("in1k").images("in1k", split, {"in1k_images_root": str(root)})
        assert images.digest() == reference(plain).digest()
        assert all(
            images.store.read(name) == (plain / name).read_bytes() for name in map(images.file, range(20))
        )


NO_NAME = "class [17], which has no name in classes.txt beside it"


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("1.jpg", b"x"), ("1.cls", b"3")], r"class numbers and .*classes.txt cannot be read"),
        ([("1.jpg", b"x"), ("1.cls", b"../a")], "class '../a', which names no folder"),
        ([("1.jpg", b"x"), ("2.jpg", b"x"), ("2.cls", b"a")], "sample 1 has no class"),
        ([("1.jpg", b"x"), ("1.json", b"[" * 100_000)], "sample 1 has no class"),
        ([("1.jpg", b"x"), ("1.cls", bytes(2 << 20))], "expected the label"),
        ([("classes.txt", b"crow\n\n"), ("1.jpg", b"x"), ("1.cls", b"1")], NO_NAME),
        ([("classes.txt", b"crow\n\n"), ("1.jpg", b"x"), ("1.cls", b"7")], NO_NAME),
    ],
)
def test_shards_without_a_class(root, members, message):
    for name, data in members:
        if name == "classes.txt":  # which lies beside the archive
            (root / name).write_bytes(data)
    (root / "train-0.tar").write_bytes(tar_bytes(members))
    with pytest.raises(CogError, match=message):
        listed(open_store(root / "train"))


# ---- which form a root has --------------------------------------------------------------------------------


def test_no_form_fits(root, tmp_path):
    for place, words in (
        (root, "holds no class folders"),
        (tmp_path / "no", "does not exist or is not a folder"),
    ):
        with pytest.raises(CogError, match=f"--images_root: .*{words}.*tar or zip files"):
            images.from_class_folders("own", "train", place, flag="--images_root")


def test_the_same_image_in_two_archives(folders, root):
    archive_forms.tar_of_folders(folders, root)
    archive_forms.zip_stored(folders, root)
    with pytest.raises(
        CogError, match=r"image n01440764/n01440764_0.JPEG is in .*everything.tar and .*images.zip"
    ):
        listed(open_store(root))


EXTRACTED = ("tar_per_class", "tar_of_tars", "tar_of_folders", "gzipped_members", "zip_deflated", "shards")


def test_features_are_equal_bit_for_bit(folders, root, tmp_path):
    """Of class folders and of archives, through the command."""
    loader, found = tiny.write_loader(tmp_path / "net.py"), {}
    for form in ("folders", *EXTRACTED):
        place = root / form
        place.mkdir()
        (tmp_path / form).mkdir()
        if form in FORMS:
            (place / "train").mkdir()
            FORMS[form](folders, place / "train")
        else:
            (place / "train").symlink_to(folders)
        argv = ["--model", "tiny_net", "--model_loader", f"{loader}:load_my_model", "--dataset", "birds"]
        argv += ["--split", "train", "--images_root", str(place), "--models_root_dir", str(tmp_path / form)]
        assert extract_features.main([*argv, "--device", "cpu", "FT_EXTRACT.N_WORKERS", "0"]) == 0
        found[form] = (tmp_path / form / "tiny/net/birds/features_train/X_Y.pth").read_bytes()
    assert len(set(found.values())) == 1


#: Names of classes: bytes that are no UTF-8, and the two forms of one letter, which are two folders.
ODD_CLASSES = (b"caf\xe9", b"caf\xe8", "caf\u00e9".encode(), "cafe\u0301".encode(), b"a b")


@pytest.mark.parametrize("form", ["folders", "tar", "shard", "numbers"])
def test_classes_are_named_like_files(form, root):
    """Names that are no UTF-8 or are not normalized stay apart in every form."""
    (root / "train").mkdir()
    if form == "folders":
        for name in ODD_CLASSES:
            folder = os.path.join(os.fsencode(root / "train"), name)
            os.mkdir(folder)
            open(os.path.join(folder, name + b".png"), "wb").close()
    elif form == "tar":
        files = [(os.fsdecode(name + b"/" + name + b".png"), b"") for name in ODD_CLASSES]
        (root / "train/birds.tar").write_bytes(tar_bytes(files))
    else:
        (root / "train/classes.txt").write_bytes(b"\n".join(ODD_CLASSES))
        files = []
        for number, name in enumerate(ODD_CLASSES):
            label = b"%d" % number if form == "numbers" else name
            files += [(f"{os.fsdecode(name)}.png", b""), (f"{os.fsdecode(name)}.cls", label)]
        (root / "train/birds-0000.tar").write_bytes(tar_bytes(files))
    found = datasets.OWN.images("birds", "train", {"images_root": str(root)})
    assert sorted(map(os.fsencode, found.classes)) == sorted(ODD_CLASSES)
    assert found.counts().tolist() == [1] * len(ODD_CLASSES)
    assert sorted(found.files.tolist()) == sorted(name + b"/" + name + b".png" for name in ODD_CLASSES)
    assert [found.read(row) for row in range(len(found))] == [b""] * len(found)
    assert found.digest() != reference_digest(found)


def reference_digest(found):
    """Return the digest of the same list with two classes exchanged."""
    classes = (found.classes[1], found.classes[0], *found.classes[2:])
    return dataclasses.replace(found, classes=classes).digest()


# ---- the index --------------------------------------------------------------------------------------------


@pytest.fixture
def scans(monkeypatch):
    """Names of the archives that were scanned."""
    names = []
    original = archives.members

    def counting(source):
        names.append(os.path.basename(source.label))
        return original(source)

    monkeypatch.setattr(archives, "members", counting)
    return names


def test_archives_are_indexed_once_and_when_they_are_needed(folders, root, scans, cache):
    archive_forms.tar_per_class(folders, root)
    open_store(root).prepare(WNIDS[:2])
    assert sorted(scans) == [f"{wnid}.tar" for wnid in WNIDS[:2]]
    open_store(root).prepare()
    assert listed(open_store(root)) == listed(FolderImages(folders)) and len(scans) == 6
    assert [path.suffix for path in cache.iterdir()] == [".npz"] * 2  # nothing half-written
    assert not [path for path in root.iterdir() if path.suffix != ".tar"]


def test_only_the_tar_files_of_the_classes_that_are_asked_for_are_looked_into(folders, root, scans):
    archive_forms.tar_of_tars(folders, root)
    (root / "more.tar").write_bytes(
        tar_bytes([("x/crow.tar", tar_bytes([("1.png", b"1")])), ("x/wren/2.png", b"2")])
    )
    store = open_store(root)
    store.prepare(WNIDS[1:2])
    assert sorted(scans) == ["crow.tar", "fall11_whole.tar", "more.tar", f"{WNIDS[1]}.tar"]
    assert store.classes() == ["crow", *WNIDS, "wren"] and store.names("crow") == ["crow/1.png"]
    assert store.read("crow/1.png") == b"1" and store.read("wren/2.png") == b"2"
    assert len(scans) == 4
    assert store.names(WNIDS[3]) == FolderImages(folders).names(WNIDS[3]) and len(scans) == 5


@pytest.mark.parametrize("change", ["size", "time"])
def test_an_archive_that_changed_is_indexed_anew(folders, root, scans, change):
    archive_forms.tar_per_class(folders, root)
    open_store(root).prepare()
    scans.clear()
    path = root / f"{WNIDS[1]}.tar"
    members = [(f"{WNIDS[1]}_0.JPEG", b"new"), ("other.JPEG", b"12345")]
    status = path.stat()
    data = tar_bytes(members)
    path.write_bytes(data + bytes(10240) if change == "size" else data.ljust(status.st_size, b"\0"))
    os.utime(path, ns=(0, status.st_mtime_ns + (change == "time")))
    store = open_store(root)
    store.prepare()
    assert store.names(WNIDS[1]) == [f"{WNIDS[1]}/{name}" for name, _ in members]
    assert [store.read(f"{WNIDS[1]}/{name}") for name, _ in members] == [data for _, data in members]
    assert path.name in scans


def test_an_archive_that_changes_under_a_store_is_no_wrong_image(folders, root):
    archive_forms.tar_per_class(folders, root)
    store, name = open_store(root), f"{WNIDS[1]}/{WNIDS[1]}_2.JPEG"
    store.prepare()
    path = root / f"{WNIDS[1]}.tar"
    path.write_bytes(tar_bytes([("a.JPEG", bytes(2000)), (f"{WNIDS[1]}_2.JPEG", b"x")]))
    with pytest.raises(OSError, match="has changed since it was indexed"):
        store.read(name)


def damage_tail(data):
    return data[:-40]


def damage_byte(data):
    """Change a byte of the rows."""
    return data[:-400] + bytes([data[-400] ^ 1]) + data[-399:]


@pytest.mark.parametrize("damage", [damage_tail, damage_byte, lambda data: b"", lambda data: b"not a zip"])
def test_a_damaged_index_is_made_anew(folders, root, cache, scans, damage, caplog):
    archive_forms.tar_per_class(folders, root)
    open_store(root).prepare()
    (index,) = cache.iterdir()
    index.write_bytes(damage(index.read_bytes()))
    scans.clear()
    store = open_store(root)
    assert listed(store) == listed(FolderImages(folders))
    assert f"the index {index} cannot be read and is made anew" in caplog.text and f"{WNIDS[0]}.tar" in scans
    scans.clear()
    assert listed(open_store(root)) == listed(store) and scans == []


def test_an_index_that_cannot_be_kept(folders, root, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("COG_CACHE_DIR", str(tmp_path / "file"))
    archive_forms.tar_of_tars(folders, root)
    assert listed(open_store(root)) == listed(FolderImages(folders))
    assert "the index of the images is not kept for the next command" in caplog.text


def test_a_descriptor_that_the_file_server_forgot_is_opened_again(folders, root, monkeypatch):
    archive_forms.tar_of_tars(folders, root)
    store, name = open_store(root), f"{WNIDS[1]}/{WNIDS[1]}_2.JPEG"
    expected, original, failed = store.read(name), os.pread, []

    def stale_once(*arguments):
        if not failed:
            failed.append(arguments)
            raise OSError(errno.ESTALE, "Stale file handle")
        return original(*arguments)

    monkeypatch.setattr(os, "pread", stale_once)
    assert store.read(name) == expected and len(failed) == 1


def archives_of_one_image(root, n):
    """Write the archives of n classes, and return their store and classes; each image repeats the class's id."""
    wnids = [f"n{number:08d}" for number in range(n)]
    for wnid in wnids:
        (root / f"{wnid}.tar").write_bytes(tar_bytes([("a.JPEG", wnid.encode() * 1000)]))
    store = open_store(root)
    store.prepare()
    return store, wnids


def test_few_archives_are_open_at_a_time(root):
    store, wnids = archives_of_one_image(root, archives.MOST_OPEN + 40)
    before = len(os.listdir("/proc/self/fd"))
    for wnid in (*wnids, *wnids[::-1]):
        assert store.read(f"{wnid}/a.JPEG") == wnid.encode() * 1000
    assert len(os.listdir("/proc/self/fd")) <= before + archives.MOST_OPEN


# ---- damaged and hostile archives -------------------------------------------------------------------------


def reason(store, name):
    with pytest.raises(OSError) as caught:
        store.read(name)
    return caught.value.strerror


def damaged(data, member):
    """Return a tar file whose member with this number has a damaged header."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        start = tar.getmembers()[member].offset
    return data[:start] + b"0123456789" + data[start + 10 :]


ONE_CLASS = tar_bytes([(f"{i}.JPEG", bytes(3000)) for i in range(4)])


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("inside", [False, True])
def test_a_tar_file_without_its_end_has_its_own_members_alone(root, inside, n):
    data = tar_bytes([(f"{i}.JPEG", b"x") for i in range(n)])[: 1024 * n]
    packed = tar_bytes([("n01440764.tar", data), ("n02000001/x.JPEG", b"y")])
    (root / ("whole.tar" if inside else "n01440764.tar")).write_bytes(packed if inside else data)
    assert open_store(root).names("n01440764") == [f"n01440764/{i}.JPEG" for i in range(n)]


@pytest.mark.parametrize(
    ("data", "after"),
    [
        (ONE_CLASS[: 3 * 3584 + 900], "3.JPEG"),
        (ONE_CLASS[: 2 * 3584 + 100], "1.JPEG"),
        (damaged(ONE_CLASS, 2), "1.JPEG"),
        (damaged(ONE_CLASS, 1), "0.JPEG"),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_a_tar_file_that_is_damaged_or_cut_off_is_refused(root, data, after, inside):
    """Never are there fewer images without a word; the archive and the last sound member are named."""
    (root / "whole.tar").write_bytes(tar_bytes([("n01440764.tar", data)]))
    if not inside:
        (root / "whole.tar").unlink()
        (root / "n01440764.tar").write_bytes(data)
    where = "whole.tar/n01440764.tar" if inside else "n01440764.tar"
    with pytest.raises(CogError, match=f"{where} cannot be read as a tar file after its member '{after}'"):
        listed(open_store(root))


def test_a_tar_file_in_a_tar_file_in_a_tar_file_is_refused(root):
    inner = tar_bytes([("1.png", b"1"), ("deeper.tar", tar_bytes([("2.png", b"2")]))])
    for name in ("crow", "n01440764"):
        (root / "train.tar").write_bytes(tar_bytes([(f"{name}.tar", inner)]))
        with pytest.raises(CogError, match=f"{name}.tar is inside an archive and has a tar file deeper.tar"):
            listed(open_store(root / "train"))


ELSEWHERE = ("../x.JPEG", "a/../../x.JPEG", "/etc/x.JPEG", f"{'x' * 5000}.JPEG")
#: Archive, its bytes, and what the message says.
UNUSABLE = [
    ("n01440764.tar", b"", "cannot be read as a tar file"),
    ("n01440764.tar", b"<html>login</html>" * 100, "cannot be read as a tar file"),
    ("n01440764.tar", gzip.compress(bytes(2048), mtime=0), "compressed as a whole"),
    ("images.zip", b"", "cannot be read as a zip file"),
    ("images.zip", b"PK\3\4" + bytes(300), "cannot be read as a zip file"),
    ("images.zip", b"not a zip file" * 50, "cannot be read as a zip file"),
    *(
        ("images.tar", tar_bytes([("n01440764/a.JPEG", b"x"), (name, b"x")]), "this is no archive of images")
        for name in ELSEWHERE
    ),
    *(("images.zip", zip_bytes([(name, b"x")]), "this is no archive of images") for name in ELSEWHERE),
    # a member without a name
    ("images.zip", zip_bytes([("x", b"1")]).replace(b"x", b"\0"), "this is no archive of images"),
]


@pytest.mark.parametrize(("file", "data", "message"), UNUSABLE, ids=range(len(UNUSABLE)))
def test_what_is_no_archive_of_images(root, file, data, message):
    (root / file).write_bytes(data)
    with pytest.raises(CogError, match=message):
        listed(open_store(root))


def test_links_devices_and_sparse_members_are_failed_images(root):
    kinds = {
        "link": tarfile.LNKTYPE,
        "symlink": tarfile.SYMTYPE,
        "device": tarfile.CHRTYPE,
        "pipe": tarfile.FIFOTYPE,
    }
    with tarfile.open(root / "n01440764.tar", "w") as tar:
        archive_forms.add(tar, "a.JPEG", b"good")
        for name, kind in kinds.items():
            info = tarfile.TarInfo(f"{name}.JPEG")
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
        info = tarfile.TarInfo("sparse.JPEG")
        info.type = tarfile.GNUTYPE_SPARSE
        header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
        header[483:495] = b"77777777777\0"  # real size: 8 GiB
        header[148:156] = b"        "
        header[148:156] = b"%06o\0 " % sum(header)
        tar.fileobj.write(bytes(header))
        tar.offset += 512
        archive_forms.add(tar, "z.JPEG", b"good, too")
    store = open_store(root)
    assert [name.split("/")[1] for name in listed(store)] == [
        "a.JPEG",
        "device.JPEG",
        "link.JPEG",
        "pipe.JPEG",
        "sparse.JPEG",
        "symlink.JPEG",
        "z.JPEG",
    ]
    assert store.read("n01440764/z.JPEG") == b"good, too"
    for name in (*kinds, "sparse"):
        assert "expected a plain file" in reason(store, f"n01440764/{name}.JPEG")


def raw_header(name, size_field, kind=b"0"):
    header = bytearray(tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT))
    header[124:136] = size_field
    header[156:157] = kind
    header[148:156] = b"        "
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


@pytest.mark.parametrize(
    "size",
    [
        b"77777777777\0",
        b"\x80" + b"\0" * 3 + b"\x7f" * 8,
        b"\x80" + b"\xff" * 11,
        b"\xff" * 12,
        b"\xff" * 10 + b"\xfe\0",
    ],
)
@pytest.mark.parametrize("kind", [b"0", b"L", b"x", b"g"])
def test_sizes_beyond_the_archive(root, size, kind):
    """Of files, names and extended headers; negative ones, too."""
    good = tar_bytes([("a.JPEG", b"x")])[:1024]
    (root / "n01440764.tar").write_bytes(good + raw_header("b.JPEG", size, kind) + bytes(4096))
    start = time.monotonic()
    with pytest.raises(CogError, match="n01440764.tar cannot be read as a tar file"):
        open_store(root).names("n01440764")
    assert time.monotonic() - start < 5


def test_long_headers_take_no_memory(root):
    """A name of 60 MB in a file with holes."""
    path = root / "n01440764.tar"
    path.write_bytes(
        tar_bytes([("a.JPEG", b"x")])[:1024] + raw_header("b.JPEG", b"%011o\0" % 60_000_000, b"L")
    )
    os.truncate(path, 64_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(CogError, match="a header of 60,000,"):
            open_store(root).names("n01440764")
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_bombs_are_failed_images(root, monkeypatch):
    monkeypatch.setattr(archives, "LARGEST_IMAGE", 1 << 20)
    bomb = bytes((1 << 20) + 1)
    with zipfile.ZipFile(root / "images.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("n01440764/bomb.JPEG", bomb)
        archive.writestr("n01440764/largest.JPEG", bomb[1:])
        archive.writestr("n01440764/gzip.JPEG", gzip.compress(bomb))
        archive.writestr("n01440764/stored.JPEG", bomb, zipfile.ZIP_STORED)
    store = open_store(root)
    assert store.read("n01440764/largest.JPEG") == bomb[1:]
    for name in ("bomb", "gzip", "stored"):
        assert reason(store, f"n01440764/{name}.JPEG") == "it has more than 1 MiB, expected an image"
    tiny.write_image(root / "n2/a.png").write_bytes(bomb)
    assert reason(FolderImages(root), "n2/a.png") == "it has more than 1 MiB, expected an image"


def test_damaged_members_of_a_zip_file(root):
    path = root / "images.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("good", "stored", "deflated", "header", "encrypted"):
            kind = zipfile.ZIP_STORED if name == "stored" else zipfile.ZIP_DEFLATED
            archive.writestr(f"n01440764/{name}.JPEG", name.encode() * 50, kind)
        archive.writestr("n01440764/lzma.JPEG", b"x" * 100, zipfile.ZIP_LZMA)
        link = zipfile.ZipInfo("n01440764/link.JPEG")
        link.create_system, link.external_attr = 3, 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
        offsets = {info.filename[10:-5]: info.header_offset for info in archive.infolist()}
    data = bytearray(path.read_bytes())
    data[offsets["stored"] + 70] ^= 1
    data[offsets["deflated"] + 60] ^= 255
    data[offsets["header"]] ^= 1
    directory = data.rindex(b"PK\1\2", 0, data.rindex(b"n01440764/encrypted"))
    struct.pack_into("<H", data, directory + 8, 1)
    path.write_bytes(data)
    store = open_store(root)
    assert store.read("n01440764/good.JPEG") == b"good" * 50
    for name, words in {
        "stored": "CRC-32",
        "deflated": "damaged",
        "header": "header in the zip file is damaged",
        "encrypted": "expected a plain file",
        "lzma": "expected a plain file",
        "link": "expected a plain file",
    }.items():
        assert words in reason(store, f"n01440764/{name}.JPEG")


def test_gzip_members_that_are_damaged(folders, root):
    whole = gzip.compress(b"x" * 5000 + os.urandom(500), mtime=0)
    broken = whole[:100] + bytes([whole[100] ^ 255]) + whole[101:]
    (root / "n01440764.tar").write_bytes(
        tar_bytes(
            [("a.JPEG", whole), ("b.JPEG", broken), ("c.JPEG", whole[:-20]), ("d.JPEG", b"\x1f\x8b\x08")]
        )
    )
    store = open_store(root)
    assert len(store.read("n01440764/a.JPEG")) == 5500
    assert "damaged" in reason(store, "n01440764/b.JPEG")
    assert "end too early" in reason(store, "n01440764/c.JPEG")
    assert "end too early" in reason(store, "n01440764/d.JPEG")
