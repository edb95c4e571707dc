"""What readers are told before they trust numbers: findings with a known answer."""

from __future__ import annotations

import dataclasses
import json
import shlex

from report_runs import make_found, make_run

from cog import constants
from cog.results import diagnostics, notices, search_history
from cog.results.analysis_records import AnalysisRecord
from cog.results.diagnostics import ModelResults
from cog.results.run_records import Problem
from cog.results.scores import SeedAverage, of_metric


def collect(runs, *, problems=(), features=None):
    results = make_found(runs, problems=problems)
    models = [
        ModelResults(
            name=name,
            cells=[cell for cell in of_metric(results.cells, "top1") if cell.model == name],
            runs=[run for run in runs if run.model == name],
            features={place[1:]: made for place, made in (features or {}).items() if place[0] == name},
        )
        for name in dict.fromkeys(run.model for run in runs)
    ]
    return diagnostics.collect(results, models, root="models dir")


def whole_study(**changes):
    return [make_run(dataset=d, seed=s, **changes) for d in constants.DATASETS for s in constants.SEEDS]


def with_first_run(**changes):
    """A whole study in which the run of IN-1K with seed 22 is changed."""
    return [make_run(dataset="in1k", seed=22, **changes), *whole_study()[1:]]


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


def test_missing_seeds_get_the_settings_of_the_others():
    """With the protocol's, runs of one average would have different numbers of epochs."""
    other = {"n_trials": 3, "n_epochs": 4, "lr_interval": [0.1, 10.0], "normalize": False, "momentum": 0.8}
    runs = [make_run(seed=seed, settings=other) for seed in (22, 37)]
    command = next(c for notice in collect(runs) for c in notice.commands if "seeds='45 77 93'" in c)
    words = shlex.split(command.partition(" CLF.")[2])
    assert ["CLF." + words[0], *words[1:]] == [
        "CLF.N_TRIALS", "3", "CLF.N_EPOCHS", "4", "CLF.LR_INTV", "(0.1, 10.0)", "CLF.NORM_FTS", "False",
    ]  # fmt: skip
    mixed = [make_run(seed=22, settings=other), make_run(seed=37)]
    assert not any("CLF." in c for notice in collect(mixed) for c in notice.commands)


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
    one_of_30 = with_first_run(lr=0.1)
    assert severity_of(collect(one_of_30), "learning rate at the edge of its interval") == "note"


def test_the_edge_is_on_the_logarithmic_axis():
    # 86 and 88 are at 97.8 % and 98.2 % of the way.
    known = {0.1: "lower", 1.0: None, 86.0: None, 88.0: "upper", 100.0: "upper", None: None}
    assert {value: diagnostics.at_edge(value, [0.1, 100.0]) for value in known} == known
    for broken in (None, [1.0], [0.0, 1.0], ["a", "b"], [5.0, 1.0], "x"):
        assert diagnostics.at_edge(1.0, broken) is None


def test_diverged_training_and_trials():
    found = collect(with_first_run(diverged=True))
    assert found[0].severity == "problem"
    assert found[0].items == ("IN-1K, all images, seed 22",)
    few = collect(whole_study(n_trials_diverged=2))
    assert severity_of(few, "trials that diverged") == "note"
    assert "60 of 900" in few[0].title
    assert severity_of(collect(whole_study(n_trials_diverged=16)), "trials that diverged") == "warning"


def test_settings_other_than_the_protocol():
    settings = {"n_epochs": 50, "n_trials": 10, "normalize": False, "solver": "lbfgs"}
    found = collect(whole_study(n_epochs=50, settings=settings))
    [notice] = [n for n in found if n.kind == "settings other than the protocol's"]
    assert notice.items == (
        "CLF.N_TRIALS: 10 instead of 30 (30 runs)",
        "CLF.N_EPOCHS: 50 instead of 100 (30 runs)",
        "CLF.NORM_FTS: no instead of yes (30 runs)",
        "CLF.SOLVER: lbfgs instead of sgd (30 runs)",
    )


