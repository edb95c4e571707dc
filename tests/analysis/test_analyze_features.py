"""analyze_features.py: what every analysis does, so that a new one is tested by being declared."""

from __future__ import annotations

import json
import logging
import os
import signal
from pathlib import Path

import pytest
import tiny
from analyzed_models import LEVEL, write_features, write_run

from cog.analysis import base, label_free
from cog.commands.analyze_features import main
from cog.errors import CogError
from cog.paths import ModelDir
from cog.results import analysis_records, runs
from cog.results.analysis_records import AnalysisRecord
from cog.runtime import signals

FAST = ["ANALYSIS.KMEANS_SEEDS", "[1, 2]", "ANALYSIS.KNN_K", "[1, 5]"]
LABEL_FREE = ("kmeans", "alignment", "knn", "ncm")

#: Flags of analyses that need more than the features of a data set, and files beside the record and the log.
FLAGS = {"confident": ("--trained_on", "cog_l2")}
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
            write_features(root, dataset, split, LEVEL["cog_l1"], n=10, model="tiny/net", seed=seed)
        for seed in (22, 37):
            write_run(root, dataset, seed=seed, hits=(7, 6, 5), model="tiny/net", scale=30.0)
    return root


@pytest.mark.parametrize("name", list(base.load_all()))
class TestEveryAnalysis:
    @pytest.fixture(autouse=True)
    def _setting(self, world, tmp_path, name):
        self.output = tmp_path / "out"
        argv = f"--models_root_dir {world} --model tiny_net --dataset cog_l1 --device cpu"
        self.argv = f"{argv} --output_dir {self.output} --analysis {name}".split() + [*FLAGS.get(name, ())]

    def run(self, *more: str) -> AnalysisRecord:
        assert main([*self.argv, *more, *FAST]) == 0
        [folder] = self.output.iterdir()
        return analysis_records.read(folder)

    def test_its_record_is_complete_reproducible_and_replaced_by_overwrite_alone(self, name, capsys):
        first = self.run()
        assert first.analysis.partition("_")[0] == name
        assert (first.model, first.dataset) == ("tiny_net", "cog_l1")
        assert first.values and first.versions["numpy"] and first.finished
        assert set(first.per_seed) == {str(seed) for seed in first.seeds}
        expected = {"results.json", "program.log", *FILES.get(name, ())}
        assert {path.name for path in first.folder.iterdir()} == expected
        path = first.folder / "results.json"
        text = path.read_text()
        assert "NaN" not in text and "Infinity" not in text
        assert f"[tiny_net cog_l1] {first.analysis}: " in capsys.readouterr().out
        before = tiny.snapshot(self.output)
        self.run()
        assert tiny.snapshot(self.output) == before
        record = json.loads(text)
        path.write_text(json.dumps(record | {"identity": record["identity"] | {"another": 1}}))
        with pytest.raises(CogError, match=r"has another result \(another.*add --overwrite"):
            self.run()
        again = self.run("--overwrite")
        assert (again.values, again.per_seed) == (first.values, first.per_seed)


@pytest.fixture
def models(tmp_path) -> Path:
    """Features of tiny_net for in1k and cog_l1 below a models root."""
    for dataset, spread in (("in1k", 0.3), ("cog_l1", 0.9)):
        for split, seed in (("train", 0), ("test", 1)):
            folder = tmp_path / "models/tiny/net" / dataset / f"features_{split}"
            tiny.write_features(folder, seed=seed, spread=spread)
    return tmp_path / "models"


def analyze(models: Path, *more: str, datasets: tuple[str, ...] = ("in1k",)) -> int:
    argv = f"--models_root_dir {models} --model tiny_net --device cpu --dataset".split()
    return main([*argv, *datasets, *more, *FAST])


def result(models: Path, name: str, dataset: str = "in1k") -> AnalysisRecord:
    return analysis_records.read(ModelDir(models, "tiny_net").path / dataset / f"analysis_{name}")


def test_other_settings_and_other_features_are_other_results(models):
    analyze(models, "--analysis", "kmeans", "ncm")
    clusters = result(models, "kmeans")
    assert clusters.seeds == [1, 2] and clusters.values in clusters.per_seed.values()
    assert clusters.values["inertia"] == min(entry["inertia"] for entry in clusters.per_seed.values())
    with pytest.raises(CogError, match=r"another result \(KMEANS_K: 0 -> 2\); add --overwrite"):
        analyze(models, "--analysis", "kmeans", "ANALYSIS.KMEANS_K", "2")
    tiny.write_features(models / "tiny/net/in1k/features_test", seed=5, spread=0.3)
    with pytest.raises(CogError, match=r"test_features\.rows_sha256"):
        analyze(models, "--analysis", "ncm")


