"""The folder of the features of one split, ``features_<split>/``: its files, their record, and what identifies them.

::

    X_Y.pth            the features, contract of the benchmark
    features.json      their record: "identity" (known before the extraction) and facts about the result
    image_paths.txt    one image path per row of X
    failed_images.txt  "<path>\\t<reason>" per image that could not be decoded (only when there are any)

This module imports torch only to read features without a record.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import constants
from cog.data import datasets
from cog.errors import CogError, did_you_mean, os_errors_explained
from cog.features.rows import rows_digest
from cog.models.choice import did_you_mean_model
from cog.runtime import files
from cog.runtime.output import Output, differences

if TYPE_CHECKING:
    from cog.data.images import ImageList

logger = logging.getLogger(__name__)

METADATA_FILE = "features.json"
PATHS_FILE = "image_paths.txt"
FAILURES_FILE = "failed_images.txt"

#: File that marks features as deleted by a study after its runs; their record stays beside it.
DELETED_FILE = "deleted.json"

CONTENTS = (constants.FEATURES_FILE, METADATA_FILE, PATHS_FILE, FAILURES_FILE, DELETED_FILE)

#: Entries of the identity that must agree for training and test features.
NETWORK = ("model", "source", "checkpoint_sha256", "loader_sha256", "preprocessing", "pooling")

_READERS = 16  # threads that look at images: file systems in a network answer slowly, and many at a time


@dataclasses.dataclass(frozen=True)
class FeatureOutput(Output):
    """The output of an extraction; ``outdated``: start, in its record, of a result to replace by an equal identity."""

    record: str = METADATA_FILE
    contents: tuple[str, ...] = CONTENTS
    outdated: float | None = None

    def unfinished(self) -> dict[str, Any]:
        """Return the identity of unfinished work; empty if there is none."""
        note = self.work / "identity.json"
        return files.read_object(note) if note.exists() else {}

    def is_done(self, *, overwrite: bool = False) -> bool:
        """Return whether the result is there, see :class:`Output`; unfinished work on another result is not touched."""
        is_ours = self.unfinished() == self.identity
        return super().is_done(overwrite=overwrite) if is_ours else self.has_result(overwrite=overwrite)

    def has_result(self, *, overwrite: bool = False) -> bool:
        """Return whether the result is there, see :class:`Output`."""
        done = super().has_result(overwrite=overwrite)
        if done and not (self.path / constants.FEATURES_FILE).is_file():
            # A study may have deleted X_Y.pth and left the record: replaced if there are no files of others.
            super().has_result(overwrite=True)
            return False
        return done and (self.outdated is None or (self.read() or {}).get("started") != self.outdated)


def read_record(folder: Path) -> dict[str, Any]:
    """Return the contents of features.json; empty without the file (features of the original toolkit)."""
    path = folder / METADATA_FILE
    try:
        return files.read_object(path) if path.is_file() else {}
    except CogError as error:
        raise CogError(f"{error}; remove the file, or restore it from a copy") from error


def no_features(file: Path, split: str = "") -> CogError:
    """Return the error about a missing ``X_Y.pth``, with advice."""
    if (file.parent / DELETED_FILE).is_file():
        why = f", deleted by --delete_features of a study ({DELETED_FILE}); run extract_features.py again"
    else:
        dataset = (file if file.name.startswith("features_") else file.parent).parent
        why = f"; run extract_features.py first, or check the path{_did_you_mean(dataset)}"
    return CogError(f"there are no {split} features {file}{why}")  # CogError joins two spaces


def _did_you_mean(dataset: Path) -> str:
    """Return a hint at the model or data set that was probably meant; "" when their folders exist."""
    model = dataset.parent
    root = model.parent.parent
    if model.is_dir():
        known = {path.name for path in model.iterdir() if path.is_dir()} | {*datasets.names()}
        return "" if dataset.name in known else did_you_mean(dataset.name, known)
    others = [f"{path.parent.name}_{path.name}" for path in root.glob("*/*") if path.is_dir()]
    return did_you_mean_model(f"{model.parent.name}_{model.name}", others) if root.is_dir() else ""


def read_image_paths(features: Path, *, n_rows: int | None = None) -> list[str] | None:
    """Return the image path of each row of a feature file; None without a list (the original toolkit wrote none)."""
    path = features.parent / PATHS_FILE
    if not path.is_file():
        return None
    with os_errors_explained(f"cannot read {path}"):
        lines = [os.fsdecode(line) for line in files.contents(path, largest=1 << 31).split(b"\n")[:-1]]
    if n_rows is not None and len(lines) != n_rows:
        raise CogError(
            f"{path} names {len(lines)} images, and {features.name} has {n_rows} rows; extract the features again "
            "(--overwrite)"
        )
    return lines


def identify_input(file: Path) -> dict[str, Any]:
    """Return what identifies the features in a file: the identity in their record, if any, and ``rows_sha256``."""
    record = read_record(file.parent)
    if "rows_sha256" in record:
        return {**record["identity"], "rows_sha256": record["rows_sha256"]}
    from cog.features.feature_files import open_file

    features = open_file(file, mapped=True)
    return {"rows_sha256": rows_digest(features.x, features.y)}


def network_differences(made: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return the differences of the networks in two identities, each as ``key: old -> new``.

    Identities without a model (of the original toolkit) do not differ from others.
    """
    if not (made.get("model") and wanted.get("model")):
        return []
    before, after = ({key: each.get(key) for key in NETWORK} for each in (made, wanted))
    return differences(before, after)


def require_one_network(train: Path, test: Path) -> None:
    """Refuse feature files of both splits that different networks or preprocessing made, as far as that is known.

    A warning tells when test images are training images: the same files.
    """
    of_train, of_test = read_record(train.parent), read_record(test.parent)
    changed = network_differences(of_train.get("identity", {}), of_test.get("identity", {}))
    if changed:
        raise CogError(
            f"training features {train} and test features {test} were made differently ({'; '.join(changed)}); extract "
            "both splits with the same model, checkpoint, loader and preprocessing"
        )
    roots = [
        os.path.realpath(record["images_root"]) for record in (of_train, of_test) if "images_root" in record
    ]
    if len(roots) == 2 and roots[0] == roots[1]:
        images = read_image_paths(test) or []
        n_shared = len({*images}.intersection(read_image_paths(train) or ()))
        if n_shared:
            logger.warning(
                "%d of the %d test images of %s are training images, too: this is no test accuracy",
                n_shared,
                len(images),
                test,
            )


def changed_images(images: ImageList, facts: Mapping[int, tuple[int, int]], since: float) -> list[int]:
    """Return the rows whose images are not those that were read.

    An image has changed if it is missing, or has another size, or is newer and has another checksum (a copy of the same
    images is newer, too).

    Args:
        images: the images.
        facts: size in bytes and checksum of images when they were read, by row.
        since: time before they were read, in seconds since the epoch.
    """

    def has_changed(row: int) -> bool:
        size, checksum = facts[row]
        try:
            stored, changed = images.stat(row)
            return stored != size or (changed > since and zlib.crc32(images.read(row)) != checksum)
        except (OSError, CogError):
            return True

    with ThreadPoolExecutor(_READERS) as pool:
        return [row for row, changed in zip(facts, pool.map(has_changed, facts), strict=True) if changed]
