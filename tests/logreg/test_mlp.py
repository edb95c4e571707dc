"""CLF.TYPE mlp and mlp_noact: the command (the training: test_engine.py)."""

from __future__ import annotations

import json

import plain_logreg
import pytest
import torch
from classifier_runs import command

from cog import config
from cog.commands import logreg
from cog.errors import CogError
from cog.features import feature_files
from cog.logreg import training

MODULES = {"mlp": torch.nn.ReLU, "mlp_noact": torch.nn.Identity}
SMALL = ["CLF.MLP_HIDDEN", "16", "CLF.N_TRIALS", "3", "CLF.N_EPOCHS", "4", "--device", "cpu"]


@pytest.mark.parametrize(("kind", "lr"), [("mlp", (1e-1, 1e2)), ("mlp_noact", (1e-2, 1e1))])
def test_the_command_writes_an_ordinary_run(feature_folders, tmp_path, kind, lr):
    """Own defaults, the contract's files, and a model that torch loads and that gives the recorded accuracy."""
    assert logreg.main(command(feature_folders, tmp_path / "out", "CLF.TYPE", kind, *SMALL)) == 0
    results = json.loads((tmp_path / "out/results.json").read_text())
    identity = results["identity"]
    assert (identity["classifier"], identity["normalize"]) == (kind, False)
    assert (tuple(identity["lr_interval"]), tuple(identity["wd_interval"])) == (lr, (1e-8, 1e-4))
    assert all(lr[0] <= trial["lr"] <= lr[1] for trial in results["trials"])
    final = tmp_path / "out" / results["final"]["folder"]
    stored = torch.load(final / "model.pth", weights_only=True)["model"]
    train, test = feature_files.load(feature_folders[0]), feature_files.load(feature_folders[1])
    sizes = [train.x.shape[1], 16, 16, results["n_classes"]]
    model = plain_logreg.network(sizes, MODULES[kind], seed=0)
    model.load_state_dict(stored)
    with torch.no_grad():
        top1 = 100 * (model(test.x).argmax(1) == test.y).double().mean().item()
    assert results["final"]["test_top1"] == pytest.approx(top1)
    given = config.get_cfg(opts=["CLF.TYPE", kind, "CLF.NORM_FTS", "True", "CLF.LR_INTV", "(1e-3,1e-2)"])
    assert (given.CLF.NORM_FTS, given.CLF.LR_INTV, given.CLF.WD_INTV) == (True, (1e-3, 1e-2), (1e-8, 1e-4))


def test_networks_beyond_memory_are_refused(feature_folders, tmp_path, monkeypatch):
    """In one line, before a weight is made."""
    more = ["CLF.TYPE", "mlp", "CLF.MLP_LAYERS", "3", *SMALL[2:], "CLF.MLP_HIDDEN"]
    monkeypatch.setattr(training, "device_room", lambda device: 10**8)
    with pytest.raises(CogError, match="CLF.MLP_HIDDEN 9000 .* takes 2.* GB to train, and 100 MB of memory"):
        logreg.main(command(feature_folders, tmp_path / "out", *more, "9000"))
    assert not (tmp_path / "out/results.json").exists()
    assert logreg.main(command(feature_folders, tmp_path / "out", *more, "90")) == 0
