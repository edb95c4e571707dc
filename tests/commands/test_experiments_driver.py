"""bash-scripts/experiments.sh: every experiment of two models with one command, in one table."""

import csv
import json
import re

import numpy as np
import pytest
import tiny

from cog.commands import extract_features, step_times
from cog.study import step_times as estimates

NET = """
import torch


def load_my_model(init_args):
    torch.manual_seed(len(init_args["model_name"]))
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, 2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten()
    ), None
"""
IMAGES = [
    "FT_EXTRACT.IMAGE_RESIZE_SIZE", "12", "FT_EXTRACT.IMAGE_CROP_SIZE", "12", "FT_EXTRACT.N_WORKERS", "0",
]  # fmt: skip
SMALL = [
    "CLF.N_TRIALS", "2", "CLF.N_EPOCHS", "3", "CLF.MLP_HIDDEN", "8", "FINETUNE.N_EPOCHS", "1",
    "FINETUNE.BATCH_SIZE", "4", "FINETUNE.BATCH_PER_DEVICE", "4", "FINETUNE.WARMUP_EPOCHS", "0", *IMAGES,
]  # fmt: skip
DATASETS = ("in1k", "cog_l1", "cog_l2")


def rows_of_overview(text: str, dataset: str) -> set[str]:
    """Return the labels of the rows of the overview of a data set."""
    block = text[text.index(f"all experiments on {dataset}\n") :].split("\n\n")[1]
    return {re.split(r"\s{2,}", line)[0] for line in block.splitlines()[1:]}


@pytest.fixture
def experiments(bash):
    """Return a function that runs the driver for the model my_net; a later variable of the same name wins."""

    def run(root, *words, **environment):
        return bash("experiments.sh", f"models_root_dir={root}", "model_name=my_net", *words, **environment)

    return run


@pytest.fixture
def recorder(tmp_path):
    """Return a program in place of Python: it writes its arguments as a line into ``tmp_path / "commands"``."""
    program = tmp_path / "python"
    program.write_text(f'#!/bin/bash\necho "$@" >> {tmp_path}/commands\n')
    program.chmod(0o755)
    return str(program)


@pytest.fixture
def images(workshop):
    """Flags that name all images; ``workshop.models`` then holds the features of two models."""
    rng = np.random.default_rng(0)
    wnids = [path.name for path in sorted(workshop.in21k.iterdir())]
    levels = tiny.write_levels_file(workshop.root / "two.pkl", [wnids[:2], wnids[2:]])
    with open(workshop.root / "levels.csv", "w", encoding="utf-8", newline="") as handle:
        rows = csv.writer(handle)
        rows.writerow(("wnid", "similarity", "level"))
        rows.writerows((wnid, round(rng.random(), 3), 1 + (k > 1)) for k, wnid in enumerate(wnids))
    loader = workshop.root / "nets.py"
    loader.write_text(NET)
    given = {
        "in1k_images_root": workshop.in1k,
        "imagenet_images_root": workshop.in21k,
        "cog_levels_mapping_file": levels,
        "cog_concepts_split_file": workshop.split_file,
        "model_loader": f"{loader}:load_my_model",
    }
    for model in ("my_net", "my_other"):
        extract_features.main(
            ["--model", model, "--models_root_dir", str(workshop.models), "--dataset", *DATASETS, "--split", "train",
             "test", "--device", "cpu", *(f"--{flag}={value}" for flag, value in given.items()), *IMAGES]
        )  # fmt: skip
    return [f"{flag}={value}" for flag, value in given.items()]


