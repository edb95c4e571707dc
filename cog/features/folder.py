"""The folder of the features of one split, ``features_<split>/``: its files, and what identifies them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cog.constants import FEATURES_FILE, FEATURES_RECORD, IMAGE_PATHS_FILE
from cog.errors import CogError, did_you_mean
from cog.runtime import files
from cog.runtime.output import Output, differences

#: Lines "<path>\t<reason>" of images that could not be decoded.
FAILURES_FILE = "failed_images.txt"

#: Entries of the identity that must agree for training and test features.
_NETWORK = ("model", "source", "checkpoint_sha256", "loader_sha256", "preprocessing", "pooling")


@dataclass(frozen=True)
class FeatureOutput(Output):
    """The output of an extraction, which is not there without its ``X_Y.pth``: users may delete that."""

    record: str = FEATURES_RECORD
    contents: tuple[str, ...] = (FEATURES_FILE, FEATURES_RECORD, IMAGE_PATHS_FILE, FAILURES_FILE)

    def has_result(self, *, overwrite: bool = False) -> bool:
        """Return whether the result is there, see :class:`Output`."""
        done = super().has_result(overwrite=overwrite)
        if done and not (self.path / FEATURES_FILE).is_file():
            super().has_result(overwrite=True)  # refused beside files of others
            return False
        return done


def read_record(folder: Path) -> dict[str, Any]:
    """Return the contents of features.json; empty without the file (features of the original toolkit)."""
    path = folder / FEATURES_RECORD
    return files.read_object(path) if path.is_file() else {}


def no_features(file: Path, split: str = "") -> CogError:
    """Return the error about a missing ``X_Y.pth``, with the model or data set that was probably meant."""
    dataset = file.parent.parent
    model = dataset.parent
    if model.is_dir():
        near = "" if dataset.is_dir() else did_you_mean(dataset.name, [path.name for path in model.iterdir()])
    else:
        names = [f"{path.parent.name}_{path.name}" for path in model.parent.parent.glob("*/*")]
        near = did_you_mean(f"{model.parent.name}_{model.name}", names)
    return CogError(f"there are no {split} features {file}; run extract_features.py, or check the path{near}")


def read_image_paths(features: Path, *, n_rows: int | None = None) -> list[str] | None:
    """Return the image path of each row of a feature file; None without a list (the original toolkit)."""
    path = features.parent / IMAGE_PATHS_FILE
    if not path.is_file():
        return None
    lines = [os.fsdecode(line) for line in files.contents(path, largest=1 << 31).split(b"\n")[:-1]]
    if n_rows not in (None, len(lines)):
        raise CogError(f"{path} names {len(lines)} images, and {features.name} has {n_rows} rows")
    return lines


def identify_input(file: Path) -> dict[str, Any]:
    """Return the identity in the record of the features in a file, if any, and ``rows_sha256``."""
    record = read_record(file.parent)
    if "rows_sha256" in record:
        return {**record["identity"], "rows_sha256": record["rows_sha256"]}
    from cog.features.feature_files import open_file, rows_digest  # import torch

    return {"rows_sha256": rows_digest(open_file(file))}


def network_differences(made: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return the differences of the networks in two identities, each as ``key: old -> new``.

    Identities without a model (of the original toolkit) do not differ from others.
    """
    if not (made.get("model") and wanted.get("model")):
        return []
    before, after = ({key: each.get(key) for key in _NETWORK} for each in (made, wanted))
    return differences(before, after)


def require_one_network(train: Path, test: Path) -> None:
    """Refuse feature files that different networks or preprocessing made, as far as that is known."""
    made, wanted = (read_record(file.parent).get("identity", {}) for file in (train, test))
    if changed := network_differences(made, wanted):
        raise CogError(
            f"training features {train} and test features {test} were made differently "
            f"({'; '.join(changed)}); extract both with the same model, checkpoint, loader and preprocessing"
        )
