"""Tables of other experiments: the published numbers, own results against plain arithmetic, and damaged records."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import statistics

import numpy as np
import pytest
from averages import counted_cell
from experiment_records import folder_of, write_record, write_runs
from result_folders import make_record, make_seed_folder

from cog import constants
from cog.analysis.neighbors import neighbor_metric
from cog.commands import print_results
from cog.errors import CogError
from cog.reporting.tables import experiments
from cog.reporting.tables.layout import TableStyle
from cog.reporting.tables.pivot import Averages
from cog.results import (
    analysis_records,
    exchange,
    find,
    metric_info,
    published,
    relative,
    run_records,
    scores,
    uncertainty,
)
from cog.results.scores import SeedAverage
from cog.runtime import cli
from cog.runtime.output_folder import INTERRUPTED

pytestmark = pytest.mark.usefixtures("seen_in1k_alone")


SEEDS = (22, 37, 45)


# --- published numbers


def test_published_experiments_as_records(show):
    found = {}
    for row in json.loads(show("--published_only", "--paper", "v1", "--format", "json", "--analysis", "all")):
        assert row["source"] == "paper v1" and not row["std"]
        found[row["experiment"], row["quantity"], row["dataset"], row["model"]] = row["value"]
    expected = {
        (average.evaluation, average.metric, average.dataset, average.model): average.value
        for average in published.averages("v1")
        if not scores.is_protocol(average)
    }
    assert {place: found[place] for place in expected} == expected
    derived = {place[:2] for place in found.keys() - expected.keys()}
    assert all(name.startswith("logreg_pca") and metric == "relative_to_logreg" for name, metric in derived)


# --- own results

TRAINED, UNTRAINED = "mini_trained", "mini_untrained"
#: Top-1 by evaluation: of the trained model on in1k; the second model has a third, the levels are 10 points lower.
SCORES = {
    "logreg": 60.0,
    "logreg_N1": 20.0,
    "logreg_N8": 40.0,
    "logreg_pca32": 45.0,
    "logreg_pca256": 58.0,
    "logreg_max732": 57.0,
    "mlp": 63.0,
    "mlp_noact": 59.4,
}


def top1_of(model, dataset, evaluation, seed):
    score = SCORES[evaluation] - {"in1k": 0, "in1k_blurred": 1, "cog_l5": 10}[dataset]
    return (score if model == TRAINED else score / 3) + 0.1 * SEEDS.index(seed)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Results of two models on three data sets, of every variant and analysis; the trained model is fine-tuned, too."""
    root = tmp_path_factory.mktemp("study") / "models"
    for model, share in ((TRAINED, 1.0), (UNTRAINED, 1 / 3)):
        for dataset in ("in1k", "in1k_blurred", "cog_l5"):
            for name in SCORES:
                by_seed = {seed: top1_of(model, dataset, name, seed) for seed in SEEDS}
                write_runs(root, model, dataset, name, by_seed)
            per_seed = {
                str(seed): {"ami": share * 0.5, "purity": share * (0.6 + seed / 100)} for seed in range(3)
            }
            write_record(root, model, dataset, "kmeans", per_seed["1"], per_seed=per_seed)
            compactness = {"alignment": 0.8 / share, "uniformity": -2.0 * share}
            write_record(root, model, dataset, "alignment", compactness)
            knn = {f"top1_k{k}_weighted": share * (50 - k / 10) for k in (1, 20, 200)}
            write_record(root, model, dataset, "knn", knn)
            write_record(root, model, dataset, "ncm", {"top1_cosine": share * 40, "top5_cosine": share * 60})
            write_record(root, model, dataset, "newone", {"something": 1.25, "undefined": None})
    write_runs(root, TRAINED, "cog_l5", "finetune", {22: 80.0})
    return root


def records(show, root, *argv):
    rows = json.loads(show("--models_root_dir", root, "--format", "json", *argv))
    found = {(r["model"], r["dataset"], r["experiment"], r["quantity"], r["n_shot"]): r for r in rows}
    assert len(found) == len(rows)
    return found


