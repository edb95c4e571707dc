"""The page's last sections: how the results were made, and how the searches went."""

from __future__ import annotations

from collections.abc import Iterable

import cog.reporting.figures.search as search
from cog.reporting.html.facts import Facts, OwnModel
from cog.reporting.html.markup import date, duration, esc, scroll, table
from cog.results.cells import RUNS, Run, SeedAverage, dataset_key
from cog.results.diagnostics import OTHER_SETTINGS, PROTOCOL
from cog.results.labels import shots_title
from cog.results.search_history import FeatureDescription, plain

# Each takes about 7 kB; with many models the page has enough to carry.
_MAX_SEARCHES, _MAX_SEARCHES_OF_MANY, _MANY_MODELS = 72, 24, 8


def render_runs(facts: Facts) -> str:
    """Return settings, features and runs of every model."""
    parts = [_model_provenance(model) for model in facts.own if model.runs]
    imported = [model for model in facts.own if model.source != RUNS]
    if imported:
        names_of = ", ".join(f"{model.name} from {model.source}" for model in imported)
        parts.append(f"<p>Imported results come without their runs: {esc(names_of)}.</p>")
    return "".join(parts)


def _model_provenance(model: OwnModel) -> str:
    total = sum(sum(v for v in run.details.seconds.values() if v >= 0) for run in model.runs)
    lines = [("Runs", f"{len(model.runs):,}")]
    if total:
        lines.append(("Time in searches and final trainings", duration(total)))
    dates = sorted(run.details.finished for run in model.runs if run.details.finished)
    if dates:
        lines.append(("Finished", " to ".join(dict.fromkeys([date(dates[0]), date(dates[-1])]))))
    devices = sorted({run.details.device for run in model.runs if run.details.device})
    if devices:
        lines.append(("Device", ", ".join(devices)))
    versions: dict[str, set[str]] = {}
    for run in model.runs:
        for package, version in run.details.versions.items():
            versions.setdefault(package, set()).add(version)
    if versions:
        lines.append(("Versions", ", ".join(f"{p} {' / '.join(sorted(v))}" for p, v in versions.items())))
    for name, (expected, key) in PROTOCOL.items():
        if name == "n_epochs":
            found = {plain(run.planned_epochs) for run in model.runs}
        else:
            found = {plain(run.details.settings[name]) for run in model.runs if name in run.details.settings}
        shown = " / ".join(sorted(value for value in found if value is not None))
        if shown:
            usual = plain(expected)
            lines.append((key, shown if shown == usual else f"{shown} (protocol: {usual})"))
    for name, key in OTHER_SETTINGS.items():
        values = {plain(run.details.settings.get(name)) for run in model.runs} - {None}
        if values:
            lines.append((key, " / ".join(sorted(map(str, values)))))
    terms = "".join(f"<dt>{esc(key)}</dt><dd>{esc(value)}</dd>" for key, value in lines)
    return (
        f"<details class='provenance'><summary><h3>{esc(model.label)}</h3> <span class='of'>{len(model.runs):,} runs"
        f"</span></summary><dl>{terms}</dl>{_feature_table(model)}{_run_table(model)}</details>"
    )


def _feature_columns(made: FeatureDescription) -> dict[str, str]:
    """What the table of features shows about one split, as HTML; "?" where it is not recorded."""
    sha = made.checkpoint_sha256
    state = {True: ", the published file", False: ", not the published file", None: ""}[
        made.checkpoint_is_published
    ]
    rate = f", {made.images_per_second:,.0f} images/s" if made.images_per_second is not None else ""
    return {
        "Images": f"{made.n_images:,}" if made.n_images is not None else "?",
        "Classes": f"{made.n_classes:,}" if made.n_classes is not None else "?",
        "Failed": f"{made.n_failed:,}" if made.n_failed is not None else "?",
        "Preprocessing": esc(made.preprocessing or "?"),
        "Profile": esc(
            " ".join(part for part in (made.profile, made.variant, made.precision) if part) or "?"
        ),
        "Checkpoint": f"<code title='SHA-256 {esc(sha)}'>{esc(sha[:16])}</code>{state}"
        if sha
        else "none"
        if made.loader
        else "?",
        "Loader": esc(made.loader or "declared model"),
        "Images from": esc(made.images_root or "?"),
        "Extracted on": esc(f"{made.device or '?'}{rate}"),
        "Extracted with": esc(
            ", ".join(f"{package} {version}" for package, version in made.versions.items()) or "?"
        ),
        "Extracted at": esc(date(made.finished or "?")),
    }


