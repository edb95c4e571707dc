"""From feature files to trained classifiers: what ``logreg.py`` does once its runs are claimed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cog.features import feature_files
from cog.logreg import jobs, preprocess, protocol
from cog.logreg.engine import get_engine
from cog.logreg.estimate import describe, require_room, stays_in_file
from cog.logreg.jobs import Claim
from cog.logreg.parallel import runs_at_once
from cog.runtime import signals
from cog.runtime.device import resolve_device
from cog.runtime.memory import exhaustion_explained

if TYPE_CHECKING:
    from yacs.config import CfgNode

logger = logging.getLogger(__name__)


def train_all(
    claims: Sequence[Claim],
    train: Path,
    test: Path,
    *,
    cfg: CfgNode,
    device_name: str | None,
    print_freq: int,
) -> None:
    """Load the features once and do all runs on them (:func:`cog.logreg.jobs.execute`).

    Args:
        claims: the runs; they differ in seed and number of shots only.
        train: feature file of the training images.
        test: feature file of the test images.
        cfg: the configuration.
        device_name: value of ``--device``.
        print_freq: epochs between log lines of a final training, 0 for none.

    Raises:
        CogError: files or a device that cannot be used, or too little memory.
    """
    plans = [claim.plan for claim in claims]
    device = resolve_device(device_name)
    engine = get_engine(device, cfg.CLF.PRECISION)
    jobs.begin(claims, device=device.type, precision=engine.precision)
    normalize = cfg.CLF.NORM_FTS and not cfg.CLF.PCA_DIM  # then done to what that leaves
    train_set = feature_files.load(train, normalize=normalize, mapped=stays_in_file(train, test))
    test_set = feature_files.load(test, normalize=normalize)
    logger.info(
        "%s: %d x %d training and %d test features, %s",
        train_set.name, *train_set.x.shape, len(test_set), device,
    )  # fmt: skip
    made = preprocess.prepare(train_set, test_set, clf=cfg.CLF, device=device)
    del train_set, test_set
    settings = [plan.settings for plan in plans]
    with exhaustion_explained("preparing the training", protocol.LESS_MEMORY):
        data = protocol.prepare(made.train, made.test, engine, projection=made.projection)
        for plan in plans:
            plan.metadata.update(made.record | {"device": str(device)})
        del made
        require_room(settings[0], data.features.n, data.features.dim, len(data.labels), device)
        at_once, alone = runs_at_once(data, settings, engine)
        for line in describe(data, settings, engine, at_once=at_once):
            logger.info(line)
    signals.check("no training was begun")
    jobs.execute(claims, data, engine, print_freq=print_freq, at_once=at_once, alone=alone)
