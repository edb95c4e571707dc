"""Reading files from strangers: everything data need is read as numpy reads it, nothing else happens."""

import argparse
import collections
import copyreg
import io
import os
import pickle
import signal
import tracemalloc
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
from cog.runtime import files, safe_load


@pytest.fixture(autouse=True)
def time_limit():
    """End a test with an error after a minute."""
    previous = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("took longer than a minute"))
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


def form(value):
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tolist()
    if isinstance(value, dict):
        return [(form(key), form(entry)) for key, entry in value.items()]
    if isinstance(value, list | tuple):
        return type(value).__name__, [form(entry) for entry in value]
    value = value.item() if isinstance(value, np.generic) else value
    return type(value).__name__, value


TYPES = ("i1", "u4", "i8", "f2", "f4", "f8", "c16", "?")
VALUES = {
    "plain": [1, -1, 2**70, 0.1, float("inf"), "é\n\\", b"", b"\x00\xff", None, True],
    "nested": {"a": [(), (1, 2, 3, 4)], "b": {"c": [{}, []]}, ("t", 1): "tuple key"},
    "sets": [set(), {1, "a"}, frozenset({2, 3}), {(1, 2)}],
    "dicts": [collections.OrderedDict(b=1, a=2), collections.defaultdict(list, {"x": [1]})],
    "long": [list(range(3000)), dict.fromkeys(range(3000), "x"), "x" * 100_000],
    "text arrays": [np.array(["n01440764/a.JPEG", "é", ""]), np.array([b"abc", b"\xff"]), np.array("abc")],
    "numbers": [np.arange(6).reshape(2, 3).astype(t) for t in TYPES],
    "objects": [np.array(["a", "bc"], dtype=object), np.array([["a", "bc"], ["d", "e"]], dtype=object)],
    "layouts": [np.asfortranarray(np.ones((2, 3))), np.arange(12.0)[::2], np.empty((0, 3))],
    "scalars": [np.float32(0.1), np.int64(-1), np.bool_(True), np.str_("abc"), np.bytes_(b"\xff")],
}


@pytest.mark.parametrize("name", VALUES)
def test_pickles_of_data_are_equal_to_what_numpy_reads(name):
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        content = pickle.dumps(VALUES[name], protocol=protocol)
        for core in (b"numpy.core.", b"numpy._core."):  # numpy 1 and 2
            other = content.replace(b"cnumpy._core.", b"c" + core) if protocol < 4 else content
            assert form(safe_load.Reader(other).load()) == form(pickle.loads(content)), protocol


def test_strings_and_arrays_of_python_2():
    # {'a': numpy.array([1.5, -2.]) } as Python 2.7 with numpy 1.16 writes it with protocol 2.
    content = (
        b"\x80\x02}q\x01U\x01aq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85"
        b"U\x01b\x87Rq\x05(K\x01K\x02\x85cnumpy\ndtype\nq\x06U\x02f8K\x00K\x01\x87Rq\x07(K\x03U\x01<NNNJ\xff"
        b"\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x10\x00\x00\x00\x00\x00\x00\xf8?\x00\x00\x00\x00\x00\x00"
        b"\x00\xc0tbs."
    )
    assert form(safe_load.Reader(content).load()) == form({"a": np.array([1.5, -2.0])})


READERS = {
    "pickle": (safe_load.load_pickle, {**hostile.PICKLES, **hostile.BYTES}),
    "torch": (safe_load.load_torch, hostile.TORCH_FILES),
    "safetensors": (safe_load.load_safetensors, hostile.SAFETENSORS),
    "json": (files.read_object, {"deep": b"[" * 200_000, "100,000 digits": b"9" * 100_000}),
}
CASES = [(reader, name) for reader, (_, contents) in READERS.items() for name in contents]


