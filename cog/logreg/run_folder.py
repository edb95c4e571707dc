"""What a classifier run leaves in ``seed-<seed>/``: the original toolkit's files, and ``results.json``.

::

    results.json                     settings, sizes, search, final accuracies, versions; written last
    final-lr-<lr>_wd-<wd>/logs.pkl   one value per epoch
    final-lr-<lr>_wd-<wd>/model.pth  {"model": state dict of the linear layer, or of the Sequential of an MLP}
    final-lr-<lr>_wd-<wd>/preds.pkl  classes predicted for the test set after the last epoch
    final-lr-<lr>_wd-<wd>/pca.pth    {"mean", "components"} that turn features into the input (only with CLF.PCA_DIM)
    final-lr-<lr>_wd-<wd>/{args.pkl, model.txt}
    study.pkl, arguments.json, config.txt, program.log
"""

from __future__ import annotations

import collections
import dataclasses
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog.errors import CogError
from cog.runtime import files
from cog.runtime.fingerprint import differences

if TYPE_CHECKING:
    from cog.logreg.protocol import RunResult
    from cog.logreg.settings import Settings

RESULTS_FILE = "results.json"

_OWN_FILES = ("study.pkl", "arguments.json", "config.txt", "program.log")
_FINAL_FOLDER = re.compile(r"final-lr-.*_wd-.*")


class RunFolder:
    """Reads and writes one such folder."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def results(self) -> dict[str, Any] | None:
        """Return results.json of a complete run, or None."""
        path = self.path / RESULTS_FILE
        if not path.is_file():
            return None
        data = files.read_json(path)
        if not isinstance(data, dict):
            raise CogError(
                f"{path} holds {type(data).__name__}, expected a JSON object; add --overwrite to replace it"
            )
        return data

    def existing(self) -> list[str]:
        """Return the names of this toolkit's (or the original's) outputs in the folder, sorted."""
        if not self.path.is_dir():
            return []
        own = (RESULTS_FILE, *_OWN_FILES)
        return sorted(e for e in os.listdir(self.path) if e in own or _FINAL_FOLDER.fullmatch(e))

    def is_complete(self) -> bool:
        """Whether a finished run is there, of this toolkit or of the original one.

        The original toolkit writes ``logs.pkl`` once, after the last epoch of the final training.
        """
        return self.results() is not None or len(list(self.path.glob("final-lr-*_wd-*/logs.pkl"))) == 1

    def check_free(self, *, overwrite: bool) -> None:
        """Refuse to write over an existing run.

        Raises:
            CogError: when there is one and ``overwrite`` is False.
        """
        existing = self.existing()
        if existing and not overwrite:
            raise CogError(
                f"{self.path} holds a run already ({', '.join(existing[:3])}); add --overwrite to replace it, or "
                "--skip_complete to keep it"
            )

    def differences(self, identity: dict[str, Any]) -> list[str]:
        """Compare a finished run with what is asked for; one ``key: old -> new`` per difference.

        A run of the original toolkit, whose settings are not recorded in a readable form, has none. A setting that did
        not exist yet when a run was written had its default.
        """
        results = self.results()
        return [] if results is None else compare(results.get("identity", {}), identity)


def compare(stored: dict[str, Any], identity: dict[str, Any]) -> list[str]:
    """Return one ``key: old -> new`` per entry of ``identity`` that is another one in ``stored``."""
    from cog.logreg.settings import Settings

    before: dict[str, Any] = {
        field.name: field.default
        for field in dataclasses.fields(Settings)
        if field.default is not dataclasses.MISSING
    } | stored
    return differences({key: before.get(key) for key in identity}, identity)


def final_folder(lr: float, wd: float) -> str:
    """Return the name of the folder of the final training, as the original toolkit spells it."""
    return f"final-lr-{lr}_wd-{wd}"


def write(
    stage: Path,
    result: RunResult,
    *,
    settings: Settings,
    identity: dict[str, Any],
    arguments: dict[str, Any],
    config_text: str,
    metadata: dict[str, Any],
) -> None:
    """Write a finished run.

    Args:
        stage: folder to write into, see :func:`cog.runtime.atomic_dir.staged`.
        result: result of the protocol.
        settings: of the protocol.
        identity: what makes two runs the same, for a later comparison.
        arguments: the command line's flags.
        config_text: the configuration as YAML.
        metadata: further entries of results.json.
    """
    import torch

    classifier = result.classifier
    assert classifier.history is not None and classifier.predictions is not None
    # interned, as names in the source are: pickles of continued runs are then the same to the byte
    logs = {sys.intern(name): values for name, values in classifier.history.logs.items()}
    folder = final_folder(result.lr, result.wd)
    final = stage / folder
    final.mkdir()
    n_classes, dim = len(classifier.bias), classifier.feature_dim
    files.write_pickle(final / "logs.pkl", logs)
    # One entry per epoch in the original toolkit (5 GB per full-scale run); here the last epoch's alone.
    files.write_pickle(final / "preds.pkl", [classifier.predictions.numpy()])
    files.write_pickle(
        final / "args.pkl",
        arguments | {"lr": result.lr, "wd": result.wd, "n_classes": n_classes, "val": False, "logs": logs},
    )
    files.write_text(final / "model.txt", f"{classifier.module()}\n")
    with files.atomic_write(final / "model.pth") as handle:
        torch.save({"model": collections.OrderedDict(classifier.state_dict())}, handle)
    if result.projection is not None:
        with files.atomic_write(final / "pca.pth") as handle:
            torch.save(result.projection, handle)
    if result.study is not None:
        files.write_pickle(stage / "study.pkl", result.study)
    files.write_json(stage / "arguments.json", arguments)
    files.write_text(stage / "config.txt", config_text)
    files.write_json(
        stage / RESULTS_FILE,
        {"status": "complete"}
        | metadata
        | {
            "seed": settings.seed,
            "n_shot": settings.n_shot,
            "identity": identity,
            "n_classes": n_classes,
            "feature_dim": dim,
            "labels": None if result.labels == list(range(n_classes)) else result.labels,
            "rows": result.sizes,
            "final": {
                "folder": folder,
                "lr": result.lr,
                "wd": result.wd,
                "test_top1": logs["test/top1"][-1],
                "test_top5": logs["test/top5"][-1],
                "diverged": classifier.diverged,
            },
            "best_trial": next(
                (t.number for t in result.trials if (t.lr, t.wd) == (result.lr, result.wd)), None
            ),
            "trials": [trial.as_dict() for trial in result.trials],
            "seconds": {stage_name: round(value, 3) for stage_name, value in result.seconds.items()},
            "arithmetic": classifier.arithmetic,
        },
    )
