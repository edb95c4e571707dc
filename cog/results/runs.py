"""Result folders below a models root: runs of classifiers, and results of analyses.

One bad folder costs that folder: it is returned with the reason.
"""

import fnmatch
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from cog import constants, paths
from cog.errors import CogError
from cog.results import analysis_records, records
from cog.results.benchmark import data_of
from cog.results.frame import LOGREG, dataset_key, scores_of
from cog.results.published import pretraining
from cog.results.records import Features, Place, sha256, whole

_Skip = Callable[[str | Path, object], None]  # notes a folder that is not counted, and the reason

#: Reason why a result is not counted that has only a work folder.
UNFINISHED = "running, interrupted or failed (python -m cog status); the same command continues"


class Skipped(NamedTuple):
    """A folder that is not counted."""

    path: Path
    reason: str  # in one line

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass
class Results:
    """What was read: the table, and what the checks and the page tell of its runs."""

    scores: pd.DataFrame  # cog.results.frame, with the column details of cog.results.records
    skipped: list[Skipped] = field(default_factory=list)  # sorted by path
    features: Features = field(default_factory=dict)  # features.json of the runs; empty where there is none
    root: str = ""  # folder of all models; "" outside the layout

    @property
    def runs(self) -> list[Any]:
        """The rows of runs, top-1 alone."""
        found = self.scores
        return list(found[found["details"].notna() & (found["metric"] == "top1")].itertuples())


def find(
    root: str | os.PathLike[str],
    *,
    models: Collection[str] | None = None,
    datasets: Collection[str] | None = None,
    n_shots: Collection[int] | None = None,
    evaluations: Collection[str] | None = None,
    seeds: Collection[int] | None = None,
) -> Results:
    """Return the results below a models root (layout of :mod:`cog.paths`), in one walk over the folders.

    ``models`` are names or patterns (``deit_*``); with ``evaluations``, names of classifiers, there are no
    analyses; None: all. Both spellings of the folder names are read (``eval_logreg_N8/seed-22`` and
    ``eval_logreg-N8/seed_22``). A seed in two folders is ambiguous, and neither counts; nor do runs on other
    features than the others of their evaluation, model and data set.
    """
    root = paths.require_dir(root, "--models_root_dir")
    reader = _Reader(paths.limit_of(root), seeds)
    for model, folder in _model_folders(root, reader.skip):
        if not is_among(model, models):
            continue
        for dataset in sorted(_named(folder, "eval_*", reader.skip), key=dataset_key):
            if datasets is not None and dataset not in datasets:
                continue
            for name in reader.results(f"{folder}/{dataset}", "analysis_"):
                path, parsed = f"{folder}/{dataset}/{name}", paths.parse_evaluation_folder(name)
                if parsed is not None:
                    if is_among(parsed[0], evaluations) and (n_shots is None or parsed[1] in n_shots):
                        reader.list_runs(path, (model, dataset, *parsed))
                elif evaluations is None and name.startswith("analysis_"):
                    reader.read_analysis(path, model, dataset, name.removeprefix("analysis_"))
    return reader.read(str(root))


def read_folder(folder: str | os.PathLike[str], *, seeds: Collection[int] | None = None) -> Results:
    """Return the runs of one evaluation folder (``.../eval_logreg_N8``, or any folder of seed folders).

    Outside the layout, the names of model and data set are empty; a folder of another name has the shots that
    its runs record.
    """
    path = Path(os.path.abspath(paths.require_dir(folder, "--logreg_root_dir")))
    parts, parsed = path.parts[-4:], paths.parse_evaluation_folder(path.name)
    is_model = len(parts) == 4 and "_" not in parts[0] and constants.is_model_name("_".join(parts[:2]))
    model, dataset = ("_".join(parts[:2]), parts[2]) if parsed and is_model else ("", "")
    limit = next(filter(None, map(paths.limit_of, path.parents)), 0)
    reader = _Reader(limit, seeds)
    reader.list_runs(str(path), (model, dataset, *(parsed or (LOGREG, None))))
    return reader.read()


