"""concepts and confident, by hand and by matrix products; the recipes of the documentation."""

import csv
import importlib
import json
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy
import tiny
import torch
from analyzed_models import DIM, LEVEL, analyze, read, table, write_features, write_run
from PIL import Image

import cog.analysis
from cog.analysis import base, trained
from cog.commands import print_results
from cog.errors import CogError
from cog.features import feature_files

PAGE = Path(__file__).resolve().parents[2] / "docs/experiments.md"
SEEN = ("n02084071", "n02121620", "n02374451", "n04037443")
HITS = {"cog_l1": ((7, 6, 5), (9, 6, 0)), "cog_l5": ((3, 2, 9), (1, 2, 8))}
WNIDS = {"cog_l1": LEVEL["cog_l1"], "cog_l5": ("n12651611", "n03000134", "n12649065")}
SIMILARITY = {wnid: 0.9 - 0.1 * k for k, wnid in enumerate([*WNIDS["cog_l1"], *WNIDS["cog_l5"]])}

#: The classifiers of in1k on the test images of cog_l1.
FITS = "--trained_on in1k --dataset cog_l1"
CONFIDENT = f"--analysis confident {FITS}"


@pytest.fixture
def models(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("COG_WORDNET_DIR", str(tmp_path / "no_wordnet"))  # reading it takes long
    return tmp_path / "models"


@pytest.fixture
def two_models(models, monkeypatch, wordnet):
    """Two models on two levels, two seeds each; the second has the hits of the seeds swapped and reversed."""
    for model, step in (("my/net", 1), ("other/net", -1)):
        for dataset, wnids in WNIDS.items():
            for split, n in (("train", 4), ("test", 10)):
                write_features(models, dataset, split, wnids, n=n, model=model)
            for seed, hits in zip((22, 37), HITS[dataset][::step], strict=True):
                write_run(models, dataset, seed=seed, hits=hits[::step], model=model)
    monkeypatch.setattr(trained, "optional_wordnet", lambda: wordnet)  # which was read already
    rows = [f'{wnid},{value!r},n1,"a, b",L1\n' for wnid, value in SIMILARITY.items()]
    rows[-1] = "wnid,similarity,nearest_seen,nearest_seen_names,level\n"  # without the last concept
    (models / "levels.csv").write_text("".join(rows[-1:] + rows[:-1]))
    return models


def concepts_of(models: Path, *more: str, **options) -> None:
    flags = f"--analysis concepts --levels_csv {models}/levels.csv --dataset cog_l1 cog_l5"
    analyze(models, flags, *more, **options)


def test_the_table_has_similarity_subtree_counts_and_accuracies(two_models, wordnet):
    concepts_of(two_models)
    found = pd.read_csv(two_models / "my/net/cog_l5/analysis_concepts/concepts.csv")
    assert found["wnid"].tolist() == list(WNIDS["cog_l5"])
    assert found["subtree"].tolist() == ["plants", "structures", "plants"]
    assert found["names"].tolist() == [wordnet.words(wnid) for wnid in WNIDS["cog_l5"]]
    expected = [*(SIMILARITY[wnid] for wnid in WNIDS["cog_l5"][:2]), np.nan]
    np.testing.assert_array_equal(found["similarity"], expected)
    assert (found["n_train"] == 4).all() and (found["n_test"] == 10).all()
    assert found["seed_22"].tolist() == [30, 20, 90] and found["seed_37"].tolist() == [10, 20, 80]
    assert found["accuracy"].tolist() == [20, 20, 85]
    record = read(two_models, "cog_l1", "concepts")
    assert record.per_seed == {"22": {"accuracy": pytest.approx(60)}, "37": {"accuracy": pytest.approx(50)}}
    assert record.values["accuracy"] == pytest.approx(55)
    assert record.values["spearman"] == pytest.approx(1.0)  # accuracy falls as similarity does
    assert read(two_models, "cog_l5", "concepts").values["spearman"] is None  # of two concepts


def test_the_interval_is_that_of_a_plain_bootstrap():
    x, y = np.random.default_rng(1).normal(size=(2, 200)).round(1)
    y += x
    value, low, high = trained.spearman(x, y)
    assert value == pytest.approx(scipy.stats.spearmanr(x, y).statistic)
    options = {"paired": True, "vectorized": False, "method": "percentile", "n_resamples": 1000}
    plain = scipy.stats.bootstrap((x, y), lambda a, b: scipy.stats.spearmanr(a, b).statistic, **options)
    assert [low, high] == pytest.approx(list(plain.confidence_interval), abs=0.02)
    assert trained.spearman(np.ones(9), y[:9]) == (None, None, None)


def test_a_bad_levels_csv_and_other_test_images_end_in_one_line(two_models):
    twice = (two_models / "levels.csv").read_text() + f"{WNIDS['cog_l1'][0]},0.1,n1,a,L1\n"
    for content in ("a,b\n1,2\n", twice):
        (two_models / "levels.csv").write_text(content)
        with pytest.raises(CogError, match=r"levels\.csv is no levels\.csv of build_levels\.py"):
            concepts_of(two_models)
    used = {"test_features": {"image_list_sha256": "a"}}
    write_run(two_models, "cog_l1", seed=45, hits=(1, 1, 1), record={"identity": used})
    described = {"identity": {"image_list_sha256": "b"}, "rows_sha256": None}
    (two_models / "my/net/cog_l1/features_test/features.json").write_text(json.dumps(described))
    with pytest.raises(CogError, match="the test features are of other images than the classifiers"):
        concepts_of(two_models)


def test_the_recipes_of_the_documentation_compute_what_they_say(two_models, capsys):
    for model in ("my_net", "other_net"):
        concepts_of(two_models, model=model)
    section = PAGE.read_text().partition("## Accuracy per concept")[2].partition("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    code = "".join(blocks).replace('"/models"', repr(str(two_models)))
    code = code.replace("sup/resnet50", "my/net").replace("dino/resnet50", "other/net")
    found: dict = {}
    exec(code, found)
    plants = [np.mean([hits[k] for hits in HITS["cog_l5"]]) * 10 for k in (0, 2)]
    assert found["by_subtree"].loc["plants", "mean"] == pytest.approx(np.mean(plants))
    assert found["by_subtree"]["count"].sum() == 6
    assert len(found["both"]) == 6 and (found["both"]["accuracy_2"] != found["both"]["accuracy"]).any()
    assert set(found["differing"]["wnid"]) <= set(SIMILARITY)
    assert found["within"] == {"mammals": pytest.approx(1.0)}


@pytest.mark.slow
def test_a_new_analysis_of_one_file_is_in_table_csv_and_page(models, tmp_path, monkeypatch, capsys):
    """The file of the documentation, beside the package's own."""
    for dataset, wnids in WNIDS.items():
        write_features(models, dataset, "test", wnids)
    code = re.search(r"```python\n(# sparsity\.py.*?)```", PAGE.read_text(), re.DOTALL)
    assert code is not None and len(code[1].splitlines()) <= 15
    (tmp_path / "more").mkdir()
    (tmp_path / "more/sparsity.py").write_text(code[1])
    monkeypatch.setattr(cog.analysis, "__path__", [*cog.analysis.__path__, str(tmp_path / "more")])
    importlib.invalidate_caches()
    monkeypatch.setattr(base, "ANALYSES", dict(base.ANALYSES))
    analyze(models, "--analysis sparsity --dataset cog_l1 cog_l5")
    flags = ["--models_root_dir", str(models)]
    print_results.main([*flags, "--analysis", "sparsity"])
    assert "sparsity" in capsys.readouterr().out
    print_results.main([*flags, "--analysis", "sparsity", "--format", "csv"])
    rows = csv.DictReader(capsys.readouterr().out.splitlines())
    assert [float(row["value"]) for row in rows] == [0.0, 0.0]
    print_results.main([*flags, "--report", str(tmp_path / "report.html")])
    assert "sparsity" in (tmp_path / "report.html").read_text()


@pytest.fixture
def crossed(models):
    """Classifiers of in1k (two seeds) and test features of cog_l1 without runs."""
    write_features(models, "in1k", "test", SEEN)
    x, _ = write_features(models, "cog_l1", "test", LEVEL["cog_l1"], n=40, seed=1)
    weights = [write_run(models, "in1k", seed=22, n_classes=4, scale=12.0)]
    settings = {"configuration": {"CLF.NORM_FTS": False}}
    weights += [write_run(models, "in1k", seed=37, n_classes=4, scale=2.0, record=settings)]
    return models, x, weights


def test_confident_equals_the_matrix_product(crossed):
    models, x, weights = crossed
    analyze(models, CONFIDENT)
    found = read(models, "cog_l1", "confident_in1k")
    rows = x.double() / x.double().norm(dim=1, keepdim=True), x.double()  # as each run has normalized them
    logits = [of_run @ w.double().T + b.double() for of_run, (w, b) in zip(rows, weights, strict=True)]
    p = torch.softmax(torch.stack(logits), dim=2).numpy()
    shares = (100 * (p.max(2) > 0.99).mean(1)).tolist()
    assert all(0 < share < 100 for share in shares) and found.seeds == [22, 37]
    assert [found.per_seed[seed]["confident_percent"] for seed in ("22", "37")] == pytest.approx(shares)
    assert found.values == {"confident_percent": pytest.approx(np.mean(shares))}
    rows = table(models, "cog_l1", "confident_in1k", "confident.csv")
    highest, best = p.max(2).max(0), p.max(2).argmax(0)
    expected = sorted(np.flatnonzero(highest > 0.99), key=lambda row: -highest[row])
    wnids = [LEVEL["cog_l1"][row // 40] for row in expected]
    images = [(wnid, f"{wnid}/{wnid}_{row % 40}.JPEG") for wnid, row in zip(wnids, expected, strict=True)]
    assert [(row["wnid"], row["image"]) for row in rows] == images
    assert [row["predicted_wnid"] for row in rows] == [SEEN[p[best[row], row].argmax()] for row in expected]
    assert [int(row["seed"]) for row in rows] == [(22, 37)[best[row]] for row in expected]
    np.testing.assert_allclose([float(row["confidence"]) for row in rows], highest[expected], atol=1e-6)
    assert [int(row["n_seeds"]) for row in rows] == [sum(p[:, row].max(1) > 0.99) for row in expected]


def test_the_picture_shows_the_first_images(crossed, tmp_path, caplog, monkeypatch):
    models, *_ = crossed
    monkeypatch.setattr(trained, "_N_SHOWN", 7)
    root, described = tmp_path / "in21k", models / "my/net/cog_l1/features_test/features.json"
    tiny.write_class_folders(root, classes=LEVEL["cog_l1"], n_images=40)
    analyze(models, CONFIDENT)
    picture = models / "my/net/cog_l1/analysis_confident_in1k/confident.png"
    assert not picture.exists()  # features.json does not say where the images are
    first = table(models, "cog_l1", "confident_in1k", "confident.csv")[0]["image"]
    (root / first).write_bytes(b"no image")
    described.write_text(json.dumps({"images_root": str(root)}))
    analyze(models, CONFIDENT, "--overwrite")
    assert f"{first} cannot be read below" in caplog.text
    with Image.open(picture) as drawn:
        assert drawn.size == (1200, 480) and len(drawn.getcolors(1 << 20)) > 100  # two lines of six


def test_labels_that_were_renumbered_in_training_keep_their_names(models):
    """A run on features with labels 3, 7, 9, 11 has outputs 0..2; its record says which is which."""
    write_features(models, "odd", "test", SEEN)
    y = torch.tensor([3, 7, 9, 11]).repeat_interleave(5)
    tiny.write_features(models / "my/net/odd/features_test", torch.randn(20, DIM), y)
    write_features(models, "cog_l1", "test", LEVEL["cog_l1"])
    write_run(models, "odd", seed=1, n_classes=3, scale=30.0, record={"labels": [3, 9, 11]})
    analyze(models, "--analysis confident --trained_on odd --dataset cog_l1")
    rows = table(models, "cog_l1", "confident_odd", "confident.csv")
    assert rows and {row["predicted_wnid"] for row in rows} <= {SEEN[0], SEEN[2], SEEN[3]}
    assert trained.class_names(None, "in1k", 1000)[:2] == ["n01440764", "n01443537"]


@pytest.mark.parametrize(
    ("flags", "content", "words"),
    [
        ("--dataset cog_l1", {}, "needs --trained_on"),
        ("--dataset cog_l1 --trained_on cog_l2", {}, "no classifiers"),
        ("--dataset cog_l2 --trained_on in1k", {}, "no test features"),
        (FITS, {"weight": torch.full((4, DIM), math.nan), "bias": torch.zeros(4)}, "diverged"),
        (FITS, {"0.weight": torch.zeros(4, DIM), "0.bias": torch.zeros(4)}, "no linear layer"),
        (FITS, {"weight": torch.zeros(4, 2), "bias": torch.zeros(4)}, "takes features of 2 dimensions"),
        (FITS, None, "model.pth"),
    ],
)
def test_confident_refuses_what_does_not_fit(crossed, flags, content, words):
    file = crossed[0] / "my/net/in1k/eval_logreg/seed-37/final-lr-1.0_wd-1e-06/model.pth"
    file.unlink()
    if content is not None:
        torch.save({"model": content}, file)
    with pytest.raises(CogError) as error:
        analyze(crossed[0], f"--analysis confident {flags}")
    assert words in str(error.value) and error.value.exit_code == 2
    assert not list(crossed[0].rglob("analysis_*/results.json"))


def test_classifiers_of_another_network_are_refused(crossed):
    models, *_ = crossed
    record = models / "my/net/in1k/eval_logreg/seed-22/results.json"
    folder = models / "my/net/cog_l1/features_test"
    rows = feature_files.rows_digest(feature_files.open_file(folder))
    identities = [{"model": "my_net", "checkpoint_sha256": letter * 64} for letter in "ab"]
    data = json.loads(record.read_text()) | {"identity": {"train_features": identities[0]}}
    record.write_text(json.dumps(data))
    for identity in identities:
        (folder / "features.json").write_text(json.dumps({"identity": identity, "rows_sha256": rows}))
        if identity == identities[0]:
            analyze(models, CONFIDENT)
    with pytest.raises(CogError, match=r"made differently .*cog_l1 \(checkpoint_sha256: a+ -> b+\)"):
        analyze(models, CONFIDENT)