@pytest.mark.slow
def test_every_experiment_with_one_command(workshop, images, experiments):
    words = [
        "against=my_other", f"datasets={' '.join(DATASETS)}", "experiments=all", "seeds=22 37", "shots=1", "dims=2 64",
        "max_per_class=2", f"levels_csv={workshop.root / 'levels.csv'}", *images, *SMALL,
    ]  # fmt: skip
    done = experiments(workshop.models, "model_name=my_net my_other", *words, COG_WORDNET_DIR="/nowhere")
    assert done.returncode == 0, done.stderr
    assert "left out: subtrees (needs WordNet 3.0" in done.stderr
    steps = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("[")]
    n_steps = 2 * (6 * len(DATASETS) + 4) + 1
    assert sum(f"/{n_steps}]" in line for line in steps) == n_steps
    assert "left out: 64 components of my_net (its features have 32 dimensions)" in done.stderr
    assert rows_of_overview(done.stdout, "cog_l1") >= {
        "LogReg, N=1 (%)", "LogReg (%)", "nearest class mean (%)", "k-means AMI",
        "uniformity", "accuracy ~ similarity, Spearman", "farthest tenth of the concepts (%)",
        "in1k classifier confident here (%)", "in1k classifier, AUROC own/here (%)",
        "concepts better than my_other (FDR 5 %)", "LogReg, PCA 2 (%)", "LogReg, max 2 images (%)", "MLP (%)",
        "MLP no activation (%)", "fine-tuned (%)",
    }  # fmt: skip
    assert (workshop.models / "my/net/cog_l1/analysis_cross_in1k/sheet.png").is_file()
    made = {path: path.stat().st_mtime_ns for path in workshop.models.rglob("results.json")}
    again = experiments(workshop.models, *words, COG_WORDNET_DIR="/nowhere")
    assert again.returncode == 0, again.stderr
    assert {path: path.stat().st_mtime_ns for path in workshop.models.rglob("results.json")} == made
    assert "trial" not in again.stderr


def test_unknown_experiments_are_named(experiments, tmp_path):
    done = experiments(tmp_path, "experiments=cooking")
    assert done.returncode == 2
    assert "unknown experiment cooking; expected all or some of: logreg" in done.stderr


@pytest.mark.slow
def test_common_flags_reach_analyses(workshop, experiments):
    tiny.write_features(workshop.models / "my/net/in1k/features_train", *tiny.make_xy())
    tiny.write_features(workshop.models / "my/net/in1k/features_test", *tiny.make_xy(seed=1))
    words = ["datasets=in1k", "experiments=label_free", "ANALYSIS.KNN_K", "[1]"]
    result = workshop.models / "my/net/in1k/analysis_knn/results.json"
    checked = experiments(workshop.models, *words, "--check")
    assert checked.returncode == 0 and "it can start" in checked.stdout and not result.exists()
    refused = experiments(workshop.models, *words, "--device", "abacus")
    assert refused.returncode == 2 and "abacus" in refused.stderr and not result.exists()
    assert experiments(workshop.models, *words).returncode == 0
    before = result.stat().st_mtime_ns
    assert experiments(workshop.models, *words).returncode == 0 and result.stat().st_mtime_ns == before
    assert experiments(workshop.models, *words, "--overwrite").returncode == 0
    assert result.stat().st_mtime_ns > before


def test_experiments_that_lack_something_are_named(experiments, recorder, tmp_path):
    done = experiments(tmp_path, "datasets=cog_l5", "experiments=cross label_free", COG_PYTHON=recorder)
    assert done.returncode == 0
    assert re.findall("left out: (.*) .needs (.*?),", done.stderr) == [("cross", "in1k")]
    assert "[1/1]" in done.stdout


def write_sizes(folder, n_train, n_test, **more):
    for split, n_images in (("train", n_train), ("test", n_test)):
        (folder / f"features_{split}").mkdir(parents=True)
        sizes = {"n_images": n_images, "n_classes": 100, "feature_dim": 512, **more}
        (folder / f"features_{split}/features.json").write_text(json.dumps(sizes))


@pytest.mark.slow
def test_what_takes_days_is_left_out_unless_named(experiments, tmp_path):
    """By the number of images that features.json tells; what needs the classifiers is left out, too."""
    write_sizes(tmp_path / "my/net/cog_l1", 10**9, 10**5, images_per_second=50.0, device="cpu")
    (tmp_path / "levels.csv").touch()

    def shown(*more: str) -> str:
        words = ["datasets=cog_l1", "seeds=22", "shots=1", "dims=32", f"levels_csv={tmp_path}/levels.csv"]
        done = experiments(tmp_path, *words, *more, "--device", "cpu")
        assert done.returncode == 2  # there are no features
        return done.stdout + done.stderr

    by_default, all_of_them = shown(), shown("experiments=all")
    days = r"left out: {0} of my_net \(takes about \d+ hours on this machine; .*experiments={0}"
    for name in ("logreg", "mlp", "mlp_noact"):
        assert re.search(days.format(name), by_default)
    for name in ("label_free", "finetune"):
        assert re.search(days.format(name), all_of_them)
    assert "left out: distance of my_net (needs its classifiers)" in by_default
    assert "left out: fewshot" not in by_default
    assert re.search(
        r"\] logistic regression with N = 1 of my_net on cog_l1, seeds 22 \(about \d+\w+\)", by_default
    )
    for names, step in (
        ("mlp", "MLP of my_net on cog_l1, seeds 22"),
        ("label_free finetune", "analysis of my_net: all"),
    ):
        named = shown(f"experiments={names}")
        assert "left out" not in named
        assert re.search(rf"{step} \(about \d+d\d\dh\)", named)


