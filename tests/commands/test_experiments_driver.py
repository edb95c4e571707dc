"""bash-scripts/experiments.sh: experiments by name, with a table after each."""

import pytest
import tiny

SMALL = ["CLF.N_TRIALS", "2", "CLF.N_EPOCHS", "3", "CLF.MLP_HIDDEN", "8", "ANALYSIS.KMEANS_SEEDS", "[22]"]


@pytest.fixture
def experiments(bash, tmp_path):
    """Return a function that runs the driver for the model my_net, of which there are features of two data sets."""
    for seed, dataset in enumerate(("in1k", "cog_l1")):
        for part in ("train", "test"):
            folder = tmp_path / "my/net" / dataset / f"features_{part}"
            tiny.write_features(folder, *tiny.make_xy(seed=seed))

    def run(*words):
        return bash(
            "experiments.sh", *words, f"models_root_dir={tmp_path}", "model_name=my_net", "dataset=in1k,cog_l1",
            "seeds=22 37", "shots=1", "max_per_class=2", "--device", "cpu", *SMALL,
        )  # fmt: skip

    return run


@pytest.mark.slow
def test_experiments_write_their_folders_and_are_skipped_then(experiments, tmp_path):
    names = ["logreg", "fewshot", "mlp", "mlp_noact", "balanced", "label_free", "confident"]
    done = experiments(*names)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.endswith(" of my_net")] == [
        f"{name} of my_net" for name in names
    ]
    folders = {path.name for path in (tmp_path / "my/net/cog_l1").iterdir()}
    assert folders >= {
        "eval_logreg", "eval_logreg_N1", "eval_mlp", "eval_mlp_noact", "eval_logreg_max2",
        "analysis_kmeans", "analysis_alignment", "analysis_knn", "analysis_ncm",
    }  # fmt: skip
    assert any(name.startswith("analysis_confident") for name in folders)
    made = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("results.json")}
    again = experiments(*names)
    assert again.returncode == 0, again.stderr
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("results.json")} == made


def test_unknown_and_missing_names_are_told(experiments):
    for words, told in ((["cooking"], "unknown experiment cooking"), ([], "name one experiment or several")):
        done = experiments(*words)
        assert done.returncode == 2 and told in done.stderr and done.stderr.count("\n") == 1
