"""The only place where serialized objects are opened, which may be hostile: no name in a file is imported.

Pickles get stand-ins from a closed table, files of torch go through ``weights_only=True``, and zip archives
are judged by their directory before a record is read.
"""

import contextlib
import io
import os
import pickle
import re
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np

from cog.errors import CogError, UnsafeFileError, first_line, os_errors_explained
from cog.runtime import files


@contextlib.contextmanager
def explained(path: str | os.PathLike[str], kind: str) -> Iterator[None]:
    """Turn the errors of a block that reads a file of a kind into one line: a CogError with its path."""
    try:
        with os_errors_explained(f"cannot read {path}"):
            yield
    except UnsafeFileError as error:
        expected = "expected only plain containers, text, numbers and arrays; get it from its authors again"
        raise UnsafeFileError(f"refused to read {path}: it contains {error}; {expected}") from None
    except CogError:
        raise
    except Exception as error:  # libraries have no list, and broken files raise nearly every type
        detail = f"{type(error).__name__}: {first_line(error)[:200]}"
        raise CogError(f"{path} is not a readable {kind} ({detail}); is the download complete?") from None


def _dtype(spec: str, *_: Any) -> np.dtype[Any]:
    if not re.fullmatch(r"[<|=]?[?biufcSUO][0-9]{0,9}", spec):
        raise UnsafeFileError(f"an array of type {spec[:40]!r}")
    return np.dtype(spec)


def _from_buffer(content: Any, dtype: Any, shape: Any, order: Any = "C", axes: Any = None) -> np.ndarray:
    """Return an array of numbers or text from its bytes, which protocols 0 to 2 store as text, or a list."""
    if isinstance(content, list) and {type(item) for item in content} <= {str}:
        return np.array(content, dtype=object).reshape(shape)
    raw = content.encode("latin-1") if isinstance(content, str) else content
    if not (isinstance(raw, bytes) and isinstance(dtype, np.dtype)):  # other memory may be addresses
        raise UnsafeFileError("an array that is no bytes")
    flat = np.frombuffer(raw, dtype)
    if dtype.kind == "U" and flat.view(np.uint32).max(initial=0) > sys.maxunicode:
        raise UnsafeFileError("text that is no Unicode")
    return flat.reshape(shape).transpose(axes) if axes else flat.reshape(shape, order=order)


def set_state(made: Any, state: Any) -> None:
    """Set the contents of an empty array; native types are accepted, and other objects have no state."""
    if type(made) is np.ndarray and not made.size:
        shape, dtype, is_fortran, content = state[-4:]  # an optional version comes first
        array = _from_buffer(content, dtype, shape, "F" if is_fortran else "C")
        made.__setstate__(array.__reduce__()[2])  # type: ignore[arg-type]
    elif not isinstance(made, np.dtype) or state[1] not in ("<", "|", "="):
        # numpy's own types would take flags from a file with which memory is read as pointers.
        raise UnsafeFileError(f"a state of {type(made).__name__}")


