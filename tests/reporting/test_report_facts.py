"""What the report states, checked against calculations of its own and cases with a known answer."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from report_runs import forty_models, make_cell, make_found, make_run, published_cell

from cog import constants
from cog.errors import CogError
from cog.reporting.html import facts, score_tables
from cog.results import diagnostics, notices, official, published, ranking, run_records, search_history
from cog.results.model_facts import ModelFacts
from cog.results.official import Match
from cog.results.run_records import Problem, average_runs

PAPER = published.accuracies()
LABELS = {name: model.label for name, model in published.MODELS.items()}


# ---- ranks ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("n_shot", [0, 1, 16])
@pytest.mark.parametrize("dataset", constants.DATASETS)
def test_ranks_agree_with_an_independent_calculation(dataset, n_shot):
    """Every published model entered again under another name stands beside itself."""
    table = {c.model: c for c in PAPER if (c.dataset, c.n_shot) == (dataset, n_shot)}
    assert len(table) == 31
    for model, score in table.items():
        own = make_cell("a_copy", dataset, n_shot, score.value, score.std)
        place = ranking.place(own, PAPER)
        means = sorted([*(s.value for s in table.values()), score.value], reverse=True)
        assert place.rank == means.index(score.value) + 1
        assert place.of == 32
        assert model in place.level_with and place.shared
        higher = [m for m in means if m > score.value]
        lower = [m for m in means if m < score.value]
        assert (place.above.other.value if place.above else None) == (higher[-1] if higher else None)
        assert (place.below.other.value if place.below else None) == (lower[0] if lower else None)
        tolerance = {m: math.hypot(s.std, score.std) + 0.05 + 1e-9 for m, s in table.items()}
        equal = {m for m, s in table.items() if abs(s.value - score.value) <= tolerance[m]}
        assert set(place.about_equal) == equal
        assert place.best_rank == 1 + sum(s.value > score.value and m not in equal for m, s in table.items())
        assert place.worst_rank == 1 + sum(s.value > score.value or (m in equal) for m, s in table.items())
        assert place.to_reference.points == pytest.approx(score.value - table["sup_resnet50"].value)


def test_a_published_model_run_again_is_not_its_own_rival():
    place = ranking.place(make_cell("dino_resnet50", "cog_l5", mean=57.6, std=0.05), PAPER)
    assert (place.rank, place.of) == (1, 31)  # DINO is first on L5, by 0.1
    assert "dino_resnet50" not in place.about_equal
    assert place.to_published.points == pytest.approx(0.0) and not place.to_published.clear
    assert place.below.other.value == 57.5


def test_known_ranks_of_the_paper():
    def rank(model, dataset):
        score = next(c for c in PAPER if (c.model, c.dataset, c.n_shot) == (model, dataset, 0))
        return ranking.place(make_cell(model, dataset, mean=score.value, std=score.std), PAPER).rank

    assert rank("dino_resnet50", "cog_l5") == 1
    assert rank("nat_m4", "cog_l5") > 1
    assert rank("cutmix_resnet50", "cog_l5") == 31


def test_rank_at_the_precision_of_the_paper():
    rivals = [published_cell("a_a", mean=70.0), published_cell("b_b", mean=60.0)]
    assert ranking.place(make_cell(mean=69.96), rivals).rank == 1
    assert ranking.place(make_cell(mean=69.96), rivals).shared
    assert ranking.place(make_cell(mean=69.94), rivals).rank == 2
    assert ranking.place(make_cell(dataset="birds"), rivals) is None


def test_a_single_seed_borrows_the_other_deviation():
    own = make_cell(mean=70.5, std=0.0, seeds=(22,))
    gap = ranking.gap(own, published_cell("a_a", mean=70.0, std=0.4))
    assert gap.combined == pytest.approx(math.hypot(0.4, 0.4))
    assert not gap.clear
    several = ranking.gap(dataclasses.replace(own, seeds=(22, 37)), published_cell("a_a", mean=70.0, std=0.4))
    assert several.combined == pytest.approx(0.4)
    assert several.clear


def _study(shift, *, model="my_net", base="sup_resnet50", shots=(0,)):
    """Cells like those of a published model, shifted by data set."""
    return [
        make_cell(model, c.dataset, c.n_shot, c.value + shift.get(c.dataset, 0.0), c.std)
        for c in PAPER
        if c.model == base and c.n_shot in shots
    ]


def test_sentences_about_a_model_that_is_better_on_the_levels():
    cells = _study({"in1k": -2.0, **{level: 4.0 + i for i, level in enumerate(constants.COG_LEVELS)}})
    text = " ".join(ranking.describe_places(ranking.places(cells, PAPER), LABELS))
    better = sum(c.value > 73.8 for c in PAPER if (c.dataset, c.n_shot) == ("in1k", 0))
    assert f"73.8 ± 0.0 % on IN-1K, rank {better + 1} of 32" in text
    assert "deviation over seeds on IN-1K (−2.0) and all levels (+4.0 on L1 to +8.0 on L5)." in text
    assert "it stands better on unseen concepts than on those of IN-1K" in text
    assert "On L3, L4 and L5 it is ahead of every published model" in text


def test_sentences_do_not_claim_what_the_deviations_do_not_carry():
    text = " ".join(ranking.describe_places(ranking.places(_study({}), PAPER), LABELS))
    words = (
        "within the combined deviation over seeds on IN-1K (0.0) and all levels (0.0). Whether other concepts"
    )
    assert f"Against ResNet50, in percentage points: {words}" in text
    assert "better" not in text and "worse" not in text and "ahead" not in text


def test_sentence_about_few_images():
    found = ranking.places(_study({}, shots=(0, 1, 128)), PAPER)
    [text] = ranking.describe_few_shot(found)
    assert text.startswith("Ranks by number of training images: on IN-1K ")
    assert f"on IN-1K {found['in1k', 1].rank} with 1 per class, {found['in1k', 0].rank} with all" in text
    assert ranking.describe_few_shot(ranking.places(_study({}), PAPER)) == []


def test_a_published_model_is_compared_with_its_publication():
    cells = _study({"cog_l2": 3.0}, model="sup_resnet50")
    places = ranking.places(cells, PAPER)
    [text] = ranking.describe_published(places)
    assert "further apart on L2 (+3.0)" in text
    assert not any("Against ResNet50" in s for s in ranking.describe_places(places, LABELS))
    assert ranking.describe_published(ranking.places(_study({}), PAPER)) == []


# ---- official data or not ---------------------------------------------------------------------------
def judge(*runs, dataset="in1k"):
    return official.judge(dataset, [cell.counts for cell in run_records.average_runs(runs)])


def test_counts_of_the_official_data():
    assert judge(make_run()).match is Match.OFFICIAL
    assert judge(make_run(n_shot=8)).match is Match.OFFICIAL
    assert judge(make_run(dataset="cog_l3"), dataset="cog_l3").match is Match.OFFICIAL
    assert judge(make_run(dataset="birds"), dataset="birds").match is Match.NONE


def test_counts_of_other_data():
    found = judge(make_run(n_classes=24, rows={"final_train": 1920, "test": 1200}))
    assert found.match is Match.DIFFERENT
    assert not found.match.comparable
    assert found.differences[0] == "24 classes where the benchmark has 1,000"
    assert judge(make_run(rows={"final_train": 1_281_167, "test": 40_000})).match is Match.DIFFERENT


def test_a_few_failed_images_do_not_forbid_the_comparison():
    blurred = judge(make_run(rows={"final_train": 1_281_066, "test": 49_997}))  # the paper's IN-1K-blurred
    assert blurred.match is Match.NEARLY and blurred.match.comparable
    assert len(blurred.differences) == 2
    assert judge(make_run(n_classes=999)).match is Match.DIFFERENT


def test_runs_without_a_record_get_the_benefit_of_the_doubt():
    bare = make_run(n_classes=None, rows={})
    assert judge(bare).match is Match.UNKNOWN
    assert judge(bare).match.comparable


# ---- warnings ---------------------------------------------------------------------------------------
def collect(runs, *, problems=(), features=None):
    return diagnostics.collect(
        make_found(runs, problems=problems), counts={}, features=features or {}, root="models dir"
    )


def whole_study(**changes):
    return [make_run(dataset=d, seed=s, **changes) for d in constants.DATASETS for s in constants.SEEDS]


def test_a_complete_study_has_nothing_to_report():
    assert collect(whole_study()) == []


def test_missing_seeds_with_the_command_that_adds_them():
    runs = [r for r in whole_study() if (r.dataset, r.seed) not in [("cog_l2", 45), ("cog_l2", 93)]]
    [notice] = collect(runs)
    assert notice.severity == "warning"
    assert "1 of 6" in notice.title
    assert notice.items == ("L2, all images: 3 of 5, missing 45, 93",)
    assert notice.commands == (
        "bash bash-scripts/logreg.sh models_root_dir='models dir' model_name=my_net dataset=cog_l2 seeds='45 93'",
    )


def test_missing_few_shot_results():
    runs = whole_study() + [
        make_run(dataset=d, seed=s, n_shot=n)
        for d in ("in1k", "cog_l1")
        for n in (1, 8)
        for s in constants.SEEDS
    ]
    [notice] = collect(runs)
    assert notice.severity == "note"
    assert "8 few-shot results not there yet" in notice.title
    assert notice.commands == (
        "bash bash-scripts/fewshot.sh models_root_dir='models dir' model_name=my_net "
        "dataset='cog_l2 cog_l3 cog_l4 cog_l5' shots='1 8' seeds='22 37 45 77 93'",
    )


def test_names_in_commands_are_quoted():
    runs = [make_run(model="my_$(touch x)", dataset="a b", seed=22)]
    [command] = [c for notice in collect(runs) for c in notice.commands]
    assert "model_name='my_$(touch x)' dataset='a b'" in command


def severity_of(found, kind):
    return {notice.kind: notice.severity for notice in found}[kind]


def test_chosen_values_at_the_ends_of_their_intervals():
    found = collect(whole_study(lr=99.0))
    assert severity_of(found, "learning rate at the edge of its interval") == "warning"
    assert "30 of 30 runs" in found[0].title
    assert "CLF.LR_INTV" in found[0].action
    harmless = collect(whole_study(wd=1.1e-12))
    assert severity_of(harmless, "weight decay at the edge of its interval") == "note"
    runs = whole_study()
    runs[3] = make_run(dataset=runs[3].dataset, seed=runs[3].seed, lr=0.1)
    assert severity_of(collect(runs), "learning rate at the edge of its interval") == "note"  # one of 30


def test_the_edge_is_on_the_logarithmic_axis():
    assert diagnostics.at_edge(0.1, [0.1, 100.0]) == "lower"
    assert diagnostics.at_edge(100.0, [0.1, 100.0]) == "upper"
    assert diagnostics.at_edge(86.0, [0.1, 100.0]) is None  # 97.8 % of the way
    assert diagnostics.at_edge(88.0, [0.1, 100.0]) == "upper"  # 98.2 %
    assert diagnostics.at_edge(1.0, [0.1, 100.0]) is None
    for broken in (None, [1.0], [0.0, 1.0], ["a", "b"], [5.0, 1.0], "x"):
        assert diagnostics.at_edge(1.0, broken) is None
    assert diagnostics.at_edge(None, [0.1, 100.0]) is None


def test_diverged_training_and_trials():
    runs = whole_study()
    runs[0] = make_run(dataset="in1k", seed=22, diverged=True)
    found = collect(runs)
    assert found[0].severity == "problem"
    assert found[0].items == ("IN-1K, all images, seed 22",)
    few = collect(whole_study(n_trials_diverged=2))
    assert severity_of(few, "trials that diverged") == "note"
    assert "60 of 900" in few[0].title
    assert severity_of(collect(whole_study(n_trials_diverged=16)), "trials that diverged") == "warning"


def test_training_that_ended_early_is_none_of_other_epochs():
    """Diverged, or converged (L-BFGS): the setting was the protocol's."""
    runs = whole_study()
    runs[0] = make_run(dataset="in1k", seed=22, diverged=True, n_epochs=44)
    assert [notice.kind for notice in collect(runs)] == ["final training that diverged"]


