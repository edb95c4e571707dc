"""The models of a study: whether each can be loaded, and a trial of each on one image."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from cog.data.image_sources import ImageSources
from cog.errors import CogError
from cog.study.tasks import EXTRACT, REPOSITORY, Commands, StudyTask

logger = logging.getLogger(__name__)


def check_inputs(
    root: Path,
    tasks: Collection[StudyTask],
    images: ImageSources,
    *,
    model_loader: str | None,
    models_file: str | None,
) -> dict[str, CogError]:
    """Check that the models and the images of all extractions exist.

    Models that cannot be loaded do not stop the others: each is logged as an error.

    Args:
        root: folder of the checkpoints, ``<models_root_dir>``.
        tasks: tasks to do.
        images: places of the images.
        model_loader: ``FILE.py:FUNCTION`` that loads the models; None: models of the zoo.
        models_file: file that declares the user's models; or None.

    Returns:
        The errors of the models that cannot be loaded, by name.

    Raises:
        CogError: images are missing, or no model can be loaded.
    """
    from cog.models.request import ModelRequest

    faults: dict[str, CogError] = {}
    extractions = [task for task in tasks if task.stage == EXTRACT]
    for model in dict.fromkeys(task.model for task in extractions):
        request = ModelRequest(model, models_root_dir=str(root), model_loader=model_loader)
        try:
            _ = request.with_models_file(models_file).checkpoint  # a missing one is an error
        except CogError as error:
            faults[model] = error
    if faults and all(task.model in faults for task in tasks):
        raise next(iter(faults.values()))
    for model, fault in faults.items():
        logger.error("%s; %s is left out", fault, model)
    for dataset in dict.fromkeys(task.dataset for task in extractions if task.model not in faults):
        images.require(dataset, why=f"the features of {dataset} are missing, and extracting them needs")
    return faults


def try_models(tasks: Collection[StudyTask], commands: Commands) -> int:
    """Compute the features of one image with each model that has an extraction, print a line each.

    Each model is tried in a process of its own, as its tasks will run.

    Returns:
        0, or 2 when a model failed.
    """
    failed = False
    for model, task in {task.model: task for task in tasks if task.stage == EXTRACT}.items():
        trial = [sys.executable, "-m", "cog.commands.try_model", *commands.of_task(task)[2:]]
        done = subprocess.run(trial, check=False, capture_output=True, text=True, cwd=REPOSITORY)
        lines = (done.stderr if done.returncode else done.stdout).strip().splitlines()
        print(f"# {model}: {lines[-1] if lines else f'exit code {done.returncode}'}", flush=True)
        failed |= done.returncode != 0
    return CogError.exit_code if failed else 0
