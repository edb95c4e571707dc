"""Tables of other experiments: the first version's; one's own, against plain arithmetic; bad records."""

from __future__ import annotations

import csv
import json
import os
import re
import statistics
from array import array

import numpy as np
import pytest
from experiment_records import folder_of, write_record, write_runs
from result_folders import make_record, make_seed_folder

from cog import constants
from cog.analysis.knn import neighbor_metric
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
from cog.results.concept_counts import ConceptCounts
from cog.results.scores import SeedAverage
from cog.runtime import cli
from cog.runtime.output_folder import INTERRUPTED

pytestmark = pytest.mark.usefixtures("seen_in1k_alone")


SEEDS = (22, 37, 45)


# --- the first version's tables


@pytest.fixture(scope="module")
def paper(shared_dir):
    """{(experiment, quantity, data set, model): number as printed} of Tables 3, 5 and 6."""
    found = {}

    def rows(name):
        with open(shared_dir / "paper" / name, encoding="utf-8") as handle:
            return list(csv.DictReader(handle))

    for row in rows("cog_v1_table3_mlp.csv"):
        quantity = "top1" if row["classifier"] == "logreg" else "relative_to_logreg"
        found[row["classifier"], quantity, row["dataset"], row["model"]] = row["value"]
    for row in rows("cog_v1_table5_pca.csv"):
        name = "logreg" if row["pca_dim"] == "2048" else f"logreg_pca{row['pca_dim']}"
        known = found.setdefault((name, "top1", row["dataset"], row["model"]), row["top1"])
        assert known == row["top1"], "2048 components are all of them"
    purity = {"purity": "purity_v1"}
    for row in rows("cog_v1_table6_clustering.csv"):
        quantity = purity.get(row["metric"], row["metric"])
        found["kmeans", quantity, row["dataset"], row["model"]] = row["value"]
    assert len(found) == 126 + 294 - 42 + 168
    return found


def test_published_tables(paper):
    """Every table has the numbers of the paper with its digits, and says which table that is."""
    averages = Averages(published.averages("v1"))
    titles = {metric_info.describe(*key).title: key[:2] for key in averages.keys}
    found = {}
    for view, number in (
        (experiments.of_variants(averages, ["mlp"], style=TableStyle()), 3),
        (experiments.of_variants(averages, ["pca"], style=TableStyle()), 5),
        (experiments.of_analyses(averages, ["kmeans"], style=TableStyle()), 6),
    ):
        for table in view.tables:
            title, _, source = table.title.partition(" [")
            by_dim = re.match(r"LogReg on principal components, top-1 \(%\), (\w+),", title)
            if title == "LogReg, top-1 (%)":
                assert source == "paper v1]"
            elif number != 5 or by_dim:
                assert source == f"paper v1, Table {number}]"
            for model, entries in table.rows:
                for column, entry in zip(table.columns, entries, strict=True):
                    name = "logreg" if column == "all" else f"logreg_pca{column}"
                    place = (name, "top1", by_dim[1]) if by_dim else (*titles[title], column)
                    known = found.setdefault((*place, model), entry.number.lstrip("+"))
                    assert known == entry.number.lstrip("+") and not entry.deviation and not entry.mark
    assert found.keys() == paper.keys()
    for place, value in paper.items():
        assert float(found[place]) == float(value)
        digits = (
            len(text.partition(".")[2]) for text in (found[place], value if "." in value else value + ".0")
        )
        assert len(set(digits)) == 1 or float(value) == 0


def test_published_tables_as_records(paper, show):
    found = {}
    for view in (("--variants", "all"), ("--analysis", "all")):
        for row in json.loads(show("--published_only", "--paper", "v1", "--format", "json", *view)):
            assert row["source"] == "paper v1" and not row["std"]
            found[row["experiment"], row["quantity"], row["dataset"], row["model"]] = row["value"]
    assert found == {key: float(value) for key, value in paper.items()}


