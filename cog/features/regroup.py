"""Features of other levels from those of the published ones: the same concepts, grouped otherwise.

Levels by another similarity rank the same concepts again (supplement D), so their features exist: rows are copied,
nothing is extracted.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from cog import constants
from cog.errors import CogError
from cog.features import feature_files
from cog.features.feature_files import FeatureSet
from cog.features.folder import PATHS_FILE, FeatureFolder, read_image_paths
from cog.features.rearranged import publish, target_folder
from cog.paths import ModelDir


def regroup(
    source: ModelDir, target: ModelDir, dataset: str, wnids: Sequence[str], *, levels: Sequence[str]
) -> None:
    """Write the features of one new level, training and test; complete ones are kept.

    Args:
        source: folder of the model whose features are there.
        target: folder of the model among the results on other levels.
        dataset: name of the new level.
        wnids: its concepts.
        levels: data sets that have the features of these concepts.

    Raises:
        CogError: features or names of images that are missing, a concept without features, another result there.
    """
    wnids = sorted(wnids)
    for part in constants.SPLITS:
        folders = [FeatureFolder(source.features(level, part)) for level in levels]
        result = target_folder(target, dataset, part, folders, " ".join(wnids), like=folders[0])
        if not result.is_done():
            gather = functools.partial(_gather, folders, wnids, f"{target.model}_{dataset}_{part}")
            publish(result, gather, {"n_classes": len(wnids), "regrouped": True})


def _gather(
    folders: Sequence[FeatureFolder], wnids: Sequence[str], name: str
) -> tuple[FeatureSet, list[str]]:
    """Return the rows of the concepts in their order, and the names of their images."""
    blocks: dict[str, tuple[torch.Tensor, list[str]]] = {}
    for folder in folders:
        features = feature_files.load(folder.features_file, mapped=True)
        lines = read_image_paths(folder.features_file, n_rows=len(features))
        if lines is None:
            raise CogError(
                f"{folder.path / PATHS_FILE} does not exist: it is not known which concept a row shows; extract the "
                "features again"
            )
        rows: dict[str, list[int]] = {}
        for row, line in enumerate(lines):
            rows.setdefault(line.split("/")[0], []).append(row)
        for wnid in rows.keys() & set(wnids):
            blocks[wnid] = (features.x[torch.tensor(rows[wnid])].float(), [lines[row] for row in rows[wnid]])
    absent = [wnid for wnid in wnids if wnid not in blocks]
    if absent:
        raise CogError(
            f"there are no features of {len(absent)} of {len(wnids)} concepts of {name} ({absent[0]}); build these "
            "levels with --rerank, from the concepts whose features are there"
        )
    y = torch.cat([torch.full((len(blocks[wnid][1]),), label) for label, wnid in enumerate(wnids)])
    x = torch.cat([blocks[wnid][0] for wnid in wnids])
    return FeatureSet(x, y, name), [line for wnid in wnids for line in blocks[wnid][1]]
