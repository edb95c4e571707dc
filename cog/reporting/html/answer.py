"""Values of the page's first section: where each model stands."""

from __future__ import annotations

import math

from cog import constants
from cog.reporting.html.facts import Facts, OwnModel
from cog.results.official import Match


def shown_shots(model: OwnModel) -> int:
    """Return the number of shots that a model's places are shown for: all images, else the most."""
    shots = {n_shot for _, n_shot in model.places}
    return 0 if 0 in shots else max(shots)


def ranked(facts: Facts) -> list[tuple[int, OwnModel, int, float | None]]:
    """Return the compared models, the best on unseen concepts first.

    Returns:
        Position among all models, model, number of shots, and mean rank on the levels (None: not on all).
    """
    found = []
    for number, model in enumerate(facts.own):
        if model.places:
            n_shot = shown_shots(model)
            ranks = [
                model.places[d, n_shot].rank for d in constants.COG_LEVELS if (d, n_shot) in model.places
            ]
            mean = sum(ranks) / len(ranks) if len(ranks) == constants.N_LEVELS else None
            found.append((number, model, n_shot, mean))
    return sorted(found, key=lambda row: math.inf if row[3] is None else row[3])


def alerts(facts: Facts) -> list[tuple[str, list[tuple[int, str, str]]]]:
    """Return the kinds of problems and warnings, which belong at the top, where nobody misses them.

    Returns:
        At most one pair: the worst severity, and number of the first notice, kind and models of each kind.
    """
    kinds: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for number, notice in enumerate(facts.notices):
        # That the data are others is said already, where it rules out any comparison.
        if notice.severity != "note" and (facts.compared or notice.kind != Match.DIFFERENT.value):
            kinds.setdefault((notice.severity, notice.kind), []).append((number, notice.model))
    items = []
    for (_, kind), found in kinds.items():
        models = [model for _, model in found if model]
        shown = ", ".join(models[:3]) + (f" and {len(models) - 3} more" if len(models) > 3 else "")
        items.append((found[0][0], kind[0].upper() + kind[1:], shown if len(facts.own) > 1 else ""))
    return [(next(iter(kinds))[0], items)] if kinds else []


def n_classes(model: OwnModel, dataset: str) -> str:
    """Return the numbers of classes that the runs on a data set recorded."""
    found = {run.details.n_classes for run in model.runs if run.dataset == dataset and run.details.n_classes}
    return ", ".join(f"{n:,}" for n in sorted(found)) or "?"