def test_an_overview_of_the_published(paper, show):
    rows = json.loads(
        show("--published_only", "--paper", "v1", "--overview", "--format", "json", "--dataset", "cog_l5")
    )
    found = {
        (row["experiment"], row["quantity"], row["dataset"], row["model"]): row["value"]
        for row in rows
        if not row["n_shot"]
    }
    assert {key[:2] for key in found} == {
        ("logreg", "top1"), ("logreg_pca32", "top1"), ("logreg_pca256", "top1"), ("kmeans", "purity_v1"),
        ("kmeans", "ami"), ("mlp", "relative_to_logreg"), ("mlp_noact", "relative_to_logreg"),
    }  # fmt: skip
    assert found.items() <= {key: float(value) for key, value in paper.items()}.items()


def test_the_final_version_has_no_other_experiments():
    assert published.averages("v2") == published.accuracies("v2")
    with pytest.raises(CogError, match="no result of any analysis"):
        print_results.main(["--published_only", "--analysis", "all"])
    with pytest.raises(CogError, match="no variant of the classifier"):
        print_results.main(["--published_only", "--variants", "all"])


# --- one's own results

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
    """Two models, three data sets: every variant, every analysis; fine-tuned: the trained one, one seed."""
    root = tmp_path_factory.mktemp("study") / "models"
    for model in (TRAINED, UNTRAINED):
        share = 1.0 if model == TRAINED else 1 / 3
        for dataset in ("in1k", "in1k_blurred", "cog_l5"):
            for evaluation in SCORES:
                write_runs(
                    root,
                    model,
                    dataset,
                    evaluation,
                    {s: top1_of(model, dataset, evaluation, s) for s in SEEDS},
                )
            clusters = {"ami": share * 0.5, "nmi": 0.7, "ari": share * 0.3}
            per_seed = {
                str(s): clusters | {"purity": share * (0.6 + s / 100), "purity_v1": share * (0.5 + s / 100)}
                for s in range(3)
            }
            write_record(root, model, dataset, "kmeans", per_seed["1"], per_seed=per_seed)
            write_record(
                root, model, dataset, "alignment", {"alignment": 0.8 / share, "uniformity": -2.0 * share}
            )
            knn = {
                f"top1_k{k}_{vote}": share * (50 - k / 10)
                for k in (1, 20, 200)
                for vote in ("weighted", "majority")
            }
            write_record(root, model, dataset, "knn", knn)
            write_record(root, model, dataset, "ncm", {"top1_cosine": share * 40, "top5_cosine": share * 60})
            write_record(root, model, dataset, "newone", {"something": 1.25, "undefined": None})
        if model == TRAINED:
            write_runs(root, model, "cog_l5", "finetune", {22: 80.0})
    return root


def records(show, root, *argv):
    rows = json.loads(show("--models_root_dir", root, "--format", "json", *argv))
    found = {(r["model"], r["dataset"], r["experiment"], r["quantity"], r["n_shot"]): r for r in rows}
    assert len(found) == len(rows)
    return found


def test_analyses_by_data_set(show, root):
    found = records(show, root, "--analysis", "kmeans")
    assert {key[2] for key in found} == {"kmeans"} and len(found) == 2 * 3 * 5
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
    assert {key[2] for key in found} == {"kmeans", "alignment", "knn", "ncm", "newone"}
    assert found[UNTRAINED, "in1k", "newone", "something", 0]["value"] == 1.25
    assert not any(key[3] == "undefined" for key in found)
    out = show("--models_root_dir", root, "--analysis", "newone")
    assert "newone: something" in out and "1.250" in out
    with pytest.raises(
        CogError, match="no result of the analysis cross among those read; there is alignment, kmeans"
    ):
        show("--models_root_dir", root, "--analysis", "cross")


def test_nearest_neighbours_by_k(show, root):
    lines = show("--models_root_dir", root, "--analysis", "knn", "--dataset", "cog_l5").splitlines()
    start = lines.index("kNN, weighted vote, top-1 (%), cog_l5")
    assert lines[start + 2].split() == ["k=1", "k=20", "k=200"]
    assert lines[start + 3].split() == [TRAINED, "49.9", "48.0", "30.0"]


