"""Result folders below a models root, read into one record each: runs of classifiers, and results of analyses.

``results.json`` is the record of a run. Runs of the original toolkit have none; their accuracies are those of
``logs.pkl``, which both toolkits write. Nothing is recomputed, and one bad folder costs that folder: it is returned
with the reason. This module imports no torch, so that tables appear at once.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import hashlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from cog import constants, paths
from cog.errors import CogError
from cog.results import analysis_records, concept_counts
from cog.results.analysis_records import AnalysisRecord
from cog.results.benchmark import data_of
from cog.results.concept_counts import ConceptCounts
from cog.results.fields import number, sha256, text, whole
from cog.results.frame import CLASSIFIER, LOGREG, dataset_key, natural_key
from cog.runtime import files, output, safe_load

LOGS_FILE, RESULTS_FILE = "logs.pkl", "results.json"

#: Keys of the logged accuracies (percent, one value per epoch) by the name of the metric in tables.
METRICS = {"top1": "test/top1", "top5": "test/top5"}

#: Settings of the paper's protocol (Sec. 4.1, supplement B.3; epochs and intervals: configuration of the original
#: toolkit): the name in the records of runs, the value, and the key of the configuration.
PROTOCOL: dict[str, tuple[Any, str]] = {
    "n_trials": (30, "CLF.N_TRIALS"),
    "n_epochs": (100, "CLF.N_EPOCHS"),
    "batch_size": (1024, "CLF.BATCH_SIZE"),
    "momentum": (0.9, "--mom"),
    "val_frac": (0.2, "CLF.VAL_PERC"),
    "lr_interval": ([0.1, 100.0], "CLF.LR_INTV"),
    "wd_interval": ([1e-12, 1e-4], "CLF.WD_INTV"),
    "normalize": (True, "CLF.NORM_FTS"),
    "lr": (None, "CLF.LR"),
    "wd": (None, "CLF.WD"),
    "classifier": ("logreg", "CLF.TYPE"),
    "pca_dim": (0, "CLF.PCA_DIM"),
    "max_per_class": (0, "CLF.MAX_PER_CLASS"),
}

# Names of configuration keys of a classifier (cog.constants.CLASSIFIERS) in the records of runs.
_KEYS = {"NORM_FTS": "normalize", "LR_INTV": "lr_interval", "WD_INTV": "wd_interval"}

# Accuracies computed in float32 may exceed 100 by rounding. In bytes; a record of 30 trials takes 8 kB.
_TOLERANCE_PERCENT, _LARGEST_RECORD, _LARGEST_FEATURES = 1e-3, 1 << 24, 8 << 20

# A learning rate within this distance of the end, as a share of the logarithmic length of the interval, is at the edge.
_EDGE_SHARE = 0.02

_FINAL_FOLDER = re.compile(r"final(?:-lr-(?P<lr>[0-9.e+-]+)_wd-(?P<wd>[0-9.e+-]+))?[A-Za-z0-9._+-]*")


class Skipped(NamedTuple):
    """A folder that is not counted."""

    path: Path
    reason: str  # in one line
    state: str = ""  # word of cog.runtime.output.State for an unfinished result

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class Place(NamedTuple):
    """What the path of a seed folder implies."""

    model: str  # "" for a folder outside the layout, as the data set
    dataset: str
    evaluation: str  # EVAL.NAME with the suffixes of variants
    n_shot: int | None  # None outside the layout: the recorded number
    seed: int


@dataclass(frozen=True)
class Run:
    """One finished run of a classifier; what is not recorded is None or empty (as for the original toolkit)."""

    model: str
    dataset: str
    evaluation: str
    n_shot: int  # training images per class, 0 = all
    seed: int
    folder: str  # the seed folder
    final: str  # its subfolder with logs.pkl, model and predictions
    top1: float  # percent, last epoch
    top5: float
    counts: ConceptCounts | None  # right answers per concept
    data: str  # as in cog.results.frame, and the next three
    classes: str | None
    protocol: str
    features: str | None
    n_test: int | None
    lr: float | None  # of the final training
    wd: float | None
    at_edge: bool  # whether lr is at the upper end of its interval
    diverged: bool
    settings: Mapping[str, Any] = field(
        repr=False
    )  # recorded settings without seed and shots; shared between runs
    used: Mapping[str, Mapping[str, Any]] = field(repr=False)  # recorded identity of the features by split
    versions: Mapping[str, Any] = field(repr=False)
    device: str | None
    precision: str | None
    finished: str  # time of the end, ISO 8601, UTC, or ""


@dataclass
class Found:
    """What lies below a root."""

    runs: list[Run] = field(default_factory=list)
    analyses: list[AnalysisRecord] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)  # sorted by path
    #: Contents of features.json by model, data set and split, without nesting; missing where there is none.
    features: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)


# --- the walk


def find(
    root: str | os.PathLike[str],
    *,
    models: Iterable[str] | None = None,
    datasets: Iterable[str] | None = None,
    n_shots: Iterable[int] | None = None,
    evaluations: Collection[str] | None = None,
    seeds: Iterable[int] | None = None,
    analyses: bool = True,
) -> Found:
    """Return the results below a models root, in one walk over the folders.

    Both spellings of the folder names are read (``eval_logreg_N8/seed-22`` and ``eval_logreg-N8/seed_22``). A seed in
    two folders is ambiguous, and neither counts; nor do runs on other features than the others of their evaluation,
    model and data set.

    Args:
        root: folder of the layout in ``cog/paths.py``.
        models: names or patterns of names (``deit_*``) of models; None: all (same for the other filters).
        datasets: names of data sets.
        n_shots: numbers of training images per class of runs, 0 = all images.
        evaluations: names of evaluations.
        seeds: seeds of runs.
        analyses: whether to include analyses.

    Raises:
        CogError: ``root`` is not a readable folder, or a name is not valid.
    """
    root = files.require_dir(root, "--models_root_dir")
    of_datasets = None if datasets is None else set(map(paths.check_dataset_name, datasets))
    of_shots, of_seeds = (None if some is None else set(some) for some in (n_shots, seeds))
    reader = _Reader(limit=paths.limit_of(root))
    for model, folder in _model_folders(root, models, reader.skip):
        for dataset in sorted(_folders(folder, reader.skip), key=dataset_key):
            if of_datasets is not None and dataset not in of_datasets:
                continue
            for name in _folders(f"{folder}/{dataset}", reader.skip, hidden=".analysis_"):
                path, parsed = f"{folder}/{dataset}/{name}", paths.parse_evaluation_folder(name)
                if analyses and (analysis := paths.parse_analysis_folder(name.removeprefix("."))) is not None:
                    reader.read_analysis(path, model, dataset, analysis)
                elif parsed is not None and _is_wanted(parsed, evaluations, of_shots):
                    reader.list_runs(path, (model, dataset, *parsed), of_seeds)
    return reader.read()


def _is_wanted(
    parsed: tuple[str, int], evaluations: Collection[str] | None, n_shots: Collection[int] | None
) -> bool:
    return (evaluations is None or parsed[0] in evaluations) and (n_shots is None or parsed[1] in n_shots)


def read_folder(folder: str | os.PathLike[str], *, seeds: Iterable[int] | None = None) -> Found:
    """Return the runs of one evaluation folder (``.../eval_logreg_N8``, or any folder of seed folders).

    Model, data set and shots come from a path of the layout. Otherwise the names are empty, and the shots are those in
    the records of the runs (original toolkit: those in the name of the folder).

    Raises:
        CogError: ``folder`` is not a readable folder.
    """
    folder = files.require_dir(folder, "--logreg_root_dir")
    path = Path(os.path.abspath(folder))
    parts = path.parts[-4:]
    evaluation, n_shot = paths.parse_evaluation_folder(path.name) or (LOGREG, None)
    place: tuple[str, str, str, int | None] = "", "", evaluation, None
    is_model = len(parts) == 4 and "_" not in parts[0] and constants.is_model_name("_".join(parts[:2]))
    if n_shot is not None and is_model:
        place = "_".join(parts[:2]), parts[2], evaluation, n_shot
    reader = _Reader(limit=paths.limit_above(path))
    reader.list_runs(str(folder), place, None if seeds is None else set(seeds))
    return reader.read()


class _Reader:
    """Folders as they are found, and what is read from them."""

    def __init__(self, limit: int = 0) -> None:
        self.found = Found()
        self._limit = limit
        self._folders: dict[Place, list[str]] = {}

    def skip(self, path: str | Path, reason: str, state: str = "") -> None:
        self.found.skipped.append(Skipped(Path(path), reason, state))

    def skip_unfinished(self, path: str) -> None:
        """Note the state of a result that is not there, which the folder of its work has."""
        found = output.state(Path(path), RESULTS_FILE)
        words = {
            output.RUNNING: f"in progress: {found.detail}",
            output.FAILED: f"failed: {found.detail}",
            output.INTERRUPTED: "interrupted; the same command continues",
        }
        if found.word in words:
            self.skip(path, words[found.word], found.word)

    def list_runs(
        self, folder: str, place: tuple[str, str, str, int | None], seeds: Collection[int] | None
    ) -> None:
        """Add the seed folders of an evaluation."""
        for name in _folders(folder, self.skip, hidden=".seed"):
            path, work = f"{folder}/{name}", name.startswith(".") and name.endswith(".work")
            seed = paths.parse_seed_folder(name[1:].removesuffix(".work") if work else name)
            if seed is None:
                if name.startswith((".seed", "seed")):
                    self.skip(path, "not a seed folder, expected seed-<number>")
            elif seeds is None or seed in seeds:
                if not work:
                    self._folders.setdefault(Place(*place, seed), []).append(path)
                elif not os.path.isdir(f"{folder}/{name[1:].removesuffix('.work')}"):
                    self.skip_unfinished(f"{folder}/{name[1:].removesuffix('.work')}")

    def read_analysis(self, path: str, model: str, dataset: str, name: str) -> None:
        """Add the result of an analysis."""
        folder, base = os.path.split(path)
        if base.startswith("."):
            result = f"{folder}/{base[1:].removesuffix('.work')}"
            if base.endswith(".work") and not os.path.isdir(result):
                self.skip_unfinished(result)
            return
        try:
            record = analysis_records.read(path)
            if record.analysis != name:
                raise CogError(f"{RESULTS_FILE} holds {record.analysis}, the folder's name says {name}")
            record = dataclasses.replace(record, model=model, dataset=dataset)
            self.found.analyses.append(record)
        except CogError as error:
            self._refuse(path, error)

    def read(self) -> Found:
        """Read the listed runs whose seed is in no other folder, and return all results, sorted."""
        found = self.found
        for place, same in self._folders.items():
            for path in same:
                if len(same) > 1:
                    others = ", ".join(other for other in same if other != path)
                    self.skip(path, f"seed {place.seed} is also in {others}; keep one of them")
                    continue
                try:
                    found.runs.append(self._read_run(path, place))
                except CogError as error:
                    self._refuse(path, error)
        found.runs, odd = _with_same_features(found.runs)
        found.skipped = sorted([*found.skipped, *odd], key=lambda skipped: str(skipped.path))
        return found

    def _refuse(self, path: str, error: CogError) -> None:
        # Messages of the loader contain the path of the folder, which stands before the reason.
        self.skip(path, str(error).replace(f"{path}{os.sep}", ""))

    def _read_run(self, path: str, place: Place) -> Run:
        record = load_record(path)
        if record is None:
            return self._run(path, place, {}, *_read_logs(path))
        final = record.get("final")
        if not isinstance(final, dict):
            raise CogError(f"{RESULTS_FILE} does not describe a run (no entry 'final')")
        if record.get("status") != "complete":
            raise CogError(f"{RESULTS_FILE} says status {record.get('status')!r}, expected 'complete'")
        for key, expected in (("seed", place.seed), ("n_shot", place.n_shot)):
            if expected is not None and record.get(key, expected) != expected:
                raise CogError(f"{RESULTS_FILE} says {key} {record[key]!r}, the folder's name {expected}")
        if whole(record.get("n_shot", 0)) is None:
            raise CogError(f"{RESULTS_FILE} says n_shot {record['n_shot']!r}, expected a whole number")
        folder = final.get("folder")
        if not isinstance(folder, str) or _FINAL_FOLDER.fullmatch(folder) is None:
            raise CogError(f"{RESULTS_FILE} names the final folder {folder!r}, expected final-*")
        values = [percentage(final.get(f"test_{name}"), f"test_{name}", RESULTS_FILE) for name in METRICS]
        return self._run(path, place, record, folder, *values)

    def _run(
        self, path: str, place: Place, record: Mapping[str, Any], final: str, top1: float, top5: float
    ) -> Run:
        identity, stated = _object(record.get("identity")), _object(record.get("final"))
        content = json.dumps({k: v for k, v in identity.items() if k not in ("seed", "n_shot", *_USED)})
        settings, protocol = _settings(content, place.evaluation)
        used = {split: _object(identity.get(f"{split}_features")) for split in constants.SPLITS}
        made = {split: self._features(path, place, split, record) for split in constants.SPLITS}
        n_classes, n_test = whole(record.get("n_classes")), whole(_object(record.get("rows")).get("test"))
        try:
            image_list = text(used["test"].get("image_list_sha256"))
            counts = concept_counts.read(stated, n_classes=n_classes, top1=top1, image_list=image_list)
        except ValueError as error:
            raise CogError(
                f"{RESULTS_FILE} was changed ({error}); run this again with --overwrite, or remove the entry "
                f"{concept_counts.CORRECT}"
            ) from error
        n_shot = place.n_shot
        if n_shot is None:
            named = paths.parse_evaluation_folder(Path(os.path.abspath(path)).parent.name) or ("", 0)
            n_shot = record.get("n_shot", named[1])
        classes = sha256(made["train"].get("class_list_sha256"))
        n_train = n_images(made["train"])
        if n_train is None and not n_shot and "_max" not in place.evaluation:
            n_train = whole(_object(record.get("rows")).get("final_train"))
        data = data_of(place.dataset, n_classes=n_classes, n_train=n_train, n_test=n_test, classes=classes)
        pair = stated if stated.keys() >= {"lr", "wd"} else _hyper_parameters(final)
        lr = number(pair.get("lr"))
        return Run(
            *(place.model, place.dataset, place.evaluation, n_shot, place.seed, path, final, top1, top5),
            counts,
            data=f"limit-{self._limit}, {data}" if self._limit else data,
            classes=classes,
            protocol=protocol,
            features=features_digest(used),
            n_test=n_test,
            lr=lr,
            wd=number(pair.get("wd")),
            at_edge=at_upper_edge(lr, settings.get("lr_interval")),
            diverged=stated.get("diverged") is True,
            settings=settings,
            used=used,
            versions=_settings(json.dumps(_object(record.get("versions"))), "")[0],
            device=text(record.get("device")),
            precision=text(record.get("precision")),
            finished=text(record.get("finished")) or "",
        )

    def _features(self, path: str, place: Place, split: str, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the description of the features of a run: beside it, else at the recorded path, else empty."""
        key = place.model, place.dataset, split
        known = self.found.features
        if key not in known or not place.model:
            beside = os.path.join(os.path.dirname(os.path.dirname(path)), f"features_{split}")
            recorded = text(record.get(f"{split}_features")) or ""
            tried = [beside, *([os.path.dirname(recorded)] if recorded and "\0" not in recorded else [])]
            known[key] = next(filter(None, map(read_features, tried)), {})
        return known[key]


