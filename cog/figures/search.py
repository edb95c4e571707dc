"""How runs found their learning rate and weight decay, and how the final training went.

One page per model, data set and number of shots, with its seeds together: the trials over both
hyper-parameters coloured by validation accuracy, the best accuracy so far, and the curves of the final
training. Read from ``results.json`` (trials, intervals) and ``logs.pkl``; ``study.pkl`` is a pickled Optuna
object, which cannot be read safely, so of runs of the original toolkit there are only curves.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import files, safe_load
from cog.cells import Run
from cog.errors import CogError
from cog.figures import saving
from cog.figures.curves import shorten
from cog.figures.points import dataset_label
from cog.results import LOGS_FILE, RESULTS_FILE
from cog.tables import printable
from cog.views.layout import shots_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRIAL_COLUMNS = (
    "seed",
    "trial",
    "lr",
    "wd",
    "val_top1",
    "best_so_far",
    "diverged",
    "pruned",
    "chosen",
    "seconds",
)

#: Curves of logs.pkl, in the order of the columns of the CSV file.
CURVES = ("train/loss", "test/loss", "train/top1", "test/top1", "train/top5", "test/top5", "lr")

CURVES_SUFFIX = "_curves"

_NO_STUDY = "no trials: this run was written by the original toolkit, whose study.pkl cannot be read safely"


@dataclass(frozen=True)
class Trial:
    """One pair that was tried; accuracies in percent, NaN where training diverged or nothing is recorded."""

    number: int
    lr: float
    wd: float
    val_top1: float
    diverged: bool
    pruned: bool
    seconds: float


@dataclass(frozen=True)
class Search:
    """What one run tells.

    Attributes:
        seed: of the run.
        trials: in the order they were tried; empty without a search or a record of it.
        lr: of the final training; NaN where unknown.
        wd: of the final training; NaN where unknown.
        lr_interval: searched, or None.
        wd_interval: searched, or None.
        curves: values per epoch, by the keys of ``CURVES`` that are there; NaN where not finite.
        missing: what is not there, in words.
    """

    seed: int
    trials: tuple[Trial, ...]
    lr: float
    wd: float
    lr_interval: tuple[float, float] | None
    wd_interval: tuple[float, float] | None
    curves: dict[str, tuple[float, ...]]
    missing: tuple[str, ...] = ()

    @property
    def chosen(self) -> Trial | None:
        """The trial whose pair the final training used."""
        return next((trial for trial in self.trials if (trial.lr, trial.wd) == (self.lr, self.wd)), None)

    def best_so_far(self) -> list[float]:
        """Return the highest validation accuracy after each trial; NaN until one succeeded."""
        best = math.nan
        found = []
        for trial in self.trials:
            if not (trial.diverged or trial.pruned) and not trial.val_top1 <= best:
                best = trial.val_top1
            found.append(best)
        return found


@dataclass(frozen=True)
class Page:
    """The runs of one model, data set and number of shots.

    Attributes:
        stem: of the files.
        title: one line.
        runs: sorted by seed.
    """

    stem: str
    title: str
    runs: tuple[Run, ...]


def pages(runs: Iterable[Run]) -> list[Page]:
    """Sort runs into pages, in the order of the runs.

    Raises:
        CogError: when there is no run.
    """
    groups: dict[tuple[str, str, int], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.model, run.dataset, run.n_shot), []).append(run)
    if not groups:
        raise CogError("there is no run whose search could be drawn")
    made = []
    taken: set[str] = set()
    for (model, dataset, n_shot), group in groups.items():
        name = "_".join(part for part in ("search", model, dataset, f"N{n_shot}" if n_shot else "") if part)
        stem = re.sub(r"[^A-Za-z0-9._+-]", "-", name)
        number = 1
        while stem.casefold() in taken:  # two names that differ in odd characters or case only
            number += 1
            stem = f"{re.sub(r'[^A-Za-z0-9._+-]', '-', name)}_{number}"
        taken.add(stem.casefold())
        what = [
            shorten(printable(model), 60) or "unnamed model",
            dataset_label(dataset),
            shots_label(n_shot),
        ]
        group.sort(key=lambda run: run.seed)
        made.append(Page(stem, ", ".join(what), tuple(group)))
    return made


def write(
    runs: Iterable[Run],
    folder: str | os.PathLike[str],
    *,
    formats: Sequence[str] = saving.FORMATS,
    overwrite: bool = False,
) -> list[Path]:
    """Draw one page per model, data set and shots into ``folder``, with ``<stem>.csv`` and ``<stem>_curves.csv``.

    Args:
        runs: as :func:`cog.results.find_runs` returns them.
        folder: created unless it exists.
        formats: some of :data:`cog.figures.FORMATS`.
        overwrite: whether existing files may be replaced.

    Returns:
        The files; ``search_<model>_<dataset>[_N<shots>]`` is their stem.

    Raises:
        CogError: no runs, unknown format, files that exist, matplotlib missing, a run that is gone.
    """
    made = [saving.Page(page.stem, _drawer(page), ("", CURVES_SUFFIX)) for page in pages(runs)]
    return saving.write_all(folder, made, formats=formats, overwrite=overwrite)


def svg(page: Page, *, prefix: str | None = None) -> str:
    """Return a page as an ``<svg>`` element for an HTML page, see :func:`cog.figures.svg`.

    Raises:
        CogError: matplotlib is missing, or a run is gone.
    """
    from cog.figures import inline, search_drawing

    searches = read(page)
    with saving.drawing():
        figure = search_drawing.draw(page.title, searches)
        name = re.sub(r"[^A-Za-z0-9_.-]", "-", prefix or page.stem)
        return inline.from_figure(figure, prefix=name, description=describe(page, searches), tooltips={})


def describe(page: Page, searches: Sequence[Search]) -> str:
    """Return in words what a page shows."""
    chosen = ", ".join(f"seed {one.seed}: lr {one.lr:.3g}, wd {one.wd:.3g}" for one in searches)
    return f"Hyper-parameter search and final training of {page.title}. Chosen: {chosen}."


def read(page: Page) -> list[Search]:
    """Read the runs of a page.

    Raises:
        CogError: when a run's files cannot be read any more.
    """
    return [read_run(run) for run in page.runs]


def read_run(run: Run) -> Search:
    """Read one run's trials and curves.

    Raises:
        CogError: when its files cannot be read, or hold something else.
    """
    record_file = run.path / RESULTS_FILE
    record = files.read_json(record_file) if record_file.is_file() else None
    if record is not None and not isinstance(record, dict):
        raise CogError(f"{record_file} holds {type(record).__name__}, expected a JSON object")
    missing: list[str] = []
    trials: tuple[Trial, ...] = ()
    settings: dict[str, Any] = {}
    if record is None:
        missing.append(_NO_STUDY)
    else:
        settings = record["identity"] if isinstance(record.get("identity"), dict) else {}
        trials = _trials(record.get("trials"))
        if not trials:
            missing.append("no trials: the run was made without a search, or has no record of it")
    logs = safe_load.load_pickle(run.path / run.final_folder / LOGS_FILE)
    curves = {key: _floats(logs.get(key)) for key in CURVES} if isinstance(logs, dict) else {}
    curves = {key: values for key, values in curves.items() if values}
    absent = [key for key in CURVES if key not in curves]
    if absent:
        missing.append(f"no curve of {', '.join(absent)}")
    return Search(
        seed=run.seed,
        trials=trials,
        lr=math.nan if run.lr is None else run.lr,
        wd=math.nan if run.wd is None else run.wd,
        lr_interval=_interval(settings.get("lr_interval")),
        wd_interval=_interval(settings.get("wd_interval")),
        curves=curves,
        missing=tuple(missing),
    )


def _trials(recorded: Any) -> tuple[Trial, ...]:
    """Read the trials of results.json; entries that are no trials are left out."""
    found = []
    for index, entry in enumerate(recorded if isinstance(recorded, list) else ()):
        if not isinstance(entry, dict):
            continue
        lr, wd = _float(entry.get("lr")), _float(entry.get("wd"))
        if math.isnan(lr) or math.isnan(wd):
            continue
        number = entry.get("number")
        diverged = entry.get("diverged") is True
        found.append(
            Trial(
                number=number if isinstance(number, int) else index,
                lr=lr,
                wd=wd,
                val_top1=math.nan if diverged else _float(entry.get("val_top1")),
                diverged=diverged,
                pruned=entry.get("pruned") is True,
                seconds=_float(entry.get("seconds")),
            )
        )
    return tuple(found)


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        number = float(value)
    except OverflowError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def _floats(values: Any) -> tuple[float, ...]:
    if hasattr(values, "tolist"):  # numpy
        values = values.tolist()
    if not isinstance(values, list | tuple):
        return ()
    return tuple(_float(value.tolist() if hasattr(value, "tolist") else value) for value in values)


def _interval(value: Any) -> tuple[float, float] | None:
    ends = _floats(value)
    return (ends[0], ends[1]) if len(ends) == 2 and 0 < ends[0] < ends[1] else None


def _drawer(page: Page) -> Any:
    def draw() -> tuple[Figure, dict[str, str]]:
        from cog.figures import search_drawing

        searches = read(page)
        return search_drawing.draw(page.title, searches), {
            "": trials_csv(searches),
            CURVES_SUFFIX: curves_csv(searches),
        }

    return draw


def trials_csv(searches: Sequence[Search]) -> str:
    """Return the trials as CSV, one row each."""
    rows = []
    for search in searches:
        chosen = search.chosen
        for trial, best in zip(search.trials, search.best_so_far(), strict=True):
            rows.append(
                (
                    search.seed,
                    trial.number,
                    _text(trial.lr),
                    _text(trial.wd),
                    _text(trial.val_top1),
                    _text(best),
                    int(trial.diverged),
                    int(trial.pruned),
                    int(trial is chosen),
                    _text(trial.seconds),
                )
            )
    return _csv(TRIAL_COLUMNS, rows)


def curves_csv(searches: Sequence[Search]) -> str:
    """Return the curves as CSV, one row per seed and epoch (from 1)."""
    rows = []
    for search in searches:
        for epoch in range(max((len(values) for values in search.curves.values()), default=0)):
            values = (search.curves.get(key, ()) for key in CURVES)
            rows.append(
                (search.seed, epoch + 1, *(_text(v[epoch]) if epoch < len(v) else "" for v in values))
            )
    return _csv(("seed", "epoch", *CURVES), rows)


def _csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return stream.getvalue()


def _text(value: float) -> str:
    return "" if math.isnan(value) else repr(value)
