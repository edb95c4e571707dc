"""Values of the last sections of the page: the provenance of the results, and the hyper-parameter searches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from markupsafe import Markup

import cog.reporting.figures.search as search
from cog.reporting.html.facts import Facts, PageModel
from cog.reporting.html.templating import date, duration
from cog.reporting.tables.writers import Table, printable, words_table
from cog.results.diagnostics import run_settings
from cog.results.labels import shots_title
from cog.results.notices import OTHER_SETTINGS, PROTOCOL
from cog.results.scores import dataset_key, grouped
from cog.results.search_history import FeatureDescription, plain

# Greatest numbers of drawings of searches, about 17 kB each; with many models, the page is large without them.
_MAX_SEARCHES, _MAX_SEARCHES_OF_MANY, _MANY_MODELS = 72, 24, 8

_CHECKPOINT = Markup('<code title="SHA-256 {}">{}</code>{}')


def describe(model: PageModel) -> dict[str, Any]:
    """Return the provenance of the results of a model.

    Returns:
        ``terms``: settings of its runs by name; ``common``: properties that all its features share; ``features``: table
        of the other properties by data set and split, None without records of features; ``runs``: table with a row for
        each result, and a line for each seed in every entry.
    """
    keys = sorted(model.features, key=lambda key: (dataset_key(key[0]), key[1] != "train"))
    columns = [_feature_columns(model.features[key]) for key in keys]
    titles = list(columns[0]) if columns else []
    # Properties that are the same for all features are listed once.
    common = {
        title: columns[0][title] for title in titles[3:] if len({column[title] for column in columns}) == 1
    }
    varying = [title for title in titles if title not in common]
    title = "Features: what differs between them" if common else "Features"
    rows = [(" ".join(key), [column[t] for t in varying]) for key, column in zip(keys, columns, strict=True)]
    features = words_table(title, "features", varying, rows) if rows else None
    return {"terms": _terms(model), "common": common, "features": features, "runs": _runs(model)}


def _terms(model: PageModel) -> dict[str, str]:
    details = [run.details for run in model.runs]
    seconds = sum(detail.seconds for detail in details)
    dates = sorted(detail.finished for detail in details if detail.finished)
    versions: dict[str, set[str]] = {}
    for detail in details:
        for package, version in detail.versions.items():
            versions.setdefault(package, set()).add(version)
    terms = {
        "Runs": f"{len(model.runs):,}",
        "Time in searches and final trainings": duration(seconds) if seconds else "",
        "Finished": " to ".join(dict.fromkeys(map(date, (*dates[:1], *dates[-1:])))),
        "Device": ", ".join(sorted({detail.device for detail in details if detail.device})),
        "Precision, as used": " / ".join(sorted({d.precision for d in details if d.precision})),
        "Versions": ", ".join(f"{package} {' / '.join(sorted(some))}" for package, some in versions.items()),
    }
    settings = list(map(run_settings, model.runs))
    usual = {name: (key, plain(value)) for name, (value, key) in PROTOCOL.items()}
    for name, (key, protocol) in (
        usual | {name: (key, None) for name, key in OTHER_SETTINGS.items()}
    ).items():
        text = " / ".join(sorted(filter(None, {plain(setting.get(name)) for setting in settings})))
        terms[key] = f"{text} (protocol: {protocol})" if text and protocol not in (None, text) else text
    return {term: text for term, text in terms.items() if text}


def _feature_columns(made: FeatureDescription) -> dict[str, str]:
    """Return the properties of features by the titles of their columns; "?" for a property that is not recorded."""
    sha = printable(made.checkpoint_sha256 or "")
    state = {True: ", the published file", False: ", not the published file", None: ""}[
        made.checkpoint_is_published
    ]
    rate = f", {made.images_per_second:,.0f} images/s" if made.images_per_second is not None else ""
    profile = " ".join(part for part in (made.profile, made.variant, made.precision) if part)
    return {
        "Images": f"{made.n_images:,}" if made.n_images is not None else "?",
        "Classes": f"{made.n_classes:,}" if made.n_classes is not None else "?",
        "Failed": f"{made.n_failed:,}" if made.n_failed is not None else "?",
        "Preprocessing": made.preprocessing or "?",
        "Profile": profile or "?",
        "Checkpoint": _CHECKPOINT.format(sha, sha[:16], state) if sha else "none" if made.loader else "?",
        "Loader": made.loader or "declared model",
        "Images from": made.images_root or "?",
        "Extracted on": f"{made.device or '?'}{rate}",
        "Extracted with": ", ".join(f"{package} {version}" for package, version in made.versions.items())
        or "?",
        "Extracted at": date(made.finished or "?"),
    }


def _runs(model: PageModel) -> Table:
    groups = grouped(model.runs, lambda run: (run.dataset, run.n_shot))

    def each(values: Iterable[float | None], form: str) -> list[str]:
        return ["?" if value is None else format(value, form) for value in values]

    # The table has no column of epochs if all runs have the same number, which is listed above the table.
    same_epochs = len({run.n_epochs for run in model.runs}) == 1
    none_diverged = not any(run.diverged for run in model.runs)
    rows = []
    titles: list[str] = []
    for key in sorted(groups, key=lambda key: (dataset_key(key[0]), key[1] == 0, key[1])):
        runs = sorted(groups[key], key=lambda run: run.seed)
        seconds = [run.details.seconds for run in runs]
        columns = {
            "Seed": each([run.seed for run in runs], "d"),
            "Top-1 (%)": each([run.top1 for run in runs], ".2f"),
            "Top-5 (%)": each([run.top5 for run in runs], ".2f"),
            "Learning rate": each([run.lr for run in runs], ".4g"),
            "Weight decay": each([run.wd for run in runs], ".3g"),
            "Validation top-1 (%)": each([run.details.best_val_top1 for run in runs], ".2f"),
            "Time": [duration(value) if value else "?" for value in seconds],
        }
        if not same_epochs:
            columns["Epochs"] = each([run.n_epochs for run in runs], "d")
        if not none_diverged:
            columns["Diverged"] = [Markup("<b>yes</b>") if run.diverged else "no" for run in runs]
        titles = list(columns)
        rows.append((f"{key[0]}, {shots_title(key[1])}", list(map(Markup("<br>").join, columns.values()))))
    return words_table("Runs, one line per seed", "result", titles, rows)


def searches(facts: Facts) -> dict[str, Any] | None:
    """Return drawings of trials and training curves for each result; None when there are none.

    Returns:
        ``by_model``: captions and drawings by the label of the model; ``drawn``: number of drawings; ``total``: number
        of results that could have one; ``cut``: whether the page has its greatest number of them and lacks others.
    """
    chosen = [
        (model, page)
        for model in facts.own_models
        if model.runs
        # Results with all images come first, because most readers look at them.
        for page in sorted(
            search.pages(model.runs),
            key=lambda page: (page.n_shot != 0, dataset_key(page.dataset), page.n_shot),
        )
    ]
    most = _MAX_SEARCHES if len(facts.own_models) <= _MANY_MODELS else _MAX_SEARCHES_OF_MANY
    drawings = search.strips((page for _, page in chosen), most)
    by_model: dict[str, list[tuple[str, Markup]]] = {}
    for (model, page), drawing in zip(chosen, drawings, strict=False):
        if drawing:
            caption = f"{page.dataset}, {shots_title(page.n_shot)}"
            by_model.setdefault(model.label, []).append((caption, Markup(drawing)))
    drawn = sum(map(len, by_model.values()))
    cut = drawn == most < len(chosen)
    return {"by_model": by_model, "drawn": drawn, "total": len(chosen), "cut": cut} if drawn else None
