"""concepts: accuracy of each concept by hand, the correlation by brute force, the recipes of the documentation."""

from __future__ import annotations

import csv
import importlib
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from analyzed_models import LEVEL, analyze, read, write_features, write_run
from scipy import stats

import cog.analysis
from cog.analysis import base, concepts
from cog.commands import analyze_features, print_results
from cog.errors import CogError

PAGE = Path(__file__).resolve().parents[2] / "docs/experiments.md"
HITS = {"cog_l1": ((7, 6, 5), (9, 6, 0)), "cog_l5": ((3, 2, 9), (1, 2, 8))}
WNIDS = {"cog_l1": LEVEL["cog_l1"], "cog_l5": ("n12651611", "n03000134", "n12649065")}
SIMILARITY = {wnid: 0.9 - 0.1 * k for k, wnid in enumerate([*WNIDS["cog_l1"], *WNIDS["cog_l5"]])}


@pytest.fixture
def levels_csv(tmp_path):
    path = tmp_path / "levels.csv"
    rows = [
        f'{k},{wnid},"a, b",{value!r},n1,seen,L1,9,0' for k, (wnid, value) in enumerate(SIMILARITY.items())
    ]
    header = "rank,wnid,names,similarity,nearest_seen,nearest_seen_names,level,images,average_rank"
    path.write_text("\n".join([header, *rows[:-1]]) + "\n")  # the last concept has no similarity
    return path


@pytest.fixture
def models(tmp_path, monkeypatch, wordnet):
    """Two models on two levels, two seeds each; the second model has the hits of the seeds swapped and reversed."""
    for model, step in (("my/net", 1), ("other/net", -1)):
        for dataset, wnids in WNIDS.items():
            for split, n in (("train", 4), ("test", 10)):
                write_features(tmp_path / "models", dataset, split, wnids, n=n, model=model)
            for seed, hits in zip((22, 37), HITS[dataset][::step], strict=True):
                write_run(tmp_path / "models", dataset, seed=seed, hits=hits[::step], model=model)
    monkeypatch.setattr(concepts, "load_wordnet", lambda: wordnet)  # which was read already
    return tmp_path / "models"


def test_the_table_has_similarity_subtree_counts_and_accuracies(models, levels_csv, wordnet):
    analyze(models, f"--analysis concepts --levels_csv {levels_csv} --dataset cog_l1 cog_l5")
    table = pd.read_csv(models / "my/net/cog_l5/analysis_concepts/concepts.csv")
    assert table["wnid"].tolist() == list(WNIDS["cog_l5"])
    assert table["subtree"].tolist() == ["plants", "structures", "plants"]
    assert table["names"].tolist() == [wordnet.words(wnid) for wnid in WNIDS["cog_l5"]]
    assert table["similarity"].tolist()[:2] == [SIMILARITY[wnid] for wnid in WNIDS["cog_l5"][:2]]
    assert table["similarity"].isna().tolist() == [False, False, True]
    assert (table["n_train"] == 4).all() and (table["n_test"] == 10).all()
    assert table["seed_22"].tolist() == [30, 20, 90] and table["seed_37"].tolist() == [10, 20, 80]
    assert table["accuracy"].tolist() == [20, 20, 85]
    record = read(models, "cog_l1", "concepts")
    assert record.values["accuracy"] == pytest.approx(np.mean(HITS["cog_l1"]) * 10)
    assert record.per_seed == {"22": {"accuracy": pytest.approx(60)}, "37": {"accuracy": pytest.approx(50)}}
    assert record.values["spearman"] == pytest.approx(1.0)  # accuracy falls as similarity does
    assert read(models, "cog_l5", "concepts").values["spearman"] is None  # of two concepts


