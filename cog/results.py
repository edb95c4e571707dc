"""Result folders read into records: one :class:`Run` per seed, one :class:`Cell` per set of seeds.

Printing never recomputes and reading never fails on one bad folder: whatever cannot be counted comes
back as a :class:`Problem`. No torch here, so that tables appear at once.
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cog import files, names, paths, safe_load
from cog.errors import CogError

LOGS_FILE = "logs.pkl"
RESULTS_FILE = "results.json"

#: ``Cell.source`` of runs found on disk.
RUNS = "runs"

#: The logged accuracies (percent, one value per epoch), by the name the tables use.
METRICS = {"top1": "test/top1", "top5": "test/top5"}

# Folders of the original toolkit may lack the hyper-parameters in their name: any "final*" is read.
# (model, data set, shots or None when the runs must say, seed) -> seed folders
_Candidates = dict[tuple[str, str, int | None, int], list[Path]]
_FINAL_FOLDER = re.compile(r"final-lr-(?P<lr>.+)_wd-(?P<wd>.+)")

# Accuracies computed in float32 may exceed 100 by rounding.
_TOLERANCE_PERCENT = 1e-3

_LEFTOVER = "a hidden folder, probably of a run that is unfinished or was interrupted"

# What cog.staging creates inside a seed folder until the run is complete.
_STAGE_PREFIX = ".partial-"


@dataclass(frozen=True)
class Details:
    """What ``results.json`` tells about a run beside its accuracy; all empty for the original toolkit's runs.

    Entries that are absent, or not of the type given here, are empty or None: this is for showing, and nothing
    is computed from it.

    Attributes:
        settings: the protocol's settings (``Settings`` of :mod:`cog.logreg.settings`) as recorded: numbers,
            booleans, None, and lists of two numbers: ``seed``, ``n_shot``, ``n_trials``, ``n_epochs``,
            ``batch_size``, ``momentum``, ``val_frac``, ``lr_interval``, ``wd_interval``, ``normalize``, ``lr``,
            ``wd`` (the last two only without a search).
        train_features: recorded identity of the training features: ``bytes``, ``checkpoint_sha256``,
            ``image_list_sha256``.
        test_features: the same of the test features.
        train_features_file: path of the training features as the run saw it.
        test_features_file: the same of the test features.
        n_classes: number of classes.
        feature_dim: dimensions of the features.
        rows: numbers of samples: ``search_train``, ``search_val``, ``final_train``, ``test``.
        n_trials: trials of the search that were recorded.
        n_trials_diverged: how many of them diverged.
        best_trial: number of the trial whose pair was used; None without a search.
        best_val_top1: its accuracy on the held-out part, in percent.
        seconds: durations of ``search`` and ``final``.
        versions: of Python packages.
        device: ``cpu``, ``cuda:0``, ...
        finished: ISO 8601 time in UTC.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    train_features: Mapping[str, Any] = field(default_factory=dict)
    test_features: Mapping[str, Any] = field(default_factory=dict)
    train_features_file: str | None = None
    test_features_file: str | None = None
    n_classes: int | None = None
    feature_dim: int | None = None
    rows: Mapping[str, int] = field(default_factory=dict)
    n_trials: int = 0
    n_trials_diverged: int = 0
    best_trial: int | None = None
    best_val_top1: float | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str | None = None
    finished: str | None = None


@dataclass(frozen=True)
class Run:
    """One finished classifier run: one model, data set, number of shots and seed.

    ``details`` holds what a report shows beside the accuracy; it takes no part in comparisons.
    """

    model: str
    dataset: str
    n_shot: int  # training images per class, 0 = all
    seed: int
    top1: float  # percent, last epoch
    top5: float
    n_epochs: int
    lr: float | None  # of the final training; None where the folder does not tell
    wd: float | None
    diverged: bool  # as the run recorded it; runs of the original toolkit do not
    path: Path  # the seed folder
    final_folder: str  # its subfolder with logs.pkl
    details: Details = field(default_factory=Details, compare=False, repr=False)


