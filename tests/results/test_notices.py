"""Checks: what each of them finds, and the command that repairs it."""

import json
import shlex

import pytest
from benchmark_runs import write_study

from cog.constants import SEEDS, SPLITS
from cog.results import frame, notices, read


def make_runs(root, *, model="my_net", datasets=("in1k", "cog_l2"), seeds=SEEDS, shots=(0,), **more):
    """Write runs on the benchmark's data; ``more``: entries of their records."""
    write_study(root, {model: 0.0}, datasets=datasets, seeds=seeds, shots=shots, **more)


def check(root, seeds=(), **more):
    means = frame.average((results := read.read(root)).scores, seeds)
    return {notice.title: notice for notice in notices.check(means, results, **more)}


def test_missing_seeds_with_the_command_that_adds_them(tmp_path):
    root = tmp_path / "$(touch x)"
    other = {"n_trials": 3, "n_epochs": 4, "lr_interval": [0.1, 10.0], "normalize": False, "momentum": 0.8}
    make_runs(root, datasets=("in1k", "cog_l1"), identity=other)
    make_runs(root, datasets=("cog_l2",), seeds=(22, 37, 77), identity=other)
    make_runs(root, datasets=("cog_l1",), shots=(1, 8), seeds=SEEDS[:4], identity=other)
    mlp = {"identity": {"classifier": "mlp", "max_per_class": 9}, "evaluation": "raw_max9"}
    make_runs(root, datasets=("in1k",), seeds=SEEDS[:4], **mlp)
    make_runs(root, datasets=("in1k",), seeds=(22,), evaluation="finetune")
    notice = check(root)["Seeds are missing"]
    assert len(notice.places) == 4 and "my_net, L2, all: missing 45, 93" in notice.places
    settings = "CLF.N_TRIALS 3 CLF.N_EPOCHS 4 CLF.LR_INTV '(0.1, 10.0)' CLF.NORM_FTS False"
    start = f"models_root_dir='{root}' model_name=my_net dataset"
    assert sorted(notice.commands) == [
        f"bash bash-scripts/fewshot.sh {start}=cog_l1 shots='1 8' seeds=93 {settings}",
        f"bash bash-scripts/logreg.sh {start}=cog_l2 seeds='45 93' {settings}",
        f"bash bash-scripts/logreg.sh {start}=in1k seeds=93 EVAL.NAME raw CLF.TYPE mlp CLF.MAX_PER_CLASS 9",
    ]
    assert all(f"models_root_dir={root}" in shlex.split(command) for command in notice.commands)
    notice = check(root, seeds=(22, 37))["Seeds are missing"]
    assert (notice.places, notice.commands) == (["finetune, my_net, IN-1K, all: missing 37"], [])


def test_other_data_settings_and_folders(tmp_path):
    make_runs(tmp_path)
    assert check(tmp_path) == {}, "a complete study"
    make_runs(tmp_path, model="a_net", rows={"final_train": 240, "test": 50_000})
    make_runs(tmp_path, model="b_net", identity={"n_trials": 10})
    (tmp_path / "b/net/in1k/eval_logreg/seed-x").mkdir()
    folder, data, settings = sorted(check(tmp_path).values(), key=lambda notice: notice.places)
    assert data.places == ["a_net, IN-1K, L2: 240 training images"]
    assert "Not the benchmark's data" in data.title
    assert settings.places == ["b_net: n_trials 10 (runs: 10)"]
    assert folder.title == "Folders not counted" and "seed-x: not a seed folder" in folder.places[0]
    make_runs(tmp_path, datasets=("in1k",), seeds=(22,), identity={"n_epochs": 50})
    notice = check(tmp_path, training=True)["No mean"]
    words = "its seeds are of other settings; seed 22: n_epochs 50; seed 37: the paper's settings"
    assert (notice.severity, notice.places) == ("problem", [f"my_net, IN-1K, all: {words}"])


def test_diverged_training_comes_first_and_edges_are_told(tmp_path):
    make_runs(tmp_path, final={"lr": 86.0})  # on the logarithmic axis, 86 and 88 are at 97.8 % and 98.2 %
    make_runs(tmp_path, datasets=("in1k",), seeds=(22,), final={"lr": 88.0, "diverged": True})
    for number, broken in enumerate((None, [1.0], [0.0, 1.0], ["a", "b"], [5.0, 1.0])):
        make_runs(tmp_path, model=f"x_n{number}", seeds=(22,), identity={"lr_interval": broken})
    first, *_, edge = check(tmp_path).values()
    assert (first.severity, first.title) == ("problem", "Final training diverged")
    assert first.places[0].startswith("my_net, IN-1K, all, seed 22: ")
    assert edge.places == ["my_net, IN-1K, all, seed 22: 88"] and "upper end" in edge.title


@pytest.mark.parametrize("changed", ["checkpoint_sha256", "rows_sha256"])
def test_features_that_were_made_anew_of_other_checkpoints_or_with_failed_images(tmp_path, changed):
    used = {"checkpoint_sha256": "a" * 64, "rows_sha256": "c" * 64}
    make_runs(tmp_path, identity={f"{split}_features": used for split in SPLITS})

    def titles(dataset, **described):
        folder = tmp_path / f"my/net/{dataset}/features_test"
        folder.mkdir(exist_ok=True)
        (folder / "features.json").write_text(json.dumps({"n_images": 50_000, **described}))
        return list(check(tmp_path))

    assert titles("in1k", identity=used) == []
    assert titles("in1k", identity=used | {changed: "d" * 64}) == ["Features changed after the runs"]
    assert titles("in1k", identity=used) == titles("cog_l2", n_failed=0) == []
    titles("cog_l2", checkpoint_sha256="b" * 64, n_failed=3)
    found = check(tmp_path)
    places = [f"my_net, checkpoint {sha * 12}: {name} test" for sha, name in (("a", "IN-1K"), ("b", "L2"))]
    assert found["Features of different checkpoints"].places == places
    assert found["Images could not be decoded"].places == ["my_net, L2 test: 3"]
