"""Images in archives are the images of the folders that were packed."""

import gzip
import io
import os
import shutil
import struct
import tarfile
import zipfile
from functools import partial

import archive_forms
import numpy as np
import pytest
import tiny
from archive_forms import FORMS, tar_bytes, zip_bytes

from cog.commands import extract_features
from cog.data import archives, datasets, images
from cog.data.images import find_images
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


@pytest.fixture
def root(tmp_path):
    (tmp_path / "images").mkdir()
    return tmp_path / "images"


def contents(root, wanted=None) -> dict[str, bytes]:
    """Return the bytes of all images by name."""
    found = find_images(root, wanted).image_list("birds", "train")
    return {found.file(row): found.read(row) for row in range(len(found))}


@pytest.mark.parametrize("form", FORMS)
def test_names_bytes_and_lists_are_those_of_the_folders(form, folders, root):
    FORMS[form](folders, root)
    for _ in range(2):  # from the headers, and from the index
        assert find_images(root).images == find_images(folders).images and not find_images(root).unread
        assert contents(root) == contents(folders)
    assert contents(root, WNIDS[1:2]) == contents(folders, WNIDS[1:2])
    assert find_images(root, ["n00000000"]).images == {"n00000000": []}
    with pytest.raises(FileNotFoundError):
        find_images(root).image_list("birds", "train", {WNIDS[0]: [f"{WNIDS[0]}/0.JPEG"]}).read(0)


def test_features_are_equal_bit_for_bit(folders, root, tmp_path):
    """Of class folders and of archives, through the command."""
    loader, found = tiny.write_loader(tmp_path / "net.py"), set()
    for form in ("folders", "tar_per_class", "tar_of_tars", "gzipped_members", "zip_deflated", "shards"):
        place, output = root / form / "train", tmp_path / form
        place.mkdir(parents=True)
        FORMS.get(form, partial(shutil.copytree, dirs_exist_ok=True))(folders, place)
        words = f"--model tiny_net --model_loader {loader}:load_my_model --dataset birds --split train"
        words += f" --images_root {place.parent} --output_dir {output} FT_EXTRACT.N_WORKERS 0"
        assert extract_features.main(words.split()) == 0
        found.add((output / "X_Y.pth").read_bytes())
    assert len(found) == 1


# ---- ILSVRC-2012


def write_solution(root, wnids):
    rows = [f"ILSVRC2012_val_{i:08d},{wnid} 1 2 3 4 {wnid} 5 6 7 8 " for i, wnid in enumerate(wnids, start=1)]
    (root / "LOC_val_solution.csv").write_text("\n".join(["ImageId,PredictionString", *rows[::-1]]) + "\n")


def write_devkit(root, wnids):
    """Class numbers that are not the sorted order, and numbers of inner nodes behind them."""
    from scipy.io import savemat

    table = [WNIDS[2], WNIDS[0], WNIDS[3], WNIDS[1], "n00001740"]
    synsets = np.zeros(len(table), dtype=[("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O")])
    for row, wnid in enumerate(table):
        synsets[row] = (np.int16(row + 1), wnid, "some words")
    meta = io.BytesIO()
    savemat(meta, {"synsets": synsets[:, None]})
    truth = "".join(f"{table.index(wnid) + 1}\n" for wnid in wnids)
    files = {"readme.txt": b"x", "data/meta.mat": meta.getvalue()}
    files |= {"data/ILSVRC2012_validation_ground_truth.txt": truth.encode()}
    data = tar_bytes((f"ILSVRC2012_devkit_t12/{name}", data) for name, data in files.items())
    (root / "ILSVRC2012_devkit_t12.tar.gz").write_bytes(gzip.compress(data))


@pytest.mark.parametrize("write_labels", [write_solution, write_devkit])
def test_the_distributed_tars_of_ilsvrc2012(folders, root, write_labels):
    archive_forms.tar_of_tars(folders, root, name="ILSVRC2012_img_train")
    archive_forms.tar_of_tars(folders, root, name="ILSVRC2012_img_train_t3")  # of another task
    paths = sorted(folders.glob("*/*"), key=lambda path: path.name[::-1])
    members = [(f"ILSVRC2012_val_{i:08d}.JPEG", path.read_bytes()) for i, path in enumerate(paths, start=1)]
    (root / "ILSVRC2012_img_val.tar").write_bytes(tar_bytes(members[::-1]))
    wnids, values = [path.parent.name for path in paths], {"in1k_images_root": str(root)}
    with pytest.raises(CogError, match="without class folders; put ILSVRC2012_devkit_t12.tar.gz"):
        datasets.find("in1k").images("in1k", "test", values)
    write_labels(root, wnids)
    train, test = (datasets.find("in1k").images("in1k", split, values) for split in ("train", "test"))
    assert train.digest() == images.from_class_folders("in1k", "train", folders, flag="").digest()
    assert test.classes == WNIDS and test.root == root / "val" and len(test) == 20
    expected = sorted((wnid, f"ILSVRC2012_val_{i:08d}.JPEG") for i, wnid in enumerate(wnids, start=1))
    assert [test.file(row) for row in range(20)] == [f"{wnid}/{file}" for wnid, file in expected]
    assert sorted(map(test.read, range(20))) == sorted(contents(folders).values())
    write_labels(root, wnids[::-1])  # other labels make the index anew
    assert datasets.find("in1k").images("in1k", "test", values).digest() != test.digest()
    write_labels(root, wnids[1:])
    with pytest.raises(CogError, match="which the labels beside it lack"):
        find_images(root / "val")
    (path,) = (path for path in root.iterdir() if path.suffix != ".tar")
    damaged_kit = gzip.compress(tar_bytes([("meta.mat", b"M")]))
    for content in b"", b"ImageId,PredictionString\nx,cat 1 2\n", damaged_kit:
        path.write_bytes(content)
        with pytest.raises(CogError, match=f"{path.name} cannot be read as labels"):
            find_images(root / "val")


