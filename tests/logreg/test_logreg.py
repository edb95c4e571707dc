"""logreg.py: its files, what it skips, refuses and continues, groups of seeds."""

import json
import os
import pickle
import re
import shutil
import signal
import subprocess

import numpy as np
import pytest
import tiny
import torch
from classifier_runs import FLAGS, LOG_KEYS, command, complete, logs_of
from result_folders import make_seed_folder
from test_kill import snapshot

from cog.commands import logreg
from cog.errors import CogError
from cog.logreg import engine, search, train
from cog.results import concept_counts
from cog.runtime.output import Output, state
from cog.runtime.signals import Interrupted

SEEDS = ["--seeds", "22", "37"]

# --- Files


def test_files_are_those_of_the_contract(feature_folders, tmp_path, capsys):
    out = tmp_path / "seed-22"
    assert logreg.main(command(feature_folders, out)) == 0
    (final,) = out.glob("final-lr-*_wd-*")
    assert {path.name for path in out.iterdir()} == {"results.json", "program.log", final.name}
    assert {path.name for path in final.iterdir()} == {"logs.pkl", "model.pth", "preds.pkl"}
    logs = logs_of(out)
    assert type(logs) is dict and set(logs) == LOG_KEYS
    assert all(len(values) == 4 and {*map(type, values)} == {float} for values in logs.values())
    model = torch.load(final / "model.pth", weights_only=True)
    assert set(model) == {"model"}
    linear = torch.nn.Linear(8, 3)
    linear.load_state_dict(model["model"])
    predictions = np.asarray(pickle.loads((final / "preds.pkl").read_bytes())[-1])
    test = torch.load(feature_folders[1] / "X_Y.pth", weights_only=True)
    right = predictions == test["Y"].numpy()
    assert 100 * right.mean() == pytest.approx(logs["test/top1"][-1])
    # the saved classifier is the one that was scored
    logits = linear(torch.nn.functional.normalize(test["X"])).detach()
    assert (logits.argmax(1).numpy() == predictions).all()
    loss = torch.nn.functional.cross_entropy(logits, test["Y"]).item()
    assert loss == pytest.approx(logs["test/loss"][-1], rel=1e-5)
    record = json.loads((out / "results.json").read_text())
    counts = concept_counts.read(record["final"], n_classes=3, top1=logs["test/top1"][-1])
    assert list(counts.correct) == np.bincount(test["Y"][right], minlength=3).tolist()
    assert final.name == f"final-lr-{record['final']['lr']}_wd-{record['final']['wd']}"
    top1, top5 = logs["test/top1"][-1], logs["test/top5"][-1]
    assert f"top-1: {top1:.2f}  top-5: {top5:.2f}  ({out})" in capsys.readouterr().out


def test_results_json(feature_folders, tmp_path):
    out = tmp_path / "run"
    logreg.main(command(feature_folders, out, "EVAL.SEED", "37", "CLF.N_SHOT", "4", "CLF.MAX_PER_CLASS", "8"))
    data = json.loads((out / "results.json").read_text())
    assert (data["status"], data["seed"], data["n_shot"]) == ("complete", 37, 4)
    assert (data["n_classes"], data["feature_dim"], data["labels"]) == (3, 8, None)
    assert data["rows"] == {"search_train": 12, "search_val": 3, "final_train": 12, "test": 30}
    assert [trial["number"] for trial in data["trials"]] == [0, 1, 2]
    assert data["trials"][data["best_trial"]]["lr"] == data["final"]["lr"]
    assert data["final"]["test_top1"] == logs_of(out)["test/top1"][-1] and data["final"]["diverged"] is False
    assert data["configuration"]["CLF.N_EPOCHS"] == 4 and data["versions"]["torch"]
    assert data["identity"].keys() >= {"seed", "n_shot", "train_features", "test_features"}
    assert (data["device"], data["lockstep"], {*data["seconds"]}) == ("cpu", [37], {"search", "final"})


def test_folders_of_models_data_sets_seeds_and_shots(workshop):
    birds = workshop.models / "tiny/net/birds"
    shutil.copytree(birds, workshop.models / "tiny/net/wrens")
    base = ["--models_root_dir", str(workshop.models), "--model", "tiny_net", *FLAGS]
    with pytest.raises(CogError, match="there are no train features .*owls"):
        logreg.main([*base, "--dataset", "birds,owls"])
    assert not (birds / "eval_logreg").exists()
    logreg.main([*base, "--dataset", "birds", "wrens", "--seeds", "5,6", "--n_shot", "all", "2"])
    logreg.main([*base, "--dataset", "birds", "EVAL.SEED", "7", "CLF.TYPE", "mlp", "CLF.MLP_HIDDEN", "4"])
    expected = [f"eval_logreg{shots}/seed-{seed}" for shots in ("", "_N2") for seed in (5, 6)]
    assert complete(birds) == [*expected, "eval_mlp/seed-7"]
    assert complete(workshop.models / "tiny/net/wrens") == expected


