"""Location of the files of a finished run: its seed folder, or the archive of its model and data set.

::

    <dataset>/runs.zip
        index.json                  first and uncompressed: the values of each run that tables need
        eval_logreg_N8/seed-22/...  the files of each run, under their names

A study of 1,000 models has millions of files, more than many file systems allow. The archive is a plain zip file that
any tool can read. Readers still use the original paths of the files: :func:`locate` finds a file in the archive when
its seed folder holds no result. A seed folder with a result takes precedence over the archive. Archives are made and
unpacked by :mod:`cog.study.pack`.

Archives may come from others. Their names are only looked up, never used as paths for writing; sizes are bounded.
"""

from __future__ import annotations

import functools
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from cog import constants, paths
from cog.errors import CogError, UnsafeFileError
from cog.runtime import files
from cog.runtime.safe_load import require_small_directory

ARCHIVE_FILE = "runs.zip"
INDEX_FILE = "index.json"

#: Version of the format of the index.
FORMAT = 1

#: Files of a seed folder that make it a result: see :func:`holds_result`.
_RESULT = "results.json"
_FINAL = "final"

#: Largest index in bytes; the index of 45 runs takes 100 kB.
_LARGEST_INDEX = 1 << 26

#: Largest file of a run in bytes: ten times the weights of the widest classifier.
LARGEST_MEMBER = 1 << 31

#: Number of archives that stay open: tables and analyses read all runs of one archive before those of the next.
_OPEN = 16

#: Advice about an archive that cannot be read.
_REPAIR = "restore it from a copy, or unpack what other programs can read of it and move it away"

#: Head of a zip record: signature, version, flags, method, time, date, CRC-32, sizes, lengths of name and extra field.
_HEAD = struct.Struct("<4s5H3I2H")
_STORED_PLAINLY = (b"PK\x03\x04", zipfile.ZIP_STORED)


