"""The same images in all forms of archives: each function packs a folder of class folders into a root."""

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path

Members = Iterable[tuple[str, bytes]]


def tar_bytes(members: Members) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def zip_bytes(members: Members, compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return a zip file with extra fields in the headers."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members:
            info = zipfile.ZipInfo(name)
            info.compress_type, info.extra = compression, b"UT\x05\x00\x01abcd"
            archive.writestr(info, data)
    return buffer.getvalue()


def images(folder: Path, prefix: str = "") -> list[tuple[str, bytes]]:
    """Return ``<class>/<file>`` and bytes of all images, in reverse order."""
    paths = sorted(folder.glob("*/*"), reverse=True)
    return [(f"{prefix}{path.parent.name}/{path.name}", path.read_bytes()) for path in paths]


def of_classes(folder: Path, prefix: str = "") -> dict[str, bytes]:
    """Return a tar file per class, as ImageNet-21K is distributed: ``n01440764.tar`` with its images."""
    return {
        f"{path.name}.tar": tar_bytes((f"{prefix}{file.name}", file.read_bytes()) for file in path.iterdir())
        for path in sorted(folder.iterdir(), reverse=True)
    }


def tar_per_class(folder: Path, root: Path, *, prefix: str = "") -> None:
    for name, data in of_classes(folder, prefix).items():
        (root / name).write_bytes(data)


def gzipped_members(folder: Path, root: Path) -> None:
    """Every second image is compressed, as some of ImageNet-21K are."""
    for path in folder.iterdir():
        files = [(file.name, file.read_bytes()) for file in sorted(path.iterdir())]
        packed = [(name, gzip.compress(data) if i % 2 else data) for i, (name, data) in enumerate(files)]
        (root / f"{path.name}.tar").write_bytes(tar_bytes(packed))


def tar_of_tars(folder: Path, root: Path, *, name: str = "fall11_whole") -> None:
    """As ``ILSVRC2012_img_train.tar``."""
    (root / f"{name}.tar").write_bytes(tar_bytes(of_classes(folder).items()))


def tar_of_folders(folder: Path, root: Path) -> None:
    """In GNU's format with long names and a folder above the classes."""
    with tarfile.open(root / "everything.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        tar.add(folder, f"{'a' * 120}/images")


def zip_file(folder: Path, root: Path, *, compression: int) -> None:
    members = [("images/", b""), *images(folder, "images/")]
    (root / "images.zip").write_bytes(zip_bytes(members, compression))


def shards(folder: Path, root: Path, *, label: str = "key", name: str = "imagenet22k-train") -> None:
    """Two WebDataset shards; the class is in the ``key``, its ``folder``, the ``json`` or the ``cls``."""
    samples: list[list[tuple[str, bytes]]] = [[], []]
    for index, (path, data) in enumerate(images(folder)):
        wnid, file = path.split("/")
        key = f"{wnid}/{file[:-5]}" if label == "folder" else file[:-5]
        kind = "json" if label == "json" else "cls"
        text = json.dumps({"filename": path}) if label == "json" else wnid if label == "cls" else "7"
        parts = [(f"{key}.jpg", data), (f"{key}.{kind}", f"{text}\n".encode())]
        samples[index % 2] += parts if index % 3 else parts[::-1]
    for number, members in enumerate(samples):
        (root / f"{name}-{number:04d}.tar").write_bytes(tar_bytes(members))


#: Forms of a root of synsets.
FORMS = {
    "tar_per_class": tar_per_class,
    "tar_per_class_with_folders": partial(tar_per_class, prefix="./images/"),
    "gzipped_members": gzipped_members,
    "tar_of_tars": tar_of_tars,
    "tar_of_folders": tar_of_folders,
    "zip_stored": partial(zip_file, compression=zipfile.ZIP_STORED),
    "zip_deflated": partial(zip_file, compression=zipfile.ZIP_DEFLATED),
    "shards": shards,
    "shards_with_json": partial(shards, label="json"),
    "shards_with_folders": partial(shards, label="folder"),
}
