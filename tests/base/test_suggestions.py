"""The nearest name, and lists that are cut."""

from __future__ import annotations

import pytest

from cog import config
from cog.errors import did_you_mean, nearest, some

STUDY = ["models_root_dir", "mem", "max_array_size", "max_requeues", "model_names", "extract_time"]


@pytest.mark.parametrize(
    ("word", "known", "found"),
    [
        ("memory", STUDY, ["mem"]),
        ("MEM", STUDY, ["mem"]),
        ("extract_tme", STUDY, ["extract_time"]),
        ("model", STUDY, ["model_names"]),
        ("qqq", STUDY, []),
        ("--memory", ["--mem", "--metric"], ["--mem"]),
        ("swav_resnet", ["swav_resnet50", "byol_resnet50"], ["swav_resnet50"]),
    ],
    ids=["begins", "case", "typing", "beginning", "nothing", "flag", "model"],
)
def test_nearest(word, known, found):
    assert nearest(word, known) == found
    assert did_you_mean(word, known) == (f"; did you mean {found[0]}?" if found else "")


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("FT_EXTRACT.MEAN", "FT_EXTRACT.IMAGE_NORM.MEAN"),
        ("clf.n_shot", "CLF.N_SHOT"),
        ("CLF.SHOT", "CLF.N_SHOT"),
        ("CLF.SEED", "EVAL.SEED"),
        ("CLF.EPOCHS", "CLF.N_EPOCHS"),
        ("FT_EXTRACT.IMAGE_NORM", "FT_EXTRACT.IMAGE_NORM.STD"),
    ],
)
def test_keys_of_the_configuration(key, meant):
    with pytest.raises(config.CogError, match=rf"unknown configuration key {key} .*did you mean") as raised:
        config.get_cfg(opts=[key, "1"])
    answer = str(raised.value).rpartition("did you mean ")[2].rstrip("?")
    assert answer == meant or (key == "FT_EXTRACT.IMAGE_NORM" and answer.startswith(f"{key}."))


def test_long_lists_are_cut():
    names = [f"n{i}" for i in range(20)]
    assert some(names[:3]) == "n0, n1, n2"
    assert some(names, 6) == "n0, n1, n2, n3, n4, n5 and 14 more"
    assert some([]) == ""
