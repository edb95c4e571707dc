"""Features computed from features: rows of other levels, principal components. Each has an identity of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cog import constants
from cog.data.wnids import class_list_digest
from cog.errors import CogError
from cog.features import feature_files, folder
from cog.features.feature_files import FeatureSet
from cog.features.rows import rows_digest
from cog.paths import ModelDir
from cog.runtime import files
from cog.runtime.device import exact_float32

_CHUNK = 2048  # rows in float64 at a time: 34 MB of 2048 features

#: ``x`` (n, D), ``y`` (n,), the path of each image, entries of the record that differ.
Derived = tuple[torch.Tensor, torch.Tensor, Sequence[str], dict[str, Any]]


def derive(
    target: ModelDir,
    dataset: str,
    split: str,
    sources: Sequence[Path],
    derivation: dict[str, Any],
    compute: Callable[[], Derived],
) -> None:
    """Write features of ``target`` that are computed from those of other folders; complete ones are kept.

    Args:
        target: folder of the model.
        dataset: name of the data set.
        split: ``train`` or ``test``.
        sources: the ``X_Y.pth`` files; the record of the first is continued.
        derivation: what determines the computation, in types of JSON.
        compute: the computation.
    """
    for source in sources:
        if not source.is_file():
            raise folder.no_features(source)
    inputs = [folder.identify_input(source)["rows_sha256"] for source in sources]
    made = folder.read_record(sources[0].parent)
    digest = hashlib.sha256(f"{derivation} {inputs}".encode()).hexdigest()
    identity = {"dataset": dataset, "split": split, "image_list_sha256": digest, "derivation": derivation}
    identity = {**made.get("identity", {}), **identity, "save_dtype": "float32"}
    output = folder.FeatureOutput(target.features(dataset, split), identity)
    if output.is_done():
        return
    x, y, paths, facts = compute()
    record = {**made, **facts, "identity": identity, "rows_sha256": rows_digest(x, y)}
    record |= {"n_rows": len(x), "n_images": len(x), "n_failed": 0, "feature_dim": x.shape[1]}
    with output.claimed() as work:
        if not work.published:
            with work.publish() as stage:
                if paths:
                    files.write_text(stage / folder.PATHS_FILE, "".join(f"{path}\n" for path in paths))
                features = FeatureSet(x, y, f"{target.model}_{dataset}_{split}")
                feature_files.save(features, stage / constants.FEATURES_FILE)
                files.write_json(stage / folder.METADATA_FILE, record)


def regroup(
    source: ModelDir, target: ModelDir, dataset: str, wnids: Sequence[str], *, levels: Sequence[str]
) -> None:
    """Write the features of one new level from the rows of ``levels`` (supplement D: other similarities)."""
    wnids = sorted(wnids)
    for split in constants.SPLITS:
        sources = [source.features_file(level, split) for level in levels]

        def compute(sources: Sequence[Path] = sources) -> Derived:
            return _rows_of(wnids, dataset, sources)

        derive(target, dataset, split, sources, {"rows_of": wnids}, compute)


def _rows_of(wnids: Sequence[str], dataset: str, sources: Sequence[Path]) -> Derived:
    # Opened, not loaded: all levels together take 45 GB.
    parts = [feature_files.open_file(path, mapped=True) for path in sources]
    names: list[str] = []
    for path, part in zip(sources, parts, strict=True):
        listed = folder.read_image_paths(path, n_rows=len(part))
        if listed is None:
            raise CogError(
                f"{path.parent / folder.PATHS_FILE} does not exist: it is not known which concept a row shows; extract "
                "the features again (--overwrite)"
            )
        names += listed
    rows_of: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows_of.setdefault(name.split("/")[0], []).append(row)
    absent = [wnid for wnid in wnids if wnid not in rows_of]
    if absent:
        raise CogError(
            f"there are no features of {len(absent)} of {len(wnids)} concepts of {dataset} ({absent[0]}); build these "
            "levels with --rerank, from the concepts whose features are there"
        )
    rows = np.array([row for wnid in wnids for row in rows_of[wnid]], dtype=np.int64)
    x, first = torch.empty(len(rows), parts[0].x.shape[1]), 0
    for part in parts:
        is_here = (rows >= first) & (rows < first + len(part))
        x[torch.from_numpy(is_here)] = part.x[torch.from_numpy(rows[is_here] - first)].float()
        first += len(part)
    y = torch.from_numpy(np.repeat(np.arange(len(wnids)), [len(rows_of[wnid]) for wnid in wnids]))
    facts = {"n_classes": len(wnids), "class_list_sha256": class_list_digest(wnids)}
    return x, y, [names[row] for row in rows], facts


def pca(model: ModelDir, dataset: str, dim: int, *, normalize: bool = False) -> str:
    """Write the first principal components of features as the data set ``<dataset>_pca<dim>``; return that name.

    The first version of the paper fits PCA to the training features and trains on 32 to 1024 components (section 4.4).

    Args:
        model: folder of the model.
        dataset: data set with features of both splits.
        dim: number of components.
        normalize: whether rows are l2-normalized before; those of the result are normalized by the classifier, unless
            it is given CLF.NORM_FTS False.
    """
    sources = {split: model.features_file(dataset, split) for split in constants.SPLITS}
    derivation = {"pca": dim, "normalize": normalize}
    fitted: list[tuple[torch.Tensor, torch.Tensor]] = []
    for split, source in sources.items():

        def compute(source: Path = source) -> Derived:
            if not fitted:
                fitted.append(_components(feature_files.load(sources["train"], normalize=normalize).x, dim))
            mean, components = fitted[0]
            features = feature_files.load(source, normalize=normalize)
            x = torch.empty(len(features), dim)
            with exact_float32():
                for part, rows in zip(x.split(_CHUNK), features.x.split(_CHUNK), strict=True):
                    part[:] = (rows.double() - mean).float() @ components
            return x, features.y, folder.read_image_paths(source) or [], {"pca": derivation}

        derive(model, f"{dataset}_pca{dim}", split, list(sources.values()), derivation, compute)
    return f"{dataset}_pca{dim}"


def _components(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean of rows ``(n, D)``, float64, and ``dim`` components float32 ``(D, dim)`` by falling variance.

    They are eigenvectors of the covariance in float64; the entry of largest magnitude of each is positive, as
    scikit-learn has it.
    """
    shift = x[:_CHUNK].double().mean(0)  # a large common offset would cause cancellation
    total, products = torch.zeros_like(shift), torch.zeros(len(shift), len(shift), dtype=torch.float64)
    for part in x.split(_CHUNK):
        centered = part.double() - shift
        total += centered.sum(0)
        products.addmm_(centered.T, centered)
    mean = total / len(x)
    variances, vectors = torch.linalg.eigh(products.addr_(mean, mean, alpha=-len(x)).div_(max(len(x) - 1, 1)))
    rank = int((variances > variances[-1] * len(mean) * torch.finfo(torch.float64).eps).sum())
    if dim > rank:
        raise CogError(
            f"the {len(x)} training rows vary in {rank} directions only; {dim} components are too many"
        )
    vectors = vectors.flip(1)[:, :dim]
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    return mean + shift, (vectors * largest.sign()).float().contiguous()