class _Reader:
    """Folders as they are found, and what is read from them."""

    def __init__(self, limit: int, seeds: Collection[int] | None) -> None:
        self._limit, self._seeds = limit, seeds
        self._runs: dict[Place, list[str]] = {}
        self._rows: list[dict[str, Any]] = []
        self._skipped: list[Skipped] = []
        self._features: Features = {}

    def skip(self, path: str | Path, reason: object) -> None:
        # Messages of the loaders contain the path of the folder, which stands before the reason.
        self._skipped.append(Skipped(Path(path), str(reason).replace(f"{path}{os.sep}", "")))

    def results(self, folder: str, prefix: str) -> Iterator[str]:
        """Yield the names of the folders in a folder; note unfinished results that begin with ``prefix``."""
        names = _folders(folder, self.skip)
        for name in names:
            result = name[1:].removesuffix(".work")
            if not name.startswith("."):
                yield name
            elif name.startswith(f".{prefix}") and name.endswith(".work") and result not in names:
                seed = paths.parse_seed_folder(result)
                if self._seeds is None or seed is None or seed in self._seeds:
                    self.skip(f"{folder}/{result}", UNFINISHED)

    def list_runs(self, folder: str, place: tuple[str, str, str, int | None]) -> None:
        for name in self.results(folder, "seed"):
            seed = paths.parse_seed_folder(name)
            if seed is None and name.startswith("seed"):
                self.skip(f"{folder}/{name}", "not a seed folder, expected seed-<number>")
            elif seed is not None and (self._seeds is None or seed in self._seeds):
                self._runs.setdefault(Place(*place, seed), []).append(f"{folder}/{name}")

    def read_analysis(self, path: str, model: str, dataset: str, name: str) -> None:
        """Read the result of an analysis, which is of the data of the features beside it."""
        try:
            record = analysis_records.read(path)
            found = f"{record.analysis} of {record.model or model} on {record.dataset or dataset}"
            if found != (expected := f"{name} of {model} on {dataset}"):
                raise CogError(f"{constants.RESULTS_FILE} holds {found}, the folder's name says {expected}")
        except CogError as error:
            self.skip(path, error)
            return
        train, test = (records.read_features(f"{Path(path).parent}/features_{s}") for s in constants.SPLITS)
        if test:
            self._features.setdefault((model, dataset, "test"), test)
        n_train, n_test, n_classes = *map(records.n_images, (train, test)), whole(test.get("n_classes"))
        classes = sha256(test.get("class_list_sha256"))
        data = data_of(dataset, n_classes=n_classes, n_train=n_train, n_test=n_test, classes=classes)
        more = {"model": model, "dataset": dataset, "folder": path, "images": n_test, "classes": classes}
        self._rows += [{**row, **more, "data": data} for row in analysis_records.rows(record)]

    def read(self, root: str = "") -> Results:
        """Read the listed runs whose seed is in no other folder, and return all results."""
        for place, (path, *others) in self._runs.items():
            why = f"seed {place.seed} of this evaluation is in several folders; keep one of them"
            for one in [path, *others] if others else ():
                self.skip(one, why)
            try:
                self._rows += [] if others else records.read_run(path, place, self._features)
            except CogError as error:
                self.skip(path, error)
        scores = self._of_same_features(scores_of(self._rows, "details"))
        if self._limit:
            scores["data"] = f"limit-{self._limit}, " + scores["data"]
        made = ((model, features.get("pretraining")) for (model, *_), features in self._features.items())
        known = {model: stated for model, stated in made if stated in constants.PRETRAINING}
        scores["pretraining"] = [known.get(name) or pretraining(name) for name in scores["model"]]
        return Results(scores, sorted(self._skipped, key=lambda one: str(one.path)), self._features, root)

    def _of_same_features(self, scores: pd.DataFrame) -> pd.DataFrame:
        """Leave out runs on other features than most runs of their evaluation, model and data set have.

        Of equally many, those that finished last stay. Runs without a record of their features stay, too.
        """
        kind = ["evaluation", "model", "dataset"]
        known = scores[scores["features"].notna() & (scores["metric"] == "top1")]
        if not known.drop_duplicates([*kind, "features"]).duplicated(kind).any():
            return scores
        known = known.assign(end=known["details"].map(lambda details: details["finished"] or ""))
        usual = known.groupby([*kind, "features"]).agg(n=("end", "size"), end=("end", "max")).reset_index()
        usual = usual.sort_values(["n", "end", "features"]).drop_duplicates(kind, keep="last")
        usual = scores[kind].merge(usual, on=kind, how="left")
        odd = scores["features"].notna() & (scores["features"] != usual["features"])
        for folder, n in dict(zip(scores["folder"][odd], usual["n"][odd].astype(int), strict=True)).items():
            reason = f"trained on other features than {n} run{'s' * (n > 1)} beside it"
            self.skip(folder, f"{reason}; train all on the same (logreg.py --overwrite)")
        return scores[~odd].reset_index(drop=True)


def _folders(path: str | Path, skip: _Skip) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if os.path.isdir(entry.path))
    except OSError as error:
        skip(path, f"cannot be read: {error.strerror or error}")
        return []


def _named(folder: str, runs: str, skip: _Skip, *, among: str = "._+-") -> Iterator[str]:
    """Yield the names of folders that can be names; note others that hold ``runs``, a pattern of paths."""
    for name in _folders(folder, skip):
        if constants.is_plain_name(name) and ("_" in among or "_" not in name):
            yield name
        elif name[0] != "." and any(Path(folder, name).glob(runs)):
            skip(f"{folder}/{name}", f"its name is not of letters, digits and {among}; rename the folder")


def _model_folders(root: Path, skip: _Skip) -> Iterator[tuple[str, str]]:
    for title in _named(str(root), "*/*/eval_*", skip, among=".+-"):
        for architecture in _named(f"{root}/{title}", "*/eval_*", skip):
            yield f"{title}_{architecture}", f"{root}/{title}/{architecture}"


def is_among(name: str, wanted: Collection[str] | None) -> bool:
    """Return whether a name is among names or patterns such as ``deit_*``; None: all."""
    return wanted is None or any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted)
