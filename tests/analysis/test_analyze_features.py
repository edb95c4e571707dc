"""analyze_features.py: what every analysis does, so that a new one is tested by being declared."""

import json
import logging
import shutil
from pathlib import Path

import pytest
import tiny
from analyzed_models import LEVEL, analyze, read, write_features, write_run

from cog.analysis import base
from cog.errors import CogError
from cog.results import analysis_records, runs
from cog.results.analysis_records import AnalysisRecord

FAST = "ANALYSIS.KMEANS_SEEDS [1,2] ANALYSIS.KNN_K [1,5]"
LABEL_FREE = ("kmeans", "alignment", "knn", "ncm")

#: Files of analyses beside the record and the log.
FILES = {"confident": {"confident.csv"}, "concepts": {"concepts.csv"}}


@pytest.fixture(autouse=True)
def _no_wordnet(monkeypatch, tmp_path):
    """Reading WordNet takes longer than everything else here; ids stand for names."""
    monkeypatch.setenv("COG_WORDNET_DIR", str(tmp_path / "no_wordnet"))


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """Features and classifiers of a model on two levels."""
    root = tmp_path_factory.mktemp("world")
    for dataset in LEVEL:
        for split, seed in (("train", 0), ("test", 1)):
            write_features(root, dataset, split, LEVEL["cog_l1"], n=10, seed=seed)
        for seed in (22, 37):
            write_run(root, dataset, seed=seed, hits=(7, 6, 5), scale=30.0)
    return root


@pytest.mark.parametrize("name", list(base.load_all()))
def test_a_record_is_complete_reproducible_and_replaced_by_overwrite_alone(name, world, tmp_path, capsys):
    models = shutil.copytree(world, tmp_path / "models")

    def run(*more: str) -> AnalysisRecord:
        analyze(models, "--dataset cog_l1", f"--analysis {name}", *more, FAST)
        [folder] = models.rglob("analysis_*")
        return analysis_records.read(folder)

    flags = "--trained_on cog_l2" if name == "confident" else ""
    first = run(flags)
    assert first.analysis.partition("_")[0] == name
    assert (first.model, first.dataset) == ("my_net", "cog_l1")
    assert first.values and first.versions["numpy"] and first.finished
    assert set(first.per_seed) == {str(seed) for seed in first.seeds}
    expected = {"results.json", "program.log", *FILES.get(name, ())}
    [path] = models.rglob("analysis_*/results.json")
    assert {file.name for file in path.parent.iterdir()} == expected
    text, record = path.read_text(), json.loads(path.read_text())
    assert "NaN" not in text and "Infinity" not in text
    assert f"[my_net cog_l1] {first.analysis}: " in capsys.readouterr().out
    before = tiny.snapshot(models)
    run(flags)
    assert tiny.snapshot(models) == before
    path.write_text(json.dumps(record | {"identity": record["identity"] | {"another": 1}}))
    with pytest.raises(CogError, match=r"has another result \(another.*add --overwrite"):
        run(flags)
    again = run(flags, "--overwrite")
    assert (again.values, again.per_seed) == (first.values, first.per_seed)


@pytest.fixture
def models(world, tmp_path) -> Path:
    """A copy of features and classifiers, for one test."""
    return shutil.copytree(world, tmp_path / "models")


