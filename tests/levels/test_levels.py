"""The levels file, and the cut of a ranking."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cog.data import level_files
from cog.errors import CogError, UnsafeFileError
from cog.levels import build

A, B, C = "n00000001", "n00000002", "n00000003"


@pytest.mark.parametrize("levels", [[[A, B], [C]], [[A], [A]], [np.array([A, B]), (C,)]])
def test_levels_are_written_as_plain_lists_of_strings(tmp_path, levels):
    path, expected = tmp_path / "levels.pkl", [list(map(str, level)) for level in levels]
    level_files.write_levels(path, levels)
    assert level_files.read_levels(path) == expected
    plain = pickle.loads(path.read_bytes())
    assert plain == expected and {type(wnid) for level in plain for wnid in level} == {str}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([], "no list of levels"),
        ("n00000001", "no list of levels"),
        ([[A], []], "level 2 has none"),
        ([A, B], "level 1 has none"),
        ([[A, "dog"]], "level 1 has 'dog'"),
        ([[A, 7]], "level 1 has 7"),
        ([[A, B, A]], f"level 1 has '{A}'"),
    ],
)
def test_other_contents_are_refused(tmp_path, data, says):
    path = tmp_path / "levels.pkl"
    path.write_bytes(pickle.dumps(data))
    with pytest.raises(CogError, match=says):
        level_files.read_levels(path)


def test_unsafe_and_broken_files_are_refused(tmp_path):
    path = tmp_path / "levels.pkl"
    path.write_bytes(pickle.dumps([os.getcwd]))
    with pytest.raises(UnsafeFileError):
        level_files.read_levels(path)
    path.write_bytes(pickle.dumps([[A]])[:-4])
    with pytest.raises(CogError):
        level_files.read_levels(path)


@pytest.mark.parametrize(
    ("n", "n_levels", "size", "starts"),
    [
        (5146, 5, 1000, [0, 1036, 2072, 3108, 4146]),
        (10, 1, 3, [0]),
        (10, 2, 3, [0, 7]),
        (12, 3, 3, [0, 4, 9]),
    ],
)
def test_level_starts(n, n_levels, size, starts):
    levels = build.cut(n, n_levels=n_levels, level_size=size)
    assert levels == [range(start, start + size) for start in starts]


@given(st.integers(2, 9), st.integers(1, 40), st.integers(0, 200))
def test_levels_never_overlap_and_use_both_ends(n_levels, size, spare):
    n = n_levels * size + spare
    levels = build.cut(n, n_levels=n_levels, level_size=size)
    starts = [level.start for level in levels]
    assert starts[0] == 0 and starts[-1] + size == n and {len(level) for level in levels} == {size}
    gaps = np.diff(starts) - size
    assert gaps.min() >= 0
    assert len(set(gaps[:-1])) <= 1 and 0 <= gaps[-1] - gaps[0] < n_levels - 1
