"""The expected results on the miniature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cog import constants
from cog.results.scores import SeedAverage

#: Names of the trained network, and of the control: the same network before training.
TRAINED = "miniature_convnet"
UNTRAINED = "miniature_random"


@dataclass(frozen=True)
class ExpectationResult:
    """An expectation, and whether it holds."""

    text: str
    holds: bool


def check_results(cells: Sequence[SeedAverage]) -> list[ExpectationResult]:
    """Compare top-1 accuracies with the consequences of inheritance and training.

    With all training images, the trained network must be better on the seen concepts than on any level,
    better on level 1 than on level 5, and better than the untrained network on every data set that both were
    evaluated on. For every number of shots, the trained network must be better on the seen set than on every level.
    There is no expectation about neighboring levels: 24 concepts per level are too few to determine their order.

    Args:
        cells: results of :data:`TRAINED` and :data:`UNTRAINED`, averaged over seeds.

    Returns:
        The expectations that can be checked with these results.
    """
    top1 = {(cell.model, cell.n_shot, cell.dataset): cell.value for cell in cells if cell.metric == "top1"}
    findings = []
    for n_shot in sorted({cell.n_shot for cell in cells if cell.model == TRAINED}, key=lambda n: (n == 0, n)):
        label = f"N = {n_shot}" if n_shot else "all images"
        seen = top1.get((TRAINED, n_shot, constants.IN1K))
        levels = {d: top1[TRAINED, n_shot, d] for d in constants.COG_LEVELS if (TRAINED, n_shot, d) in top1}
        if seen is None or not levels:
            continue
        best = max(levels, key=lambda dataset: levels[dataset])
        findings.append(
            ExpectationResult(
                f"{label}: the seen concepts ({seen:.1f}) are above every level (best: {best}, {levels[best]:.1f})",
                seen > levels[best],
            )
        )
    first, last = (
        top1.get((TRAINED, 0, dataset)) for dataset in (constants.COG_LEVELS[0], constants.COG_LEVELS[-1])
    )
    if first is not None and last is not None:
        findings.append(
            ExpectationResult(
                f"all images: level 1 ({first:.1f}) is above level {constants.N_LEVELS} ({last:.1f})",
                first > last,
            )
        )
    margins = {
        dataset: top1[TRAINED, 0, dataset] - top1[UNTRAINED, 0, dataset]
        for dataset in constants.DATASETS
        if (TRAINED, 0, dataset) in top1 and (UNTRAINED, 0, dataset) in top1
    }
    if margins:
        text = ", ".join(f"{dataset} {margin:+.1f}" for dataset, margin in margins.items())
        findings.append(
            ExpectationResult(
                f"all images: the trained network is above the untrained one ({text})",
                min(margins.values()) > 0,
            )
        )
    return findings
