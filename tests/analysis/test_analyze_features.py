"""analyze_features.py: records, skipping, interruption, several data sets."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
import tiny

from cog.analysis import kmeans, neighbors
from cog.commands.analyze_features import main
from cog.errors import CogError
from cog.features import feature_files
from cog.paths import ModelDir
from cog.results import analysis_records, runs
from cog.results.analysis_records import AnalysisRecord
from cog.runtime import output, signals

FAST = ["ANALYSIS.KMEANS_SEEDS", "[1, 2]", "ANALYSIS.KNN_K", "[1, 5]"]
LABEL_FREE = ["kmeans", "alignment", "knn", "ncm"]


@pytest.fixture
def models(tmp_path) -> Path:
    """Features of tiny_net for in1k and cog_l1 below a models root."""
    for dataset, spread in (("in1k", 0.3), ("cog_l1", 0.9)):
        for split, seed in (("train", 0), ("test", 1)):
            tiny.write_features(
                tmp_path / "models/tiny/net" / dataset / f"features_{split}", seed=seed, spread=spread
            )
    return tmp_path / "models"


def analyze(models: Path, *more: str, datasets: tuple[str, ...] = ("in1k",)) -> int:
    argv = f"--models_root_dir {models} --model tiny_net --device cpu --dataset".split()
    return main([*argv, *datasets, *more, *FAST])


def result(models: Path, name: str, dataset: str = "in1k") -> AnalysisRecord:
    found = analysis_records.read(ModelDir(models, "tiny_net").path / dataset / f"analysis_{name}")
    assert isinstance(found, AnalysisRecord), found
    return found


# ------------------------------------------------------------------------------------------------------------
# The command


def test_all_analyses_of_two_data_sets(models, capsys):
    assert analyze(models, datasets=("in1k", "cog_l1")) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 2 * len(LABEL_FREE)
    assert all(line.startswith("[tiny_net in1k] ") for line in printed[: len(LABEL_FREE)])
    found = runs.find(models).analyses
    assert sorted((f.dataset, f.analysis) for f in found) == [
        (dataset, name) for dataset in ("cog_l1", "in1k") for name in sorted(LABEL_FREE)
    ]
    for record in found:
        folder = models / "tiny/net" / str(record.dataset) / f"analysis_{record.analysis}"
        assert record.folder == folder and record.model == "tiny_net"
        assert record.seconds >= 0 and record.finished and record.versions["torch"]
        assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    near, far = result(models, "alignment"), result(models, "alignment", "cog_l1")
    assert near.values["alignment"] < far.values["alignment"]
    assert near.values["uniformity"] == -near.values["uniformity_v1"] < 0
    clusters = result(models, "kmeans")
    assert clusters.seeds == [1, 2] and set(clusters.per_seed) == {"1", "2"}
    assert clusters.values in clusters.per_seed.values()
    assert clusters.values["inertia"] == min(entry["inertia"] for entry in clusters.per_seed.values())
    assert set(result(models, "knn").values) == {f"top{top}_k{k}_weighted" for top in (1, 5) for k in (1, 5)}


def test_complete_results_are_skipped_and_other_ones_refused(models):
    analyze(models)
    before = tiny.snapshot(models)
    assert analyze(models) == 0
    with pytest.raises(CogError, match=r"another result \(KMEANS_K: 0 -> 2\); add --overwrite"):
        analyze(models, "ANALYSIS.KMEANS_K", "2")
    assert tiny.snapshot(models) == before
    assert analyze(models, "--overwrite", "--analysis", "kmeans", "ANALYSIS.KMEANS_K", "2") == 0
    assert result(models, "kmeans").identity["KMEANS_K"] == 2


def test_other_features_of_the_same_size_are_other_features(models):
    analyze(models, "--analysis", "ncm")
    tiny.write_features(models / "tiny/net/in1k/features_test", seed=5, spread=0.3)
    with pytest.raises(CogError, match=r"test_features\.rows_sha256"):
        analyze(models, "--analysis", "ncm")


def test_feature_folders_of_the_users_own(feature_folders, tmp_path, capsys):
    train, test = feature_folders
    output = tmp_path / "results"
    flags = ["--train_features_dir", str(train), "--test_features_dir", str(test / "X_Y.pth")]
    assert main([*flags, "--output_dir", str(output), "--analysis", "ncm"]) == 0
    found = analysis_records.read(output / "analysis_ncm")
    assert isinstance(found, AnalysisRecord) and found.model is None and found.dataset is None
    assert found.values["top1_cosine"] == 100.0
    # alignment needs no training features
    only_test = ["--test_features_dir", str(test), "--output_dir", str(output), "--analysis", "alignment"]
    assert main(only_test) == 0


def test_features_are_read_once_for_all_analyses(models, monkeypatch):
    read = []
    load = feature_files.load
    monkeypatch.setattr(
        feature_files, "load", lambda path, **options: read.append(Path(path).parent) or load(path, **options)
    )
    analyze(models, datasets=("in1k", "cog_l1"))
    assert len(read) == len(set(read)) == 4


OWN_FOLDERS = "--train_features_dir a --test_features_dir b"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--analysis ncm --trained_on in1k", "--trained_on is for --analysis confident and has no effect"),
        ("--levels_csv x", "--levels_csv is for --analysis concepts and has no effect"),
        ("--analysis kmean", r"--analysis 'kmean' is not an analysis, expected alignment, concepts, conf"),
        ("--model tiny_net", "no features: give --models_root_dir with --model and --dataset"),
        ("--dataset ../x", "is not a data set name"),
        ("--test_features_dir a --analysis ncm --output_dir o", "give --train_features_dir"),
        (OWN_FOLDERS, "nowhere to write: give --output_dir"),
        (f"{OWN_FOLDERS} --dataset in1k cog_l1", "--train_features_dir is of one output"),
        (f"{OWN_FOLDERS} --output_dir o --analysis knn", "no train features a; run extract_features.py"),
        ("ANALYSIS.KNN_K [0]", r"ANALYSIS.KNN_K = \[0\] is not valid"),
        ("ANALYSIS.KMEANS_SEEDS [1,1]", "a list of different numbers"),
        ("ANALYSIS.KMEANS_K -1", "a number from 0"),
    ],
)
def test_bad_command_lines(tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CogError, match=message):
        main(flags.split())
    assert not list(tmp_path.iterdir())


def test_missing_features_of_one_data_set_stop_everything_before_it_starts(models):
    (models / "tiny/net/cog_l1/features_test/X_Y.pth").unlink()
    before = tiny.snapshot(models)
    with pytest.raises(CogError, match="there are no test features"):
        analyze(models, datasets=("in1k", "cog_l1"))
    assert tiny.snapshot(models) == before


# ------------------------------------------------------------------------------------------------------------
# Interruption


def test_a_signal_ends_the_work_and_the_same_command_finishes_it(models, monkeypatch):
    analyze(models)
    whole = {name: result(models, name).values for name in LABEL_FREE}
    shutil.rmtree(result(models, "knn").folder)
    nearest_rows = neighbors.nearest_rows

    def with_a_signal(*args, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        return nearest_rows(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(neighbors, "nearest_rows", with_a_signal)
        with pytest.raises(
            signals.Interrupted, match="ended by SIGTERM: this analysis is started over"
        ) as end:
            analyze(models)
    assert end.value.exit_code == 75
    assert not (ModelDir(models, "tiny_net").path / "in1k/analysis_knn/results.json").exists()
    analyze(models)
    assert {name: result(models, name).values for name in LABEL_FREE} == whole


def test_a_failed_analysis_leaves_the_others_and_says_so(models, monkeypatch):
    def full_disk(*args, **options):
        raise CogError("no space left")

    monkeypatch.setattr(kmeans, "lloyd", full_disk)
    with pytest.raises(CogError, match="no space left"):
        analyze(models)
    assert result(models, "alignment")
    folder = ModelDir(models, "tiny_net").path / "in1k/analysis_kmeans"
    assert output.state(folder, "results.json") == output.State("failed", "no space left")
    assert not folder.exists()
    monkeypatch.undo()
    analyze(models)
    assert output.state(folder, "results.json").word == "done"


# ------------------------------------------------------------------------------------------------------------
# Records


def record(**changes) -> AnalysisRecord:
    fields = {"analysis": "ncm", "model": "m_n", "dataset": "in1k", "identity": {}, "values": {"top1": 1.5}}
    return AnalysisRecord(**(fields | changes))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("[]", "expected a JSON object"),
        ("{}", "has status None"),
        ('{"status": "complete"}', "names no analysis"),
        ('{"status": "complete", "analysis": "../x"}', "names no analysis"),
        ('{"status": "complete", "analysis": "a", "values": 3}', "values is no JSON object"),
        ('{"status": "complete", "analysis": "a", "values": {"x": "y"}}', "finite numbers or null"),
        ('{"status": "complete", "analysis": "a", "values": {"x": NaN}}', "finite numbers or null"),
        ('{"status": "complete", "analysis": "a", "values": {"x": true}}', "finite numbers or null"),
        ('{"status": "complete", "analysis": "a", "per_seed": {"1": 2}}', "finite numbers or null"),
        ('{"status": "complete", "analysis": "a", "seeds": ["1"]}', "no list of whole numbers"),
    ],
)
def test_damaged_records_are_problems(tmp_path, content, message):
    folder = tmp_path / "t/a/in1k/analysis_a"
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(content)
    with pytest.raises(CogError) as error:
        analysis_records.read(folder)
    assert message in str(error.value)
    everything = runs.find(tmp_path)
    [skipped] = everything.skipped
    assert skipped.path == folder and message in skipped.reason and everything.analyses == []


def test_records_of_a_renamed_folder_are_problems(tmp_path):
    folder = tmp_path / "t/a/in1k/analysis_kmeans"
    folder.mkdir(parents=True)
    analysis_records.write(folder, record())
    [skipped] = runs.find(tmp_path).skipped
    assert "holds ncm, the folder's name says kmeans" in skipped.reason
