"""An interpreter of pickles that can only build data.

Python's unpickler imports what a file names and calls it. Restricting the names is not enough: a file of a
few bytes can still make it allocate 64 GB (a memo index of 2 ** 33), compute forever (the hash of tuples nested
40 deep), or alter the admitted functions for the next file (their default arguments, through BUILD). This
interpreter reads the opcodes with :mod:`pickletools`, which only parses, and carries out those that data need.
Names in a file select an entry of the table at the end of this module, or a stand-in that the reader of
a format provides; nothing else is looked up, imported or called.
"""

from __future__ import annotations

import math
import os
import pickletools
import re
from collections.abc import Callable
from typing import IO, Any

import numpy as np

from cog.errors import UnsafeFileError

#: What a broken file can raise while it is read.
MALFORMED = (
    ValueError,  # includes UnicodeError
    TypeError,
    KeyError,
    IndexError,
    OverflowError,
    MemoryError,
    RecursionError,
)

_ATOMS = frozenset({str, int, float, bool, bytes, complex, type(None)})
_DTYPE = re.compile(r"[<>|=]?(b1|[iu][1248]|f(2|4|8|16)|c(8|16|32)|[US][0-9]{0,9}|O8?|\?)")


class _Name:
    """An admitted global name; REDUCE looks up what it stands for."""

    def __init__(self, key: tuple[str, str]) -> None:
        self.key = key

    def __str__(self) -> str:
        return ".".join(self.key)


class _Dtype:
    """A ``numpy.dtype`` under construction."""

    def __init__(self, spec: str) -> None:
        if not _DTYPE.fullmatch(spec):
            raise UnsafeFileError(f"a numpy array of type {spec!r}")
        self.value = np.dtype(spec)

    def __str__(self) -> str:
        return "a bare numpy type"


class _Arguments(tuple[Any, ...]):
    """A tuple with names or types in it: good for REDUCE and BUILD, not a value of the data."""

    def __str__(self) -> str:
        return "a bare numpy type or class"