def test_settings_other_than_the_protocol():
    found = collect(
        whole_study(
            n_epochs=50, settings={"n_epochs": 50, "n_trials": 10, "normalize": False, "solver": "lbfgs"}
        )
    )
    [notice] = [n for n in found if n.kind == "settings other than the protocol's"]
    assert notice.items == (
        "CLF.N_TRIALS: 10 instead of 30 (30 runs)",
        "CLF.N_EPOCHS: 50 instead of 100 (30 runs)",
        "CLF.NORM_FTS: no instead of yes (30 runs)",
        "CLF.SOLVER: lbfgs instead of sgd (30 runs)",
    )


def test_mixed_epochs_settings_and_versions():
    runs = whole_study()
    runs[0] = make_run(
        seed=22,
        n_epochs=50,
        settings={"n_epochs": 50, "batch_size": 256, "precision": "bf16"},
        versions={"torch": "2.6.0"},
        device="cpu",
    )
    kinds = {notice.kind: notice for notice in collect(runs)}
    assert "50 epochs: IN-1K, all images, seed 22" in kinds["different numbers of epochs"].items
    assert any("256" in item for item in kinds["different settings between results of one model"].items)
    assert kinds["different versions, devices or modes"].severity == "note"
    assert {item.split(":")[0] for item in kinds["different versions, devices or modes"].items} == {
        "torch 2.6.0", "torch 2.9.0", "device cpu", "device cuda",
    }  # fmt: skip


