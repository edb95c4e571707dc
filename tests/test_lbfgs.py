"""CLF.SOLVER lbfgs: the optimum against scikit-learn and the conditions for one; the search over weight decay."""

from __future__ import annotations

import dataclasses
import json
import pickle

import numpy as np
import pytest
import tiny
import torch
from sklearn.linear_model import LogisticRegression
from test_logreg import LOG_KEYS, QUICK, command
from test_protocol import feature_set
from test_sgd import clusters

from cog import features, randomness
from cog.commands import logreg
from cog.errors import CogError
from cog.features import FeatureSet
from cog.logreg import lbfgs, protocol
from cog.logreg.cpu_engine import CpuEngine
from cog.logreg.matrix import FloatMatrix
from cog.logreg.settings import Settings
from cog.logreg.sgd import Recipe, Run

CONVEX = Settings(seed=22, n_trials=6, n_epochs=200, solver="lbfgs", wd_interval=(1e-7, 1e-2))


def engine(precision="fp32"):
    return lbfgs.LbfgsEngine(CpuEngine(precision))


def solve(x, y, wds, *, n_classes, rows=None, n_iterations=1000, precision="fp32"):
    """One fit per weight decay, each with rows of its own, so that every one starts from zero."""
    rows = torch.arange(len(y)) if rows is None else rows
    solver = engine(precision)
    runs = [Run(rows.clone(), lr=1.0, wd=wd, init_seed=0, order_seed=0) for wd in wds]
    return solver.fit(solver.load(x.clone()), y, runs, Recipe(n_classes, n_iterations, 64, 0.9))


def objective64(x, y, weight, bias, wd):
    """The objective and its gradient's norm in float64, by autograd."""
    weight, bias = (t.double().detach().requires_grad_() for t in (weight, bias))
    value = torch.nn.functional.cross_entropy(x.double() @ weight.T + bias, y)
    value = value + wd / 2 * (weight.square().sum() + bias.square().sum())
    gradient = torch.autograd.grad(value, (weight, bias))
    return value.item(), torch.cat([g.flatten() for g in gradient]).norm().item()


@pytest.mark.parametrize("wd", [1e-2, 1e-4, 1e-5])
def test_equals_scikit_learn(wd):
    """Same minimum and the same predictions; the penalised intercept is the weight of a constant feature."""
    x, y = clusters(2700, 24, 7, spread=1.0)
    x, test_x, y = x[:700], x[700:], y[:700]
    (fit,) = solve(x, y, [wd], n_classes=7)
    oracle = LogisticRegression(C=1 / (len(y) * wd), fit_intercept=False, tol=1e-9, max_iter=20000)
    ones = np.ones((2000, 1))
    oracle.fit(np.hstack([x.double().numpy(), ones[:700]]), y.numpy())
    theirs = torch.from_numpy(oracle.coef_)
    ours_loss, _ = objective64(x, y, fit.weight, fit.bias, wd)
    their_loss, _ = objective64(x, y, theirs[:, :-1], theirs[:, -1], wd)
    assert ours_loss == pytest.approx(their_loss, rel=1e-3)
    predicted = (test_x @ fit.weight.T + fit.bias).argmax(1).numpy()
    agreed = predicted == oracle.predict(np.hstack([test_x.double().numpy(), ones]))
    assert agreed.mean() > 0.995
    if wd >= 1e-4:  # further out the weights themselves are ill-determined
        scale = theirs.abs().max().item()
        np.testing.assert_allclose(fit.weight.numpy(), theirs[:, :-1].numpy(), atol=0.01 * scale)
        np.testing.assert_allclose(fit.bias.numpy(), theirs[:, -1].numpy(), atol=0.01 * scale)


@pytest.mark.parametrize("wd", [1e-1, 1e-3, 1e-5])
def test_gradient_vanishes_at_the_solution(wd):
    x, y = clusters(300, 16, 5)
    (fit,) = solve(x, y, [wd], n_classes=5)
    _, at_zero = objective64(x, y, torch.zeros(5, 16), torch.zeros(5), wd)
    _, at_end = objective64(x, y, fit.weight, fit.bias, wd)
    assert at_end <= 1.01e-4 * at_zero
    assert not fit.diverged


