"""Notes below figures on facts that the drawings do not show."""

from __future__ import annotations

from collections.abc import Sequence

from cog.errors import some
from cog.reporting.figures.chart import Panel, Point
from cog.reporting.figures.curves import Curve, CurveSelection, model_label, shorten
from cog.reporting.figures.points import RELATIVE, SPEARMAN, dataset_label
from cog.reporting.tables.layout import source_key
from cog.reporting.tables.writers import printable
from cog.results.scores import Key, SeedAverage, interval_of

# Number of correlations below a figure; more lines would be a table.
_MOST = 4


def of_protocol(selection: CurveSelection, panels: Sequence[Panel]) -> list[str]:
    """Return notes on scores that lack seeds, and on a baseline of another source than the published one."""
    lacking: dict[str, dict[SeedAverage, str]] = {}
    references: set[str] = set()
    for panel, curve, point in _points(panels):
        score = point.cell
        if point.reference is not None and panel.quantity == RELATIVE and curve.is_own:
            references.add(point.reference.source)
        if score.missing_seeds:
            shots = f" N={score.n_shot}" if score.n_shot else ""
            count = f"{len(score.seeds)} of {score.n_expected} seeds"
            lacking.setdefault(curve.label, {})[score] = f"{dataset_label(score.dataset)}{shots}: {count}"
    notes = []
    for label, scores in lacking.items():
        places = list(scores.values())
        shown = ", ".join(places) if len(places) < 4 else f"{len(places)} points, {places[0]}, ..."
        notes.append(f"Incomplete: {label} ({shown}).")
    if len(notes) > 3:
        notes = [*notes[:2], f"Incomplete as well: {len(notes) - 2} more models; see the CSV file."]
    of_paper = {c.source for c in selection.curves if not c.is_own and c.model == selection.baseline}
    if of_paper and references - of_paper:
        named = ", ".join(shorten(printable(source)) for source in sorted(references, key=source_key))
        label = model_label(str(selection.baseline))
        notes.append(f"Own models are compared with {label} from {named}, not as published.")
    return notes


def of_experiments(selection: CurveSelection, panels: Sequence[Panel]) -> list[str]:
    """Return a note on the models that lack seeds."""
    lacking: dict[str, set[str]] = {}
    for _, curve, point in _points(panels):
        if point.cell.missing_seeds:
            lacking.setdefault(curve.label, set()).add(dataset_label(point.cell.dataset))
    listed = [f"{label} ({', '.join(sorted(datasets))})" for label, datasets in lacking.items()]
    return [f"Seeds are missing: {some(listed)}; see the CSV file."] if listed else []


def of_alignment(selection: CurveSelection, panels: Sequence[Panel]) -> list[str]:
    """Return the notes of experiments, and the ranges of uniformity in the paper."""
    return [
        *of_experiments(selection, panels),
        "The paper's first version gives ranges of uniformity over the six data sets, as positive numbers: "
        "ResNet50 1.8-1.9, SwAV 1.9-2.1, the five others 2.6-3.1.",
    ]


def of_subtrees(selection: CurveSelection, panels: Sequence[Panel]) -> list[str]:
    """Return the notes of experiments, and the recorded correlations of accuracy and similarity within subtrees."""
    within = _correlations(panels, ("subtrees", "spearman_within_subtrees", 0), "Spearman within subtrees")
    return [*of_experiments(selection, panels), *within]


def of_correlations(selection: CurveSelection, panels: Sequence[Panel]) -> list[str]:
    """Return notes on correlations of accuracy and similarity with their intervals, the user's models first."""
    return _correlations(panels, SPEARMAN, "Spearman")


def _correlations(panels: Sequence[Panel], key: Key, words: str) -> list[str]:
    drawn = [(panel.key, series.curve) for panel in panels for series in panel.series]
    lines: dict[str, list[str]] = {}
    for dataset, curve in sorted(drawn, key=lambda place: not place[1].is_own):
        names = (key[1], *interval_of(key[1]))
        value, *ends = (curve.scores.get((dataset, (key[0], name, key[2]))) for name in names)
        if value is None:
            continue
        numbers = [f"{end.value:.2f}" for end in (value, *ends) if end is not None]
        text = f"{numbers[0]} [{', '.join(numbers[1:])}]" if len(numbers) == 3 else numbers[0]
        text = text.replace("-", "\N{MINUS SIGN}")
        lines.setdefault(curve.label, []).append(f"{dataset_label(dataset)} {text}")
    notes = [f"{label}: {words} {'; '.join(parts)}." for label, parts in lines.items()]
    if len(notes) > _MOST:
        more = f"Correlations of {len(notes) - _MOST} more models are in the tables."
        notes = [*notes[:_MOST], more]
    return notes


def _points(panels: Sequence[Panel]) -> list[tuple[Panel, Curve, Point]]:
    return [
        (panel, series.curve, point) for panel in panels for series in panel.series for point in series.points
    ]