def test_searches_that_end_in_a_tie():
    runs = [make_run(n_shot=n, n_trials_tied=tied) for n, tied in ((0, 30), (1, 15), (2, 14))]
    (notice,) = [notice for notice in collect(runs) if notice.kind == "searches that end in a tie"]
    assert notice.title == "At least half of the trials are equally good in 2 of 3 runs"
    assert notice.items[0] == "IN-1K, all images, seed 22: 30 of 30 trials within 0.1 points"


def test_mixed_precision_is_what_was_used_and_not_what_was_asked_for():
    """Few-shot runs in the span of their rows are fp32 under any setting: nothing to tell."""
    runs = [
        make_run("my_net", n_shot=n, seed=seed, precision=used, settings={"precision": asked})
        for n, seed, used, asked in (
            (1, 22, "fp32", "bf16"), (1, 37, "fp32", "auto"), (0, 22, "bf16", "auto"), (0, 37, "bf16", "bf16"),
        )
    ]  # fmt: skip
    title = "results of different precision"
    assert title not in {notice.kind for notice in collect(runs)}
    runs.append(make_run("other_net", seed=22, precision="fp32", settings={"precision": "auto"}))
    (notice,) = [notice for notice in collect(runs) if notice.kind == title]
    assert notice.items == (
        "IN-1K, all images: bf16: my_net, seed 22; my_net, seed 37; fp32: other_net, seed 22",
    )
    assert (notice.severity, notice.model) == ("note", "")