@pytest.fixture
def probed(tmp_path):
    """A model with the analyses that need classifiers."""
    root = tmp_path / "models"
    seeds = {"22": {"spearman": 0.4}, "37": {"spearman": 0.42}}
    values = {"spearman": 0.412, "spearman_low": -0.101, "spearman_high": 0.523, "n_concepts": 1000}
    values |= {"nearest_accuracy": 81.0, "farthest_accuracy": 60.5}
    write_record(root, TRAINED, "cog_l1", "distance", values, per_seed=seeds)
    write_record(root, TRAINED, "cog_l1", "distance_N8", {"spearman": 0.2})
    confident = {"confident_percent": 2.7, "confident_percent_std": 0.1, "n_confident": 1350, "auroc": 91.5}
    write_record(root, TRAINED, "cog_l1", "cross_in1k", confident)
    write_record(
        root, TRAINED, "cog_l1", f"winners_{UNTRAINED}", {"mean_difference": 12.345, "n_better": 900,
        "n_surely_better": 640, "n_surely_worse": 12},
    )  # fmt: skip
    return root


def test_doubts_about_runs_of_variants_are_told(capsys, tmp_path):
    root = tmp_path / "models"
    write_runs(root, TRAINED, "cog_l5", "logreg", {22: 50.0, 37: 51.0})
    write_runs(root, TRAINED, "cog_l5", "mlp", {22: 50.0, 37: 51.0})
    write_runs(root, TRAINED, "cog_l5", "my_own", {22: 50.0})
    # it ended early, and is no run of another number of epochs for that
    one = make_seed_folder(root / "mini/trained/cog_l5/eval_mlp/seed-45", n_epochs=1)
    settings = {"n_epochs": 3}
    for seed in (22, 37, 45):
        folder = one.parent / f"seed-{seed}"
        make_record(folder, seed=seed, diverged=seed == 45)
        record = json.loads((folder / "results.json").read_text())
        (folder / "results.json").write_text(json.dumps(record | {"identity": settings}))
    cli.set_up_logging()
    print_results.main(["--models_root_dir", str(root), "--overview"])
    assert f"training diverged, counted all the same: {one}" in capsys.readouterr().err
    print_results.main(["--models_root_dir", str(root)])
    assert "diverged" not in capsys.readouterr().err, "not among the numbers shown"


def test_correlations_have_their_interval(show, probed):
    out = show("--models_root_dir", probed, "--analysis", "distance")
    assert "0.41 [-0.10, 0.52]" in out and "±" not in out and "bootstrap" in out
    assert "spearman low" not in out and "1000" in out and "IN-1K, N8" in " ".join(out.split())
    found = records(show, probed, "--analysis", "distance")
    assert found[TRAINED, "cog_l1", "distance", "spearman_low", 0]["value"] == -0.101
    found = records(show, probed, "--overview")
    assert {key[2:4] for key in found} == {
        ("distance", "spearman"), ("distance", "farthest_accuracy"),
        ("cross_in1k", "confident_percent"), ("cross_in1k", "auroc"),
        (f"winners_{UNTRAINED}", "n_surely_better"), (f"winners_{UNTRAINED}", "n_surely_worse"),
    }  # fmt: skip
    lines = {" ".join(line.split()) for line in show("--models_root_dir", probed, "--overview").splitlines()}
    assert "farthest tenth of the concepts (%) higher 60.5" in lines
    assert "in1k classifier, AUROC own/here (%) higher 91.5" in lines
    assert f"concepts worse than {UNTRAINED} (FDR 5 %) lower 12" in lines
    assert "accuracy ~ similarity, Spearman - 0.41 [-0.10, 0.52]" in lines
    assert "[ ]: 95 % bootstrap interval over concepts; seeds are averaged before." in lines


def test_probes_of_classifiers(show, probed):
    out = show("--models_root_dir", probed, "--analysis", "cross", "winners")
    assert "classifier of in1k on other test images: confident (%)" in out and "2.70" in out and "1350" in out
    assert f"concept by concept against {UNTRAINED}: mean difference (points)" in " ".join(out.split())
    assert "+12.35" in out or "+12.34" in out


def test_alignment_relative_to_in1k(show, root):
    found = records(show, root, "--analysis", "alignment", "--dataset", "cog_l5")
    assert found[TRAINED, "cog_l5", "alignment", "alignment_ratio_to_in1k", 0]["value"] == pytest.approx(1.0)
    assert {key[1] for key in found} == {"cog_l5"}, "in1k is read for the ratio, and not shown"


