"""The plan of a fine-tuning run: settings, images and output folder, and their checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import config, constants
from cog.data.image_sources import ImageSources
from cog.errors import CogError
from cog.finetune.recipe import FineTuneRecipe
from cog.logreg.run_folder import RunFolder
from cog.models.request import ModelRequest
from cog.runtime.fingerprint import differences
from cog.runtime.output_folder import OutputFolder

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from cog.data.image_lists import ImageList


@dataclass(frozen=True)
class FineTuneRequest:
    """A call of ``finetune.py``; fields are the values of its flags."""

    model: ModelRequest
    sources: ImageSources
    dataset: str
    device: str | None
    allow_failures: int
    overwrite: bool
    config_file: str | None
    opts: Sequence[str]

    @cached_property
    def cfg(self) -> CfgNode:
        """The configuration."""
        return self.model.config(self.config_file, self.opts)


#: Number of differences that a message lists.
_LISTED = 6


class FineTuneFolder(RunFolder):
    """The folder of one fine-tuning run."""

    unknown = "{path} holds a run of another kind ({names}); add --overwrite to replace it"
    damaged = OutputFolder.damaged
    announce_done = OutputFolder.announce_done

    def compare(self, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
        """Return the first differences of two identities."""
        return differences(stored, wanted)[:_LISTED]


@dataclass(frozen=True, eq=False)
class FineTunePlan:
    """A checked request.

    Attributes:
        request: the values of the flags.
        train: training images.
        test: test images.
        folder: output folder, with the identity of the run.
        recipe: settings of the training.
    """

    request: FineTuneRequest
    train: ImageList
    test: ImageList
    folder: FineTuneFolder
    recipe: FineTuneRecipe


def make_plan(request: FineTuneRequest, *, precision: str, n_processes: int) -> FineTunePlan:
    """Return the plan of a request, after all checks that need no network."""
    cfg, model = request.cfg, request.model
    _, model_dir = model.paths
    usual = config.default_cfg()
    for key in ("N_SHOT", "MAX_PER_CLASS", "PCA_DIM", "TYPE"):
        if cfg.CLF[key] != usual.CLF[key]:
            raise CogError(
                f"CLF.{key} is for classifiers of features; fine-tuning trains a linear classifier with the network, "
                "on all training images; leave it out"
            )
    config.check_new_name(cfg, config.FINETUNE)
    recipe = FineTuneRecipe.from_config(cfg, precision=precision)
    recipe.passes_per_process(n_processes)
    train, test = (request.sources.list_images(request.dataset, split) for split in constants.SPLITS)
    if train.classes != test.classes:
        differing = sorted(set(train.classes) ^ set(test.classes))
        raise CogError(
            f"{request.dataset} has {len(train.classes)} classes for training and {len(test.classes)} for testing, "
            f"which differ in {', '.join(differing[:3])}; both need the same"
        )
    if len(train.classes) < 2:
        raise CogError(
            f"{request.dataset} has the single class {train.classes[0]}; a classifier needs two or more"
        )
    recipe.steps_per_epoch(len(train))
    if model.output_dir is not None:
        output = Path(model.output_dir)
    else:
        assert model_dir is not None
        name = config.FINETUNE if cfg.EVAL.NAME == usual.EVAL.NAME else cfg.EVAL.NAME
        output = model_dir.run(request.dataset, name=name, n_shot=0, seed=cfg.EVAL.SEED)
    identity = {
        "model": model.model,
        "checkpoint_sha256": model.description["checkpoint_sha256"],
        "loader_sha256": model.description["loader_sha256"],
        "dataset": request.dataset,
        "train_images_sha256": train.digest(),
        "test_images_sha256": test.digest(),
        **model.fine_tuned(cfg),
    } | dataclasses.asdict(recipe)
    folder = FineTuneFolder(output, identity, overwrite=request.overwrite)
    return FineTunePlan(request, train, test, folder, recipe)
