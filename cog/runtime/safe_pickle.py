"""A restricted reader of pickles: Python's unpickler without access to dangerous functions.

Two mechanisms protect the process from a hostile file:

* :class:`_Reader` is the security boundary. It resolves names through a closed table and never imports. The names stand
  for sealed stand-ins: no file can set their attributes, call anything except their harmless constructor, or change
  their meaning for the next file.
* :func:`check` bounds time and memory. It scans the operations once, before any object is built, and keeps only the
  kind of every value. It refuses lengths and memo indexes beyond the file, operations that data do not need, and keys
  that are slow to hash or that collide: Python hashes text with a secret, but numbers and tuples without.
"""

from __future__ import annotations

import io
import math
import mmap
import pickle
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cog.errors import UnsafeFileError

#: Errors that a broken file can raise while it is read.
MALFORMED = (
    ValueError,  # includes UnicodeError
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    OverflowError,
    MemoryError,
    RecursionError,
    EOFError,
    pickle.UnpicklingError,
)

# Limit of operations: each takes some hundred bytes of memory. Larger files may have one operation per eight bytes.
_MAX_OPERATIONS = 3_000_000
# Limit of keys other than text: when all collide, so many take half a second (quadratic time).
_MAX_KEYS = 10_000
_MAX_KEY_LENGTH = 8
_MAX_DIGITS = 1000

# Kinds of values: "(" mark, s text or bytes, n number or None, t short tuple of both, l list, d dict, e set, o stand-in
# or its result, x other values, which must not be keys.
_PUSH = {  # opcode: kind, bytes of its argument, bytes of the length before its content
    b"N": ("n", 0, 0), b"\x88": ("n", 0, 0), b"\x89": ("n", 0, 0), b"K": ("n", 1, 0), b"M": ("n", 2, 0),
    b"J": ("n", 4, 0), b"G": ("n", 8, 0), b"\x8a": ("n", 0, 1),
    b"\x8c": ("s", 0, 1), b"X": ("s", 0, 4), b"\x8d": ("s", 0, 8), b"U": ("s", 0, 1), b"T": ("s", 0, 4),
    b"C": ("s", 0, 1), b"B": ("s", 0, 4), b"\x8e": ("s", 0, 8), b"\x96": ("x", 0, 8),
    b"]": ("l", 0, 0), b"}": ("d", 0, 0), b"\x8f": ("e", 0, 0), b")": ("t", 0, 0), b"(": ("(", 0, 0),
}  # fmt: skip
_PUSHED = {code[0]: (ord(kind), width, count) for code, (kind, width, count) in _PUSH.items()}
_LINES = dict(zip(b"ILFSVP", b"nnnsso", strict=True))
_INDEX_BYTES = dict(zip(b"qrhj", (1, 4, 1, 4), strict=True))
_BINFLOAT_BYTES, _BATCH = 9, 1000  # Python's pickler appends so many items at once
_MARK = b"("
_TAKE = {
    # opcode: values that are taken (0: all above the last mark), step to the next key among them (0: no keys), kinds of
    # the container below that receives them, kind of the result, number of operations beyond one that the result costs
    b"e": (0, 0, b"l", b"", 0),  # APPENDS
    b"a": (1, 0, b"l", b"", 0),  # APPEND
    b"u": (0, 2, b"do", b"", 0),  # SETITEMS
    b"s": (2, 2, b"do", b"", 0),  # SETITEM
    b"\x90": (0, 1, b"e", b"", 0),  # ADDITEMS
    b"b": (1, 0, b"o", b"", 0),  # BUILD
    b"l": (0, 0, b"", b"l", 2),  # LIST
    b"d": (0, 2, b"", b"d", 2),  # DICT
    b"\x91": (0, 1, b"", b"x", 2),  # FROZENSET
    b"\x85": (1, 0, b"", b"t", 2),  # TUPLE1
    b"\x86": (2, 0, b"", b"t", 2),  # TUPLE2
    b"\x87": (3, 0, b"", b"t", 2),  # TUPLE3
    b"t": (0, 0, b"", b"t", 2),  # TUPLE
    b"R": (2, 0, b"", b"o", 4),  # REDUCE
    b"\x81": (2, 0, b"", b"o", 4),  # NEWOBJ
    b"Q": (1, 0, b"", b"o", 0),  # BINPERSID
    b"1": (0, 0, b"", b"", 0),  # POP_MARK
}
_TAKEN = {code[0]: step for code, step in _TAKE.items()}


