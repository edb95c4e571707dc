"""The quick reader of logs.pkl agrees with the careful one, and leaves to it what it does not know."""

from __future__ import annotations

import io
import math
import os
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from result_folders import make_logs

from cog import logs_file, safe_load, safe_pickle
from cog.errors import CogError

LOGS = st.dictionaries(st.text(max_size=300), st.lists(st.floats(), max_size=30), max_size=8)


def same(one, other):
    """Whether two dicts of lists of floats have the same keys in the same order, and the same bits."""
    return list(one) == list(other) and all(
        [math.copysign(1, x) for x in one[key]] == [math.copysign(1, x) for x in other[key]]
        and all(x == y or (x != x and y != y) for x, y in zip(one[key], other[key], strict=True))
        for key in one
    )


@settings(deadline=None)
@given(LOGS, st.integers(2, pickle.HIGHEST_PROTOCOL))
def test_equals_pickle(logs, protocol):
    read = logs_file.parse(pickle.dumps(logs, protocol=protocol))
    if logs:
        assert read is not None and same(read, logs)
    else:
        assert read == {}


def test_takes_the_logs_of_both_toolkits_itself():
    for n_epochs in (1, 2, 100, 999, 1000, 1001, 2500):
        logs = make_logs(71.25, n_epochs=n_epochs)
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            data = pickle.dumps(logs, protocol=protocol)
            read = logs_file.parse(data)
            if read is None:
                # Long pickles are cut into frames at places of their own; those may go to the interpreter.
                assert len(data) > 60_000
            else:
                assert read == logs


@settings(deadline=None)
@given(LOGS, st.integers(2, pickle.HIGHEST_PROTOCOL), st.data())
def test_a_damaged_file_is_never_read_differently(logs, protocol, data):
    content = bytearray(pickle.dumps(logs, protocol=protocol))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(content) - 1))
        match data.draw(st.sampled_from(["change", "cut", "insert", "remove"])):
            case "change":
                content[position] = data.draw(st.integers(0, 255))
            case "cut":
                del content[position + 1 :]
            case "insert":
                content.insert(position, data.draw(st.sampled_from(list(b"().aesu}]Gq\x94\x95\x80X\x8c"))))
            case "remove":
                del content[position]
        if not content:
            content = bytearray(b".")
    read = logs_file.parse(bytes(content))
    if read is not None:
        assert same(read, safe_pickle.load(io.BytesIO(bytes(content))))


def test_marks_and_their_ends_belong_together():
    many = pickle.dumps({"a": [1.0], "b": [2.0, 3.0]}, protocol=4)
    one = pickle.dumps({"a": [1.0]}, protocol=4)
    assert many.endswith(b"u.") and one.endswith(b"s.")
    for data in (many[:-2] + b"s.", one[:-2] + b"u.", many[:-1], one + b"", many[:-2] + b".", many + b"x"):
        if data in (one, many + b"x"):
            assert logs_file.parse(data) is not None, "what follows the end is not looked at"
        else:
            assert logs_file.parse(data) is None


@pytest.mark.parametrize(
    "value",
    [None, 3, [1.0], {"a": 1.0}, {"a": [1]}, {"a": ["x"]}, {"a": [[1.0]]}, {1: [1.0]}, {"a": [1.0, True]}],
)
def test_other_contents_go_to_the_interpreter(tmp_path, value):
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(value, protocol=protocol)
        assert logs_file.parse(data) is None
        (tmp_path / "logs.pkl").write_bytes(data)
        assert logs_file.load(tmp_path / "logs.pkl") == value


def test_errors_are_those_of_the_interpreter(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "half").write_bytes(pickle.dumps(make_logs())[:100])
    (tmp_path / "evil").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "empty", "half", "evil", "pipe", "absent", "a\0b"):
        path = f"{tmp_path}/{name}"
        with pytest.raises(CogError) as expected:
            safe_load.load_pickle(path)
        with pytest.raises(CogError) as found:
            logs_file.load(path)
        assert str(found.value) == str(expected.value)