def test_objective_and_gradient_equal_autograd_whatever_the_chunks(monkeypatch):
    x, y = clusters(300, 16, 5)
    rows = torch.arange(0, 300, 2)
    theta = torch.randn(5 * 17, generator=torch.Generator().manual_seed(0))
    values = []
    for chunk in (1000, 7):
        monkeypatch.setattr(lbfgs, "CHUNK", chunk)
        objective = lbfgs.Objective(
            FloatMatrix(x), y, rows, 5, wd=0.3, device=torch.device("cpu"), ranks=True
        )
        values.append(objective(theta))
    weight, bias = objective.split(theta)
    loss, norm = objective64(x[rows], y[rows], weight, bias, 0.3)
    hits = (x[rows] @ weight.T + bias).argmax(1) == y[rows]
    for value in values:
        assert value.loss == pytest.approx(loss, rel=1e-6)
        assert value.gradient.norm().item() == pytest.approx(norm, rel=1e-5)
        assert value.sums[1].item() == hits.sum().item()
    parameters = theta.double().requires_grad_()
    weight, bias = objective.split(parameters)
    total = torch.nn.functional.cross_entropy(x[rows].double() @ weight.T + bias, y[rows])
    (total + 0.15 * parameters.square().sum()).backward()
    np.testing.assert_allclose(values[1].gradient.numpy(), parameters.grad.numpy(), atol=1e-6)


def test_a_path_ends_where_single_problems_do():
    x, y = clusters(400, 16, 5)
    wds = [1e-2, 1e-3, 1e-4, 1e-5]
    single = solve(x, y, wds, n_classes=5)
    rows = torch.arange(400)
    solver = engine()
    runs = [Run(rows, lr=1.0, wd=wd, init_seed=0, order_seed=0) for wd in wds]
    path = solver.fit(solver.load(x), y, runs, Recipe(5, 1000, 64, 0.9))
    for wd, one, other in zip(wds, single, path, strict=True):
        assert objective64(x, y, one.weight, one.bias, wd)[0] == pytest.approx(
            objective64(x, y, other.weight, other.bias, wd)[0], rel=1e-4
        )
    assert torch.equal(single[0].weight, path[0].weight)  # both from zero
    assert not torch.equal(single[3].weight, path[3].weight)  # from the optimum before


def test_search_tries_weight_decays_from_strong_to_weak_on_the_held_out_rows():
    train = feature_set()
    outcome = protocol.run(train, feature_set(seed=1), CONVEX, CpuEngine(), print_freq=0)
    wds = [trial.wd for trial in outcome.trials]
    np.testing.assert_allclose(wds, np.geomspace(1e-2, 1e-7, 6), rtol=1e-12)
    assert {trial.lr for trial in outcome.trials} == {outcome.lr} == {1.0}
    assert [trial.number for trial in outcome.trials] == list(range(6))
    assert outcome.sizes == {"search_train": 96, "search_val": 24, "final_train": 120, "test": 120}
    assert outcome.study is None
    assert outcome.precision == "fp32"
    # scores are those of classifiers trained on the protocol's own split
    rows, held_out = features.split_train_val(train.y, val_frac=0.2, rng=randomness.numpy_rng(22, "split"))
    solver = engine()
    runs = [Run(rows, lr=1.0, wd=wd, init_seed=0, order_seed=0) for wd in wds]
    fits = solver.fit(solver.load(train.x), train.y, runs, Recipe(6, 200, 64, 0.9))
    for trial, fit in zip(outcome.trials, fits, strict=True):
        predicted = (train.x[held_out] @ fit.weight.T + fit.bias).argmax(1)
        assert trial.val_top1 == pytest.approx(100 * (predicted == train.y[held_out]).float().mean().item())
    best = max(trial.val_top1 for trial in outcome.trials)
    assert outcome.wd == max(trial.wd for trial in outcome.trials if trial.val_top1 == best)