def test_mixed_epochs_settings_and_versions():
    settings = {"n_epochs": 50, "batch_size": 256, "precision": "bf16"}
    runs = with_first_run(n_epochs=50, settings=settings, versions={"torch": "2.6.0"}, device="cpu")
    kinds = {notice.kind: notice for notice in collect(runs)}
    assert "50 epochs: IN-1K, all images, seed 22" in kinds["different numbers of epochs"].items
    assert any("256" in item for item in kinds["different settings between results of one model"].items)
    assert kinds["different versions, devices or modes"].severity == "note"
    assert {item.split(":")[0] for item in kinds["different versions, devices or modes"].items} == {
        "torch 2.6.0", "torch 2.9.0", "device cpu", "device cuda",
    }  # fmt: skip


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
    [notice] = collect([dataclasses.replace(run, details=type(run.details)()) for run in whole_study()])
    assert notice.kind == "settings that are not recorded"


def test_features_of_other_checkpoints_and_failed_images(tmp_path):
    """Read from the folders: one data set of another checkpoint, and features made anew after the runs."""
    runs = []
    for number, dataset in enumerate(("in1k", "cog_l1")):
        base = tmp_path / "my" / "net" / dataset
        for split in constants.SPLITS:
            features = {"checkpoint_sha256": "ab"[number] * 64, "n_failed": 3 * number, "n_images": 1000}
            features |= {"preprocessing": {"resize": 224}, "precision": "fp32", "profile": "authors"}
            (base / f"features_{split}").mkdir(parents=True)
            (base / f"features_{split}/features.json").write_text(json.dumps(features))
        origin = {"checkpoint_sha256": "a" * 64}
        for seed in constants.SEEDS:
            path = base / f"eval_logreg/seed-{seed}"
            runs.append(
                make_run(dataset=dataset, seed=seed, path=path, train_features=origin, test_features=origin)
            )
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


# ---- of other experiments ---------------------------------------------------------------------------
def record(model="a_b", dataset="in1k", analysis="kmeans", identity=None):
    return AnalysisRecord(analysis, model, dataset, identity or {}, {"ami": 0.5})


def notices_of(analyses=(), variants=None, runs=(), averages=()):
    results = make_found(runs, all_measures=list(averages), analyses=list(analyses), variants=variants or {})
    return {notice.kind: notice for notice in diagnostics.of_experiments(results, root="/models")}


def test_settings_that_differ_between_models():
    same = [record("a_b", identity={"k": 10}), record("a_c", identity={"k": 10})]
    assert notices_of(same) == {}
    (notice,) = notices_of([*same, record("a_d", identity={"k": 20})]).values()
    assert notice.severity == "warning" and notice.items == ("kmeans on IN-1K, k: 10 (a_b, a_c); 20 (a_d)",)
    assert notices_of([record(identity={"k": 10}), record(dataset="cog_l1", identity={"k": 20})]) == {}
    digests = [record("a_b", identity={"x": "a" * 64}), record("a_c", identity={"x": "b" * 64})]
    assert notices_of(digests) == {}, "inputs of two models differ anyway"


def test_analyses_of_different_features():
    one, two = ({"test_features": {"sample_sha256": digest}} for digest in ("a" * 64, "b" * 64))
    assert notices_of([record(identity=one), record(analysis="ncm", identity=one)]) == {}
    (notice,) = notices_of([record(identity=one), record(analysis="ncm", identity=two)]).values()
    assert notice.model == "a_b" and notice.items == ("IN-1K, test: kmeans / ncm",)


def test_variants_with_another_protocol():
    runs = [make_run("a_b", seed=s) for s in constants.SEEDS]
    few = [make_run("a_b", seed=22, settings={"n_trials": 5})]
    assert notices_of(runs=runs, variants={"mlp": [make_run("a_b", seed=22)]}) == {}
    (notice,) = notices_of(runs=runs, variants={"mlp": few}).values()
    assert notice.items == ("mlp on IN-1K: n_trials 5 instead of 30",)
    assert notices_of(runs=runs, variants={"finetune": few, "mine": few}) == {}


def test_missing_analyses():
    averages = [SeedAverage(model, "in1k", "logreg", "top1", 0, 50.0) for model in ("a_b", "a_c")]
    (notice,) = notices_of([record(), record(analysis="cross_in1k")], averages=averages).values()
    assert (notice.severity, notice.model, notice.items) == ("note", "a_c", ("kmeans: IN-1K",))