_USED = tuple(f"{split}_features" for split in constants.SPLITS)


def _with_same_features(runs: Sequence[Run]) -> tuple[list[Run], list[Skipped]]:
    """Leave out runs on other features than most runs of their evaluation, model and data set have.

    Of equally many, those that finished last stay. Runs without a record of their features stay, too.
    """
    numbers: dict[tuple[str, str, str], Counter[str]] = {}
    ends: dict[str, str] = {}
    for run in runs:
        if run.features is not None:
            numbers.setdefault((run.evaluation, run.model, run.dataset), Counter())[run.features] += 1
            ends[run.features] = max(ends.get(run.features, ""), run.finished)
    usual = {kind: max(n, key=lambda of, n=n: (n[of], ends[of])) for kind, n in numbers.items()}  # type: ignore[misc]
    counted, odd = [], []
    for run in runs:
        kind = run.evaluation, run.model, run.dataset
        if run.features in (None, usual.get(kind)):
            counted.append(run)
        else:
            n = numbers[kind][usual[kind]]
            reason = f"trained on other features than {n} run{'s' * (n > 1)} beside it"
            odd.append(Skipped(Path(run.folder), f"{reason}; train all on the same (logreg.py --overwrite)"))
    return counted, odd


def features_digest(used: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return a digest of the recorded features of a run: of their rows, else of all that is recorded of them."""
    if not all(used.values()):
        return None
    rows = [identity.get("rows_sha256") or identity.get("sample_sha256") for identity in used.values()]
    content = rows if None not in rows else list(used.values())
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def unlike_protocol(settings: Mapping[str, Any], evaluation: str) -> str:
    """Return the column ``protocol`` of a run: its settings that are not the paper's, or "".

    Args:
        settings: recorded settings; those that are missing are taken as the paper's.
        evaluation: name of the evaluation, which determines the defaults of the classifier.
    """
    match = CLASSIFIER.fullmatch(evaluation)
    kind = match["type"] if match else LOGREG
    usual = {name: value for name, (value, _) in PROTOCOL.items()} | {"classifier": kind}
    usual |= {_KEYS[key]: plain(value) for key, value in constants.CLASSIFIERS.get(kind, {}).items()}
    if match:
        usual |= {"pca_dim": int(match["pca"] or 0), "max_per_class": int(match["max"] or 0)}
    if kind == "finetune":  # the defaults of FINETUNE
        usual = {"n_epochs": 30, "batch_size": 1024, "lr": 0.01}
    differing = [
        f"{name} {_in_words(settings[name])}"
        for name, value in usual.items()
        if name in settings and plain(settings[name]) != value
    ]
    return ", ".join(differing)


def plain(value: Any) -> Any:
    """Return a value as JSON has it: lists instead of tuples."""
    return list(value) if isinstance(value, tuple) else value


def _in_words(value: Any) -> str:
    if isinstance(value, list):
        return " to ".join(_in_words(part) for part in value[:2])
    return f"{value:g}" if isinstance(value, float) else str(value)[:40]


@functools.lru_cache(4096)
def _settings(content: str, evaluation: str) -> tuple[dict[str, Any], str]:
    """Return settings that equal records share, without nested ones, and their :func:`unlike_protocol`."""
    settings = {
        key: value
        for key, value in json.loads(content).items()
        if not isinstance(value, dict) and not (isinstance(value, list) and len(value) > 2)
    }
    return settings, unlike_protocol(settings, evaluation)


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


# --- single files


def load_record(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return the contents of ``results.json`` of a run; None without it, as in runs of the original toolkit.

    Raises:
        CogError: the file cannot be read, or holds no object.
    """
    file = os.path.join(folder, RESULTS_FILE)
    return (
        files.read_object(file, "record of a run", largest=_LARGEST_RECORD) if os.path.lexists(file) else None
    )


def read_features(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the contents of ``features.json`` in a folder, with those of its ``identity``; empty without the file."""
    try:
        data = files.read_object(os.path.join(folder, "features.json"), largest=_LARGEST_FEATURES)
    except CogError:
        return {}
    return {**data, **_object(data.get("identity"))}


def n_images(described: Mapping[str, Any]) -> int | None:
    """Return the number of decoded images in a description of features; None if it is not recorded."""
    listed = whole(described.get("n_images"))
    return None if listed is None else listed - (whole(described.get("n_failed")) or 0)


def _read_logs(path: str) -> tuple[str, float, float]:
    """Return the final folder of a run of the original toolkit, and both accuracies (percent) after the last epoch."""
    try:
        finals = sorted(name for name in os.listdir(path) if name.startswith("final"))
    except OSError as error:
        raise CogError(f"cannot be read: {error.strerror or error}") from error
    finals = [name for name in finals if os.path.isdir(f"{path}/{name}")]
    if len(finals) > 1:
        finals = [name for name in finals if os.path.lexists(f"{path}/{name}/{LOGS_FILE}")]
    if not finals:
        raise CogError(f"no {RESULTS_FILE}, and no final-*/{LOGS_FILE}: the run is unfinished or failed")
    if len(finals) > 1:
        raise CogError(f"{len(finals)} final folders ({', '.join(finals)}); keep the one that counts")
    name = f"{finals[0]}/{LOGS_FILE}"
    logs = safe_load.load_pickle(f"{path}/{name}")
    if not isinstance(logs, dict):
        raise CogError(f"{name} holds {type(logs).__name__}, expected a dict of lists")
    (top1, n_top1), (top5, n_top5) = (_last_accuracy(logs, key, name) for key in METRICS.values())
    if n_top1 != n_top5:
        raise CogError(f"{name} has {n_top1} epochs of test/top1 but {n_top5} of test/top5")
    return finals[0], top1, top5


def _last_accuracy(logs: Mapping[Any, Any], key: str, name: str) -> tuple[float, int]:
    """Return the last value (percent) of the list ``logs[key]`` and its length."""
    values: Any = logs.get(key)
    values = values.tolist() if hasattr(values, "tolist") else values  # numpy
    if not isinstance(values, list | tuple) or not values:
        raise CogError(f"{name} has no list {key} with the value of a finished epoch")
    value = values[-1].tolist() if hasattr(values[-1], "tolist") else values[-1]
    return percentage(value, key, name), len(values)


def percentage(value: Any, key: str, name: str) -> float:
    """Return a recorded accuracy, in percent.

    Raises:
        CogError: it is none; the message has the ``key`` and the name of the file.
    """
    accuracy = number(value)
    if accuracy is None or not -_TOLERANCE_PERCENT <= accuracy <= 100 + _TOLERANCE_PERCENT:
        shown = value if isinstance(value, float) else type(value).__name__
        raise CogError(f"{name}: {key} is {shown}, expected a percentage")
    return accuracy


def _hyper_parameters(final: str) -> dict[str, float]:
    """Return the learning rate and weight decay in the name of the folder of the final training, if any."""
    match = _FINAL_FOLDER.fullmatch(final)
    try:
        return {key: float(stated) for key, stated in match.groupdict().items() if stated} if match else {}
    except ValueError:
        return {}


def at_upper_edge(value: float | None, interval: Any) -> bool:
    """Return whether ``value`` lies at the upper end of a recorded log-uniform interval."""
    ends = [number(end) for end in interval] if isinstance(interval, list) and len(interval) == 2 else []
    if value is None or value <= 0 or None in ends or not ends or not 0 < ends[0] < ends[1]:  # type: ignore[operator]
        return False
    low, high = math.log(ends[0]), math.log(ends[1])  # type: ignore[arg-type]
    return (math.log(value) - low) / (high - low) >= 1 - _EDGE_SHARE


# --- folders


def _folders(path: str | Path, skip: Any, *, hidden: str = "\0") -> Iterator[str]:
    """Yield the names of the folders in a folder in order; hidden ones only with the beginning ``hidden``."""
    try:
        with os.scandir(path) as entries:
            names = [entry.name for entry in entries if _is_folder(entry)]
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        skip(path, f"cannot be read: {error.strerror or error}")
        return
    yield from sorted(name for name in names if not name.startswith(".") or name.startswith(hidden))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to a place without permission
        return False


def list_models(root: str | os.PathLike[str]) -> list[str]:
    """Return the names of the models that have a folder under a root, in natural order."""
    return sorted((model for model, _ in _model_folders(Path(root), None, lambda *_: None)), key=natural_key)


def is_pattern(name: str) -> bool:
    """Return whether ``name`` is a shell pattern (``deit_*``) rather than a name."""
    return any(character in name for character in "*?[")


def matches(name: str, pattern: str) -> bool:
    """Return whether ``name`` matches ``pattern``, a name or a pattern with ``*``, ``?`` and ``[...]``."""
    return name == pattern or (is_pattern(pattern) and fnmatch.fnmatchcase(name, pattern))


def _model_folders(root: Path, models: Iterable[str] | None, skip: Any) -> Iterator[tuple[str, str]]:
    """Yield names and folders of models: the named ones, which may be missing, and those that match a pattern."""
    wanted = ["*"] if models is None else list(dict.fromkeys(models))
    exact = [model for model in wanted if not is_pattern(model)]
    for model in exact:
        yield model, str(paths.ModelDir(root, model).path)
    if len(exact) == len(wanted):
        return
    for title in _folders(root, skip):
        if "_" in title or paths.limit_of(title):  # names of models are split at the first underscore
            continue
        for architecture in _folders(root / title, skip):
            model = f"{title}_{architecture}"
            wanted_too = model not in exact and any(matches(model, pattern) for pattern in wanted)
            if wanted_too and constants.is_model_name(model):
                yield model, str(root / title / architecture)
