"""The only place where serialized objects are opened: pickles, files of torch, zip directories.

Unpickling can import any module and call any function, and files from the internet may be hostile. Here no
name of a file is imported: pickles get stand-ins from a closed table, files of torch go through
``weights_only=True``, and zip archives are judged by their directory before a record is read.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np

from cog.errors import CogError, UnsafeFileError, first_line, os_errors_explained
from cog.runtime import files

#: Default limit of a pickle in bytes: levels, logs and predictions are smaller, split files larger.
LARGEST_PICKLE = 1 << 26

#: Errors that a broken file can raise while it is read; ValueError includes UnicodeError.
MALFORMED = (
    *(ValueError, TypeError, LookupError, AttributeError, AssertionError, OverflowError, MemoryError),
    *(RecursionError, EOFError, struct.error, pickle.UnpicklingError),
)

#: Largest directory of a zip archive, for 100,000 records, and header of a safetensors file, for 10,000
#: tensors, in bytes; the libraries' own limits allow files that take minutes to open.
_LARGEST_DIRECTORY, _LARGEST_HEADER = 1 << 23, 1 << 20

_DTYPE = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248]|c(8|16)|[US][0-9]{0,9}|O8?|\?)")
_ATOMS = frozenset({str, int, float, bool, bytes, complex, type(None)})


def load_pickle(path: str | os.PathLike[str], *, largest: int = LARGEST_PICKLE) -> Any:
    """Read a pickle of at most ``largest`` bytes, see :func:`unpickle`.

    Raises:
        UnsafeFileError: the file names any other class or function (the message has the name).
        CogError: the file is missing, too large, or not a complete pickle.
    """
    try:
        return unpickle(files.contents(path, "pickle", largest))
    except UnsafeFileError as error:
        raise _refused(path, str(error)) from None
    except MALFORMED as error:
        raise _damaged(path, "pickle", error) from None


def _refused(path: str | os.PathLike[str], found: str) -> UnsafeFileError:
    return UnsafeFileError(
        f"refused to read {path}: it contains {found}; expected only plain containers, strings, numbers and "
        "arrays; get the file from its authors again"
    )


def _damaged(path: str | os.PathLike[str], kind: str, error: Exception) -> CogError:
    detail = f"{type(error).__name__}: {first_line(error)[:200]}"
    return CogError(f"{path} is not a readable {kind} ({detail}); is the download complete?")


def unpickle(
    data: bytes,
    *,
    names: Callable[[str, str], Any] | None = None,
    persistent: Callable[[Any], Any] | None = None,
) -> Any:
    """Read a pickle of plain containers, strings, bytes, numbers and numpy arrays, of any version.

    Strings of Python 2 are decoded as Latin-1, which keeps every byte. numpy scalars become Python numbers
    and strings; ordered and default dicts become dicts.

    Args:
        data: the pickle.
        names: for formats with further names: function from ``(module, name)`` to a harmless function, a
            subclass of :class:`Instance`, a :class:`Sealed` value, or None to refuse the name.
        persistent: for formats with data beside the pickle: function from persistent id to value.

    Raises:
        UnsafeFileError: the file uses a name outside the admitted ones.
        Exception: one of ``MALFORMED`` for a broken file.
    """
    return _Reader(data, names, persistent).load()


class Sealed:
    """A value that a file can pass on, but cannot read or change."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __setstate__(self, state: Any) -> None:
        raise UnsafeFileError("attributes of a stand-in")


class _Function(Sealed):
    """An admitted function, or a function in the place of a class."""

    __slots__ = ()

    def __call__(self, *args: Any) -> Any:
        return self.value(*args)


class Instance:
    """Base of the stand-ins for classes that a file instantiates."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        """Receive the attributes in the file; the default is to drop them."""


class _Dtype(Sealed):
    """A ``numpy.dtype``; numpy's own would take flags from a file with which memory is read as pointers."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        if (order := _latin(state[1])) in ("<", ">"):
            self.value = self.value.newbyteorder(order)


