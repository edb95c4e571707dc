"""Features of new data sets, composed of rows that were extracted already.

:func:`resplit` draws another split of the images of a level into training and test images. The published split is one
random draw of 50 test images per concept, and the default everywhere; a draw with seed 3 gives a data set of its own,
``cog_l1_split3``. :func:`regroup` composes other levels of the same concepts: another similarity ranks the concepts in
another order (supplement D).

In the identity of such features, a digest of the arrangement and of samples of the source files replaces the digest of
the image list: results from other features, or in another arrangement, are refused like those of another extraction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from cog import constants
from cog.data import split_files
from cog.data.wnids import class_list_digest
from cog.errors import CogError
from cog.features import feature_files
from cog.features.feature_files import FeatureSet
from cog.features.folder import PATHS_FILE, FeatureFolder, no_features, read_image_paths
from cog.paths import ModelDir, resplit_name
from cog.runtime.resume_dir import sample_sha256

#: Entries of the source's features.json that hold for its own extraction only.
_OF_SOURCE = frozenset({"status", "n_failed", "allow_failures", "dataset", "split", "image_list_sha256"})


def resplit(model_dir: ModelDir, dataset: str, split_seed: int, *, overwrite: bool = False) -> str:
    """Write the features of a data set in another split, and return the name of the new data set.

    Complete features are kept; with ``overwrite``, those that were made differently are replaced.

    Raises:
        CogError: missing features, a data set whose test images are of another collection, another result in a folder.
    """
    if dataset in (constants.IN1K, constants.IN1K_BLURRED):
        raise CogError(
            f"the test images of {dataset} are the official validation images, collected apart from its training "
            "images; a random split of both would be another data set: give levels or data sets of your own"
        )
    target = resplit_name(dataset, split_seed)
    sources = [FeatureFolder(model_dir.features(dataset, split)) for split in constants.SPLITS]
    folders = [
        _target(model_dir, target, split, sources, str(split_seed), like=source, overwrite=overwrite)
        for split, source in zip(constants.SPLITS, sources, strict=True)
    ]
    todo = [folder for folder in folders if not folder.is_done()]
    if not todo:
        return target
    features = [feature_files.load(source.features_file, mapped=True) for source in sources]
    names = _image_names(sources, features)
    labels = torch.cat([part.y for part in features])
    is_test = np.arange(len(labels)) >= len(features[0])
    parts = draw_rows(labels.numpy(), is_test, names, split_seed=split_seed)
    for folder, rows in zip(folders, parts, strict=True):
        if folder in todo:
            name = f"{model_dir.model}_{target}_{folder.identity['split']}"
            _publish(folder, name, features, names, rows, labels[rows], {"split_seed": split_seed})
    return target


def draw_rows(
    labels: np.ndarray, is_test: np.ndarray, names: list[str], *, split_seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draw another split of images, class by class, with the same numbers of test images.

    The draw is that of :func:`cog.data.split_files.draw`: it depends on the seed, the class and the names of its
    images, so it is the same for every model.

    Args:
        labels: class of each image, int64 ``(n,)``.
        is_test: whether each image was a test image, bool ``(n,)``.
        names: name of each image, without repetition.
        split_seed: seed of the draw.

    Returns:
        Rows of the training and of the test images, int64, by class and then by name.
    """
    parts: dict[str, list[int]] = {part: [] for part in split_files.PARTS}
    for label in np.unique(labels).tolist():
        row_of = {names[row]: row for row in np.flatnonzero(labels == label).tolist()}
        n_test = int(is_test[labels == label].sum())
        drawn = split_files.draw(
            list(row_of), wnid=f"n{label:08d}", n_test=n_test, max_train=len(row_of), seed=split_seed
        )
        for part, chosen in drawn.items():
            parts[part] += [row_of[name] for name in chosen.tolist()]
    return np.array(parts["train"], dtype=np.int64), np.array(parts["test"], dtype=np.int64)


