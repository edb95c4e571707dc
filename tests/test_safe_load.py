"""Reading files from strangers: everything data need is read as numpy reads it, nothing else happens."""

from __future__ import annotations

import collections
import io
import os
import pickle
import signal
import subprocess
import warnings
import zipfile

import hostile
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cog import safe_load
from cog.errors import CogError, UnsafeFileError

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


def test_same_can_tell_values_apart():
    assert same([np.zeros(2)], [np.zeros(2)])
    assert not same([np.zeros(2)], [np.ones(2)])
    assert not same(np.zeros(2), np.zeros(2, dtype="f4"))
    assert not same({"a": 1}, {"a": 1.0})
    assert not same((1,), [1])


VALUES = {
    "plain": [
        1,
        -1,
        2**31,
        2**70,
        -(2**70),
        0.1,
        float("inf"),
        "",
        "é\n\\",
        b"",
        b"\x00\xff",
        None,
        True,
        False,
        1j,
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
    "objects": np.array(["a", None, 1, [2]], dtype=object),
    "object matrix": np.array([["a", "bc"], ["d", "e"]], dtype=object),
    "big-endian": [np.arange(3, dtype=">f4"), np.arange(3, dtype=">i8"), np.array(["a", "bc"]).astype(">U2")],
    "Fortran order": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "strided": np.arange(12.0).reshape(3, 4)[:, ::2],
    "empty": [np.empty((0, 3)), np.array([], dtype="U5"), np.empty((2, 0), dtype=object)],
    "0-d": [np.array(3.5), np.array("abc"), np.array(None, dtype=object)],
    "scalars": [
        np.float32(0.1),
        np.float64(1e300),
        np.int64(-1),
        np.uint8(255),
        np.bool_(True),
        np.float16(0.5),
    ],
    "text scalars": [np.str_("abc"), np.str_(""), np.bytes_(b"\xff"), np.bytes_(b"")],
    "logs": {"test/top1": [np.float64(70.5), 71.0], "lr": np.array([0.1, 0.2])},
    "split file": {
        "n01440764": {"train": np.array(["a/b.JPEG", "a/c.JPEG"]), "test": np.array(["a/d.JPEG"])}
    },
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", VALUES)
def test_equal_to_what_numpy_reads(read, name, protocol):
    content = pickle.dumps(VALUES[name], protocol=protocol)
    theirs = pickle.loads(content)
    assert same(read(content), theirs)


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
    import pickletools

    kept, positions = [], [(op.name, pos) for op, _, pos in pickletools.genops(content)]
    for (name, start), end in zip(positions, [pos for _, pos in positions[1:]] + [len(content)]):
        if name != "FRAME":
            kept.append(content[start:end])
    return b"".join(kept)


@pytest.mark.parametrize("version", (1, 2))
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_numpy_1_and_numpy_2_spellings(read, protocol, version):
    value = [np.array(["a", "b"]), np.arange(4.0), np.float32(0.5), np.array([1, None], dtype=object)]
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
    result = read(pickle.dumps(ring))
    assert result[1] is result
    mapping: dict = {}
    mapping["me"] = mapping
    result = read(pickle.dumps(mapping))
    assert result["me"] is result
    knot = np.empty(1, dtype=object)
    knot[0] = [knot]
    result = read(pickle.dumps(knot))
    assert result[0][0] is result
    pair: tuple = ([],)
    pair[0].append(pair)
    result = read(pickle.dumps(pair))
    assert result[0][0] is result


def test_arrays_are_independent_of_the_file(read, tmp_path):
    result = read(pickle.dumps(np.arange(3)))
    (tmp_path / "data.pkl").write_bytes(b"\xff" * 300)
    assert result.tolist() == [0, 1, 2]


# --- hostile files


@pytest.mark.parametrize("name", hostile.PICKLES)
def test_pickles_do_not_run_code(read, tmp_path, name):
    canary = tmp_path / "canary"
    content = hostile.PICKLES[name](canary)
    with pytest.raises(UnsafeFileError, match="refused to read .*data.pkl.*Get the file from its authors"):
        read(content)
    assert not canary.exists()
    try:  # the control: the same bytes do run code where nothing is restricted
        pickle.loads(content)
    except Exception:
        pass
    assert canary.exists()


@pytest.mark.parametrize("name", hostile.TORCH_FILES)
def test_torch_files_do_not_run_code(tmp_path, name):
    import torch

    canary, path = tmp_path / "canary", tmp_path / "model.ckpt"
    path.write_bytes(hostile.TORCH_FILES[name](canary))
    with pytest.raises(UnsafeFileError, match="refused to read .*model.ckpt"):
        safe_load.load_torch(path)
    assert not canary.exists()
    try:
        torch.load(path, weights_only=False)
    except Exception:
        pass
    assert canary.exists()


def test_the_forbidden_name_is_in_the_message(read, tmp_path):
    with pytest.raises(UnsafeFileError, match=r"contains posix\.system|contains nt\.system"):
        read(hostile.PICKLES["os.system"](tmp_path / "canary"))
    path = tmp_path / "model.ckpt"
    path.write_bytes(hostile.TORCH_FILES["zip container"](tmp_path / "canary"))
    with pytest.raises(UnsafeFileError, match="system"):
        safe_load.load_torch(path)


def _call(module: str, name: str, *arguments) -> bytes:
    """A pickle that calls ``module.name(*arguments)``."""
    body = pickle.dumps(arguments, protocol=2)[2:-1]
    return b"\x80\x02c" + f"{module}\n{name}\n".encode() + body + b"R."


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("builtins", "__import__"),
        ("builtins", "open"),
        ("os", "system"),
        ("subprocess", "Popen"),
        ("numpy", "load"),
        ("numpy", "dtype.__class__"),
        ("numpy.core.multiarray", "_reconstruct.__globals__"),
        ("numpy._core.multiarray", "fromfile"),
        ("numpy", "memmap"),
        ("pickle", "loads"),
        ("torch", "load"),
        ("torch.storage", "_load_from_bytes"),
        ("collections", "namedtuple"),
        ("functools", "partial"),
        ("cog.safe_pickle", "_dtype"),
        ("copyreg", "_reconstructor"),
        ("operator", "attrgetter"),
    ],
)
def test_other_names_are_refused(read, module, name):
    with pytest.raises(UnsafeFileError, match="refused"):
        read(_call(module, name, "1"))


