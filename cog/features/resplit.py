"""Repeated splits: features of a level divided anew into training and test images, without another extraction.

The published split is one random draw of 50 test images per concept, and the default everywhere. A draw with another
seed becomes a data set of its own, ``cog_l1_split3``, in which every class has as many test images as before, out of
the same images.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch

from cog import constants
from cog.data import split_files
from cog.errors import CogError
from cog.features import feature_files
from cog.features.feature_files import FeatureSet
from cog.features.folder import PATHS_FILE, FeatureFolder
from cog.paths import ModelDir
from cog.runtime.resume_dir import sample_sha256


def split_dataset(dataset: str, split_seed: int) -> str:
    """Return the name of a data set under another split."""
    return f"{dataset}_split{split_seed}"


def draw_rows(
    labels: np.ndarray, is_test: np.ndarray, names: list[str], *, split_seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Divide images anew, class by class, with as many test images as before.

    The draw is that of :func:`cog.data.split_files.draw`: it depends on the seed, the class and the names of its
    images, so it is the same for every model.

    Args:
        labels: class of each image, int64 ``(n,)``.
        is_test: whether it was a test image, bool ``(n,)``.
        names: name of each image, without repetition.
        split_seed: seed of the draw.

    Returns:
        Positions of the training and of the test images, int64, by class and then by name.
    """
    parts: dict[str, list[int]] = {part: [] for part in split_files.PARTS}
    for label in np.unique(labels).tolist():
        rows = np.flatnonzero(labels == label).tolist()
        place = {names[row]: row for row in rows}
        drawn = split_files.draw(
            list(place),
            wnid=f"n{label:08d}",
            n_test=int(is_test[rows].sum()),
            max_train=len(rows),
            seed=split_seed,
        )
        for part, chosen in drawn.items():
            parts[part] += [place[name] for name in chosen.tolist()]
    return np.array(parts["train"], dtype=np.int64), np.array(parts["test"], dtype=np.int64)


def resplit(model_dir: ModelDir, dataset: str, split_seed: int, *, overwrite: bool = False) -> str:
    """Write the features of a data set under another split; complete ones are kept.

    Both splits are read into memory, one new one is made at a time.

    Args:
        model_dir: the model's folder.
        dataset: data set whose features of both splits are there.
        split_seed: seed of the draw.
        overwrite: whether to replace features that were made differently.

    Returns:
        The name of the new data set.

    Raises:
        CogError: missing features, a data set whose test images are of another collection, another result there.
    """
    if dataset in (constants.IN1K, constants.IN1K_BLURRED):
        raise CogError(
            f"the test images of {dataset} are the official validation images, collected apart from its training "
            "images; a random split of both would be another data set: give levels or data sets of your own"
        )
    target = split_dataset(dataset, split_seed)
    sources = {part: FeatureFolder(model_dir.features(dataset, part)) for part in split_files.PARTS}
    for part, source in sources.items():
        if not source.is_complete():
            raise CogError(
                f"there are no {part} features {source.features_file}; run extract_features.py first"
            )
    folders = {
        part: FeatureFolder(
            model_dir.features(target, part),
            _identity(sources, part, target, split_seed),
            overwrite=overwrite,
        )
        for part in split_files.PARTS
    }
    todo = [part for part, folder in folders.items() if not folder.is_done()]
    if not todo:
        return target
    features = {part: feature_files.load(source.features_file) for part, source in sources.items()}
    train, test = features["train"], features["test"]
    names = _image_names(sources, features)
    labels = torch.cat([train.y, test.y])
    is_test = np.arange(len(labels)) >= len(train)
    rows = dict(
        zip(split_files.PARTS, draw_rows(labels.numpy(), is_test, names, split_seed=split_seed), strict=True)
    )
    for part in todo:
        with folders[part].claim() as claim:
            if claim.is_done():
                continue
            chosen = torch.from_numpy(rows[part])
            x = torch.empty(len(chosen), train.x.shape[1])
            old = chosen >= len(train)
            x[~old] = train.x[chosen[~old]]
            x[old] = test.x[chosen[old] - len(train)]
            made = FeatureSet(x, labels[chosen], f"{model_dir.model}_{target}_{part}")
            paths = [names[row] for row in rows[part].tolist()]
            metadata = {
                key: value for key, value in (sources[part].metadata() or {}).items() if key not in _OWN
            }
            metadata |= {"n_images": len(chosen), "n_rows": len(chosen), "split_seed": split_seed}
            with claim.publish() as stage:
                folders[part].write(
                    stage, made, metadata=metadata | folders[part].identity, image_paths=paths, failures=[]
                )
    return target


#: Entries of features.json that are written anew.
_OWN = frozenset({"status", "n_failed", "allow_failures", "dataset", "split", "image_list_sha256"})


def _identity(sources: dict[str, FeatureFolder], part: str, target: str, split_seed: int) -> dict[str, Any]:
    """Return what makes two divided feature sets the same: both sources, and the seed."""
    made = sources[part].metadata() or {}
    digest = hashlib.sha256(str(split_seed).encode())
    for source in sources.values():
        digest.update(sample_sha256(source.features_file).encode())
    own = {"dataset": target, "split": part, "save_dtype": "float32", "image_list_sha256": digest.hexdigest()}
    return {"decode": "exact"} | made | own


def _image_names(sources: dict[str, FeatureFolder], features: dict[str, FeatureSet]) -> list[str]:
    """Return the names of the images of both splits; where none are known, their rows in place of them.

    Raises:
        CogError: names that do not fit the features.
    """
    names: list[str] = []
    for part, source in sources.items():
        file = source.path / PATHS_FILE
        n = len(features[part])
        if all((other.path / PATHS_FILE).is_file() for other in sources.values()):
            own = file.read_text(encoding="utf-8", errors="surrogateescape").split("\n")[:-1]
        else:
            own = [f"{part}/{row:09d}" for row in range(n)]
        if len(own) != n:
            raise CogError(
                f"{file} names {len(own)} images, and there are {n} rows; extract the features again"
            )
        names += own
    if len(set(names)) < len(names):
        raise CogError(
            f"{sources['train'].path} and {sources['test'].path} share images; they are not splits of one data set"
        )
    return names