@dataclass(frozen=True)
class Problem:
    """A folder that was not counted, and why."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True)
class Score:
    """Mean and population standard deviation over seeds, in percent.

    ``std`` is None where a publication does not give it (the paper's first version).
    """

    mean: float
    std: float | None


@dataclass(frozen=True)
class Cell:
    """All seeds of one model, data set and number of shots: of runs, of a publication, or of a file."""

    model: str
    dataset: str
    n_shot: int  # training images per class, 0 = all
    top1: Score
    top5: Score | None  # None: not published
    seeds: tuple[int, ...]  # ascending; empty for published cells
    missing_seeds: tuple[int, ...]
    epochs: tuple[int, ...]  # of each run, in the order of ``seeds``
    source: str = RUNS  # "runs", "paper v2", "paper v1", or the label of an imported file
    top1_by_seed: tuple[
        float, ...
    ] = ()  # percent, in the order of ``seeds``; empty where only the mean is known
    top5_by_seed: tuple[float, ...] = ()

    def score(self, metric: str) -> Score | None:
        """Return the score of ``"top1"`` or ``"top5"``; None when it is not known."""
        return {"top1": self.top1, "top5": self.top5}[metric]

    def by_seed(self, metric: str) -> dict[int, float]:
        """Return the accuracies (percent) of ``"top1"`` or ``"top5"`` by seed; empty when they are not known."""
        values = {"top1": self.top1_by_seed, "top5": self.top5_by_seed}[metric]
        return dict(zip(self.seeds, values, strict=True)) if values else {}


def natural_key(name: str) -> tuple[Any, ...]:
    """Sort key that orders ``x2`` before ``x10``; ties are broken by the plain spelling."""
    parts = re.split(r"([0-9]+)", name)
    return tuple(int(part) if index % 2 else part.casefold() for index, part in enumerate(parts)), name


def dataset_key(dataset: str) -> tuple[Any, ...]:
    """Sort key: in1k, then cog_l1, cog_l2 ... by level, then a user's own data sets by name."""
    level = names.cog_level(dataset)
    if dataset == names.IN1K:
        return (0, 0, ())
    return (2, 0, natural_key(dataset)) if level is None else (1, level, ())


def find_runs(
    models_root_dir: str | os.PathLike[str],
    *,
    models: Iterable[str] | None = None,
    datasets: Iterable[str] | None = None,
    n_shots: Iterable[int] | None = None,
    eval_name: str = "logreg",
    seeds: Iterable[int] | None = None,
) -> tuple[list[Run], list[Problem]]:
    """Find and read every run under ``models_root_dir``, in both spellings of the folder names.

    Args:
        models_root_dir: folder of the layout in ``cog/paths.py``.
        models: names to look at; None: all (same for the other filters).
        datasets: data sets to look at.
        n_shots: training images per class, 0 = all images.
        eval_name: ``EVAL.NAME`` of the runs.
        seeds: seeds to look at.

    Returns:
        The runs, sorted by model (natural order), data set (:func:`dataset_key`), shots and seed; and
        the folders that look like runs but cannot be counted, sorted by path. A seed found in two
        folders (``seed-22`` and ``seed_22``) is ambiguous, so neither is counted.

    Raises:
        CogError: when ``models_root_dir`` is not a readable folder, or a name is not valid.
    """
    root = files.require_dir(models_root_dir, "--models_root_dir")
    wanted_datasets = None if datasets is None else {paths.check_dataset_name(name) for name in datasets}
    wanted_shots = None if n_shots is None else set(n_shots)
    problems: list[Problem] = []
    candidates: _Candidates = {}
    for model, model_path in _model_folders(root, models, problems):
        for dataset in _folders(model_path, problems, missing_ok=True):
            if wanted_datasets is not None and dataset not in wanted_datasets:
                continue
            for folder in _folders(model_path / dataset, problems):
                parsed = paths.parse_evaluation_folder(folder)
                if parsed is None or parsed[0] != eval_name:
                    continue
                if wanted_shots is not None and parsed[1] not in wanted_shots:
                    continue
                for seed, path in _seed_folders(model_path / dataset / folder, seeds, problems):
                    candidates.setdefault((model, dataset, parsed[1], seed), []).append(path)
    return _read_all(candidates, problems)


def read_evaluation(
    folder: str | os.PathLike[str], *, seeds: Iterable[int] | None = None
) -> tuple[list[Run], list[Problem]]:
    """Read the runs of one evaluation folder (``.../eval_logreg_N8``, or any folder of seed folders).

    Model, data set and shots come from the path when it ends as the layout does; otherwise the names
    are empty and the shots are those the runs record (original toolkit: those of the folder's name).

    Raises:
        CogError: when ``folder`` is not a readable folder.
    """
    folder = files.require_dir(folder, "--logreg_root_dir")
    model, dataset, n_shot = _describe(folder)
    problems: list[Problem] = []
    candidates: _Candidates = {}
    for seed, path in _seed_folders(folder, seeds, problems):
        candidates.setdefault((model, dataset, n_shot, seed), []).append(path)
    return _read_all(candidates, problems)


def _describe(folder: Path) -> tuple[str, str, int | None]:
    """Model, data set and shots of an evaluation folder in the layout; empty and None elsewhere."""
    parts = Path(os.path.abspath(folder)).parts[-4:]
    parsed = paths.parse_evaluation_folder(parts[-1]) if parts else None
    model = "_".join(parts[:2])
    if parsed is None or len(parts) < 4 or not names.is_model_name(model) or "_" in parts[0]:
        return "", "", None
    return model, parts[2], parsed[1]


def _scan(path: Path, problems: list[Problem], *, missing_ok: bool = False) -> list[os.DirEntry[str]]:
    """List a folder in name order; an unreadable one becomes a problem."""
    try:
        with os.scandir(path) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        if not missing_ok:
            problems.append(Problem(path, "vanished while the results were read"))
    except NotADirectoryError:
        pass
    except OSError as error:
        problems.append(Problem(path, f"cannot be read: {error.strerror or error}"))
    return []


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads nowhere we may look
        return False


def _folders(path: Path, problems: list[Problem], *, missing_ok: bool = False) -> Iterator[str]:
    for entry in _scan(path, problems, missing_ok=missing_ok):
        if not entry.name.startswith(".") and _is_dir(entry):
            yield entry.name


def _model_folders(
    root: Path, models: Iterable[str] | None, problems: list[Problem]
) -> Iterator[tuple[str, Path]]:
    if models is not None:
        for model in dict.fromkeys(models):
            yield model, paths.ModelDir(root, model).path
        return
    for title in _folders(root, problems):
        if "_" in title:  # no model's: names are split at the first underscore
            continue
        for architecture in _folders(root / title, problems):
            model = f"{title}_{architecture}"
            if names.is_model_name(model):
                yield model, root / title / architecture


def _seed_folders(
    folder: Path, seeds: Iterable[int] | None, problems: list[Problem]
) -> Iterator[tuple[int, Path]]:
    wanted = None if seeds is None else set(seeds)
    for entry in _scan(folder, problems):
        hidden = entry.name.startswith(".")
        if not (hidden or entry.name.startswith("seed")) or not _is_dir(entry):
            continue
        seed = None if hidden else paths.parse_seed_folder(entry.name)
        path = folder / entry.name
        if hidden:
            problems.append(Problem(path, _LEFTOVER))
        elif seed is None:
            problems.append(Problem(path, "not a seed folder, expected seed-<number>"))
        elif wanted is None or seed in wanted:
            yield seed, path


def _read_all(candidates: _Candidates, problems: list[Problem]) -> tuple[list[Run], list[Problem]]:
    runs: list[Run] = []
    for (model, dataset, n_shot, seed), found in candidates.items():
        if len(found) > 1:
            for path in found:
                others = ", ".join(str(other) for other in found if other != path)
                problems.append(Problem(path, f"seed {seed} is also in {others}; keep one of them"))
            continue
        try:
            runs.append(
                read_run(found[0], model=model, dataset=dataset, n_shot=n_shot, seed=seed, problems=problems)
            )
        except CogError as error:
            # Messages of the loader name the whole path, which the problem already says.
            problems.append(Problem(found[0], str(error).replace(f"{found[0]}{os.sep}", "")))
    runs.sort(key=lambda run: (natural_key(run.model), dataset_key(run.dataset), run.n_shot, run.seed))
    return runs, sorted(problems, key=lambda problem: str(problem.path))


def read_run(
    path: str | os.PathLike[str],
    *,
    model: str,
    dataset: str,
    n_shot: int | None,
    seed: int,
    problems: list[Problem] | None = None,
) -> Run:
    """Read one seed folder.

    A run of this toolkit is complete when ``results.json`` says so (it is written last); one of the
    original toolkit, which has no such file, when its one ``final*/logs.pkl`` holds accuracies.

    Args:
        path: the seed folder.
        model: what the folder's place says about the run (same for the next three).
        dataset: data set.
        n_shot: training images per class, 0 = all; None: as the run records it, else as the evaluation
            folder's name has it.
        seed: seed.
        problems: receives leftovers inside the folder that do not make the run unusable.

    Raises:
        CogError: when the run is unfinished, ambiguous, or its files cannot be read safely.
    """
    path = Path(path)
    problems = [] if problems is None else problems
    listing: list[Problem] = []
    entries = _scan(path, listing)
    if listing:
        raise CogError(listing[0].reason)
    finals, stages = [], []
    record: dict[str, Any] | None = None
    for entry in entries:
        if entry.name == RESULTS_FILE:
            record = _read_record(path, seed=seed, n_shot=n_shot)
        elif entry.name.startswith("final") and _is_dir(entry):
            finals.append(entry.name)
        elif entry.name.startswith(_STAGE_PREFIX):
            stages.append(entry.name)
    if stages and record is None:
        raise CogError(
            f"{stages[0]} is there but no {RESULTS_FILE}: the run is unfinished or was interrupted"
        )
    problems += [Problem(path / name, _LEFTOVER) for name in stages]
    final = _choose_final(path, finals, record)
    logs = safe_load.load_pickle(path / final / LOGS_FILE)
    where = f"{final}/{LOGS_FILE}"
    top1, n_epochs = _last_accuracy(logs, METRICS["top1"], where)
    top5, n_epochs_top5 = _last_accuracy(logs, METRICS["top5"], where)
    if n_epochs != n_epochs_top5:
        raise CogError(f"{where} has {n_epochs} epochs of test/top1 but {n_epochs_top5} of test/top5")
    recorded = record["final"] if record is not None else {}
    if n_shot is None:
        named_shots = paths.parse_evaluation_folder(Path(os.path.abspath(path)).parent.name)
        n_shot = record.get("n_shot", 0) if record is not None else named_shots[1] if named_shots else 0
    named = _FINAL_FOLDER.fullmatch(final)
    return Run(
        model=model,
        dataset=dataset,
        n_shot=n_shot,
        seed=seed,
        top1=top1,
        top5=top5,
        n_epochs=n_epochs,
        lr=_number(recorded.get("lr", named and named["lr"])),
        wd=_number(recorded.get("wd", named and named["wd"])),
        diverged=recorded.get("diverged") is True,
        path=path,
        final_folder=final,
    )


def _read_record(path: Path, *, seed: int, n_shot: int | None) -> dict[str, Any]:
    """Read ``results.json`` and check that it belongs here: a copied folder would fake agreement."""
    try:
        record = json.loads((path / RESULTS_FILE).read_bytes())
    except OSError as error:
        raise CogError(f"cannot read {RESULTS_FILE}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CogError(f"{RESULTS_FILE} is not valid JSON ({error})") from error
    if not isinstance(record, dict) or not isinstance(record.get("final"), dict):
        raise CogError(f"{RESULTS_FILE} does not describe a run (no entry 'final')")
    if record.get("status") != "complete":
        raise CogError(f"{RESULTS_FILE} says status {record.get('status')!r}, expected 'complete'")
    for key, expected in (("seed", seed), ("n_shot", n_shot)):
        if expected is not None and record.get(key, expected) != expected:
            raise CogError(f"{RESULTS_FILE} says {key} {record[key]!r}, the folder's name {expected}")
    return record


def _choose_final(path: Path, finals: Sequence[str], record: Mapping[str, Any] | None) -> str:
    if record is not None:
        folder = record["final"].get("folder")
        if folder not in finals:
            raise CogError(f"{RESULTS_FILE} names the final folder {folder!r}, which is not there")
        return folder
    if len(finals) > 1:
        # As in the original toolkit only a folder with logs is a candidate.
        finals = [name for name in finals if (path / name / LOGS_FILE).is_file()]
    if not finals:
        raise CogError(f"no final-*/{LOGS_FILE}: the run is unfinished or failed")
    if len(finals) > 1:
        raise CogError(f"{len(finals)} final folders ({', '.join(finals)}); keep the one that counts")
    return finals[0]


def _last_accuracy(logs: Any, key: str, where: str) -> tuple[float, int]:
    """Return the last value (percent) of the list ``logs[key]`` and its length."""
    if not isinstance(logs, dict):
        raise CogError(f"{where} holds {type(logs).__name__}, expected a dict of lists")
    values: Any = logs.get(key)
    if hasattr(values, "tolist"):  # numpy
        values = values.tolist()
    if not isinstance(values, list | tuple):
        raise CogError(f"{where} has no list {key}")
    if not values:
        raise CogError(f"{where} has an empty list {key}: no epoch was finished")
    value = values[-1].tolist() if hasattr(values[-1], "tolist") else values[-1]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CogError(f"{where} has {type(value).__name__} in {key}, expected numbers")
    if not -_TOLERANCE_PERCENT <= value <= 100 + _TOLERANCE_PERCENT:  # also refuses NaN
        raise CogError(f"{where} ends with {key} = {value}, expected a percentage")
    return float(value), len(values)


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def default_seeds(runs: Iterable[Run]) -> tuple[int, ...]:
    """Return the seeds to expect: the protocol's five when all runs are among them, else those found."""
    found = {run.seed for run in runs}
    return names.SEEDS if found <= set(names.SEEDS) else tuple(sorted(found))


def summarise(runs: Iterable[Run], expected_seeds: Iterable[int] = ()) -> list[Cell]:
    """Average the runs of each model, data set and number of shots over their seeds.

    The standard deviation is that of the population (divided by n), as in the original toolkit.

    Args:
        runs: any runs; every one counts, also one whose seed is not expected.
        expected_seeds: seeds that each cell should have.

    Returns:
        One cell per combination that has at least one run, sorted as :func:`find_runs` sorts.

    Raises:
        CogError: when two runs have the same model, data set, shots and seed.
    """
    expected = sorted(set(expected_seeds))
    groups: dict[tuple[str, str, int], dict[int, Run]] = {}
    for run in runs:
        group = groups.setdefault((run.model, run.dataset, run.n_shot), {})
        if run.seed in group:
            raise CogError(f"{run.path} and {group[run.seed].path} are the same run; keep one of them")
        group[run.seed] = run
    order = sorted(groups, key=lambda key: (natural_key(key[0]), dataset_key(key[1]), key[2]))
    return [_cell(key, groups[key], expected) for key in order]


def _cell(key: tuple[str, str, int], by_seed: Mapping[int, Run], expected: Sequence[int]) -> Cell:
    runs = [by_seed[seed] for seed in sorted(by_seed)]
    return Cell(
        model=key[0],
        dataset=key[1],
        n_shot=key[2],
        top1=_score([run.top1 for run in runs]),
        top5=_score([run.top5 for run in runs]),
        seeds=tuple(run.seed for run in runs),
        missing_seeds=tuple(seed for seed in expected if seed not in by_seed),
        epochs=tuple(run.n_epochs for run in runs),
        top1_by_seed=tuple(run.top1 for run in runs),
        top5_by_seed=tuple(run.top5 for run in runs),
    )


def _score(values: Sequence[float]) -> Score:
    return Score(mean=statistics.fmean(values), std=statistics.pstdev(values))