def _n_floats(data: bytes | mmap.mmap, position: int) -> int:
    """Return the number of BINFLOAT operations, at most a batch, before APPENDS; 0 for any other sequence."""
    codes = data[position : position + _BINFLOAT_BYTES * (_BATCH + 1) : _BINFLOAT_BYTES]
    n = len(codes) - len(codes.lstrip(b"G"))
    return n if codes[n : n + 1] == b"e" else 0


def check(data: bytes | mmap.mmap, position: int = 0) -> int:
    """Scan the operations of one pickle; refuse those that cost much time or memory, or that data do not need.

    Args:
        data: the file.
        position: index of the first byte of the pickle.

    Returns:
        Index after the last byte of the pickle.

    Raises:
        UnsafeFileError: for an operation that data do not need, and for keys that could be slow.
        ValueError: for content that is broken, or that needs too much time or memory for its size.
        IndexError: when the file is cut off.
    """
    size = len(data)
    stack, memo = bytearray(), bytearray()
    left, n_keys, uses_put = max(_MAX_OPERATIONS, size // 8), 0, False

    def take(n: int) -> bytes:
        items = bytes(stack[-n:])
        if len(items) < n or _MARK in items:
            raise ValueError("an operation without its operands")
        del stack[-n:]
        return items

    def to_mark() -> bytes:
        start = stack.rindex(_MARK)
        items = bytes(stack[start + 1 :])
        del stack[start:]
        return items

    def line_end(start: int, most: int | None = None) -> int:
        end = data.find(b"\n", start)
        if end < 0:
            raise ValueError("the file ends early")
        if most is not None and end - start > most:
            raise ValueError("a number of too many digits")
        return end + 1

    while True:
        left -= 1
        if left < 0:
            raise ValueError("more operations than data of this size need")
        code = data[position]
        position += 1
        pushed = _PUSHED.get(code)
        if pushed is not None:
            kind, width, n_count = pushed
            if code == 0x28 and data[position] == 0x47 and stack and stack[-1] == 0x6C:  # "(G" above a list
                n_floats = _n_floats(data, position)
                if n_floats:
                    left -= n_floats // 2
                    position += _BINFLOAT_BYTES * n_floats + 1
                    continue
            if n_count:
                width = int.from_bytes(data[position : position + n_count], "little")
                position += n_count
            elif kind in b"lde":
                left -= 2  # an empty container takes far more memory than its byte in the file
            position += width
            stack.append(kind)
            if position >= size:
                raise ValueError("it announces more bytes than the file has")
            if data[position] == 0x94 and not uses_put and kind != 0x28:  # MEMOIZE follows most values
                memo.append(kind)
                position += 1
                left -= 1
        elif code in b"\x94qrphjg":  # MEMOIZE, PUT, GET
            width = _INDEX_BYTES.get(code, 0)
            if code == 0x94:
                index = len(memo)
            elif width:
                index = int.from_bytes(data[position : position + width], "little")
                position += width
            else:
                start, position = position, line_end(position, 20)
                index = int(data[start : position - 1])
            if code in b"hjg":
                if not 0 <= index < len(memo):
                    raise ValueError("an impossible memo entry")
                stack.append(memo[index])
                continue
            # No writer mixes MEMOIZE and PUT; the first PUT of Python 2 has number 1.
            uses_put = uses_put or code != 0x94
            if (
                not 0 <= index <= len(memo) + 1
                or (uses_put and code == 0x94)
                or not stack
                or stack[-1] == 0x28
            ):
                raise ValueError("an impossible memo entry")
            memo += b"x" * (index + 1 - len(memo))
            memo[index] = stack[-1]
        elif code in _TAKEN:
            n_taken, key_step, container, result, cost = _TAKEN[code]
            items = take(n_taken) if n_taken else to_mark()
            if key_step:
                keys = items[::key_step]
                if keys.translate(None, b"snto"):
                    raise UnsafeFileError("a container as a dict key or set element")
                n_keys += len(keys) - keys.count(b"s")
                if n_keys > _MAX_KEYS:
                    raise UnsafeFileError(f"more than {_MAX_KEYS:,} keys that are not text")
            if container and (not stack or stack[-1] not in container):
                raise ValueError("contents for something that cannot hold them")
            if result == b"t" and (len(items) > _MAX_KEY_LENGTH or items.translate(None, b"sn")):
                result = b"x"  # slow to hash
            stack += result
            left -= cost
        elif code in b"c":  # GLOBAL
            position = line_end(line_end(position))
            stack += b"o"
        elif code == 0x93:  # STACK_GLOBAL
            if take(2) != b"ss":
                raise ValueError("a name that is not text")
            stack += b"o"
        elif code in _LINES:
            position = line_end(position, _MAX_DIGITS if code in b"ILF" else None)
            stack.append(_LINES[code])
        elif code in b"0":  # POP, of a value or a mark
            stack.pop()
        elif code in b"2":  # DUP
            stack += take(1) * 2
        elif code in b"\x80\x95":  # PROTO, FRAME
            width = 1 if code == 0x80 else 8
            n = int.from_bytes(data[position : position + width], "little")
            position += width
            if n > (5 if code == 0x80 else size - position):
                raise ValueError("a frame beyond the end, or an unknown protocol")
        elif code in b".":  # STOP
            take(1)
            return position
        elif code in b"\x82\x83\x84io\x92\x97\x98\x8b":  # EXT1 to 4, INST, OBJ, NEWOBJ_EX, buffers, LONG4
            raise UnsafeFileError(f"the pickle operation 0x{code:02x}")
        else:
            raise ValueError(f"unknown operation 0x{code:02x}")


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
    """Base of the stand-ins for classes that a file instantiates; see :class:`_Reader`."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        """Receive the attributes in the file; the default is to drop them."""


class _Array(np.ndarray):  # type: ignore[type-arg]
    """An array whose contents a file may set once; ``np.asarray`` returns a plain array."""

    _charge: Callable[[int], None] | None = None

    def __setstate__(self, state: Any) -> None:
        charge, self._charge = self._charge, None
        if charge is None or not isinstance(state, tuple):
            raise UnsafeFileError("attributes of an array")
        shape, dtype, is_fortran, content = state[-4:]  # an optional version comes first
        shape, dtype = _checked_shape(shape), _checked_dtype(dtype)
        n = math.prod(shape)
        if dtype.hasobject:
            if not isinstance(content, list):
                raise ValueError("an array of objects without a list of them")
            if any(type(item) is not str for item in content):
                raise UnsafeFileError("an array of objects other than text")
        else:
            content = _raw(content)
        if len(content) != (n if dtype.hasobject else n * dtype.itemsize):
            raise ValueError(f"array of shape {shape} with {len(content)} bytes or objects")
        charge(len(content))
        super().__setstate__((1, shape, dtype, bool(is_fortran), content))  # type: ignore[arg-type]

    def __setitem__(self, key: Any, value: Any) -> None:
        raise UnsafeFileError("items of an array")

    def __reduce__(self) -> Any:
        return np.asarray(self).__reduce__()


class _Dtype(Sealed):
    """A ``numpy.dtype`` under construction."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        order = _text(state[1])
        if order in ("<", ">"):
            self.value = self.value.newbyteorder(order)


_DTYPE = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248]|c(8|16)|[US][0-9]{0,9}|O8?|\?)")
_ATOMS = frozenset({str, int, float, bool, bytes, complex, type(None)})