def test_other_settings_and_other_features_are_other_results(models):
    analyze(models, "--dataset cog_l1 --analysis kmeans ncm", FAST)
    clusters = read(models, "cog_l1", "kmeans")
    assert clusters.seeds == [1, 2] and clusters.values in clusters.per_seed.values()
    assert clusters.values["inertia"] == min(entry["inertia"] for entry in clusters.per_seed.values())
    with pytest.raises(CogError, match=r"another result \(KMEANS_K: 0 -> 2\); add --overwrite"):
        analyze(models, "--dataset cog_l1 --analysis kmeans ANALYSIS.KMEANS_K 2", FAST)
    write_features(models, "cog_l1", "test", LEVEL["cog_l1"], n=10, seed=5)
    with pytest.raises(CogError, match=r"test_features\.rows_sha256"):
        analyze(models, "--dataset cog_l1 --analysis ncm")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--analysis ncm --trained_on in1k", "--trained_on is for --analysis confident and has no effect"),
        ("--analysis kmean", r"--analysis 'kmean' is not an analysis, expected alignment, concepts, conf"),
        ("--analysis knn", "there are no train features .*; run extract_features.py"),
        ("--model net", "--model 'net' is not a model name"),
        ("--models_root_dir absent", "--models_root_dir absent does not exist"),
    ],
)
def test_bad_command_lines(tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CogError, match=message):
        analyze(Path(), "--dataset cog_l1", flags)
    assert not list(tmp_path.iterdir())


def test_missing_features_of_one_data_set_stop_everything_before_it_starts(models):
    (models / "my/net/cog_l2/features_test/X_Y.pth").unlink()
    with pytest.raises(CogError, match="there are no test features"):
        analyze(models, "--dataset cog_l1 cog_l2", FAST)
    assert not list(models.rglob("analysis_*"))


def analyze_pair(tmp_path: Path, train, test, *more: str, analysis: tuple[str, ...] = LABEL_FREE):
    """Analyze ``(x, y)`` pairs; return the values by analysis."""
    for split, pair in (("train", train), ("test", test)):
        tiny.write_features(tmp_path / f"my/net/birds/features_{split}", *pair)
    analyze(tmp_path, "--dataset birds --analysis", *analysis, *FAST.split()[:2], *more)
    return {name: read(tmp_path, "birds", name).values for name in analysis}


def test_features_that_are_refused(tmp_path):
    x, y = tiny.make_xy()
    with pytest.raises(CogError, match="have 8 and 7 dimensions; extract both with one model"):
        analyze_pair(tmp_path, (x, y), (x[:, :7], y))
    with pytest.raises(CogError, match="31 clusters need at least as many training images, found 30; lower"):
        analyze_pair(tmp_path / "b", (x, y), (x, y), "ANALYSIS.KMEANS_K", "31", analysis=("kmeans",))


def test_odd_features_have_a_documented_result(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "cog")
    x, y = tiny.make_xy()
    x[3] = x[17] = 0.0
    ks = ["ANALYSIS.KNN_K", "[1,31]"]
    found = analyze_pair(tmp_path, (x, y), (x, y), *ks)
    assert {name for name, n in found["knn"].items() if n is None} == {f"top{k}_k31_weighted" for k in (1, 5)}
    assert "k above the 30 training images is undefined" in caplog.text
    assert found["alignment"]["alignment"] < 2.0  # a zero vector is at distance 1 from any unit vector
    assert analyze_pair(tmp_path / "shifted", *[(x, 10 * y - 7)] * 2, *ks) == found
    found = analyze_pair(tmp_path / "fewer", (x[:20], y[:20]), (x, y), "ANALYSIS.KNN_K", "[1]")
    assert max((found["knn"] | found["ncm"]).values()) <= 67 and found["kmeans"]["purity"] < 1.0
    found = analyze_pair(tmp_path / "single", (x, y), (x[:1], y[:1]), analysis=("alignment",))
    assert set(found["alignment"].values()) == {None}


def test_damaged_and_renamed_records_are_skipped_with_a_reason(tmp_path):
    folder = tmp_path / "t/a/in1k/analysis_a"
    folder.mkdir(parents=True)
    cases = ('"values": {"x": NaN}', "finite"), ('"analysis": "ncm"', "ncm of"), ('"model": "t_b"', "of t_b")
    for entry, message in cases:
        (folder / "results.json").write_text('{"status": "complete", "analysis": "a", ' + entry + "}")
        [skipped] = runs.find(tmp_path).skipped
        assert skipped.path == folder and message in skipped.reason
