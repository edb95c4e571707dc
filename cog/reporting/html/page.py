"""Rendering of the facts as one self-contained HTML page: templates filled with plain values."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
from collections.abc import Sequence

from markupsafe import Markup

import cog
import cog.reporting.html.experiments as experiments
import cog.reporting.html.provenance as provenance
import cog.reporting.html.score_tables as score_tables
import cog.reporting.html.sentences as sentences
from cog import constants
from cog.reporting.html.facts import Facts
from cog.reporting.html.pictures import ANSWER, Picture
from cog.reporting.html.templating import environment
from cog.results import published
from cog.results.labels import counted
from cog.results.scores import RUNS, dataset_key


def render(
    facts: Facts,
    *,
    pictures: Sequence[Picture],
    pictures_hint: str,
    created: str,
    root: str | None,
) -> str:
    """Return the text of the page.

    Args:
        facts: statements of the page.
        pictures: figures to show.
        pictures_hint: reason for the lack of figures, shown without any.
        created: date and time.
        root: folder of the results, or None.
    """
    lead = next((picture for picture in pictures if picture.name == ANSWER), None)
    pictures = [picture for picture in pictures if picture is not lead]
    rows = [*facts.own_models, *facts.papers]
    views = score_tables.views_of(facts, rows)
    searches = provenance.searches(facts)
    imported = ", ".join(
        f"{model.name} from {model.source}" for model in facts.own_models if model.source != RUNS
    )
    sections = {
        "answer": ("The answer" if facts.own_models else "About this page", True),
        "tables": ("Tables", bool(rows)),
        "experiments": ("Other experiments", facts.results.has_experiments),
        "figures": ("Figures", bool(pictures or pictures_hint)),
        "warnings": ("Warnings", bool(facts.own_models or facts.notices)),
        "runs": ("Runs and provenance", bool(imported) or any(model.runs for model in facts.own_models)),
        "search": ("Hyper-parameter search", searches is not None),
        "method": ("How to read this", True),
    }
    style, script = _resource("style.css"), _resource("script.js")
    policy = (
        # Figures have style attributes, so style-src admits all inline styles. Browsers that know the directives of the
        # second line admit only attributes and this style sheet.
        f"default-src 'none'; script-src {_hash(script)}; style-src 'unsafe-inline'; "
        f"style-src-attr 'unsafe-inline'; style-src-elem {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            facts=facts,
            headline=sentences.headline(facts),
            sentences_of=sentences.of_model,
            sections=[(key, title) for key, (title, present) in sections.items() if present],
            policy=Markup(policy),
            style=Markup(style),
            script=Markup(script),
            title=_title(facts),
            counted=_counted(facts),
            created=created,
            version=cog.__version__,
            root=root,
            labels={name: model.label for name, model in published.MODELS.items()},
            reference=published.REFERENCE,
            standard_datasets=list(constants.DATASETS),
            own_datasets=sorted(
                {dataset for model in facts.own_models for dataset in model.counts}, key=dataset_key
            ),
            published_from=_published_from(facts),
            rows=sorted(rows, key=lambda row: row.key != f"paper-{published.REFERENCE}"),
            views=views,
            first_view=next((view.key for view in views if any(line.row.is_own for line in view.lines)), "")
            or next((view.key for view in views), ""),
            experiments=experiments.collect(facts) if facts.results.has_experiments else None,
            lead=lead,
            pictures=pictures,
            pictures_hint=pictures_hint,
            provenance=provenance.describe,
            imported=imported,
            searches=searches,
        )
    )


def _resource(name: str) -> str:
    return importlib.resources.files("cog.reporting.html").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the policy source that admits exactly this text, and thereby no script or style from names."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _title(facts: Facts) -> str:
    if not facts.own_models:
        return "The published results" if facts.published else "Results of other experiments"
    if len(facts.own_models) == 1:
        only = facts.own_models[0].label
        return f"How well does {only} generalize?" if facts.compared else f"Results of {only}"
    return (
        f"How well do {len(facts.own_models)} models generalize?"
        if facts.compared
        else f"Results of {len(facts.own_models)} models"
    )


def _counted(facts: Facts) -> str:
    """Return the numbers of runs and models, or of analyses, behind the page; "" for published results alone."""
    if facts.own_models:
        n_runs, models = (
            sum(len(model.runs) for model in facts.own_models),
            counted(len(facts.own_models), "model"),
        )
        return f"{counted(n_runs, 'run')} of {models}" if n_runs else f"{models}, imported"
    return f"{len(facts.results.analyses):,} analyses" if facts.results.analyses else ""


def _published_from(facts: Facts) -> str:
    if any(cell.source == published.SOURCES["v1"] for cell in facts.published):
        return (
            "first version, January 2021, Tables 2 and 4, without deviations; its levels are others than those of the "
            "final version, so that only results on IN-1K or on those levels compare"
        )
    return "ICCV 2021, Tables 5–10 of the supplement, five seeds each"