def _text(value: Any) -> Any:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _raw(value: Any) -> bytes:
    """Return the bytes of an array; pickles of protocols 0 to 2, and of Python 2, store them as text."""
    if isinstance(value, str):
        return value.encode("latin-1")
    if not isinstance(value, bytes | bytearray):
        raise ValueError(f"array data of type {type(value).__name__}")
    return bytes(value)


def _checked_shape(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError("an array shape that is not a tuple of whole numbers")
    return shape


def _checked_dtype(dtype: Any) -> np.dtype[Any]:
    if not isinstance(dtype, _Dtype):
        raise ValueError(f"an array type of type {type(dtype).__name__}")
    return dtype.value


def _dtype(spec: Any, align: Any = False, copy: Any = True) -> _Dtype:
    spec = str(_text(spec))
    if not _DTYPE.fullmatch(spec):
        raise UnsafeFileError(f"a numpy array of type {spec!r}")
    return _Dtype(np.dtype(spec))


def _default_dict(factory: Any = None) -> dict[Any, Any]:
    return {}


def _complex(real: Any, imaginary: Any) -> complex:
    return complex(float(real), float(imaginary))


class _Reader(pickle.Unpickler):
    """Unpickler with names from a closed table.

    Each object that is made from a part of the file is charged against a limit, because a file can refer to the same
    part a million times.

    Args:
        data: the pickle.
        names: see :func:`load`.
        persistent: see :func:`load`.
    """

    def __init__(
        self,
        data: bytes | mmap.mmap,
        names: Callable[[str, str], Any] | None,
        persistent: Callable[[Any], Any] | None,
    ) -> None:
        file: Any = io.BytesIO(data) if isinstance(data, bytes) else data
        super().__init__(file, encoding="latin-1", fix_imports=False)
        self._names = names
        self._persistent = persistent
        self._left = 2 * len(data) + (1 << 26)
        self._n_keys = 0

    def find_class(self, module: str, name: str, /) -> Any:
        """Return the stand-in of a name; nothing is imported."""
        stand_in: Any = _ADMITTED.get((module, name))
        if isinstance(stand_in, str):
            stand_in = getattr(self, stand_in)
        elif stand_in is None and self._names is not None:
            stand_in = self._names(module, name)
        if stand_in is None:
            raise UnsafeFileError(f"{module}.{name}"[:200])
        if isinstance(stand_in, Sealed) or (isinstance(stand_in, type) and issubclass(stand_in, Instance)):
            return stand_in
        return _Function(stand_in)

    def persistent_load(self, pid: Any, /) -> Any:
        """Return the value of a persistent id."""
        if self._persistent is None:
            raise UnsafeFileError("a persistent id (a torch file?)")
        return self._persistent(pid)

    def _charge(self, n_bytes: int) -> None:
        self._left -= n_bytes
        if self._left < 0:
            raise ValueError("it repeats its contents too often")

    def _empty_array(self, subtype: Any, shape: Any, typecode: Any) -> _Array:
        if subtype is not _NDARRAY:
            raise UnsafeFileError("an array of a foreign class")
        array = np.empty(0, dtype=np.int8).view(_Array)
        array._charge = self._charge
        return array

    def _array_from_buffer(
        self, content: Any, dtype: Any, shape: Any, order: Any, axis_order: Any = None
    ) -> np.ndarray[Any, Any]:
        # numpy >= 1.24 writes contiguous arrays this way with pickle protocol 5; numpy 2 others as well.
        value = _checked_dtype(dtype)
        if value.hasobject:
            raise UnsafeFileError("an array of objects in a buffer")
        self._charge(len(content))
        flat = np.frombuffer(_raw(content), dtype=value) if len(content) else np.empty(0, dtype=value)
        if order == "K" and axis_order is not None:
            made = flat.reshape(_checked_shape(shape)).transpose(axis_order)
        else:
            made = flat.reshape(_checked_shape(shape), order=order)
        return made.view(_Array)

    def _scalar(self, dtype: Any, content: Any = "") -> Any:
        value = _checked_dtype(dtype)
        if value.hasobject:
            raise UnsafeFileError("a numpy scalar that is an object")
        self._charge(len(content))
        raw = _raw(content)
        if not raw and value.kind in "US":
            return "" if value.kind == "U" else b""
        if len(raw) != value.itemsize:
            raise ValueError(f"numpy scalar of {value} with {len(raw)} bytes")
        return np.frombuffer(raw, dtype=value)[0].item()

    def _encode(self, text: Any, encoding: Any = "latin1") -> bytes:
        if encoding not in ("latin1", "latin-1", "utf8", "utf-8", "ascii") or not isinstance(text, str):
            raise UnsafeFileError(f"the encoding {str(encoding)[:40]!r}")
        self._charge(len(text))
        return text.encode(encoding)

    def _bytes(self) -> bytes:
        return b""  # protocols 0 to 2 write empty bytes this way; other bytes go through _codecs.encode

    def _bytearray(self, content: Any = b"", encoding: Any = "latin-1") -> bytearray:
        if isinstance(content, str):
            return bytearray(self._encode(content, encoding))
        self._charge(len(content))
        return bytearray(_raw(content))

    def _list(self, content: Any = ()) -> list[Any]:
        if not isinstance(content, list | tuple):
            raise ValueError(f"a container made from {type(content).__name__}")
        self._charge(64 * len(content))
        return list(content)

    def _keys(self, content: Any) -> list[Any]:
        items = self._list(content)
        for item in items:
            parts = item if type(item) is tuple else (item,)
            if len(parts) > _MAX_KEY_LENGTH or any(type(part) not in _ATOMS for part in parts):
                raise UnsafeFileError(f"a {type(item).__name__} as a dict key or set element")
            self._n_keys += type(item) is not str
        if self._n_keys > _MAX_KEYS:
            raise UnsafeFileError(f"more than {_MAX_KEYS:,} keys that are not text")
        return items

    def _set(self, content: Any = ()) -> set[Any]:
        return set(self._keys(content))

    def _frozenset(self, content: Any = ()) -> frozenset[Any]:
        return frozenset(self._keys(content))

    def _dict(self, content: Any = ()) -> dict[Any, Any]:
        pairs = [self._list(pair) for pair in self._list(content)]
        return dict(zip(self._keys([key for key, _ in pairs]), [value for _, value in pairs], strict=True))


_NDARRAY = Sealed("numpy.ndarray")
#: Admitted names. Each stands for a value that a file may pass on but not call, for a function, or for the method of
#: :class:`_Reader` of the given name.
_ADMITTED: dict[tuple[str, str], Sealed | Callable[..., Any] | str] = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): "_encode",
    ("collections", "OrderedDict"): "_dict",
    ("collections", "defaultdict"): _default_dict,
}
for _builtins in ("builtins", "__builtin__"):  # Python 3 and 2
    for _name in ("set", "frozenset", "list", "dict", "bytes", "bytearray"):
        _ADMITTED[_builtins, _name] = "_" + _name
    _ADMITTED[_builtins, "complex"] = _complex
    for _name in ("int", "float", "str"):
        _ADMITTED[_builtins, _name] = Sealed(_name)
