"""The facts as one HTML page that needs nothing beside itself."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
from collections.abc import Sequence

import cog.reporting.html.answer as answer
import cog.reporting.html.experiments as experiments
import cog.reporting.html.provenance as provenance
import cog.reporting.html.score_tables as score_tables
from cog.reporting.html.facts import Facts
from cog.reporting.html.markup import date, esc, listing, prose
from cog.reporting.html.pictures import Picture
from cog.results import published
from cog.results.diagnostics import Notice
from cog.results.official import Match

_SEVERITY_LABELS = {"problem": "Problem", "warning": "Warning", "note": "Note"}


def render(
    facts: Facts,
    *,
    pictures: Sequence[Picture],
    pictures_hint: str,
    created: str,
    version: str,
    root: str | None,
) -> str:
    """Return the page.

    Args:
        facts: what to state.
        pictures: figures to show.
        pictures_hint: shown when there are none: why.
        created: date and time.
        version: of this toolkit.
        root: the folder that was read, if it was one.
    """
    labels = {name: model.label for name, model in published.MODELS.items()}
    official = facts.compared or not facts.own
    sections = [
        ("answer", "The answer" if facts.own else "About this page", answer.render(facts, labels)),
        ("tables", "Tables", _tables(facts, official=official)),
        ("experiments", "Other experiments", experiments.render(facts.experiments)),
        ("figures", "Figures", _figures(pictures, pictures_hint)),
        ("warnings", "Warnings", _notices(facts.notices) if facts.own or facts.notices else ""),
        ("runs", "Runs and provenance", provenance.render_runs(facts)),
        ("search", "Hyper-parameter search", provenance.render_searches(facts)),
        ("method", "How to read this", _method(facts)),
    ]
    sections = [section for section in sections if section[2]]
    navigation = listing(f'<a href="#{key}">{esc(title)}</a>' for key, title, _ in sections)
    body = "".join(
        f'<section id="{key}" aria-labelledby="{key}-title"><h2 id="{key}-title">{esc(title)}</h2>{content}</section>'
        for key, title, content in sections
    )
    style, script = _resource("style.css"), _resource("script.js")
    policy = (
        # Figures carry style attributes; the second line narrows the first in browsers that know it.
        f"default-src 'none'; script-src {_hash(script)}; style-src 'unsafe-inline'; "
        f"style-src-attr 'unsafe-inline'; style-src-elem {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    n_runs = sum(len(model.runs) for model in facts.own)
    read = f" from <span class='path'>{esc(root)}</span>" if root is not None else ""
    summary = f"written {esc(date(created))}"
    if not facts.own and facts.experiments.analyses:
        summary = f"{len(facts.experiments.analyses):,} analyses{read}, {summary}"
    if facts.own:
        models = f"{len(facts.own)} model{'s' * (len(facts.own) != 1)}"
        summary = f"{n_runs:,} run{'s' * (n_runs != 1)} of {models}{read}, {summary}"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        # Without an icon of its own, a page on a server makes the browser ask for one.
        '<link rel="icon" href="data:,">\n'
        f"<title>{esc(_title(facts))}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#answer">Skip to the content</a>\n'
        f"<header><p class='kicker'>ImageNet-CoG: concept generalization</p><h1>{esc(_title(facts))}</h1>"
        f"<p class='summary'>{summary}</p><nav aria-label='Sections'>{navigation}</nav></header>\n"
        f"<main>{body}</main>\n"
        f"<footer><p>Written by imagenet-cog {esc(version)}. This page is one file: keep it, send it, print "
        f"it.</p></footer>\n<script>{script}</script>\n</body>\n</html>\n"
    )


def _resource(name: str) -> str:
    return importlib.resources.files("cog.reporting.html").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Allow exactly this text: a name that smuggled markup in could still not run or style anything."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _title(facts: Facts) -> str:
    if not facts.own:
        return "The published results" if facts.published else "Results of other experiments"
    if len(facts.own) == 1:
        only = facts.own[0].label
        return f"How well does {only} generalise?" if facts.compared else f"Results of {only}"
    return (
        f"How well do {len(facts.own)} models generalise?"
        if facts.compared
        else f"Results of {len(facts.own)} models"
    )


def _tables(facts: Facts, *, official: bool) -> str:
    rows = score_tables.rows_of(facts)
    if not rows:
        return ""
    text = "<p class='needs-script'>Click a column title to sort by it, again for the other direction.</p>"
    if facts.own and not facts.compared and facts.published:
        text += (
            "<p>Published results are left out, because they are on other data. "
            "<code>print_results.py --published_only</code> shows them.</p>"
        )
    elif facts.own:
        text += (
            f"<p>Highlighted: own results. The others are those of the paper ({_published_from(facts)}).</p>"
        )
    if any(cell.missing_seeds for model in facts.own for cell in model.cells):
        text += "<p><span class='part'>2/5</span> marks results with fewer seeds than expected.</p>"
    return text + score_tables.render(rows, official=official)


def _figures(pictures: Sequence[Picture], hint: str) -> str:
    if not pictures:
        return f"<p>{esc(hint)}</p>" if hint else ""
    drawn = "".join(
        f"<figure><div class='scroll picture{' wide' * picture.wide}' role='group' tabindex='0' aria-label='Figure "
        f"{number}'>{picture.svg}</div><figcaption>{prose(picture.caption)}</figcaption></figure>"
        for number, picture in enumerate(pictures, start=1)
    )
    return (
        f"{drawn}<p><code>print_results.py --figures DIR</code> writes these and all others as PDF, PNG and "
        "SVG, with their data as CSV.</p>"
    )


def _notices(notices: Sequence[Notice]) -> str:
    if not notices:
        return "<p>Nothing to report: all seeds are there, and nothing unusual was found in the runs.</p>"
    drawn = [(notice.severity, _notice(number, notice)) for number, notice in enumerate(notices)]
    serious = "".join(text for severity, text in drawn if severity != "note")
    notes = [text for severity, text in drawn if severity == "note"]
    if not serious:
        serious = "<p>No problems and no warnings.</p>"
    if notes:
        title = f"{len(notes)} note{'s' * (len(notes) != 1)}: good to know, nothing urgent"
        serious += f"<details class='print'><summary>{title}</summary>{''.join(notes)}</details>"
    return serious


def _notice(number: int, notice: Notice) -> str:
    commands = "".join(f"{esc(command)}\n" for command in notice.commands)
    where = ""
    if notice.items:
        count = (
            f"{len(notice.items)} place{'s' * (len(notice.items) != 1)}"
            if len(notice.items) < 12
            else "the first"
        )
        where = (
            f"<details class='print'><summary>Where ({count})</summary>"
            f"{listing(map(prose, notice.items), cls='where')}</details>"
        )
    model = f" <span class='of'>{esc(notice.model)}</span>" if notice.model else ""
    return (
        f"<article class='notice {notice.severity}' id='notice-{number}' aria-labelledby='notice-{number}-title'>"
        f"<h3 id='notice-{number}-title'><span class='badge'>{_SEVERITY_LABELS[notice.severity]}</span> "
        f"{prose(notice.title)}{model}</h3>"
        f"<p>{prose(notice.text)}</p><p><strong>What to do:</strong> {prose(notice.action)}</p>"
        + (
            f"<pre class='scroll' tabindex='0' role='group' aria-label='Commands'>{commands}</pre>"
            if commands
            else ""
        )
        + f"{where}</article>"
    )


def _published_from(facts: Facts) -> str:
    if any(cell.source == published.SOURCES["v1"] for cell in facts.published):
        return (
            "first version, January 2021, Tables 2 and 4, without deviations; its levels are others than those of the "
            "final version, so that only results on IN-1K or on those levels compare"
        )
    return "ICCV 2021, Tables 5–10 of the supplement, five seeds each"


def _method(facts: Facts) -> str:
    items = [
        "Scores are top-1 accuracies of linear classifiers on frozen features, in percent: the mean over "
        "seeds ± the population standard deviation.",
        "IN-1K holds the concepts most models were trained on; L1 to L5 are unseen concepts, ever further "
        "from them in WordNet.",
        "A rank counts the published models with a higher mean at the paper's precision of 0.1, plus one; "
        "equal means share the better rank. Models of your own do not rank against each other.",
        "About equal: the difference of two means is within one combined standard deviation (the root of "
        "the sum of both variances over seeds). That is a rule of thumb with five seeds, not a test: "
        "differences near it are undecided, and with 31 models a few differences beyond it are to be "
        "expected by chance.",
        "A model that is itself published is not ranked against its own published result.",
    ]
    if any(verdict.match is Match.UNKNOWN for model in facts.own for verdict in model.counts.values()):
        items.append(
            "Where nobody recorded the numbers of classes and images, the official data are assumed."
        )
    items.append(
        "Published results: M. B. Sariyildiz, Y. Kalantidis, D. Larlus, K. Alahari, Concept Generalization in Visual "
        f"Representation Learning, {_published_from(facts)}."
    )
    return listing(map(prose, items))
