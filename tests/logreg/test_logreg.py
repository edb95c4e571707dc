"""logreg.py: the files it leaves, in both directions between this toolkit and the original one."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess

import numpy as np
import pytest
import tiny
import torch
from classifier_runs import FLAGS, LOG_KEYS, command, complete, logs_of

from cog.commands import logreg
from cog.errors import CogError
from cog.results import concept_counts


def test_files_are_those_of_the_contract(feature_folders, tmp_path, capsys):
    out = tmp_path / "seed-22"
    assert logreg.main(command(feature_folders, out)) == 0
    (final,) = out.glob("final-lr-*_wd-*")
    assert {path.name for path in out.iterdir()} == {"results.json", "program.log", final.name}
    assert {path.name for path in final.iterdir()} == {"logs.pkl", "model.pth", "preds.pkl"}
    logs = logs_of(out)
    assert type(logs) is dict and set(logs) == LOG_KEYS
    assert all(type(value) is float for values in logs.values() for value in values)
    assert {len(values) for values in logs.values()} == {4}
    model = torch.load(final / "model.pth", weights_only=True)
    assert set(model) == {"model"}
    torch.nn.Linear(8, 3).load_state_dict(model["model"])
    predictions = pickle.loads((final / "preds.pkl").read_bytes())[-1]
    test = torch.load(feature_folders[1] / "X_Y.pth", weights_only=True)
    assert 100 * (np.asarray(predictions) == test["Y"].numpy()).mean() == pytest.approx(logs["test/top1"][-1])
    # the saved classifier is the one that was scored
    x = torch.nn.functional.normalize(test["X"])
    logits = x @ model["model"]["weight"].T + model["model"]["bias"]
    assert (logits.argmax(1).numpy() == predictions).all()
    record = json.loads((final.parent / "results.json").read_text())
    counts = concept_counts.read(record["final"], n_classes=record["n_classes"], top1=logs["test/top1"][-1])
    y = np.unique(test["Y"].numpy(), return_inverse=True)[1]
    correct = np.bincount(y[np.asarray(predictions) == y], minlength=y.max() + 1)
    assert counts.correct.tolist() == correct.tolist()
    assert counts.n_images == len(y)
    loss = torch.nn.functional.cross_entropy(logits, test["Y"]).item()
    assert loss == pytest.approx(logs["test/loss"][-1], rel=1e-5)
    assert final.name == f"final-lr-{record['final']['lr']}_wd-{record['final']['wd']}"
    top1, top5 = logs["test/top1"][-1], logs["test/top5"][-1]
    assert f"top-1: {top1:.2f}  top-5: {top5:.2f}" in capsys.readouterr().out


def test_results_json(feature_folders, tmp_path):
    out = tmp_path / "run"
    logreg.main(command(feature_folders, out, "EVAL.SEED", "37", "CLF.N_SHOT", "4"))
    data = json.loads((out / "results.json").read_text())
    assert data["status"] == "complete"
    assert (data["seed"], data["n_shot"], data["n_classes"], data["feature_dim"]) == (37, 4, 3, 8)
    assert data["rows"] == {"search_train": 12, "search_val": 6, "final_train": 12, "test": 30}
    assert len(data["trials"]) == 3
    assert data["trials"][data["best_trial"]]["lr"] == data["final"]["lr"]
    assert data["final"]["test_top1"] == logs_of(out)["test/top1"][-1]
    assert data["configuration"]["CLF.N_EPOCHS"] == 4
    assert set(data["seconds"]) == {"search", "final"} and data["versions"]["torch"]
    # a run that was interrupted has the same record, whatever the devices and graphs of its starts
    assert data["device"] == "cpu" and data["arithmetic"].keys() == {"precision", "form", "search"}
    assert "sessions" not in data


@pytest.mark.parametrize(("n_shot", "expected"), [("1", "fp32"), ("4", "bf16")])
def test_the_precision_that_was_used_is_recorded_and_logged(
    feature_folders, tmp_path, caplog, n_shot, expected
):
    """3 images of 8 dimensions are trained in their span, whatever CLF.PRECISION is; 12 are not."""
    out = tmp_path / "run"
    with caplog.at_level("INFO", "cog"):
        logreg.main(command(feature_folders, out, "CLF.N_SHOT", n_shot, "CLF.PRECISION", "bf16"))
    record = json.loads((out / "results.json").read_text())
    used = {"precision": expected, "form": {"fp32": "span", "bf16": "dense"}[expected]}
    assert record["precision"] == expected
    assert record["arithmetic"] == used | {"search": used}
    assert f"steps in {expected}" in caplog.text


def test_default_output_is_beside_the_features(workshop):
    base = ["--models_root_dir", str(workshop.models), "--model", "tiny_net", "--dataset", "birds", *FLAGS]
    logreg.main([*base, "EVAL.SEED", "5"])
    logreg.main([*base, "EVAL.SEED", "5", "CLF.PCA_DIM", "2"])
    logreg.main([*base, "--seeds", "5", "6", "--n_shots", "0", "2", "EVAL.NAME", "mine"])
    mine = [f"eval_mine{suffix}/seed-{seed}" for suffix in ("", "_N2") for seed in (5, 6)]
    folders = ["eval_logreg/seed-5", "eval_logreg_pca2/seed-5", *mine]
    assert complete(workshop.models / "tiny/net/birds") == folders


def test_several_data_sets_in_one_process(workshop, tmp_path):
    """Each in its own folder, with the numbers of a call of its own; nothing is trained when one is missing."""
    shutil.copytree(workshop.models / "tiny/net/birds", workshop.models / "tiny/net/wrens")
    base = ["--models_root_dir", str(workshop.models), "--model", "tiny_net", *FLAGS, "--dataset"]
    with pytest.raises(CogError, match="there are no train features .*owls"):
        logreg.main([*base, "birds", "owls"])
    assert not (workshop.models / "tiny/net/birds/eval_logreg").exists()
    logreg.main([*base, "birds", "wrens"])
    first, second = (
        json.loads((workshop.models / f"tiny/net/{name}/eval_logreg/seed-22/results.json").read_text())
        for name in ("birds", "wrens")
    )
    assert first["final"] == second["final"]
    with pytest.raises(CogError, match="--output_dir is of one data set"):
        logreg.main([*base, "birds", "wrens", "--output_dir", str(tmp_path / "out")])


def test_fixed_hyper_parameters(feature_folders, tmp_path):
    out = tmp_path / "run"
    logreg.main([*command(feature_folders, out, "--lr", "2.5", "--wd", "1e-6"), "CLF.N_TRIALS", "0"])
    assert (out / "final-lr-2.5_wd-1e-06" / "logs.pkl").is_file()
    assert json.loads((out / "results.json").read_text())["trials"] == []


def test_existing_run_is_skipped_refused_or_replaced(feature_folders, tmp_path, capsys):
    out = tmp_path / "run"
    logreg.main(command(feature_folders, out))
    printed = capsys.readouterr().out
    before = tiny.snapshot(out)
    assert logreg.main(command(feature_folders, out)) == 0
    assert capsys.readouterr().out == printed  # drivers see the same line
    with pytest.raises(CogError, match=r"different run \(n_epochs: 4 -> 5\); add --overwrite"):
        logreg.main(command(feature_folders, out, "CLF.N_EPOCHS", "5"))
    assert tiny.snapshot(out) == before
    (out / "notes.txt").write_text("the user's own")
    logreg.main(command(feature_folders, out, "--overwrite", "EVAL.SEED", "1"))
    assert len(list(out.glob("final-*"))) == 1  # the older run's folder is gone
    assert (out / "notes.txt").read_text() == "the user's own"
    assert json.loads((out / "results.json").read_text())["seed"] == 1


def test_settings_without_a_part_in_a_run_make_no_other_run(feature_folders, tmp_path):
    out = tmp_path / "out"
    logreg.main(command(feature_folders, out))
    logreg.main(command(feature_folders, out, "CLF.MLP_HIDDEN", "8", "CLF.MLP_LAYERS", "1"))
    out = tmp_path / "mlp"
    logreg.main(command(feature_folders, out, "CLF.TYPE", "mlp", "CLF.MLP_HIDDEN", "8"))
    with pytest.raises(CogError, match="mlp_hidden: 8 -> 9"):
        logreg.main(command(feature_folders, out, "CLF.TYPE", "mlp", "CLF.MLP_HIDDEN", "9"))


def test_a_run_of_the_original_toolkit_is_not_replaced_unasked(feature_folders, tmp_path):
    out = tmp_path / "run"
    final = out / "final-lr-1.0_wd-1e-06"
    final.mkdir(parents=True)
    (final / "logs.pkl").write_bytes(pickle.dumps({key: [1.0] for key in LOG_KEYS}))
    before = tiny.snapshot(out)
    with pytest.raises(
        CogError, match=r"a run of unknown settings \(final-lr-1.0_wd-1e-06\); add --overwrite"
    ):
        logreg.main(command(feature_folders, out))
    assert tiny.snapshot(out) == before


def test_a_complete_run_is_skipped_without_loading_torch(feature_folders, tmp_path, python, repository):
    """A study has 270 runs: passing over those that are done must not take seconds each."""
    out = tmp_path / "run"
    logreg.main(command(feature_folders, out))
    script = (
        "import sys; from cog.commands import logreg; "
        f"logreg.main({command(feature_folders, out)!r}); "
        "assert 'torch' not in sys.modules and 'optuna' not in sys.modules"
    )
    subprocess.run([python, "-c", script], cwd=repository, check=True)