def test_analyses_by_data_set(show, root):
    found = records(show, root, "--analysis", "kmeans")
    assert {key[2] for key in found} == {"kmeans"} and len(found) == 2 * 3 * 2
    row = found[TRAINED, "cog_l5", "kmeans", "purity", 0]
    # The value is that of the initialization with the lowest inertia, not the mean.
    assert row["value"] == pytest.approx(0.61) and row["seeds"] == [0, 1, 2]
    assert row["std"] == pytest.approx(statistics.pstdev([0.60, 0.61, 0.62]))
    assert row["by_seed"] == pytest.approx([0.60, 0.61, 0.62])
    out = show("--models_root_dir", root, "--analysis", "kmeans", "--dataset", "cog_l5")
    assert "lowest inertia" in out and "0.610 [0.600, 0.620]" in out
    assert "±" not in out.splitlines()[0] and "bootstrap" not in out


def test_all_analyses_and_one_nobody_knows(show, root):
    found = records(show, root, "--analysis", "all")
    classifiers = {
        name.partition("_N")[0] for name in SCORES
    }  # of logreg, the difference to in1k of blurred faces
    assert {key[2] for key in found} == {
        "kmeans",
        "alignment",
        "knn",
        "ncm",
        "newone",
        "finetune",
        *classifiers,
    }
    assert {key[3] for key in found if key[2] == "logreg"} == {"points_to_in1k"}
    assert found[UNTRAINED, "in1k", "newone", "something", 0]["value"] == 1.25
    assert not any(key[3] == "undefined" for key in found)
    out = show("--models_root_dir", root, "--analysis", "newone")
    assert "newone: something" in out and "1.250" in out
    with pytest.raises(
        CogError,
        match="no result of the analysis cross among those read; there is alignment, balanced, blurred",
    ):
        show("--models_root_dir", root, "--analysis", "cross")


def test_doubts_about_runs_of_variants_are_told(capsys, tmp_path):
    root = tmp_path / "models"
    write_runs(root, TRAINED, "cog_l5", "logreg", {22: 50.0, 37: 51.0})
    write_runs(root, TRAINED, "cog_l5", "mlp", {22: 50.0, 37: 51.0})
    write_runs(root, TRAINED, "cog_l5", "my_own", {22: 50.0})
    # it ended early, and is no run of another number of epochs for that
    one = make_seed_folder(root / "mini/trained/cog_l5/eval_mlp/seed-45", n_epochs=1)
    for seed in (22, 37, 45):
        folder = one.with_name(f"seed-{seed}")
        make_record(folder, seed=seed, diverged=seed == 45, record={"identity": {"n_epochs": 3}})
    cli.set_up_logging()
    print_results.main(["--models_root_dir", str(root), "--analysis", "all"])
    told = capsys.readouterr().err
    assert (
        f"diverged in 1 run: mlp, mini_trained, L5, all images, seed 45: {one}" in told
        and "epochs" not in told
    )
    print_results.main(["--models_root_dir", str(root)])
    assert "diverged" not in capsys.readouterr().err, "not among the numbers shown"


def test_alignment_relative_to_in1k(show, root):
    found = records(show, root, "--analysis", "alignment", "--dataset", "cog_l5")
    assert found[TRAINED, "cog_l5", "alignment", "alignment_ratio_to_in1k", 0]["value"] == pytest.approx(1.0)
    assert {key[1] for key in found} == {"cog_l5"}, "in1k is read for the ratio, and not shown"


def test_variants_relative_to_logistic_regression(show, root):
    values = {key: row["value"] for key, row in records(show, root, "--analysis", "all").items()}
    for model in (TRAINED, UNTRAINED):
        for dataset in ("in1k", "cog_l5"):
            base = statistics.fmean(top1_of(model, dataset, "logreg", s) for s in SEEDS)
            for name in ("mlp", "mlp_noact"):
                mean = statistics.fmean(top1_of(model, dataset, name, s) for s in SEEDS)
                assert values[model, dataset, name, "top1", 0] == pytest.approx(mean)
                relative_score = values[model, dataset, name, "relative_to_logreg", 0]
                assert relative_score == pytest.approx(100 * (mean - base) / base)
            assert (model, dataset, "logreg_pca32", "top1", 0) in values
        points = values[model, "in1k_blurred", "logreg", "points_to_in1k", 8]
        assert points == pytest.approx(-1 if model == TRAINED else -1 / 3)