OWN_FOLDERS = "--train_features_dir a --test_features_dir b"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--analysis ncm --trained_on in1k", "--trained_on is for --analysis confident and has no effect"),
        ("--levels_csv x", "--levels_csv is for --analysis concepts and has no effect"),
        ("--analysis kmean", r"--analysis 'kmean' is not an analysis, expected alignment, concepts, conf"),
        ("--test_features_dir a --analysis ncm --output_dir o", "give --train_features_dir"),
        (OWN_FOLDERS, "nowhere to write: give --output_dir"),
        (f"{OWN_FOLDERS} --dataset in1k cog_l1", "--train_features_dir is of one output"),
        (f"{OWN_FOLDERS} --output_dir o --analysis knn", "no train features a; run extract_features.py"),
    ],
)
def test_bad_command_lines(tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CogError, match=message):
        main(flags.split())
    assert not list(tmp_path.iterdir())


def test_missing_features_of_one_data_set_stop_everything_before_it_starts(models):
    (models / "tiny/net/cog_l1/features_test/X_Y.pth").unlink()
    with pytest.raises(CogError, match="there are no test features"):
        analyze(models, datasets=("in1k", "cog_l1"))
    assert runs.find(models).scores.empty


def test_a_signal_leaves_the_finished_results_and_the_same_command_finishes(models, monkeypatch):
    def with_a_signal(*args, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        return nearest_rows(*args, **options)

    nearest_rows = label_free.nearest_rows
    with monkeypatch.context() as patch:
        patch.setattr(label_free, "nearest_rows", with_a_signal)
        with pytest.raises(signals.Interrupted, match="ended by SIGTERM: this analysis is started over"):
            analyze(models)
    found = {*runs.find(models).scores["evaluation"]}
    assert found == {"alignment", "kmeans"}
    analyze(models)
    assert result(models, "knn") and result(models, "ncm")


def analyze_pair(tmp_path: Path, train, test, *more: str, analysis: tuple[str, ...] = LABEL_FREE):
    """Analyze ``(x, y)`` pairs; return the values by analysis."""
    flags, out = [], tmp_path / "out"
    for split, (x, y) in (("train", train), ("test", test)):
        flags += [f"--{split}_features_dir", str(tiny.write_features(tmp_path / f"features_{split}", x, y))]
    main([*flags, "--output_dir", str(out), "--device", "cpu", "--analysis", *analysis, *FAST[:2], *more])
    return {name: analysis_records.read(out / f"analysis_{name}").values for name in analysis}


def test_features_that_are_refused(tmp_path):
    x, y = tiny.make_xy()
    with pytest.raises(CogError, match="have 8 and 7 dimensions; extract both with one model"):
        analyze_pair(tmp_path, (x, y), (x[:, :7], y))
    with pytest.raises(CogError, match="31 clusters need at least as many training images, found 30; lower"):
        analyze_pair(tmp_path / "b", (x, y), (x, y), "ANALYSIS.KMEANS_K", "31", analysis=("kmeans",))


def test_odd_features_have_a_documented_result(tmp_path, caplog):
    """Zero vectors stay zero; labels need not begin at zero; classes without training images are errors."""
    caplog.set_level(logging.WARNING, "cog")
    x, y = tiny.make_xy()
    x[3] = x[17] = 0.0
    ks = ["ANALYSIS.KNN_K", "[1, 31]"]
    found = analyze_pair(tmp_path, (x, y), (x, y), *ks)
    assert [name for name, n in found["knn"].items() if n is None] == [
        "top1_k31_weighted",
        "top5_k31_weighted",
    ]
    assert "k above the 30 training images is undefined" in caplog.text
    assert found["alignment"]["alignment"] < 2.0  # a zero vector is at distance 1 from any unit vector
    assert analyze_pair(tmp_path / "shifted", (x, 10 * y - 7), (x, 10 * y - 7), *ks) == found
    found = analyze_pair(tmp_path / "fewer", (x[:20], y[:20]), (x, y), "ANALYSIS.KNN_K", "[1]")
    assert (
        max((found["knn"] | found["ncm"]).values()) <= 100 * 2 / 3 + 1e-9 and found["kmeans"]["purity"] < 1.0
    )
    found = analyze_pair(tmp_path / "single", (x, y), (x[:1], y[:1]), analysis=("alignment",))
    assert set(found["alignment"].values()) == {None}
    found = analyze_pair(tmp_path / "equal", (0 * x + 1, y), (0 * x + 1, y), "ANALYSIS.KNN_K", "[30]")
    assert found["kmeans"]["purity_v1"] == 1.0 and found["kmeans"]["ami"] == found["kmeans"]["ari"] == 0.0
    assert found["alignment"]["alignment"] == pytest.approx(0.0, abs=1e-12)
    assert found["alignment"]["uniformity"] == pytest.approx(0.0, abs=1e-12)
    assert found["knn"]["top1_k30_weighted"] == found["ncm"]["top1_cosine"] == pytest.approx(100 / 3)


def test_damaged_and_renamed_records_are_skipped_with_a_reason(tmp_path):
    for start, message in {
        '"status": "running"': "has status 'running'",
        '"values": {"x": NaN}': "finite numbers or null",
        '"values": 3': "objects of finite numbers or null",
        '"analysis": "ncm"': "holds ncm, the folder's name says a",
    }.items():
        folder = tmp_path / "t/a/in1k/analysis_a"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "results.json").write_text('{"status": "complete", "analysis": "a", ' + start + "}")
        [skipped] = runs.find(tmp_path).skipped
        assert skipped.path == folder and message in skipped.reason
