"""The plan of ``analyze_features.py``: requests, tasks and missing results; ``--check``."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from cog import config, constants
from cog.analysis import registry
from cog.analysis.task import AnalysisRequest, AnalysisTask
from cog.errors import CogError
from cog.features.folder import FeatureFolder
from cog.paths import ModelDir, check_dataset_name
from cog.results import analysis_records
from cog.runtime import files, machine_checks
from cog.runtime.check_report import Report
from cog.runtime.fingerprint import differences
from cog.runtime.output_folder import OutputFolder
from cog.runtime.resume_dir import sample_sha256

#: Expected size of a result with its numbers and tables, in bytes.
_RESULT_BYTES = 64 << 20


def plan_tasks(args: argparse.Namespace) -> Iterator[PlannedWork]:
    """Yield every task of every data set that the flags of ``analyze_features.py`` name.

    Raises:
        CogError: flags contradict each other, or an input of a task is missing.
    """
    cfg = config.get_cfg(model_name=args.model, config_file=args.config, opts=args.opts)
    analyses = registry.get(args.analysis)
    for request in _requests(args, cfg):
        for analysis in analyses:
            for task in analysis.plan(request):
                yield PlannedWork(request, task)


def _requests(args: argparse.Namespace, cfg: CfgNode) -> list[AnalysisRequest]:
    """Return one request per data set.

    Raises:
        CogError: flags contradict each other, or the models root is missing.
    """
    datasets: list[str] = args.dataset or []
    for name in datasets:
        check_dataset_name(name)
    if len(set(datasets)) < len(datasets):
        raise CogError(f"--dataset names a data set twice: {' '.join(datasets)}")
    given = {"train": args.train_features_dir, "test": args.test_features_dir}
    folders = {split: Path(path) for split, path in given.items() if path is not None}
    if len(datasets) > 1 and folders:
        raise CogError(
            "--train_features_dir and --test_features_dir are of one data set, and --dataset names "
            f"{len(datasets)}; give --models_root_dir instead"
        )
    model_dir = None
    if args.models_root_dir is not None and args.model is not None:
        model_dir = ModelDir(files.require_dir(args.models_root_dir, "--models_root_dir"), args.model)
    if not folders and not (model_dir and datasets):
        raise CogError(
            "no features: give --models_root_dir with --model and --dataset, or --train_features_dir and "
            "--test_features_dir"
        )
    requests = []
    for dataset in datasets or (None,):
        features, output = folders, None if args.output_dir is None else Path(args.output_dir)
        if model_dir is not None and dataset is not None:
            features = folders or {split: model_dir.features(dataset, split) for split in constants.SPLITS}
            if output is None:
                output = model_dir.path / dataset
            elif len(datasets) > 1:
                output /= dataset
        if output is None:
            raise CogError("nowhere to write: give --output_dir")
        requests.append(AnalysisRequest(args.model, dataset, model_dir, features, output, cfg, args))
    return requests


class AnalysisOutput(OutputFolder):
    """The folder of the result of an analysis."""

    markers = (analysis_records.RESULTS_FILE,)
    flag = "the output folder"

    def holds_result(self) -> bool:
        """Return whether the folder has the result."""
        if self.overwrite or not (self.path / analysis_records.RESULTS_FILE).exists():
            return False
        try:
            record = analysis_records.read(self.path)
        except CogError as error:
            raise CogError(f"{error}; add --overwrite to replace it") from None
        changed = differences(record.identity, self.identity)
        if changed:
            raise CogError(
                f"{self.path} holds a different result ({'; '.join(changed)}); add --overwrite to replace it"
            )
        return True

    def replaced(self) -> list[str]:
        """Return the names of the files of the result in the folder."""
        try:
            named = analysis_records.read(self.path).details.get("files", [])
        except CogError:
            return []
        named = named if isinstance(named, list) else []
        return [
            name
            for name in named
            if isinstance(name, str) and Path(name).name == name and not name.startswith(".")
        ]


@dataclass(frozen=True)
class PlannedWork:
    """A task of a data set.

    Attributes:
        request: request of the data set.
        task: task to compute.
    """

    request: AnalysisRequest
    task: AnalysisTask

    @functools.cached_property
    def folder(self) -> AnalysisOutput:
        """The folder of the result, with its identity: settings, and sizes, origins and samples of its features."""
        path = self.request.output(self.task.name)
        identity = dict(self.task.settings)
        for split in self.task.splits:
            file = self.request.features_file(split)
            identity[f"{split}_features"] = identify_features(file)
            metadata = FeatureFolder(file.parent).metadata(of_output=path) or {}
            if "limit" in metadata:
                identity["limit"] = metadata["limit"]
        return AnalysisOutput(path, identity, overwrite=self.request.args.overwrite)

    @property
    def label(self) -> str:
        """Prefix of log lines: model and data set."""
        words = [word for word in (self.request.model, self.request.dataset) if word]
        return f"[{' '.join(words)}] " if words else ""


def identify_features(file: Path) -> dict[str, Any]:
    """Return the identity of the features of a file, which may have 9 GB and is not read whole."""
    made = FeatureFolder(file.parent).metadata() or {}
    return {
        "bytes": file.stat().st_size,
        "checkpoint_sha256": made.get("checkpoint_sha256"),
        "image_list_sha256": made.get("image_list_sha256"),
        "sample_sha256": sample_sha256(file),
    }


def pending(args: argparse.Namespace) -> list[PlannedWork]:
    """Return the work for the missing results, after a check of all input and output folders.

    Complete results of the same settings and features are skipped.

    Raises:
        CogError: a folder has another or an unfinished result and there is no ``--overwrite``, or features are missing.
    """
    return [work for work in plan_tasks(args) if not work.folder.is_done()]


def check(args: argparse.Namespace) -> int:
    """Check all inputs and output folders of the analyses, print a summary, and return the exit code.

    Args:
        args: flags of ``analyze_features.py``.
    """
    from cog.features import feature_files

    report = Report()
    planned = []
    with report.step("input"):
        for work in plan_tasks(args):
            planned.append(work)
    opened: dict[Path, float] = {}
    todo = []
    for work in planned:
        before = report.n_problems
        for split in work.task.splits:
            with report.step("features"):
                path = work.request.features_file(split)
                if path not in opened:
                    opened[path] = 0.0
                    features = feature_files.open_file(path, mapped=True)
                    opened[path] = 4.0 * features.x.numel()
                    report.ok("features", f"{path}: {len(features.x):,} x {features.x.shape[1]}")
        if report.n_problems > before:
            continue
        with report.step("output"):
            folder = work.folder
            if not machine_checks.check_state(report, folder.path):
                continue
            if folder.would_skip():
                report.ok("output", f"{folder.path} is complete and would be skipped")
                continue
            if machine_checks.check_writable(report, folder.path):
                todo.append(folder.path)
                report.ok("output", str(folder.path))
    if todo:
        with report.step("disk"):
            machine_checks.check_disk(report, [(path, _RESULT_BYTES) for path in todo])
        with report.step("memory"):
            most = sum(sorted(opened.values())[-2:])
            machine_checks.check_memory(
                report, most, "the features of a data set; larger ones stay in their file"
            )
    with report.step("device"):
        machine_checks.check_device(report, args.device)
    return report.finish()