def test_calls_with_strange_arguments_end_cleanly(read):
    from cog import safe_pickle

    arguments = [
        (),
        ([],),
        (10**11,),
        ("x",),
        (1, 2, 3),
        ({},),
        (None, None),
        (b"", b""),
        ("O", "", 3, "K", (7,)),
    ]
    for module, name in safe_pickle._ADMITTED:
        for given_ in arguments:
            try:
                read(_call(module, name, *given_))
            except CogError:
                pass


def test_names_are_not_data(read):
    for content in (
        b"\x80\x02cnumpy\nndarray\n.",
        b"\x80\x02]cnumpy\nndarray\na.",
        b"\x80\x02}X\x01\x00\x00\x00acnumpy\ndtype\ns.",
        b"\x80\x02cnumpy\nndarray\n\x85.",
        b"\x80\x02](cbuiltins\nint\n\x85\x85e.",
        b"\x80\x02cnumpy\ndtype\nX\x02\x00\x00\x00f4\x85R.",
    ):
        with pytest.raises(UnsafeFileError):
            read(content)


def test_attributes_cannot_be_set(read):
    """BUILD on an admitted name would change what that name means in the next file."""
    for module, name in (("numpy", "dtype"), ("_codecs", "encode"), ("builtins", "set")):
        state = pickle.dumps((None, {"__defaults__": ("rot13",)}), protocol=2)[2:-1]
        with pytest.raises(CogError):
            read(b"\x80\x02c" + f"{module}\n{name}\n".encode() + state + b"b.")
    assert same(read(pickle.dumps(np.arange(3), protocol=2)), np.arange(3))


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04]r\xff\xff\xff\x7f.",  # memo index 2 ** 31: 16 GB as a table
        b"]p4000000000\n.",
        b"\x80\x04\x8e" + (2**40).to_bytes(8, "little") + b"abc.",  # BINBYTES8 of 1 TB
        b"\x80\x05\x96" + (2**36).to_bytes(8, "little") + b"abc.",  # BYTEARRAY8 of 64 GB
        b"\x80\x04\x8d" + (2**62).to_bytes(8, "little") + b"abc.",
        b"\x80\x04\x95" + (2**63 - 1).to_bytes(8, "little") + b"]",
        _call("builtins", "bytearray", 10**11),
        _call("builtins", "bytes", 10**11),
        b"I" + b"9" * 100_000 + b"\n.",
    ],
    ids=lambda content: repr(content[:12]),
)
def test_small_files_do_not_need_much_memory(read, content):
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CogError):
        # the two with a valid end are read; they must not allocate either
        result = read(content)
        assert result == []
        raise CogError("read")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


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


