"""The folder of the features of one split, ``features_<split>/``: what identifies it, derived ones."""

import functools
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cog.constants import FEATURES_FILE, FEATURES_RECORD, IMAGE_PATHS_FILE, SPLITS
from cog.data.wnids import class_list_digest
from cog.errors import CogError
from cog.paths import ModelDir
from cog.runtime import files
from cog.runtime.output import Output, differences

FAILURES_FILE = "failed_images.txt"  # path, reason

#: Entries of the identity that must agree for training and test features.
_NETWORK = ("model", "source", "checkpoint_sha256", "loader_sha256", "preprocessing", "pooling")


@dataclass
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
    record = files.read_object(path) if path.is_file() else {}
    return record if isinstance(record.get("identity", {}), dict) else {}


def no_features(file: Path, split: str) -> CogError:
    """Return the error about a missing ``X_Y.pth``."""
    return CogError(f"there are no {split} features {file}; run extract_features.py, or check the path")


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
    digest = record.get("rows_sha256")
    if digest is None or os.path.getmtime(file) > os.path.getmtime(file.with_name(FEATURES_RECORD)):
        from cog.features.feature_files import open_file, rows_digest  # import torch

        digest = rows_digest(open_file(file))  # the file may have been replaced
    return {**record.get("identity", {}), "rows_sha256": digest}


def network_differences(made: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return the differences of the networks, if they are known, in two identities: ``key: old -> new``."""
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


def derive(
    place: Path, name: str, sources: Sequence[Path], how: dict[str, Any], compute: Callable[[], tuple]
) -> None:
    """Write features into the folder ``place`` that are computed from files; complete ones are kept.

    The record of the first source is continued. ``how`` determines the computation, in types of JSON. Its
    result: ``x`` float32 (n, D), ``y`` (n,), paths of images if known, entries of the record that differ.
    """
    from cog.features import feature_files  # imports torch

    inputs = [identify_input(source)["rows_sha256"] for source in sources]
    made = read_record(sources[0].parent)
    digest = hashlib.sha256(f"{how} {inputs}".encode()).hexdigest()
    of = {"dataset": place.parent.name, "split": place.name.removeprefix("features_")}
    own = {"image_list_sha256": digest, "derivation": how, "save_dtype": "float32"}
    identity = {**made.get("identity", {}), **of, **own}
    output = FeatureOutput(place, identity)
    if not output.is_done():
        x, y, paths, facts = compute()
        record = {**made, "n_images": len(x), "n_failed": 0, **facts, "identity": identity}
        with output.claimed():
            if not output.is_published:
                with output.publish() as stage:
                    feature_files.write(stage, feature_files.FeatureSet(x, y, name), record, paths)


def regroup(
    source: ModelDir, target: ModelDir, dataset: str, wnids: Sequence[str], *, levels: Sequence[str]
) -> None:
    """Write the features of one new level from the rows of ``levels`` (supplement D: other similarities)."""
    wnids = sorted(wnids)
    for split in SPLITS:
        sources = [source.features_file(level, split) for level in levels]
        place, compute = target.features(dataset, split), functools.partial(_rows_of, wnids, sources)
        derive(place, f"{target.model}_{dataset}_{split}", sources, {"rows_of": wnids}, compute)


def _rows_of(wnids: Sequence[str], sources: Sequence[Path]) -> tuple[Any, Any, list[str], dict[str, Any]]:
    import torch

    from cog.features import feature_files

    rows_of: dict[str, list[tuple[Any, int, str]]] = {wnid: [] for wnid in wnids}
    for path in sources:
        part = feature_files.open_file(path)  # not loaded: all levels together take 45 GB
        names = read_image_paths(path, n_rows=len(part))
        if names is None:
            raise CogError(f"{path.parent / IMAGE_PATHS_FILE} does not exist; extract the features again")
        for row, name in enumerate(names):
            rows_of.get(name.split("/")[0], []).append((part, row, name))
    if absent := [wnid for wnid in wnids if not rows_of[wnid]]:
        text = "build these levels with --rerank, from the concepts whose features are there"
        raise CogError(f"no features of {len(absent)} of {len(wnids)} concepts ({absent[0]}); {text}")
    chosen = [entry for wnid in wnids for entry in rows_of[wnid]]
    x = torch.stack([part.x[row] for part, row, _ in chosen]).float()
    y = torch.repeat_interleave(torch.tensor([len(rows_of[wnid]) for wnid in wnids]))
    facts = {"n_classes": len(wnids), "class_list_sha256": class_list_digest(wnids)}
    return x, y, [name for *_, name in chosen], facts
