"""Classes of the ILSVRC-2012 validation images, whose tar file has no class folders.

One of two lists is read in its published form, ``LOC_val_solution.csv`` (Kaggle) or ``ILSVRC2012_devkit_t12.tar.gz``
(image-net.org), from the folder of the archive or its parent. Nothing is unpacked to the disk.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import tarfile
from pathlib import Path
from typing import Any

from cog.data.wnids import is_wnid
from cog.errors import CogError
from cog.runtime import files

SOLUTION_FILE = "LOC_val_solution.csv"
DEVKIT_FILE = "ILSVRC2012_devkit_t12.tar.gz"
FILES = (SOLUTION_FILE, DEVKIT_FILE)

_IMAGE = re.compile(r"ILSVRC2012_val_[0-9]{8}\.[A-Za-z]+")
_META, _TRUTH = "data/meta.mat", "data/ILSVRC2012_validation_ground_truth.txt"
# Limits in bytes; the published files have 2.5 MB, 0.8 MB unpacked, 10 MB.
_MOST_DEVKIT_BYTES, _MOST_MEMBER_BYTES, _MOST_CSV_BYTES = 1 << 26, 1 << 22, 1 << 28


def is_validation_image(file: str) -> bool:
    """Return whether a file has the name of an ILSVRC-2012 validation image."""
    return _IMAGE.fullmatch(file) is not None


def read_labels(archive: Path) -> dict[str, str]:
    """Return the class (WordNet id) of each image, by name without suffix, from the list beside an archive."""
    for folder in (archive.parent, archive.parent.parent):
        for name, reader in ((SOLUTION_FILE, _read_solution), (DEVKIT_FILE, _read_devkit)):
            if (path := folder / name).is_file():
                try:
                    return reader(path)
                except Exception as error:  # scipy raises errors of many types on a damaged file
                    raise CogError(
                        f"{path} cannot be read as the labels of the validation images: "
                        f"{' '.join(str(error).split()) or type(error).__name__}"
                    ) from error
    raise CogError(
        f"{archive} has validation images without class folders; put {DEVKIT_FILE} (image-net.org) or {SOLUTION_FILE} "
        "(Kaggle) beside it"
    )


def _read_solution(path: Path) -> dict[str, str]:
    """Read rows ``ILSVRC2012_val_00000001,n01751748 111 108 353 284 ...``."""
    with files.open_regular(path) as handle:
        text = handle.read(_MOST_CSV_BYTES).decode("utf-8-sig")
    rows = [row for row in csv.reader(io.StringIO(text)) if row][1:]
    labels = {row[0]: row[1].split()[0] for row in rows if len(row) > 1 and row[1].split()}
    return _checked(labels, path)


def _read_devkit(path: Path) -> dict[str, str]:
    """Read the class numbers in the order of the images, and the table of class numbers and WordNet ids."""
    from scipy.io import loadmat

    with files.open_regular(path) as raw, gzip.open(raw) as handle:
        unpacked = handle.read(_MOST_DEVKIT_BYTES)
    members: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(unpacked), mode="r:") as tar:
        for info in tar:
            name = next((name for name in (_META, _TRUTH) if info.name.endswith(f"/{name}")), None)
            if name is not None and info.isreg() and 0 <= info.size <= _MOST_MEMBER_BYTES:
                content = tar.extractfile(info)
                members[name] = content.read() if content is not None else b""
    synsets: Any = loadmat(io.BytesIO(members[_META]), squeeze_me=True, variable_names=["synsets"])["synsets"]
    wnids = {
        int(number): str(wnid) for number, wnid in zip(synsets["ILSVRC2012_ID"], synsets["WNID"], strict=True)
    }
    numbers = [int(line) for line in members[_TRUTH].split()]
    labels = {f"ILSVRC2012_val_{row:08d}": wnids[number] for row, number in enumerate(numbers, start=1)}
    return _checked(labels, path)


def _checked(labels: dict[str, str], path: Path) -> dict[str, str]:
    wrong = next((name for name, label in labels.items() if not is_wnid(label)), None)
    if wrong is not None or not labels:
        raise ValueError(
            f"image {wrong} has the class {labels[wrong]!r}" if wrong else f"no images in {path.name}"
        )
    return labels
