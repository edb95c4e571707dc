"""Deletion of the features of a study that no unfinished output needs any more.

The description of the features, ``features.json``, stays for reports; ``deleted.json`` records the deletion.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from cog import constants, paths
from cog.errors import CogError, os_errors_explained
from cog.features.folder import DELETED_FILE
from cog.logreg.run_folder import RunFolder
from cog.runtime import files, locks, progress, provenance
from cog.runtime.output_folder import DONE, MISSING, read_state
from cog.study.units import Status, Study, Unit

logger = logging.getLogger(__name__)

_RESULTS = ("results.json", "report.json", constants.FEATURES_FILE)


def delete_features(study: Study, statuses: Mapping[Unit, Status]) -> list[Path]:
    """Delete the features of each model and data set whose runs in the study are all done, and print their files.

    Features stay when the record of a run is damaged, and when another output that may need them is begun and not
    finished: a run of another study on the data set, or an analysis of the model, which may read the features of
    several data sets.

    Returns:
        The deleted files.

    Raises:
        CogError: a file cannot be deleted.
    """
    deleted: list[Path] = []
    n_bytes = 0
    for model, dataset in study.pairs():
        existing = [
            path
            for unit in study.extractions(model, dataset)
            if (path := unit.folder(study.root) / constants.FEATURES_FILE).is_file()
        ]
        if not existing:
            continue
        runs = study.trainings(model, dataset)
        n_open = sum(statuses[run].state != DONE for run in runs)
        reason = f"{n_open} of {len(runs)} runs are not done" if n_open else ""
        reason = reason or next(_damaged(run.folder(study.root) for run in runs), "")
        reason = reason or next(_unfinished(paths.ModelDir(study.root, model).path, dataset), "")
        if reason:
            logger.warning("features of %s on %s are kept: %s", model, dataset, reason)
            continue
        for path in existing:
            n_bytes += _delete(path)
            deleted.append(path)
    if deleted:
        print(
            f"deleted the features of {len(deleted)} splits, {progress.size(n_bytes)} in all",
            flush=True,
        )
    return deleted


def _damaged(folders: Iterable[Path]) -> Iterator[str]:
    """Yield a line for each run whose record cannot be read."""
    for folder in folders:
        try:
            RunFolder(folder).results()
        except CogError as error:
            yield str(error)


def _unfinished(model_folder: Path, dataset: str) -> Iterator[str]:
    """Yield a line for each unfinished output on the data set, and for each unfinished analysis of the model."""
    for folder in sorted(path for path in model_folder.glob("*/*") if path.is_dir()):
        if paths.parse_analysis_folder(folder.name) is None and folder.parent.name != dataset:
            continue
        is_evaluation = paths.parse_evaluation_folder(folder.name) is not None
        for output in (
            sorted(path for path in folder.iterdir() if path.is_dir()) if is_evaluation else [folder]
        ):
            names = os.listdir(output)
            complete = any(name in _RESULTS or name.startswith("final") for name in names)
            state = read_state(output, names, complete=complete).state
            if state not in (DONE, MISSING):
                yield f"{output} is {state}"


def _delete(path: Path) -> int:
    """Delete a feature file, and return its size."""
    with (
        locks.locked(path.parent, flag="--models_root_dir", create=False),
        os_errors_explained(f"cannot delete {path}"),
    ):
        size = path.stat().st_size
        # The record comes first: if the process dies before the deletion, a record beside features has no effect.
        files.write_json(path.parent / DELETED_FILE, {"deleted": provenance.now(), "bytes": size})
        path.unlink()
    print(f"deleted {path} ({progress.size(size)})", flush=True)
    return size
