"""What the report states, checked against calculations of its own and cases with a known answer."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from averages import counted_cell
from report_runs import forty_models, make_cell, make_found, make_run, published_cell, shifted_study

from cog import constants
from cog.errors import CogError
from cog.reporting.html import facts, score_tables
from cog.reporting.html.sentences import headline, of_model
from cog.results import published, search_history
from cog.results.model_facts import ModelFacts
from cog.results.run_records import average_runs

PAPER = published.accuracies()


# ---- all together -----------------------------------------------------------------------------------
def report_facts(runs, *, published_cells=PAPER, baseline=None, **more):
    return facts.collect(make_found(runs, **more), published=published_cells, baseline=baseline)


def test_results_on_other_data_are_compared_with_each_other_only():
    small = {"n_classes": 24, "rows": {"final_train": 1920, "test": 1200}}
    runs = [
        make_run(model, dataset, seed=seed, top1=top1 + seed / 100, **small)
        for model, top1 in (("a_net", 80.0), ("b_net", 40.0))
        for dataset in ("in1k", "cog_l5")
        for seed in (22, 37)
    ]
    found = report_facts(runs, seeds=(22, 37))
    assert not found.compared and not any(model.places for model in found.own_models)
    first, second = headline(found)
    assert "not on the official data (24 classes where the benchmark has 1,000, for example)" in first
    assert second == (
        "With all training images: highest by the mean alone: a_net on in1k and cog_l5 (not told apart from b_net)."
    )
    assert "rank" not in " ".join(of_model(found.own_models[0]))
    assert found.baseline is found.own_models[0]
    differences = {key: round(difference.mean, 3) for key, difference in found.differences.items()}
    assert differences == {(1, "in1k"): -40.0, (1, "cog_l5"): -40.0}


def test_only_the_data_sets_that_allow_it_are_compared():
    runs = [make_run(dataset="in1k"), make_run(dataset="cog_l1", n_classes=24), make_run(dataset="birds")]
    found = report_facts(runs)
    (model,) = found.own_models
    assert found.compared and set(model.places) == {("in1k", 0)}
    assert "Not compared, because the data are others: cog_l1, birds." in of_model(model)


def test_single_seeds_are_said():
    (one,) = report_facts([make_run()]).own_models
    assert "have a single seed" in of_model(one)[-1]
    (full,) = report_facts([make_run(seed=s) for s in constants.SEEDS]).own_models
    assert of_model(full)[-1] == "Means over 5 seeds."


def test_few_shot_results_alone():
    runs = [make_run(dataset="cog_l5", n_shot=8, seed=s, top1=33.6) for s in constants.SEEDS]
    (official,) = report_facts(runs).own_models
    assert of_model(official)[0].startswith("With 8 training images per class: 33.6 ± 0.0 % on L5, rank ")
    other = report_facts([make_run(dataset="birds", n_shot=n, seed=22, top1=n) for n in (1, 4)])
    assert of_model(other.own_models[0])[0] == "With 4 training images per class: 4.0 ± 0.0 % on birds."
    assert headline(other)[0].endswith("What follows is about them alone.")


def test_first_version_of_the_paper_comes_with_a_caution():
    (caution,) = headline(report_facts([make_run()], published_cells=published.accuracies("v1")))
    assert "levels were built differently" in caution
    assert headline(report_facts([make_run()])) == []


def test_equal_notices_of_many_models_are_one_group():
    def groups(n_models):
        runs = [
            make_run(f"net_{i}", dataset, seed=s, n_trials_diverged=3, diverged=i == 1, **changes)
            for i in range(n_models)
            for dataset, changes in (("in1k", {}), ("cog_l1", {"n_classes": 24} if i == 2 else {}))
            for s in constants.SEEDS[: 3 if i == 0 else 4]
        ]
        found = report_facts(runs)
        together = [group for group in found.notice_groups if len(group.notices) > 1]
        assert sorted(n for g in found.notice_groups for n in [*map(found.notices.index, g.notices)]) == [
            *range(len(found.notices))
        ]
        assert [group.number for group in found.notice_groups] == sorted(
            g.number for g in found.notice_groups
        )
        return found, together

    assert groups(4)[1] == []
    found, together = groups(5)
    assert [(group.title, group.first.severity) for group in together] == [
        ("Missing seeds", "warning"), ("Missing results", "note"), ("Trials that diverged", "note"),
    ]  # fmt: skip
    assert all(group.models == tuple(f"net_{i}" for i in range(5)) for group in together)
    numbers = {group.number for group in found.notice_groups}
    assert all(number in numbers for _, items in found.alerts for number, _, _ in items)  # targets of links


def test_alerts_name_each_model_once():
    both_ends = {"in1k": 0.1, "cog_l1": 100.0}
    runs = [make_run(f"net_{i}", dataset, lr=lr) for i in range(2) for dataset, lr in both_ends.items()]
    ((_, items),) = report_facts(runs).alerts
    named = {kind: models for _, kind, models in items}
    assert named["Learning rate at the edge of its interval"] == "net_0, net_1"


def test_no_own_results():
    found = report_facts([])
    assert found.own_models == () and not found.notices
    assert "no results of your own" in headline(found)[0]


def test_own_runs_of_a_published_model_and_imports_are_told_apart():
    cells = [make_cell("sup_resnet50"), make_cell("my_net"), make_cell("my_net", source="friend.json")]
    labels = [model.label for model in report_facts([], cells=cells).own_models]
    assert labels == ["my_net (own runs)", "my_net (friend.json)", "sup_resnet50 (own runs)"]


def test_best_model_on_unseen_concepts():
    cells = shifted_study({}, model="a_net") + shifted_study(
        dict.fromkeys(constants.COG_LEVELS, 3.0), model="b_net"
    )
    [text] = headline(report_facts([], cells=cells))
    assert text.startswith("Of 2 models, b_net † has the highest mean over L1 to L5")
    assert "best on unseen" not in text
    assert text.endswith("None of them is known to have seen nothing beyond IN-1K.")
    [text] = headline(report_facts([], cells=cells, model_facts=ModelFacts({"a_net": "IN-1K"})))
    assert text.startswith("Of 2 models, b_net † has the highest mean")
    assert "Alone in having seen only IN-1K, a_net is best on unseen concepts" in text
    stated = ModelFacts({"a_net": "web", "b_net": "web"}, {"a_net": "IN-1K", "b_net": "IN-1K"})
    found = report_facts([], cells=cells, model_facts=stated)
    [text] = headline(found)
    assert text.startswith("Of 2 models, b_net has the highest mean on unseen concepts: mean ")
    assert text.endswith("(not told apart from a_net).")  # without counts per concept
    assert found.footnote.startswith("† ") and "web: MoPro, CLIP)" in found.footnote
    assert "a_net" not in found.footnote


@pytest.mark.parametrize(("points", "best"), [(3, True), (0, False), (0.01, False)])
def test_a_model_is_best_only_if_it_is_told_apart(points, best):
    images = np.random.default_rng(0).integers(20, 30, (3, 200))

    def study(model, more):
        right = images + int(more)
        right[:, : round(200 * (more % 1))] += 1  # told apart, but equal at the paper's precision
        return [counted_cell(model, right, dataset=name, seeds=(22, 37, 45)) for name in constants.DATASETS]

    stated = ModelFacts({"a_net": "IN-1K", "b_net": "IN-1K"})
    cells = [*study("a_net", 0), *study("b_net", points)]
    text = headline(report_facts([], cells=cells, model_facts=stated))[0]
    assert ("b_net is best on unseen concepts" in text) == best
    assert ("(not told apart from" in text) != best


def test_another_classifier_is_named_and_not_compared_with_logistic_regression():
    cells = [dataclasses.replace(cell, evaluation="mlp") for cell in shifted_study({})]
    found = report_facts([], cells=cells)
    assert not found.compared and found.other_classifiers == ["mlp"]
    assert headline(found)[0].startswith(
        "The classifier of these results is MLP (mlp); published numbers are of"
    )
    named = report_facts([], cells=[dataclasses.replace(cell, evaluation="again") for cell in cells])
    assert named.compared and headline(named) == ["The classifier of these results is again."]


def test_equal_labels_are_told_apart():
    facts_of_models = ModelFacts(labels={"a_net": "Same", "b_net": "Same", "c_net": "DINO", "d_net": "Other"})
    cells = [make_cell(f"{letter}_net") for letter in "abcd"]
    labels = [model.label for model in report_facts([], cells=cells, model_facts=facts_of_models).own_models]
    assert labels == ["Same (a_net)", "Same (b_net)", "DINO (c_net)", "Other"]


@pytest.mark.slow
def test_forty_models_are_ranked_among_all_and_compared_with_the_best_published():
    cells = average_runs(forty_models(seeds=(22, 37)))
    found = report_facts([], cells=cells)
    assert len(found.standings) == 40
    means = [standing.mean for standing in found.standings]
    assert means == sorted(means, reverse=True)
    of_paper = {name: [] for name in published.MODELS}
    for cell in PAPER:
        if cell.n_shot == 0 and cell.dataset != "in1k":
            of_paper[cell.model].append(cell.value)
    everything = means + [sum(values) / 5 for values in of_paper.values()]
    for standing in found.standings:
        higher = sum(round(other, 1) > round(standing.mean, 1) for other in everything)
        assert (standing.rank, standing.of) == (1 + higher, 71)
        assert standing.published.n_ranked == 32 and standing.published.rank <= standing.rank
        assert all(place.of == 71 for place in standing.among_all.values())
    # of the published models that saw nothing beyond IN-1K the highest mean over the levels
    assert found.baseline_label == "DeiT-B-distilled (published)"
    assert report_facts([], cells=cells, baseline="my_net").baseline_label == "my_net †"
    with pytest.raises(CogError, match="--baseline nobody_net: no result of it on the page"):
        report_facts([], cells=cells, baseline="nobody_net")


# ---- sortable tables --------------------------------------------------------------------------------
def tables_of(cells, published_cells):
    stated = report_facts([], cells=cells, published_cells=published_cells)
    return {view.key: view for view in score_tables.views_of(stated, [*stated.own_models, *stated.papers])}


def numbers_of(view):
    return [(line.row.title, [cell and cell.value for cell in line.cells]) for line in view.lines]


def test_a_table_for_every_number_of_shots_and_every_data_set():
    means = {("in1k", 0): 70.0, ("cog_l1", 0): 60.0, ("cog_l5", 0): 40.0, ("in1k", 8): 30.0}
    own = [make_cell("my_net", *place, mean) for place, mean in means.items()]
    own.append(dataclasses.replace(own[0], metric="top5", value=90.0))
    paper = [
        published_cell("sup_resnet50", *place, mean + 1)
        for place, mean in means.items()
        if place[0] != "cog_l5"
    ]
    views = tables_of(own, paper)
    assert [*views] == ["top1-n0", "top1-n8", "top5-n0", "top1-d0", "top1-d1", "top1-d2"]
    assert views["top1-n0"].titles == ["Model", "IN-1K", "L1", "L5", "mean of levels"]
    # A mean over some of the levels does not compare: such models come last.
    assert numbers_of(views["top1-n0"]) == [
        ("my_net †", [70.0, 60.0, 40.0]),
        ("ResNet50", [71.0, 61.0, None]),
    ]
    assert [line.mean for line in views["top1-n0"].lines] == [50.0, None]
    assert views["top1-n8"].titles == ["Model", "IN-1K"] and not views["top1-n8"].has_mean
    assert numbers_of(views["top5-n0"]) == [("my_net †", [90.0])]
    assert views["top1-d0"].titles == ["Model", "N = 8", "all"]
    assert numbers_of(views["top1-d0"]) == [("ResNet50", [31.0, 71.0]), ("my_net †", [30.0, 70.0])], (
        "the highest first"
    )
    assert numbers_of(views["top1-d2"]) == [("my_net †", [40.0])] and views["top1-d2"].titles == [
        "Model",
        "all",
    ]


def test_own_models_come_first_among_equals():
    views = tables_of(
        [make_cell("my_net")], [published_cell(name) for name in ("sup_resnet50", "byol_resnet50")]
    )
    lines = views["top1-n0"].lines
    assert [line.row.key for line in lines] == ["own-0", "paper-sup_resnet50", "paper-byol_resnet50"]
    assert [line.row.group for line in lines[:2]] == ["own result", "ResNet"]


# ---- hostile records --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"null", b'"text"', b"{", b"\xff\xfe", b"[" * 100_000, b'{"trials": 5, "n_images": "many"}',
     b'{"trials": [5, {}, {"lr": 1e999, "wd": 1, "val_top1": 3}, {"lr": "1", "wd": 1, "val_top1": 3}], "n_images": -3, '
     b'"versions": [1], "preprocessing": {"mean": [[[]]], "x": 1e999, "y": {}}, '
     b'"checkpoint_sha256": 5, "seconds": true}'],
)  # fmt: skip
def test_records_that_are_none(tmp_path, content):
    run = make_run(path=tmp_path / "my" / "net" / "in1k" / "eval_logreg" / "seed-22")
    run.path.mkdir(parents=True)
    (run.path / "results.json").write_bytes(content)
    features = run.path.parent.parent / "features_train"
    features.mkdir()
    (features / "features.json").write_bytes(content)
    search = search_history.outline(run)
    assert (search.trials, search.curves) == ((), {})
    for made in search_history.features_of([run]).values():
        assert (made.n_images, made.checkpoint_sha256, made.preprocessing) == (None,) * 3
        assert made.versions == {}
    report_facts([run])
