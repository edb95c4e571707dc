"""A report on results: one self-contained HTML page that answers first where models stand.

The page loads nothing: style, script and figures are inside, and its Content-Security-Policy admits exactly
those. What comes from folders and files is escaped. ``facts`` holds everything the page states as plain values.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import cog
from cog.reporting.request import check_file
from cog.results.analysis_records import AnalysisRecord
from cog.results.run_records import Problem, Run
from cog.results.scores import SeedAverage
from cog.runtime import files
from cog.runtime.provenance import now


def write(
    path: str | os.PathLike[str],
    *,
    runs: Sequence[Run] = (),
    cells: Sequence[SeedAverage] = (),
    published: Sequence[SeedAverage] = (),
    problems: Sequence[Problem] = (),
    measures: Sequence[SeedAverage] = (),
    analyses: Sequence[AnalysisRecord] = (),
    variants: Mapping[str, Sequence[Run]] | None = None,
    root: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    created: str | None = None,
) -> Path:
    """Write the report.

    Args:
        path: the HTML file.
        runs: of :func:`cog.results.find.find_runs`.
        cells: their averages (:func:`cog.results.run_records.summarise`), and imported ones of other sources.
        published: the paper's results (:func:`cog.results.published.accuracies`).
        problems: folders that were not counted.
        measures: numbers of all experiments, with what is derived among them (:func:`cog.results.relative.derive`).
        analyses: results of analyses.
        variants: runs of other evaluations, by the name of these.
        root: the folder that was read, to name it.
        overwrite: replace an existing file.
        created: date and time to show; default: now.

    Returns:
        The file.

    Raises:
        CogError: when it exists and ``overwrite`` is not given, or cannot be written.
    """
    from cog.reporting.html import facts, page, pictures
    from cog.reporting.html.experiments import Experiments
    from cog.results.published import MODELS

    target = check_file(path, flag="--report", overwrite=overwrite)
    experiments = Experiments(measures, analyses, variants or {})
    if experiments.present and not cells:  # the published classifiers are not what this is about
        published = ()
    found = facts.collect(
        runs=runs,
        cells=cells,
        published=published,
        problems=problems,
        labels={name: model.label for name, model in MODELS.items()},
        root=None if root is None else str(root),
        experiments=experiments,
    )
    drawn, hint = pictures.draw(
        cells,
        published if found.compared or not cells else (),
        found.experiments.measures,
        found.experiments.analyses,
    )
    text = page.render(
        found,
        pictures=drawn,
        pictures_hint=hint,
        created=created or now(),
        version=cog.__version__,
        root=None if root is None else str(root),
    )
    files.write_text(target, text)
    return target
