"""Requests for results: the selection to read, the tables to show, the files to write."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from cog.errors import CogError
from cog.reporting.tables import writers
from cog.results import uncertainty
from cog.results.query import ResultQuery

_FILES = ("output", "export", "report")
_FOLDERS = ("figures", "diagnostics")


@dataclass(frozen=True)
class ResultsRequest:
    """Results to read, tables to show and their form; the fields have the names of the flags of ``print_results.py``.

    At most one of the fields from ``relative_to`` to ``overview`` is set.

    Attributes:
        selection: results to read.
        view: layout of tables of averages; None: ``datasets``.
        analysis: names of analyses.
        variants: names of other classifiers than that of the protocol.
        metric: ``top1``, ``top5`` or ``both``; None: depends on the view.
        decimals: digits after the point; None: depends on the view.
        width: columns of the terminal; 0: any.
        per_seed: whether a single evaluation is shown seed by seed (as text).
        limit: ``--limit`` of the test run that made the numbers, which are no results then; 0: no test run.
    """

    selection: ResultQuery
    allow_mixed_epochs: bool = False
    view: str | None = None
    relative_to: str | None = None
    drop: bool = False
    rank: bool = False
    baseline: str | None = None
    claims: bool = False
    power: bool = False
    analysis: list[str] | None = None
    variants: list[str] | None = None
    overview: bool = False
    metric: str | None = None
    with_published: bool = False
    paper: str = "v2"
    format: str = "text"
    decimals: int | None = None
    labels: str = "name"
    width: int = writers.WIDTH
    per_seed: bool = False
    interval_over: str = uncertainty.CONCEPTS
    limit: int = 0

    @property
    def shows_experiments(self) -> bool:
        """Return whether other experiments than those of one evaluation are shown."""
        return bool(self.analysis or self.variants or self.overview)


@dataclass(frozen=True)
class OutputRequest:
    """Files and folders to write; the fields have the names of the flags of ``print_results.py``.

    Attributes:
        output: file of the tables; None: standard output.
        figure_names: figures to draw; None: all.
        figure_formats: formats of figures and curves; None: all.
        reads_runs: whether folders of runs are read, so that their curves can be drawn.
    """

    output: str | None = None
    export: str | None = None
    label: str | None = None
    report: str | None = None
    figures: str | None = None
    diagnostics: str | None = None
    figure_names: list[str] | None = None
    figure_formats: list[str] | None = None
    overwrite: bool = False
    reads_runs: bool = True

    @property
    def without_tables(self) -> bool:
        """Return whether other files are written instead of tables."""
        return any(getattr(self, flag) for flag in (*_FILES[1:], *_FOLDERS))


def check_outputs(request: OutputRequest) -> dict[str, Path]:
    """Return the paths of the requested outputs by flag, such as ``output``, before any result is read.

    Raises:
        CogError: when a file exists or cannot be written, or when flags contradict each other.
    """
    if request.label is not None and request.export is None:
        raise CogError("--label names the runs in an exported file; add --export FILE")
    _check_drawings(request)
    files, folders = (
        {flag: name for flag in flags if (name := getattr(request, flag)) is not None}
        for flags in (_FILES, _FOLDERS)
    )
    paths = {
        flag: check_file(name, flag=f"--{flag}", overwrite=request.overwrite) for flag, name in files.items()
    }
    if len(set(paths.values())) < len(paths):
        raise CogError("--output, --export and --report name the same file; give each its own")
    return paths | {flag: _check_folder(name, flag=f"--{flag}") for flag, name in folders.items()}


def _check_drawings(request: OutputRequest) -> None:
    names, formats = request.figure_names, request.figure_formats
    if names and request.figures is None:
        raise CogError("--figure_names chooses among --figures; add --figures DIR")
    if formats and request.figures is None and request.diagnostics is None:
        raise CogError("--figure_formats is for --figures and --diagnostics; add one of them")
    if request.diagnostics is not None and not request.reads_runs:
        raise CogError("--diagnostics needs runs: give --models_root_dir or --logreg_root_dir")
    if names or formats:
        from cog.reporting import figures

        of_flags = ("--figure_names", names, figures.names()), ("--figure_formats", formats, figures.FORMATS)
        for flag, values, known in of_flags:
            for value in values or ():
                if value not in known:
                    raise CogError(f"{flag} {value} is not known, expected some of {', '.join(known)}")


def check_file(name: str | os.PathLike[str], *, flag: str, overwrite: bool) -> Path:
    """Return the path of a file to write, with symbolic links resolved; messages name its ``flag``.

    Raises:
        CogError: when the file cannot be written there, or exists without ``overwrite``.
    """
    path = Path(os.path.realpath(name))  # atomic replacement would turn a link into a file
    if path.is_dir():
        raise CogError(f"{flag} {name} is a folder, expected a file")
    if not path.parent.is_dir():
        raise CogError(f"the folder of {flag} {name} does not exist; create it first")
    if path.exists():
        if not stat.S_ISREG(path.stat().st_mode):
            raise CogError(f"{flag} {name} is not a regular file")
        if not overwrite:
            raise CogError(f"{flag} {name} exists; remove it or add --overwrite")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise CogError(f"cannot write {flag} {name}: no permission to create files in its folder")
    return path


def _check_folder(name: str, *, flag: str) -> Path:
    path = Path(name)
    if path.exists() and not path.is_dir():
        raise CogError(f"{flag} {name} is a file, expected a folder")
    existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise CogError(f"cannot write into {flag} {name}: no permission to create files in {existing}")
    return path
