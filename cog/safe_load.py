"""The only place where the toolkit opens serialised objects: checkpoints, features, pickles.

Files from the internet are hostile until checked. Unpickling can import any module and call any
function, so nothing here unpickles without restriction:

* torch files go through ``torch.load(weights_only=True)`` with a named allow-list per model;
* plain pickles (level mapping, concept split, logs) go through :func:`load_pickle`, which reads
  lists, tuples, dicts, sets, strings, numbers and numpy arrays with an interpreter of its own
  (:mod:`cog.safe_pickle`): no class or function named by the file is ever looked up.
"""

from __future__ import annotations

import collections
import os
import pickle
import re
import stat
import struct
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np

from cog import safe_pickle
from cog.errors import CogError, UnsafeFileError

if TYPE_CHECKING:
    import torch

#: What a damaged or foreign file can raise in the course of being read.
UNREADABLE = (
    pickle.UnpicklingError,
    EOFError,
    AttributeError,
    ImportError,
    struct.error,
    *safe_pickle.MALFORMED,
)


class _Dtype:
    """Stands for ``numpy.dtype(spec)`` while a pickle is read."""

    def __init__(self, spec: str, align: Any = False, copy: Any = True) -> None:
        if isinstance(spec, bytes):
            spec = spec.decode("ascii")
        if not re.fullmatch(r"[<>|=]?(b1|[iufc][0-9]{1,2}|[US][0-9]*|O8?|\?)", spec):
            raise UnsafeFileError(f"numpy array of type {spec!r}")
        self.spec = spec.lstrip("<>|=")
        self.byte_order = spec[0] if spec[0] in "<>|=" else "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if isinstance(state[1], str | bytes):
            order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
            if order in ("<", ">", "|", "="):
                self.byte_order = order

    def numpy(self) -> np.dtype[Any]:
        dtype = np.dtype(self.spec)
        return dtype.newbyteorder(self.byte_order) if self.byte_order in "<>" else dtype  # type: ignore[arg-type]


class _Array:
    """Stands for a numpy array while a pickle is read; becomes one in :func:`finish`."""

    def __init__(self) -> None:
        self.state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state[-4:]  # (shape, dtype, is_fortran, data); an optional version comes first

    def numpy(self) -> np.ndarray[Any, Any]:
        shape, dtype, is_fortran, data = self.state
        order: Literal["C", "F"] = "F" if is_fortran else "C"
        if dtype.spec.startswith("O"):
            array = np.empty(len(data), dtype=object)
            array[:] = [finish(item) for item in data]
        else:
            if isinstance(data, str):  # protocol 0-2 pickles of Python 2 and 3 store bytes as text
                data = data.encode("latin1")
            array = np.frombuffer(data, dtype=dtype.numpy()) if len(data) else np.empty(0, dtype.numpy())
        return array.reshape(shape, order=order)


def _array(subtype: Any, shape: Any, typecode: Any) -> _Array:
    if subtype is not _NDARRAY:
        raise UnsafeFileError("array of a foreign class")
    return _Array()


def _array_from_buffer(data: Any, dtype: Any, shape: Any, order: str) -> _Array:
    # numpy >= 1.24 writes contiguous arrays this way with pickle protocol 5.
    array = _Array()
    array.state = (shape, dtype, order == "F", bytes(data))
    return array


class _Scalar:
    """Stands for a numpy scalar while a pickle is read."""

    def __init__(self, dtype: _Dtype, data: Any = None) -> None:
        if isinstance(data, str):
            data = data.encode("latin1")
        self.value = np.frombuffer(data, dtype=dtype.numpy(), count=1)[0].item()


def _text_to_bytes(text: str, encoding: str = "latin1") -> bytes:
    if encoding not in ("latin1", "utf8", "utf-8", "ascii"):
        raise UnsafeFileError(f"encoding {encoding!r}")
    return text.encode(encoding)


class _NDARRAY:
    """A name that pickles of arrays pass on; never made."""

    def __init__(self) -> None:
        raise UnsafeFileError("direct construction of numpy.ndarray")