def test_folders_below_an_output_folder(feature_folders, tmp_path):
    for words in (["--seeds", "3", "1", "CLF.N_SHOT", "2"], ["--n_shot", "1", "0", "EVAL.SEED", "9"]):
        logreg.main(command(feature_folders, f"{tmp_path}/out/", *words))
    assert set(complete(tmp_path)) == {"out_N2/seed-3", "out_N2/seed-1", "out_N1/seed-9", "out/seed-9"}


# --- What is there already


def test_existing_runs_are_skipped_refused_or_replaced(feature_folders, tmp_path, capsys):
    out = tmp_path / "run"
    logreg.main(command(feature_folders, out))
    printed = capsys.readouterr().out
    before = tiny.snapshot(out)
    for words in ((), ("--overwrite",), ("CLF.MLP_HIDDEN", "8")):  # equal runs, and a setting without effect
        assert logreg.main(command(feature_folders, out, *words)) == 0
        assert capsys.readouterr().out == printed and tiny.snapshot(out) == before
    with pytest.raises(CogError, match=r"another result \(n_epochs: 4 -> 5\); add --overwrite"):
        logreg.main(command(feature_folders, out, "CLF.N_EPOCHS", "5"))
    assert tiny.snapshot(out) == before
    pair = ["CLF.N_TRIALS", "0", "CLF.LR_INTV", "(2.5,2.5)", "CLF.WD_INTV", "(1e-6,1e-6)"]
    logreg.main(command(feature_folders, out, "--overwrite", *pair))
    assert list(out.glob("final-*")) == [out / "final-lr-2.5_wd-1e-06"] and list(tmp_path.glob(".*")) == []
    assert json.loads((out / "results.json").read_text())["trials"] == []


def test_runs_of_the_original_toolkit_are_kept_or_replaced_where_they_are(workshop, caplog):
    birds = workshop.models / "tiny/net/birds"
    words = f"--models_root_dir {workshop.models} --model tiny_net --dataset birds --n_shot 2".split()
    theirs = make_seed_folder(birds / "eval_logreg-N2/seed_22")
    (theirs / "val-lr-1.0_wd-0.5").mkdir()
    before = tiny.snapshot(theirs)
    logreg.main([*words, *SEEDS, *FLAGS])
    assert tiny.snapshot(theirs) == before and "seed_22 is kept, and no results.json" in caplog.text
    logreg.main([*words, *SEEDS, *FLAGS, "--overwrite"])
    assert complete(birds) == ["eval_logreg-N2/seed_22", "eval_logreg_N2/seed-37"]


def test_complete_runs_of_a_group_are_skipped_and_one_in_the_way_stops_all(feature_folders, tmp_path, capsys):
    logreg.main(command(feature_folders, tmp_path / "out/seed-37", "EVAL.SEED", "37"))
    before = tiny.snapshot(tmp_path / "out/seed-37")
    logreg.main(command(feature_folders, tmp_path / "out", *SEEDS))
    assert tiny.snapshot(tmp_path / "out/seed-37") == before
    assert capsys.readouterr().out.count("top-1:") == 3
    assert complete(tmp_path) == ["out/seed-22", "out/seed-37"]
    shutil.rmtree(tmp_path / "out/seed-22")
    with pytest.raises(CogError, match=r"out/seed-37 has another result \(n_epochs: 4 -> 5\)"):
        logreg.main(command(feature_folders, tmp_path / "out", *SEEDS, "CLF.N_EPOCHS", "5"))
    assert not (tmp_path / "out/seed-22").exists()


