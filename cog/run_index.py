"""An index of finished runs, so that a folder with thousands of them is read once.

The index remembers what was read from each run together with what the file system said about its files then:
size, time of modification, time of the last change of the entry, and inode of ``logs.pkl`` and ``results.json``, and
the times of the seed folder, which change when anything is added or removed there. A run is taken from the index only
while all of these are the same; else it is read again. Files changed in the last two seconds are not remembered,
since a file system may be unable to tell a second change at the same instant.

It lives in the models root (``.cog-run-index.json``), where everyone who reads the same results shares it; when
that cannot be written, in ``$XDG_CACHE_HOME/imagenet-cog`` (default ``~/.cache/imagenet-cog``); when neither can,
nowhere. It appears only once it spares a noticeable time, and is written whole or not at all, so that processes that
write it together cannot damage it: the last one wins. It can be deleted at any time.

An index is only ever an aid: one that is damaged, of another version, or has values no run can have is ignored, entry
by entry where possible. It is JSON, names of models, data sets and seeds come from the folders and not from it.
Whoever may write the models root could change the results themselves just as well.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import stat
import time
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import cog
from cog import files
from cog.cells import Details, Run
from cog.errors import CogError
from cog.run_reader import LOGS_FILE, RESULTS_FILE, is_percentage

LOG = logging.getLogger("cog")

INDEX_FILE = ".cog-run-index.json"

_FORMAT = "imagenet-cog run index"
#: Changes whenever a run would be read into other values than before.
_VERSION = 1

# 400 kB hold 500 runs.
_LARGEST = 1 << 29
# Reading so many runs takes a tenth of a second.
_WORTH_WRITING = 200
_RECENT_NS = 2_000_000_000

_NUMBERS = ("top1", "top5")
_DETAILS = [field.name for field in fields(Details)]

Signature = list[list[int]]


def signature(path: str, final_folder: str | None = None) -> Signature | None:
    """Return what the file system says about a run's files; None when they cannot be looked at.

    Args:
        path: the seed folder.
        final_folder: name of its subfolder with ``logs.pkl``; None: the only one there is.
    """
    try:
        if final_folder is None:
            (final_folder,) = (name for name in os.listdir(path) if name.startswith("final"))
        folder = os.stat(path)
        logs = os.stat(os.path.join(path, final_folder, LOGS_FILE))
    except (OSError, ValueError):
        return None
    try:
        record = _of_file(os.stat(os.path.join(path, RESULTS_FILE)))
    except FileNotFoundError:
        record = []
    except OSError:
        return None
    return [[folder.st_mtime_ns, folder.st_ctime_ns, folder.st_ino], _of_file(logs), record]


def _of_file(found: os.stat_result) -> list[int]:
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


class RunIndex:
    """The index of one models root.

    Args:
        root: the models root.
    """

    def __init__(self, root: Path) -> None:
        self._root = os.path.abspath(root)
        self._new: dict[str, Any] = {}
        self._used: dict[str, Any] = {}
        # Both places may have one: of the owner of the root, and of a reader who cannot write there.
        self._known = [entries for place in self._places() if (entries := _read(place)) is not None]

    def _places(self) -> list[Path]:
        cache = os.environ.get("XDG_CACHE_HOME", "")
        places = [Path(self._root) / INDEX_FILE]
        with contextlib.suppress(RuntimeError):  # no home folder
            base = Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"
            digest = hashlib.sha256(os.fsencode(self._root)).hexdigest()
            places.append(base / "imagenet-cog" / f"runs-{digest[:32]}.json")
        return places

    def get(
        self, path: Path, *, model: str, dataset: str, evaluation: str, n_shot: int, seed: int
    ) -> Run | None:
        """Return the run in the seed folder ``path``, or None when it must be read.

        Args:
            path: the seed folder, below the root.
            model: what the folder's place says (same for the next four).
            dataset: data set.
            evaluation: name of the evaluation.
            n_shot: training images per class.
            seed: seed.
        """
        key = self._key(path)
        place = {
            "model": model,
            "dataset": dataset,
            "evaluation": evaluation,
            "n_shot": n_shot,
            "seed": seed,
        }
        for entries in self._known:
            run = _run(entries.get(key), path, place)
            if run is not None:
                self._used[key] = entries[key]
                return run
        return None

    def add(self, run: Run, known: Signature | None) -> None:
        """Remember a run that was read.

        Args:
            run: the run.
            known: :func:`signature` of its files, taken before they were read; the run is not remembered when it is
                None, when a file was changed just before, or when the files are no longer as they were.
        """
        if known is None:
            return
        latest = max(stamp for part in known for stamp in _times(part))
        if latest > time.time_ns() - _RECENT_NS or known != signature(str(run.path), run.final_folder):
            return
        values = {name: getattr(run, name) for name in _RUN_VALUES} | {
            "final_folder": run.final_folder,
            "details": {
                name: value for name in _DETAILS if (value := getattr(run.details, name)) not in (None, {})
            },
        }
        self._new[self._key(run.path)] = [known, values]

    def _key(self, path: Path) -> str:
        return os.path.relpath(path, self._root)

    def save(self, *, seen: Iterable[Path]) -> Path | None:
        """Write the index when enough is new; never fails.

        Args:
            seen: the seed folders just found; entries of others are kept while their folder exists.

        Returns:
            Where it was written; None when it was not.
        """
        if len(self._new) < _WORTH_WRITING:
            return None
        found = {self._key(path) for path in seen}
        merged: dict[str, Any] = {}
        for entries in (*reversed(self._known), self._used, self._new):
            merged |= entries
        entries = {
            key: entry
            for key, entry in merged.items()
            if key in found or os.path.isdir(os.path.join(self._root, key))
        }
        content = {"format": _FORMAT, "version": _VERSION, "toolkit": cog.__version__, "runs": entries}
        text = json.dumps(content, separators=(",", ":"))
        for place in self._places():
            try:
                if place.name != INDEX_FILE:
                    place.parent.mkdir(parents=True, exist_ok=True)
                files.write_text(place, text)
            except (OSError, CogError) as error:
                LOG.debug("no index of runs in %s: %s", place, error)
                continue
            return place
        return None


def _run(entry: Any, path: Path, place: Mapping[str, Any]) -> Run | None:
    """Return the run that an entry of an index tells of, if its files are as they were."""
    if not isinstance(entry, list) or len(entry) != 2:
        return None
    known, values = entry
    try:
        final = values["final_folder"]
        if not isinstance(final, str) or "/" in final or os.sep in final or not final.startswith("final"):
            return None
        if known != signature(str(path), final):
            return None
        return Run(
            **place,
            path=path,
            details=_details(values["details"]),
            final_folder=final,
            **_values(values),
        )
    except (KeyError, TypeError, ValueError):
        return None


_RUN_VALUES = ("top1", "top5", "n_epochs", "lr", "wd", "diverged")


def _times(part: list[int]) -> list[int]:
    return part[-3:-1] if len(part) == 4 else part[:2]


def _read(place: Path) -> dict[str, Any] | None:
    """Return the entries of an index file, or None when there is none that can be used."""
    try:
        found = os.stat(place)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
            return None
        content = json.loads(place.read_bytes())
    except (OSError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(content, dict) or not isinstance(content.get("runs"), dict):
        return None
    expected = {"format": _FORMAT, "version": _VERSION, "toolkit": cog.__version__}
    return content["runs"] if all(content.get(key) == value for key, value in expected.items()) else None


def _values(values: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a run.

    Raises:
        KeyError: one is absent.
        ValueError: one cannot be a run's.
    """
    taken = {name: values[name] for name in _RUN_VALUES}
    good = (
        all(type(taken[name]) is float and is_percentage(taken[name]) for name in _NUMBERS)
        and type(taken["n_epochs"]) is int
        and taken["n_epochs"] > 0
        and all(_is_number_or_none(taken[name]) for name in ("lr", "wd"))
        and isinstance(taken["diverged"], bool)
    )
    if not good:
        raise ValueError("not the values of a run")
    return taken


def _is_number_or_none(value: Any) -> bool:
    return value is None or (type(value) is float and math.isfinite(value))


def _details(values: Any) -> Details:
    if not isinstance(values, dict) or not values.keys() <= set(_DETAILS):
        raise ValueError("not the details of a run")
    details = Details(**values)
    if not _like(details, Details()):
        raise ValueError("not the details of a run")
    return details


def _like(details: Details, empty: Details) -> bool:
    """Whether mappings are mappings and counts are counts, so that showing them cannot fail."""
    for field in fields(Details):
        value, default = getattr(details, field.name), getattr(empty, field.name)
        if isinstance(default, dict):
            if not isinstance(value, dict) or any(isinstance(item, dict) for item in value.values()):
                return False
        elif field.name in ("n_trials", "n_trials_diverged", "best_trial", "n_classes", "feature_dim"):
            if not (type(value) is int or value is None) or (value is None and default is not None):
                return False
        elif field.name == "best_val_top1":
            if not _is_number_or_none(value):
                return False
        elif not (value is None or isinstance(value, str)):
            return False
    return True
