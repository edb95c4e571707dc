"""Principal components of training features (``CLF.PCA_DIM``), exact and in bounded memory.

The first version of the paper fits scikit-learn's PCA to the training features of each data set and trains on the first
32 to 1024 components (its section 4.4). Here the components come from the covariance: one pass over the rows sums up
their products in float64 around the mean of the first rows (so that a large common offset causes no cancellation), and
the components are the eigenvectors of this ``(D, D)`` matrix. With ``CLF.NORM_FTS``, either the projections are
l2-normalized (``CLF.PCA_NORM after``), which gives the classifier inputs of the scale that its learning rates are made
for, or the features are, before the projection.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

import torch

from cog.errors import CogError
from cog.features.feature_files import FeatureSet
from cog.runtime.device import exact_float32, has_float64

logger = logging.getLogger(__name__)

#: Rows converted to float64 at a time: 2048 rows of 2048 features take 34 MB.
_CHUNK = 2048

#: Columns of the covariance computed at a time. The matrix is symmetric: blocks on and above the diagonal suffice.
_BLOCK = 256

#: Numbers of components whose share of the variance is recorded.
_MILESTONES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


@dataclass(frozen=True, eq=False)
class Pca:
    """Principal components of ``n`` rows.

    Attributes:
        mean: mean of the rows, float64 ``(D,)``.
        components: principal components, float64 ``(D, D)``, one per row, by falling variance; the entry of largest
            magnitude of each is positive (scikit-learn's convention).
        variances: variances along the components, float64 ``(D,)``, with n - 1 in the denominator.
        n_rows: n.
    """

    mean: torch.Tensor
    components: torch.Tensor
    variances: torch.Tensor
    n_rows: int

    @property
    def rank(self) -> int:
        """Number of components with a variance above rounding errors."""
        floor = self.variances[0] * len(self.mean) * torch.finfo(torch.float64).eps
        return int((self.variances > floor).sum())

    def explained(self, dim: int) -> float:
        """Return the share of the variance along the first ``dim`` components, 0..1."""
        return float(self.variances[:dim].sum() / self.variances.sum())

    def as_dict(self, dim: int) -> dict[str, Any]:
        """Return the record of a projection onto ``dim`` components for results.json."""
        shares = {str(k): round(self.explained(k), 9) for k in (*_MILESTONES, dim) if k <= dim}
        return {
            "dim": dim,
            "feature_dim": len(self.mean),
            "rank": self.rank,
            "rows": self.n_rows,
            "explained_variance": round(self.explained(dim), 9),
            "explained_variance_of_first": shares,
        }

    def tensors(self, dim: int) -> dict[str, torch.Tensor]:
        """Return ``mean`` ``(D,)`` and ``components`` ``(dim, D)`` as float32, for ``pca.pth``."""
        return {
            "mean": self.mean.float().cpu(),
            "components": self.components[:dim].float().cpu().contiguous(),
        }


@torch.no_grad()
def fit(features: FeatureSet, *, rows: torch.Tensor | None = None, device: torch.device | None = None) -> Pca:
    """Return the principal components of features.

    Args:
        features: features on the CPU, not changed.
        rows: rows to fit to, int64; None: all.
        device: device of the computation; the CPU in its place when it has no float64.
    """
    device = _with_float64(device)
    n_rows, dim = len(features) if rows is None else len(rows), features.x.shape[1]
    starts = range(0, dim, _BLOCK)
    # Block i: products of columns [256 i, 256 (i + 1)) with all columns from 256 i on.
    blocks = [
        torch.zeros(min(_BLOCK, dim - start), dim - start, dtype=torch.float64, device=device)
        for start in starts
    ]
    sums = torch.zeros(dim, dtype=torch.float64, device=device)
    shift: torch.Tensor | None = None
    for start in range(0, n_rows, _CHUNK):
        chunk = _take(features, rows, start).to(device, torch.float64)
        if shift is None:
            shift = chunk.mean(0)
        chunk -= shift
        sums += chunk.sum(0)
        for block, first in zip(blocks, starts, strict=True):
            block.addmm_(chunk[:, first : first + _BLOCK].T, chunk[:, first:])
    assert shift is not None
    covariance = torch.empty(dim, dim, dtype=torch.float64, device=device)
    for block, first in zip(blocks, starts, strict=True):
        covariance[first : first + _BLOCK, first:] = block
        covariance[first:, first : first + _BLOCK] = block.T
    mean = sums / n_rows
    covariance.addr_(mean, mean, alpha=-n_rows).div_(max(n_rows - 1, 1))
    variances, vectors = torch.linalg.eigh(covariance)
    variances, components = variances.flip(0).clamp_min_(0), vectors.T.flip(0).contiguous()
    largest = components.gather(1, components.abs().argmax(1, keepdim=True))
    components *= torch.where(largest < 0, -1.0, 1.0)
    return Pca((mean + shift).cpu(), components.cpu(), variances.cpu(), n_rows)


@torch.no_grad()
def project(
    features: FeatureSet,
    pca: Pca,
    dim: int,
    *,
    rows: torch.Tensor | None = None,
    in_place: bool = False,
    device: torch.device | None = None,
) -> torch.Tensor:
    """Return the projections of rows onto the first ``dim`` principal components, float32 ``(n, dim)`` on the CPU.

    Args:
        features: features; contiguous float32 with ``in_place``. Other arguments are those of :func:`fit`.
        pca: principal components from :func:`fit`.
        dim: number of components, at most D.
        rows: rows to project, int64, ascending; None: all.
        in_place: whether to write the result to the beginning of the memory of the features, which are lost.
    """
    device = _with_float64(device)
    n_rows = len(features) if rows is None else len(rows)
    basis = pca.components[:dim].T.float().contiguous().to(device)
    mean = pca.mean.to(device)
    # A row of the result ends no later than the row of the features that it comes from, which has been read before.
    memory = features.x.view(-1) if in_place else torch.empty(n_rows * dim)
    out = memory[: n_rows * dim].view(n_rows, dim)
    with exact_float32():
        for start in range(0, n_rows, _CHUNK):
            chunk = _take(features, rows, start).to(device, torch.float64).sub_(mean).float()
            out[start : start + _CHUNK] = chunk @ basis
    return out


def _with_float64(device: torch.device | None) -> torch.device:
    return device if device is not None and has_float64(device) else torch.device("cpu")


def _take(features: FeatureSet, rows: torch.Tensor | None, start: int) -> torch.Tensor:
    return features.rows(slice(start, start + _CHUNK) if rows is None else rows[start : start + _CHUNK])


def timed_fit(features: FeatureSet, dim: int, *, rows: torch.Tensor | None, device: torch.device) -> Pca:
    """Return the principal components of features, and log the variance share of the first ``dim``."""
    source, width = features.name, features.x.shape[1]
    if dim > width:
        raise CogError(
            f"CLF.PCA_DIM {dim}: {source} has {width} dimensions; set at most that, or 0 for all of it"
        )
    start = time.monotonic()
    pca = fit(features, rows=rows, device=device)
    if pca.rank < dim:
        extent = f"vary in {pca.rank} directions only; set at most {pca.rank}"
        if pca.rank == 0:
            extent = "do not vary at all; leave it out"
        raise CogError(f"CLF.PCA_DIM {dim}: the {pca.n_rows} rows of {source} {extent}")
    logger.info(
        "first %d of %d principal components of %d rows: %.2f %% of the variance (%.1fs)",
        dim, width, pca.n_rows, 100 * pca.explained(dim), time.monotonic() - start,
    )  # fmt: skip
    return pca
