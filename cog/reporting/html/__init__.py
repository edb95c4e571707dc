"""The report on results: one self-contained HTML page that begins with the ranks of models.

The page loads no other file: style, script and figures are inside, and its Content-Security-Policy admits exactly
those. Texts from folders and files are escaped. :mod:`~cog.reporting.html.facts` derives the statements of the page as
plain values.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from cog.reporting.outputs import check_file
from cog.results.query import QueryResult
from cog.results.scores import SeedAverage
from cog.runtime import files
from cog.runtime.provenance import now


def write(
    path: str | os.PathLike[str],
    results: QueryResult | None = None,
    *,
    published: Sequence[SeedAverage] = (),
    root: str | os.PathLike[str] | None = None,
    baseline: str | None = None,
    created: str | None = None,
) -> Path:
    """Write the report.

    Args:
        path: path of the HTML file.
        results: results with accuracies of runs and of imported files in ``cells``; None: no results.
        published: accuracies of the paper (:func:`cog.results.published.accuracies`).
        root: folder of the results, which the page names; None: no folder.
        baseline: model with which several own models are compared; None: see :func:`cog.reporting.html.facts.collect`.
        created: date and time to show; None: now.

    Returns:
        The path of the file, with symbolic links resolved.

    Raises:
        CogError: when the file cannot be written, or when the page has no result of ``baseline``.
    """
    from cog.reporting.html import facts, page, pictures

    target = check_file(path, flag="--report")
    results = results or QueryResult([], [], [], [])
    folder = None if root is None else str(root)
    stated = facts.collect(results, published=published, root=folder, baseline=baseline)
    drawn, hint = pictures.draw(stated)
    text = page.render(stated, pictures=drawn, pictures_hint=hint, created=created or now(), root=folder)
    files.write_text(target, text)
    return target