class RunArchive:
    """An archive of runs, open for reading.

    Args:
        path: the file.

    Attributes:
        path: the file.
        runs: the entry of each run in the index, by ``<evaluation folder>/<seed folder>``.

    Raises:
        CogError: when the file is not an archive of runs.
        OSError: when the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = files.open_regular(path)
        try:
            self.runs: Mapping[str, Any] = self._read_index()
        except (ValueError, RecursionError, struct.error) as error:
            raise CogError(f"{path} is not an archive of runs ({error}); {_REPAIR}") from error

    def _read_index(self) -> dict[str, Any]:
        """Return the index, the first record, without the directory, whose reading takes ten times as long."""
        signature, _, flags, method, _, _, crc, _, length, n_name, n_extra = _HEAD.unpack(
            self._handle.read(_HEAD.size)
        )
        name = self._handle.read(n_name)
        if (signature, method) != _STORED_PLAINLY or flags & 9 or name != INDEX_FILE.encode():
            raise ValueError(f"it does not begin with {INDEX_FILE}")
        if length > _LARGEST_INDEX:
            raise ValueError(f"an index of {length:,} bytes, expected at most {_LARGEST_INDEX:,}")
        self._handle.read(n_extra)
        content = self._handle.read(length)
        if len(content) != length or zlib.crc32(content) != crc:
            raise ValueError(f"{INDEX_FILE} is damaged")
        index = json.loads(content)
        runs = index.get("runs") if isinstance(index, dict) else None
        if not isinstance(runs, dict) or index.get("format") != FORMAT:
            raise ValueError(f"{INDEX_FILE} is not of format {FORMAT}")
        odd = [name for name in runs if not is_run_name(name)]
        if odd:
            raise ValueError(f"{INDEX_FILE} names a run {odd[0][:60]!r}")
        return runs

    @functools.cached_property
    def _zip(self) -> zipfile.ZipFile:
        try:
            require_small_directory(self._handle)
            opened = zipfile.ZipFile(self._handle)
            # In a file that is cut off, zipfile finds the directory of a model.pth, which is a zip file, too.
            if opened.infolist()[0].filename != INDEX_FILE:
                raise ValueError("its end is missing")
            return opened
        except (
            OSError, ValueError, IndexError, UnsafeFileError, zipfile.BadZipFile, NotImplementedError,
        ) as error:  # fmt: skip
            raise CogError(f"{self.path} is damaged ({error}); {_REPAIR}") from error

    @functools.cached_property
    def members(self) -> Mapping[str, zipfile.ZipInfo]:
        """Records after the index, by name.

        Raises:
            CogError: when the directory is damaged, or has a record that :mod:`cog.study.pack` does not write.
        """
        members: dict[str, zipfile.ZipInfo] = {}
        for info in self._zip.infolist()[1:]:
            if info.filename in members or info.flag_bits & 1:
                raise CogError(
                    f"{self.path} has {info.filename[:200]!r} twice, or encrypted; expected neither"
                )
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise CogError(f"{self.path} has {info.filename[:200]!r} in another compression than deflate")
            members[info.filename] = info
        return members

    def seeds(self, evaluation: str) -> list[str]:
        """Return the names of the seed folders of an evaluation folder."""
        prefix = f"{evaluation}/"
        return [name.removeprefix(prefix) for name in self.runs if name.startswith(prefix)]

    def entries(self, run: str) -> list[tuple[str, bool]]:
        """Return the sorted names in the folder of a run, each with a flag that is true for a folder."""
        prefix = f"{run}/"
        inside = [name.removeprefix(prefix) for name in self.members if name.startswith(prefix)]
        return sorted({(name.partition("/")[0], "/" in name) for name in inside})

    def read(self, name: str, largest: int | None = None) -> bytes:
        """Return the content of a record.

        Raises:
            CogError: when the record is missing, too large, damaged or empty.
        """
        info = self.members.get(name)
        if info is None:
            raise CogError(f"{self.path} has no {name}")
        largest = LARGEST_MEMBER if largest is None else largest
        if not 0 < info.file_size <= largest:
            raise CogError(f"{name} in {self.path} has {info.file_size:,} bytes, expected 1 to {largest:,}")
        return self.content(info)

    def content(self, info: zipfile.ZipInfo) -> bytes:
        """Return the content of a record of any size; see :meth:`read`."""
        try:
            with self._zip.open(info) as handle:
                content = handle.read(info.file_size + 1)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
            raise CogError(f"{info.filename} in {self.path} is damaged ({error}); {_REPAIR}") from error
        if len(content) != info.file_size:
            raise CogError(
                f"{info.filename} in {self.path} is damaged (it has another size than announced); {_REPAIR}"
            )
        return content


def is_run_name(name: str) -> bool:
    """Return whether ``name`` is ``<evaluation folder>/<seed folder>``."""
    evaluation, _, seed = name.partition("/")
    return (
        constants.is_plain_name(evaluation)
        and constants.is_plain_name(seed)
        and paths.parse_evaluation_folder(evaluation) is not None
        and paths.parse_seed_folder(seed) is not None
    )


def holds_result(names: Collection[str]) -> bool:
    """Return whether a seed folder with these entries holds a result, and thus takes precedence over the archive."""
    return any(name == _RESULT or name.startswith(_FINAL) for name in names)


def open_archive(dataset_folder: str | os.PathLike[str]) -> RunArchive | None:
    """Return the archive of a model and data set, or None.

    Raises:
        CogError: when the archive cannot be read.
    """
    path = os.path.join(dataset_folder, ARCHIVE_FILE)
    try:
        current = version(dataset_folder)
        return None if current is None else _open(path, current)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CogError(f"cannot read {path}: {error.strerror or error}") from error


def version(dataset_folder: str | os.PathLike[str]) -> tuple[int, ...] | None:
    """Return the device, inode, size and time of the archive of a model and data set; None without an archive.

    They change with the archive. A listing of folders and archive compares them before and after: runs that were packed
    in between would be missing in both.
    """
    try:
        status = os.stat(os.path.join(dataset_folder, ARCHIVE_FILE))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@functools.lru_cache(_OPEN)
def _open(path: str, version: tuple[int, ...]) -> RunArchive:
    return RunArchive(Path(path))


# A process and its fork would share the position in an open file.
os.register_at_fork(after_in_child=_open.cache_clear)


class Packed(NamedTuple):
    """A file or folder of a run in an archive.

    Attributes:
        archive: the archive.
        run: name of the run in the archive.
        name: name of the record; for the folder of a run, the run.
    """

    archive: RunArchive
    run: str
    name: str

    @property
    def is_file(self) -> bool:
        """Whether the archive has a record of this name."""
        return self.name in self.archive.members

    def read(self, largest: int | None = None) -> bytes:
        """Return the content of the record, see :meth:`RunArchive.read`."""
        return self.archive.read(self.name, largest)


def locate(path: str | os.PathLike[str]) -> Packed | None:
    """Return the place of a seed folder, or of an entry in it, in an archive.

    It is None when no archive has the run, or when the seed folder holds a result.

    Raises:
        CogError: when the archive cannot be read.
    """
    parts = Path(os.path.abspath(path)).parts
    for position in range(len(parts) - 1, 1, -1):
        run = "/".join(parts[position - 1 : position + 1])
        if is_run_name(run):
            archive = open_archive(Path(*parts[: position - 1]))
            if archive is None or run not in archive.runs or holds_result(_names(parts[: position + 1])):
                return None
            return Packed(archive, run, "/".join(parts[position - 1 :]))
    return None


def is_file(path: Path) -> bool:
    """Return whether a file exists in its folder or in the archive of its run."""
    return path.is_file() or ((packed := locate(path)) is not None and packed.is_file)


def _names(folder: tuple[str, ...]) -> list[str]:
    try:
        return os.listdir(Path(*folder))
    except OSError:
        return []


def write_index(archive: zipfile.ZipFile, runs: Mapping[str, Any]) -> None:
    """Write the index as the first record of a new archive."""
    content = json.dumps({"format": FORMAT, "runs": runs}, separators=(",", ":"))
    archive.writestr(zipfile.ZipInfo(INDEX_FILE), content.encode("ascii"), zipfile.ZIP_STORED)


def verify(handle: IO[bytes]) -> None:
    """Read a whole archive, which checks the checksum of every record.

    Raises:
        CogError: when a record is damaged.
    """
    with zipfile.ZipFile(handle) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise CogError(f"{damaged} could not be read again from the archive that was just written")
