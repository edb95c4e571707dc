"""The report on results: one self-contained HTML page, with the tables and figures of ``print_results.py`` in it.

The page loads no other file: style, script and figures are inside. Texts from folders and files are escaped.
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
        baseline: model to which differences are shown; None: the paper's reference, if there are results of it.
        created: date and time to show; None: now.

    Returns:
        The path of the file, with symbolic links resolved.

    Raises:
        CogError: when the file cannot be written, or when the page has no result of ``baseline``.
    """
    from cog.reporting.html import page

    target = check_file(path, flag="--report", overwrite=True)
    text = page.render(
        results or QueryResult([], [], [], []),
        published,
        root=None if root is None else str(root),
        baseline=baseline,
        created=created or now(),
    )
    files.write_text(target, text)
    return target
