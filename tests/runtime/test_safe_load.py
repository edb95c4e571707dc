"""Reading files from strangers: everything data need is read as numpy reads it, nothing else happens."""

from __future__ import annotations

import argparse
import collections
import contextlib
import copyreg
import functools
import io
import json
import os
import pickle
import pickletools
import signal
import struct
import tarfile
import warnings
import zipfile
from pathlib import Path

import hostile
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from marks import n_examples

from cog.errors import CogError, UnsafeFileError
from cog.models.formats import safetensors
from cog.runtime import files, safe_load
from cog.runtime.output_folder import FAILURE_FILE, read_state

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


@pytest.fixture
def read(tmp_path):
    """Return a function that reads bytes as a pickle file."""

    def from_bytes(content: bytes):
        path = tmp_path / "data.pkl"
        path.write_bytes(content)
        return safe_load.load_pickle(path)

    return from_bytes


def same(ours, theirs) -> bool:
    """Equal in value and type, arrays included; numpy scalars count as the Python value they hold."""
    if isinstance(theirs, np.generic):
        theirs = theirs.item()
    if isinstance(theirs, collections.OrderedDict | collections.defaultdict):
        theirs = dict(theirs)
    if isinstance(theirs, np.ndarray):
        ours = np.asarray(ours)
    if type(ours) is not type(theirs):
        return False
    if isinstance(theirs, np.ndarray):
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            return False
        if theirs.dtype == object:
            return all(same(a, b) for a, b in zip(ours.ravel(), theirs.ravel()))
        return ours.tobytes() == theirs.tobytes() and ours.flags.f_contiguous == theirs.flags.f_contiguous
    if isinstance(theirs, dict):
        return len(ours) == len(theirs) and all(
            same(a, b) for a, b in zip(map(list, ours.items()), map(list, theirs.items()))
        )
    if isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return ours == theirs or (ours != ours and theirs != theirs)


VALUES = {
    "plain": [
        1, -1, 2**31, 2**70, -(2**70), 0.1, float("inf"), "", "é\n\\", b"", b"\x00\xff", None, True, False, 1j,
    ],
    "nested": {"a": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)], "b": {"c": [{}, []]}, ("t", 1): "tuple key"},
    "sets": [set(), {1, "a"}, frozenset({2, 3}), {(1, 2)}],
    "bytearray": [bytearray(), bytearray(b"\x00\xe9abc")],
    "ordered and default dicts": [
        collections.OrderedDict([("b", 1), ("a", 2)]),
        collections.defaultdict(list, {"x": [1]}),
    ],
    "long containers": [
        list(range(3000)),
        dict.fromkeys(range(3000), "x"),
        tuple(range(3000)),
        set(range(3000)),
    ],
    "long text": "x" * 100_000,
    "unicode array": np.array(["n01440764/a.JPEG", "é", ""]),
    "bytes array": np.array([b"abc", b"\xff"]),
    "integers": [np.arange(6, dtype=t).reshape(2, 3) for t in ("i1", "u1", "i2", "u4", "i8", "u8")],
    "floats": [np.linspace(0, 1, 6, dtype=t) for t in ("f2", "f4", "f8")],
    "complex": np.array([1 + 2j]),
    "booleans": np.array([True, False]),
    "objects": np.array(["a", "bc"], dtype=object),
    "object matrix": np.array([["a", "bc"], ["d", "e"]], dtype=object),
    "big-endian": [np.arange(3, dtype=">f4"), np.arange(3, dtype=">i8"), np.array(["a", "bc"]).astype(">U2")],
    "Fortran order": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "strided": np.arange(12.0).reshape(3, 4)[:, ::2],
    "empty": [np.empty((0, 3)), np.array([], dtype="U5"), np.empty((2, 0), dtype=object)],
    "0-d": [np.array(3.5), np.array("abc"), np.array("x", dtype=object)],
    "scalars": [
        np.float32(0.1), np.float64(1e300), np.int64(-1), np.uint8(255), np.bool_(True), np.float16(0.5),
    ],
    "text scalars": [np.str_("abc"), np.str_(""), np.bytes_(b"\xff"), np.bytes_(b"")],
    "logs": {"test/top1": [np.float64(70.5), 71.0], "lr": np.array([0.1, 0.2])},
    "split file": {
        "n01440764": {"train": np.array(["a/b.JPEG", "a/c.JPEG"]), "test": np.array(["a/d.JPEG"])}
    },
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_equal_to_what_numpy_reads(read, name):
    for protocol in PROTOCOLS:
        content = pickle.dumps(VALUES[name], protocol=protocol)
        assert same(read(content), pickle.loads(content)), protocol


