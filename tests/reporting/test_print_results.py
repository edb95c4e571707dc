"""The print_results command: what it prints, in which form, what it warns about, how it fails."""

import csv
import io
import json
import re
import sys

import pytest
from benchmark_runs import write_study
from result_folders import make_record, make_seed_folder
from result_folders import print_results_as_user as run

from cog.commands import print_results
from cog.reporting import render
from cog.results import published

pytestmark = pytest.mark.usefixtures("seen_in1k_alone")

SEEDS = (22, 37, 45, 77, 93)


def write_runs(folder, top1, seeds=SEEDS):
    for seed, change in zip(seeds, (-0.2, -0.1, 0.0, 0.1, 0.2)):
        make_seed_folder(folder / f"seed_{seed}", top1 + change, min(100.0, top1 + 20))


@pytest.fixture
def study(tmp_path):
    """Two models, three data sets, all images and 8 shots; one place incomplete, one absent."""
    root = tmp_path / "models"
    for dataset, top1 in (("in1k", 98.9), ("cog_l1", 9.5), ("my_birds", 71.0)):
        write_runs(root / f"net/big/{dataset}/eval_logreg", top1)
    write_runs(root / "net/small_v2/in1k/eval_logreg", 60.0)
    write_runs(root / "net/small_v2/in1k/eval_logreg-N8", 40.0)
    for seed in (22, 93):
        folder = make_seed_folder(root / f"net/small_v2/cog_l1/eval_logreg/seed-{seed}", seed / 2, 80.0)
        make_record(folder, seed=seed)
    return root


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def top1_of(text):
    return {(r["model"], r["dataset"], r["n_shot"]): r for r in rows_of(text) if r["metric"] == "top1"}


def test_one_evaluation_is_shown_seed_by_seed_however_it_is_named(study, capsys):
    select = ("--models_root_dir", study, "--model net_small_v2", "--dataset")
    run(*select, "cog_l1", "--seeds 22 5")
    assert capsys.readouterr().out.splitlines() == [
        "seed 22: top-1 11.00, top-5 80.00",
        "top-1: 11.00 +- 0.00 (test/top1, 1 seed)",
        "top-5: 80.00 +- 0.00 (test/top5, 1 seed)",
        "missing seeds: 5",
    ]
    folder = study / "net/small_v2/in1k/eval_logreg-N8"
    run("--logreg_root_dir", folder)
    expected = capsys.readouterr().out
    assert "top-1: 40.00 +- 0.14" in expected
    for argv in (
        (*select, "in1k", "EVAL.SEED", 55, "CLF.N_SHOT", 8, "EVAL.NAME", "logreg"),
        (*select, "in1k", "--n_shot", 8, "--logreg_root_dir", "None", "CLF.N_SHOT", 8, "--seeds", "null"),
    ):
        run(*argv)
        assert capsys.readouterr() == (expected, ""), argv


TEXT = """\
top-1 accuracy (%), all training images, mean ± std over seeds

              in1k        cog_l1             my_birds
net_big       98.9 ± 0.1   9.5 ± 0.1         71.0 ± 0.1
net_small_v2  60.0 ± 0.1  28.8 ± 17.8 (2/5)  -

top-1 accuracy (%), 8 training images per class, mean ± std over seeds

              in1k
net_small_v2  40.0 ± 0.1

missing seeds 37, 45, 77: net_small_v2 (cog_l1)
No interval without counts per concept, as runs of the authors' toolkit have none: all runs.
"""


