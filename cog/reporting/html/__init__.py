"""A report on results: one self-contained HTML page that answers first where models stand.

The page loads nothing: style, script and figures are inside, and its Content-Security-Policy admits exactly
those. What comes from folders and files is escaped. ``facts`` holds everything the page states as plain values.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from cog.reporting.request import check_file
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
    overwrite: bool = False,
    created: str | None = None,
) -> Path:
    """Write the report.

    Args:
        path: the HTML file.
        results: as they were read; accuracies of runs and of imported files in ``cells``. None: there are none.
        published: accuracies of the paper (:func:`cog.results.published.accuracies`).
        root: the folder that was read, to name it.
        baseline: model that several own ones are compared with; None: the best published one (see ``facts``).
        overwrite: replace an existing file.
        created: date and time to show; default: now.

    Returns:
        The file.

    Raises:
        CogError: when it exists and ``overwrite`` is not given, or cannot be written.
    """
    from cog.reporting.html import facts, page, pictures

    target = check_file(path, flag="--report", overwrite=overwrite)
    results = results or QueryResult([], [], [], [])
    folder = None if root is None else str(root)
    stated = facts.collect(results, published=published, root=folder, baseline=baseline)
    drawn, hint = pictures.draw(stated)
    text = page.render(stated, pictures=drawn, pictures_hint=hint, created=created or now(), root=folder)
    files.write_text(target, text)
    return target