class Constructor:
    """What a format's reader lets a class or function of its files stand for.

    Args:
        make: called with the file's arguments; it must be harmless whatever they are.
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make

    def __str__(self) -> str:
        return "a bare class or function"


class Instance:
    """Base of objects made by a :class:`Constructor` whose attributes a file may set."""

    def set_state(self, state: Any) -> None:
        """Take the attributes that the file gives; by default they are dropped."""


_NOT_DATA = frozenset({_Name, _Dtype, _Arguments, Constructor})


def _data(value: Any) -> Any:
    """Return ``value`` unless it is a stand-in that must not become part of the result."""
    if type(value) in _NOT_DATA:
        raise UnsafeFileError(str(value))
    return value


def _key(value: Any) -> Any:
    """Return ``value`` when hashing it is cheap: a plain value, or a tuple of plain values."""
    if type(value) in _ATOMS or (type(value) is tuple and all(type(item) in _ATOMS for item in value)):
        return value
    _data(value)
    raise ValueError(f"{type(value).__name__} as a dict key or set element")


class _Bounded:
    """A file whose ``read`` does not allocate more than the file holds, whatever length it is asked for."""

    def __init__(self, handle: IO[bytes]) -> None:
        self._handle = handle
        start = handle.tell()
        self._size = handle.seek(0, os.SEEK_END)
        handle.seek(start)
        self.readline = handle.readline
        self.tell = handle.tell

    def read(self, length: int) -> bytes:
        if length > 1 << 16:
            length = min(length, self._size - self._handle.tell())
        return self._handle.read(length)


def load(
    handle: IO[bytes],
    *,
    names: Callable[[str, str], Any] | None = None,
    persistent: Callable[[Any], Any] | None = None,
) -> Any:
    """Read one pickle of lists, tuples, dicts, sets, strings, bytes, numbers and numpy arrays.

    Any protocol; pickles of numpy 1 and 2, of Python 2 (its strings are decoded as Latin-1, which keeps every
    byte) and 3. numpy scalars become Python numbers and strings; ordered and default dicts become dicts.

    Args:
        handle: a seekable file, opened in binary mode; left behind the pickle.
        names: for formats that name more than data do: ``(module, name)`` -> a :class:`Constructor`, a
            value that stands for the name, or None to refuse it.
        persistent: for formats that keep data beside the pickle: persistent id -> value.

    Raises:
        UnsafeFileError: a name or an operation outside the admitted ones.
        Exception: one of ``MALFORMED`` for a broken file.
    """
    machine = _Machine(names, persistent)
    for opcode, argument, _ in pickletools.genops(_Bounded(handle)):  # type: ignore[arg-type]
        if opcode.name == "STOP":
            return _data(machine.stack.pop())
        constant = _PUSHED.get(opcode.name, _MISSING)
        if constant is not _MISSING:
            machine.stack.append(constant)
        elif opcode.name in _PUSH_ARGUMENT:
            machine.stack.append(argument)
        else:
            method = getattr(machine, opcode.name, None)
            if method is None:
                raise UnsafeFileError(f"the pickle operation {opcode.name}")
            method(argument)
    raise ValueError("no end")  # pickletools raises before


_MISSING = object()
_PUSHED = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_PUSH_ARGUMENT = frozenset(
    {
        "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
        "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
        "SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8",
    }
)  # fmt: skip


class _Machine:
    """Stack, marks and memo; one method per opcode (their meaning: ``pickletools`` module).

    Attributes:
        stack: values above the last mark.
    """

    def __init__(
        self, names: Callable[[str, str], Any] | None, persistent: Callable[[Any], Any] | None
    ) -> None:
        self._names = names
        self._persistent = persistent
        self.stack: list[Any] = []
        self._below_marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._unbuilt: dict[int, np.ndarray[Any, Any]] = {}  # by identity: arrays that still need their state

    def PROTO(self, version: int) -> None:
        if version > 5:
            raise ValueError(f"unknown pickle protocol {version}")

    def FRAME(self, _: int) -> None:
        """Frames only help buffering."""

    # --- marks and memo

    def MARK(self, _: None) -> None:
        self._below_marks.append(self.stack)
        self.stack = []

    def _pop_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self._below_marks.pop()
        return items

    def POP(self, _: None) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self._pop_mark()

    def POP_MARK(self, _: None) -> None:
        self._pop_mark()

    def DUP(self, _: None) -> None:
        self.stack.append(self.stack[-1])

    def MEMOIZE(self, _: None) -> None:
        self._memo[len(self._memo)] = self.stack[-1]

    def PUT(self, index: int) -> None:
        self._memo[index] = self.stack[-1]

    BINPUT = LONG_BINPUT = PUT

    def GET(self, index: int) -> None:
        self.stack.append(self._memo[index])

    BINGET = LONG_BINGET = GET

    # --- containers

    def EMPTY_LIST(self, _: None) -> None:
        self.stack.append([])

    def EMPTY_DICT(self, _: None) -> None:
        self.stack.append({})

    def EMPTY_SET(self, _: None) -> None:
        self.stack.append(set())

    def LIST(self, _: None) -> None:
        items = self._pop_mark()
        self.stack.append([_data(item) for item in items])

    def DICT(self, _: None) -> None:
        items = self._pop_mark()
        self.stack.append({})
        self._set_items(items)

    def FROZENSET(self, _: None) -> None:
        items = self._pop_mark()
        self.stack.append(frozenset(map(_key, items)))

    def APPEND(self, _: None) -> None:
        item = self.stack.pop()
        self._top(list).append(_data(item))

    def APPENDS(self, _: None) -> None:
        items = self._pop_mark()
        self._top(list).extend(map(_data, items))

    def ADDITEMS(self, _: None) -> None:
        items = self._pop_mark()
        self._top(set).update(map(_key, items))

    def SETITEM(self, _: None) -> None:
        value = self.stack.pop()
        key = self.stack.pop()
        self._set_items([key, value])

    def SETITEMS(self, _: None) -> None:
        self._set_items(self._pop_mark())

    def _set_items(self, items: list[Any]) -> None:
        target = self._top(dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[_key(key)] = _data(value)

    def _top(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise ValueError(f"{type(self.stack[-1]).__name__} where a {kind.__name__} is needed")
        return self.stack[-1]

    def TUPLE(self, _: None) -> None:
        items = self._pop_mark()
        self._push_tuple(items)

    def TUPLE1(self, _: None) -> None:
        self._tuple_of(1)

    def TUPLE2(self, _: None) -> None:
        self._tuple_of(2)

    def TUPLE3(self, _: None) -> None:
        self._tuple_of(3)

    def _tuple_of(self, length: int) -> None:
        if len(self.stack) < length:
            raise IndexError("stack underflow")
        items = self.stack[-length:]
        del self.stack[-length:]
        self._push_tuple(items)

    def _push_tuple(self, items: list[Any]) -> None:
        is_data = all(type(item) not in _NOT_DATA for item in items)
        self.stack.append(tuple(items) if is_data else _Arguments(items))

    # --- names, and what is made from them

    def GLOBAL(self, name: str) -> None:
        module, _, attribute = name.partition(" ")
        self._push_name(module, attribute)

    def STACK_GLOBAL(self, _: None) -> None:
        attribute, module = self.stack.pop(), self.stack.pop()
        if not isinstance(module, str) or not isinstance(attribute, str):
            raise ValueError("a global name that is not text")
        self._push_name(module, attribute)

    def _push_name(self, module: str, attribute: str) -> None:
        if (module, attribute) in _ADMITTED:
            self.stack.append(_Name((module, attribute)))
            return
        stand_in = None if self._names is None else self._names(module, attribute)
        if stand_in is None:
            raise UnsafeFileError(f"{module}.{attribute}"[:200])
        self.stack.append(stand_in)

    def REDUCE(self, _: None) -> None:
        arguments, name = self.stack.pop(), self.stack.pop()
        if isinstance(name, Constructor) and isinstance(arguments, tuple):
            self.stack.append(name.make(*arguments))
            return
        if not isinstance(name, _Name) or not isinstance(arguments, tuple):
            raise UnsafeFileError("a call of something that is not an admitted name")
        make = _ADMITTED[name.key]
        if make is None:
            raise UnsafeFileError(f"a call of {name}")
        made = make(*arguments)
        if make is _empty_array:
            self._unbuilt[id(made)] = made
        self.stack.append(made)

    def NEWOBJ(self, _: None) -> None:
        if not isinstance(self.stack[-2], Constructor):
            raise UnsafeFileError(f"an instance of {self.stack[-2]}"[:200])
        self.REDUCE(None)

    def BINPERSID(self, _: None) -> None:
        self._push_persistent(self.stack.pop())

    def PERSID(self, persistent_id: str) -> None:
        self._push_persistent(persistent_id)

    def _push_persistent(self, persistent_id: Any) -> None:
        if self._persistent is None:
            raise UnsafeFileError("a persistent id (a torch file?)")
        self.stack.append(self._persistent(_data(persistent_id)))

    def BUILD(self, _: None) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(target, Instance):
            target.set_state(_data(state))
            return
        if not isinstance(state, tuple):
            raise UnsafeFileError(f"attributes of a {type(target).__name__}")
        if isinstance(target, _Dtype):
            order = _text(state[1])
            if order in ("<", ">"):
                target.value = target.value.newbyteorder(order)
        elif isinstance(target, np.ndarray) and self._unbuilt.pop(id(target), None) is not None:
            _build_array(target, state)
        else:
            raise UnsafeFileError(f"attributes of a {type(target).__name__}")


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
    return _Dtype(str(_text(spec)))


def _empty_array(subtype: Any, shape: Any, typecode: Any) -> np.ndarray[Any, Any]:
    if not isinstance(subtype, _Name) or subtype.key != ("numpy", "ndarray"):
        raise UnsafeFileError("an array of a foreign class")
    return np.empty(0, dtype=np.int8)


def _build_array(array: np.ndarray[Any, Any], state: tuple[Any, ...]) -> None:
    """Give an array its contents in place, because other parts of the data may refer to it already."""
    shape, dtype, is_fortran, content = state[-4:]  # an optional version comes first
    shape, dtype = _checked_shape(shape), _checked_dtype(dtype)
    n = math.prod(shape)
    if dtype.hasobject:
        if not isinstance(content, list):
            raise ValueError("an array of objects without a list of them")
    else:
        content = _raw(content)
    if len(content) != (n if dtype.hasobject else n * dtype.itemsize):
        raise ValueError(f"array of shape {shape} with {len(content)} bytes or objects")
    array.__setstate__((1, shape, dtype, bool(is_fortran), content))  # type: ignore[arg-type]


def build_array(constructor: Any, arguments: Any, state: Any) -> np.ndarray[Any, Any]:
    """Make an array from the three parts that ``numpy.ndarray.__reduce__`` gives; for formats that wrap them.

    Raises:
        UnsafeFileError: when they are not those of an array.
    """
    if not isinstance(constructor, _Name) or _ADMITTED[constructor.key] is not _empty_array:
        raise UnsafeFileError("an array of a foreign class")
    array = _empty_array(*arguments)
    _build_array(array, state)
    return array


def _array_from_buffer(
    content: Any, dtype: Any, shape: Any, order: Any, axis_order: Any = None
) -> np.ndarray[Any, Any]:
    # numpy >= 1.24 writes contiguous arrays this way with pickle protocol 5; numpy 2 others as well.
    value = _checked_dtype(dtype)
    if value.hasobject:
        raise UnsafeFileError("an array of objects in a buffer")
    flat = np.frombuffer(_raw(content), dtype=value) if len(content) else np.empty(0, dtype=value)
    if order == "K" and axis_order is not None:
        return flat.reshape(_checked_shape(shape)).transpose(axis_order)
    return flat.reshape(_checked_shape(shape), order=order)


def _scalar(dtype: Any, content: Any = "") -> Any:
    value = _checked_dtype(dtype)
    if value.hasobject:
        raise UnsafeFileError("a numpy scalar that is an object")
    raw = _raw(content)
    if not raw and value.kind in "US":
        return "" if value.kind == "U" else b""
    if len(raw) != value.itemsize:
        raise ValueError(f"numpy scalar of {value} with {len(raw)} bytes")
    return np.frombuffer(raw, dtype=value)[0].item()


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if encoding not in ("latin1", "latin-1", "utf8", "utf-8", "ascii"):
        raise UnsafeFileError(f"the encoding {encoding!r}")
    return str(text).encode(encoding)


def _bytearray(content: Any = b"", encoding: Any = "latin-1") -> bytearray:
    return bytearray(_encode(content, encoding) if isinstance(content, str) else _raw(content))


def _bytes() -> bytes:
    return b""  # what protocols 0 to 2 write for empty bytes; others go through _codecs.encode


def _items(content: Any) -> list[Any]:
    if not isinstance(content, list | tuple):
        raise ValueError(f"a container made from {type(content).__name__}")
    return [_data(item) for item in content]


def _list(content: Any = ()) -> list[Any]:
    return _items(content)


def _set(content: Any = ()) -> set[Any]:
    return set(map(_key, _items(content)))


def _frozenset(content: Any = ()) -> frozenset[Any]:
    return frozenset(map(_key, _items(content)))


def _dict(content: Any = ()) -> dict[Any, Any]:
    return {_key(key): _data(value) for key, value in map(_items, _items(content))}


def _default_dict(factory: Any = None) -> dict[Any, Any]:
    return {}


def _complex(real: Any, imaginary: Any) -> complex:
    return complex(float(real), float(imaginary))


#: What a file may name and what REDUCE makes of it; None: only passed on as an argument.
_ADMITTED: dict[tuple[str, str], Callable[..., Any] | None] = {
    ("numpy", "ndarray"): None,
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): _dict,
    ("collections", "defaultdict"): _default_dict,
}
for _builtins in ("builtins", "__builtin__"):  # Python 3 and 2
    _ADMITTED |= {
        (_builtins, "set"): _set,
        (_builtins, "frozenset"): _frozenset,
        (_builtins, "list"): _list,
        (_builtins, "dict"): _dict,
        (_builtins, "bytes"): _bytes,
        (_builtins, "bytearray"): _bytearray,
        (_builtins, "complex"): _complex,
        (_builtins, "int"): None,
        (_builtins, "float"): None,
        (_builtins, "str"): None,
    }
for _core in ("numpy.core", "numpy._core"):  # numpy 1 and numpy 2 spell the same module
    _ADMITTED |= {
        (_core + ".multiarray", "_reconstruct"): _empty_array,
        (_core + ".multiarray", "scalar"): _scalar,
        (_core + ".numeric", "_frombuffer"): _array_from_buffer,
    }