@pytest.mark.parametrize("width", [40, 60, 100])
def test_everything_is_one_table_per_number_of_shots_that_fits(study, capsys, width, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    run("--models_root_dir", study)
    out, err = capsys.readouterr()
    assert err == "" and max(map(len, out.splitlines())) <= width and (out == TEXT or width < 100)
    assert all(word in out for word in TEXT.split() if word.replace(".", "").isdecimal())


def test_selections_and_all_digits(study, show):
    out = show("--models_root_dir", study, "--model net_small_v2 net_big --dataset cog_l1 in1k --n_shot all")
    assert [line.split()[0] for line in out.splitlines()[2:5]] == ["in1k", "net_small_v2", "net_big"]
    select = "--seeds 22 93 7 --format csv --n_shot 0 --dataset cog_l1"
    found = top1_of(show("--models_root_dir", study, select))
    numbers = {(key[0], row["n_seeds"], row["missing"]) for key, row in found.items()}
    assert numbers == {("net_big", "2", "7"), ("net_small_v2", "2", "7")}
    argv = ("--logreg_root_dir", study / "net/big/cog_l1/eval_logreg", "--format")
    rows, records = rows_of(show(*argv, "csv")), json.loads(show(*argv, "json"))
    assert [(row["model"], row["dataset"], row["metric"]) for row in rows] == [
        ("net_big", "cog_l1", metric) for metric in ("top1", "top5")
    ]
    assert float(rows[0]["value"]) == pytest.approx(9.5) and float(rows[0]["std"]) == pytest.approx(0.02**0.5)
    assert [float(row["value"]) for row in rows] == [row["value"] for row in records]
    assert records[0]["low"] is None


def test_markdown_and_latex(study, show):
    out = show("--models_root_dir", study, "--format markdown --n_shot all").splitlines()
    assert out[2].replace(" ", "") == "||in1k|cog_l1|my_birds|" and out[3].replace("-", "") == "|:|:|:|:|"
    argv = "--published --dataset in1k --n_shot all --format latex"
    out = show("--models_root_dir", study, argv).splitlines()
    assert out[2:4] == [r"\begin{tabular}{lr}", r"\toprule"] and r"\bottomrule" in out
    cells = {line.split("&")[0].strip(): line.split("&")[1].strip() for line in out if "&" in line}
    assert cells[""] == r"IN-1K \\" and cells["a-ResNet-152 [paper v2]"] == r"78.1 $\pm$ 0.1 \\"
    assert r"net\_big" in cells and out[0].startswith("% top-1")
    (study / "net/small_v2/in1k/eval_logreg").rename(study / "gone")
    drop = show("--models_root_dir", study, "--show drop --n_shot all --format latex")
    assert r"$-$90.4 $\pm$ 0.1" in drop and "\n% net_small_v2 on cog_l1.\n" in drop


def test_problems_and_doubts_are_warnings(study, capsys):
    (study / "net/big/in1k/eval_logreg/seed_45/final-lr-10.5_wd-1e-06/logs.pkl").write_bytes(b"half")
    make_record(study / "net/big/my_birds/eval_logreg/seed_22", diverged=True)
    run("--models_root_dir", study, "--model", "net_big", "net_bgi", "--n_shot", 0, 3)
    out, err = capsys.readouterr()
    base = study / "net/big"
    assert "net_big  98.9 ± 0.2 (4/5)  9.5 ± 0.1  -" in out and err.count("\n") == 5
    assert "warning: no result for --model net_bgi; did you mean net_big?" in err
    assert "warning: no result for --n_shot 3" in err
    assert f"not counted: {base}/in1k/eval_logreg/seed_45: final-lr-10.5_wd-1e-06/logs.pkl" in err
    assert f"diverged: net_big, my_birds, all, seed 22: {base}/my_birds/eval_logreg/seed_22" in err
    for form in render.FORMATS:  # the mean of a diverged run is marked in each of them
        run("--models_root_dir", study, "--dataset my_birds --seeds 22 --format", form)
        assert "diverged" in capsys.readouterr().out, form


def test_differences_with_verdicts_and_files_that_keep_every_number(tmp_path, show):
    root, file, twin = tmp_path / "models", tmp_path / "theirs.json", tmp_path / "<b>.json"
    models, datasets = {"sup_resnet50": 0.0, "mine_net": -3.0, "twin_net": 0.0}, ("in1k", "cog_l5")
    write_study(root, models, seeds=SEEDS, shots=(0,), datasets=datasets)
    argv = ("--models_root_dir", root, "--relative_to sup_resnet50")
    rows = top1_of(show(*argv, "--model mine_net --format csv"))
    assert {row["reading"] for row in rows.values()} == {"lower"}
    assert show(*argv).count("] *") == 2
    assert show("--models_root_dir", root, "--export", file) == "", "instead of the tables"
    for view in ("--relative_to sup_resnet50", "--show drop", "--show rank", "--n_shot all"):
        both = [("--models_root_dir", root), ("--import", file)]
        ours, theirs = (json.loads(show(*source, view, "--format json")) for source in both)
        without = [[{**row, "source": "", "baseline_source": ""} for row in rows] for rows in (ours, theirs)]
        assert sorted(map(str, without[0])) == sorted(map(str, without[1]))
    rows = json.loads(show(*argv, "--import", file, "--format json"))
    assert {row["source"] for row in rows} == {"runs", "theirs"}
    assert all(row["source"] == row["baseline_source"] for row in rows)
    show("--models_root_dir", root, "--export", twin, "--model twin_net")
    text = show(*argv, "--published --import", twin)
    assert "The baseline of rows from <b> is sup_resnet50 from runs: the two" in text
    assert show("--import", twin, "--format markdown").split("\n")[0].endswith("over seeds [&lt;b>]")


def test_signs_that_a_terminal_lacks_are_spelled():
    text = "a †  70.2 ± 1.4  80.1 ± 0.2\n±: deviation, ‡: unlike\n"
    expected = "a ^  70.2 +-1.4  80.1 +-0.2\n+-: deviation, #: unlike\n"
    assert render.spelled(text, "ascii") == expected and render.spelled(text, None) == text
    assert render.spelled(text, "latin-1") == text.replace("†", "^").replace("‡", "#")


def test_models_that_may_have_seen_the_levels_are_marked(show):
    out = show("--published", "--n_shot", "0")
    seen = "(IN-1K + other: ssup_resnet50, swsup_resnet50; web: mopro_resnet50, clip_resnet50)"
    assert "clip_resnet50 †" in out and seen in " ".join(out.split())
    assert "†" not in show("--published", "--n_shot", "0", "--dataset", "in1k"), "seen by all"


def test_flags_name_what_there_is(capsys):
    assert render.FORMATS == print_results.FORMATS
    assert tuple(published.SOURCES) == print_results.PAPERS
    with pytest.raises(SystemExit):
        print_results.main(["--help"])
    flags = set(re.findall(r"^ +(--\w+)", capsys.readouterr().out, re.MULTILINE)) - {"--help", "--version"}
    assert len(flags) == 16 and {"--logreg_root_dir", "--models_root_dir", "--model", "--dataset"} < flags
