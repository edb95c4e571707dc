"""Checks of a study before its tasks are submitted or run."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from cog.errors import CogError, some
from cog.runtime.check_report import OK, PROBLEM, WARNING
from cog.runtime.progress import Progress
from cog.study import slurm
from cog.study.plan import EXTRACT, ScriptCommands, StudyPlan
from cog.study.slurm import SlurmOptions
from cog.study.units import DELETED, DONE, ExtractionUnit, Status, Study, Unit

#: A finding in the form that :class:`cog.runtime.check_report.Report` prints.
_FINDING = re.compile(rf"({OK}|{WARNING}|{PROBLEM}) +(\S+(?: \S+)?) {{2,}}(.+)")

#: Largest number of models that a line names.
_NAMED = 3

#: Number of files and folders of a run (:mod:`cog.logreg.run_folder`), and of the features of a split.
_FILES_OF_RUN, _FILES_OF_FEATURES = 12, 5


def check_inputs(
    study: Study,
    plan: StudyPlan,
    *,
    model_loader: str | None,
    models_file: str | None = None,
    require_images: Callable[[str, str], object],
) -> None:
    """Check that the models and the images of all planned extractions exist.

    Args:
        study: wanted units.
        plan: tasks of the study.
        model_loader: ``FILE.py:FUNCTION`` that loads the models; None: models of the zoo.
        models_file: file that declares the user's models; or None.
        require_images: ``require_images(dataset, why)`` raises a ``CogError``, which begins with ``why``, when the
            images of a data set are not given.

    Raises:
        CogError: a model or images are missing.
    """
    from cog.models.request import ModelRequest

    todo = plan.units(EXTRACT)
    faults: list[tuple[str, CogError]] = []
    for model in dict.fromkeys(unit.model for unit in todo):
        request = ModelRequest(model, models_root_dir=str(study.root), model_loader=model_loader)
        try:
            request.with_models_file(models_file).check_weights()
        except CogError as error:
            faults.append((model, error))
    if faults:
        others = [model for model, _ in faults[1:]]
        more = f" (others that cannot be loaded: {some(others, _NAMED)})" if others else ""
        raise CogError(f"{faults[0][1]}{more}")
    for dataset in dict.fromkeys(unit.dataset for unit in todo):
        require_images(dataset, f"the features of {dataset} are missing, and extracting them needs")


def check_study(
    study: Study,
    plan: StudyPlan,
    statuses: Mapping[Unit, Status],
    commands: ScriptCommands,
    options: SlurmOptions,
    *,
    with_slurm: bool,
) -> int:
    """Check the log folder, SLURM, the number of files and every script of a study; print the findings by cause.

    Args:
        study: wanted units.
        plan: tasks of the study.
        statuses: statuses of the units.
        commands: command lines of the scripts.
        options: options of all jobs.
        with_slurm: whether to check that SLURM accepts the tasks.

    Returns:
        The worst exit code.
    """
    code = _check_log_dir(options.log_dir)
    if with_slurm and not code:
        code = _check_slurm(plan, options)
    code = max(code, _check_files(study, statuses))
    code = max(code, _check_scripts(study, statuses, commands))
    print("fix the problems above before starting" if code else "it can start")
    return code


def _check_log_dir(log_dir: Path) -> int:
    existing = next(folder for folder in (log_dir, *log_dir.parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        print(f"problem  log_dir       {log_dir} cannot be created or written to")
        return 2
    print(f"ok       log_dir       {log_dir}")
    return 0


def _check_slurm(plan: StudyPlan, options: SlurmOptions) -> int:
    worst = 0
    for kind in dict.fromkeys(array.kind for array in plan.arrays):
        array = next(array for array in plan.arrays if array.kind == kind)
        alone = dataclasses.replace(array, after=(), after_jobs=(), after_tasks=())
        command = slurm.sbatch(alone, options, task_list=Path("tasks.txt"), jobs={})
        try:
            slurm.run_slurm(command[0], "--test-only", *command[1:])
            print(f"ok       SLURM         would accept {kind} tasks")
        except CogError as error:
            print(f"problem  SLURM         {kind} tasks: {error}")
            worst = 2
    return worst


def _check_files(study: Study, statuses: Mapping[Unit, Status]) -> int:
    """Print the number of files and folders per model, and whether the file system has room for the missing ones."""
    n_runs = len(study.n_shots) * len(study.seeds)
    # The folder of the data set and an archive are the first two.
    outside = 2 + len(study.n_shots) + _FILES_OF_FEATURES * len(study.splits)
    per_model = len(study.datasets) * (n_runs * _FILES_OF_RUN + outside - 1)
    n_missing = sum(
        _FILES_OF_FEATURES if isinstance(unit, ExtractionUnit) else _FILES_OF_RUN
        for unit, status in statuses.items()
        if status.state not in (DONE, DELETED)
    )
    disk = os.statvfs(study.root)
    text = (
        f"about {per_model:,} files and folders per model ({len(study.datasets) * outside:,} when its runs are packed, "
        f"see pack.sh); {n_missing:,} are still to be made"
    )
    free = disk.f_favail if disk.f_files else None  # some file systems have no limit of files
    if free is not None and free < n_missing:
        print(
            f"problem  files         {text}, and the file system takes {free:,} more; make room, or pack finished runs"
        )
        return 2
    print(
        f"ok       files         {text}{'' if free is None else f', and the file system takes {free:,} more'}"
    )
    return 0


def _check_scripts(study: Study, statuses: Mapping[Unit, Status], commands: ScriptCommands) -> int:
    """Run each script with ``--check`` for its missing units; return the worst exit code."""
    calls: list[tuple[str, list[str]]] = []
    for model in study.models:
        todo = [
            unit
            for dataset in study.datasets
            for unit in study.extractions(model, dataset)
            if statuses[unit].state != DONE and not _is_over(study, statuses, model, dataset)
        ]
        if todo:
            datasets = list(dict.fromkeys(unit.dataset for unit in todo))
            splits = list(dict.fromkeys(unit.split for unit in todo))
            calls.append((model, commands.extract(model, datasets, splits)[len(commands.launcher) :]))
        without_features = {unit.dataset for unit in todo}
        calls += [
            (model, commands.logreg(model, dataset, study.seeds, study.n_shots))
            for dataset in study.datasets
            if dataset not in without_features and not _is_over(study, statuses, model, dataset)
        ]
    findings = Findings()
    worst = 0
    with Progress(len(calls), "checking", unit="commands") as progress:
        for model, call in calls:
            done = subprocess.run([*call, "--check"], check=False, capture_output=True, text=True)
            findings.add(model, done.stdout, done.stderr, failed=done.returncode != 0)
            worst = max(worst, done.returncode)
            progress.update()
    if calls:
        print(findings.text(), end="", flush=True)
        print(f"the first of these checks in full: {slurm.command_line([*calls[0][1], '--check'])}")
    return worst


def _is_over(study: Study, statuses: Mapping[Unit, Status], model: str, dataset: str) -> bool:
    """Return whether all runs of a pair are done, and its features were deleted for that reason."""
    return any(statuses[unit].state == DELETED for unit in study.extractions(model, dataset)) and all(
        statuses[unit].state == DONE for unit in study.trainings(model, dataset)
    )


class Findings:
    """The findings of the checks of many scripts, grouped by cause: a cause has one line for all its models."""

    def __init__(self) -> None:
        self._by_cause: dict[tuple[str, str, str], list[tuple[str, str]]] = {}

    def add(self, model: str, printed: str, errors: str, *, failed: bool) -> None:
        """Add the findings of one script.

        Args:
            model: name of the model that the script checked.
            printed: standard output of the script, with a line per finding.
            errors: standard error of the script.
            failed: whether the script ended with an error.
        """
        n_problems = 0
        for line in printed.splitlines():
            match = _FINDING.fullmatch(line)
            if match is None:
                continue
            level, subject, text = match.groups()
            n_problems += level == PROBLEM
            # Findings with the same cause may differ in the names of models (also in paths) and in amounts.
            cause = text.replace(model, "MODEL").replace("/".join(model.split("_", 1)), "MODEL")
            if level == OK:
                # The user verifies the input and output of each model; the number of other passed checks suffices.
                cause = text if subject == "model" else subject
            else:
                cause = re.sub(r"[0-9a-f]{12,}|[0-9][0-9,.]*", "N", cause)
            self._by_cause.setdefault((level, subject, cause), []).append((model, text))
        if failed and not n_problems:
            last = next(
                (line for line in reversed(errors.splitlines()) if line.strip()), "ended with an error"
            )
            self._by_cause.setdefault((PROBLEM, "script", last), []).append((model, last))

    def text(self) -> str:
        """Return a line per cause: first the problems that stop the study, then warnings, then passed checks."""
        lines = []
        all_models = {model for same in self._by_cause.values() for model, _ in same}
        # Lines of one subject stand together.
        subjects = list(dict.fromkeys(subject for _, subject, _ in self._by_cause))
        causes = sorted(self._by_cause.items(), key=lambda item: subjects.index(item[0][1]))
        for level in (PROBLEM, WARNING, OK):
            for (level_of_cause, subject, _), same in causes:
                if level_of_cause != level:
                    continue
                models = list(dict.fromkeys(model for model, _ in same))
                texts = list(dict.fromkeys(text for _, text in same))
                if level == OK:
                    text = texts[0] if len(texts) == 1 else f"{len(same)} checks passed"
                else:
                    concerns_all = len(models) == len(all_models) > _NAMED
                    names = f"all {len(models)} models" if concerns_all else some(models, _NAMED)
                    times = f", {len(same)} times" if len(same) > len(models) else ""
                    text = f"{texts[0]} [{names}{times}]"
                lines.append(f"{level:<8} {subject:<13} {text}\n")
        return "".join(lines)