@pytest.mark.parametrize(("n", "expected"), [(1, [1e-4]), (2, [1e-4, 1e-12]), (3, [1e-4, 1e-8, 1e-12])])
def test_few_weight_decays(n, expected):
    path = lbfgs.WeightDecayPath(Settings(seed=0, solver="lbfgs", n_trials=n))
    assert [wd for _, wd in path.ask()] == pytest.approx(expected)
    assert all(1e-12 <= wd <= 1e-4 for _, wd in path.ask())


def test_final_training_is_a_function_of_rows_and_weight_decay():
    """Given by hand, found by a search, another seed, features kept as bfloat16 halves: the same bits."""
    train, test = feature_set(), feature_set(seed=1)
    searched = protocol.run(train, test, CONVEX, CpuEngine(), print_freq=0)
    fixed = dataclasses.replace(CONVEX, n_trials=0, wd=searched.wd)
    for settings, precision in ((fixed, "fp32"), (dataclasses.replace(fixed, seed=37), "bf16")):
        copy = FeatureSet(train.x.clone(), train.y, train.name)
        other = protocol.run(copy, test, settings, CpuEngine(precision), print_freq=0)
        assert other.fit.history.logs == searched.fit.history.logs
        assert torch.equal(other.fit.weight, searched.fit.weight)
        assert torch.equal(other.fit.predictions, searched.fit.predictions)
        assert (other.lr, other.precision) == (1.0, "fp32")


def test_few_shot_trains_on_the_drawn_rows():
    outcome = protocol.run(
        feature_set(), feature_set(seed=1), dataclasses.replace(CONVEX, n_shot=3), CpuEngine(), print_freq=0
    )
    assert outcome.sizes == {"search_train": 18, "search_val": 24, "final_train": 18, "test": 120}
    train = feature_set()
    rng = randomness.numpy_rng(22, "draw", stage="final", n_shot=3)
    rows, _ = features.draw_few_shot(train.y, torch.arange(120), n_shot=3, rng=rng)
    (expected,) = solve(train.x, train.y, [outcome.wd], n_classes=6, rows=rows, n_iterations=200)
    assert torch.equal(outcome.fit.weight, expected.weight)


def test_logs_have_one_value_per_iteration_until_convergence(caplog):
    caplog.set_level("INFO", logger="cog")
    train, test = feature_set(), feature_set(seed=1)
    fixed = dataclasses.replace(CONVEX, n_trials=0, wd=1e-3)
    logs = protocol.run(train, test, fixed, CpuEngine(), print_freq=0).fit.history.logs
    n = len(logs["lr"])
    assert set(logs) == LOG_KEYS
    assert {len(values) for values in logs.values()} == {n}
    assert 5 < n < 200
    assert logs["lr"] == [1.0] * n
    assert f"converged after {n} iterations" in caplog.text
    assert logs["train/loss"][0] > logs["train/loss"][-1]
    caplog.clear()
    short = dataclasses.replace(fixed, n_epochs=3)
    outcome = protocol.run(train, test, short, CpuEngine(), print_freq=0)
    assert outcome.fit.history.logs["test/top1"] == logs["test/top1"][:3]
    assert "not converged after 3 iterations" in caplog.text
    (warning,) = (line for line in caplog.records if line.levelname == "WARNING")
    assert "CLF.N_EPOCHS" in warning.getMessage()


def test_last_logged_values_are_those_of_the_classifier():
    train, test = feature_set(), feature_set(seed=1)
    fit = protocol.run(train, test, CONVEX, CpuEngine(), print_freq=0).fit
    logs = fit.history.logs
    for split, data in (("train", train), ("test", test)):
        logits = data.x @ fit.weight.T + fit.bias
        loss = torch.nn.functional.cross_entropy(logits, data.y).item()
        assert logs[f"{split}/loss"][-1] == pytest.approx(loss, rel=1e-5)
        top1 = 100 * (logits.argmax(1) == data.y).float().mean().item()
        assert logs[f"{split}/top1"][-1] == pytest.approx(top1)


def test_zero_features_are_at_chance():
    zeros = FeatureSet(torch.zeros(120, 4), torch.arange(120) % 6, "zeros")
    outcome = protocol.run(zeros, zeros, CONVEX, CpuEngine(), print_freq=0)
    top1 = outcome.fit.history.logs["test/top1"]
    assert top1 == pytest.approx([100 / 6] * len(top1))
    assert 1 <= len(top1) <= 3
    assert not outcome.fit.diverged