def test_accuracy_at_chance():
    [notice] = collect(whole_study(top1=0.1))
    assert notice.kind == "accuracy no better than guessing"
    assert "0.10 % of 1000 classes" in notice.items[0]


def test_folders_that_are_not_counted(tmp_path):
    [notice] = collect(whole_study(), problems=[Problem(tmp_path, "no final-*/logs.pkl")])
    assert notice.title == "1 folder not counted"
    assert notice.items == (f"{tmp_path}: no final-*/logs.pkl",)


def test_runs_without_a_record():
    [notice] = collect(whole_study(n_classes=None, rows={}, n_trials=0, versions={}, device=None) and [
        dataclasses.replace(run, details=type(run.details)()) for run in whole_study()
    ])  # fmt: skip
    assert notice.kind == "settings that are not recorded"


def write_features(folder, **entries):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "features.json").write_text(json.dumps(entries))


def test_features_of_other_checkpoints_and_failed_images(tmp_path):
    """Read from the folders: one data set of another checkpoint, and features made anew after the runs."""
    runs = []
    for number, dataset in enumerate(("in1k", "cog_l1")):
        base = tmp_path / "my" / "net" / dataset
        for split in constants.SPLITS:
            write_features(
                base / f"features_{split}", checkpoint_sha256="ab"[number] * 64, n_failed=3 * number, n_images=1000,
                preprocessing={"resize": 224}, precision="fp32", profile="authors",
            )  # fmt: skip
        origin = {"checkpoint_sha256": "a" * 64}
        runs += [
            make_run(
                dataset=dataset,
                seed=s,
                path=base / "eval_logreg" / f"seed-{s}",
                train_features=origin,
                test_features=origin,
            )
            for s in constants.SEEDS
        ]
    found = collect(runs, features=search_history.features_of(runs))
    kinds = {notice.kind: notice for notice in found}
    assert kinds["features made in different ways"].severity == "problem"
    assert kinds["features made in different ways"].items == (
        "checkpoint aaaaaaaaaaaa: IN-1K train; IN-1K test", "checkpoint bbbbbbbbbbbb: L1 train; L1 test",
    )  # fmt: skip
    assert kinds["images that could not be decoded"].title.startswith("6 images")
    stale = kinds["features changed after the runs"].items
    assert stale == tuple(f"L1, all images, seed {seed}" for seed in constants.SEEDS)


