"""Several runs on the same features in one process, each into the folder that a call of its own would write."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import record, run_folder
from cog.errors import CogError
from cog.logreg.settings import Settings
from cog.run_folder import RESULTS_FILE, RunFolder
from cog.staging import Stage, require_writable, staged

if TYPE_CHECKING:
    from cog.logreg.protocol import Data, Engine

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunPlan:
    """One run of a study: what to do and where to.

    Attributes:
        settings: of the protocol.
        output: the seed folder.
        identity: what makes two runs the same.
        arguments: for ``arguments.json``: as if the run had been started alone.
        config_text: the configuration as YAML.
        metadata: further entries of ``results.json``.
    """

    settings: Settings
    output: Path
    identity: dict[str, Any]
    arguments: dict[str, Any]
    config_text: str
    metadata: dict[str, Any]


def pending(plans: Sequence[RunPlan], *, skip_complete: bool, overwrite: bool) -> list[RunPlan]:
    """Return the runs that have to be done; checks all folders before anything is computed.

    Raises:
        CogError: a folder that holds another run, or (without ``skip_complete``) any run, unless ``overwrite``; one
            that cannot be written to.
    """
    todo = []
    for plan in plans:
        folder = RunFolder(plan.output)
        if skip_complete and not overwrite and folder.is_complete():
            changed = folder.differences(plan.identity)
            if changed:
                raise CogError(
                    f"{plan.output} holds a different run ({'; '.join(changed)}); add --overwrite to replace it"
                )
            logger.info("%s is complete, skipped", plan.output)
            continue
        folder.check_free(overwrite=overwrite)
        todo.append(plan)
    for plan in todo:
        require_writable(plan.output, flag="--output_dir")
    return todo


def execute(plans: Sequence[RunPlan], data: Data, engine: Engine, *, print_freq: int = 10) -> None:
    """Train and write all runs; each is published the moment it is finished.

    Prints the final accuracies of each. When one fails, the finished ones stay and the others leave nothing behind.

    Raises:
        CogError: see :func:`cog.logreg.protocol.run_all`; folders that cannot be written to.
    """
    from cog.logreg import protocol

    with contextlib.ExitStack() as everything:
        open_runs: dict[int, tuple[Stage, contextlib.ExitStack, contextlib.ExitStack]] = {}

        def on_start(position: int) -> None:
            plan = plans[position]
            publishing = everything.enter_context(contextlib.ExitStack())
            stage = publishing.enter_context(staged(plan.output, marker=RESULTS_FILE, flag="--output_dir"))
            stage.replaces = RunFolder(plan.output).existing()
            logging_ = publishing.enter_context(contextlib.ExitStack())
            logging_.enter_context(record.log_file(stage.path / "program.log", label=plan.settings.label))
            open_runs[position] = stage, publishing, logging_
            if len(plans) > 1:
                logger.info("%srun %d of %d: %s", plan.settings.label, position + 1, len(plans), plan.output)

        settings = [plan.settings for plan in plans]
        for position, outcome in protocol.run_all(
            data, settings, engine, print_freq=print_freq, on_start=on_start
        ):
            plan = plans[position]
            stage, publishing, logging_ = open_runs.pop(position)
            logging_.close()
            run_folder.write(
                stage.path,
                outcome,
                settings=plan.settings,
                identity=plan.identity,
                arguments=plan.arguments,
                config_text=plan.config_text,
                metadata=plan.metadata | {"precision": outcome.precision, "finished": record.now()},
            )
            publishing.close()
            assert outcome.fit.history is not None
            logs = outcome.fit.history.logs
            print(
                f"top-1: {logs['test/top1'][-1]:.2f}  top-5: {logs['test/top5'][-1]:.2f}  ({plan.output})",
                flush=True,
            )