def test_variants_relative_to_logistic_regression(show, root):
    found = records(show, root, "--variants", "all")
    for model in (TRAINED, UNTRAINED):
        for dataset in ("in1k", "cog_l5"):
            base = statistics.fmean(top1_of(model, dataset, "logreg", s) for s in SEEDS)
            for name in ("mlp", "mlp_noact"):
                mean = statistics.fmean(top1_of(model, dataset, name, s) for s in SEEDS)
                row = found[model, dataset, name, "relative_to_logreg", 0]
                assert row["value"] == pytest.approx(100 * (mean - base) / base)
                assert found[model, dataset, name, "top1", 0]["value"] == pytest.approx(mean)
            row = found[model, dataset, "logreg_max732", "points_to_logreg", 0]
            assert row["value"] == pytest.approx(-3 if model == TRAINED else -1)
            assert (model, dataset, "logreg_pca32", "top1", 0) in found
        row = found[model, "in1k_blurred", "logreg", "points_to_in1k", 8]
        assert row["value"] == pytest.approx(-1 if model == TRAINED else -1 / 3)
    # One seed tells no deviation; the frozen features are the ones that are compared here.
    assert found[TRAINED, "cog_l5", "finetune", "top1", 0]["std"] is None
    assert found[TRAINED, "cog_l5", "finetune", "logreg_relative", 0]["value"] == pytest.approx(
        100 * (50.1 - 80) / 80
    )
    assert found[TRAINED, "cog_l5", "finetune", "logreg_points", 0]["value"] == pytest.approx(50.1 - 80)
    assert not found[TRAINED, "cog_l5", "finetune", "top1", 0]["missing_seeds"]


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

    def average(evaluation, correct, dataset="in1k", seeds=(1, 2)):
        values = tuple((2 * correct).mean(axis=1))
        counts = tuple(ConceptCounts(array("I", row.tolist()), 50) for row in correct)
        mean = statistics.fmean(values)
        return SeedAverage(
            "a_b", dataset, evaluation, "top1", 0, mean, 0.1, seeds, by_seed=values, concepts=counts
        )

    logreg, mlp = average("logreg", base), average("mlp", np.clip(base + 2, 0, 50))
    tuned = average("finetune", np.clip(base + 5, 0, 50))
    blurred = average("logreg", base - 1, "in1k_blurred")
    found = {
        (m.evaluation, m.dataset, m.metric): m.value for m in relative.derive([logreg, mlp, tuned, blurred])
    }
    for place, of, one, other in (
        (("mlp", "in1k", "points_to_logreg"), uncertainty.difference, mlp, logreg),
        (("mlp", "in1k", "relative_to_logreg"), uncertainty.relative_difference, mlp, logreg),
        (("finetune", "in1k", "logreg_points"), uncertainty.difference, logreg, tuned),
        (("finetune", "in1k", "logreg_relative"), uncertainty.relative_difference, logreg, tuned),
        (("logreg", "in1k_blurred", "points_to_in1k"), uncertainty.difference, blurred, logreg),
    ):
        expected = of(one.concepts, other.concepts)
        ends = [found[(*place[:2], name)] for name in scores.interval_of(place[2])]
        assert found[place] == pytest.approx(expected.mean)
        assert ends == pytest.approx([expected.low, expected.high])
    averages = Averages(relative.derive([logreg, mlp]))
    style = TableStyle(decimals=1, paper_labels=False, with_source=False, model_facts=None, marks=False)
    tables = experiments.of_variants(averages, ["mlp"], style=style).tables
    assert all("[" in entry.interval for table in tables for _, (entry,) in table.rows)
    assert {note.text for table in tables for note in table.notes} == {metric_info.OVER_CONCEPTS_AND_SEEDS}
    # Of other seeds there is nothing to pair.
    apart = relative.derive([logreg, average("mlp", base, seeds=(3, 4))])
    assert {m.metric for m in apart} == {"top1", "relative_to_logreg", "points_to_logreg"}


def test_principal_components_by_dimension(show, root):
    lines = show("--models_root_dir", root, "--variants", "pca", "--dataset", "cog_l5").splitlines()
    assert lines[2].split() == ["32", "256", "all"]
    assert [word for word in lines[3].split() if "." in word][::2] == ["35.1", "48.1", "50.1"]


