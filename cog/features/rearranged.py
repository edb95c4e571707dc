"""Rows of extracted features put together otherwise, as features of another data set: nothing is extracted.

The sources are files of this model whose sampled content is part of the identity, in the place of the list of images:
other features, or another arrangement, are refused like another extraction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

from cog.features.feature_files import FeatureSet
from cog.features.folder import FeatureFolder, no_features
from cog.paths import ModelDir
from cog.runtime.resume_dir import sample_sha256

#: Entries of the source's features.json that are of its own extraction.
_OF_SOURCE = frozenset({"status", "n_failed", "allow_failures", "dataset", "split", "image_list_sha256"})

#: Returns the features of the rows, and the name of the image of each.
Gather = Callable[[], tuple[FeatureSet, list[str]]]


def target_folder(
    model_dir: ModelDir,
    dataset: str,
    split: str,
    sources: Iterable[FeatureFolder],
    arrangement: str,
    *,
    like: FeatureFolder,
    overwrite: bool = False,
) -> FeatureFolder:
    """Return the folder of rearranged features.

    Args:
        model_dir: folder of the model that gets them.
        dataset: name of the new data set.
        split: split of it.
        sources: folders whose rows are taken.
        arrangement: what decides which rows, and in which order.
        like: one of the sources, which says how all were made.
        overwrite: whether to replace features that were made differently.

    Raises:
        CogError: a source without complete features.
    """
    digest = hashlib.sha256(arrangement.encode())
    for source in sources:
        if not source.is_complete():
            raise no_features(source.features_file)
        digest.update(sample_sha256(source.features_file).encode())
    own = {
        "dataset": dataset,
        "split": split,
        "save_dtype": "float32",
        "image_list_sha256": digest.hexdigest(),
    }
    made = {key: value for key, value in (like.metadata() or {}).items() if key not in _OF_SOURCE}
    identity = {"decode": "exact"} | made | own
    return FeatureFolder(model_dir.features(dataset, split), identity, overwrite=overwrite)


def publish(folder: FeatureFolder, gather: Gather, facts: dict[str, Any]) -> None:
    """Write rearranged features, unless another process was faster.

    Args:
        folder: of :func:`target_folder`.
        gather: makes them, when they are to be written.
        facts: further entries of features.json.
    """
    with folder.claim() as claim:
        if claim.is_done():
            return
        features, names = gather()
        metadata = {"n_images": len(names), "n_rows": len(names)} | facts
        with claim.publish() as stage:
            folder.write(stage, features, metadata=metadata, image_paths=names, failures=[])
