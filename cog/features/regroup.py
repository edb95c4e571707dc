"""Features of other levels from those of the published ones: the same concepts, grouped otherwise.

Levels by another similarity rank the same concepts again (supplement D), so their features exist: rows are copied,
nothing is extracted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from cog import constants
from cog.errors import CogError
from cog.features import feature_files
from cog.features.feature_files import FeatureSet
from cog.features.folder import PATHS_FILE, FeatureFolder
from cog.paths import ModelDir
from cog.runtime.resume_dir import sample_sha256


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
    for part in constants.SPLITS:
        folders = [FeatureFolder(source.features(level, part)) for level in levels]
        digest = hashlib.sha256(" ".join(sorted(wnids)).encode())
        for folder in folders:
            if not folder.is_complete():
                raise CogError(f"there are no features {folder.features_file}; run extract_features.py first")
            digest.update(sample_sha256(folder.features_file).encode())
        made = folders[0].metadata() or {}
        own = {
            "dataset": dataset,
            "split": part,
            "save_dtype": "float32",
            "image_list_sha256": digest.hexdigest(),
        }
        result = FeatureFolder(target.features(dataset, part), {"decode": "exact"} | made | own)
        if result.is_done():
            continue
        with result.claim() as claim:
            if claim.is_done():
                continue
            features, names = _gather(folders, sorted(wnids), f"{target.model}_{dataset}_{part}")
            counts = {
                "n_classes": len(wnids),
                "n_images": len(names),
                "n_rows": len(names),
                "regrouped": True,
            }
            with claim.publish() as stage:
                result.write(
                    stage, features, metadata=result.identity | counts, image_paths=names, failures=[]
                )


def _gather(
    folders: Sequence[FeatureFolder], wnids: Sequence[str], name: str
) -> tuple[FeatureSet, list[str]]:
    """Return the rows of the concepts in their order, and the names of their images."""
    blocks: dict[str, tuple[torch.Tensor, list[str]]] = {}
    for folder in folders:
        file = folder.path / PATHS_FILE
        if not file.is_file():
            raise CogError(
                f"{file} does not exist: it is not known which concept a row shows; extract the features again"
            )
        lines = file.read_text(encoding="utf-8", errors="surrogateescape").split("\n")[:-1]
        features = feature_files.load(folder.features_file, mapped=True)
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