def _image_names(sources: Sequence[FeatureFolder], features: Sequence[FeatureSet]) -> list[str]:
    """Return the names of the images of both splits; without lists of images, split and row are the name."""
    train, test = (
        read_image_paths(source.features_file, n_rows=len(part))
        for source, part in zip(sources, features, strict=True)
    )
    if train is None or test is None:
        train, test = (
            [f"{split}/{row:09d}" for row in range(len(part))]
            for split, part in zip(constants.SPLITS, features, strict=True)
        )
    names = [*train, *test]
    if len(set(names)) < len(names):
        raise CogError(
            f"{sources[0].path} and {sources[1].path} share images; they are not splits of one data set"
        )
    return names


def regroup(
    source: ModelDir, target: ModelDir, dataset: str, wnids: Sequence[str], *, levels: Sequence[str]
) -> None:
    """Write the training and test features of one new level, ``dataset``; complete features are kept.

    Args:
        source: folder of the model with the features of ``levels``.
        target: folder of the model among the results on other levels.
        dataset: name of the new level.
        wnids: concepts of the new level.
        levels: data sets that have the features of these concepts.

    Raises:
        CogError: missing features or names of images, a concept without features, another result in a folder.
    """
    wnids = sorted(wnids)
    for split in constants.SPLITS:
        sources = [FeatureFolder(source.features(level, split)) for level in levels]
        folder = _target(target, dataset, split, sources, " ".join(wnids), like=sources[0])
        if folder.is_done():
            continue
        name = f"{target.model}_{dataset}_{split}"
        features = [feature_files.load(source.features_file, mapped=True) for source in sources]
        names, rows_of = _rows_of_concepts(sources, features)
        absent = [wnid for wnid in wnids if wnid not in rows_of]
        if absent:
            raise CogError(
                f"there are no features of {len(absent)} of {len(wnids)} concepts of {name} ({absent[0]}); build these "
                "levels with --rerank, from the concepts whose features are there"
            )
        rows = np.array([row for wnid in wnids for row in rows_of[wnid]], dtype=np.int64)
        facts = {"n_classes": len(wnids), "class_list_sha256": class_list_digest(wnids), "regrouped": True}
        y = torch.from_numpy(np.repeat(np.arange(len(wnids)), [len(rows_of[wnid]) for wnid in wnids]))
        _publish(folder, name, features, names, rows, y, facts)


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


# --- common to both


def _target(
    model_dir: ModelDir,
    dataset: str,
    split: str,
    sources: Sequence[FeatureFolder],
    arrangement: str,
    *,
    like: FeatureFolder,
    overwrite: bool = False,
) -> FeatureFolder:
    """Return the folder of features rearranged from ``sources``, with the settings of ``like``, one of the sources."""
    digest = hashlib.sha256(arrangement.encode())
    for source in sources:
        if not source.is_complete():
            raise no_features(source.features_file)
        digest.update(sample_sha256(source.features_file).encode())
    made = {key: value for key, value in (like.metadata() or {}).items() if key not in _OF_SOURCE}
    changed = {
        "dataset": dataset,
        "split": split,
        "save_dtype": "float32",
        "image_list_sha256": digest.hexdigest(),
    }
    identity = {"decode": "exact"} | made | changed
    return FeatureFolder(model_dir.features(dataset, split), identity, overwrite=overwrite)


def _publish(
    folder: FeatureFolder,
    name: str,
    features: Sequence[FeatureSet],
    names: Sequence[str],
    rows: np.ndarray,
    y: torch.Tensor,
    facts: dict[str, Any],
) -> None:
    """Write rearranged features unless another process has; ``rows`` number the rows of all sources together."""
    with folder.claim() as claim:
        if claim.is_done():
            return
        x = torch.empty(len(rows), features[0].x.shape[1])
        first = 0
        for part in features:
            is_here = (rows >= first) & (rows < first + len(part))
            x[torch.from_numpy(is_here)] = part.x[torch.from_numpy(rows[is_here] - first)].float()
            first += len(part)
        metadata = {"n_images": len(rows), "n_rows": len(rows)} | facts
        paths = [names[row] for row in rows]
        folder.publish(claim, FeatureSet(x, y, name), metadata=metadata, image_paths=paths, failures=[])
