"""The nearest name, and lists that are cut."""

from __future__ import annotations

import pytest

from cog.errors import did_you_mean, nearest, some

STUDY = ["models_root_dir", "mem", "max_array_size", "max_requeues", "model_names", "extract_time"]


@pytest.mark.parametrize(
    ("word", "known", "expected"),
    [
        ("memory", STUDY, ["mem"]),
        ("MEM", STUDY, ["mem"]),
        ("extract_tme", STUDY, ["extract_time"]),
        ("model", STUDY, ["model_names"]),
        ("qqq", STUDY, []),
        ("--memory", ["--mem", "--metric"], ["--mem"]),
        ("swav_resnet", ["swav_resnet50", "byol_resnet50"], ["swav_resnet50"]),
        ("FEATURES.MEAN", ["FEATURES.SIZE", "FEATURES.IMAGE_NORM.MEAN"], ["FEATURES.IMAGE_NORM.MEAN"]),
    ],
    ids=["begins", "case", "typing", "beginning", "nothing", "flag", "model", "last part"],
)
def test_nearest(word, known, expected):
    assert nearest(word, known) == expected
    assert did_you_mean(word, known) == (f"; did you mean {expected[0]}?" if expected else "")


def test_long_lists_are_cut():
    names = [f"n{i}" for i in range(20)]
    assert some(names[:3]) == "n0, n1, n2"
    assert some(names, 6) == "n0, n1, n2, n3, n4, n5 and 14 more"
    assert some([]) == ""
