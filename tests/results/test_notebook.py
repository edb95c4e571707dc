"""Results in a notebook: the documented example, numbers against tables of the command, a user's own analysis."""

from __future__ import annotations

import dataclasses
import doctest
import json
import sys

import pytest
from experiment_records import write_record, write_runs

import cog
from cog.commands import print_results
from cog.errors import CogError
from cog.models import sources
from cog.reporting import notebook
from cog.results import (
    comparison,
    metric_info,
    official,
    published,
    query,
    relative,
    scores,
)

SEEDS = {22: 70.0, 37: 71.0, 45: 72.5}


@pytest.fixture
def root(tmp_path):
    write_runs(tmp_path, "my_net", "in1k", "logreg", SEEDS)
    write_runs(tmp_path, "my_net", "cog_l1", "logreg", {22: 60.0})
    write_runs(tmp_path, "my_net", "in1k", "own-name", {22: 12.5})
    values = {"beauty": 0.125, "depth_percent": 3.25}
    write_record(
        tmp_path, "my_net", "in1k", "mystery", values, per_seed={"0": {"beauty": 0.1}, "1": {"beauty": 0.3}}
    )
    (tmp_path / "my" / "net" / "in1k" / "eval_logreg" / "seed-90").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    "module",
    [
        notebook,
        scores,
        relative,
        published,
        comparison,
        official,
        query,
        metric_info,
        sources,
    ],
)
def test_documented_examples(module):
    failed, attempted = doctest.testmod(module)
    assert attempted and not failed


def test_a_score_for_every_number_that_is_there(root):
    results = cog.read_results(root)
    top1 = results.select(evaluation="logreg", metric="top1", dataset="in1k")
    assert {one.seed: one.value for one in top1} == SEEDS
    assert [one.value for one in results.select(evaluation="own-name", metric="top1")] == [12.5]
    (beauty,) = results.select(metric="beauty")
    assert (beauty.value, beauty.seed, beauty.std) == (0.125, None, pytest.approx(0.1))
    assert [problem.path.name for problem in results.problems] == ["seed-90"]
    assert len(results) == 2 * (3 + 1 + 1) + 2 and results[:2][0] == results[0]


def test_names_and_patterns_select_results(root):
    results = cog.read_results(root, published="v2")
    assert {score.dataset for score in results.select(dataset=["in1k", "cog_l5"])} == {"in1k", "cog_l5"}
    assert {score.model for score in results.select(model=["my_*", "dino_resnet50"])} == {
        "my_net",
        "dino_resnet50",
    }
    assert [*results.select(n_shots=[0, 8], model=None)] == [*results.select(n_shots=(0, 8))]
    read = cog.read_results(root, models=["dino_resnet50", "my_net"], datasets="cog_l1", published="v2")
    assert read.names("model") == {"my_net", "dino_resnet50"} and read.names("dataset") == {"cog_l1"}
    # A known name of which there is nothing is no mistake.
    assert not cog.read_results(root).select(dataset="cog_l3", model="dino_resnet50")
    assert not results.select(model="none*") and not results.select(model=[])


@pytest.mark.parametrize(
    "wanted, message",
    [
        ({"dataset": "cog_l6"}, "dataset cog_l6: no result of it among those read; did you mean cog_l"),
        ({"model": "dino_resnet5"}, "no result of it among those read; did you mean dino_resnet50?"),
        ({"model": ["my_net", "my_nets"]}, "model my_nets: no result of it among those read; did you mean my_net?"),
    ],
)  # fmt: skip
def test_unknown_names_end_with_the_nearest(root, wanted, message):
    with pytest.raises(CogError) as error:
        cog.read_results(root).select(**wanted)
    assert message in str(error.value)
    names = {f"{field}s": [value] if isinstance(value, str) else value for field, value in wanted.items()}
    with pytest.raises(CogError) as error:
        cog.read_results(root, **names)
    assert message in str(error.value)


def test_a_single_text_is_one_name(root, tmp_path):
    results = cog.read_results(root, models="my_net", datasets="in1k")
    assert [*results] == [*cog.read_results(root, models=["my_net"], datasets=["in1k"])] and len(results)
    file = tmp_path / "lab.json"
    assert print_results.main(["--models_root_dir", str(root), "--export", str(file)]) == 0
    assert [*cog.read_results(imports=str(file))] == [*cog.read_results(imports=[file])]


def test_an_unknown_version_of_the_paper():
    with pytest.raises(CogError, match="published 'v3' is not known, expected v2 or v1"):
        cog.read_results(published="v3")


def test_a_root_without_results_is_reported(root, tmp_path, caplog):
    assert cog.read_results(root) and not caplog.messages
    (tmp_path / "empty").mkdir()
    assert not cog.read_results(tmp_path / "empty") and len(caplog.messages) == 1
    assert f"no result of any model under {tmp_path / 'empty'} (0 folders" in caplog.text