def test_frozen_features_are_compared_with_fine_tuned_ones(show, root):
    found = records(show, root, "--analysis", "finetune")
    fine_tuned = {key[3]: row for key, row in found.items() if key[:3] == (TRAINED, "cog_l5", "finetune")}
    assert fine_tuned["top1"]["std"] is None, "one seed tells no deviation"
    assert not fine_tuned["top1"]["missing_seeds"]
    assert fine_tuned["logreg_relative"]["value"] == pytest.approx(100 * (50.1 - 80) / 80)


def test_deviation_of_a_relative_score_against_a_simulation():
    generator = np.random.default_rng(0)
    one = SeedAverage("a_b", "in1k", "mlp", "top1", 0, 63.0, 0.4)
    base = SeedAverage("a_b", "in1k", "logreg", "top1", 0, 60.0, 0.3)
    (made,) = [m for m in relative.derive([one, base]) if m.metric == "relative_to_logreg"]
    a, b = generator.normal(63, 0.4, 10**5), generator.normal(60, 0.3, 10**5)
    assert made.std == pytest.approx((100 * (a - b) / b).std(), rel=0.02)


def test_intervals_of_variants_and_of_their_differences():
    generator = np.random.default_rng(1)
    base = generator.binomial(50, 0.7, (2, 30))

    def average(evaluation, correct, **place):
        return dataclasses.replace(counted_cell("a_b", correct, **place), evaluation=evaluation)

    logreg, mlp = average("logreg", base), average("mlp", np.clip(base + 2, 0, 50))
    tuned = average("finetune", np.clip(base + 5, 0, 50))
    blurred = average("logreg", base - 1, dataset="in1k_blurred")
    found = {
        (m.evaluation, m.dataset, m.metric): m.value for m in relative.derive([logreg, mlp, tuned, blurred])
    }
    for place, of, one, other in (
        (("mlp", "in1k", "relative_to_logreg"), uncertainty.relative_difference, mlp, logreg),
        (("finetune", "in1k", "logreg_relative"), uncertainty.relative_difference, logreg, tuned),
        (("logreg", "in1k_blurred", "points_to_in1k"), uncertainty.difference, blurred, logreg),
    ):
        expected = of(one.concepts, other.concepts)
        ends = [found[(*place[:2], name)] for name in scores.interval_of(place[2])]
        assert found[place] == pytest.approx(expected.mean)
        assert ends == pytest.approx([expected.low, expected.high])
    averages = Averages(relative.derive([logreg, mlp]))
    view = experiments.of_analyses(averages, ["mlp"], style=TableStyle())
    for name, row in {row["quantity"]: row for row in view.records}.items():
        assert name in ("top1", "relative_to_logreg") and row["low"] < row["value"] < row["high"]
    assert len(view.tables) == 2
    assert all("[" in entry.interval for table in view.tables for _, (entry,) in table.rows)
    assert {note.text for table in view.tables for note in table.notes} == {
        metric_info.OVER_CONCEPTS_AND_SEEDS
    }
    # Of other seeds there is nothing to pair.
    apart = relative.derive([logreg, average("mlp", base, seeds=(3, 4))])
    assert {m.metric for m in apart} == {"top1", "relative_to_logreg"}


@pytest.mark.parametrize(
    "keys, evaluation",
    [
        (("CLF.PCA_DIM", 256), "logreg_pca256"),
        (("CLF.TYPE", "mlp"), "mlp"),
        (("CLF.TYPE", "mlp_noact"), "mlp_noact"),
        (("CLF.MAX_PER_CLASS", 732), "logreg_max732"),
        (("EVAL.NAME", "finetune"), "finetune"),
    ],
)
def test_the_keys_of_a_variant_select_its_folder(show, root, keys, evaluation):
    rows = json.loads(show("--models_root_dir", root, "--format", "json", "--model", TRAINED, *keys))
    found = {row["dataset"]: row["mean"] for row in rows if row["metric"] == "top1"}
    if evaluation == "finetune":
        assert found == {"cog_l5": 80.0}
        return
    expected = {
        dataset: statistics.fmean(top1_of(TRAINED, dataset, evaluation, s) for s in SEEDS)
        for dataset in ("in1k", "in1k_blurred", "cog_l5")
    }
    assert found == pytest.approx(expected)