class _Array(np.ndarray):  # type: ignore[type-arg]
    """An empty array whose contents a file may set once; ``np.asarray`` returns a plain array."""

    def __setstate__(self, state: Any) -> None:
        if self.size:
            raise UnsafeFileError("attributes of an array")
        shape, dtype, is_fortran, content = state[-4:]  # an optional version comes first
        is_text = isinstance(content, list) and all(type(item) is str for item in content)
        plain = dtype.value if is_text and isinstance(dtype, _Dtype) else _plain_dtype(dtype)
        content = content if plain.hasobject else _raw(content)
        if len(content) != math.prod(_shape(shape)) * (1 if plain.hasobject else plain.itemsize):
            raise ValueError(f"array of shape {shape} with {len(content)} bytes or objects")
        super().__setstate__((1, shape, plain, bool(is_fortran), content))  # type: ignore[arg-type]

    def __reduce__(self) -> Any:
        return np.asarray(self).__reduce__()


def _latin(value: Any) -> Any:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _raw(value: Any) -> bytes:
    """Return the bytes of an array; pickles of protocols 0 to 2, and of Python 2, store them as text."""
    if isinstance(value, str):
        return value.encode("latin-1")
    if not isinstance(value, bytes | bytearray):
        raise ValueError(f"data of type {type(value).__name__}")
    return bytes(value)