def test_training_and_test_features_of_different_checkpoints():
    runs = whole_study(train_features={"checkpoint_sha256": "a"}, test_features={"checkpoint_sha256": "b"})
    assert "training and test features of different checkpoints" in {n.kind for n in collect(runs)}


def test_the_most_severe_comes_first():
    runs = [make_run(seed=22, diverged=True, lr=0.1, n_trials_diverged=1)]
    ranks = [notices.SEVERITIES.index(n.severity) for n in collect(runs)]
    assert ranks == sorted(ranks) and len(ranks) >= 3


# ---- all together -----------------------------------------------------------------------------------
def report_facts(runs, *, published_cells=PAPER, baseline=None, **more):
    return facts.collect(make_found(runs, **more), published=published_cells, baseline=baseline)


def test_results_on_other_data_are_compared_with_each_other_only():
    small = {"n_classes": 24, "rows": {"final_train": 1920, "test": 1200}}
    runs = [
        make_run(model=model, dataset=d, seed=s, top1=top1 + s / 100, **small)
        for model, top1 in (("a_net", 80.0), ("b_net", 40.0))
        for d in ("in1k", "cog_l5")
        for s in (22, 37)
    ]
    found = report_facts(runs, seeds=(22, 37))
    assert not found.compared
    assert all(not model.places for model in found.own)
    assert (
        "not on the official data (24 classes where the benchmark has 1,000, for example)"
        in found.headline[0]
    )
    assert found.headline[1] == (
        "With all training images: the two highest are not told apart on in1k (a_net, b_net) and cog_l5 (a_net, b_net)."
    )
    assert "rank" not in " ".join(found.own[0].sentences)
    assert found.baseline is found.own[0]
    assert {key: round(d.mean, 3) for key, d in found.differences.items()} == {
        (1, "in1k"): -40.0,
        (1, "cog_l5"): -40.0,
    }


