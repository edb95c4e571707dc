"""The classifier engine against a plain PyTorch loop, and its independence of what else is being trained."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from cog import features as feature_files
from cog import randomness
from cog.errors import CogError
from cog.logreg import gram, metrics, sgd
from cog.logreg.cpu_engine import CpuEngine
from cog.logreg.engine import get_engine
from cog.logreg.matrix import FloatMatrix, MappedMatrix, SplitMatrix
from cog.logreg.precision import cpu_has_bfloat16, resolve_precision

sys.path.append(str(Path(__file__).parent / "benchmarks"))
import plain_logreg

N, DIM, CLASSES, EPOCHS = 3000, 48, 20, 12
RATES = [0.1, 0.5, 1.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 90.0]
RECIPE = sgd.Recipe(n_classes=CLASSES, n_epochs=EPOCHS, batch_size=256, momentum=0.9)


@pytest.fixture(scope="module")
def data():
    """l2-normalised clusters that a linear classifier separates to about 80 %."""
    generator = torch.Generator().manual_seed(3)
    y = torch.randint(CLASSES, (N,), generator=generator)
    x = torch.randn(CLASSES, DIM, generator=generator)[y] + 2.2 * torch.randn(N, DIM, generator=generator)
    x = torch.nn.functional.normalize(x)
    rows, val = feature_files.split_train_val(y, val_frac=0.2, rng=np.random.default_rng(0))
    return x, y, rows, val


def draw(y, rows, n_shot):
    return feature_files.draw_few_shot(y, rows, n_shot=n_shot, rng=np.random.default_rng(n_shot))[0]


def plain(data, run, test_rows):
    """The original loop with autograd and torch.optim.SGD from the same start in the same order."""
    x, y, _, _ = data
    generator = randomness.cpu_generator(run.order_seed)
    return plain_logreg.fit(
        (x[run.rows], y[run.rows]),
        (x[test_rows], y[test_rows]),
        n_classes=CLASSES,
        lr=run.lr,
        wd=run.wd,
        n_epochs=EPOCHS,
        batch_size=RECIPE.batch_size,
        initial=sgd.initial_classifier(CLASSES, DIM, run.init_seed),
        next_order=lambda n: torch.randperm(n, generator=generator),
    )


def watched(engine, data, runs):
    """Train ``runs`` together; returns the classifiers and the validation top-1 of each after every epoch."""
    x, y, _, val = data
    features = engine.load(x.clone())
    curves: dict[int, list[float]] = {index: [] for index in range(len(runs))}

    def monitor(epoch, live):
        for one, score in zip(live, engine.validate(features, y, val, live), strict=True):
            curves[one.index].append(score)
        return ()

    fits = engine.fit(features, y, runs, RECIPE, monitor=monitor)
    return fits, [curves[index] for index in range(len(runs))]


@pytest.mark.parametrize("k", [1, 5, 10])
def test_trials_of_a_search_equal_the_plain_loop(data, k):
    runs = [sgd.Run(data[2], lr, 1e-5, init_seed=1, order_seed=2) for lr in RATES[:k]]
    fits, curves = watched(CpuEngine("fp32"), data, runs)
    for run, fit, curve in zip(runs, fits, curves, strict=True):
        linear, logs = plain(data, run, data[3])
        assert curve == pytest.approx(logs["test/top1"], abs=1e-4)  # one row of 600 is 0.17
        scale = linear.weight.abs().max().item()
        assert (fit.weight - linear.weight).abs().max().item() < 1e-4 * scale


def test_runs_of_different_shots_and_seeds_equal_the_plain_loop(data):
    _, y, rows, _ = data
    runs = [
        sgd.Run(draw(y, rows, n_shot), lr, 1e-5, init_seed=n_shot, order_seed=10 + n_shot)
        for n_shot in (1, 2, 4, 16, 64)
        for lr in (1.0, 20.0)
    ] + [sgd.Run(rows, 5.0, 1e-4, init_seed=7, order_seed=8)]
    _, curves = watched(CpuEngine("fp32"), data, runs)
    for run, curve in zip(runs, curves, strict=True):
        assert curve == pytest.approx(plain(data, run, data[3])[1]["test/top1"], abs=1e-4)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("n_shot", [0, 1], ids=["dense", "span"])
def test_any_momentum_is_that_of_torch(data, momentum, n_shot):
    """None at all is a case of its own in PyTorch."""
    x, y, rows, _ = data
    run = sgd.Run(draw(y, rows, n_shot) if n_shot else rows, 5.0, 1e-3, init_seed=1, order_seed=2)
    recipe = sgd.Recipe(CLASSES, EPOCHS, 256, momentum)
    engine = CpuEngine("fp32")
    (fit,) = engine.fit(engine.load(x.clone()), y, [run], recipe)
    weight, bias = (t.clone().requires_grad_() for t in sgd.initial_classifier(CLASSES, DIM, run.init_seed))
    optimizer = torch.optim.SGD([weight, bias], lr=run.lr, momentum=momentum, weight_decay=run.wd)
    generator = randomness.cpu_generator(run.order_seed)
    for epoch in range(EPOCHS):
        optimizer.param_groups[0]["lr"] = run.lr * (1 + math.cos(math.pi * max(epoch - 1, 0) / EPOCHS)) / 2
        for batch in run.rows[torch.randperm(len(run.rows), generator=generator)].split(256):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(x[batch] @ weight.T + bias, y[batch]).backward()
            optimizer.step()
    torch.testing.assert_close(fit.weight, weight.detach(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fit.bias, bias.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("batch_size", [7, 20, 64])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_few_rows_are_trained_in_their_span(data, precision, batch_size, monkeypatch):
    """20 rows of 48 dimensions: the same weights as without the Gram matrix, in any batch size."""
    x, y, rows, val = data
    recipe = sgd.Recipe(CLASSES, 30, batch_size, 0.9)
    run = sgd.Run(draw(y, rows, 1), 5.0, 1e-3, init_seed=1, order_seed=2)
    engine = CpuEngine(precision)
    features = engine.load(x.clone())
    (spanned,) = engine.fit(features, y, [run], recipe)
    (recorded,) = engine.fit(features, y, [run], recipe, test=(x[val], y[val]))
    assert torch.equal(spanned.weight, recorded.weight)
    exact = CpuEngine("fp32")
    monkeypatch.setattr(gram, "applies", lambda n_rows, dim: False)
    (dense,) = exact.fit(exact.load(x.clone()), y, [run], recipe)
    assert not torch.equal(dense.weight, spanned.weight)  # another way it is
    np.testing.assert_allclose(spanned.weight, dense.weight, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(spanned.bias, dense.bias, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_recorded_run_has_the_plain_loops_curves(data, precision):
    x, y, rows, val = data
    engine = CpuEngine(precision)
    run = sgd.Run(rows, 10.0, 1e-5, init_seed=1, order_seed=2)
    (fit,) = engine.fit(engine.load(x.clone()), y, [run], RECIPE, test=(x[val], y[val]))
    _, logs = plain(data, run, val)
    # of 592 test rows, two may change sides when curves are scored from rounded operands
    loss, points = (1e-5, 0.005) if precision == "fp32" else (2e-3, 0.4)
    for split in ("train", "test"):
        np.testing.assert_allclose(fit.history.logs[f"{split}/loss"], logs[f"{split}/loss"], rtol=loss)
        for key in ("top1", "top5"):
            np.testing.assert_allclose(
                fit.history.logs[f"{split}/{key}"], logs[f"{split}/{key}"], atol=points
            )
    assert torch.equal(fit.predictions, metrics.score(x[val], y[val], fit.weight, fit.bias)[1])


def test_bfloat16_gives_the_same_accuracy(data):
    """Final validation top-1 within 0.1 points on average over learning rates, each within one row of 600."""
    runs = [sgd.Run(data[2], lr, 1e-5, init_seed=1, order_seed=2) for lr in RATES]
    _, exact = watched(CpuEngine("fp32"), data, runs)
    _, rounded = watched(CpuEngine("bf16"), data, runs)
    differences = np.array([a[-1] - b[-1] for a, b in zip(exact, rounded, strict=True)])
    assert abs(differences.mean()) < 0.1
    assert np.abs(differences).max() < 0.4
    assert differences.any() or max(map(max, exact)) < 100  # not the same numbers by accident of saturation


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_does_not_depend_on_its_company(data, precision):
    """Bit for bit: alone, in any company, in any position."""
    _, y, rows, _ = data
    runs = [sgd.Run(rows, lr, 1e-5, init_seed=1, order_seed=2) for lr in RATES]
    others = [sgd.Run(draw(y, rows, 4), lr, 0.0, init_seed=5, order_seed=6) for lr in (0.3, 30.0)]
    together, curves = watched(CpuEngine(precision), data, runs)
    mixed, _ = watched(CpuEngine(precision), data, [others[0], *runs[::-1], others[1]])
    for index, run in enumerate(runs):
        (alone,), (curve,) = watched(CpuEngine(precision), data, [run])
        assert torch.equal(alone.weight, together[index].weight)
        assert torch.equal(alone.bias, together[index].bias)
        assert torch.equal(alone.weight, mixed[len(runs) - index].weight)
        assert curve == curves[index]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_keeping_a_history_changes_nothing(data, precision):
    x, y, rows, val = data
    engine = CpuEngine(precision)
    features = engine.load(x.clone())
    run = sgd.Run(rows, 3.0, 1e-5, init_seed=1, order_seed=2)
    silent, recorded = (
        engine.fit(features, y, [run], RECIPE, test=test)[0] for test in (None, (x[val], y[val]))
    )
    assert torch.equal(silent.weight, recorded.weight)


def test_the_callers_matrix_precision_plays_no_part(data):
    runs = [sgd.Run(data[2], 3.0, 1e-5, init_seed=1, order_seed=2)]
    expected, _ = watched(CpuEngine("fp32"), data, runs)
    torch.set_float32_matmul_precision("medium")
    try:
        found, _ = watched(CpuEngine("fp32"), data, runs)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert torch.equal(found[0].weight, expected[0].weight)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_diverged_run_ends_and_the_others_go_on(data, precision):
    x, y, rows, val = data
    data = 50 * x, y, rows, val
    runs = [sgd.Run(rows, lr, 0.0, init_seed=1, order_seed=2) for lr in (0.01, 1e37, 0.02)]
    fits, curves = watched(CpuEngine(precision), data, runs)
    assert [fit.diverged for fit in fits] == [False, True, False]
    assert len(curves[1]) < EPOCHS == len(curves[0])
    for index in (0, 2):
        alone, _ = watched(CpuEngine(precision), data, [runs[index]])
        assert torch.equal(alone[0].weight, fits[index].weight)


def test_a_monitor_stops_runs(data):
    runs = [sgd.Run(data[2], lr, 0.0, init_seed=1, order_seed=2) for lr in (1.0, 2.0, 3.0)]
    engine = CpuEngine("fp32")
    features = engine.load(data[0].clone())
    recipe = sgd.Recipe(CLASSES, 5, 256, 0.9)
    seen = []

    def monitor(epoch, live):
        seen.append([one.index for one in live])
        return [one for one in live if one.index == 1 and epoch == 2]

    fits = engine.fit(features, data[1], runs, recipe, monitor=monitor)
    assert [fit.stopped for fit in fits] == [False, True, False]
    assert seen == [[0, 1, 2]] * 3 + [[0, 2]] * 2
    assert not any(fit.diverged for fit in fits)


@pytest.mark.parametrize("n", [1, 7, 255, 256, 257, 512])
def test_any_number_of_rows(data, n):
    """Fewer rows than a batch, whole batches, a last one of a single row."""
    x, y, rows, val = data
    run = sgd.Run(rows[torch.linspace(0, len(rows) - 1, n).long()], 1.0, 0.0, init_seed=1, order_seed=2)
    engine = CpuEngine("fp32")
    (fit,) = engine.fit(engine.load(x.clone()), y, [run], RECIPE)
    linear, _ = plain(data, run, val)
    np.testing.assert_allclose(fit.weight, linear.weight.detach(), rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------------------------------
# Storage and scores


@given(npst.arrays(np.float32, (4, 6), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_split_features_lose_nothing(values):
    values = np.clip(values, -3e38, 3e38)
    expected = torch.from_numpy(values.copy())
    matrix = SplitMatrix(torch.from_numpy(values.copy()))
    rows = torch.tensor([3, 0, 0, 2])
    assert torch.equal(matrix.exact(rows).view(torch.int32), expected[rows].view(torch.int32))
    rounded = expected.to(torch.bfloat16).float()
    # nearest: no farther away than torch's rounding, which differs in the direction of ties alone
    error = (matrix.batch(torch.arange(4)).double() - expected.double()).abs()
    assert (error <= (rounded.double() - expected.double()).abs()).all()


def test_split_features_take_no_second_copy():
    x = torch.randn(100, 8)
    address = x.data_ptr()
    matrix = SplitMatrix(x)
    assert matrix._planes.data_ptr() == address
    assert matrix.nbytes == 100 * 8 * 4


def test_features_beyond_bfloat16_are_refused():
    x = torch.ones(3, 4)
    x[1, 2] = 3.4e38
    with pytest.raises(CogError, match="do not fit into bfloat16"):
        SplitMatrix(x)


def test_float_features_are_left_as_they_are():
    x = torch.randn(10, 4)
    matrix = FloatMatrix(x)
    rows = torch.tensor([9, 1])
    assert torch.equal(matrix.batch(rows), x[rows])
    assert torch.equal(matrix.exact(rows), x[rows])


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_mapped_features_are_those_in_memory(tmp_path, data, precision, normalize):
    """Bit for bit, and the file stays as it is."""
    x, y, rows, val = data
    path = tmp_path / "X_Y.pth"
    feature_files.save(feature_files.FeatureSet(7 * x, y, "scaled"), path)
    before = path.read_bytes()
    engine = CpuEngine(precision)
    run = sgd.Run(rows, 2.0, 1e-5, init_seed=1, order_seed=2)
    weights, scores = [], []
    for mapped in (False, True):
        loaded = feature_files.load(path, normalize=normalize, mapped=mapped)
        assert (loaded.norms is not None) == mapped
        features = engine.load(loaded.x, loaded.norms)
        assert type(features) is (
            MappedMatrix if mapped else {"fp32": FloatMatrix, "bf16": SplitMatrix}[precision]
        )
        fits = engine.fit(features, y, [run], RECIPE)
        weights.append(fits[0].weight)
        scores.append(engine.validate(features, y, val, fits))
    assert torch.equal(*weights)
    assert scores[0] == scores[1]
    assert path.read_bytes() == before


def test_many_classifiers_are_scored_as_one_is(data):
    x, y, _, val = data
    x = x.repeat(2, 1)  # more than one chunk
    y = y.repeat(2)
    rows = torch.cat([val, torch.arange(N, 2 * N)])
    generator = torch.Generator().manual_seed(0)
    classifiers = [
        (torch.randn(CLASSES, DIM, generator=generator), torch.randn(CLASSES, generator=generator))
        for _ in "abc"
    ]
    classifiers.append((torch.zeros(CLASSES, DIM), torch.zeros(CLASSES)))  # ties everywhere
    found = metrics.top1_of_many(FloatMatrix(x), y, rows, classifiers)
    assert found == pytest.approx([metrics.score(x[rows], y[rows], w, b)[0].top1 for w, b in classifiers])


def test_precisions_by_device():
    cpu = torch.device("cpu")
    assert resolve_precision("auto", cpu) == ("bf16" if cpu_has_bfloat16() else "fp32")
    assert resolve_precision("fp32", cpu) == get_engine(cpu, "fp32").precision == "fp32"
    with pytest.raises(CogError, match="tf32 needs an NVIDIA GPU"):
        resolve_precision("tf32", cpu)
