"""From feature files to published classifiers: the work of ``logreg.py`` on its claimed runs."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from cog import constants
from cog.features import feature_files
from cog.features.folder import with_class_list
from cog.features.storage import stays_in_file
from cog.logreg import protocol, run_folder
from cog.logreg.checkpoint import Work
from cog.logreg.engine import Engine
from cog.logreg.estimate import describe, require_room
from cog.logreg.jobs import ClaimedRun
from cog.logreg.matrix import Data
from cog.logreg.parallel import SideBySide, runs_at_once
from cog.logreg.preprocess import prepare
from cog.logreg.run_folder import RunPlan
from cog.runtime import provenance, signals
from cog.runtime.device import exact_float32, resolve_device
from cog.runtime.memory import exhaustion_explained
from cog.runtime.output_folder import FolderClaim
from cog.runtime.resume_dir import sample_sha256

logger = logging.getLogger(__name__)

#: Version of work in progress; it changes when work of an earlier version cannot be continued.
_FORMAT = 1

_LESS_MEMORY = "train fewer seeds and shots at a time, or with a smaller CLF.BATCH_SIZE"


def train_all(
    runs: Sequence[ClaimedRun], train: Path, test: Path, *, device_name: str | None, print_freq: int
) -> None:
    """Load the features once and do all runs on them; publish each finished run and print its accuracies.

    When a run fails or the process is interrupted, the finished runs stay, and the same call continues the others.

    Args:
        runs: the runs; they differ in seed and number of shots only.
        train: feature file of the training images.
        test: feature file of the test images.
        device_name: value of ``--device``.
        print_freq: epochs between log lines of a final training, 0 for none.

    Raises:
        CogError: files, folders or a device that cannot be used, too little memory; see also
            :func:`cog.logreg.protocol.run_protocol`.
        Interrupted: when the process was asked to end.
    """
    settings = [plan.settings for plan, _ in runs]
    engine = Engine(resolve_device(device_name), settings[0].precision)
    _begin(runs, engine)
    with exhaustion_explained("preparing the training", _LESS_MEMORY):
        normalize = settings[0].normalizes_features
        mapped = stays_in_file(train, test, rounded=True)
        data = prepare(
            with_class_list(
                feature_files.load(train, normalize=normalize, mapped=mapped, rounded=True), train
            ),
            with_class_list(feature_files.load(test, normalize=normalize), test),
            engine,
            settings[0],
        )
        require_room(settings[0], data.features.n, data.features.dim, len(data.labels), engine.device)
        at_once, alone = runs_at_once(data, settings, engine)
        for line in describe(data, settings, engine, at_once=at_once):
            logger.info(line)
    signals.check("no training was begun")

    def do(number: int, before_epoch: Callable[[], None]) -> None:
        if number:
            signals.check("finished work is saved")
        resume = runs[number][1].resume
        work = Work(resume, print_freq=print_freq, bar=at_once == 1, before_epoch=before_epoch)
        place = f"run {number + 1} of {len(runs)}" if len(runs) > 1 else ""
        _do_run(*runs[number], data, engine, work, place)

    with exact_float32():  # once for all threads: it is a setting of the process
        SideBySide(do, len(runs), at_once, engine.device, alone).run()


def _begin(runs: Sequence[ClaimedRun], engine: Engine) -> None:
    """Compare unfinished work with the runs, before any computation; the last bits depend on device and versions."""
    sample = functools.cache(sample_sha256)
    for plan, claim in runs:
        more = {"device": engine.device.type, "training_precision": engine.precision}
        for split in constants.SPLITS:
            more[f"{split}_features_sample"] = sample(plan.metadata[f"{split}_features"])
        versions = {key: plan.metadata["versions"][key] for key in ("torch", "optuna", "numpy")}
        claim.begin(more, versions={"format": _FORMAT} | versions)
        if plan.folder.overwrite:
            claim.resume.replaces = bool(plan.folder.replaced())
            claim.resume.create()


def _do_run(plan: RunPlan, claim: FolderClaim, data: Data, engine: Engine, work: Work, place: str) -> None:
    """Train, write and publish one run."""
    resume, label = claim.resume, plan.settings.label
    action = f"training classifiers of {len(data.labels)} classes"
    with claim.failures_noted(), exhaustion_explained(action, _LESS_MEMORY):
        resume.create()
        session = resume.begin_session()
        with provenance.log_file(resume.log_file, label=label):
            if place:
                logger.info("%s%s: %s", label, place, plan.folder.path)
            if session["sessions"] > 1:
                logger.info("%scontinuing, session %d", label, session["sessions"])
            result = protocol.run_protocol(data, plan.settings, engine, work)
        with claim.publish() as stage:
            times = {key: session[key] for key in ("started", "sessions")} | {"finished": provenance.now()}
            metadata = data.preparation | {"device": str(engine.device)} | times
            final = run_folder.write(stage, result, data, plan, metadata)
    claim.release()
    run_folder.print_accuracies(final, plan.folder.path)