#: What a file may name, and what it gets: always something defined in this module.
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _text_to_bytes,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "bytearray"): bytearray,
    ("builtins", "list"): list,
    ("builtins", "dict"): dict,
    ("__builtin__", "set"): set,
    ("__builtin__", "list"): list,
    ("__builtin__", "dict"): dict,
    ("collections", "OrderedDict"): collections.OrderedDict,
}
for _core in ("numpy.core", "numpy._core"):  # numpy 1 and numpy 2 spell the same module
    _ALLOWED[_core + ".multiarray", "_reconstruct"] = _array
    _ALLOWED[_core + ".multiarray", "scalar"] = _Scalar
    _ALLOWED[_core + ".numeric", "_frombuffer"] = _array_from_buffer


class RestrictedUnpickler(pickle.Unpickler):
    """Refuses every global that is neither in ``_ALLOWED`` nor in ``extra``.

    Args:
        file: opened for reading, binary.
        extra: ``(module, name)`` -> stand-in, for formats that name more than plain data does. The values
            must be harmless to call with whatever the file says.
    """

    def __init__(self, file: IO[bytes], extra: Mapping[tuple[str, str], Any] | None = None) -> None:
        super().__init__(file)
        self._extra = extra or {}

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a global."""
        if (module, name) in self._extra:
            return self._extra[module, name]
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise UnsafeFileError(f"{module}.{name}") from None

    def persistent_load(self, pid: Any) -> Any:
        """Refuse persistent ids."""
        raise UnsafeFileError("a persistent id (a torch file?)")


# Nearly everything in a file, so asked first.
_PLAIN = frozenset({float, int, str, bytes, bool, type(None)})


def finish(data: Any, done: dict[int, Any] | None = None) -> Any:
    """Replace the stand-ins in ``data`` by numpy arrays and Python numbers.

    Containers are finished once each (``done``, by identity): a file of a few bytes can refer to one list
    2 ** 40 times.
    """
    if type(data) in _PLAIN:
        return data
    done = {} if done is None else done
    if id(data) in done:
        return done[id(data)]
    finished: Any
    if isinstance(data, _Array):
        finished = data.numpy()
    elif isinstance(data, _Scalar):
        return data.value
    elif isinstance(data, dict):
        finished = {finish(key, done): finish(value, done) for key, value in data.items()}
    elif isinstance(data, list):
        finished = [finish(item, done) for item in data]
    elif isinstance(data, tuple):
        finished = tuple(finish(item, done) for item in data)
    elif isinstance(data, _Dtype | _NDARRAY) or data is _NDARRAY:
        raise UnsafeFileError("a bare numpy type")
    else:
        return data
    done[id(data)] = finished
    return finished


def load_pickle(path: str | os.PathLike[str]) -> Any:
    """Read a pickle of lists, tuples, dicts, sets, strings, numbers and numpy arrays.

    Files written with numpy 1 and numpy 2 and any pickle protocol are read; see
    :func:`cog.safe_pickle.load`.

    Args:
        path: a pickle file.

    Raises:
        UnsafeFileError: when the file names any other class or function (the name is in the message;
            nothing of it is imported or called).
        CogError: when the file is missing or not a complete pickle.
    """
    _require_regular(path, "pickle")
    try:
        with open(path, "rb") as handle:
            return safe_pickle.load(handle)
    except UnsafeFileError as error:
        raise UnsafeFileError(
            f"refused to read {path}: it contains {error}; expected a pickle of only lists, dicts, "
            "strings, numbers and numpy arrays. Get the file from its authors again"
        ) from None
    except OSError as error:
        raise CogError(f"cannot read {path}: {error.strerror or error}") from error
    except safe_pickle.MALFORMED as error:
        raise CogError(
            f"{path} is not a readable pickle ({type(error).__name__}: {str(error)[:200]}); is it complete?"
        ) from None


def _require_regular(path: str | os.PathLike[str], kind: str) -> None:
    """Refuse what open() would wait on (a pipe) or never finish reading (a device).

    Raises:
        CogError: for anything but a file with something in it.
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:
        raise CogError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if stat.S_ISDIR(found.st_mode):
        raise CogError(f"cannot read {path}: it is a folder, expected a file")
    if not stat.S_ISREG(found.st_mode):
        raise CogError(f"cannot read {path}: it is not a regular file")
    if found.st_size == 0:
        raise CogError(f"{path} is empty, not a readable {kind}; is the download or copy complete?")


