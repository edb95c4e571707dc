"""The same images in all forms of :func:`cog.data.images.open_store`: each function packs a folder of class folders."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add a member to a tar file."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def tar_bytes(members: Iterable[tuple[str, bytes]]) -> bytes:
    """Return the bytes of a tar file with named members."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in members:
            add(tar, name, data)
    return buffer.getvalue()


def zip_bytes(members: Iterable[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return the bytes of a zip file with named members."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


def classes(folder: Path) -> list[Path]:
    """Return the class folders in reverse order."""
    return sorted(folder.iterdir(), reverse=True)


def images(folder: Path) -> list[tuple[str, bytes]]:
    """Return ``<class>/<file>`` and bytes of all images, in reverse order."""
    return [
        (f"{path.parent.name}/{path.name}", path.read_bytes())
        for path in sorted(folder.glob("*/*"), reverse=True)
    ]


def tar_per_class(folder: Path, root: Path, *, prefix: str = "") -> None:
    """Write a tar file per class, as ImageNet-21K is distributed: ``n01440764.tar`` with ``n01440764_10026.JPEG``."""
    for path in classes(folder):
        members = [
            (f"{prefix.format(path.name)}{file.name}", file.read_bytes()) for file in sorted(path.iterdir())
        ]
        (root / f"{path.name}.tar").write_bytes(tar_bytes(members))


def tar_per_class_with_folders(folder: Path, root: Path) -> None:
    """Write a tar file per class with the class folder inside."""
    tar_per_class(folder, root, prefix="./{}/")


def gzipped_members(folder: Path, root: Path) -> None:
    """Write a tar file per class with every second image compressed, as some images of ImageNet-21K are."""
    for path in classes(folder):
        contents = [(file.name, file.read_bytes()) for file in sorted(path.iterdir())]
        members = [
            (name, gzip.compress(data, mtime=0) if index % 2 else data)
            for index, (name, data) in enumerate(contents)
        ]
        (root / f"{path.name}.tar").write_bytes(tar_bytes(members))


def tar_of_tars(folder: Path, root: Path, *, name: str = "fall11_whole") -> None:
    """Write a tar file with a tar file per class inside, as ``ILSVRC2012_img_train.tar``."""
    members = [
        (f"{path.name}.tar", tar_bytes((file.name, file.read_bytes()) for file in sorted(path.iterdir())))
        for path in classes(folder)
    ]
    (root / f"{name}.tar").write_bytes(tar_bytes(members))


def tar_of_folders(folder: Path, root: Path) -> None:
    """Write one tar file with class folders, in GNU's format with long names and a folder above the classes."""
    with tarfile.open(root / "everything.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        tar.add(folder, f"{'a' * 120}/images")


def zip_stored(folder: Path, root: Path) -> None:
    """Write one uncompressed zip file, with entries for folders and extra fields in the headers."""
    with zipfile.ZipFile(root / "images.zip", "w", zipfile.ZIP_STORED) as archive:
        for path in classes(folder):
            archive.writestr(f"{path.name}/", b"")
        for name, data in images(folder):
            info = zipfile.ZipInfo(name)
            info.extra = b"UT\x05\x00\x01abcd"
            archive.writestr(info, data)


def zip_deflated(folder: Path, root: Path) -> None:
    """Write one compressed zip file with the sizes after the data, as from a pipe."""

    class Pipe(io.RawIOBase):
        def __init__(self, path: Path) -> None:
            self.file = path.open("wb")

        def writable(self) -> bool:
            return True

        def write(self, data) -> int:
            return self.file.write(data)

        def close(self) -> None:
            self.file.close()
            super().close()

    with Pipe(root / "images.zip") as pipe, zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in images(folder):
            archive.writestr(f"images/{name}", data)


def shards(folder: Path, root: Path, *, label: str = "key", name: str = "imagenet22k-train") -> None:
    """Write two WebDataset shards of mixed classes.

    Args:
        folder: class folders.
        root: output folder.
        label: place of the class: in the ``key``, as ``folder`` of the key, in the ``json``, as ``number`` in the
            ``.cls`` with ``classes.txt``, or as ``text`` in the ``.cls``.
        name: beginning of the names of the shards.
    """
    order = sorted(path.name for path in folder.iterdir())
    samples: list[list[tuple[str, bytes]]] = [[], []]
    for index, (path, data) in enumerate(images(folder)):
        wnid, file = path.split("/")
        stem, suffix = file.split(".")
        key = f"{wnid}/{stem}" if label == "folder" else stem
        extension = "jpg" if suffix == "JPEG" else suffix
        if label == "json":
            sidecar = ("json", json.dumps({"filename": f"{wnid}/{file}", "height": 8}).encode())
        elif label == "text":
            sidecar = ("cls", f"{wnid}\n".encode())
        else:
            sidecar = ("cls", str(order.index(wnid)).encode())
        parts = [(f"{key}.{extension}", data), (f"{key}.{sidecar[0]}", sidecar[1])]
        samples[index % 2] += parts if index % 3 else parts[::-1]
    for number, members in enumerate(samples):
        (root / f"{name}-{number:04d}.tar").write_bytes(tar_bytes(members))
    if label == "number":
        (root / "classes.txt").write_text("\n".join(order) + "\n")


def shards_with_json(folder: Path, root: Path) -> None:
    """Write shards with the class in the JSON file of each sample."""
    shards(folder, root, label="json")


def shards_with_folders(folder: Path, root: Path) -> None:
    """Write shards with the class as folder of the key."""
    shards(folder, root, label="folder")


#: Forms of a root of synsets.
FORMS = {
    form.__name__: form
    for form in (
        tar_per_class,
        tar_per_class_with_folders,
        gzipped_members,
        tar_of_tars,
        tar_of_folders,
        zip_stored,
        zip_deflated,
        shards,
        shards_with_json,
        shards_with_folders,
    )
}
