"""The page's first section: where each model stands, in sentences and small tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cog import constants
from cog.reporting.html.facts import Facts, OwnModel
from cog.reporting.html.markup import breakable, esc, hidden, listing, prose, score, scroll, signed, table
from cog.results.cells import SeedAverage, dataset_key
from cog.results.comparison import Difference
from cog.results.labels import dataset_label, shots_label, shots_title
from cog.results.official import Match
from cog.results.ranking import REFERENCE, Gap, Place

# More models than this are folded, so that the page begins with an overview.
_MAX_UNFOLDED = 3


def render(facts: Facts, labels: Mapping[str, str]) -> str:
    """Return the section.

    Args:
        facts: what to state.
        labels: how to call the published models.
    """
    parts = []
    if not facts.compared and facts.own and facts.headline:
        parts.append(f"<div class='callout warning'><p>{prose(facts.headline[0])}</p></div>")
        parts += [f"<p class='lead'>{prose(text)}</p>" for text in facts.headline[1:]]
    else:
        parts += [f"<p class='lead'>{prose(text)}</p>" for text in facts.headline]
    if len(facts.own) > 1:
        parts.append(_overview(facts) if facts.compared else _own_overview(facts))
        parts.append(_alert(facts))
        parts.append(_differences(facts))
    folded = len(facts.own) > _MAX_UNFOLDED
    for number, model in enumerate(facts.own):
        content = (
            f"<ul class='sentences'>{''.join(f'<li>{prose(text)}</li>' for text in model.sentences)}</ul>"
        )
        if len(facts.own) == 1:
            content += _alert(facts)
        if model.places:
            content += _standing_table(model, labels) + _few_shot_table(model)
        elif model.cells:
            content += _own_table(model)
        title = f"<h3 id='model-{number}'>{esc(model.label)}</h3>"
        if folded:
            parts.append(f"<details class='model print'><summary>{title}</summary>{content}</details>")
        else:
            parts.append(
                f"<article class='model' aria-labelledby='model-{number}'>{title}{content}</article>"
            )
    return "".join(parts)


def _alert(facts: Facts) -> str:
    """Name the problems and warnings at the top, where nobody misses them."""
    kinds: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for number, notice in enumerate(facts.notices):
        # That the data are others is said already, where it rules out any comparison.
        if notice.severity != "note" and (facts.compared or notice.kind != Match.DIFFERENT.value):
            kinds.setdefault((notice.severity, notice.kind), []).append((number, notice.model))
    if not kinds:
        return ""
    items = []
    for (_, kind), found in kinds.items():
        models = [model for _, model in found if model]
        where = ", ".join(models[:3]) + (f" and {len(models) - 3} more" if len(models) > 3 else "")
        link = f"<a href='#notice-{found[0][0]}'>{esc(kind[0].upper() + kind[1:])}</a>"
        items.append(
            f"{link} <span class='of'>({esc(where)})</span>" if where and len(facts.own) > 1 else link
        )
    worst = next(iter(kinds))[0]
    title = "<p><strong>Before you rely on these numbers:</strong></p>"
    return f"<div class='callout {worst}'>{title}{listing(items)}</div>"


def _overview(facts: Facts) -> str:
    """All compared models, the best on unseen concepts first."""
    rows = []
    for number, model in enumerate(facts.own):
        if not model.places:
            continue
        n_shot = 0 if any(n == 0 for _, n in model.places) else max(n for _, n in model.places)
        cells = []
        for dataset in constants.DATASETS:
            place = model.places.get((dataset, n_shot))
            cells.append(_rank_and_score(place) if place is not None else "–")
        levels = [model.places[d, n_shot].rank for d in constants.COG_LEVELS if (d, n_shot) in model.places]
        mean = sum(levels) / len(levels) if len(levels) == constants.N_LEVELS else math.inf
        cells.append(f"{mean:.1f}" if mean < math.inf else "–")
        rows.append(
            (mean, f"<a href='#model-{number}'>{breakable(model.label)}</a>", [shots_title(n_shot), *cells])
        )
    rows.sort(key=lambda row: row[0])
    head = ["Model", "Images", *map(dataset_label, constants.DATASETS), "mean rank on levels"]
    caption = "Rank among the published models and top-1 accuracy (%), best mean rank on the levels first"
    drawn = table(caption=caption, head=head, rows=[(name, cells) for _, name, cells in rows], cls="numbers")
    return scroll(drawn, caption)


def _rank_and_score(place: Place) -> str:
    mean = f"<span class='sd'>{place.cell.value:.1f}</span>"
    return f"<b>{place.rank}</b><span class='of'>/{place.of}</span> {mean}"


def _own_overview(facts: Facts) -> str:
    datasets = sorted({d for model in facts.own for d in model.counts}, key=dataset_key)
    rows = [
        (
            f"<a href='#model-{number}'>{breakable(model.label)}</a>",
            [_own_score(model, dataset, 0) for dataset in datasets],
        )
        for number, model in enumerate(facts.own)
        if any(cell.n_shot == 0 for cell in model.cells)
    ]
    if not rows:
        return ""
    caption = "Top-1 accuracy (%), all images, mean ± standard deviation over seeds"
    return scroll(
        table(caption=caption, head=["Model", *map(esc, datasets)], rows=rows, cls="numbers"), caption
    )


def _differences(facts: Facts) -> str:
    """Own models against one of them, with confidence intervals where they share seeds."""
    datasets = sorted({dataset for _, dataset in facts.differences}, key=dataset_key)
    if facts.baseline is None or not datasets:
        return ""
    rows = []
    for number, model in enumerate(facts.own):
        found = [facts.differences.get((number, dataset)) for dataset in datasets]
        if any(found):
            rows.append(
                (breakable(model.label), [_own_difference(one) if one is not None else "–" for one in found])
            )
    official = facts.compared
    head = ["Model", *(esc(dataset_label(d) if official else d) for d in datasets)]
    base = facts.own[facts.baseline].label
    caption = f"Own models against {esc(base)}: difference in percentage points, all images"
    legend = (
        "<p class='legend'>In brackets: 95 % confidence interval of the mean difference, paired over the "
        "seeds both have (Student's t; it covers the classifier's training alone, not another pretraining). "
        "Bold: it excludes zero. Without brackets: no common seeds, or one.</p>"
    )
    return (
        scroll(table(caption=caption, head=head, rows=rows, cls="numbers"), f"Own models against {base}")
        + legend
    )


def _own_difference(found: Difference) -> str:
    text = f"<b>{signed(found.mean)}</b>" if found.sign else signed(found.mean)
    if found.low is None or found.high is None:
        return text
    return f"{text}<br><span class='sd'>[{signed(found.low)}, {signed(found.high)}]</span>"


def _own_score(model: OwnModel, dataset: str, n_shot: int) -> str:
    cell = next((c for c in model.cells if (c.dataset, c.n_shot) == (dataset, n_shot)), None)
    return score(cell) + _seed_mark(cell) if cell is not None else "–"


def _seed_mark(cell: SeedAverage) -> str:
    if not cell.missing_seeds:
        return ""
    have, want = len(cell.seeds), len(cell.seeds) + len(cell.missing_seeds)
    return f" <span class='part' title='{have} of {want} seeds'>{have}/{want}{hidden(' seeds')}</span>"


def _standing_table(model: OwnModel, labels: Mapping[str, str]) -> str:
    n_shot = 0 if any(n == 0 for _, n in model.places) else max(n for _, n in model.places)
    rows = []
    for dataset in constants.DATASETS:
        place = model.places.get((dataset, n_shot))
        if place is None:
            continue
        span = (
            f" <span class='of'>({place.best_rank}–{place.worst_rank})</span>"
            if place.best_rank != place.worst_rank
            else ""
        )
        level = [f"<span class='of'>same as</span> {esc(labels.get(m, m))}" for m in place.level_with]
        cells = [
            score(place.cell) + _seed_mark(place.cell),
            f"<b>{place.rank}</b><span class='of'>/{place.of}</span>{span}",
            _strip(
                place.cell.value,
                place.field,
                place.to_reference.other.value if place.to_reference is not None else None,
            ),
            "<br>".join(
                [*level, *([] if level and place.above is None else [_neighbour(place.above, labels)])]
            ),
            _neighbour(place.below, labels),
            _difference(place.to_reference) if model.name != REFERENCE else "–",
        ]
        rows.append((dataset_label(dataset), cells))
    head = [
        "Data",
        "Top-1 (%)",
        "Rank <span class='of'>(span)</span>",
        "Among the published",
        "Next above",
        "Next below",
        "vs ResNet50",
    ]
    caption = f"Where it stands with {shots_label(n_shot)}"
    legend = (
        "<p class='legend'>● this model, | published models, tall: ResNet50. In brackets after a rank: its "
        "span if results within one combined deviation were equal. ≈: not clear, the difference is within "
        "one combined deviation.</p>"
    )
    return scroll(table(caption=caption, head=head, rows=rows, cls="numbers standing"), caption) + legend


def _neighbour(gap: Gap | None, labels: Mapping[str, str]) -> str:
    if gap is None:
        return "<span class='of'>none</span>"
    return f"{esc(labels.get(gap.model, gap.model))} <span class='sd'>{gap.other.value:.1f}</span>"


def _difference(gap: Gap | None) -> str:
    if gap is None:
        return "–"
    text = signed(gap.points)
    return (
        f"<b>{text}</b>"
        if gap.clear
        else f"{text} <span title='about equal'>≈{hidden(' about equal')}</span>"
    )


def _few_shot_table(model: OwnModel) -> str:
    shots = sorted({n for _, n in model.places}, key=lambda n: (n == 0, n))
    if len(shots) < 2:
        return ""
    rows = []
    for dataset in constants.DATASETS:
        found = [model.places.get((dataset, n)) for n in shots]
        if any(found):
            rows.append((dataset_label(dataset), [_few_shot_cell(place) for place in found]))
    caption = "Rank, top-1 accuracy (%), and below the difference to ResNet50, by training images per class"
    if model.name == REFERENCE:
        caption = "Rank and top-1 accuracy (%) by training images per class"
    head = ["Data", *(shots_title(n) if n else "all" for n in shots)]
    return scroll(table(caption=caption, head=head, rows=rows, cls="numbers"), caption)


def _few_shot_cell(place: Place | None) -> str:
    if place is None:
        return "–"
    text = _rank_and_score(place) + _seed_mark(place.cell)
    if place.to_reference is None or place.cell.model == REFERENCE:
        return text
    return f"{text}<br><small>{_difference(place.to_reference)}</small>"


def _own_table(model: OwnModel) -> str:
    """Scores of a model that is not compared with published ones."""
    datasets = sorted(model.counts, key=dataset_key)
    shots = sorted({cell.n_shot for cell in model.cells}, key=lambda n: (n == 0, n))
    rows = [
        (
            esc(dataset or "(unnamed)"),
            [_own_score(model, dataset, n) for n in shots] + [_classes(model, dataset)],
        )
        for dataset in datasets
    ]
    caption = (
        "Top-1 accuracy (%) by number of training images per class, mean ± standard deviation over seeds"
    )
    head = ["Data", *(shots_title(n) if n else "all" for n in shots), "Classes"]
    return scroll(table(caption=caption, head=head, rows=rows, cls="numbers"), caption)


def _classes(model: OwnModel, dataset: str) -> str:
    found = {run.details.n_classes for run in model.runs if run.dataset == dataset and run.details.n_classes}
    return ", ".join(f"{n:,}" for n in sorted(found)) or "?"


def _strip(own: float, field: Sequence[float], reference: float | None) -> str:
    """Draw published scores as ticks on a line, with the own score as a mark and the reference as a longer tick.

    Args:
        own: percent.
        field: published means, percent; at least one.
        reference: the reference model's mean, or None.
    """
    width, height, margin = 180, 22, 6
    low, high = min(*field, own), max(*field, own)

    def x(value: float) -> str:
        return f"{margin + (width - 2 * margin) * _share(value, low, high):.0f}"

    ticks = "".join(f"M{x(value)} 7v8" for value in field)
    longer = f'<path class="ref" d="M{x(reference)} 2v18"/>' if reference is not None else ""
    return (
        f'<svg class="strip" viewBox="0 0 {width} {height}" width="{width}" height="{height}" aria-hidden="true">'
        f'<path class="axis" d="M{margin} 11H{width - margin}"/><path class="tick" d="{ticks}"/>{longer}'
        f'<circle class="own" cx="{x(own)}" cy="11" r="4.5"/></svg>'
    )


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5