def test_what_is_done_takes_no_time(tmp_path, capsys):
    folder = tmp_path / "my/net/cog_l1"
    write_sizes(folder, 10**9, 10**9)
    argv = ["--models_root_dir", str(tmp_path), "--model", "my_net", "--datasets", "cog_l1", "in1k", "--seeds", "22",
            "--shots", "1", "2", "--device", "cpu"]  # fmt: skip

    def seconds() -> dict[str, float]:
        assert step_times.main(argv) == 0
        lines = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()]
        assert {line[1] for line in lines} == {"cog_l1", "in1k", "-"}
        # Of in1k there are no features, so nothing tells how long all data sets take together.
        assert {line[2] for line in lines if line[1] != "cog_l1"} == {"?"}
        assert all(line[3].startswith("no estimate: ") == (line[2] == "?") for line in lines)
        return {line[0]: float(line[2]) for line in lines if line[2] != "?"}

    before = seconds()
    assert before["mlp"] > before["logreg"] > before["fewshot"]
    (folder / "eval_logreg/seed-22").mkdir(parents=True)
    (folder / "eval_logreg/seed-22/results.json").write_text("{}")
    assert seconds()["logreg"] == 0


def test_times_of_analyses_and_fine_tuning(tmp_path, capsys, monkeypatch):
    """Against operations counted by hand: 1 GFLOP/s, and an extraction of 50 images a second."""
    monkeypatch.setattr(estimates, "measure_rate", lambda device: 1e9)
    for dataset in ("in1k", "cog_l1"):
        write_sizes(tmp_path / "my/net" / dataset, 100_000, 5_000, images_per_second=50.0, device="cpu")

    def lines(*more: str) -> dict[tuple[str, str], tuple[str, str]]:
        argv = ["--models_root_dir", str(tmp_path), "--model", "my_net", "--datasets", "in1k", "cog_l1", "--seeds",
                "22", "37", "--device", "cpu", "--trained_on", "in1k", "--finetune_seeds", "22", *more]  # fmt: skip
        assert step_times.main(argv) == 0
        split = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()]
        return {(name, dataset): (seconds, text) for name, dataset, seconds, text in split}

    expected = lines("FINETUNE.N_EPOCHS", "10", "ANALYSIS.KMEANS_SEEDS", "[22]")
    # 10 epochs of 100,000 images forward and backward (as long as 3 forward), and 5,000 test images
    assert expected["finetune", "cog_l1"] == ("61000", "about 16h56m")
    assert expected["finetune", "-"] == ("122000", "about 33h53m")
    # two classifiers of 100 classes on the test images of both data sets
    cross = f"{2 * 512 * 10_000 * 100 * 2 / 1e9:.0f}"
    assert expected["cross", "cog_l1"][0] == expected["cross", "-"][0] == cross
    neighbors, pairs, means = 2 * 512 * 100_000 * 5_000, 512 * 5_000**2, 8 * 512 * 5_000 * 100
    clusters = 2 * 512 * 100_000 * 100 * 29
    assert expected["label_free", "in1k"][0] == f"{(clusters + neighbors + pairs + means) / 1e9:.0f}"
    assert expected["distance", "-"] == ("?", "no estimate: it works on saved predictions")
    # more processes do not make a processor faster
    assert lines("--n_processes", "4")["finetune", "-"] == lines()["finetune", "-"]

    for name in ("kmeans", "alignment", "ncm"):
        (tmp_path / f"my/net/in1k/analysis_{name}").mkdir()
        (tmp_path / f"my/net/in1k/analysis_{name}/results.json").write_text("{}")
    assert lines()["label_free", "in1k"][0] == f"{neighbors / 1e9:.0f}"

    for split in ("train", "test"):
        path = tmp_path / f"my/net/in1k/features_{split}/features.json"
        path.write_text(path.read_text().replace('"cpu"', '"NVIDIA H200"'))
    expected = lines()
    assert expected["finetune", "in1k"] == expected["finetune", "-"]
    why = "no estimate: the speed of the network on such a device is in no features.json"
    assert expected["finetune", "in1k"][1] == why
    assert expected["finetune", "cog_l1"][0] != "?"
