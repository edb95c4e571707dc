"""Features computed from features, with identities of their own: rows of other levels, principal components."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from cog.constants import IMAGE_PATHS_FILE, SPLITS
from cog.data.wnids import class_list_digest
from cog.errors import CogError
from cog.features import feature_files, folder
from cog.features.feature_files import FeatureSet
from cog.paths import ModelDir

#: ``x`` (n, D), ``y`` (n,), the path of each image, entries of the record that differ.
Derived = tuple[torch.Tensor, torch.Tensor, Sequence[str], dict[str, Any]]


def derive(
    place: Path, name: str, sources: Sequence[Path], how: dict[str, Any], compute: Callable[[], Derived]
) -> None:
    """Write features into the folder ``place`` that are computed from files; complete ones are kept.

    The record of the first source is continued. ``how`` determines the computation, in types of JSON.
    """
    inputs = [folder.identify_input(source)["rows_sha256"] for source in sources]
    made = folder.read_record(sources[0].parent)
    digest = hashlib.sha256(f"{how} {inputs}".encode()).hexdigest()
    of = {"dataset": place.parent.name, "split": place.name.removeprefix("features_")}
    own = {"image_list_sha256": digest, "derivation": how, "save_dtype": "float32"}
    identity = {**made.get("identity", {}), **of, **own}
    output = folder.FeatureOutput(place, identity)
    if not output.is_done():
        x, y, paths, facts = compute()
        record = {**made, "n_images": len(x), "n_failed": 0, **facts, "identity": identity}
        with output.claimed() as work:
            if not work.published:
                with work.publish() as stage:
                    feature_files.write(stage, FeatureSet(x, y, name), record, paths)


def regroup(
    source: ModelDir, target: ModelDir, dataset: str, wnids: Sequence[str], *, levels: Sequence[str]
) -> None:
    """Write the features of one new level from the rows of ``levels`` (supplement D: other similarities)."""
    wnids = sorted(wnids)
    for split in SPLITS:
        sources = [source.features_file(level, split) for level in levels]
        place, compute = target.features(dataset, split), functools.partial(_rows_of, wnids, sources)
        derive(place, f"{target.model}_{dataset}_{split}", sources, {"rows_of": wnids}, compute)


def _rows_of(wnids: Sequence[str], sources: Sequence[Path]) -> Derived:
    rows_of: dict[str, list[tuple[FeatureSet, int, str]]] = {wnid: [] for wnid in wnids}
    for path in sources:
        part = feature_files.open_file(path)  # not loaded: all levels together take 45 GB
        names = folder.read_image_paths(path, n_rows=len(part))
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


def pca(model: ModelDir, dataset: str, dim: int, *, normalize: bool = False) -> str:
    """Write ``dim`` principal components of features as the data set ``<dataset>_pca<dim>``; return that name.

    The first version of the paper fits PCA to the training features, and trains on 32 to 1024 components
    (section 4.4). ``normalize``: whether rows are l2-normalized before; the classifier normalizes the result.
    """
    sources, name = [model.features_file(dataset, split) for split in SPLITS], f"{dataset}_pca{dim}"
    for split, source in zip(SPLITS, sources, strict=True):
        place, how = model.features(name, split), {"pca": dim, "normalize": normalize}
        compute = functools.partial(_components, sources[0], source, **how)
        derive(place, f"{model.model}_{name}_{split}", sources, how, compute)
    return name


def _components(train: Path, source: Path, pca: int, normalize: bool) -> Derived:
    from sklearn.decomposition import PCA

    x = feature_files.load(train, normalize=normalize).x
    if pca > min(x.shape):
        raise CogError(f"{train} has {len(x)} rows of {x.shape[1]} features: {pca} components are too many")
    fitted = PCA(pca, svd_solver="covariance_eigh").fit(x.double().numpy())
    features = feature_files.load(source, normalize=normalize)
    parts = [torch.from_numpy(fitted.transform(part.double().numpy())) for part in features.x.split(4096)]
    return torch.cat(parts).float(), features.y, folder.read_image_paths(source) or [], {}