for _core in ("numpy.core", "numpy._core"):  # numpy 1 and numpy 2 spell the same module
    _ADMITTED[_core + ".multiarray", "_reconstruct"] = "_empty_array"
    _ADMITTED[_core + ".multiarray", "scalar"] = "_scalar"
    _ADMITTED[_core + ".numeric", "_frombuffer"] = "_array_from_buffer"


def load(
    data: bytes | mmap.mmap,
    *,
    names: Callable[[str, str], Any] | None = None,
    persistent: Callable[[Any], Any] | None = None,
) -> Any:
    """Read one pickle of lists, tuples, dicts, sets, strings, bytes, numbers and numpy arrays.

    It reads any protocol, and pickles of numpy 1 and 2, of Python 2 (its strings are decoded as Latin-1, which keeps
    every byte) and 3. numpy scalars become Python numbers and strings; ordered and default dicts become dicts.
    Arrays of objects may only hold text.

    Args:
        data: a file, whole or mapped; bytes after the pickle are ignored.
        names: for formats with further names: function from ``(module, name)`` to a harmless function, a subclass of
            :class:`Instance`, a :class:`Sealed` value, or None to refuse the name.
        persistent: for formats with data beside the pickle: function from persistent id to value.

    Raises:
        UnsafeFileError: when the file uses a name or an operation outside the admitted ones.
        Exception: one of ``MALFORMED`` for a broken file.
    """
    check(data)
    reader = _Reader(data, names, persistent)
    try:
        return reader.load()
    finally:
        reader.memo.clear()


def build_array(constructor: Any, arguments: Any, state: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Return an array from the three parts of ``numpy.ndarray.__reduce__``, for formats that wrap these parts.

    Raises:
        UnsafeFileError: when the parts are not those of an array.
    """
    if not isinstance(constructor, _Function) or getattr(constructor.value, "__name__", "") != "_empty_array":
        raise UnsafeFileError("an array of a foreign class")
    array = constructor(*arguments)
    array.__setstate__(state)
    return array