def test_small_files_do_not_need_much_time(read, time_limit):
    def doubled(innermost, wrap):
        value = innermost
        for _ in range(60):
            value = wrap(value)
        return value

    shared = read(pickle.dumps(doubled([1], lambda inner: [inner, inner])))
    assert shared[0] is shared[1]
    read(pickle.dumps(doubled((1,), lambda inner: (inner, inner))))

    def pair(inner):
        array = np.empty(2, dtype=object)
        array[:] = [inner, inner]
        return array

    read(pickle.dumps(doubled([1], pair)))
    depth = 200_000
    read(b"]" * depth + b"a" * (depth - 1) + b".")


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02}(K\x01\x85" + b"2\x86" * 60 + b"K\x01u.",  # {t: 1} where hashing t visits 2 ** 60 tuples
        b"\x80\x04\x8f(K\x01\x85" + b"2\x86" * 60 + b"\x90.",  # {t}
        b"\x80\x04(K\x01\x85" + b"2\x86" * 60 + b"\x91.",  # frozenset({t})
    ],
)
def test_keys_are_cheap_to_hash(tmp_path, python, repository, content):
    # in a process of its own: hashing cannot be interrupted
    (tmp_path / "bomb.pkl").write_bytes(content)
    code = (
        "import sys; from cog import cli, safe_load; cli.run(lambda argv: safe_load.load_pickle(sys.argv[1]))"
    )
    process = subprocess.run(
        [python, "-c", code, str(tmp_path / "bomb.pkl")],
        cwd=repository, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert process.returncode == 2
    assert "dict key or set element" in process.stderr


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

    def put(value):
        return pickle.dumps(value, protocol=4)[2:-1].replace(b"\x94", b"")

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


@settings(
    max_examples=1500, deadline=2000, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)
@given(content=_mutated())
@example(content=b"\x80\x02")
@example(content=b".")
@example(content=b"")
@example(content=b"\xff" * 100)
@example(content=b"0.")
@example(content=b"\x85.")
@example(content=b"}(K\x01u.")
def test_broken_pickles_are_read_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "mutated.pkl"
    path.write_bytes(content)
    try:
        safe_load.load_pickle(path)
    except CogError as error:
        assert str(path) in str(error)
        assert "\n" not in str(error)


def test_every_truncation_is_refused(read):
    content = pickle.dumps(VALUES["split file"])
    for length in range(len(content)):
        with pytest.raises(CogError, match="not a readable pickle|refused"):
            read(content[:length])


def _torch_samples() -> list[bytes]:
    import torch

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


@settings(
    max_examples=250, deadline=3000, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)
@given(data=st.data())
def test_broken_torch_files_are_read_or_refused(tmp_path_factory, data):
    content = data.draw(_mutated(samples=_torch_samples()))
    path = tmp_path_factory.getbasetemp() / "mutated.pth"
    path.write_bytes(content)
    try:
        safe_load.load_torch(path)
    except CogError as error:
        assert str(path) in str(error)
        assert "\n" not in str(error)


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
    import tarfile

    import torch

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
    import argparse

    import torch

    path = tmp_path / "args.pth"
    torch.save({"args": argparse.Namespace(lr=0.1), "weight": torch.zeros(1)}, path)
    with pytest.raises(UnsafeFileError, match=r"argparse\.Namespace"):
        safe_load.load_torch(path)
    assert safe_load.load_torch(path, allow=[argparse.Namespace])["args"].lr == 0.1
    with pytest.raises(UnsafeFileError):
        safe_load.load_torch(path)


def test_no_torch_for_pickles(tmp_path, python, repository):
    code = "import sys, cog.safe_load; sys.exit('torch' in sys.modules)"
    assert subprocess.run([python, "-c", code], check=False, cwd=repository).returncode == 0
