"""The work in progress of an extraction: finished row ranges on disk, so that no image is computed twice.

::

    features_<split>/.resume/
        manifest.json                       identity of the work, which must be the same for a restart
        rows-000000000-000002048.npy        features of the decoded images of these rows, float32, float16, or bits of
                                            bfloat16 as int16
        rows-000000000-000002048.json       marker of the range, with the failures; written after the data
        unit-00003.lock                     lock of the process that computes unit 3 (only with several processes)

A range begins at a multiple of the images per forward pass, so that its features do not depend on the division of the
rows into ranges. Every file appears whole or not at all; a range is finished when its marker exists. Ranges that
overlap (of a process that was taken for dead) hold the same numbers; one of them is used.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cog.errors import CogError, os_errors_explained
from cog.runtime import files
from cog.runtime.resume_dir import FOLDER, ResumeFolder

if TYPE_CHECKING:
    from cog.features.extract import FeatureBatch

logger = logging.getLogger(__name__)

MANIFEST_FILE = "manifest.json"

_MARKER = re.compile(r"rows-([0-9]{9})-([0-9]{9})\.json")

# Types of the arrays in files: NumPy has no bfloat16, whose bits are stored as int16.
_STORED = {"bfloat16": "int16"}


@dataclass(frozen=True)
class Manifest:
    """The identity of an extraction in progress, and the processes that work on it.

    Attributes:
        work: random name of the work; a shard belongs to the manifest with the same ``work``.
        identity: all entries that determine the bits of the features; equal for all processes and restarts.
        n_rows: number of images in the list.
        unit_rows: rows that one of several processes claims at a time.
        overwrites: whether the work was begun with ``--overwrite``.
        group: name of the processes started together, see :class:`cog.runtime.ranks.Rank`.
        leader: token of the lock of the process that publishes.
    """

    work: str
    identity: dict[str, Any]
    n_rows: int
    unit_rows: int
    overwrites: bool
    group: str
    leader: str


@dataclass(frozen=True)
class Shard:
    """A finished range of rows.

    Attributes:
        work: see :class:`Manifest`.
        first: first row.
        stop: row after the last one.
        n_features: number of decoded images.
        dim: dimension of the features; 0 without decoded images.
        failures: ``[row, reason]`` of the images that could not be decoded, in row order.
        seconds: computing time.
    """

    work: str
    first: int
    stop: int
    n_features: int
    dim: int
    failures: list[list[Any]]
    seconds: float

    @property
    def name(self) -> str:
        """Name of the files, without suffix."""
        return f"rows-{self.first:09d}-{self.stop:09d}"


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of the work in an output folder; None when it is missing or damaged."""
    return files.read_record(folder / FOLDER / MANIFEST_FILE, Manifest)


