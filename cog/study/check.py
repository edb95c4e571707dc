"""Checks of a study before its tasks are submitted or run."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from cog.data.image_sources import ImageSources
from cog.errors import CogError, some
from cog.runtime import machine_checks
from cog.runtime.check_report import OK, PROBLEM, WARNING, CheckFinding, Report
from cog.runtime.progress import Progress
from cog.study import slurm
from cog.study.plan import EXTRACT, ScriptCommands, StudyPlan
from cog.study.slurm import Dependencies, SlurmOptions
from cog.study.units import DELETED, DONE, ExtractionUnit, Status, Study, Unit

logger = logging.getLogger(__name__)

#: A finding in the form that :class:`cog.runtime.check_report.Report` prints.
_FINDING = re.compile(rf"({OK}|{WARNING}|{PROBLEM}) +(\S+(?: \S+)?) {{2,}}(.+)")

#: Largest number of models that a line names.
_NAMED = 3

#: Number of files and folders of a run (:mod:`cog.logreg.run_folder`), and of the features of a split.
_FILES_OF_RUN, _FILES_OF_FEATURES = 12, 5


def check_inputs(
    study: Study,
    plan: StudyPlan,
    images: ImageSources,
    *,
    model_loader: str | None,
    models_file: str | None,
) -> dict[str, CogError]:
    """Check that the models and the images of all planned extractions exist.

    Models that cannot be loaded do not stop the others: each is logged as an error.

    Args:
        study: wanted units.
        plan: tasks of the study.
        images: places of the images.
        model_loader: ``FILE.py:FUNCTION`` that loads the models; None: models of the zoo.
        models_file: file that declares the user's models; or None.

    Returns:
        The errors of the models that cannot be loaded, by name.

    Raises:
        CogError: images are missing, or all planned models cannot be loaded.
    """
    from cog.models.request import ModelRequest

    faults: dict[str, CogError] = {}
    for model in dict.fromkeys(unit.model for unit in plan.units(EXTRACT)):
        request = ModelRequest(model, models_root_dir=str(study.root), model_loader=model_loader)
        try:
            request.with_models_file(models_file).check_weights()
        except CogError as error:
            faults[model] = error
    usable = plan.without(faults)
    if faults and not usable.arrays:
        first, *others = faults
        more = f" (others that cannot be loaded: {some(others, _NAMED)})" if others else ""
        raise CogError(f"{faults[first]}{more}")
    for model, fault in faults.items():
        logger.error("%s; %s is left out", fault, model)
    for dataset in dict.fromkeys(unit.dataset for unit in usable.units(EXTRACT)):
        images.require(dataset, why=f"the features of {dataset} are missing, and extracting them needs")
    return faults


def check_study(
    study: Study,
    plan: StudyPlan,
    statuses: Mapping[Unit, Status],
    commands: ScriptCommands,
    options: SlurmOptions,
    left_out: Iterable[CogError],
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
        left_out: errors of models that are not part of the study for that reason.
        with_slurm: whether to check that SLURM accepts the tasks.

    Returns:
        0 when the study can start, else 2.
    """
    report = Report()
    for error in left_out:
        report.problem("models_file", str(error))
    if machine_checks.check_writable(report, options.log_dir):
        report.ok("log_dir", str(options.log_dir))
        if with_slurm:
            _check_slurm(report, plan, options)
    _check_files(report, study, statuses)
    findings = Findings()
    findings.add("", report.findings)
    _check_scripts(findings, study, statuses, commands)
    print("fix the problems above before starting" if findings.exit_code else "it can start")
    return findings.exit_code


def _check_slurm(report: Report, plan: StudyPlan, options: SlurmOptions) -> None:
    for kind in dict.fromkeys(array.kind for array in plan.arrays):
        array = next(array for array in plan.arrays if array.kind == kind)
        alone = dataclasses.replace(array, after=Dependencies())
        command = slurm.sbatch(alone, options, task_list=Path("tasks.txt"), jobs={})
        try:
            slurm.run_slurm(command[0], "--test-only", *command[1:])
            report.ok("SLURM", f"would accept {kind} tasks")
        except CogError as error:
            report.problem("SLURM", f"{kind} tasks: {error}")


def _check_files(report: Report, study: Study, statuses: Mapping[Unit, Status]) -> None:
    """Report the number of files and folders per model, and whether the file system has room for the missing ones."""
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
    if not disk.f_files:  # some file systems have no limit of files
        report.ok("files", text)
        return
    text += f", and the file system takes {disk.f_favail:,} more"
    if disk.f_favail < n_missing:
        report.problem("files", f"{text}; make room, or pack finished runs")
    else:
        report.ok("files", text)