def test_only_the_data_sets_that_allow_it_are_compared():
    runs = [make_run(dataset="in1k"), make_run(dataset="cog_l1", n_classes=24), make_run(dataset="birds")]
    found = report_facts(runs)
    assert found.compared
    assert set(found.own[0].places) == {("in1k", 0)}
    assert any(
        "Not compared, because the data are others: cog_l1, birds." in s for s in found.own[0].sentences
    )


def test_single_seeds_are_said():
    assert any("single seed" in s for s in report_facts([make_run()]).own[0].sentences)
    full = report_facts([make_run(seed=s) for s in constants.SEEDS]).own[0].sentences
    assert full[-1] == "Means over 5 seeds."


def test_few_shot_results_alone():
    official = report_facts(
        [make_run(dataset="cog_l5", n_shot=8, seed=s, top1=33.6) for s in constants.SEEDS]
    ).own[0]
    assert official.sentences[0].startswith("With 8 training images per class: 33.6 ± 0.0 % on L5, rank ")
    other = report_facts([make_run(dataset="birds", n_shot=n, seed=22, top1=n) for n in (1, 4)])
    assert other.own[0].sentences[0] == "With 4 training images per class: 4.0 ± 0.0 % on birds."
    assert other.headline[0].endswith("What follows is about them alone.")


def test_first_version_of_the_paper_comes_with_a_caution():
    assert (
        "levels were built differently"
        in report_facts([make_run()], published_cells=published.accuracies("v1")).headline[0]
    )
    assert report_facts([make_run()]).headline == ()


def test_no_own_results():
    found = report_facts([])
    assert found.own == () and not found.notices
    assert "no results of your own" in found.headline[0]


def test_own_runs_of_a_published_model_and_imports_are_told_apart():
    cells = [make_cell("sup_resnet50"), make_cell("my_net"), make_cell("my_net", source="friend.json")]
    labels = [model.label for model in report_facts([], cells=cells).own]
    assert labels == ["my_net (own runs)", "my_net (friend.json)", "sup_resnet50 (own runs)"]


def test_best_model_on_unseen_concepts():
    cells = _study({}, model="a_net") + _study(dict.fromkeys(constants.COG_LEVELS, 3.0), model="b_net")
    [text] = report_facts([], cells=cells).headline
    assert text.startswith("Of 2 models, b_net † has the highest mean over L1 to L5")
    assert "best on unseen" not in text and text.endswith(
        "None of them is known to have seen nothing beyond IN-1K."
    )
    [text] = report_facts([], cells=cells, model_facts=ModelFacts({"a_net": "IN-1K"})).headline
    assert text.startswith("Of 2 models, b_net † has the highest mean")
    assert "Alone in having seen only IN-1K, a_net is best on unseen concepts" in text
    stated = ModelFacts({"a_net": "web", "b_net": "web"}, {"a_net": "IN-1K", "b_net": "IN-1K"})
    found = report_facts([], cells=cells, model_facts=stated)
    assert found.headline[0].startswith("Of 2 models, b_net is best on unseen concepts: mean ")
    assert (
        found.footnote.startswith("† ")
        and "a_net" not in found.footnote
        and "clip_resnet50" in found.footnote
    )


def test_forty_models_are_ranked_among_all_and_compared_with_the_best_published():
    cells = average_runs(forty_models(seeds=(22, 37)))
    found = report_facts([], cells=cells)
    assert len(found.standings) == 40
    means = [standing.mean for standing in found.standings]
    assert means == sorted(means, reverse=True)
    everything = means + [
        sum(
            c.value
            for c in published.accuracies()
            if c.model == name and c.n_shot == 0 and c.dataset != "in1k"
        )
        / 5
        for name in published.MODELS
    ]
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
    return {view.key: view for view in score_tables.views_of(stated, [*stated.own, *stated.papers])}


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
        assert (made.n_images, made.checkpoint_sha256, made.seconds, made.preprocessing) == (None,) * 4
        assert made.versions == {}
    report_facts([run])
