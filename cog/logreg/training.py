"""From feature files to published classifiers: the work of ``logreg.py`` on its claimed runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from cog.errors import CogError
from cog.features import feature_files
from cog.features.folder import with_class_list
from cog.logreg import protocol, run_folder
from cog.logreg.checkpoint import Work
from cog.logreg.engine import Engine, device_room
from cog.logreg.jobs import ClaimedRun
from cog.logreg.matrix import Data
from cog.logreg.preprocess import prepare
from cog.logreg.run_folder import RunPlan
from cog.logreg.settings import Settings
from cog.runtime import provenance, signals
from cog.runtime.device import exact_float32, resolve_device
from cog.runtime.memory import exhaustion_explained
from cog.runtime.output_folder import FolderClaim
from cog.runtime.progress import size

logger = logging.getLogger(__name__)

#: Version of work in progress; it changes when work of an earlier version cannot be continued.
_FORMAT = 1

_LESS_MEMORY = "take a smaller CLF.BATCH_SIZE"

#: Share of the available memory that a training may take.
_USABLE = 0.9


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
    settings = runs[0][0].settings  # they differ in seed and shots only
    engine = Engine(resolve_device(device_name), settings.precision)
    _begin(runs, engine)
    with exhaustion_explained("preparing the training", _LESS_MEMORY):
        normalize = settings.normalizes_features
        data = prepare(
            with_class_list(feature_files.load(train, normalize=normalize, rounded=True), train),
            with_class_list(feature_files.load(test, normalize=normalize), test),
            engine,
            settings,
        )
    _require_room(settings, data, engine)
    with exact_float32():
        for number, (plan, claim) in enumerate(runs):
            signals.check("finished work is saved" if number else "no training was begun")
            place = f"run {number + 1} of {len(runs)}" if len(runs) > 1 else ""
            _do_run(plan, claim, data, engine, Work(claim.resume, print_freq=print_freq), place)


def _require_room(settings: Settings, data: Data, engine: Engine) -> None:
    """Refuse an MLP that exceeds the memory of the device: the kernel would kill the process without a message.

    Beside the features there are parameters, momentum and gradients in float32, copies of parameters and gradients in
    bfloat16, and the activations of a batch with their gradients.
    """
    dim, n_classes = data.features.dim, len(data.labels)
    n_values = min(settings.batch_size, data.features.n) * sum(settings.layer_sizes(dim, n_classes)[1:])
    needed, room = 16.0 * settings.n_parameters(dim, n_classes) + 8.0 * n_values, device_room(engine.device)
    if settings.is_mlp and needed > _USABLE * room:
        raise CogError(
            f"CLF.TYPE {settings.classifier} with CLF.MLP_HIDDEN {settings.mlp_hidden} and CLF.MLP_LAYERS "
            f"{settings.mlp_layers} takes {size(needed)} to train, and {size(room)} of memory are available; "
            "lower one of them, or run this where there is more"
        )


def _begin(runs: Sequence[ClaimedRun], engine: Engine) -> None:
    """Compare unfinished work with the runs, before any computation; the last bits depend on device and versions."""
    for plan, claim in runs:
        more = {"device": engine.device.type, "training_precision": engine.precision}
        versions = {key: plan.metadata["versions"][key] for key in ("torch", "optuna", "numpy")}
        claim.begin(more, versions={"format": _FORMAT} | versions)
        if plan.folder.overwrite:
            claim.resume.replaces = bool(plan.folder.replaced())
            claim.resume.create()


def _do_run(plan: RunPlan, claim: FolderClaim, data: Data, engine: Engine, work: Work, place: str) -> None:
    """Train, write and publish one run."""
    resume = claim.resume
    action = f"training classifiers of {len(data.labels)} classes"
    with claim.failures_noted(), exhaustion_explained(action, _LESS_MEMORY):
        resume.create()
        session = resume.begin_session()
        with provenance.log_file(resume.log_file):
            if place:
                logger.info("%s: %s", place, plan.folder.path)
            if session["sessions"] > 1:
                logger.info("continuing, session %d", session["sessions"])
            result = protocol.run_protocol(data, plan.settings, engine, work)
        with claim.publish() as stage:
            times = {"started": session["started"], "finished": provenance.now()}
            metadata = data.preparation | {"device": engine.device.type} | times
            final = run_folder.write(stage, result, data, plan, metadata)
    claim.release()
    run_folder.print_accuracies(final, plan.folder.path)