def test_features_too_large_for_float32():
    huge = feature_set()
    huge = FeatureSet(huge.x * 1e38, huge.y, "huge")
    with pytest.raises(CogError, match=r"diverged in all 6 trials.*NORM_FTS"):
        protocol.run(huge, huge, CONVEX, CpuEngine(), print_freq=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "bf16"}, "computes in float32"),
        ({"pruner": "median"}, "CLF.PRUNER"),
        ({"n_trials": 0, "lr": 2.0, "wd": 1e-6}, "leave out --lr"),
        ({"n_trials": 0}, "--wd"),
        ({"wd": 1e-6}, "CLF.N_TRIALS 0"),
    ],
)
def test_combinations_without_a_meaning(options, message):
    with pytest.raises(CogError, match=message):
        Settings(seed=1, solver="lbfgs", **options)


def test_command_writes_the_contracts_files(feature_folders, tmp_path, caplog):
    caplog.set_level("INFO", logger="cog")
    out = tmp_path / "run"
    assert logreg.main(command(feature_folders, out, "CLF.SOLVER", "lbfgs")) == 0
    assert "CLF.SOLVER lbfgs changes the protocol" in caplog.text
    (final,) = out.glob("final-*")
    results = json.loads((out / "results.json").read_text())
    assert final.name == f"final-lr-1.0_wd-{results['final']['wd']}"
    assert {path.name for path in out.iterdir()} == {
        final.name, "results.json", "arguments.json", "config.txt", "program.log",
    }  # fmt: skip
    assert results["identity"]["solver"] == "lbfgs"
    assert results["precision"] == "fp32"
    assert len(results["trials"]) == 3
    logs = pickle.loads((final / "logs.pkl").read_bytes())
    assert set(logs) == LOG_KEYS
    assert results["final"]["test_top1"] == logs["test/top1"][-1]


def test_given_weight_decay(feature_folders, tmp_path):
    for name, flags in (("a", ["--wd", "1e-6"]), ("b", ["--wd", "1e-6", "--lr", "1"])):
        arguments = command(feature_folders, tmp_path / name, *flags)
        logreg.main([*arguments, "CLF.SOLVER", "lbfgs", "CLF.N_TRIALS", "0"])
        assert (tmp_path / name / "final-lr-1.0_wd-1e-06" / "logs.pkl").is_file()


def test_results_of_another_solver_are_not_taken_for_the_same_run(feature_folders, tmp_path):
    out = tmp_path / "run"
    logreg.main(command(feature_folders, out))
    before = tiny.snapshot(out)
    with pytest.raises(CogError, match="solver: sgd -> lbfgs"):
        logreg.main(command(feature_folders, out, "--skip_complete", "CLF.SOLVER", "lbfgs"))
    assert tiny.snapshot(out) == before


@pytest.mark.parametrize(
    ("pairs", "warned"),
    [
        (["CLF.SOLVER", "lbfgs"], "EVAL.NAME lbfgs"),
        (["CLF.PRUNER", "median"], "EVAL.NAME median"),
        (["CLF.SOLVER", "lbfgs", "EVAL.NAME", "convex"], ""),
    ],
)
def test_changed_protocol_is_said_and_a_name_proposed(workshop, caplog, pairs, warned):
    caplog.set_level("WARNING", logger="cog")
    logreg.main(
        [
            "--models_root_dir",
            str(workshop.models),
            "--model",
            "tiny_net",
            "--dataset",
            "birds",
            *QUICK,
            *pairs,
        ]
    )
    assert "changes the protocol" in caplog.text
    assert warned in caplog.text
    assert ("EVAL.NAME" in caplog.text) == bool(warned)


def test_the_protocol_is_not_warned_about(feature_folders, tmp_path, caplog):
    caplog.set_level("WARNING", logger="cog")
    logreg.main(command(feature_folders, tmp_path / "run"))
    assert "changes the protocol" not in caplog.text