def _feature_table(model: OwnModel) -> str:
    """How the features were made: what is the same for all once, the rest as a table."""
    if not model.features:
        return "<p>How the features were made is not recorded (no features.json beside the runs).</p>"
    keys = sorted(model.features, key=lambda key: (dataset_key(key[0]), key[1] != "train"))
    columns = [_feature_columns(model.features[key]) for key in keys]
    titles = list(columns[0])
    common = {title for title in titles[3:] if len({column[title] for column in columns}) == 1}
    terms = "".join(f"<dt>{title}</dt><dd>{columns[0][title]}</dd>" for title in titles if title in common)
    varying = [title for title in titles if title not in common]
    rows = [
        (f"{esc(dataset)} {esc(split)}", [column[title] for title in varying])
        for (dataset, split), column in zip(keys, columns, strict=True)
    ]
    caption = "Features" if not common else "Features: what differs between them"
    drawn = table(caption=caption, head=["Features", *varying], rows=rows, cls="details")
    return f"<dl>{terms}</dl>{scroll(drawn, f'Features of {model.label}')}"


def _run_table(model: OwnModel) -> str:
    groups: dict[tuple[str, int], list[Run]] = {}
    for run in model.runs:
        groups.setdefault((run.dataset, run.n_shot), []).append(run)

    def each(values: Iterable[float | None], form: str) -> str:
        return "<br>".join("?" if value is None else format(value, form) for value in values)

    # What is the same for all runs is said above the table.
    same_epochs = len({n for run in model.runs for n in (run.n_epochs, run.planned_epochs)}) == 1
    none_diverged = not any(run.diverged for run in model.runs)
    rows = []
    for key in sorted(groups, key=lambda key: (dataset_key(key[0]), key[1] == 0, key[1])):
        runs = sorted(groups[key], key=lambda run: run.seed)
        seconds = [sum(value for value in run.details.seconds.values() if value >= 0) for run in runs]
        cells = {
            "Seed": each([run.seed for run in runs], "d"),
            "Top-1 (%)": each([run.top1 for run in runs], ".2f"),
            "Top-5 (%)": each([run.top5 for run in runs], ".2f"),
            "Learning rate": each([run.lr for run in runs], ".4g"),
            "Weight decay": each([run.wd for run in runs], ".3g"),
            "Validation top-1 (%)": each([run.details.best_val_top1 for run in runs], ".2f"),
            "Time": "<br>".join(duration(value) if value else "?" for value in seconds),
        }
        if not same_epochs:
            cells["Epochs"] = each([run.n_epochs for run in runs], "d")
        if not none_diverged:
            cells["Diverged"] = "<br>".join("<b>yes</b>" if run.diverged else "no" for run in runs)
        rows.append((f"{esc(key[0])}, {esc(shots_title(key[1]))}", cells))
    caption = "Runs, one line per seed"
    drawn = table(
        caption=caption,
        head=["Result", *rows[0][1]],
        rows=[(name, list(cells.values())) for name, cells in rows],
        cls="details runs",
    )
    return scroll(drawn, f"{caption}: {model.label}")


def render_searches(facts: Facts) -> str:
    """Return drawings of trials and training curves per result; "" without runs."""
    total = sum(1 for model in facts.own for cell in model.cells if model.source == RUNS)
    if not total:
        return ""
    most = _MAX_SEARCHES if len(facts.own) <= _MANY_MODELS else _MAX_SEARCHES_OF_MANY
    chosen: list[tuple[OwnModel, SeedAverage, search.SearchPage]] = []
    for model in facts.own:
        # All images first: those are what most readers look at.
        for cell in sorted(model.cells, key=lambda c: (c.n_shot != 0, dataset_key(c.dataset), c.n_shot)):
            runs = [run for run in model.runs if (run.dataset, run.n_shot) == (cell.dataset, cell.n_shot)]
            if runs:
                chosen.append((model, cell, search.pages(runs)[0]))
    figures: dict[str, list[str]] = {}
    for (model, cell, _), drawing in zip(
        chosen, search.strips((page for *_, page in chosen), most), strict=False
    ):
        if drawing:
            figures.setdefault(model.label, []).append(_search(cell, drawing))
    if not figures:
        return ""
    parts = [
        f"<details class='searches'><summary><h3>{esc(label)}</h3> <span class='of'>{len(drawn)} results</span>"
        f"</summary>{''.join(drawn)}</details>"
        for label, drawn in figures.items()
    ]
    text = (
        "<p>Per result, all seeds together. First: trials of the search; the more a dot stands out from the "
        "page, the better it did on the held-out part; ○ the pairs used for the final trainings, × "
        "diverged. Second: best validation accuracy so far. Third: test accuracy over the final training.</p>"
    )
    if sum(map(len, figures.values())) == most < total:
        text += (
            f"<p>The first {most} of {total:,} results are drawn, to keep this page small; "
            "<code>print_results.py --diagnostics DIR</code> draws all.</p>"
        )
    return text + "".join(parts)


def _search(cell: SeedAverage, drawing: str) -> str:
    caption = f"{esc(cell.dataset)}, {esc(shots_title(cell.n_shot))}"
    return (
        f"<figure class='search'><figcaption>{caption}</figcaption><div class='scroll picture wide' role='group' "
        f"tabindex='0' aria-label='Search, {caption}'>{drawing}</div></figure>"
    )
