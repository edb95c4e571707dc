"""The nearest name, and lists that are cut."""

from __future__ import annotations

import pytest

from cog.errors import did_you_mean, nearest, some


@pytest.mark.parametrize(
    ("word", "known", "expected"),
    [
        ("extract_tme", ["mem", "extract_time"], ["extract_time"]),
        ("--FORMATS", ["--format", "--metric"], ["--format"]),
        ("qqq", ["mem", "extract_time"], []),
        ("swav_resnet", ["swav_resnet50", "byol_resnet50"], ["swav_resnet50"]),
    ],
    ids=["typing", "case", "nothing", "model"],
)
def test_nearest(word, known, expected):
    assert nearest(word, known) == expected
    assert did_you_mean(word, known) == (f"; did you mean {expected[0]}?" if expected else "")


def test_long_lists_are_cut():
    names = [f"n{i}" for i in range(20)]
    assert some(names[:3]) == "n0, n1, n2"
    assert some(names, 6) == "n0, n1, n2, n3, n4, n5 and 14 more"
    assert some([]) == ""