def test_blurred_faces(show, root):
    lines = show("--models_root_dir", root, "--variants", "blurred", "--n_shot", "all").splitlines()
    assert lines[2].split() == ["in1k", "in1k_blurred", "difference"]
    assert [word for word in lines[3].split() if "." in word][::2] == ["60.1", "59.1", "-1.0"]
    assert "Mean difference: -0.67 points. The paper's mean drop" in lines[-1]


def test_an_overview_separates_trained_from_untrained(show, root):
    found = records(show, root, "--overview", "--dataset", "cog_l5")
    experiments_ = {key[2:] for key in found}
    assert {name for name, _, _ in experiments_} == {
        "logreg", "logreg_pca32", "logreg_pca256", "logreg_max732", "mlp", "mlp_noact", "finetune", "kmeans",
        "alignment", "knn", "ncm",
    }  # fmt: skip
    assert ("logreg", "top1", 1) in experiments_ and ("logreg", "top1", 8) in experiments_
    for key in experiments_ - {("finetune", "top1", 0)}:
        ours, theirs = (found[(model, "cog_l5", *key)]["value"] for model in (TRAINED, UNTRAINED))
        better = metric_info.describe(*key).better
        assert better == 0 or (ours - theirs) * better > 0, key
    out = show("--models_root_dir", root, "--overview", "--dataset", "cog_l5")
    assert out.count("all experiments on") == 1 and "fine-tuned (%)" in out
    assert max(map(len, out.splitlines())) <= 100


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
    found = {row["dataset"]: row["mean"] for row in rows}
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
    for view in (("--analysis", "all"), ("--overview",), ("--overview", "EVAL.NAME", "mine")):
        rows = json.loads(show("--models_root_dir", tmp_path, "--format", "json", *view))
        assert {row["experiment"] for row in rows} <= {"logreg", "ncm"}
    (row,) = json.loads(show("--models_root_dir", tmp_path, "--format", "json", "EVAL.NAME", "logreg_old"))
    assert row["mean"] == 50.0


def test_variants_do_not_show_among_logistic_regression(show, root):
    rows = json.loads(show("--models_root_dir", root, "--format", "json", "--n_shot", "all"))
    assert len(rows) == 6
    assert [row["dataset"] for row in rows[:3]] == ["in1k", "in1k_blurred", "cog_l5"]


def test_files_carry_all_experiments(show, root, tmp_path):
    file = tmp_path / "ours.json"
    print_results.main(["--models_root_dir", str(root), "--export", str(file), "--label", "lab"])
    everything = exchange.load(file)
    content = [one for one in everything if not scores.is_protocol(one)]
    found = find.find_all(root)
    expected = run_records.average_variants(
        {k: v for k, v in found.runs.items() if k != "logreg"}
    ) + analysis_records.averages(found.analyses)
    assert sorted((m.evaluation, m.value, m.std, m.by_seed) for m in content) == sorted(
        (m.evaluation, m.value, m.std, m.by_seed) for m in expected
    )
    assert {m.source for m in content} == {"lab"} and len({m.place for m in content}) == len(expected)
    for view in (("--overview",), ("--analysis", "all"), ("--variants", "all")):
        here = json.loads(show("--models_root_dir", root, "--format", "json", *view))
        there = json.loads(show("--import", file, "--format", "json", *view))
        assert [{**row, "source": "lab"} for row in here] == there
    again = tmp_path / "again.json"
    print_results.main(["--import", str(file), "--export", str(again)])
    assert exchange.load(again) == everything
    both = json.loads(
        show("--models_root_dir", root, "--import", file, "--analysis", "ncm", "--format", "json")
    )
    assert {row["source"] for row in both} == {"runs", "lab"}
    assert "mini_trained [lab]" in show("--models_root_dir", root, "--import", file, "--analysis", "ncm")


def test_published_experiments_travel_and_cannot_be_forged(tmp_path):
    file = tmp_path / "paper.json"
    print_results.main(["--published_only", "--paper", "v1", "--export", str(file)])
    assert exchange.load(file) == published.averages("v1")
    text = file.read_text()
    start = text.index('"evaluation": "kmeans"')
    file.write_text(text[:start] + text[start:].replace('"value": 0.659', '"value": 0.959', 1))
    with pytest.raises(
        CogError, match="kmeans purity_v1 of sup_resnet50 on in1k is labelled 'paper v1' but is not"
    ):
        exchange.load(file)


