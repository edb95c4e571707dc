"""The folder of a classifier run, ``seed-<seed>/``.

::

    results.json                     settings, sizes, search, final accuracies, overall and per class
                                     (cog.results.concept_counts), versions; written last
    final-lr-<lr>_wd-<wd>/logs.pkl   one value per epoch
    final-lr-<lr>_wd-<wd>/model.pth  {"model": state dict of the linear layer, or of the Sequential of an MLP}
    final-lr-<lr>_wd-<wd>/preds.pkl  classes predicted for the test set after the last epoch
    final-lr-<lr>_wd-<wd>/pca.pth    {"mean", "components"} that turn features into the input (only with CLF.PCA_DIM)
    program.log
"""

from __future__ import annotations

import collections
import dataclasses
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from cog.errors import CogError
from cog.logreg.settings import Settings
from cog.results import concept_counts, run_records
from cog.results.run_records import RESULTS_FILE
from cog.runtime import atomic_dir, files
from cog.runtime.fingerprint import differences
from cog.runtime.output_folder import OutputFolder

if TYPE_CHECKING:
    import torch

    from cog.logreg.matrix import Data
    from cog.logreg.protocol import RunResult
    from cog.logreg.sgd import TrainedClassifier

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
        return run_records.load_record(self.path)

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

    def announce_done(self) -> None:
        """Log that no work is needed, and print the accuracies."""
        super().announce_done()
        print_accuracies((self.results() or {}).get("final", {}), self.path)


@dataclass(frozen=True)
class RunPlan:
    """The plan of one run.

    Attributes:
        settings: settings of the protocol.
        folder: seed folder, with the identity of the run.
        metadata: further entries of ``results.json``.
    """

    settings: Settings
    folder: RunFolder
    metadata: dict[str, Any]


def print_accuracies(final: Mapping[str, Any], path: Path) -> None:
    """Print the accuracies of a final training, the entry ``final`` of ``results.json``."""
    values = [final.get(key) for key in ("test_top1", "test_top5")]
    if all(isinstance(value, float) for value in values):
        print(f"top-1: {values[0]:.2f}  top-5: {values[1]:.2f}  ({path})", flush=True)


def write_final(
    stage: Path, classifier: TrainedClassifier, labels: torch.Tensor, *, lr: float, wd: float
) -> dict[str, Any]:
    """Write the files of a run except ``results.json``, and return the entry ``final`` of that file.

    Args:
        stage: folder to write into, see :meth:`cog.runtime.output_folder.FolderClaim.publish`.
        classifier: the classifier, with logs and predictions (-1: an image that was not decoded).
        labels: true classes of the test images, int64 ``(n,)``.
        lr: learning rate of the final training.
        wd: weight decay of the final training.
    """
    import torch

    assert classifier.logs is not None and classifier.predictions is not None
    # interned like names in the source, so that pickles of continued runs are equal to the byte
    logs = {sys.intern(name): values for name, values in classifier.logs.items()}
    top1, top5, n_classes = logs["test/top1"][-1], logs["test/top5"][-1], classifier.sizes[-1]
    folder = f"final-lr-{lr}_wd-{wd}"
    final = stage / folder
    final.mkdir()
    files.write_pickle(final / "logs.pkl", logs)
    # One entry per epoch in the original toolkit (5 GB per full-scale run); here the last epoch's alone.
    files.write_pickle(final / "preds.pkl", [classifier.predictions.numpy()])
    with files.atomic_write(final / "model.pth") as handle:
        torch.save({"model": collections.OrderedDict(classifier.state_dict())}, handle)
    accuracies = {"test_top1": top1, "test_top5": top5, "diverged": classifier.diverged}
    counts = counts_per_class(classifier.predictions, labels, n_classes, top1=top1)
    return {"folder": folder, "lr": lr, "wd": wd} | accuracies | counts


def counts_per_class(
    predictions: torch.Tensor, labels: torch.Tensor, n_classes: int, *, top1: float
) -> dict[str, Any]:
    """Return the numbers of correct predictions and of images of each class; empty when they contradict the accuracy.

    They do when logits are not finite: ``argmax``, which is predicted, and the rank of the true class then disagree.
    """
    import torch

    labels = labels.cpu()[predictions >= 0]
    right = labels[predictions[predictions >= 0] == labels]
    correct, images = (torch.bincount(classes, minlength=n_classes).tolist() for classes in (right, labels))
    entries = concept_counts.write(correct, images)
    try:
        concept_counts.read(entries, n_classes=n_classes, top1=top1)
    except ValueError:
        return {}
    return entries


def write(
    stage: Path, result: RunResult, data: Data, plan: RunPlan, metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """Write a finished run into ``stage``, and return the entry ``final`` of its ``results.json``.

    ``metadata`` has further entries of that file.
    """
    import torch

    from cog.logreg import precision

    classifier, search = result.classifier, result.search
    dim, n_classes = classifier.sizes[0], classifier.sizes[-1]
    final = write_final(stage, classifier, data.test_y, lr=result.lr, wd=result.wd)
    if data.projection is not None:
        with files.atomic_write(stage / final["folder"] / "pca.pth") as handle:
            torch.save(data.projection, handle)
    trials = [] if search is None else search.trials
    results = {
        "status": "complete",
        **plan.metadata,
        **metadata,
        "precision": precision.describe(result.arithmetic),
        "seed": plan.settings.seed,
        "n_shot": plan.settings.n_shot,
        "identity": plan.folder.identity,
        "n_classes": n_classes,
        "feature_dim": dim,
        "labels": None if data.labels == list(range(n_classes)) else data.labels,
        "rows": dataclasses.asdict(result.rows),
        "final": final,
        "best_trial": None if search is None else search.best.number,
        "trials": [dataclasses.asdict(trial) for trial in trials],
        "seconds": {
            "search": round(sum(trial.seconds for trial in trials), 3),
            "final": round(classifier.seconds, 3),
        },
        "arithmetic": result.arithmetic,
    }
    files.write_json(stage / RESULTS_FILE, results)
    return final