def test_evaluations_of_ones_own_are_no_analyses(show, tmp_path):
    for name in ("logreg", "mine", "logreg_old", "mlp_x", "logreg_pca0x"):
        write_runs(tmp_path, "a_b", "in1k", name, {22: 50.0})
    write_record(tmp_path, "a_b", "in1k", "ncm", {"top1_cosine": 40.0})
    for view in (("--analysis", "all"), ("--analysis", "all", "EVAL.NAME", "mine")):
        rows = json.loads(show("--models_root_dir", tmp_path, "--format", "json", *view))
        assert {row["experiment"] for row in rows} == {"ncm"}
    rows = json.loads(show("--models_root_dir", tmp_path, "--format", "json", "EVAL.NAME", "logreg_old"))
    assert [row["mean"] for row in rows] == [50.0, 60.0]


def test_files_carry_all_experiments(show, root, tmp_path):
    file, again = tmp_path / "lab.json", tmp_path / "again.json"
    show("--models_root_dir", root, "--export", file)
    found = find.find_all(root)
    others = [run for run in found.runs if run.evaluation != "logreg"]
    expected = run_records.average_runs(others) + analysis_records.averages(found.analyses)
    content = [average for average in exchange.load(file) if not scores.is_protocol(average)]
    shared = [
        sorted((average.evaluation, average.value, average.std, average.by_seed) for average in averages)
        for averages in (content, expected)
    ]
    assert shared[0] == shared[1]
    assert {a.source for a in content} == {"lab"} and len({a.place for a in content}) == len(expected)
    here = json.loads(show("--models_root_dir", root, "--format", "json", "--analysis", "all"))
    there = json.loads(show("--import", file, "--format", "json", "--analysis", "all"))
    assert [{**row, "source": "lab"} for row in here] == there
    show("--import", file, "--export", again)
    assert exchange.load(again) == exchange.load(file)
    both = ("--models_root_dir", root, "--import", file, "--analysis", "ncm")
    assert {row["source"] for row in json.loads(show(*both, "--format", "json"))} == {"runs", "lab"}
    assert "mini_trained [lab]" in show(*both)


def test_published_experiments_travel_and_cannot_be_forged(tmp_path):
    file = tmp_path / "paper.json"
    text = exchange.dump(published.averages("v1"))
    file.write_text(text)
    assert exchange.load(file) == published.averages("v1")
    start = text.index('"evaluation": "kmeans"')
    file.write_text(text[:start] + text[start:].replace('"value": 0.659', '"value": 0.959', 1))
    message = "kmeans purity_v1 of sup_resnet50 on in1k is labelled 'paper v1' but is not"
    with pytest.raises(CogError, match=message):
        exchange.load(file)


AMI = SeedAverage("a_b", "in1k", "kmeans", "ami", 0, 0.5, 0.0, (0, 1), (), (0.5, 0.5))
MLP = SeedAverage("a_b", "in1k", "mlp", "top1", 0, 60.0, 0.0, (22, 37), (), (60.0, 60.0))


@pytest.mark.parametrize(
    "average, change, message",
    [
        (AMI, {"value": "NaN"}, "value is"),
        (AMI, {"value": None}, "value is null"),
        (AMI, {"value": True}, "value is true"),
        (AMI, {"std": -1}, "expected a deviation"),
        (AMI, {"std": 0.5}, "does not have the population standard deviation"),
        (AMI, {"by_seed": [0.5]}, "a number for each seed"),
        (AMI, {"evaluation": "../x"}, "expected a name of letters"),
        (AMI, {"metric": ""}, "expected a name of letters"),
        (AMI, {"metric": 3}, "expected a name of letters"),
        (MLP, {"value": 180.0, "by_seed": [], "std": None}, "value is 180.0, expected a percentage"),
        (MLP, {"value": 1.0}, "by_seed does not have the mean that is given"),
    ],
)
def test_wrong_numbers_of_other_experiments_in_a_file(tmp_path, average, change, message):
    content = json.loads(exchange.dump([average], label="lab"))
    content["entries"][0] |= change
    (tmp_path / "f.json").write_text(json.dumps(content))
    with pytest.raises(CogError, match=re.escape(message)):
        exchange.load(tmp_path / "f.json")


