"""The expected results on the miniature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cog import constants

#: Names of the trained network, and of the control: the same network before training.
TRAINED = "miniature_convnet"
UNTRAINED = "miniature_random"

#: Top-1 accuracies in percent, means over seeds, by model, training images per concept (0: all) and data set.
Top1 = Mapping[tuple[str, int, str], float]


@dataclass(frozen=True)
class ExpectationResult:
    """An expectation, and whether it holds."""

    text: str
    holds: bool


def check_results(top1: Top1) -> list[ExpectationResult]:
    """Return the expectations, which follow from inheritance and training, that can be checked with these accuracies.

    With all training images, the trained network must be better on level 1 than on level 5, and better than the
    untrained network on every data set. With any number of images, it must be better on the seen concepts than on every
    level. There is no expectation about neighboring levels: 24 concepts per level are too few to determine their order.
    """
    findings = []
    for n_shot in _shots(top1):
        seen = top1.get((TRAINED, n_shot, constants.IN1K))
        levels = [top1[TRAINED, n_shot, d] for d in constants.COG_LEVELS if (TRAINED, n_shot, d) in top1]
        if seen is not None and levels:
            text = f"{_images(n_shot)}: best on the seen concepts, {seen:.1f}; at most {max(levels):.1f} on a level"
            findings.append(ExpectationResult(text, seen > max(levels)))
    first, last = (top1.get((TRAINED, 0, d)) for d in (constants.COG_LEVELS[0], constants.COG_LEVELS[-1]))
    if first is not None and last is not None:
        text = (
            f"near concepts are easier than far ones: {first:.1f} on L1, {last:.1f} on L{constants.N_LEVELS}"
        )
        findings.append(ExpectationResult(text, first > last))
    margins = [
        top1[TRAINED, 0, dataset] - top1[UNTRAINED, 0, dataset]
        for dataset in constants.DATASETS
        if (TRAINED, 0, dataset) in top1 and (UNTRAINED, 0, dataset) in top1
    ]
    if margins:
        text = f"training helps on every data set, by {min(margins):.1f} to {max(margins):.1f} points"
        findings.append(ExpectationResult(text, min(margins) > 0))
    return findings


def table(top1: Top1) -> str:
    """Return the accuracies as a table of text, a row per network and number of images."""
    rows = [(TRAINED, n_shot) for n_shot in _shots(top1)] + [(UNTRAINED, 0)]
    lines = [f"{'':32}{'seen':>7}" + "".join(f"{f'L{n}':>7}" for n in range(1, constants.N_LEVELS + 1))]
    for model, n_shot in rows:
        values = [top1.get((model, n_shot, dataset)) for dataset in constants.DATASETS]
        cells = "".join(f"{'-' if value is None else f'{value:.1f}':>7}" for value in values)
        name = "trained" if model == TRAINED else "untrained"
        lines.append(f"{f'{name} network, {_images(n_shot)}':32}{cells}")
    return "\n".join(lines)


def _shots(top1: Top1) -> list[int]:
    """Return the numbers of images of the trained network, all images first, then falling."""
    return sorted({n_shot for model, n_shot, _ in top1 if model == TRAINED}, key=lambda n: (n != 0, -n))


def _images(n_shot: int) -> str:
    return {0: "all images", 1: "1 image"}.get(n_shot, f"{n_shot} images")