GOOD = SeedAverage("a_b", "in1k", "kmeans", "ami", 0, 0.5, 0.0, (0, 1), (), (0.5, 0.5))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"value": "NaN"}, "value is"),
        ({"value": None}, "value is null"),
        ({"value": True}, "value is true"),
        ({"std": -1}, "expected a deviation"),
        ({"std": 0.5}, "does not have the population standard deviation"),
        ({"by_seed": [0.5]}, "a number for each seed"),
        ({"evaluation": "../x"}, "expected a name of letters"),
        ({"metric": ""}, "expected a name of letters"),
        ({"metric": 3}, "expected a name of letters"),
        ({"model": "x"}, "expected <model_title>"),
        ({"seeds": [1, 0]}, "ascending"),
        ({"missing_seeds": [0]}, "names a seed that is there"),
        ({"extra": 1}, "unknown entry"),
        ({"source": "runs"}, "reserved"),
    ],
)
def test_bad_measures_in_a_file(tmp_path, change, message):
    content = json.loads(exchange.dump([GOOD], label="lab"))
    content["entries"][0] |= change
    (tmp_path / "f.json").write_text(json.dumps(content))
    with pytest.raises(CogError, match=re.escape(message)):
        exchange.load(tmp_path / "f.json")
    if "value" in change:  # without the list, or twice the same
        content["entries"] = json.loads(exchange.dump([GOOD, GOOD]))["entries"]
        (tmp_path / "f.json").write_text(json.dumps(content))
        with pytest.raises(CogError, match="is a second kmeans ami"):
            exchange.load(tmp_path / "f.json")


def test_files_that_disagree():
    other = SeedAverage("a_b", "in1k", "kmeans", "ami", 0, 0.6)
    assert exchange.merge(("f", [GOOD]), ("g", [GOOD])) == [GOOD]
    with pytest.raises(CogError, match="f and g have different numbers of kmeans ami of a_b on in1k"):
        exchange.merge(("f", [GOOD]), ("g", [other]))


@pytest.mark.parametrize(
    "argv, message",
    [
        (("--analysis", "kmeans", "--overview"), "--analysis and --overview are different views"),
        (("--variants", "mlp", "--rank"), "--rank and --variants are different views"),
        (("--view", "shots", "--overview"), "--view and --overview are different views"),
        (("--variants", "rnn"), "'rnn' is not one of mlp, pca, balanced, blurred, finetune, all"),
        (("--analysis", "nothing"), "no result of the analysis nothing"),
        (("--analysis", "ncmm"), "did you mean ncm?"),
        (("--analysis", "kmeans", "--model", "no_model"), "no_model"),
        (("--analysis", "kmeans", "--dataset", "elsewhere"), "elsewhere"),
    ],
)
def test_requests_that_cannot_be_met(root, argv, message, capsys):
    try:
        print_results.main(["--models_root_dir", str(root), *argv])
        raise AssertionError("expected an error")
    except CogError as error:
        assert message in str(error)
    except SystemExit as error:
        assert error.code == 2 and message in capsys.readouterr().err


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
    for name in (
        "analysis_pipe",
        "analysis_folder/results.json",
        "analysis_large",
        "analysis_empty",
        "analysis_",
        "analysis_.x",
    ):
        (parent / name).mkdir(parents=True)
    os.mkfifo(parent / "analysis_pipe/results.json")
    with open(parent / "analysis_large/results.json", "wb") as handle:
        handle.truncate(1 << 30)
    (parent / "analysis_file").write_text("")
    found = find.find_all(one_good)
    assert [record.model for record in found.analyses] == ["a_good"]
    reasons = {problem.path.name: problem.reason for problem in found.problems}
    assert reasons.keys() == {"analysis_pipe", "analysis_folder", "analysis_large", "analysis_empty"}
    assert "not a regular file" in reasons["analysis_pipe"] and "larger than" in reasons["analysis_large"]


def test_hostile_names_and_texts_are_escaped(one_good, show):
    hostile = folder_of(one_good, "a_bad", "in1k") / "analysis_newone"
    write_record(one_good, "a_bad", "in1k", "newone", {"a\x1b[31m\n\u202e": 0.25})
    write_record(one_good, "a_odd", "in1k", "kmeans", {"ami": 0.25}, device="\x1b[2J", identity={"k": "\x00"})
    out = show("--models_root_dir", one_good, "--analysis", "all")
    assert "\x1b" not in out and "0.250" in out
    (problem,) = find.find_all(one_good).problems
    assert problem.path == hostile and "\\x1b" in problem.reason


