"""Detection of a checkpoint's container by its content; file names matter only for an index of several files."""

from __future__ import annotations

import glob
import os
import zipfile
from pathlib import Path

from cog.constants import is_plain_name
from cog.errors import CogError, os_errors_explained
from cog.runtime import files

#: First bytes of a file of ``torch.save`` before torch 1.6: its pickled magic number.
_LEGACY_TORCH = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."

INDEX_SUFFIX = ".index"

#: Ending of the index of safetensors in several files, as transformers writes it.
SHARDED_SUFFIX = ".safetensors.index.json"


def checkpoint_files(path: str | os.PathLike[str]) -> list[Path]:
    """Return the files of a checkpoint: the file itself, or the parts of a TensorFlow or sharded checkpoint.

    Args:
        path: a file; the common prefix of ``.index`` and ``.data-...-of-...`` (or the ``.index`` file); the index of
            safetensors in several files.

    Returns:
        The existing files in a fixed order; empty when there is no such checkpoint.

    Raises:
        CogError: an index of safetensors that cannot be used.
    """
    path = Path(path)
    if path.name.endswith(SHARDED_SUFFIX) and path.is_file():
        return [path, *(path.with_name(name) for name in sorted(set(weight_map(path).values())))]
    if path.is_file() and path.suffix != INDEX_SUFFIX:
        return [path]
    prefix = path.with_suffix("") if path.suffix == INDEX_SUFFIX else path
    index = prefix.with_name(prefix.name + INDEX_SUFFIX)
    if not index.is_file():
        return []
    return [index, *sorted(prefix.parent.glob(f"{glob.escape(prefix.name)}.data-*-of-*"))]


def sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a checkpoint; of one in several files, that of the index followed by the data.

    Raises:
        CogError: the checkpoint is missing or cannot be read.
    """
    parts = checkpoint_files(path)
    if not parts:
        raise CogError(f"{path} does not exist or is not a file")
    return files.sha256(*parts)


def weight_map(index: Path) -> dict[str, str]:
    """Return the file name of each tensor in a checkpoint of several safetensors files, which lie beside the index.

    Raises:
        CogError: the index names no files, files elsewhere, or a missing file.
    """
    data = files.read_json(index)
    names = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(names, dict) or not names:
        raise CogError(f"{index} has no weight_map; is it the index of a checkpoint?")
    for name in set(map(str, names.values())):
        if not (is_plain_name(name) and name.endswith(".safetensors")):
            raise CogError(
                f"{index} names {name[:80]!r}, expected files such as model-00001-of-00002.safetensors"
            )
        if not index.with_name(name).is_file():
            raise CogError(f"{index} names {name}, which is not beside it; get all parts")
    return {tensor: str(name) for tensor, name in names.items()}


def require_checkpoint(path: str | os.PathLike[str], flag: str) -> list[Path]:
    """Return the files of a checkpoint, see :func:`checkpoint_files`, after a check that all are readable.

    Raises:
        CogError: no such checkpoint, or an unreadable file; the message names ``flag``.
    """
    path = Path(path)
    parts = checkpoint_files(path)
    if not parts:
        if path.is_dir():
            raise CogError(f"{flag} {path} is a folder, expected a file")
        raise CogError(f"{flag} {path} does not exist; check the path")
    for file in parts:
        if not os.access(file, os.R_OK):
            raise CogError(f"{flag} {file} cannot be read; check its permissions")
    return parts


def detect(path: Path) -> str:
    """Return the container of a checkpoint.

    Returns:
        "torch", "torchscript", "safetensors", "tensorflow" or "pickle".

    Raises:
        CogError: a file that is no checkpoint (empty file, web page, other archive, torch 0.1), or a missing file.
    """
    parts = checkpoint_files(path)
    if not parts:
        raise CogError(f"{path} does not exist or is not a file")
    if parts[0].suffix == INDEX_SUFFIX:
        return "tensorflow"
    if parts[0].name.endswith(SHARDED_SUFFIX):
        return "safetensors"
    with os_errors_explained(f"cannot read {path}"), open(parts[0], "rb") as handle:
        size = parts[0].stat().st_size
        head = handle.read(512)
    if not head:
        raise CogError(f"{path} is empty; download it again")
    if head.startswith(b"PK\x03\x04"):
        return _detect_zip(path)
    if head[257:262] == b"ustar":
        from cog.runtime.safe_load import TORCH_0_1

        raise CogError(f"{path} {TORCH_0_1}")
    if head.startswith(_LEGACY_TORCH):
        return "torch"
    if len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= size - 8:
        return "safetensors"
    if head.startswith(b"version https://git-lfs"):
        raise CogError(f"{path} is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`")
    if head.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        raise CogError(
            f"{path} is a web page, not a checkpoint; open its link in a browser to download the file"
        )
    return "pickle"


def _detect_zip(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise CogError(f"{path} is not a readable torch file ({error}); is the download complete?") from None
    if any(name.endswith("/constants.pkl") for name in names):
        return "torchscript"
    if any(name.endswith("/data.pkl") for name in names):
        return "torch"
    inside = [name for name in names if not name.endswith("/")]
    raise CogError(
        f"{path} is a zip archive with {', '.join(inside[:3]) or 'nothing'} inside, not a checkpoint; "
        "unpack it and give the checkpoint in it"
    )
