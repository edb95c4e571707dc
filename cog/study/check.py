"""Checks of a study before anything is submitted or run."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from cog.errors import CogError
from cog.study import slurm
from cog.study.plan import EXTRACT, ScriptCommands, StudyPlan
from cog.study.slurm import SlurmOptions
from cog.study.units import DONE, ExtractionUnit, Status, Study, Unit


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
        study: the units that are wanted.
        plan: tasks of the study.
        model_loader: ``FILE.py:FUNCTION`` that loads the models; None: those of the zoo.
        models_file: the user's models in one file.
        require_images: ``require_images(dataset, why)`` raises a ``CogError``, which begins with ``why``, when the
            images of a data set are not given.

    Raises:
        CogError: a model, or images, are missing.
    """
    from cog.models.request import ModelRequest

    todo = plan.units(EXTRACT)
    for model in dict.fromkeys(unit.model for unit in todo):
        request = ModelRequest(model, models_root_dir=str(study.root), model_loader=model_loader)
        request.with_models_file(models_file).check_weights()
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
    """Check the log folder, SLURM and every script of a study, and print the problems.

    Args:
        study: the units that are wanted.
        plan: tasks of the study.
        statuses: statuses of the units.
        commands: command lines of the scripts.
        options: options of all jobs.
        with_slurm: whether to ask SLURM.

    Returns:
        The worst exit code.
    """
    code = _check_log_dir(options.log_dir)
    if with_slurm and not code:
        code = _check_slurm(plan, options)
    return max(code, _check_scripts(study, statuses, commands))


def _check_log_dir(log_dir: Path) -> int:
    existing = next(folder for folder in (log_dir, *log_dir.parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        print(f"error    log_dir       {log_dir} cannot be created or written to")
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
            print(f"error    SLURM         {kind} tasks: {error}")
            worst = 2
    return worst


def _check_scripts(study: Study, statuses: Mapping[Unit, Status], commands: ScriptCommands) -> int:
    """Run each script with ``--check`` for its missing units; return the worst exit code."""
    worst = 0
    for model in study.models:
        todo = [
            unit
            for unit, status in statuses.items()
            if isinstance(unit, ExtractionUnit) and unit.model == model and status.state != DONE
        ]
        calls: list[tuple[str, list[str]]] = []
        if todo:
            datasets = list(dict.fromkeys(unit.dataset for unit in todo))
            splits = list(dict.fromkeys(unit.split for unit in todo))
            command = commands.extract(model, datasets, splits)[len(commands.launcher) :]
            calls.append((f"features of {model} on {' '.join(datasets)}", command))
        without_features = {unit.dataset for unit in todo}
        calls += [
            (
                f"classifiers of {model} on {dataset}",
                commands.logreg(model, dataset, study.seeds, study.n_shots),
            )
            for dataset in study.datasets
            if dataset not in without_features
        ]
        for label, call in calls:
            print(f"\n{label}:", flush=True)
            worst = max(worst, subprocess.run([*call, "--check"], check=False).returncode)
    return worst
