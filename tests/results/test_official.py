"""Results on other data than the benchmark's are nowhere set beside published numbers; imports say what they are on."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json

import pytest
import report_runs
from result_folders import make_record, make_seed_folder, print_results_as_user

from cog import constants
from cog.data.wnids import IN1K_LIST, class_list_digest
from cog.errors import CogError
from cog.reporting import figures
from cog.results import exchange, find, official, published, run_records
from cog.results.official import Match
from cog.results.scores import Counts, SeedAverage

SEEDS = (22, 37)
REASON = "17 classes where the benchmark has 1,000"


def make_runs(place, top1, counts):
    """Write runs of both seeds that record the numbers of classes, training and test images."""
    n_classes, n_train, n_test = counts
    for seed in SEEDS:
        path = make_seed_folder(place / f"eval_logreg/seed-{seed}", top1, 99.0)
        rows = {"final_train": n_train, "test": n_test}
        make_record(path, seed=seed, record={"n_classes": n_classes, "rows": rows})


@pytest.fixture
def root(tmp_path):
    """toy_net and sup_resnet50 on 17 classes; real_net on data with the benchmark's numbers."""
    root = tmp_path / "models"
    make_runs(root / "toy/net/in1k", 99.0, (17, 1700, 340))
    make_runs(root / "sup/resnet50/in1k", 98.0, (17, 1700, 340))
    make_runs(root / "real/net/in1k", 60.0, (1000, 1_281_167, 50_000))
    return root


@pytest.fixture
def run(capsys):
    """Return a function that runs print_results.py and returns what it writes."""

    def run_(*argv):
        capsys.readouterr()
        print_results_as_user(*argv)
        return capsys.readouterr()

    return run_


def rows(text):
    return [row for row in csv.DictReader(io.StringIO(text)) if row["metric"] == "top1"]


def published_ranks(run):
    found = rows(run("--published_only", "--dataset", "in1k", "--n_shot", 0, "--rank", "--format", "csv").out)
    return {row["model"]: int(row["rank"]) for row in found}


@pytest.mark.parametrize("imported", [False, True])
def test_ranks_leave_out_results_on_other_data(root, run, tmp_path, imported):
    source = ("--models_root_dir", root)
    if imported:
        run(*source, "--export", tmp_path / "lab.json")
        source = ("--import", tmp_path / "lab.json")
    argv = (*source, "--with_published", "--dataset", "in1k", "--n_shot", 0, "--rank")
    shown = run(*argv, "--format", "csv")
    assert REASON in shown.err and "toy_net" in shown.err
    found = {(row["model"], row["source"]): row for row in rows(shown.out)}
    own = "lab" if imported else "runs"
    assert ("toy_net", own) not in found and ("sup_resnet50", own) not in found
    assert int(found["real_net", own]["n_ranked"]) == 32
    before = published_ranks(run)
    worse = [row for (_, src), row in found.items() if src != own]
    assert all(int(row["rank"]) - before[row["model"]] in (0, 1) for row in worse)
    text = " ".join(run(*argv).out.split())
    assert f"Not compared with published numbers: {REASON}" in text


def test_other_data_are_not_ranked_beside_official_runs_either(root, run):
    shown = run("--models_root_dir", root, "--rank", "--format", "csv")
    assert [(row["model"], row["rank"]) for row in rows(shown.out)] == [("real_net", "1")]
    assert "not compared with results on the benchmark's data" in shown.err.lower()


def test_differences_to_published_numbers_are_refused(root, run):
    select = ("--models_root_dir", root, "--dataset", "in1k", "--n_shot", 0)
    with pytest.raises(CogError, match=f"^not compared with published numbers: {REASON}"):
        run(*select, "--with_published", "--model", "toy_net", "--relative_to", "dino_resnet50")
    # An own baseline on the same data serves.
    assert "+1.0" in run(*select, "--model", "toy_net", "--relative_to", "sup_resnet50").out
    found = rows(run(*select, "--with_published", "--relative_to", "dino_resnet50", "--format", "csv").out)
    models = {row["model"] for row in found if row["source"] == "runs"}
    assert models == {"real_net"} and len(found) == 32