def test_the_interval_is_that_of_a_plain_bootstrap():
    rng = np.random.default_rng(1)
    x = rng.normal(size=200).round(1)
    y = x + rng.normal(size=200)
    value, low, high = concepts.spearman(x, y)
    assert value == pytest.approx(stats.spearmanr(x, y).statistic)
    options = {"paired": True, "vectorized": False, "method": "percentile", "n_resamples": 2000}
    plain = stats.bootstrap((x, y), lambda a, b: stats.spearmanr(a, b).statistic, **options)
    assert [low, high] == pytest.approx(list(plain.confidence_interval), abs=0.02)
    assert concepts.spearman(np.ones(9), y[:9]) == (None, None, None)


def test_bad_levels_csv_and_missing_counts_end_in_one_line(models, tmp_path):
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    with pytest.raises(CogError, match=r"other\.csv is no levels\.csv of build_levels\.py"):
        analyze(models, f"--analysis concepts --levels_csv {other} --dataset cog_l1")
    with pytest.raises(CogError, match="no classifiers"):
        analyze(models, "--analysis concepts --dataset cog_l1 CLF.N_SHOT 4")
    for run in (models / "my/net/cog_l1/eval_logreg").glob("*/results.json"):
        run.write_text(re.sub(r'"correct_per_class": "[^"]*", ', "", run.read_text()))
    with pytest.raises(CogError, match="right answers per concept"):
        analyze(models, "--analysis concepts --dataset cog_l1")
    assert not (models / "my/net/cog_l1/analysis_concepts").exists()


def test_the_recipes_of_the_documentation_compute_what_they_say(models, levels_csv, capsys):
    analyze(models, f"--analysis concepts --levels_csv {levels_csv} --dataset cog_l1 cog_l5")
    flags = ["--models_root_dir", str(models), "--model", "other_net", "--dataset", "cog_l1", "cog_l5"]
    analyze_features.main(
        [*flags, "--analysis", "concepts", "--levels_csv", str(levels_csv), "--device", "cpu"]
    )
    section = PAGE.read_text().partition("## Accuracy per concept")[2].partition("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 4
    code = "".join(blocks).replace('"/models"', repr(str(models)))
    code = code.replace("sup/resnet50", "my/net").replace("dino/resnet50", "other/net")
    found: dict = {}
    exec(code, found)
    plants = [np.mean([hits[k] for hits in HITS["cog_l5"]]) * 10 for k in (0, 2)]
    assert found["by_subtree"].loc["plants", "mean"] == pytest.approx(np.mean(plants))
    assert found["by_subtree"]["count"].sum() == 6
    assert len(found["both"]) == 6 and (found["both"]["accuracy_2"] != found["both"]["accuracy"]).any()
    assert set(found["differing"]["wnid"]) <= set(SIMILARITY)
    assert found["within"] == {"mammals": pytest.approx(1.0)}


def test_a_new_analysis_of_one_file_is_in_table_csv_and_page(models, tmp_path, monkeypatch, capsys):
    """The file of the documentation, beside the package's own."""
    code = re.search(r"```python\n(# sparsity\.py.*?)```", PAGE.read_text(), re.DOTALL)
    assert code is not None and len(code[1].splitlines()) <= 15
    (tmp_path / "more").mkdir()
    (tmp_path / "more/sparsity.py").write_text(code[1])
    monkeypatch.setattr(cog.analysis, "__path__", [*cog.analysis.__path__, str(tmp_path / "more")])
    importlib.invalidate_caches()
    monkeypatch.setattr(base, "ANALYSES", dict(base.ANALYSES))
    analyze(models, "--analysis sparsity --dataset cog_l1 cog_l5")
    assert "sparsity: zero_percent 0" in capsys.readouterr().out
    flags = ["--models_root_dir", str(models), "--model", "my_net", "--analysis", "sparsity"]
    assert print_results.main(flags) == 0
    assert "sparsity" in capsys.readouterr().out
    assert print_results.main([*flags, "--format", "csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [float(row["value"]) for row in rows] == [0.0, 0.0]
    page = tmp_path / "report.html"
    assert print_results.main(["--models_root_dir", str(models), "--report", str(page)]) == 0
    assert "sparsity" in page.read_text()