def unfinished(path, **traces):
    path.mkdir(parents=True)
    for name, content in traces.items():
        if content is None:
            (path / f".{name}").mkdir()
        else:
            (path / f".{name}").write_text(content)


FAILURE = json.dumps({"message": "out of memory", "when": "2026-01-01", "host": "h", "job": "7_1"})


def test_unfinished_runs_are_told_from_damaged_ones(tmp_path, capsys):
    from cog.runtime import locks

    root = tmp_path / "models"
    write_runs(root, "a_b", "in1k", "logreg", {22: 60.0})
    base = folder_of(root, "a_b", "in1k")
    make_record(base / "eval_logreg/seed-22")
    unfinished(base / "eval_logreg/seed-37", resume=None)
    unfinished(base / "eval_logreg/seed-45", **{"failed.json": FAILURE})
    unfinished(base / "eval_logreg/seed-77", **{"partial-abc": None})
    unfinished(base / "analysis_knn", resume=None)
    unfinished(base / "analysis_ncm", **{"failed.json": FAILURE})
    unfinished(base / "eval_logreg/seed-1", **{"failed.json": "damaged"})
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
    assert set(found.runs) == {name.partition("_N")[0] for name in SCORES} | {"finetune"}
    for name, runs in found.runs.items():
        assert {run.evaluation for run in runs} == {name}
    run = found.runs["mlp"][0]
    again, _ = find.read_evaluation(run.path.parent)
    assert again[0].evaluation == "mlp"


def test_descriptions_and_names():
    assert metric_info.classifier("logreg_pca256_max732") == metric_info.ClassifierName("logreg", 256, 732)
    assert metric_info.classifier("mlp_noact").type == "mlp_noact"
    assert metric_info.classifier("kmeans") is None and metric_info.classifier("logreg2") is None
    assert neighbor_metric("top1_k20_weighted") == (20, "weighted", "top1")
    assert neighbor_metric("inertia") is None
    assert metric_info.describe("cross_in1k", "x").label == "classifier of in1k on other test images: x"
    assert metric_info.companion_of("spearman_low") == "spearman" and metric_info.companion_of("low") is None
    assert constants.IN1K_BLURRED == "in1k_blurred"


def test_what_is_of_a_classifiers_own_test_images_says_so():
    own = metric_info.describe("cross_in1k", "own_mean_confidence")
    other = metric_info.describe("cross_in1k", "mean_confidence")
    assert own.label == "classifier of in1k on its own test images: mean confidence"
    assert other.label == "classifier of in1k on other test images: mean confidence"
    assert metric_info.describe("cross_in1k", "own_confident_percent").unit == metric_info.PERCENT
    # a count averaged over seeds
    assert metric_info.describe("cross_in1k", "n_confident").decimals == 1


def test_correlations_within_levels_name_the_level():
    within = metric_info.describe("distance_N1", "spearman_cog_l5")
    assert within.label.endswith("with its similarity to IN-1K within cog_l5, N1") and within.decimals == 2
    assert metric_info.describe("distance", "spearman_low").group == "distance"
    assert "within" not in metric_info.describe("distance", "spearman_low").label


def test_p_values_are_not_rounded_to_zero(capsys, tmp_path):
    root = tmp_path / "models"
    write_record(root, TRAINED, "cog_l5", f"winners_{UNTRAINED}", {"p_sign_test": 2.9767e-59})
    print_results.main(["--models_root_dir", str(root), "--analysis", "winners"])
    assert capsys.readouterr().out.split()[-1] == "3e-59"
    print_results.main(["--models_root_dir", str(root), "--analysis", "winners", "--decimals", "3"])
    assert capsys.readouterr().out.split()[-1] == "0.000"


@pytest.mark.parametrize("view", [["--overview"], ["--variants", "all"]])
@pytest.mark.parametrize("metric", ["top5", "both"])
def test_views_of_top1_only_refuse_another_metric(tmp_path, view, metric):
    with pytest.raises(CogError, match=f"{view[0]} shows top-1 only; leave out --metric {metric}"):
        print_results.main(["--models_root_dir", str(tmp_path), *view, "--metric", metric])