@pytest.mark.parametrize(("reader", "name"), CASES, ids=[" ".join(case) for case in CASES])
def test_nothing_in_a_file_runs_or_writes(tmp_path, monkeypatch, reader, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(copyreg, "_inverted_registry", {7: ("os", "system")})
    monkeypatch.setattr(copyreg, "_extension_cache", {9: os.system})
    (load, contents), path = READERS[reader], tmp_path / "data.pkl"
    content = contents[name]
    path.write_bytes(content(Path("CANARY")) if callable(content) else content)
    tracemalloc.start()
    with pytest.raises(CogError) as error:
        load(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 28
    tracemalloc.stop()
    assert str(path) in str(error.value) and "\n" not in str(error.value)
    assert os.listdir(tmp_path) == ["data.pkl"]
    for value in (np.arange(3), b"\xff", collections.OrderedDict(a=1), np.float32(0.5), {1}):
        assert form(safe_load.Reader(pickle.dumps(value, protocol=2)).load()) == form(value)


def test_a_refusal_names_what_is_refused_and_a_large_file_its_size(tmp_path):
    path = tmp_path / "data.pkl"
    path.write_bytes(hostile.call("os:system", "true"))
    with pytest.raises(UnsafeFileError, match=r"refused to read .*data.pkl: .*os\.system"):
        safe_load.load_pickle(path)
    torch.save({"place": tmp_path}, path)
    with pytest.raises(UnsafeFileError, match=r"pathlib\..*PosixPath"):
        safe_load.load_torch(path)
    beside = {"args": argparse.Namespace(lr=0.1), "top1": np.float64(1.5), "bytes": np.array([b"\xff"])}
    torch.save(beside, path)
    assert not vars(safe_load.load_torch(path)["args"]), "what is beside tensors is not read"
    path.write_bytes(pickle.dumps([1.0] * 1000))
    with pytest.raises(CogError, match="has 9,0.. bytes, expected at most 1,000"):
        safe_load.load_pickle(path, largest=1000)


def test_zip_archives_are_judged_by_their_directory(tmp_path):
    path, bomb = tmp_path / "good.pth", tmp_path / "bomb.pth"
    torch.save({"X": torch.zeros(100, 100), "Y": torch.arange(100)}, path)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(UnsafeFileError, match=r"refused to read .*bomb.pth.*a compressed record"):
        safe_load.load_torch(bomb)
    assert safe_load.load_torch(path)["X"].shape == (100, 100)
    bomb.write_bytes(path.read_bytes() * 2)  # torch finds the first directory, and zipfile the second
    with pytest.raises(UnsafeFileError, match="more than its directory says"):
        safe_load.load_torch(bomb)
    size = (40_000).to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(size * 2, (4_000_000).to_bytes(4, "little") * 2))
    with pytest.raises(CogError, match="more bytes than the file has|refused|not a readable"):
        safe_load.load_torch(path)


@settings(
    max_examples=n_examples(50, 400), derandomize=True, deadline=None, suppress_health_check=[*HealthCheck]
)
@given(data=st.data())
def test_broken_files_are_read_or_refused_in_one_line(tmp_path_factory, data):
    buffer = io.BytesIO()
    torch.save({"X": torch.ones(6, 4), "name": "a"}, buffer)
    values = st.sampled_from([*VALUES.values()])
    pickles = st.builds(pickle.dumps, values, st.integers(0, 5)).map(lambda content: ("pickle", content))
    kind, whole = data.draw(st.one_of(pickles, st.just(("torch", buffer.getvalue()))))
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 6))):
        position = data.draw(st.integers(0, max(len(content) - 1, 0)))
        content[position : position + data.draw(st.integers(0, 40))] = data.draw(st.binary(max_size=9))
    path = tmp_path_factory.getbasetemp() / "mutated"
    path.write_bytes(content)
    try:
        READERS[kind][0](path)
    except CogError as error:
        assert str(path) in str(error) and "\n" not in str(error)


@pytest.mark.parametrize("reader", READERS)
def test_pipes_folders_and_devices_are_refused_at_once(tmp_path, reader):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path, message in (
        (tmp_path, "not a regular file"),
        (tmp_path / "pipe", "not a regular file"),
        (tmp_path / "absent", "No such file"),
        (tmp_path / "loop", "levels of symbolic links"),
        (tmp_path / "nul\0byte", "null byte"),
        (Path("/dev/zero"), "not a regular file"),
        (Path("/proc/self/mem"), "empty|Input/output error|not a readable"),
    ):
        with pytest.raises(CogError, match=message):
            READERS[reader][0](path)