def test_figures_do_not_draw_other_data_beside_published_numbers(root, caplog):
    runs, _ = find.find_runs(root)
    cells, paper = run_records.average_runs(runs), published.accuracies()

    def drawn(own):
        (chart,) = figures.charts(own, paper, which=["fig3"])
        return chart, {(row["model"], row["source"]) for row in csv.DictReader(chart.csv().splitlines())}

    chart, found = drawn(cells)
    assert ("real_net", "runs") in found and ("dino_resnet50", "paper v2") in found
    assert not {("toy_net", "runs"), ("sup_resnet50", "runs")} & found
    assert any(REASON in note for note in chart.notes) and REASON in caplog.text
    chart, found = drawn([cell for cell in cells if cell.model != "real_net"])
    assert found == {("toy_net", "runs"), ("sup_resnet50", "runs")}  # the published ones make way
    assert any(REASON in note for note in chart.notes)


def test_exports_carry_counts_and_imports_without_are_unverified(root, run, tmp_path):
    file = tmp_path / "lab.json"
    run("--models_root_dir", root, "--export", file)
    cells = {cell.model: cell for cell in exchange.load(file)}
    assert cells["toy_net"].counts == Counts((17,), (1700,), (340,))
    assert cells["real_net"].counts == Counts((1000,), (1_281_167,), (50_000,))
    argv = ("--import", file, "--with_published", "--dataset", "in1k", "--n_shot", 0, "--rank")
    assert "nverified" not in run(*argv).out
    content = json.loads(file.read_text())
    for entry in content["entries"]:
        del entry["counts"]
    file.write_text(json.dumps(content))
    out = " ".join(run(*argv).out.split())
    assert "Unverified: " in out and "toy_net [lab] on in1k" in out
    for bad in (3, {}, {"classes": [2, 1], "train_images": [], "test_images": []}, {"classes": 17},
                {"classes": [0], "train_images": [], "test_images": []}):  # fmt: skip
        content["entries"][0]["counts"] = bad
        file.write_text(json.dumps(content))
        with pytest.raises(CogError, match="counts"):
            exchange.load(file)


def test_descriptions_of_features_count_where_runs_do_not_tell(tmp_path, run):
    place = tmp_path / "models/toy/net/in1k"
    for seed in SEEDS:
        make_seed_folder(place / f"eval_logreg_N8/seed-{seed}", 90.0, 99.0)
    argv = ("--models_root_dir", tmp_path / "models", "--with_published", "--rank", "--format", "csv")
    assert any(row["source"] == "runs" for row in rows(run(*argv).out))  # nothing is known
    (place / "features_train").mkdir()
    for known, difference in (
        ({"n_images": 1700, "n_failed": 0, "n_classes": 17}, REASON),
        ({"class_list_sha256": OTHER}, "other classes than the benchmark's"),
        *(({"class_list_sha256": odd}, "") for odd in (17, OTHER.upper(), f"{OTHER}\n")),
    ):
        (place / "features_train/features.json").write_text(json.dumps(known))
        shown = run(*argv)
        assert difference in shown.err
        assert any(row["source"] == "runs" for row in rows(shown.out)) == (not difference)


def test_the_first_difference_is_named_and_many_are_cut():
    cells = [cell for cell in published.accuracies() if (cell.dataset, cell.n_shot) == ("in1k", 0)]
    own = [dataclasses.replace(cell, source="lab", counts=Counts((17,))) for cell in cells]
    text = official.compare([*cells, *own]).refused
    assert len(text) < 250 and "and 28 more models" in text
    assert official.compare(own).refused == "" and official.compare(cells).refused == ""
    assert constants.IN1K in text


# --- lists of classes

OTHER = class_list_digest(["n1", "n2"])
ALL = Counts((1000,), (1_281_167,), (50_000,))


def on(classes, *, model="a_b", dataset="in1k", counts=ALL, source="lab", value=70.0):
    """An accuracy on classes with this digest."""
    counts = dataclasses.replace(counts, class_lists=(classes,) if classes else ())
    return SeedAverage(model, dataset, "logreg", "top1", 0, value, source=source, counts=counts)


def test_the_digest_is_of_the_names_in_any_order():
    assert class_list_digest(["b", "a"]) == hashlib.sha256(b"a\nb").hexdigest() != class_list_digest(["ab"])
    names = IN1K_LIST.read_text().split()
    assert len(set(names)) == 1000 and official.in1k_class_list() == class_list_digest(reversed(names))


