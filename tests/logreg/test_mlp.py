"""CLF.TYPE mlp and mlp_noact: the engine against autograd and torch.optim.SGD, and the command."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from marks import first_quick
from test_logreg import LOG_KEYS, command
from test_protocol import run_once
from test_study import assert_same, contents, single_calls, study_command
from torch.utils.flop_counter import FlopCounterMode

from cog.commands import logreg
from cog.errors import CogError
from cog.features import feature_files
from cog.features.feature_files import FeatureSet
from cog.logreg import estimate, protocol, sgd
from cog.logreg.engine import Engine
from cog.logreg.preprocess import prepare
from cog.logreg.settings import Settings
from cog.logreg.sgd import TrainSpec
from cog.runtime import random_streams

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import plain_mlp

CPU = torch.device("cpu")
N, DIM, CLASSES, EPOCHS, HIDDEN = 1000, 24, 10, 6, 40
MODULES = {"mlp": torch.nn.ReLU, "mlp_noact": torch.nn.Identity}
SMALL = ["CLF.MLP_HIDDEN", "16", "CLF.N_TRIALS", "3", "CLF.N_EPOCHS", "4", "--device", "cpu"]


@pytest.fixture(scope="module")
def sets():
    """Clusters on spheres: only a network with an activation tells them apart well."""
    generator = torch.Generator().manual_seed(5)
    y = torch.randint(CLASSES, (N,), generator=generator)
    x = torch.randn(CLASSES, DIM, generator=generator)[y] + 1.5 * torch.randn(N, DIM, generator=generator)
    rows, val = feature_files.split_train_val(y, val_frac=0.2, rng=np.random.default_rng(0))
    return x, y, rows, val


def load(sets, engine):
    x, y, _, val = sets
    return prepare(FeatureSet(x.clone(), y, "train"), FeatureSet(x[val], y[val], "test"), engine)


def settings_of(kind="mlp", layers=2):
    return Settings(
        seed=0, n_epochs=EPOCHS, batch_size=128, classifier=kind, mlp_hidden=HIDDEN, mlp_layers=layers
    )


def spec_of(rows, lr=0.1, wd=1e-5, seed=7):
    return TrainSpec(rows, [(lr, wd)], init_seed=seed, order_seed=seed + 1)


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize(("lr", "wd", "layers"), [(0.1, 1e-5, 2), (0.03, 1e-2, 1), (0.05, 0.0, 3)])
def test_equals_the_plain_loop_in_float32(sets, kind, lr, wd, layers):
    """Loss to 1e-5 and the same accuracy after every epoch."""
    x, y, rows, val = sets
    spec = spec_of(rows, lr, wd)
    oracle = plain_mlp.network([DIM, *[HIDDEN] * layers, CLASSES], MODULES[kind], seed=spec.init_seed)
    generator = random_streams.cpu_generator(spec.order_seed)
    theirs = plain_mlp.fit(
        oracle, (x[rows], y[rows]), (x[val], y[val]), lr=lr, wd=wd, n_epochs=EPOCHS, batch_size=128,
        next_order=lambda n: torch.randperm(n, generator=generator),
    )  # fmt: skip
    engine = Engine(CPU)
    data = load(sets, engine)
    (trained,) = engine.fit(data, spec, settings_of(kind, layers), record=True)
    logs = trained.logs
    for key in ("train/loss", "test/loss"):
        np.testing.assert_allclose(logs[key], theirs[key], rtol=1e-5, atol=1e-5)
    assert logs["test/top1"] == pytest.approx(theirs["test/top1"], abs=1e-4)
    assert set(logs) == LOG_KEYS
    for name, parameter in oracle.state_dict().items():
        torch.testing.assert_close(trained.state_dict()[name], parameter, rtol=1e-3, atol=1e-5)
    assert engine.top1(data, val, [trained]) == pytest.approx([theirs["test/top1"][-1]], abs=1e-4)
    assert str(trained.module()) == str(oracle)


def test_initial_layers_are_torchs():
    """Bit for bit, so that the seed alone says where training began."""
    sizes = [13, 7, 5, 3]
    model = plain_mlp.network(sizes, torch.nn.ReLU, seed=11)
    ours = [t for layer in sgd.initial_layers(sizes, 11) for t in layer]
    for mine, theirs in zip(ours, model.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODULES)
def test_bfloat16_gives_the_same_accuracy(sets, kind):
    scores = {}
    for precision in ("fp32", "bf16"):
        engine = Engine(CPU, precision)
        data = load(sets, engine)
        trained = [engine.fit(data, spec_of(sets[2], seed=seed), settings_of(kind))[0] for seed in range(6)]
        scores[precision] = np.mean(engine.top1(data, sets[3], trained))
    assert abs(scores["bf16"] - scores["fp32"]) < 1.0  # of 200 images, 6 runs: one image is 0.08
    assert scores["fp32"] > 50


# ------------------------------------------------------------------------------------------------------------
# The command


@pytest.mark.parametrize(("kind", "lr"), [("mlp", (1e-1, 1e2)), ("mlp_noact", (1e-2, 1e1))])
def test_the_command_writes_an_ordinary_run(feature_folders, tmp_path, kind, lr, capsys):
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
    model = plain_mlp.network(sizes, MODULES[kind], seed=0)
    model.load_state_dict(stored)
    assert (final / "model.txt").read_text() == f"{model}\n"
    with torch.no_grad():
        top1 = 100 * (model(test.x).argmax(1) == test.y).double().mean().item()
    assert results["final"]["test_top1"] == pytest.approx(top1)
    assert "top-1: " in capsys.readouterr().out


def test_without_momentum(feature_folders, tmp_path):
    assert (
        logreg.main(command(feature_folders, tmp_path / "out", "CLF.TYPE", "mlp", *SMALL, "--mom", "0")) == 0
    )


def test_networks_beyond_memory_are_refused(feature_folders, tmp_path, monkeypatch):
    """In one line, before a weight is made, and by --check."""
    more = ["CLF.TYPE", "mlp", "CLF.MLP_LAYERS", "3", *SMALL[2:], "CLF.MLP_HIDDEN"]
    monkeypatch.setattr(estimate, "device_room", lambda device: 10**8)
    with pytest.raises(CogError, match="CLF.MLP_HIDDEN 9000 .* takes 3.2. GB to train, and 100 MB of memory"):
        logreg.main(command(feature_folders, tmp_path / "out", *more, "9000"))
    assert logreg.main([*command(feature_folders, tmp_path / "out", *more, "9000"), "--check"]) == 2
    assert (
        logreg.main([*command(feature_folders, tmp_path / "out", *more, "90", "--overwrite"), "--check"]) == 0
    )
    assert not (tmp_path / "out/results.json").exists()


def test_given_values_replace_the_types_own(feature_folders, tmp_path):
    pairs = ["CLF.NORM_FTS", "True", "CLF.LR_INTV", "(1e-3,1e-2)"]
    logreg.main(command(feature_folders, tmp_path / "out", "CLF.TYPE", "mlp", *SMALL, *pairs))
    identity = json.loads((tmp_path / "out/results.json").read_text())["identity"]
    assert (identity["normalize"], identity["lr_interval"], identity["wd_interval"]) == (
        True,
        [1e-3, 1e-2],
        [1e-8, 1e-4],
    )


@pytest.mark.parametrize(
    "pairs", first_quick(1, [["CLF.TYPE", "mlp"], ["CLF.TYPE", "mlp_noact", "CLF.PCA_DIM", "3"]])
)
def test_every_file_of_a_study_is_that_of_a_single_call(feature_folders, tmp_path, pairs):
    """Seeds and shots in one process; again in a second one (everything is drawn from seeds)."""
    root = tmp_path / "results"
    logreg.main(study_command(feature_folders, root, *pairs, *SMALL))
    study = contents(root)
    root.rename(tmp_path / "study")
    single_calls(feature_folders, root, *pairs, *SMALL)
    assert_same(study, contents(root))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (
            ["CLF.SOLVER", "lbfgs"],
            "CLF.SOLVER lbfgs is not supported any more, expected sgd; leave CLF.SOLVER out",
        ),
        (
            ["CLF.PRUNER", "median"],
            "CLF.PRUNER median is not supported any more, expected none; leave CLF.PRUNER out",
        ),
        (["CLF.MLP_HIDDEN", "0"], "CLF.MLP_HIDDEN = 0 is not valid"),
        (["CLF.MLP_LAYERS", "0"], "CLF.MLP_LAYERS = 0 is not valid"),
        (["CLF.TYPE", "svm"], "CLF.TYPE = 'svm' is not valid, expected logreg, mlp, mlp_noact"),
    ],
)
def test_combinations_without_a_meaning(feature_folders, tmp_path, pairs, message):
    with pytest.raises(CogError) as caught:
        logreg.main(command(feature_folders, tmp_path / "out", "CLF.TYPE", "mlp", *SMALL, *pairs))
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_when_every_trial_diverges(tmp_path):
    """Huge features without normalisation: one line, and what to do."""
    x, y = tiny.make_xy(n_per_class=8)
    settings = Settings(
        seed=22, n_trials=3, n_epochs=3, classifier="mlp_noact", mlp_hidden=8, lr_interval=(1e2, 1e3)
    )
    with pytest.raises(CogError, match="training diverged in all 3 trials .*CLF.NORM_FTS True"):
        sets = [FeatureSet(1e6 * x.clone(), y, "huge") for _ in range(2)]
        run_once(*sets, settings, Engine(CPU))


def test_zero_features_and_zero_vectors():
    """Dead inputs train the biases alone: the most frequent class."""
    y = torch.tensor([0] * 12 + [1] * 6)
    settings = Settings(seed=22, n_trials=0, lr=0.1, wd=0.0, n_epochs=20, classifier="mlp", mlp_hidden=8)
    sets = [FeatureSet(torch.zeros(18, 4), y, "zeros") for _ in range(2)]
    outcome = run_once(*sets, settings, Engine(CPU))
    assert outcome.classifier.predictions.tolist() == [0] * 18
    share = torch.tensor([12.0, 6.0]) / 18
    assert outcome.classifier.logs["test/loss"][-1] == pytest.approx(
        -(share * share.log()).sum().item(), abs=0.02
    )
    assert math.isfinite(outcome.classifier.logs["train/loss"][-1])


@pytest.mark.slow
def test_the_plan_counts_the_operations_that_are_done():
    """Against PyTorch's own count of matrix products over a whole run; and it can be described."""
    settings = Settings(
        seed=22,
        n_trials=2,
        n_epochs=3,
        batch_size=16,
        classifier="mlp",
        mlp_hidden=12,
        lr_interval=(1e-3, 1e-2),
    )
    ours = Engine(CPU)
    sets = [
        FeatureSet(*tiny.make_xy(n_per_class=20, n_classes=5, dim=7, seed=seed), "tiny") for seed in (0, 1)
    ]
    prepared = prepare(*sets, ours)
    with FlopCounterMode(display=False) as counted:
        protocol.run_protocol(prepared, settings, ours)
    rows = estimate.rows_of([20] * 5, settings, 100)
    expected = estimate.estimate_flops(rows, settings, dim=7, n_classes=5)
    assert counted.get_total_flops() == expected
    assert estimate.describe(prepared, [settings], ours)[2].startswith("plan: seconds on cpu")
    speed = estimate.Speed(prepared, settings, ours, 80)
    assert speed.run(rows, settings) > 0
    assert speed.flops_per_second > 0
