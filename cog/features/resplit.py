"""Repeated splits: features of a level divided anew into training and test images, without another extraction.

The published split is one random draw of 50 test images per concept, and the default everywhere. A draw with another
seed becomes a data set of its own, ``cog_l1_split3``, in which every class has as many test images as before, out of
the same images.
"""

from __future__ import annotations

import functools

import numpy as np
import torch

from cog import constants
from cog.data import split_files
from cog.errors import CogError
from cog.features import feature_files
from cog.features.feature_files import FeatureSet
from cog.features.folder import FeatureFolder, read_image_paths
from cog.features.rearranged import publish, target_folder
from cog.paths import ModelDir


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
    folders = {
        part: target_folder(
            model_dir, target, part, sources.values(), str(split_seed), like=source, overwrite=overwrite
        )
        for part, source in sources.items()
    }
    todo = [part for part, folder in folders.items() if not folder.is_done()]
    if not todo:
        return target
    features = {part: feature_files.load(source.features_file) for part, source in sources.items()}
    train, test = features["train"], features["test"]
    names = _image_names(sources, features)
    labels = torch.cat([train.y, test.y])
    is_test = np.arange(len(labels)) >= len(train)
    parts = draw_rows(labels.numpy(), is_test, names, split_seed=split_seed)
    rows = dict(zip(split_files.PARTS, parts, strict=True))

    def gather(part: str) -> tuple[FeatureSet, list[str]]:
        chosen = torch.from_numpy(rows[part])
        x = torch.empty(len(chosen), train.x.shape[1])
        old = chosen >= len(train)
        x[~old] = train.x[chosen[~old]]
        x[old] = test.x[chosen[old] - len(train)]
        made = FeatureSet(x, labels[chosen], f"{model_dir.model}_{target}_{part}")
        return made, [names[row] for row in rows[part].tolist()]

    for part in todo:
        publish(folders[part], functools.partial(gather, part), {"split_seed": split_seed})
    return target


def _image_names(sources: dict[str, FeatureFolder], features: dict[str, FeatureSet]) -> list[str]:
    """Return the names of the images of both splits; where none are known, their rows in place of them.

    Raises:
        CogError: names that do not fit the features.
    """
    lists = {
        part: read_image_paths(source.features_file, n_rows=len(features[part]))
        for part, source in sources.items()
    }
    if None in lists.values():
        lists = {part: [f"{part}/{row:09d}" for row in range(len(features[part]))] for part in sources}
    names = [name for own in lists.values() for name in own or ()]
    if len(set(names)) < len(names):
        raise CogError(
            f"{sources['train'].path} and {sources['test'].path} share images; they are not splits of one data set"
        )
    return names