class Shards(ResumeFolder):
    """The finished ranges of an extraction, in the folder ``.resume`` of its output folder."""

    #: Identity of the work; set by :meth:`begin`, or by a process that joins it.
    manifest: Manifest

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._known: dict[str, Shard] = {}

    def read(self) -> dict[str, Any] | None:
        """Return the manifest in the form of :meth:`cog.runtime.resume_dir.ResumeFolder.read`."""
        stored = read_manifest(self.path.parent)
        if stored is None:
            return None
        return {"identity": stored.identity, "versions": stored.identity, "replaces": stored.overwrites}

    def has_progress(self) -> bool:
        """Return whether the folder has finished ranges."""
        return bool(self._markers())

    def begin(self, manifest: Manifest) -> None:
        """Continue the work in the folder, or begin it, after the folder was claimed and other work discarded.

        Args:
            manifest: manifest of new work; continued work keeps its ``work`` and ``overwrites``.
        """
        stored = read_manifest(self.path.parent)
        if stored is not None:
            manifest = replace(manifest, work=stored.work, overwrites=stored.overwrites)
        self.manifest = manifest
        with os_errors_explained(f"cannot write into {self.path.parent}"):
            self.path.mkdir(exist_ok=True)
        files.remove_temporary(self.path)
        files.write_json(self.path / MANIFEST_FILE, asdict(manifest))
        self.scan()

    def _markers(self) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self.path) if _MARKER.fullmatch(name))
        except OSError:
            return []

    def scan(self) -> None:
        """Read the markers of the ranges that any process has finished since the last call."""
        names = self._markers()
        self._known = {name: shard for name in names if (shard := self._known.get(name) or self._shard(name))}

    def _shard(self, name: str) -> Shard | None:
        shard = files.read_record(self.path / name, Shard)
        if shard is None or shard.work != self.manifest.work or f"{shard.name}.json" != name:
            return None
        return shard if 0 <= shard.first < shard.stop <= self.manifest.n_rows else None

    def used(self) -> list[Shard]:
        """Return the finished ranges that are used, in row order and without overlap."""
        chain: list[Shard] = []
        row = 0
        for shard in sorted(self._known.values(), key=lambda shard: (shard.first, -shard.stop)):
            if shard.first >= row:
                chain.append(shard)
                row = shard.stop
        return chain

    def gaps(self, first: int = 0, stop: int | None = None) -> list[tuple[int, int]]:
        """Return the ranges of unfinished rows between two rows, in order."""
        stop = self.manifest.n_rows if stop is None else stop
        used = self.used()
        starts, stops = [0, *(shard.stop for shard in used)], [*(shard.first for shard in used), stop]
        gaps = ((max(a, first), min(b, stop)) for a, b in zip(starts, stops, strict=True))
        return [(a, b) for a, b in gaps if a < b]

    def n_done(self) -> int:
        """Return the number of finished rows."""
        return sum(shard.stop - shard.first for shard in self.used())

    def save(self, shard: Shard, blocks: Sequence[np.ndarray]) -> None:
        """Write a finished range: its features in row order, blocks ``(n, d)``, then the marker."""
        x: Any = np.concatenate(blocks) if blocks else np.empty((0, 0))
        if shard.n_features:
            with files.atomic_write(self.path / f"{shard.name}.npy") as handle:
                np.lib.format.write_array_header_1_0(handle, np.lib.format.header_data_from_array_1_0(x))
                handle.write(memoryview(x).cast("B"))  # unlike tofile(), it reports a full disk
        files.write_json(self.path / f"{shard.name}.json", asdict(shard))

    def drop(self, shard: Shard, reason: str) -> None:
        """Drop a finished range, whose rows are then computed again, and log the reason."""
        logger.warning(
            "rows %d to %d of %s are computed again: %s",
            shard.first,
            shard.stop - 1,
            self.path.parent,
            reason,
        )
        with os_errors_explained(f"cannot write into {self.path}"):
            (self.path / f"{shard.name}.json").unlink(missing_ok=True)
        self._known.pop(f"{shard.name}.json", None)

    def merge(self) -> np.ndarray:
        """Return the features ``(n, d)`` of all rows, when all are finished: one row per decoded image.

        They are float32, float16, or bits of bfloat16 as int16.
        """
        used = self.used()
        dims = sorted({shard.dim for shard in used if shard.n_features})
        if len(dims) > 1:
            raise CogError(
                f"{self.path} holds features of {' and of '.join(map(str, dims))} dimensions: the network does not "
                "always return the same number"
            )
        dtype = self.manifest.identity.get("save_dtype", "float32")
        shape = sum(shard.n_features for shard in used), dims[0] if dims else 0
        x = np.empty(shape, np.dtype(_STORED.get(dtype, dtype)))
        targets = np.split(x, np.cumsum([shard.n_features for shard in used])[:-1])
        for shard, target in zip(used, targets, strict=True):
            if shard.n_features:
                self._read_into(shard, target)
        return x

    def _read_into(self, shard: Shard, target: np.ndarray) -> None:
        path = self.path / f"{shard.name}.npy"
        try:
            # Read, not mapped: a mapped file that vanishes with its server kills the process.
            with os_errors_explained(f"cannot read {path}"):
                data = np.load(path, allow_pickle=False)
            fits = data.dtype == target.dtype or (data.dtype, target.dtype) == (np.float16, np.float32)
            if not fits or data.shape != target.shape:
                raise ValueError(f"it holds {data.dtype} of shape {data.shape}")
            target[:] = data
        except (ValueError, EOFError) as error:
            raise CogError(
                f"{path} is damaged ({error}); remove {self.path} and run the same command again"
            ) from error


class ShardWriter(contextlib.AbstractContextManager["ShardWriter"]):
    """A writer that cuts a stream of features into ranges and saves them; for a ``with`` statement.

    The end of the block saves the rest, also after a :class:`CogError`; an error of writing does not replace it.

    Args:
        shards: destination of the ranges.
        max_rows: number of rows after which a range is written, the most work that a kill loses.
    """

    def __init__(self, shards: Shards, *, max_rows: int) -> None:
        self._shards, self._max_rows = shards, max_rows
        self._batches: list[FeatureBatch] = []
        self._since = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._flush()
        elif isinstance(error, CogError):
            with contextlib.suppress(CogError):
                self._flush()

    def add(self, batch: FeatureBatch) -> None:
        """Add the features of the next rows."""
        if self._batches and self._batches[-1].stop != batch.first:
            self._flush()
        self._batches.append(batch)
        if batch.stop - self._batches[0].first >= self._max_rows:
            self._flush()

    def _flush(self) -> None:
        batches, self._batches = self._batches, []
        if not batches:
            return
        blocks = [batch.array() for batch in batches if len(batch.rows)]
        now = time.monotonic()
        shard = Shard(
            work=self._shards.manifest.work,
            first=batches[0].first,
            stop=batches[-1].stop,
            n_features=sum(map(len, blocks)),
            dim=blocks[0].shape[1] if blocks else 0,
            failures=[[row, reason] for batch in batches for row, reason in batch.failures],
            seconds=round(now - self._since, 6),
        )
        self._since = now
        self._shards.save(shard, blocks)