def test_as_many_classes_as_the_benchmark_need_not_be_its_classes():
    own, paper = on(official.in1k_class_list()), published.accuracies()
    assert official.compare([own, *paper]).refused == ""
    other = on(OTHER, model="c_d")
    known = official.compare([own, other, *paper])
    assert known.refused == (
        "not compared with published numbers: other classes than the benchmark's (c_d [lab] on in1k)"
    )
    assert known.is_foreign(other) and not known.is_foreign(own) and not known.allows(own, other)
    # Nobody can tell of the levels which list is the official one, but that two differ.
    one, two, unknown = (
        on(digest, model=f"m_{i}", dataset="cog_l1") for i, digest in enumerate((OTHER, "0" * 64, ""))
    )
    known = official.compare([one, two, unknown])
    assert known.allows(one, one) and known.allows(one, unknown) and not known.allows(one, two)
    assert (
        known.remarks[0]
        == "on different classes, not compared with each other: m_0 [lab] on cog_l1 / m_1 [lab] on cog_l1"
    )
    both = [dataclasses.replace(a, dataset=name) for name in ("cog_l1", "cog_l2") for a in (one, two)]
    assert official.compare(both).mixed_places == [
        "m_0 [lab] on cog_l1, cog_l2 / m_1 [lab] on cog_l1, cog_l2"
    ]
    assert official.compare([one, unknown]).mixed == "" and official.compare([own, other]).mixed == ""


def test_different_classes_of_the_same_number_are_in_no_comparison(tmp_path, run):
    counts = Counts((17,), (800 * 17,), (50 * 17,))
    cells = [
        on(digest, model=model, dataset="cog_l1", counts=counts, source="runs", value=value)
        for model, digest, value in (
            ("a_one", OTHER, 90.0),
            ("b_one", OTHER, 80.0),
            ("c_two", "0" * 64, 85.0),
        )
    ]
    exchange.write(tmp_path / "f.json", cells, label="lab")
    source = ("--import", tmp_path / "f.json")
    found = rows(run(*source, "--rank", "--format", "csv").out)
    ranks = {row["model"]: (row["rank"], row["n_ranked"]) for row in found}
    assert ranks == {"a_one": ("1", "2"), "b_one": ("2", "2"), "c_two": ("1", "1")}
    shown = run(*source, "--relative_to", "a_one", "--format", "csv")
    assert {row["model"] for row in rows(shown.out)} == {"a_one", "b_one"}
    assert "warning: on different classes" in shown.err
    run(*source, "--report", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "Different classes under one name" in page and "is highest" not in page


# ---- official data or not


FEWER = {"n_classes": 24, "rows": {"final_train": 1920, "test": 1200}}
BLURRED = {"rows": {"final_train": 1_281_066, "test": 49_997}}  # the paper's IN-1K-blurred


@pytest.mark.parametrize(
    ("changes", "match", "differences"),
    [
        ({}, Match.OFFICIAL, []),
        ({"n_shot": 8}, Match.OFFICIAL, []),
        ({"dataset": "cog_l3"}, Match.OFFICIAL, []),
        ({"dataset": "birds"}, Match.NONE, []),
        (FEWER, Match.DIFFERENT, ["24 classes", "1,920 training images", "1,200 test images"]),
        ({"rows": {"final_train": 1_281_167, "test": 40_000}}, Match.DIFFERENT, ["40,000 test images"]),
        ({"n_classes": 999}, Match.DIFFERENT, ["999 classes"]),
        (BLURRED, Match.OFFICIAL, []),
        ({"n_classes": None, "rows": {}}, Match.UNKNOWN, []),
    ],
)
def test_counts_are_those_of_the_official_data_or_not(changes, match, differences):
    """A few failed images do not forbid the comparison; runs without a record get the benefit of the doubt."""
    runs = run_records.average_runs([report_runs.make_run(**changes)])
    found = official.judge(changes.get("dataset", "in1k"), [average.counts for average in runs])
    assert found.match is match and found.match.comparable == (match not in (Match.DIFFERENT, Match.NONE))
    assert [text.partition(" where the benchmark has ")[0] for text in found.differences] == differences