def _numpy_spelling(content: bytes, version: int) -> bytes:
    """Return a pickle with the module names of numpy 1 or numpy 2; lengths in the file are kept right."""
    old, new = b"numpy.core.", b"numpy._core."
    give, want = (new, old) if version == 1 else (old, new)
    content = content.replace(b"c" + give, b"c" + want)  # GLOBAL: a text line
    for module in (b"multiarray", b"numeric"):  # SHORT_BINUNICODE: opcode, length, text
        before, after = give + module, want + module
        content = content.replace(
            b"\x8c" + bytes([len(before)]) + before, b"\x8c" + bytes([len(after)]) + after
        )
    return content


def _unframed(content: bytes) -> bytes:
    """Return a pickle without FRAME opcodes, whose lengths would no longer be right."""
    kept, positions = [], [(op.name, pos) for op, _, pos in pickletools.genops(content)]
    for (name, start), end in zip(positions, [pos for _, pos in positions[1:]] + [len(content)]):
        if name != "FRAME":
            kept.append(content[start:end])
    return b"".join(kept)


@pytest.mark.parametrize("n", (0, 1, 2, 999, 1000, 1001, 2345))
def test_lists_of_floats_of_any_length(read, n):
    letters = [struct.unpack(">d", text * 8)[0] for text in (b"G", b"e", b"(", b".")]
    for others in ([], [1], ["e"]):
        for items in ([*letters * n, *others], [*others, *letters * n], ([0.5] * n, letters, others)):
            content = pickle.dumps({"a": items, "b": items[:3]})
            assert read(content) == pickle.loads(content)
            with pytest.raises(CogError, match="not a readable pickle"):
                read(content[: len(content) // 2])


@pytest.mark.parametrize("version", (1, 2))
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_numpy_1_and_numpy_2_spellings(read, protocol, version):
    value = [np.array(["a", "b"]), np.arange(4.0), np.float32(0.5), np.array(["a", "bc"], dtype=object)]
    content = _numpy_spelling(_unframed(pickle.dumps(value, protocol=protocol)), version)
    assert (b"numpy.core." in content) == (version == 1)
    assert (b"numpy._core." in content) == (version == 2)
    assert same(read(content), value)


def test_python_2_strings_and_arrays(read):
    # {'a': numpy.array([1.5, -2.]) } as Python 2.7 with numpy 1.16 writes it with protocol 2: raw data are STRINGs.
    content = (
        b"\x80\x02}q\x01U\x01aq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b"
        b"\x87Rq\x05(K\x01K\x02\x85cnumpy\ndtype\nq\x06U\x02f8K\x00K\x01\x87Rq\x07(K\x03U\x01<NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89U\x10\x00\x00\x00\x00\x00\x00\xf8?\x00\x00\x00\x00\x00\x00\x00\xc0tbs."
    )
    theirs = pickle.loads(content, encoding="latin1")
    assert theirs["a"].tolist() == [1.5, -2.0]
    assert same(read(content), theirs)


def test_shared_objects_stay_shared(read):
    shared, array = [1], np.arange(3)
    result = read(pickle.dumps({"a": shared, "b": shared, "c": array, "d": [array]}))
    assert result["a"] is result["b"]
    assert result["c"] is result["d"][0]


def test_structures_that_contain_themselves(read):
    ring: list = [1]
    ring.append(ring)
    mapping: dict = {}
    mapping["me"] = mapping
    pair: tuple = ([],)
    pair[0].append(pair)
    ring, mapping, pair = (read(pickle.dumps(value)) for value in (ring, mapping, pair))
    assert ring[1] is ring and mapping["me"] is mapping and pair[0][0] is pair


def test_arrays_are_independent_of_the_file(read, tmp_path):
    result = read(pickle.dumps(np.arange(3)))
    (tmp_path / "data.pkl").write_bytes(b"\xff" * 300)
    assert result.tolist() == [0, 1, 2]


# --- hostile files


def _text(value: str) -> bytes:
    return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()


def _call(module: str, name: str, *arguments) -> bytes:
    """A pickle that calls ``module.name(*arguments)``."""
    body = pickle.dumps(arguments, protocol=2)[2:-1]
    return b"\x80\x02c" + f"{module}\n{name}\n".encode() + body + b"R."


def _array(shape, dtype: str, content, *, more: bytes = b"") -> bytes:
    """A pickle of an array whose state is as given; ``more`` follows the state."""
    parts = (
        _unframed(pickle.dumps(value, protocol=3))[2:-1] for value in (shape, (dtype, False, True), content)
    )
    its_shape, its_dtype, its_content = parts
    return (
        b"\x80\x04" + _EMPTY_ARRAY + b"(K\x01" + its_shape + b"cnumpy\ndtype\n" + its_dtype + b"R" + _DTYPE_STATE
        + b"\x89" + its_content + b"tb" + more + b"."
    )  # fmt: skip


_EMPTY_ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR"
#: Flags of a type without references: an array of objects would take its contents for addresses.
_DTYPE_STATE = b"(K\x03X\x01\x00\x00\x00|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
_SYSTEM = b"cos\nsystem\n" + _text("touch CANARY")
_STATE = b"N}X\x05\x00\x00\x00value" + _SYSTEM + b"\x85Rs\x86"  # (None, {"value": os.system(...)})
_PLAIN_STATE = b"N}X\x05\x00\x00\x00valueX\x05\x00\x00\x00rot13s\x86"
_NESTED_TUPLES = b"K\x01\x85" + b"2\x86" * 60

#: Names that no file of data needs.
NAMES = """
builtins:eval builtins:exec builtins:getattr builtins:setattr builtins:__import__ builtins:open builtins:type
builtins:object builtins:map builtins:property os:system posix:system subprocess:Popen numpy:load numpy:memmap
numpy:frombuffer numpy:dtype.__class__ numpy:vectorize numpy.core.multiarray:_reconstruct.__globals__
numpy._core.multiarray:fromfile numpy.ma.core:_mareconstruct numpy.testing:rundocs pickle:loads pickle:Unpickler
torch:load torch.storage:_load_from_bytes collections:namedtuple functools:partial functools:reduce
cog.runtime.safe_load:_dtype cog.runtime.safe_load:Sealed copyreg:add_extension copy_reg:_reconstructor
copyreg:_reconstructor copyreg:__newobj__ copyreg:dispatch_table operator:attrgetter operator:methodcaller
types:CodeType types:FunctionType codecs:open _codecs:decode importlib:import_module runpy:run_path
"""

#: Pickles that are refused in one line. The text CANARY stands for the path of a file that must not appear.
HOSTILE = {
    **{f"name {name}": _call(*name.split(":"), "touch CANARY") for name in NAMES.split()},
    "name, protocol 4": b"\x80\x04\x8c\x02os\x8c\x06system\x93" + _text("touch CANARY") + b"\x85R.",
    "name of a method": b"\x80\x04\x8c\x05numpy\x8c\x0fndarray.tofile\x93.",
    "attribute of an admitted name": b"\x80\x04\x8c\x08builtins\x8c\x10dict.__class__.x\x93.",
    "module that is no text": b"\x80\x04K\x01K\x02\x93.",
    "extension registry": b"\x80\x02\x82\x07" + _text("touch CANARY") + b"\x85R.",
    "extension registry, 2 bytes": b"\x80\x02\x83\x07\x00" + _text("touch CANARY") + b"\x85R.",
    "extension registry, 4 bytes": b"\x80\x02\x84\x07\x00\x00\x00" + _text("touch CANARY") + b"\x85R.",
    "keyword arguments": b"\x80\x04ccollections\nOrderedDict\n)}\x92.",
    "out of band buffer": b"\x80\x05\x97.",
    "read-only buffer": b"\x80\x05C\x01a\x98.",
    "persistent id": b"\x80\x02K\x01Q.",
    "persistent id, a call": b"\x80\x02" + _SYSTEM + b"\x85RQ.",
    "persistent id, text": b"P1\n.",
    "call of a list": b"\x80\x02])R.",
    "call of a class": b"\x80\x02cbuiltins\nint\nK\x01\x85R.",
    "call of an array type": b"\x80\x02cnumpy\nndarray\nK\x01\x85\x85R.",
    "new object of an admitted function": b"\x80\x02cbuiltins\nset\n)\x81.",
    "new object of text": b"\x80\x02" + _text("a") + b")\x81.",
    "instance of an admitted function": b"(ibuiltins\nset\n.",
    "instance, protocol 1": b"(cbuiltins\nset\no.",
    "state of a function": b"\x80\x02c_codecs\nencode\n" + _PLAIN_STATE + b"b.",
    "state of a type": b"\x80\x02cbuiltins\nset\n" + _PLAIN_STATE + b"b.",
    "state of a name": b"\x80\x02cnumpy\nndarray\n" + _PLAIN_STATE + b"b.",
    "state of a made dict": b"\x80\x02ccollections\nOrderedDict\n)R" + _PLAIN_STATE + b"b.",
    "state of a list": b"\x80\x02]" + _PLAIN_STATE + b"b.",
    "state with a call": b"\x80\x02]" + _STATE + b"b.",
    "state of a type of numpy": b"\x80\x02cnumpy\ndtype\n" + _text("f8") + b"\x85R" + _PLAIN_STATE + b"bK\x01b.",
    "state of an array, twice": b"\x80\x02" + pickle.dumps(np.arange(3), protocol=2)[2:-1] + _PLAIN_STATE + b"b.",
    "items of an array": pickle.dumps(np.arange(3), protocol=2)[:-1] + b"K\x00K\x01s.",
    "items of a list": b"\x80\x02]K\x00a(K\x00K\x01u.",
    "items of a name": b"\x80\x02cbuiltins\nset\n(K\x01e.",
    "array of itself": b"\x80\x04" + _EMPTY_ARRAY + b"q\x00(K\x01K\x01\x85cnumpy\ndtype\n(" + _text("O")
    + b"K\x00K\x01tR\x89]h\x00atb.",
    "array of calls": _array((1,), "O", [1]),
    "array of bytes objects": _array((1,), "O", [b"a"]),
    "array of addresses": _array((8,), "O", b"\0" * 64),
    "array of a memory map": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nmemmap\nK\x00\x85C\x01btR.",
    "array of a class": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n(cbuiltins\nint\nK\x00\x85C\x01btR.",
    "array in a buffer, of objects": b"\x80\x05cnumpy.core.numeric\n_frombuffer\n(" + b"C\x08" + bytes(8)
    + b"cnumpy\ndtype\n" + _text("O") + b"\x85RK\x01\x85" + _text("C") + b"tR.",
    "scalar that is an object": b"\x80\x02cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n("
    + _text("O") + b"K\x00K\x01tR]tR.",
    **{f"array that lies: {shape}, {dtype}": _array(shape, dtype, content) for shape, dtype, content in (
        ((2**62, 2**62), "f8", b""), ((4,), "f8", b"\0" * 31), ((-1,), "f8", b"\0" * 8), ((1.5,), "f8", b"\0" * 8),
        (1, "f8", b"\0" * 8), ((3,), "O", ["a", "b"]), ((1,), "U999999999", b"abcd"), ((1,), "f8,O", b"\0" * 16),
        ((2,), "V8", b"\0" * 16), ((2,), "M8[s]", b"\0" * 16), ((2,), "(2,)O", b"\0" * 32),
    )},
    "encoding": _call("_codecs", "encode", "abc", "rot13"),
    "encoding of a module": _call("_codecs", "encode", "abc", "os.system"),
    "bytearray of a length": _call("builtins", "bytearray", 10**11),
    "bytes of a length": _call("builtins", "bytes", 10**11),
    "bytes beyond the file": b"\x80\x04\x8e" + (2**40).to_bytes(8, "little") + b"abc.",
    "bytearray beyond the file": b"\x80\x05\x96" + (2**36).to_bytes(8, "little") + b"abc.",
    "text beyond the file": b"\x80\x04\x8d" + (2**62).to_bytes(8, "little") + b"abc.",
    "frame beyond the file": b"\x80\x04\x95" + (2**63 - 1).to_bytes(8, "little") + b"]",
    "number of 100,000 digits": b"I" + b"9" * 100_000 + b"\n.",
    # Hashing these keys would visit 2 ** 60 tuples, or end the process.
    "nested tuples as a key": b"\x80\x02}(" + _NESTED_TUPLES + b"K\x01u.",
    "nested tuples as the key of an item": b"\x80\x02}" + _NESTED_TUPLES + b"K\x01s.",
    "nested tuples as the key of a dict": b"(" + _NESTED_TUPLES + b"K\x01d.",
    "nested tuples in a set": b"\x80\x04\x8f(" + _NESTED_TUPLES + b"\x90.",
    "nested tuples in a frozenset": b"\x80\x04(" + _NESTED_TUPLES + b"\x91.",
    "nested tuples in a set that is called for": b"\x80\x02cbuiltins\nset\n]" + _NESTED_TUPLES + b"a\x85R.",
    "nested tuples in a dict that is called for": b"\x80\x02cbuiltins\ndict\n]" + _NESTED_TUPLES + b"N\x86a\x85R.",
    "deep tuples as a key": b"\x80\x02}(N" + b"\x85" * 300_000 + b"Nu.",
}  # fmt: skip


@pytest.fixture
def time_limit():
    """End the test with an error after 20 seconds."""

    def stop(*_):
        raise AssertionError("took longer than 20 seconds")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


def _safetensors(header: bytes, data: bytes = b"", *, length: int | None = None) -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


def _described(shape, offsets, dtype="F32", **more) -> bytes:
    return json.dumps({"w": {"dtype": dtype, "shape": shape, "data_offsets": offsets}} | more).encode()


#: Files of safetensors with lying headers.
LYING = {
    "longer header than the file": _safetensors(b"{}", length=2**40),
    "header of a negative length": _safetensors(b"{}", length=2**64 - 1),
    "header that is no JSON": _safetensors(b"{nothing"),
    "deep header": _safetensors(b'{"a":' * 100_000),
    "data beyond the file": _safetensors(_described([4], [0, 16])),
    "shape beyond the data": _safetensors(_described([2**40], [0, 4]), bytes(4)),
    "product of sizes that overflows": _safetensors(_described([2**32, 2**32, 2], [0, 4]), bytes(4)),
    "offsets in the other order": _safetensors(_described([1], [4, 0]), bytes(4)),
    "gap before the data": _safetensors(_described([1], [4, 8]), bytes(8)),
    "negative shape": _safetensors(_described([-1], [0, 4]), bytes(4)),
    "unknown type": _safetensors(_described([1], [0, 4], "OBJECT"), bytes(4)),
    "data after the tensors": _safetensors(_described([1], [0, 4]), bytes(64)),
    "two tensors in one place": _safetensors(
        _described([1], [0, 4], v={"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}), bytes(4)
    ),
}  # fmt: skip

DEEP_JSON = b"[" * 200_000 + b"]" * 200_000

CASES = [
    *((f"pickle: {name}", safe_load.load_pickle, lambda canary, make=make: make(canary))
      for name, make in hostile.PICKLES.items()),
    *((f"pickle: {name}", safe_load.load_pickle,
       lambda canary, content=content: content)
      for name, content in HOSTILE.items()),
    *((f"torch: {name}", safe_load.load_torch, lambda canary, make=make: make(canary))
      for name, make in hostile.TORCH_FILES.items()),
    *((f"safetensors: {name}", safetensors.read, lambda canary, content=content: content)
      for name, content in LYING.items()),
    ("json: deep", files.read_json, lambda canary: DEEP_JSON),
    ("json: deep objects", files.read_object, lambda canary: b'{"a":' * 200_000),
    ("json: number of 100,000 digits", files.read_json, lambda canary: b"9" * 100_000),
]  # fmt: skip


@pytest.mark.parametrize(("load", "make"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_nothing_in_a_file_runs_or_writes(tmp_path, monkeypatch, time_limit, load, make):
    """The canary is a file with a name of six letters, CANARY, in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(copyreg, "_inverted_registry", {7: ("os", "system")})
    path = tmp_path / "data.pkl"
    path.write_bytes(make(Path("CANARY")))
    with pytest.raises(CogError) as error:
        load(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)
    assert os.listdir(tmp_path) == ["data.pkl"]


@pytest.mark.parametrize(("load", "make"), [
    *((functools.partial(pickle.load), make) for make in hostile.PICKLES.values()),
    *((functools.partial(torch.load, weights_only=False), make) for make in hostile.TORCH_FILES.values()),
], ids=[*hostile.PICKLES, *hostile.TORCH_FILES])  # fmt: skip
def test_control_these_files_run_code_where_nothing_is_restricted(tmp_path, load, make):
    canary, path = tmp_path / "canary", tmp_path / "data.pkl"
    path.write_bytes(make(canary))
    with contextlib.suppress(Exception), open(path, "rb") as handle:
        load(handle)
    assert canary.exists()


def test_a_refusal_names_what_is_refused(read):
    with pytest.raises(
        UnsafeFileError, match=r"refused to read .*data.pkl: it contains os\.system; expected .* again"
    ):
        read(_call("os", "system", "true"))


def test_calls_with_strange_arguments_end_cleanly(read):
    arguments = [
        (), ([],), (10**11,), ("x",), (1, 2, 3), ({},), (None, None), (b"", b""), ("O", "", 3, "K", (7,)),
    ]  # fmt: skip
    for module, name in safe_load._ADMITTED:
        for some in arguments:
            with contextlib.suppress(CogError):
                read(_call(module, name, *some))


def test_hostile_state_changes_nothing_for_the_next_file(read):
    for content in HOSTILE.values():
        with contextlib.suppress(CogError):
            read(content)
    for value in (np.arange(3), b"\xff", collections.OrderedDict(a=1), np.float32(0.5)):
        assert same(read(pickle.dumps(value, protocol=2)), value)


def test_small_files_do_not_need_much_time(read, time_limit):
    def doubled(innermost, wrap):
        value = innermost
        for _ in range(60):
            value = wrap(value)
        return value

    shared = read(pickle.dumps(doubled([1], lambda inner: [inner, inner])))
    assert shared[0] is shared[1]
    read(pickle.dumps(doubled((1,), lambda inner: (inner, inner))))
    depth = 200_000
    read(b"]" * depth + b"a" * (depth - 1) + b".")


def test_keys_of_ordinary_kinds_are_read(read):
    keys: dict = dict.fromkeys(range(9_000))
    assert read(pickle.dumps(keys)) == keys
    assert read(pickle.dumps({("a", 1): 2})) == {("a", 1): 2}
    wnids = {np.str_(f"n{k:08}"): np.array(["a.JPEG"]) for k in range(5_000)}
    assert list(read(pickle.dumps(wnids))) == list(wnids)


def test_a_file_can_be_too_large(tmp_path):
    path = tmp_path / "logs.pkl"
    path.write_bytes(pickle.dumps([1.0] * 1000))
    with pytest.raises(CogError, match="has 9,0.. bytes, expected a pickle of at most 1,000"):
        safe_load.load_pickle(path, largest=1000)


def test_archives_are_judged_by_their_directory(tmp_path):
    """A record of zeros is a thousandth of its size when compressed; torch compresses nothing."""
    path, bomb = tmp_path / "good.pth", tmp_path / "bomb.pth"
    torch.save({"X": torch.zeros(100, 100), "Y": torch.arange(100)}, path)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(UnsafeFileError, match="refused to read .*bomb.pth.*a compressed record"):
        safe_load.load_torch(bomb)
    content = path.read_bytes()
    assert safe_load.load_torch(path)["X"].shape == (100, 100)
    size = (40_000).to_bytes(4, "little")
    assert content.count(size * 2) >= 2
    path.write_bytes(content.replace(size * 2, (4_000_000).to_bytes(4, "little") * 2))
    with pytest.raises(CogError, match="more bytes than the file has|refused|not a readable"):
        safe_load.load_torch(path)


# --- broken files

_SAMPLES = [
    pickle.dumps(value, protocol=protocol)
    for protocol in (0, 2, 4, 5)
    for value in (
        VALUES["nested"], VALUES["split file"], VALUES["logs"], VALUES["objects"], VALUES["scalars"], VALUES["sets"],
        [["n01440764", "n01443537"]],
    )
]  # fmt: skip


@st.composite
def _mutated(draw, samples=_SAMPLES):
    content = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(("set", "cut", "insert", "repeat", "delete")))
        position = draw(st.integers(0, max(len(content) - 1, 0)))
        if kind == "set" and content:
            content[position] = draw(st.integers(0, 255))
        elif kind == "cut":
            del content[position:]
        elif kind == "insert":
            content[position:position] = draw(st.binary(min_size=1, max_size=9))
        elif kind == "repeat":
            content[position:position] = content[position : position + draw(st.integers(1, 40))]
        else:
            del content[position : position + draw(st.integers(1, 9))]
    return bytes(content)


def _read_or_refuse(load, path, content):
    path.write_bytes(content)
    try:
        load(path)
    except CogError as error:
        assert str(path) in str(error)
        assert "\n" not in str(error)


_mutations = functools.partial(
    settings, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)


@_mutations(max_examples=n_examples(80, 1500), deadline=2000)
@given(content=_mutated())
def test_broken_pickles_are_read_or_refused(tmp_path_factory, content):
    _read_or_refuse(safe_load.load_pickle, tmp_path_factory.getbasetemp() / "mutated.pkl", content)


def test_every_truncation_is_refused(read):
    content = pickle.dumps(VALUES["split file"])
    for length in range(len(content)):
        with pytest.raises(CogError, match="not a readable pickle|refused"):
            read(content[:length])


@pytest.mark.parametrize("content", [b"\x80\x02", b".", b"", b"\xff" * 100, b"0.", b"\x85.", b"}(K\x01u."])
def test_short_pickles_are_read_or_refused(tmp_path, content):
    _read_or_refuse(safe_load.load_pickle, tmp_path / "data.pkl", content)


@functools.cache  # storages are named by where they lie in memory: other names each time
def _torch_samples() -> list[bytes]:
    samples = []
    for data in (
        {"X": torch.randn(6, 4), "Y": torch.arange(6), "name": "tiny_net_birds_train"},
        collections.OrderedDict(weight=torch.randn(3, 3), bias=torch.zeros(3)),
    ):
        for new_format in (True, False):
            buffer = io.BytesIO()
            torch.save(data, buffer, _use_new_zipfile_serialization=new_format)
            samples.append(buffer.getvalue())
    return samples


@_mutations(max_examples=n_examples(30, 250), deadline=3000)
@given(data=st.data())
def test_broken_torch_files_are_read_or_refused(tmp_path_factory, data):
    content = data.draw(_mutated(samples=_torch_samples()))
    _read_or_refuse(safe_load.load_torch, tmp_path_factory.getbasetemp() / "mutated.pth", content)


@pytest.mark.parametrize("keep", (0.1, 0.5, 0.9, 0.999))
def test_truncated_torch_files_say_so(tmp_path, keep):
    for content in _torch_samples():
        path = tmp_path / "cut.pth"
        path.write_bytes(content[: int(keep * len(content))])
        with pytest.raises(CogError, match="is the download complete|refused"):
            safe_load.load_torch(path)


# --- what is not a file of the right kind


@pytest.mark.parametrize(
    "load", (safe_load.load_pickle, safe_load.load_torch, files.read_json, safetensors.read)
)
def test_other_kinds_of_file(tmp_path, load, time_limit):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path, message in (
        (tmp_path, "folder"),
        (tmp_path / "pipe", "not a regular file"),
        (tmp_path / "empty", "empty"),
        (tmp_path / "absent", "No such file"),
        (tmp_path / "empty" / "below", "Not a directory"),
        (tmp_path / "loop", "levels of symbolic links"),
        (tmp_path / ("x" * 300), "too long"),
        (tmp_path / "nul\0byte", "null byte"),
        (Path("/dev/zero"), "not a regular file"),
        (Path("/proc/self/mem"), "empty|Input/output error"),
    ):
        with pytest.raises(CogError, match=message):
            load(path)


def test_notes_that_are_no_files_say_nothing(tmp_path, time_limit):
    """A pipe, or a link to /dev/zero, in somebody's results."""
    for content in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        folder = tmp_path / str(len(os.listdir(tmp_path)))
        folder.mkdir()
        content(folder / FAILURE_FILE)
        assert read_state(folder, [FAILURE_FILE], complete=False).state in (
            "failed",
            "missing",
            "interrupted",
        )


def test_torch_containers_that_cannot_be_read_safely(tmp_path):
    script = tmp_path / "script.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), script)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning on the terminal would come before our one line
        with pytest.raises(CogError, match="TorchScript archive"):
            safe_load.load_torch(script)
    legacy = tmp_path / "legacy.tar"
    with tarfile.open(legacy, "w") as archive:
        for name in ("sys_info", "pickle", "tensors", "storages"):
            info = tarfile.TarInfo(name)
            info.size = 4
            archive.addfile(info, io.BytesIO(b"\x80\x02N."))
    with pytest.raises(CogError, match=r"torch 0\.1"):
        safe_load.load_torch(legacy)
    archive_path = tmp_path / "other.zip"
    with zipfile.ZipFile(archive_path, "w") as archive:
        archive.writestr("readme.txt", "no checkpoint")
    text = tmp_path / "page.ckpt"
    text.write_text("<html><body>404 Not Found</body></html>")
    for path in (archive_path, text):
        with pytest.raises(CogError, match=path.name):
            safe_load.load_torch(path)


def test_allow_list_is_for_one_call_only(tmp_path):
    path = tmp_path / "args.pth"
    torch.save({"args": argparse.Namespace(lr=0.1), "weight": torch.zeros(1)}, path)
    with pytest.raises(UnsafeFileError, match=r"argparse\.Namespace"):
        safe_load.load_torch(path)
    assert safe_load.load_torch(path, allow=[argparse.Namespace])["args"].lr == 0.1
    with pytest.raises(UnsafeFileError):
        safe_load.load_torch(path)