# --- records that are no good, runs that are not finished

DEEP = "[" * 100_000 + "]" * 100_000


def a_record(**changes):
    return json.dumps({"status": "complete", "analysis": "kmeans"} | changes).encode()


def with_value(text):
    return a_record(values={"ami": 0.125}).replace(b"0.125", text)


BAD = {
    "empty": b"",
    "not JSON": b"{",
    "a list": b"[]",
    "no status": b'{"analysis": "kmeans"}',
    "status partial": a_record(status="partial"),
    "no name": b'{"status": "complete"}',
    "name of a path": a_record(analysis="../x"),
    "another name": a_record(analysis="ncm"),
    "values a list": a_record(values=[1]),
    "values of text": with_value(b'"x"'),
    "values nested": with_value(b'{"x": 1}'),
    "values NaN": with_value(b"NaN"),
    "values infinite": with_value(b"1e999"),
    "a huge integer": with_value(b"1" + b"0" * 400),
    "more digits than Python reads": with_value(b"1" + b"0" * 5000),
    "truth values": with_value(b"true"),
    "seeds of text": a_record(seeds=["a"]),
    "seeds a number": a_record(seeds=3),
    "per_seed a list": a_record(per_seed=[]),
    "per_seed of numbers": a_record(per_seed={"0": 1}),
    "identity a text": a_record(identity="x"),
    "details null": a_record(details=None),
    "too deep": DEEP.encode(),
    "latin-1": '{"status": "ä"}'.encode("latin-1"),
    "NUL": b"\0" * 100,
    "UTF-16": json.dumps({"status": "complete"}).encode("utf-16"),
}


@pytest.fixture
def one_good(tmp_path):
    root = tmp_path / "models"
    write_record(root, "a_good", "in1k", "kmeans", {"ami": 0.5})
    return root


@pytest.mark.parametrize("name", BAD)
def test_a_bad_record_is_one_line_and_spoils_nothing(one_good, name, capsys):
    folder = folder_of(one_good, "a_bad", "in1k") / "analysis_kmeans"
    folder.mkdir(parents=True)
    (folder / "results.json").write_bytes(BAD[name])
    cli.set_up_logging()
    assert print_results.main(["--models_root_dir", str(one_good), "--analysis", "kmeans"]) == 0
    out, err = capsys.readouterr()
    assert "a_good  0.500" in out and "a_bad" not in out
    assert len(err.splitlines()) == 1 and err.startswith(f"warning: not counted: {folder}: "), err
    assert len(err) < 500 and err.count(str(folder)) == 1


def test_odd_folders_of_analyses(one_good, capsys):
    parent = folder_of(one_good, "a_bad", "in1k")
    for name in ("pipe", "folder/results.json", "large", "empty", "", ".x"):
        (parent / f"analysis_{name}").mkdir(parents=True)
    os.mkfifo(parent / "analysis_pipe/results.json")
    with open(parent / "analysis_large/results.json", "wb") as handle:
        handle.truncate(1 << 30)
    (parent / "analysis_file").write_text("")
    found = find.find_all(one_good)
    assert [record.model for record in found.analyses] == ["a_good"]
    reasons = {problem.path.name: problem.reason for problem in found.problems}
    assert reasons.keys() == {"analysis_pipe", "analysis_folder", "analysis_large", "analysis_empty"}
    assert (
        "not a regular file" in reasons["analysis_pipe"] and "expected a record" in reasons["analysis_large"]
    )


def test_hostile_names_and_texts_are_escaped(one_good, show):
    hostile = folder_of(one_good, "a_bad", "in1k") / "analysis_newone"
    write_record(one_good, "a_bad", "in1k", "newone", {"a\x1b[31m\n\u202e": 0.25})
    write_record(one_good, "a_odd", "in1k", "kmeans", {"ami": 0.25}, device="\x1b[2J", identity={"k": "\x00"})
    out = show("--models_root_dir", one_good, "--analysis", "all")
    assert "\x1b" not in out and "0.250" in out
    (problem,) = find.find_all(one_good).problems
    assert problem.path == hostile and "\\x1b" in problem.reason