def _check_scripts(
    findings: Findings, study: Study, statuses: Mapping[Unit, Status], commands: ScriptCommands
) -> None:
    """Run each script with ``--check`` for its missing units, and print all findings."""
    calls: list[tuple[str, list[str]]] = []
    for model in study.models:
        datasets = [name for name in study.datasets if not _is_over(study, statuses, model, name)]
        todo = [
            unit
            for dataset in datasets
            for unit in study.extractions(model, dataset)
            if statuses[unit].state != DONE
        ]
        without_features = dict.fromkeys(unit.dataset for unit in todo)
        if todo:
            splits = list(dict.fromkeys(unit.split for unit in todo))
            extraction = commands.extract(model, list(without_features), splits)
            calls.append((model, extraction[len(commands.launcher) :]))
        calls += [
            (model, commands.logreg(model, dataset, study.seeds, study.n_shots))
            for dataset in datasets
            if dataset not in without_features
        ]
    with Progress(len(calls), "checking", unit="commands") as progress:
        for model, call in calls:
            done = subprocess.run([*call, "--check"], check=False, capture_output=True, text=True)
            findings.add_printed(model, done.stdout, done.stderr, failed=done.returncode != 0)
            progress.update()
    print(findings.text(), end="", flush=True)
    if calls:
        print(f"the first of these checks in full: {slurm.command_line([*calls[0][1], '--check'])}")


def _is_over(study: Study, statuses: Mapping[Unit, Status], model: str, dataset: str) -> bool:
    """Return whether all runs of a pair are done, and its features were deleted for that reason."""
    return any(statuses[unit].state == DELETED for unit in study.extractions(model, dataset)) and all(
        statuses[unit].state == DONE for unit in study.trainings(model, dataset)
    )


class Findings:
    """The findings of many checks, grouped by cause: a cause has one line for all models."""

    def __init__(self) -> None:
        self._by_cause: dict[tuple[str, str, str], list[tuple[str, str]]] = {}

    @property
    def exit_code(self) -> int:
        """0 when there is no problem, else 2."""
        return 2 if any(level == PROBLEM for level, _, _ in self._by_cause) else 0

    def add_printed(self, model: str, printed: str, errors: str, *, failed: bool) -> None:
        """Add the findings of a script.

        Args:
            model: name of the model that the script checked.
            printed: standard output of the script, with a line per finding.
            errors: standard error of the script.
            failed: whether the script ended with an error.
        """
        matches = filter(None, map(_FINDING.fullmatch, printed.splitlines()))
        findings = [CheckFinding(*match.groups()) for match in matches]
        if failed and not any(finding.level == PROBLEM for finding in findings):
            lines = [line for line in errors.splitlines() if line.strip()]
            findings.append(CheckFinding(PROBLEM, "script", lines[-1] if lines else "ended with an error"))
        self.add(model, findings)

    def add(self, model: str, findings: Iterable[CheckFinding]) -> None:
        """Add findings on a model; "": on the study."""
        for finding in findings:
            cause = finding.text
            if model and finding.level != OK:
                # Findings with the same cause may differ in the names of models (also in paths) and in amounts.
                cause = cause.replace(model, "MODEL").replace(model.replace("_", "/", 1), "MODEL")
                cause = re.sub(r"[0-9a-f]{12,}|[0-9][0-9,.]*", "N", cause)
            elif model and finding.subject != "model":
                # The user verifies the input and output of each model; the number of other passed checks suffices.
                cause = finding.subject
            key = finding.level, finding.subject, cause
            self._by_cause.setdefault(key, []).append((model, finding.text))

    def text(self) -> str:
        """Return a line per cause: first the problems that stop the study, then warnings, then passed checks."""
        lines = []
        n_models = len({model for same in self._by_cause.values() for model, _ in same if model})
        # Lines of one subject stand together.
        subjects = list(dict.fromkeys(subject for _, subject, _ in self._by_cause))
        levels = (PROBLEM, WARNING, OK)
        for (level, subject, _), same in sorted(
            self._by_cause.items(), key=lambda item: (levels.index(item[0][0]), subjects.index(item[0][1]))
        ):
            models = list(dict.fromkeys(model for model, _ in same if model))
            text = same[0][1]
            if level == OK and any(other != text for _, other in same):
                text = f"{len(same)} checks passed"
            elif level != OK and models:
                names = f"all {n_models} models" if len(models) == n_models > _NAMED else some(models, _NAMED)
                times = f", {len(same)} times" if len(same) > len(models) else ""
                text = f"{text} [{names}{times}]"
            lines.append(f"{level:<8} {subject:<13} {text}\n")
        return "".join(lines)
