"""Features of other levels, composed of rows that were extracted already: another similarity ranks the concepts in
another order (supplement D).

In the identity of such features, a digest of the concepts and of samples of the source files replaces the digest of the
image list: results from other features, or of other concepts, are refused like those of another extraction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch

from cog import constants
from cog.data.wnids import class_list_digest
from cog.errors import CogError
from cog.features import feature_files
from cog.features.feature_files import FeatureSet
from cog.features.folder import PATHS_FILE, FeatureFolder, no_features, read_image_paths
from cog.paths import ModelDir
from cog.runtime.resume_dir import sample_sha256

#: Entries of the source's features.json that hold for its own extraction only.
_OF_SOURCE = frozenset({"status", "n_failed", "allow_failures", "dataset", "split", "image_list_sha256"})


def regroup(
    source: ModelDir, target: ModelDir, dataset: str, wnids: Sequence[str], *, levels: Sequence[str]
) -> None:
    """Write the training and test features of one new level, ``dataset``; complete features are kept."""
    wnids = sorted(wnids)
    for split in constants.SPLITS:
        sources = [FeatureFolder(source.features(level, split)) for level in levels]
        folder = _target(target, dataset, split, sources, wnids)
        if folder.is_done():
            continue
        name = f"{target.model}_{dataset}_{split}"
        # Opened, not loaded: all levels together take 45 GB.
        features = [feature_files.open_file(source.features_file, mapped=True) for source in sources]
        names, rows_of = _rows_of_concepts(sources, features)
        absent = [wnid for wnid in wnids if wnid not in rows_of]
        if absent:
            raise CogError(
                f"there are no features of {len(absent)} of {len(wnids)} concepts of {name} ({absent[0]}); build these "
                "levels with --rerank, from the concepts whose features are there"
            )
        rows = np.array([row for wnid in wnids for row in rows_of[wnid]], dtype=np.int64)
        y = torch.from_numpy(np.repeat(np.arange(len(wnids)), [len(rows_of[wnid]) for wnid in wnids]))
        x = torch.empty(len(rows), features[0].x.shape[1])
        first = 0
        for part in features:
            is_here = (rows >= first) & (rows < first + len(part))
            x[torch.from_numpy(is_here)] = part.x[torch.from_numpy(rows[is_here] - first)].float()
            first += len(part)
        metadata = {
            "n_images": len(rows),
            "n_rows": len(rows),
            "n_classes": len(wnids),
            "class_list_sha256": class_list_digest(wnids),
            "regrouped": True,
        }
        with folder.claim() as claim:
            if not claim.is_done():
                folder.publish(
                    claim,
                    FeatureSet(x, y, name),
                    metadata=metadata,
                    image_paths=[names[row] for row in rows],
                    failures=[],
                )


def _rows_of_concepts(
    sources: Sequence[FeatureFolder], features: Sequence[FeatureSet]
) -> tuple[list[str], dict[str, list[int]]]:
    """Return the names of the images of all files together, and the rows of each concept among them."""
    names: list[str] = []
    rows_of: dict[str, list[int]] = {}
    for source, part in zip(sources, features, strict=True):
        paths = read_image_paths(source.features_file, n_rows=len(part))
        if paths is None:
            raise CogError(
                f"{source.path / PATHS_FILE} does not exist: it is not known which concept a row shows; extract the "
                "features again (--overwrite)"
            )
        rows_here: dict[str, list[int]] = {}
        for row, path in enumerate(paths, start=len(names)):
            rows_here.setdefault(path.split("/")[0], []).append(row)
        rows_of |= rows_here
        names += paths
    return names, rows_of


def _target(
    model_dir: ModelDir, dataset: str, split: str, sources: Sequence[FeatureFolder], wnids: Sequence[str]
) -> FeatureFolder:
    """Return the folder of the features of concepts from ``sources``, with the settings of the first."""
    digest = hashlib.sha256(" ".join(wnids).encode())
    for source in sources:
        if not source.is_complete():
            raise no_features(source.features_file)
        digest.update(sample_sha256(source.features_file).encode())
    made = {key: value for key, value in (sources[0].metadata() or {}).items() if key not in _OF_SOURCE}
    changed = {
        "dataset": dataset,
        "split": split,
        "save_dtype": "float32",
        "image_list_sha256": digest.hexdigest(),
    }
    return FeatureFolder(model_dir.features(dataset, split), made | changed)