def load_torch(path: str | os.PathLike[str], *, allow: Sequence[Any] = (), mmap: bool = False) -> Any:
    """Read a torch file with ``weights_only=True``, on the CPU.

    Args:
        path: a file of ``torch.save``.
        allow: classes the file may name beside tensors and plain containers, for this call only
            (entries as ``torch.serialization.safe_globals`` takes them).
        mmap: map the file instead of reading it (files of torch >= 1.6 only).

    Returns:
        What was saved; tensors are on the CPU.

    Raises:
        UnsafeFileError: when the file names a class outside the allow-list (named in the message).
        CogError: when the file is missing, truncated, or in a format that cannot be read safely.
    """
    import torch

    path = Path(path)
    _require_regular(path, "torch file")
    try:
        with torch.serialization.safe_globals(list(allow)), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # hints to programmers; what matters to a user is an error here
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap or None)
    except OSError as error:
        raise CogError(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # torch documents no list, and broken files raise nearly everything
        raise _torch_error(path, error) from None


def _torch_error(path: Path, error: Exception) -> CogError:
    """Put the many lines of a failed ``torch.load`` into one that says what to do."""
    text = str(error)
    named = re.search(r"(?:GLOBAL|global) (\S+) was not an allowed global", text) or re.search(
        r"Trying to (?:load|call|instantiate) (?:un(?:supported|safe) )?(?:GLOBAL|global|class|function)? ?(\S+)",
        text,
    )
    if "legacy .tar" in text or "tarfile" in text.lower():
        return UnsafeFileError(
            f"{path} is in the container of torch 0.1 (.tar), which cannot be read safely; "
            "download the re-released file of the same weights"
        )
    if "TorchScript" in text:
        return UnsafeFileError(f"{path} is a TorchScript archive, expected a file of torch.save")
    if named:
        return UnsafeFileError(
            f"refused to read {path}: it contains {named.group(1).rstrip('.,')}, which is not on the "
            "allow-list; expected only tensors in plain containers"
        )
    if isinstance(error, pickle.UnpicklingError) and "weights" in text.lower():
        detail = text.split("WeightsUnpickler error:")[-1].strip().split("\n")[0].strip() or "unsafe content"
        return UnsafeFileError(f"refused to read {path}: {detail[:200]}")
    detail = text.strip().split("\n")[0][:200] or type(error).__name__
    return CogError(f"{path} is not a readable torch file ({detail}); is the download complete?")


def tensor_dict(data: Any, path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """Check that ``data`` maps names to tensors, and return it as a plain dict.

    Raises:
        CogError: when it does not.
    """
    import torch

    if not isinstance(data, dict) or not data:
        raise CogError(f"{path} holds {type(data).__name__}, expected a dict of parameter tensors")
    wrong = [str(key) for key, value in data.items() if not isinstance(value, torch.Tensor)]
    if wrong:
        raise CogError(
            f"{path}: entries {', '.join(wrong[:3])} are not tensors, expected a dict of parameter tensors"
        )
    unnamed = [repr(key)[:50] for key in data if not isinstance(key, str)]
    if unnamed:
        raise CogError(f"{path}: {', '.join(unnamed[:3])} are not parameter names, expected text")
    odd = [key for key, value in data.items() if value.layout != torch.strided or value.is_meta]
    if odd:
        raise CogError(f"{path}: {', '.join(odd[:3])} are sparse or without data, expected dense tensors")
    return dict(data)
