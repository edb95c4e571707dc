"""Deletion of the features of a study that no unfinished output needs any more.

The description of the features, ``features.json``, stays for tables; ``deleted.json`` records the deletion.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from cog import constants
from cog.errors import CogError, os_errors_explained
from cog.paths import ModelDir
from cog.runtime import files
from cog.runtime.output import DONE, State
from cog.study.units import Study, Unit

logger = logging.getLogger(__name__)

DELETED_FILE = "deleted.json"


def delete_features(study: Study, states: Mapping[Unit, State]) -> list[Path]:
    """Delete the features of each model and data set whose runs in the study are all done, and print their files.

    Features stay when the record of a run is damaged, and when another output that may need them is begun and not
    finished: a run of another study on the data set, or an analysis of the model, which may read several data sets.

    Raises:
        CogError: a file cannot be deleted.
    """
    deleted: list[Path] = []
    for model, dataset in study.pairs():
        paths = [study.folder(unit) / constants.FEATURES_FILE for unit in study.features(model, dataset)]
        paths = [path for path in paths if path.is_file()]
        if not paths:
            continue
        if reason := next(_reasons_to_keep(study, states, model, dataset), ""):
            logger.warning("features of %s on %s are kept: %s", model, dataset, reason)
            continue
        for path in paths:
            with os_errors_explained(f"cannot delete {path}"):
                n_bytes = path.stat().st_size
                # The note comes first: beside features it has no effect.
                note = {"deleted": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "bytes": n_bytes}
                files.write_json(path.parent / DELETED_FILE, note)
                path.unlink()
            print(f"deleted {path} ({n_bytes / 1e6:.3g} MB)", flush=True)
            deleted.append(path)
    return deleted


def _reasons_to_keep(study: Study, states: Mapping[Unit, State], model: str, dataset: str) -> Iterator[str]:
    runs = study.runs(model, dataset)
    if n_open := sum(states[run].word != DONE for run in runs):
        yield f"{n_open} of {len(runs)} runs are not done"
    for run in runs:
        try:
            study.record(run)
        except CogError as error:
            yield str(error)
    folder = ModelDir(study.root, model).path
    for pattern in (f"{dataset}/.*.work", f"{dataset}/*/.*.work", "*/.analysis_*.work"):
        yield from (f"{path} is unfinished work" for path in sorted(folder.glob(pattern)))
