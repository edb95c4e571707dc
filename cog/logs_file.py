"""Reading ``logs.pkl``, the file that says what a run's accuracies are, fast enough for thousands.

The interpreter of :mod:`cog.safe_pickle` takes milliseconds for the 700 numbers of a run. The pickle of a plain
dict of lists of floats, which is what both toolkits write, has so simple a form that its numbers can be
taken out in one step each list; everything else is left to the interpreter.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from typing import Any

from cog import safe_load

# Logs of 100 epochs take 6.5 kB.
_LARGEST = 1 << 22

# Opcodes (pickletools): G BINFLOAT, ( MARK, e APPENDS, a APPEND, ] EMPTY_LIST, } EMPTY_DICT, u SETITEMS, s SETITEM,
# \x8c SHORT_BINUNICODE, X BINUNICODE, \x94 MEMOIZE, q BINPUT, r LONG_BINPUT, \x95 FRAME, \x80 PROTO, . STOP.
# Memo entries are skipped: nothing in this form refers to them. Frames only announce a length.
_START = re.compile(rb"\x80[\x02-\x05](?:\x95.{8})?\}(?:\x94|q.|r.{4})?", re.DOTALL)
_SKIPPED = rb"(?:\x94|q.|r.{4}|\x95.{8})*"
_KEY = re.compile(rb"(?:\x95.{8})?(?:\x8c(.)|X(.{4}))", re.DOTALL)
_LIST = re.compile(_SKIPPED + rb"\]" + _SKIPPED, re.DOTALL)
_FLOATS = re.compile(rb"(?:\x95.{8})?(?:\(((?:G.{8})+)e|(G.{8})a)", re.DOTALL)


def load(path: str | os.PathLike[str]) -> Any:
    """Return what :func:`cog.safe_load.load_pickle` returns, sooner for logs in the usual form.

    Raises:
        UnsafeFileError: see there.
        CogError: see there.
    """
    try:
        found = os.stat(path)
        if stat.S_ISREG(found.st_mode) and 0 < found.st_size <= _LARGEST:
            with open(path, "rb") as handle:
                logs = parse(handle.read(_LARGEST + 1))
            if logs is not None:
                return logs
    except (OSError, ValueError):
        pass  # said better below
    return safe_load.load_pickle(path)


def parse(data: bytes) -> dict[str, list[float]] | None:
    """Read a pickle (protocols 2 to 5) of a dict whose keys are texts and whose values are lists of floats.

    Returns:
        The dict; None when ``data`` is anything else, which says nothing against it.
    """
    logs: dict[str, list[float]] = {}
    start = _START.match(data)
    if start is None:
        return None
    position = start.end()
    while data[position : position + 1] != b".":
        many = data[position : position + 1] == b"("
        position += many
        end = b"u" if many else b"s"
        while True:
            key = _KEY.match(data, position)
            if key is None:
                return None
            length = key[1][0] if key[1] is not None else struct.unpack("<I", key[2])[0]
            position = key.end() + length
            empty = _LIST.match(data, position)
            if empty is None:  # also when the text is cut short
                return None
            try:
                name = data[key.end() : position].decode("utf-8", "surrogatepass")
            except UnicodeDecodeError:
                return None
            position = empty.end()
            values: list[float] = []
            while (floats := _FLOATS.match(data, position)) is not None:
                run = floats[1] or floats[2]
                values += [value for (value,) in struct.iter_unpack(">xd", run)]
                position = floats.end()
            logs[name] = values
            if data[position : position + 1] == end:
                position += 1
                break
            if not many:
                return None
    return logs
