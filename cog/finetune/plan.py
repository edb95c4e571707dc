"""The plan of a fine-tuning run: settings, images and output folder, and their checks."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from cog import config, constants
from cog.data.image_sources import ImageSources
from cog.errors import CogError
from cog.finetune.recipe import FineTuneRecipe
from cog.logreg.run_files import RESULTS_FILE
from cog.models.request import ModelRequest
from cog.results import runs
from cog.runtime import atomic_dir
from cog.runtime.fingerprint import differences
from cog.runtime.output_folder import OutputFolder

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from cog.data.images import ImageList


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


#: Files beside ``results.json``; the first three are those of the original toolkit.
_OTHER_FILES = ("study.pkl", "arguments.json", "config.txt", "program.log")
_FINAL_FOLDER = re.compile(r"final-lr-.*_wd-.*")


class RunFolder(OutputFolder):
    """The folder of one classifier run, see :class:`~cog.runtime.output_folder.OutputFolder`."""

    markers = (RESULTS_FILE,)
    damaged: ClassVar[str | None] = None
    unknown = "{path} holds a run of unknown settings ({names}); add --overwrite to replace it"
    parts = "{path} holds parts of a run ({names}) and no finished one; move them away, or add --overwrite"

    #: Whether this run or another one of the command is an interrupted replacement: it has then replaced the complete
    #: runs beside it already.
    continuing = False

    def results(self) -> dict[str, Any] | None:
        """Return the contents of results.json; None when the file does not exist."""
        return runs.load_record(self.path)

    def replaced(self) -> list[str]:
        """Return the names of outputs of this toolkit or of the original one in the folder, sorted."""
        entries = os.listdir(self.path) if self.path.is_dir() else []
        names = (RESULTS_FILE, *_OTHER_FILES)
        return sorted(name for name in entries if name in names or _FINAL_FOLDER.fullmatch(name))

    def is_complete(self) -> bool:
        """Return whether the folder has a finished run, of this toolkit or of the original one.

        The original toolkit writes ``logs.pkl`` once, after the last epoch of the final training.
        """
        if self.results() is not None:
            return True
        finals = [name for name in self.replaced() if _FINAL_FOLDER.fullmatch(name)]
        return sum((self.path / name / "logs.pkl").is_file() for name in finals) == 1

    def is_replacing(self) -> bool:
        """Return whether the folder has unfinished work on this run that is to replace a complete run."""
        stored = self.resume.read()
        return (
            stored is not None and stored["replaces"] and not self.compare(stored["identity"], self.identity)
        )

    def holds_result(self) -> bool:
        """Return whether the run is complete and kept; with ``overwrite``, only if an interrupted call finished it."""
        try:
            results = self.results()
        except CogError as error:
            if self.overwrite:
                return False
            raise CogError(f"{error}; add --overwrite to replace it") from error
        if results is None:
            if atomic_dir.is_half_published(self.path):  # a claim finishes that
                return False
            if (names := self.replaced()) and not self.overwrite:
                text = self.unknown if self.is_complete() else self.parts
                raise CogError(text.format(path=self.path, names=", ".join(names[:3])))
            return False
        changed = self.compare(results.get("identity") or {}, self.identity)
        if changed and not self.overwrite:
            raise CogError(
                f"{self.path} holds a different run ({'; '.join(changed)}); add --overwrite to replace it"
            )
        finished = self._is_of(results) or (self.continuing and self.resume.read() is None)
        return not changed and (finished or not self.overwrite)

    def _is_of(self, results: Mapping[str, Any]) -> bool:
        """Return whether the results come from the unfinished work: its process ended before it removed the work."""
        stored = self.resume.read()
        return stored is not None and stored["started"] == results.get("started")

    def has_leftovers(self) -> bool:
        """Return whether unfinished work outlived the result; unfinished work of a replacement does not count."""
        stored = self.resume.read()
        is_replacement = stored is not None and stored["replaces"] and not self._is_of(self.results() or {})
        return self.resume.path.is_dir() and not is_replacement

    def compare(self, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
        """Return the differences in the entries of ``wanted``; unfinished work has more, which are known later."""
        return differences({key: stored.get(key) for key in wanted}, wanted)


#: Number of differences that a message lists.
_LISTED = 6


class FineTuneFolder(RunFolder):
    """The folder of one fine-tuning run."""

    unknown = "{path} holds a run of another kind ({names}); add --overwrite to replace it"
    damaged = OutputFolder.damaged

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
    for key in ("N_SHOT", "MAX_PER_CLASS", "TYPE"):
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