def _shape(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError("an array shape that is not a tuple of whole numbers")
    return shape


def _plain_dtype(dtype: Any) -> np.dtype[Any]:
    if not isinstance(dtype, _Dtype) or dtype.value.hasobject:
        raise UnsafeFileError("objects in the place of numbers")
    return dtype.value


def _dtype(spec: Any, align: Any = False, copy: Any = True) -> _Dtype:
    if not _DTYPE.fullmatch(spec := str(_latin(spec))):
        raise UnsafeFileError(f"a numpy array of type {spec[:40]!r}")
    return _Dtype(np.dtype(spec))


def _reconstruct(subtype: Any, shape: Any, typecode: Any) -> _Array:
    if subtype is not _NDARRAY:
        raise UnsafeFileError("an array of a foreign class")
    return np.empty(0, dtype=np.int8).view(_Array)


def _from_buffer(content: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> np.ndarray[Any, Any]:
    """Return an array as numpy >= 1.24 writes it with protocol 5."""
    plain = _plain_dtype(dtype)
    flat = np.frombuffer(_raw(content), dtype=plain) if len(content) else np.empty(0, dtype=plain)
    if order == "K" and axes is not None:
        return flat.reshape(_shape(shape)).transpose(axes)
    return flat.reshape(_shape(shape), order=order)


def _scalar(dtype: Any, content: Any = "") -> Any:
    plain, raw = _plain_dtype(dtype), _raw(content)
    if not raw and plain.kind in "US":
        return "" if plain.kind == "U" else b""
    if len(raw) != plain.itemsize:
        raise ValueError(f"numpy scalar of {plain} with {len(raw)} bytes")
    return np.frombuffer(raw, dtype=plain)[0].item()


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if encoding not in ("latin1", "latin-1", "utf8", "utf-8", "ascii") or not isinstance(text, str):
        raise UnsafeFileError(f"the encoding {str(encoding)[:40]!r}")
    return text.encode(encoding)


def _bytearray(content: Any = b"", encoding: Any = "latin-1") -> bytearray:
    return bytearray(_encode(content, encoding) if isinstance(content, str) else _raw(content))


def _dict(content: Any = ()) -> dict[Any, Any]:
    pairs = [(key, value) for key, value in content]
    _keys([key for key, _ in pairs])
    return dict(pairs)


def _keys(keys: Sequence[Any]) -> Sequence[Any]:
    """Refuse keys other than atoms and tuples of atoms: the hash of tuples in tuples can take for ever."""
    for key in keys:
        if any(type(part) not in _ATOMS for part in (key if type(key) is tuple else (key,))):
            raise UnsafeFileError(f"a {type(key).__name__} as a dict key or set element")
    return keys


_NDARRAY = Sealed("numpy.ndarray")

#: What stands for each name: a function, or a value that a file may pass on but not call.
_ADMITTED: dict[tuple[str, str], Sealed] = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _Function(_dtype),
    ("_codecs", "encode"): _Function(_encode),
    ("collections", "OrderedDict"): _Function(_dict),
    ("collections", "defaultdict"): _Function(lambda factory=None: {}),
}
for _core in ("numpy.core", "numpy._core"):  # numpy 1 and 2
    _ADMITTED[f"{_core}.multiarray", "_reconstruct"] = _Function(_reconstruct)
    _ADMITTED[f"{_core}.multiarray", "scalar"] = _Function(_scalar)
    _ADMITTED[f"{_core}.numeric", "_frombuffer"] = _Function(_from_buffer)
_BUILTINS: dict[str, Callable[..., Any]] = {
    "dict": _dict,
    "list": list,
    "set": lambda content=(): set(_keys(list(content))),
    "frozenset": lambda content=(): frozenset(_keys(list(content))),
    "complex": complex,
    "bytearray": _bytearray,
    "bytes": lambda: b"",  # of protocols 0 to 2; others use _codecs.encode
}
for _module in ("builtins", "__builtin__"):  # Python 3 and 2
    _ADMITTED |= {(_module, name): _Function(function) for name, function in _BUILTINS.items()}
    _ADMITTED |= {(_module, name): Sealed(name) for name in ("int", "float", "str")}

#: Python's unpickler in Python, whose operations can be replaced.
_Unpickler: Any = vars(pickle)["_Unpickler"]


class _Reader(_Unpickler):  # type: ignore[misc]
    """Python's unpickler with a closed table of names; stand-ins refuse attributes, and keys are checked."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(_Unpickler.dispatch)

    def __init__(self, data: bytes, names: Any, persistent: Any) -> None:
        super().__init__(io.BytesIO(data), encoding="latin-1", fix_imports=False)
        self._names, self._persistent = names, persistent

    def find_class(self, module: str, name: str, /) -> Any:
        """Return the stand-in of a name; nothing is imported."""
        stand_in: Any = _ADMITTED.get((module, name))
        if stand_in is None and self._names is not None:
            stand_in = self._names(module, name)
        if stand_in is None:
            raise UnsafeFileError(f"{module}.{name}"[:200])
        is_class = isinstance(stand_in, type) and issubclass(stand_in, Instance)
        return stand_in if is_class or isinstance(stand_in, Sealed) else _Function(stand_in)

    def persistent_load(self, pid: Any, /) -> Any:
        """Return the value of a persistent id."""
        if self._persistent is None:
            raise UnsafeFileError("a persistent id (a torch file?)")
        return self._persistent(pid)

    def get_extension(self, code: int) -> Any:
        """Refuse names by number: the registry may have been filled by others."""
        raise UnsafeFileError("a name of the extension registry")


def _checking(load: Callable[[Any], None], keys: Callable[[Any], Sequence[Any]]) -> Callable[[Any], None]:
    def checked(reader: Any) -> None:
        _keys(keys(reader.stack))
        load(reader)

    return checked


_Reader.dispatch |= {
    pickle.SETITEM[0]: _checking(_Unpickler.load_setitem, lambda stack: stack[-2:-1]),
    pickle.SETITEMS[0]: _checking(_Unpickler.load_setitems, lambda stack: stack[::2]),
    pickle.DICT[0]: _checking(_Unpickler.load_dict, lambda stack: stack[::2]),
    pickle.ADDITEMS[0]: _checking(_Unpickler.load_additems, lambda stack: stack),
    pickle.FROZENSET[0]: _checking(_Unpickler.load_frozenset, lambda stack: stack),
}


def build_array(constructor: Any, arguments: Any, state: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Return an array from the three parts of ``numpy.ndarray.__reduce__``, which some formats wrap."""
    if not isinstance(constructor, _Function) or constructor.value is not _reconstruct:
        raise UnsafeFileError("an array of a foreign class")
    array = constructor(*arguments)
    array.__setstate__(state)
    return array


def require_stored(archive: IO[bytes]) -> IO[bytes]:
    """Return a zip archive at its beginning, unless it would grow when unpacked (torch compresses code).

    Raises:
        UnsafeFileError: the directory is huge, a record is compressed, or records overlap.
        zipfile.BadZipFile: the directory is damaged.
    """
    end = zipfile._EndRecData(archive)  # type: ignore[attr-defined]
    if end is not None and end[5] > _LARGEST_DIRECTORY:
        raise UnsafeFileError(f"a directory of {end[5]:,} bytes, expected at most {_LARGEST_DIRECTORY:,}")
    with zipfile.ZipFile(archive) as opened:
        records = [info for info in opened.infolist() if info.filename.split("/")[1:2] != ["code"]]
    compressed = [info.filename for info in records if info.compress_type != zipfile.ZIP_STORED]
    if compressed:
        raise UnsafeFileError(f"a compressed record {compressed[0]}")
    if sum(info.file_size for info in records) > archive.seek(0, os.SEEK_END):
        raise UnsafeFileError("records that announce more bytes than the file has")
    archive.seek(0)
    return archive


def load_torch(path: str | os.PathLike[str], *, allow: Sequence[Any] = (), mmap: bool = False) -> Any:
    """Read (or map) a file of ``torch.save`` with ``weights_only=True``; tensors are on the CPU.

    ``allow`` has classes that the file may name beside tensors and plain containers, for this call only.

    Raises:
        UnsafeFileError: the file names another class, or is in a format that cannot be read safely.
        CogError: the file is missing or damaged.
    """
    import torch

    head = b""
    try:
        with os_errors_explained(f"cannot read {path}"), files.open_regular(path) as handle:
            if not (head := handle.read(40)):
                raise CogError(f"{path} is empty, not a readable torch file; is the download complete?")
            if head[:4] == b"PK\x03\x04":
                require_stored(handle)
        with torch.serialization.safe_globals(list(allow)), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # meant for programmers; faults for users are errors here
            return torch.load(Path(path), map_location="cpu", weights_only=True, mmap=mmap or None)
    except UnsafeFileError as error:
        raise _refused(path, str(error)) from None
    except CogError:
        raise
    except Exception as error:  # torch documents no list, and broken files raise nearly every type
        found = _refused_by_torch(head.decode("latin-1"), error)
        raise (_refused(path, found) if found else _damaged(path, "torch file", error)) from None


def _refused_by_torch(head: str, error: Exception) -> str:
    """Return what a file contains that torch does not read, from its many lines; "" for a damaged file."""
    text = str(error)
    if head and head.isascii() and " ".join(head.split()).isprintable():
        return f"no tensors: it is a text file that begins with {head!r}"
    if "legacy .tar" in text or "tarfile" in text.lower():
        return "the container of torch 0.1 (tar)"
    if "TorchScript" in text:
        return "a TorchScript archive"
    if named := re.search(r"(?:GLOBAL|global|class|function|instantiate) ([\w.]+\.\w+)", text):
        return named[1]
    if isinstance(error, pickle.UnpicklingError) and "weights" in text.lower():
        detail = text.rpartition("WeightsUnpickler error:")[2].strip().partition("\n")[0][:200]
        return f"unsafe content ({detail})"
    return ""


def load_safetensors(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read all tensors of a safetensors file with its library; a CogError says why it cannot be read."""
    from safetensors.torch import load

    content = files.contents(path, "safetensors file")
    header = int.from_bytes(content[:8], "little")
    try:
        if header > _LARGEST_HEADER:
            raise ValueError(f"a header of {header} bytes, expected at most {_LARGEST_HEADER}")
        return load(content)
    except Exception as error:  # SafetensorError, and nearly every type for lying headers
        raise _damaged(path, "safetensors file", error) from None