def _judged(load: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a step that makes an object, unless a small file would take all memory or time in this way."""

    def load_judged(reader: Any) -> None:
        load(reader)
        parts = [reader.stack[-1]]
        while parts:  # a tuple is hashed with those in it, however often each is there
            part = parts.pop()
            reader.left -= part.nbytes if isinstance(part, np.ndarray) else sys.getsizeof(part)
            if reader.left < 0:
                raise UnsafeFileError("the same contents again and again")
            parts += [inner for inner in part if isinstance(inner, tuple)] if isinstance(part, tuple) else ()

    return load_judged


#: What stands for each name, with those of Python 3 and numpy 1.
_NAMES: dict[str, Any] = {
    "numpy.ndarray": "numpy.ndarray",
    "numpy.dtype": _dtype,
    "numpy.core.multiarray._reconstruct": lambda *_: np.empty(0, dtype=np.int8),
    "numpy.core.multiarray.scalar": lambda dtype, raw: _from_buffer(raw, dtype, ()).item(),
    "numpy.core.numeric._frombuffer": _from_buffer,
    "_codecs.encode": lambda text, encoding: text.encode({"latin1": "latin1"}[encoding]),  # no other
    "builtins.bytes": lambda: b"",  # of protocols 0 to 2; others use _codecs.encode
    "collections.OrderedDict": dict,
    "collections.defaultdict": lambda factory=None: {},
    **{f"builtins.{kind.__name__}": kind for kind in (dict, list, set, frozenset)},
    **{f"builtins.{name}": name for name in ("int", "float", "str")},  # of default dicts
}


class Reader(pickle._Unpickler):  # type: ignore[name-defined, misc]  # in Python: it asks for every name
    """Reader of plain containers, text, numbers and numpy arrays in a pickle of any version."""

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)  # type: ignore[attr-defined]
    build = staticmethod(set_state)

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="latin-1", fix_imports=False)
        self.left = 100 * len(data) + 4096  # bytes of objects; an empty set has 216, and takes 3

    def find_class(self, module: str, name: str, /) -> Any:
        """Return what stands for a name; nothing is imported."""
        usual = f"{module}.{name}".replace("numpy._core.", "numpy.core.").replace("__builtin__.", "builtins.")
        if usual not in _NAMES:
            raise UnsafeFileError(f"{module}.{name}"[:200])
        return _NAMES[usual]

    def get_extension(self, code: int) -> Any:
        """Refuse names by number: the registry may have been filled by others."""
        raise UnsafeFileError("a name of the extension registry")

    dispatch[pickle.BUILD[0]] = lambda self: self.build(self.stack[-2], self.stack.pop())
    dispatch[pickle.BYTEARRAY8[0]] = dispatch[pickle.BINBYTES8[0]]  # not as many as it announces
    _making = "TUPLE TUPLE1 TUPLE2 TUPLE3 REDUCE NEWOBJ NEWOBJ_EX INST OBJ BUILD"
    for _name in _making.split():
        dispatch[getattr(pickle, _name)[0]] = _judged(dispatch[getattr(pickle, _name)[0]])


def load_pickle(path: str | os.PathLike[str], *, largest: int = 1 << 26) -> Any:
    """Read a pickle of at most ``largest`` bytes with :class:`Reader`; a CogError says what is wrong."""
    with explained(path, "pickle"):
        return Reader(files.contents(path, largest)).load()


def require_stored(archive: IO[bytes]) -> None:
    """Refuse a zip archive that would grow when unpacked (torch compresses code)."""
    with zipfile.ZipFile(archive) as opened:
        records = [info for info in opened.infolist() if info.filename.split("/")[1:2] != ["code"]]
    if opened.comment or min(info.header_offset for info in opened.infolist()):
        raise UnsafeFileError("more than its directory says")  # torch would find another directory
    if packed := [info.filename for info in records if info.compress_type != zipfile.ZIP_STORED]:
        raise UnsafeFileError(f"a compressed record {packed[0]}")
    if sum(info.file_size for info in records) > archive.seek(0, os.SEEK_END):
        raise UnsafeFileError("records that announce more bytes than the file has")


class _Other:  # in place of what is stored beside tensors: options of a training, arrays, numbers
    names: ClassVar = ["argparse.Namespace", "numpy.ndarray", "numpy.dtype"]
    names += [f"numpy.{c}.multiarray.{n}" for c in ("core", "_core") for n in ("scalar", "_reconstruct")]

    def __init__(self, *_: Any) -> None: ...
    def __setstate__(self, _: Any) -> None: ...


def load_torch(path: str | os.PathLike[str], *, mmap: bool = False) -> Any:
    """Read (or map) a file of ``torch.save`` onto the CPU; an UnsafeFileError names a class in it."""
    import torch

    with explained(path, "torch file"), torch.serialization.safe_globals([(_Other, n) for n in _Other.names]):
        with files.open_regular(path) as handle:
            if handle.read(4) == b"PK\x03\x04":
                require_stored(handle)
        try:
            with warnings.catch_warnings(action="ignore"):  # meant for programmers
                return torch.load(Path(path), map_location="cpu", weights_only=True, mmap=mmap or None)
        except Exception as error:
            named = re.search(r"(?:GLOBAL|global|class|function|instantiate) ([\w.]+\.\w+)", str(error))
            if "weights_only" not in str(error):
                raise
            raise UnsafeFileError(named[1] if named else "more than tensors") from None


def load_safetensors(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read all tensors of a safetensors file with its library; a CogError says why it cannot be read."""
    from safetensors.torch import load

    with explained(path, "safetensors file"):
        return load(files.contents(path))