def unfinished(path, trace, content=None):
    """Make the folder of a run that left a hidden folder, or a hidden file with content."""
    path.mkdir(parents=True)
    if content is None:
        (path / trace).mkdir()
    else:
        (path / trace).write_text(content)


FAILURE = json.dumps({"message": "out of memory", "when": "2026-01-01", "host": "h", "job": "7_1"})


def test_unfinished_runs_are_told_from_damaged_ones(tmp_path, capsys):
    from cog.runtime import locks

    root = tmp_path / "models"
    write_runs(root, "a_b", "in1k", "logreg", {22: 60.0})
    base = folder_of(root, "a_b", "in1k")
    make_record(base / "eval_logreg/seed-22")
    unfinished(base / "eval_logreg/seed-37", ".resume")
    unfinished(base / "eval_logreg/seed-45", ".failed.json", FAILURE)
    unfinished(base / "eval_logreg/seed-77", ".partial-abc")
    unfinished(base / "analysis_knn", ".resume")
    unfinished(base / "analysis_ncm", ".failed.json", FAILURE)
    unfinished(base / "eval_logreg/seed-1", ".failed.json", "damaged")
    (base / "eval_logreg/seed-22/.resume").mkdir()  # of a process that died right after publication
    (base / "eval_logreg/seed-22/.failed.json").write_text(FAILURE)
    with locks.locked(base / "eval_logreg/seed-93", flag="--output_dir"):
        found = find.find_all(root)
        states = {problem.path.name: problem.state for problem in found.problems}
        assert states == {
            "seed-37": "interrupted", "seed-45": "failed", "seed-77": "interrupted", "seed-93": "running",
            "analysis_knn": "interrupted", "analysis_ncm": "failed", "seed-1": "failed",
        }  # fmt: skip
        reasons = {problem.path.name: problem.reason for problem in found.problems}
        assert reasons["seed-45"] == "failed: out of memory"
        assert f"process {os.getpid()}" in reasons["seed-93"]
        cli.set_up_logging()
        print_results.main(["--models_root_dir", str(root)])
        assert capsys.readouterr().err.splitlines() == [
            f"warning: not counted: {base}/eval_logreg/seed-1: failed: .failed.json cannot be read",
            f"warning: not counted: {base}/eval_logreg/seed-45: failed: out of memory",
            f"not counted yet: 1 in progress, such as {base}/eval_logreg/seed-93; 2 interrupted (the same command "
            f"continues), such as {base}/eval_logreg/seed-37",
        ]
    # A lock that nobody holds is a trace of an interruption, and only where there is no result.
    assert find.find_runs(root)[0][0].top1 == 60.0


def test_a_run_of_the_original_toolkit_counts_after_a_refused_attempt(tmp_path):
    write_runs(tmp_path, "a_b", "in1k", "logreg", {22: 60.0})
    seed = folder_of(tmp_path, "a_b", "in1k") / "eval_logreg/seed-22"
    (seed / ".failed.json").write_text(FAILURE)
    (seed / ".lock").write_text("{}")
    runs, problems = find.find_runs(tmp_path)
    assert [run.top1 for run in runs] == [60.0] and problems == []
    (seed / ".resume").mkdir()  # being replaced
    runs, problems = find.find_runs(tmp_path)
    assert runs == [] and problems[0].state == INTERRUPTED


def test_runs_know_their_evaluation(root):
    found = find.find_all(root)
    evaluations = {run.evaluation for run in found.runs}
    assert evaluations == {name.partition("_N")[0] for name in SCORES} | {"finetune"}
    run = next(run for run in found.runs if run.evaluation == "mlp")
    again, _ = find.read_evaluation(run.path.parent)
    assert again[0].evaluation == "mlp"


@pytest.mark.parametrize(
    "evaluation, metric, label",
    [
        ("cross_in1k", "x", "classifier of in1k on other test images: x"),
        ("cross_in1k", "mean_confidence", "classifier of in1k on other test images: mean confidence"),
    ],
)
def test_labels_say_of_what_a_number_is(evaluation, metric, label):
    assert metric_info.describe(evaluation, metric).label.endswith(label)