def test_a_complete_run_is_skipped_without_loading_torch(workshop, python, repository):
    """A study has 270 runs: passing over those that are done must not take seconds each."""
    for split in ("train", "test"):
        rows = train.identify_input(workshop.features(split) / "X_Y.pth")
        record = {"identity": {"model": "tiny_net", "split": split}, **rows}
        (workshop.features(split) / "features.json").write_text(json.dumps(record))
    argv = ["--models_root_dir", str(workshop.models), "--model", "tiny_net", "--dataset", "birds", *FLAGS]
    logreg.main(argv)
    script = (
        f"import sys; from cog.commands import logreg; logreg.main({argv!r}); "
        "assert 'torch' not in sys.modules and 'optuna' not in sys.modules"
    )
    subprocess.run([python, "-c", script], cwd=repository, check=True)


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_run_on_other_features_is_another_run(feature_folders, tmp_path, split):
    argv = command(feature_folders, tmp_path / "out")
    logreg.main(argv)
    before = tiny.snapshot(tmp_path / "out")
    path = feature_folders[split == "test"] / "X_Y.pth"
    data = torch.load(path, weights_only=True)
    torch.save(data | {"X": 2 * data["X"]}, path)
    with pytest.raises(CogError, match=rf"another result \({split}_features\..*add --overwrite"):
        logreg.main(argv)
    assert tiny.snapshot(tmp_path / "out") == before
    logreg.main([*argv, "--overwrite"])
    assert tiny.snapshot(tmp_path / "out") != before


# --- Interrupted

PAIRS = ["CLF.N_TRIALS", "11", "CLF.N_EPOCHS", "3", "CLF.BATCH_SIZE", "8", *SEEDS]


@pytest.fixture
def signalled(monkeypatch):
    """Return a function: a signal comes when the engine offers the k-th state from now (None: never)."""
    offered, original = [], search.Unfinished.offer

    def set_up(k, number=signal.SIGTERM):
        offered.clear()

        def offer(self, *args):
            offered.append(None)
            if len(offered) == k:
                os.kill(os.getpid(), number)
            return original(self, *args)

        monkeypatch.setattr(search.Unfinished, "offer", offer)
        return offered

    return set_up


def test_interrupted_at_every_epoch_and_continued(feature_folders, tmp_path, signalled, caplog):
    """One start per epoch somewhere in the group; each ends with what it has saved."""
    caplog.set_level("INFO", logger="cog")
    argv = command(feature_folders, tmp_path / "out", *PAIRS)
    offered = signalled(None)
    logreg.main(argv)
    n_offered = len(offered)
    assert n_offered == 2 * 3  # in rounds of 10 and 1, and the final training: but for the last epochs
    whole = snapshot(tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    sessions = 0
    while True:
        sessions += 1
        number = (signal.SIGTERM, signal.SIGUSR1)[sessions % 2]
        signalled(1, number)
        try:
            assert logreg.main(argv) == 0
            break
        except Interrupted as error:
            assert error.exit_code == 75
            assert re.search(rf"{number.name}: the training so far is saved; the same command", str(error))
            found = {state(tmp_path / f"out/seed-{s}", "results.json").word for s in (22, 37)}
            assert found == {"interrupted"}
    assert sessions == n_offered + 1
    assert snapshot(tmp_path / "out") == whole and not list(tmp_path.rglob(".*"))
    log = (tmp_path / "out/seed-37/program.log").read_text()
    assert log.count("command: ") == sessions and log.count("seed 37, trial 10") >= 1


def test_other_versions_begin_again(feature_folders, tmp_path, signalled, caplog):
    out, argv = tmp_path / "run", command(feature_folders, tmp_path / "run", *PAIRS[:6])
    signalled(4)
    with pytest.raises(Interrupted):
        logreg.main(argv)
    signalled(None)
    journal = Output(out, {}).work / search.TRIALS_FILE
    stored = json.loads(journal.read_text())
    assert len(stored["trials"][0]) == 10
    stored["group"]["versions"]["optuna"] = "1.0"
    journal.write_text(json.dumps(stored))
    logreg.main(argv)
    assert "trials of another group or of other versions" in caplog.text


@pytest.mark.parametrize("error", [CogError("the disk is on fire"), MemoryError()])
def test_a_failure_is_noted_for_each_run_of_the_group(feature_folders, tmp_path, monkeypatch, error):
    def fail(*args, **options):
        raise error

    argv = command(feature_folders, tmp_path / "out", *SEEDS)
    with monkeypatch.context() as patch:
        patch.setattr(engine.Engine, "_new", fail)
        with pytest.raises(type(error)):
            logreg.main(argv)
    message = str(error) or "MemoryError"
    for seed in (22, 37):
        found = state(tmp_path / f"out/seed-{seed}", "results.json")
        assert found.word == "failed" and message in found.detail
    assert logreg.main(argv) == 0 and not list(tmp_path.rglob(".*"))