# ---- the index


@pytest.mark.parametrize("cut", [None, -40, 0])
def test_archives_are_indexed_once_and_when_needed(folders, root, tmp_path, monkeypatch, cut, caplog):
    """Again if the index is damaged, or cannot be kept."""
    scans, scan, cache = [], archives.members, tmp_path / "cache"
    monkeypatch.setattr(archives, "members", lambda *args: scans.append(args[0]) or scan(*args))
    monkeypatch.setenv("COG_CACHE_DIR", str(cache))
    archive_forms.tar_per_class(folders, root)
    assert find_images(root, WNIDS[:2]).images
    assert sorted(scans) == [str(root / f"{wnid}.tar") for wnid in WNIDS[:2]]
    (old,) = cache.iterdir()
    assert contents(root) == contents(folders) and contents(root) and len(scans) == 6
    (index,) = {*cache.iterdir()} - {old}  # nothing half-written
    data = bytearray(index.read_bytes())
    data[-400] ^= 1
    index.write_bytes(data[:cut])
    assert contents(root) == contents(folders) and len(scans) == 10
    shutil.rmtree(cache)
    cache.touch()
    assert contents(root) == contents(folders) and len(scans) == 14
    assert "the index of the images is not kept for the next command" in caplog.text
    assert not [path for path in root.iterdir() if path.suffix != ".tar"]


@pytest.mark.parametrize("change", ["size", "time"])
def test_an_archive_that_changed_is_indexed_anew_and_is_no_wrong_image(folders, root, change):
    archive_forms.tar_per_class(folders, root)
    before, path = find_images(root).image_list("", ""), root / f"{WNIDS[1]}.tar"
    members = {f"{WNIDS[1]}_0.JPEG": b"new", "other.JPEG": b"12345"}
    status, data = path.stat(), tar_bytes(members.items())
    path.write_bytes(data + bytes(10240) if change == "size" else data.ljust(status.st_size, b"\0"))
    os.utime(path, ns=(0, status.st_mtime_ns + (change == "time")))
    assert contents(root, WNIDS[1:2]) == {f"{WNIDS[1]}/{name}": data for name, data in members.items()}
    with pytest.raises(OSError, match="has changed since it was indexed"):
        before.read(5)


# ---- damaged and hostile archives