def test_tables_mark_what_is_not_comparable_and_what_is_not_unseen(root):
    few = cog.read_results(root, published="v2", datasets=["cog_l1"]).select(metric="top1", n_shots=0)
    (mine,) = few.select(source="runs")
    small = dataclasses.replace(mine, counts=scores.Counts((17,)))
    text = cog.Results([small, *few.select(model="dino_resnet50")]).table()
    assert (
        "Not compared with published numbers: 17 classes where the benchmark has 1,000 (my_net on cog_l1)"
        in text
    )
    assert "my_net †" in text and "dino_resnet50 †" not in text and "(not stated: my_net)" in text
    assert "not compared" not in few.table().casefold()
    # Of data sets that are no levels there is nothing to mark.
    assert "†" not in cog.Results([dataclasses.replace(mine, dataset="birds")]).table()


def test_pretraining_is_read_from_features_json(root):
    path = root / "my/net/cog_l1/features_train/features.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"pretraining": "IN-1K", "n_classes": 17}))
    results = cog.read_results(root, published="v2", datasets=["cog_l1"]).select(metric="top1", n_shots=0)
    text = results.select(model=["my_net", "dino_resnet50"]).table()
    assert "†" not in text and "17 classes where the benchmark has 1,000" in text


def test_tables_of_any_two_fields(root):
    results = cog.read_results(root, published="v2")
    shots = results.select(model="dino_resnet50", dataset="cog_l3", source="paper v2")
    assert (
        shots.table("dataset", "n_shots", format="markdown")
        .splitlines()[2]
        .startswith("| dataset | all | N=1 |")
    )
    mine = results.select(model="my_net", source="runs", dataset="in1k", n_shots=0)
    lines = mine.select(evaluation="mystery").table("metric", "evaluation").splitlines()
    assert lines[0] == "my_net, in1k, all training images" and "0.125 ± 0.100" in lines[3]
    assert "71.2 ± 1.0" in mine.select(metric="top1").table("model", "evaluation")


def test_data_sets_are_in_order_and_missing_seeds_are_marked():
    def scores_of(model, datasets, seeds=(22, 37, 45)):
        return [
            scores.Score(model, name, "logreg", 0, "top1", 70.0, seed) for name in datasets for seed in seeds
        ]

    results = notebook.Results(
        [*scores_of("a_net", ["in1k", "cog_l4"]), *scores_of("b_net", ["cog_l1", "cog_l4"])]
    )
    lines = results.table().splitlines()
    assert lines[2].split() == ["in1k", "cog_l1", "cog_l4"]
    assert "(3/5)" in lines[3] and results.average()[0].missing_seeds == (77, 93)
    unusual = notebook.Results(
        scores_of("a_net", ["in1k"], seeds=(1, 2)) + scores_of("a_net", ["cog_l1"], seeds=(1,))
    )
    assert [average.missing_seeds for average in unusual.average()] == [(), (2,)]


def test_an_exported_file_gives_the_same_scores(root, tmp_path):
    file = tmp_path / "lab.json"
    assert print_results.main(["--models_root_dir", str(root), "--export", str(file)]) == 0
    exported = cog.read_results(imports=[file])
    assert {one.source for one in exported} == {"lab"}
    known = {(one.dataset, one.evaluation, one.metric, one.seed): one.value for one in cog.read_results(root)}
    assert {(o.dataset, o.evaluation, o.metric, o.seed): o.value for o in exported} == {
        key: value for key, value in known.items() if key[1] != "own-name"
    }


@pytest.mark.parametrize(
    ("wanted", "fields", "message"),
    [
        ({}, ("model", "dataset"), r"differ in metric; select one, such as metric='ami'"),
        ({}, ("model", "color"), "no color, expected one of model"),
        ({"seed": 99}, ("model", "dataset"), "there is no score"),
    ],
)
def test_tables_that_cannot_be_shown(wanted, fields, message):
    with pytest.raises(CogError, match=message):
        cog.read_results(published="v1").select(evaluation="kmeans", **wanted).table(*fields)


def test_an_unknown_field_is_an_error():
    with pytest.raises(ValueError, match="no shots, expected some of model"):
        cog.read_results(published="v2").select(shots=0)


def test_two_numbers_with_one_seed_are_an_error():
    one = scores.Score("my_net", "in1k", "logreg", 0, "top1", 70.0, 22)
    with pytest.raises(CogError, match="two numbers of the same seed"):
        scores.average([one, one])


def test_pandas(root, monkeypatch):
    pytest.importorskip("pandas", reason="pandas is optional: would check to_pandas()")
    results = cog.read_results(root)
    frame = results.to_pandas()
    assert {*frame.columns} == {*scores.Score.__dataclass_fields__} - {"concepts"} and len(frame) == len(
        results
    )
    top1 = frame[(frame.evaluation == "logreg") & (frame.metric == "top1")]
    assert top1.groupby("dataset").value.mean().to_dict() == {
        "in1k": pytest.approx(213.5 / 3),
        "cog_l1": 60.0,
    }
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(CogError, match="pip install pandas"):
        results.to_pandas()