def test_names_of_evaluations_and_metrics_are_understood():
    assert metric_info.classifier("logreg_pca256_max732") == metric_info.ClassifierName("logreg", 256, 732)
    assert metric_info.classifier("mlp_noact").type == "mlp_noact"
    assert metric_info.classifier("kmeans") is None and metric_info.classifier("logreg2") is None
    assert neighbor_metric("top1_k20_weighted") == (20, "top1")
    assert neighbor_metric("inertia") is None
    assert metric_info.companion_of("spearman_low") == "spearman" and metric_info.companion_of("low") is None


@pytest.mark.parametrize(
    "keys, evaluation", [(("CLF.PCA_DIM", 256), "logreg_pca256"), (("EVAL.NAME", "finetune"), "finetune")]
)
def test_an_exported_variant_is_not_taken_for_the_protocols_classifier(
    show, root, tmp_path, keys, evaluation
):
    file = tmp_path / "variant.json"
    show("--models_root_dir", root, "--export", file, *keys)
    entries = json.loads(file.read_text())["entries"]
    assert {entry["evaluation"] for entry in entries} == {evaluation}
    lacking = sorted({*constants.SEEDS} - {*SEEDS}) if evaluation != "finetune" else []
    assert all(entry.get("missing_seeds", []) == lacking for entry in entries)
    found = json.loads(show("--import", file, "--analysis", "all", "--format", "json"))
    assert {row["experiment"] for row in found} == {evaluation}
    with pytest.raises(CogError, match="only numbers of other experiments there; add --analysis"):
        show("--import", file)


def test_seeds_that_only_the_reference_lacks_are_told(show, tmp_path):
    root = tmp_path / "models"
    write_runs(root, TRAINED, "cog_l5", "logreg", dict.fromkeys(constants.SEEDS[:3], 50.0))
    write_runs(root, TRAINED, "cog_l5", "mlp", dict.fromkeys(constants.SEEDS, 60.0))
    write_runs(root, TRAINED, "cog_l5", "finetune", {22: 80.0})
    found = records(show, root, "--analysis", "all")
    lacking = list(constants.SEEDS[3:])
    assert found[TRAINED, "cog_l5", "mlp", "top1", 0]["missing_seeds"] == []
    for experiment, quantity in (("mlp", "relative_to_logreg"), ("finetune", "logreg_relative")):
        row = found[TRAINED, "cog_l5", experiment, quantity, 0]
        assert (row["seeds"], row["missing_seeds"]) == (list(constants.SEEDS[:3]), lacking)
    assert "+20.0 ± 0.0 (3/5)" in show("--models_root_dir", root, "--analysis", "mlp")


def test_mixed_epochs_of_a_variant_name_it(tmp_path, capsys):
    root = tmp_path / "models"
    write_runs(root, TRAINED, "cog_l5", "logreg", {22: 50.0, 37: 51.0})
    for seed, n_epochs in ((22, 2), (37, 3)):
        make_seed_folder(root / f"mini/trained/cog_l5/eval_mlp/seed-{seed}", n_epochs=n_epochs)
    cli.set_up_logging()
    print_results.main(["--models_root_dir", str(root), "--analysis", "all"])
    assert f"epochs 2: mlp, {TRAINED}, L5, all images, seed 22" in capsys.readouterr().err


def test_one_folder_is_what_its_name_says(show, root, tmp_path):
    folder, file = root / "mini/trained/cog_l5/eval_logreg_pca256", tmp_path / "one.json"
    found = json.loads(show("--logreg_root_dir", folder, "--analysis", "all", "--format", "json"))
    assert [(row["experiment"], row["quantity"]) for row in found] == [
        ("logreg_pca256", "top1"), ("logreg_pca256", "top5")
    ]  # fmt: skip
    for name, evaluations in (("eval_logreg_pca256", ["logreg_pca256"] * 2), ("eval_logreg", ["logreg"] * 2)):
        show("--logreg_root_dir", folder.with_name(name), "--export", file, "--overwrite")
        assert [entry["evaluation"] for entry in json.loads(file.read_text())["entries"]] == evaluations