def damaged(data, member):
    """Return a tar file whose member with this number has a damaged header."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        start = tar.getmembers()[member].offset
    return data[:start] + b"0123456789" + data[start + 10 :]


ONE_CLASS = tar_bytes([(f"{i}.JPEG", bytes(3000)) for i in range(4)])


@pytest.mark.parametrize("inside", [False, True])
def test_a_tar_file_that_is_damaged_or_cut_off_is_refused(root, inside):
    """Never are there fewer images without a word; the archive and the last sound member are named."""
    path = root / ("whole.tar" if inside else "n01440764.tar")
    message = f"{'whole.tar/' * inside}n01440764.tar cannot be read as a tar file after its member "
    cut = {ONE_CLASS[: 3 * 3584 + 900]: "3.JPEG", ONE_CLASS[: 2 * 3584 + 100]: "1.JPEG"}
    for data, after in (cut | {damaged(ONE_CLASS, 2): "1.JPEG", damaged(ONE_CLASS, 1): "0.JPEG"}).items():
        path.write_bytes(tar_bytes([("n01440764.tar", data)]) if inside else data)
        with pytest.raises(CogError, match=f"{message}'{after}'"):
            find_images(root)
    whole = ONE_CLASS[: 4 * 3584]  # without blocks of zeros at its end
    path.write_bytes(tar_bytes([("n01440764.tar", whole)]) if inside else whole)
    assert len(contents(root)) == 4


ELSEWHERE = ("../x.JPEG", "a/../../x.JPEG", "/etc/x.JPEG", f"{'x' * 5000}.JPEG")
DEEP = tar_bytes([("1.png", b"1"), ("deeper.tar", tar_bytes([("2.png", b"2")]))])
NO_TAR = b"", b"<html>login</html>" * 100, gzip.compress(bytes(2048))
#: Archive, its bytes, and what the message says.
UNUSABLE = [
    *(("n01440764.tar", data, "cannot be read as a tar file") for data in NO_TAR),
    *(("a.tar", tar_bytes([(n, DEEP)]), "has a tar file deeper.tar") for n in ("n01440764.tar", "b.tar")),
    *(("images.zip", data, "cannot be read as a zip file") for data in (b"", b"PK\3\4" + bytes(300))),
    *(("images.tar", tar_bytes([("a.JPEG", b""), (n, b"")]), "names no file in it") for n in ELSEWHERE),
    *(("images.zip", zip_bytes([(name, b"x")]), "names no file in it") for name in ELSEWHERE),
    ("images.zip", zip_bytes([("x", b"1")]).replace(b"x", b"\0"), "names no file in it"),  # without a name
]


@pytest.mark.parametrize(("file", "data", "message"), UNUSABLE, ids=range(len(UNUSABLE)))
def test_what_is_no_archive_of_images(root, file, data, message):
    (root / file).write_bytes(data)
    with pytest.raises(CogError, match=message):
        find_images(root)


def header(name, size_field, kind=b"0"):
    """Return the header of a member."""
    data = bytearray(tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT))
    data[124:136], data[156:157], data[148:156] = size_field, kind, b"        "
    data[148:156] = b"%06o\0 " % sum(data)
    return bytes(data)


SIZES = (b"7" * 11 + b"\0", b"\x80" + b"\xff" * 11, b"\xff" * 12, b"\xff" * 10 + b"\xfe\0")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", [b"0", b"L", b"x", b"g"])
def test_sizes_beyond_the_archive(root, size, kind):
    """Of files, names and extended headers; negative ones, too."""
    good = tar_bytes([("a.JPEG", b"x")])[:1024]
    (root / "n01440764.tar").write_bytes(good + header("b.JPEG", size, kind) + bytes(4096))
    with pytest.raises(CogError, match="n01440764.tar cannot be read as a tar file"):
        find_images(root)


def reasons(root) -> dict[str, str]:
    """Return why images cannot be read, by the stem of the name; their number of bytes for those that can."""
    found, told = find_images(root).image_list("", ""), {}
    for row in range(len(found)):
        try:
            told[found.file(row)[10:-5]] = f"{len(found.read(row))} bytes"
        except OSError as error:
            told[found.file(row)[10:-5]] = error.strerror
    return told


def test_members_that_are_no_files_are_failed_images(root):
    kinds = {"link": b"1", "symlink": b"2", "device": b"3", "pipe": b"6"}
    parts = [header(f"{name}.JPEG", b"%011o\0" % 0, kind) for name, kind in kinds.items()]
    sparse = bytearray(header("sparse.JPEG", b"%011o\0" % 0, b"S"))
    sparse[257:265], sparse[483:495], sparse[148:156] = b"ustar  \0", b"77777777777\0", b"        "
    sparse[148:156] = b"%06o\0 " % sum(sparse)
    good = tar_bytes([("a.JPEG", b"good")])
    (root / "n01440764.tar").write_bytes(b"".join([*parts, bytes(sparse), good]))
    told = reasons(root)
    assert told.pop("a") == "4 bytes" and told.keys() == {*kinds, "sparse"}
    assert all("no plain file" in reason for reason in told.values())


def test_bombs_are_failed_images(root, monkeypatch):
    monkeypatch.setattr(archives, "LARGEST_IMAGE", 1 << 20)
    bomb = bytes((1 << 20) + 1)
    members = {"bomb": bomb, "largest": bomb[1:], "gzip": gzip.compress(bomb)}
    packed = [(f"n01440764/{name}.JPEG", data) for name, data in members.items()]
    (root / "images.zip").write_bytes(zip_bytes(packed, zipfile.ZIP_DEFLATED))
    (root / "more.zip").write_bytes(zip_bytes([("n01440764/stored.JPEG", bomb)]))
    largest = "more than 1 MiB"
    assert reasons(root) == {"bomb": largest, "gzip": largest, "stored": largest, "largest": "1048576 bytes"}
    (root / "n01440764").mkdir()
    (root / "n01440764/a.JPEG").write_bytes(bomb)
    assert reasons(root) == {"a": largest}


def test_damaged_members(root):
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
    whole = gzip.compress(b"x" * 5000 + os.urandom(500))
    broken = whole[:100] + bytes([whole[100] ^ 255]) + whole[101:]
    gzipped = {"gzip": whole, "broken": broken, "cut": whole[:-20], "short": b"\x1f\x8b\x08"}
    (root / "n01440764.tar").write_bytes(tar_bytes((f"{name}.JPEG", each) for name, each in gzipped.items()))
    words = {
        "good": "200 bytes",
        "gzip": "5500 bytes",
        **dict.fromkeys(("stored", "deflated", "header", "broken"), "damaged"),
        **dict.fromkeys(("encrypted", "lzma", "link"), "no plain file"),
        **dict.fromkeys(("cut", "short"), "end too early"),
    }
    told = reasons(root)
    assert told.keys() == words.keys() and all(words[name] in told[name] for name in words), told
