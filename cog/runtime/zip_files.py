"""Checks of zip archives from others by their directory, before any record is read."""

from __future__ import annotations

import os
import zipfile
from typing import IO

from cog.errors import UnsafeFileError

# Bytes, for about 100,000 records.
_LARGEST_DIRECTORY = 1 << 23


def require_small_directory(archive: IO[bytes]) -> None:
    """Refuse a zip archive whose directory would fill the memory; leave the file at its beginning.

    Raises:
        UnsafeFileError: when the directory is too large.
        zipfile.BadZipFile: when there is no directory.
    """
    end = zipfile._EndRecData(archive)  # type: ignore[attr-defined]
    if end is None:
        raise zipfile.BadZipFile("the file ends early")
    if end[5] > _LARGEST_DIRECTORY:
        raise UnsafeFileError(f"a directory of {end[5]:,} bytes, expected at most {_LARGEST_DIRECTORY:,}")
    archive.seek(0)


def require_stored(archive: IO[bytes]) -> IO[bytes]:
    """Refuse a zip archive that would grow when it is unpacked: torch and ``savez`` of numpy compress nothing.

    The code in a TorchScript archive is exempt, because it is never read.

    Args:
        archive: the file; only its directory is read.

    Returns:
        The file, at its beginning.

    Raises:
        UnsafeFileError: when a record is compressed, or records overlap.
        zipfile.BadZipFile: when the directory is damaged.
    """
    require_small_directory(archive)
    with zipfile.ZipFile(archive) as opened:
        records = opened.infolist()
    records = [record for record in records if record.filename.split("/")[1:2] != ["code"]]
    compressed = [record.filename for record in records if record.compress_type != zipfile.ZIP_STORED]
    if compressed:
        raise UnsafeFileError(f"a compressed record {compressed[0]}")
    if sum(record.file_size for record in records) > archive.seek(0, os.SEEK_END):
        raise UnsafeFileError("records that announce more bytes than the file has")
    archive.seek(0)
    return archive
