"""Reading files from strangers: everything data need is read as numpy reads it, nothing else happens."""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import io
import os
import pickle
import pickletools
import re
import select
import signal
import struct
import subprocess
import tarfile
import time
import warnings
import zipfile

import hostile
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from marks import first_quick, n_examples

from cog.errors import CogError, UnsafeFileError
from cog.runtime import safe_load, safe_pickle

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


@pytest.mark.parametrize("mapped", [False, True], ids=["read", "mapped"])
@pytest.mark.parametrize("name", VALUES)
def test_equal_to_what_numpy_reads(read, monkeypatch, name, mapped):
    if mapped:
        monkeypatch.setattr(safe_load, "_SMALL", 0)
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
def test_the_end_of_lists_of_floats(read, n):
    letters = [struct.unpack(">d", text * 8)[0] for text in (b"G", b"e", b"(", b".")]
    for others in ([], [1], ["e"]):
        for items in ([*letters * n, *others], [*others, *letters * n], ([0.5] * n, letters, others)):
            content = pickle.dumps({"a": items, "b": items[:3]})
            assert safe_pickle.check(content + b"more") == len(content)
            assert read(content) == pickle.loads(content)
            with pytest.raises(CogError, match="not a readable pickle"):
                read(content[: len(content) // 2])


def test_beginnings_of_lists_of_floats_take_linear_time(read):
    start = time.process_time()
    assert read(b"]" + (b"(G" + bytes(8) + b"1") * 60_000 + b".") == []
    assert time.process_time() - start < 2


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


@pytest.mark.parametrize(
    ("load", "unrestricted", "advice", "make"),
    [
        *((safe_load.load_pickle, pickle.load, "Get the file from its authors", make)
          for make in hostile.PICKLES.values()),
        *((safe_load.load_torch, functools.partial(torch.load, weights_only=False), "", make)
          for make in hostile.TORCH_FILES.values()),
    ],
    ids=[*hostile.PICKLES, *hostile.TORCH_FILES],
)  # fmt: skip
def test_files_do_not_run_code(tmp_path, load, unrestricted, advice, make):
    canary, path = tmp_path / "canary", tmp_path / "data.pkl"
    path.write_bytes(make(canary))
    with pytest.raises(UnsafeFileError, match=f"refused to read .*data.pkl.*{advice}"):
        load(path)
    assert not canary.exists()
    # The control: the same bytes do run code where nothing is restricted.
    with contextlib.suppress(Exception), open(path, "rb") as handle:
        unrestricted(handle)
    assert canary.exists()


def _call(module: str, name: str, *arguments) -> bytes:
    """A pickle that calls ``module.name(*arguments)``."""
    body = pickle.dumps(arguments, protocol=2)[2:-1]
    return b"\x80\x02c" + f"{module}\n{name}\n".encode() + body + b"R."


FORBIDDEN = """
builtins:eval builtins:getattr builtins:__import__ builtins:open os:system subprocess:Popen numpy:load
numpy:dtype.__class__ numpy.core.multiarray:_reconstruct.__globals__ numpy._core.multiarray:fromfile
numpy:memmap pickle:loads torch:load torch.storage:_load_from_bytes collections:namedtuple
functools:partial cog.runtime.safe_pickle:_dtype cog.runtime.safe_pickle:Sealed builtins:type
builtins:object numpy:frombuffer copyreg:add_extension copy_reg:_reconstructor copyreg:_reconstructor
operator:attrgetter
"""


@pytest.mark.parametrize("name", FORBIDDEN.split())
def test_other_names_are_refused(read, name):
    with pytest.raises(UnsafeFileError, match=f"refused.*contains {re.escape(name.replace(':', '.'))}"):
        read(_call(*name.split(":"), "1"))


def test_calls_with_strange_arguments_end_cleanly(read):
    arguments = [
        (), ([],), (10**11,), ("x",), (1, 2, 3), ({},), (None, None), (b"", b""), ("O", "", 3, "K", (7,)),
    ]  # fmt: skip
    for module, name in safe_pickle._ADMITTED:
        for some in arguments:
            with contextlib.suppress(CogError):
                read(_call(module, name, *some))


def test_names_in_the_data_are_inert(read):
    for content in (
        b"\x80\x02cnumpy\nndarray\n.",
        b"\x80\x02]cnumpy\nndarray\na.",
        b"\x80\x02}X\x01\x00\x00\x00acnumpy\ndtype\ns.",
        b"\x80\x02cnumpy\nndarray\n\x85.",
        b"\x80\x02](cbuiltins\nint\n\x85\x85e.",
        b"\x80\x02cnumpy\ndtype\nX\x02\x00\x00\x00f4\x85R.",
    ):
        value = read(content)
        while isinstance(value, list | tuple | dict):
            value = next(iter(value.values() if isinstance(value, dict) else value))
        assert isinstance(value, safe_pickle.Sealed)


def test_attributes_cannot_be_set(read):
    """BUILD on an admitted name would change what that name means in the next file."""
    for module, name in (("numpy", "dtype"), ("_codecs", "encode"), ("builtins", "set")):
        state = pickle.dumps((None, {"__defaults__": ("rot13",)}), protocol=2)[2:-1]
        with pytest.raises(CogError):
            read(b"\x80\x02c" + f"{module}\n{name}\n".encode() + state + b"b.")
    assert same(read(pickle.dumps(np.arange(3), protocol=2)), np.arange(3))


@pytest.fixture
def time_limit():
    """End the test with an error after 10 seconds."""

    def stop(*_):
        raise AssertionError("took longer than 10 seconds")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


@pytest.mark.slow
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


#: Reads the files named on standard input, each in a process of its own: its memory is measured, and hashing cannot be
#: interrupted. Prints exit codes; what a reading prints lies beside the file.
READER = """
import os, resource, sys, time
from cog.runtime import cli, safe_load

def read(argv):
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        safe_load.load_pickle(argv[0])
    finally:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(time.process_time() - start, peak // 1024)

for line in sys.stdin:
    path = line.rstrip("\\n")
    child = os.fork()
    if not child:
        for number, end in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{path}.{end}", os.O_WRONLY | os.O_CREAT), number)
        cli.run(read, [path])
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def load_apart(python, repository):
    """Return a function that loads a pickle in another process; it returns exit code, output and errors."""
    with subprocess.Popen(
        [python, "-c", READER], cwd=repository, text=True, start_new_session=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as reader:  # fmt: skip

        def load(path):
            reader.stdin.write(f"{path}\n")
            reader.stdin.flush()
            if not select.select([reader.stdout], [], [], 60)[0]:
                os.killpg(reader.pid, signal.SIGKILL)
                pytest.fail("it did not end within a minute")
            code = int(reader.stdout.readline())
            return code, *(path.with_name(f"{path.name}.{end}").read_text() for end in ("out", "err"))

        yield load
        reader.stdin.close()


@pytest.mark.parametrize(
    "state",
    [
        (1, (2**62, 2**62), "f8", False, b""),
        (1, (4,), "f8", False, b"\0" * 31),
        (1, (-1,), "f8", False, b"\0" * 8),
        (1, (1.5,), "f8", False, b"\0" * 8),
        (1, 1, "f8", False, b"\0" * 8),
        (1, (3,), "O", False, [1, 2]),
        (1, (8,), "O", False, b"\0" * 64),  # would be read as eight pointers
        (1, (1,), "U999999999", False, b"abcd"),
        (1, (2,), "V8", False, b"\0" * 16),
        (1, (2,), "M8[s]", False, b"\0" * 16),
        (1, (1,), "f8,O", False, b"\0" * 16),
    ],
    ids=str,
)
def test_arrays_that_lie_about_their_content(read, state):
    version, shape, dtype, order, content = state

    def unframed(value):
        return _unframed(pickle.dumps(value, protocol=3))[2:-1]

    body = (
        b"\x80\x04cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n"
        + unframed((0,)) + unframed(b"b") + b"tR("
        + unframed(version) + unframed(shape)
        + b"cnumpy\ndtype\n" + unframed((dtype, False, True)) + b"R"
        + unframed(order) + unframed(content) + b"tb."
    )  # fmt: skip
    with pytest.raises(CogError):
        read(body)


def _text(value: str) -> bytes:
    return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()


def _colliding(wrap, n: int = 60_000) -> bytes:
    """A dict of ``n`` keys whose hashes are equal: Python's integers are hashed modulo 2 ** 61 - 1."""
    number = 2**61 - 1
    keys = b"".join(
        wrap(b"\x8a\x0b" + (k * number).to_bytes(11, "little", signed=True)) + b"N" for k in range(n)
    )
    return b"\x80\x02}(" + keys + b"u."


def _floats_as_keys() -> bytes:
    return (
        b"\x80\x02}(" + b"".join(b"G" + struct.pack(">d", k * 2.0**61) + b"N" for k in range(60_000)) + b"u."
    )


_ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR"
_OBJECTS = b"(K\x01K\x01\x85cnumpy\ndtype\n(X\x01\x00\x00\x00OK\x00K\x01tR\x89"
_NESTED_TUPLES = b"K\x01\x85" + b"2\x86" * 60
_STATE = b"N}X\x05\x00\x00\x00valueX\x05\x00\x00\x00rot13s\x86"  # (None, {"value": "rot13"})

#: Files that are refused in one line, soon and with little memory.
HOSTILE = {
    # Hashing the key would visit 2 ** 60 tuples.
    "nested tuples as a key": b"\x80\x02}(" + _NESTED_TUPLES + b"K\x01u.",
    "nested tuples in a set": b"\x80\x04\x8f(" + _NESTED_TUPLES + b"\x90.",
    "nested tuples in a frozenset": b"\x80\x04(" + _NESTED_TUPLES + b"\x91.",
    "bytes beyond the file": b"\x80\x04\x8e" + (2**40).to_bytes(8, "little") + b"abc.",
    "bytearray beyond the file": b"\x80\x05\x96" + (2**36).to_bytes(8, "little") + b"abc.",
    "text beyond the file": b"\x80\x04\x8d" + (2**62).to_bytes(8, "little") + b"abc.",
    "frame beyond the file": b"\x80\x04\x95" + (2**63 - 1).to_bytes(8, "little") + b"]",
    "bytearray of a length": _call("builtins", "bytearray", 10**11),
    "bytes of a length": _call("builtins", "bytes", 10**11),
    "memo entry 2 ** 31": b"\x80\x04]r\xff\xff\xff\x7f.",
    "memo entry 4,000,000,000": b"]p4000000000\n.",
    "number of 100,000 digits": b"I" + b"9" * 100_000 + b"\n.",
    "extension registry": b"\x80\x02\x82\x01.",
    "extension registry, 2 bytes": b"\x80\x02\x83\x01\x00.",
    "extension registry, 4 bytes": b"\x80\x02\x84\x01\x00\x00\x00.",
    "copyreg": b"\x80\x02ccopyreg\n_reconstructor\n(ccollections\nOrderedDict\nc__builtin__\nobject\nNtR.",
    "copyreg, adding an extension": b"\x80\x02ccopyreg\nadd_extension\n("
    + _text("os") + _text("system") + b"K\x01tR.",
    "keyword arguments": b"\x80\x04ccollections\nOrderedDict\n)}\x92.",
    "out of band buffer": b"\x80\x05\x97.",
    "persistent id": b"\x80\x02K\x01Q.",
    "persistent id, text": b"P1\n.",
    "state of a function": b"\x80\x02c_codecs\nencode\n" + _STATE + b"b.",
    "state of a name": b"\x80\x02cnumpy\nndarray\n" + _STATE + b"b.",
    "state of a made dict": b"\x80\x02ccollections\nOrderedDict\n)R" + _STATE + b"b.",
    "state of a list": b"\x80\x02]" + _STATE + b"b.",
    "state of an array, twice": b"\x80\x02" + pickle.dumps(np.arange(3), protocol=2)[2:-1] + _STATE + b"b.",
    "items of an array": pickle.dumps(np.arange(3), protocol=2)[:-1] + b"K\x00K\x01s.",
    "array of objects": b"\x80\x03" + _ARRAY + _OBJECTS + b"]K\x01atb.",
    "array of itself": b"\x80\x03" + _ARRAY + b"q\x00" + _OBJECTS + b"]h\x00atb.",
    "scalar that is an object": b"\x80\x02cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n("
    + _text("O") + b"K\x00K\x01tR]tR.",
    "integers as keys": _colliding(lambda key: key),
    "tuples as keys": _colliding(lambda key: key + b"\x85"),
    "nested tuples as keys": _colliding(lambda key: key + b"\x85\x85", 1),
    "floats as keys": _floats_as_keys(),
    "integers in a set": b"\x80\x04\x8f" + _colliding(lambda key: key)[3:-2].replace(b"N", b"") + b"\x90.",
    "integers in a set that is called for": b"\x80\x02c__builtin__\nset\n](" + b"".join(
        b"\x8a\x0b" + (k * (2**61 - 1)).to_bytes(11, "little", signed=True) for k in range(60_000)
    ) + b"e\x85R.",
    "number of a million digits": b"L" + b"9" * 1_000_000 + b"L\n.",
    "number of a million bytes": b"\x80\x02\x8b" + (1_000_000).to_bytes(4, "little") + b"\x7f" * 1_000_000 + b".",
    "ten million empty lists": b"\x80\x02](" + b"]" * 10_000_000 + b"e.",
    "ten million memo entries": b"\x80\x04](N" + b"\x94" * 10_000_000 + b"e.",
    "the same text a million times": b"\x80\x02(" + _text("x" * 1_000_000) + b"q\x000" + b"".join(
        [b"](" + b"c_codecs\nencode\nh\x00X\x06\x00\x00\x00latin1\x86R" * 5_000 + b"e."]
    ),
    "the same list made ten thousand times": b"\x80\x02](" + b"K\x01" * 100_000 + b"eq\x00c__builtin__\nlist\nq\x01"
    + b"](" + b"h\x01h\x00\x85R" * 10_000 + b"e.",
}  # fmt: skip


@pytest.mark.parametrize("name", first_quick(24, HOSTILE))
def test_hostile_files_end_soon_in_one_line(tmp_path, load_apart, name):
    path = tmp_path / "data.pkl"
    path.write_bytes(HOSTILE[name])
    code, output, errors = load_apart(path)
    assert code == 2 and len(errors.splitlines()) == 1, errors[-400:]
    if "nested tuples" in name:
        assert "dict key or set element" in errors
    seconds, megabytes = map(float, output.split())
    assert seconds < 5
    assert megabytes < 300 + len(HOSTILE[name]) / 2**20


def test_hostile_state_changes_nothing_for_the_next_file(read):
    for name, content in HOSTILE.items():
        if name.startswith(("state", "copyreg", "items", "extension")):
            with pytest.raises(CogError):
                read(content)
    assert not pickle._extension_registry  # type: ignore[attr-defined]
    for value in (np.arange(3), b"\xff", collections.OrderedDict(a=1), np.float32(0.5)):
        assert same(read(pickle.dumps(value, protocol=2)), value)


def test_keys_in_ordinary_numbers_are_read(read):
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


@pytest.mark.parametrize("new_format", [True, False])
def test_colliding_keys_in_torch_files(tmp_path, time_limit, new_format):
    path = tmp_path / "X_Y.pth"
    torch.save({"name": "x"}, path, _use_new_zipfile_serialization=new_format)
    keys = _colliding(lambda key: key)[:-1]
    content = path.read_bytes()
    if new_format:
        with zipfile.ZipFile(path) as old:
            records = {name: old.read(name) for name in old.namelist()}
        with zipfile.ZipFile(path, "w") as new:
            for name, record in records.items():
                new.writestr(name, keys + b"." if name.endswith("data.pkl") else record)
    else:
        data = pickle.dumps({"name": "x"}, protocol=2)
        assert data in content
        path.write_bytes(content.replace(data, keys + b"."))
    with pytest.raises(UnsafeFileError, match="keys that are not text"):
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


@pytest.mark.parametrize("load", (safe_load.load_pickle, safe_load.load_torch))
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
        ("/dev/zero", "not a regular file"),
        ("/proc/self/mem", "empty"),
    ):
        with pytest.raises(CogError, match=message):
            load(path)


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