def exported(root, path, *argv):
    print_results.main(["--models_root_dir", str(root), "--export", str(path), *map(str, argv)])
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    "keys, evaluation", [(("CLF.PCA_DIM", 256), "logreg_pca256"), (("EVAL.NAME", "finetune"), "finetune")]
)
def test_an_exported_variant_is_not_taken_for_the_protocols_classifier(
    show, root, tmp_path, keys, evaluation
):
    path = tmp_path / "variant.json"
    content = exported(root, path, *keys)
    assert {row["evaluation"] for row in content["entries"]} == {evaluation}
    lacking = sorted({*constants.SEEDS} - {*SEEDS}) if evaluation != "finetune" else []
    assert all(row.get("missing_seeds", []) == lacking for row in content["entries"])
    found = json.loads(show("--import", path, "--overview", "--format", "json"))
    assert {row["experiment"] for row in found} == {evaluation}
    with pytest.raises(CogError, match="only numbers of other experiments there; add --overview"):
        show("--import", path)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"value": 180.0, "by_seed": [], "std": None}, "value is 180.0, expected a percentage"),
        ({"value": 1.0}, "by_seed does not have the mean that is given"),
    ],
)
def test_accuracies_in_a_file_are_checked_whatever_the_classifier(show, root, tmp_path, change, message):
    path = tmp_path / "ours.json"
    content = exported(root, path)
    next(row for row in content["entries"] if row["evaluation"] == "mlp").update(change)
    path.write_text(json.dumps(content))
    with pytest.raises(CogError, match=message):
        show("--import", path, "--variants", "mlp")


def test_seeds_that_only_the_reference_lacks_are_told(show, tmp_path):
    root = tmp_path / "models"
    write_runs(root, TRAINED, "cog_l5", "logreg", dict.fromkeys(constants.SEEDS[:3], 50.0))
    write_runs(root, TRAINED, "cog_l5", "mlp", dict.fromkeys(constants.SEEDS, 60.0))
    write_runs(root, TRAINED, "cog_l5", "finetune", {22: 80.0})
    found = records(show, root, "--variants", "all")
    lacking = list(constants.SEEDS[3:])
    assert found[TRAINED, "cog_l5", "mlp", "top1", 0]["missing_seeds"] == []
    for experiment, quantity in (("mlp", "relative_to_logreg"), ("finetune", "logreg_points")):
        row = found[TRAINED, "cog_l5", experiment, quantity, 0]
        assert (row["seeds"], row["missing_seeds"]) == (list(constants.SEEDS[:3]), lacking)
    assert "+20.0 ± 0.0 (3/5)" in show("--models_root_dir", root, "--variants", "mlp")


def test_mixed_epochs_of_a_variant_name_it(tmp_path):
    root = tmp_path / "models"
    write_runs(root, TRAINED, "cog_l5", "logreg", {22: 50.0, 37: 51.0})
    for seed, n_epochs in ((22, 2), (37, 3)):
        make_seed_folder(root / f"mini/trained/cog_l5/eval_mlp/seed-{seed}", n_epochs=n_epochs)
    with pytest.raises(CogError, match=f"mlp, {TRAINED}, cog_l5, all training images: seeds were trained"):
        print_results.main(["--models_root_dir", str(root), "--overview"])


def test_one_folder_is_what_its_name_says(show, root, tmp_path):
    folder = root / "mini/trained/cog_l5/eval_logreg_pca256"
    found = json.loads(show("--logreg_root_dir", folder, "--overview", "--format", "json"))
    assert [(row["experiment"], row["quantity"]) for row in found] == [("logreg_pca256", "top1")]
    path = tmp_path / "one.json"
    print_results.main(["--logreg_root_dir", str(folder), "--export", str(path)])
    content = json.loads(path.read_text())
    assert {row["evaluation"] for row in content["entries"]} == {"logreg_pca256"}
    print_results.main(["--logreg_root_dir", str(folder.with_name("eval_logreg")), "--export", f"{path}2"])
    assert len(json.loads((tmp_path / "one.json2").read_text())["entries"]) == 2
