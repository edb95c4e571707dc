"""The classifier engine against a plain PyTorch loop; what every form of training promises; storage and scores."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import plain_logreg
import pytest
import torch
from classifier_runs import Killed, KillingFile, killing_work
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from imitation_cuda import FAILURES, ImitationCuda
from marks import first_quick

from cog.errors import CogError
from cog.features import feature_files
from cog.features.feature_files import FeatureSet
from cog.logreg import gram, graphs, matrix, metrics, precision, sgd
from cog.logreg.engine import Engine
from cog.logreg.matrix import FloatMatrix, HostMatrix, SplitMatrix, StoredMatrix
from cog.logreg.precision import cpu_has_bfloat16, resolve_precision
from cog.logreg.preprocess import prepare
from cog.logreg.settings import RowCounts, Settings
from cog.logreg.sgd import TrainSpec
from cog.runtime import random_streams

CPU = torch.device("cpu")
N, DIM, CLASSES, EPOCHS = 3000, 48, 20, 12
RATES = [0.1, 0.5, 1.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 90.0]
SETTINGS = Settings(seed=0, n_epochs=EPOCHS, batch_size=256)


@pytest.fixture(scope="module")
def sets():
    """l2-normalized clusters that a linear classifier separates to about 80 %."""
    generator = torch.Generator().manual_seed(3)
    y = torch.randint(CLASSES, (N,), generator=generator)
    x = torch.randn(CLASSES, DIM, generator=generator)[y] + 2.2 * torch.randn(N, DIM, generator=generator)
    x = torch.nn.functional.normalize(x)
    rows, val = feature_files.split_train_val(y, val_frac=0.2, rng=np.random.default_rng(0))
    return x, y, rows, val


def load(sets, engine, factor=1.0):
    """The training features; the test set is the validation rows."""
    x, y, _, val = sets
    return prepare(FeatureSet(factor * x, y, "train"), FeatureSet(factor * x[val], y[val], "test"), engine)


def spec_of(rows, *rates, wd=1e-5, seed=1, record=False):
    pairs = [(lr, wd) for lr in rates]
    return TrainSpec(rows, pairs, init_seed=seed, order_seed=seed + 1, record=record)


def draw(sets, n_shot):
    _, y, rows, _ = sets
    return feature_files.draw_few_shot(y, rows, n_shot=n_shot, rng=np.random.default_rng(n_shot))[0]


def plain(sets, spec, k=0, settings=SETTINGS):
    """The original loop with autograd and torch.optim.SGD from the same start in the same order."""
    x, y, _, val = sets
    generator = random_streams.cpu_generator(spec.order_seed)
    model = plain_logreg.network([DIM, CLASSES], seed=spec.init_seed)
    logs = plain_logreg.fit(
        model,
        (x[spec.rows], y[spec.rows]),
        (x[val], y[val]),
        lr=spec.pairs[k][0],
        wd=spec.pairs[k][1],
        n_epochs=settings.n_epochs,
        batch_size=settings.batch_size,
        momentum=settings.momentum,
        next_order=lambda n: torch.randperm(n, generator=generator),
    )
    return model[0], logs


def equal(a, b):
    """Whether two classifiers have the same bits (NaN included)."""
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return all(torch.equal(p.view(torch.int32), q.view(torch.int32)) for p, q in pairs)


# ------------------------------------------------------------------------------------------------------------
# Against the original loop


@pytest.mark.parametrize("k", first_quick(1, [5, 1, 10]))
def test_trials_of_a_search_equal_the_plain_loop(sets, k):
    engine = Engine(CPU)
    data, spec = load(sets, engine), spec_of(sets[2], *RATES[:k])
    trained = engine.fit(data, spec, SETTINGS)
    scores = engine.validate(data, sets[3], trained)
    for i, classifier in enumerate(trained):
        linear, logs = plain(sets, spec, i)
        assert scores[i] == pytest.approx(logs["test/top1"][-1], abs=1e-4)  # one row of 600 is 0.17
        scale = linear.weight.abs().max().item()
        assert (classifier.weight - linear.weight).abs().max().item() < 1e-4 * scale


@pytest.mark.parametrize(
    ("n_shot", "precision"),
    first_quick(
        4,
        [
            *((1, "fp32"), (16, "bf16"), (0, "fp32"), (0, "bf16")),
            *((1, "bf16"), (16, "fp32"), *itertools.product((2, 4, 64), ("fp32", "bf16"))),
        ],
    ),
)
def test_the_recorded_run_has_the_plain_loops_curves(sets, n_shot, precision):
    engine = Engine(CPU, precision)
    spec = spec_of(draw(sets, n_shot) if n_shot else sets[2], 10.0, record=True)
    data = load(sets, engine)
    (trained,) = engine.fit(data, spec, SETTINGS)
    _, logs = plain(sets, spec)
    # of 592 test rows, some may change sides when rows and curves are rounded
    loss, points = (1e-4, 0.005) if precision == "fp32" else (1e-2, 0.9)
    for split in ("train", "test"):
        np.testing.assert_allclose(trained.logs[f"{split}/loss"], logs[f"{split}/loss"], rtol=loss, atol=1e-4)
        for key in ("top1", "top5"):
            ours, theirs = trained.logs[f"{split}/{key}"], logs[f"{split}/{key}"]
            np.testing.assert_allclose(ours, theirs, atol=points if n_shot != 1 else 100)
    assert trained.predictions.tolist() == trained.logits(sets[0][sets[3]]).argmax(1).tolist()
    span = gram.applies(len(spec.rows), DIM)
    assert span == (n_shot == 1)
    assert not trained.replayed


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("n_shot", [0, 1], ids=["dense", "span"])
def test_any_momentum_is_that_of_torch(sets, momentum, n_shot):
    """None at all is a case of its own in PyTorch."""
    spec = spec_of(draw(sets, n_shot) if n_shot else sets[2], 5.0, wd=1e-3)
    settings = dataclasses.replace(SETTINGS, momentum=momentum)
    engine = Engine(CPU)
    (trained,) = engine.fit(load(sets, engine), spec, settings)
    linear, _ = plain(sets, spec, settings=settings)
    torch.testing.assert_close(trained.weight, linear.weight.detach(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(trained.bias, linear.bias.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("batch_size", [7, 20, 64])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_few_rows_are_trained_in_their_span(sets, precision, batch_size, monkeypatch):
    """20 rows of 48 dimensions: the same weights as without the Gram matrix, in any batch size."""
    settings = dataclasses.replace(SETTINGS, n_epochs=30, batch_size=batch_size)
    spec = spec_of(draw(sets, 1), 5.0, 2.0, wd=1e-3)
    engine, exact = Engine(CPU, precision), Engine(CPU)
    spanned = engine.fit(load(sets, engine), spec, settings)
    monkeypatch.setattr(gram, "applies", lambda n_rows, dim: False)
    dense = exact.fit(load(sets, exact), spec, settings)
    for a, b in zip(spanned, dense, strict=True):
        assert not torch.equal(a.weight, b.weight)  # another way it is
        np.testing.assert_allclose(a.weight, b.weight, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(a.bias, b.bias, rtol=1e-3, atol=1e-5)


def test_bfloat16_gives_the_same_accuracy(sets):
    """Final validation top-1 within 0.1 points on average over learning rates, each within one row of 600."""
    scores = []
    for name in ("fp32", "bf16"):
        engine = Engine(CPU, name)
        data = load(sets, engine)
        trained = engine.fit(data, spec_of(sets[2], *RATES), SETTINGS)
        scores.append(np.array(engine.validate(data, sets[3], trained)))
    differences = scores[0] - scores[1]
    assert abs(differences.mean()) < 0.1 and np.abs(differences).max() < 0.4


MODULES = {"mlp": torch.nn.ReLU, "mlp_noact": torch.nn.Identity}


def mlp_settings(kind, layers=2):
    return Settings(seed=0, n_epochs=6, batch_size=256, classifier=kind, mlp_hidden=40, mlp_layers=layers)


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize(
    ("lr", "wd", "layers"), first_quick(1, [(0.1, 1e-5, 2), (0.03, 1e-2, 1), (0.05, 0.0, 3)])
)
def test_a_network_equals_the_plain_loop(sets, kind, lr, wd, layers):
    """Loss to 1e-5 and the same accuracy after every epoch."""
    x, y, rows, val = sets
    x, spec, settings = 7 * x, spec_of(rows, lr, wd=wd, record=True), mlp_settings(kind, layers)
    oracle = plain_logreg.network([DIM, *[40] * layers, CLASSES], MODULES[kind], seed=spec.init_seed)
    generator = random_streams.cpu_generator(spec.order_seed)
    theirs = plain_logreg.fit(
        oracle, (x[rows], y[rows]), (x[val], y[val]), lr=lr, wd=wd, n_epochs=6, batch_size=256,
        next_order=lambda n: torch.randperm(n, generator=generator),
    )  # fmt: skip
    engine = Engine(CPU)
    data = load(sets, engine, 7.0)
    (trained,) = engine.fit(data, spec, settings)
    for key in ("train/loss", "test/loss"):
        np.testing.assert_allclose(trained.logs[key], theirs[key], rtol=1e-5, atol=1e-5)
    assert trained.logs["test/top1"] == pytest.approx(theirs["test/top1"], abs=1e-4)
    for name, parameter in oracle.state_dict().items():
        torch.testing.assert_close(trained.state_dict()[name], parameter, rtol=1e-3, atol=1e-5)
    assert engine.validate(data, val, [trained]) == pytest.approx([theirs["test/top1"][-1]], abs=1e-4)
    assert str(trained.module()) == str(oracle)


def test_initial_layers_of_a_network_are_torchs():
    """Bit for bit, so that the seed alone says where training began."""
    model = plain_logreg.network([13, 7, 5, 3], torch.nn.ReLU, seed=11)
    ours = [tensor for layer in sgd.initial_layers([13, 7, 5, 3], 11) for tensor in layer]
    assert all(map(torch.equal, ours, model.state_dict().values()))


# ------------------------------------------------------------------------------------------------------------
# What every form promises

#: name: (shots, learning rates, changes of the configuration)
FORMS = {
    "dense": (0, (10.0,), {}),
    "mlp": (0, (0.5,), {"classifier": "mlp", "mlp_hidden": 16}),
    "wide": (0, tuple(RATES), {}),
    "span": (1, (5.0, 2.0), {}),
    "span in parts": (1, (5.0,), {"batch_size": 7}),
    "mlp_noact": (0, (0.1,), {"classifier": "mlp_noact", "mlp_hidden": 16, "mlp_layers": 1}),
}
PRECISIONS = ["bf16"] * 2 + ["fp32"] * 4, ["fp32"] * 2 + ["bf16"] * 4


@pytest.mark.parametrize(  # each form once; with the other precision in the slow tests
    ("form", "precision"), first_quick(len(FORMS), [pair for each in PRECISIONS for pair in zip(FORMS, each)])
)
class TestEveryForm:
    """The contract of a learner."""

    @pytest.fixture
    def sets(self, sets):
        """The first rows: epochs of a few steps."""
        x, y, rows, val = sets
        return x[:800], y[:800], rows[rows < 800], val[val < 800]

    @pytest.fixture
    def training(self, sets, form, precision):
        """Engine, data, what to train (recorded, where it can be), configuration, whether it can be recorded."""
        n_shot, rates, changes = FORMS[form]
        engine, single = Engine(CPU, precision), len(rates) == 1
        spec = spec_of(draw(sets, n_shot) if n_shot else sets[2], *rates, record=single)
        settings = dataclasses.replace(SETTINGS, n_epochs=4, **changes)
        return engine, load(sets, engine), spec, settings, single

    def test_same_bits_again(self, training):
        engine, data, spec, settings, _ = training
        first, second = (engine.fit(data, spec, settings) for _ in range(2))
        assert all(map(equal, first, second))
        assert not any(one.diverged for one in first)

    def test_keeping_a_history_changes_nothing(self, training):
        engine, data, spec, settings, single = training
        if single:
            (silent,), (recorded,) = (
                engine.fit(data, dataclasses.replace(spec, record=record), settings)
                for record in (False, True)
            )
            assert equal(silent, recorded)
            assert (silent.logs, silent.predictions) == (None, None)
            assert len(recorded.logs["lr"]) == 4

    def test_killed_after_every_epoch(self, training, tmp_path):
        engine, data, spec, settings, single = training
        whole = engine.fit(data, spec, settings)
        for kill_after in (1, 2, 3):
            path = tmp_path / f"{kill_after}"
            path.mkdir()
            KillingFile.reset(kill_after)
            with pytest.raises(Killed):
                engine.fit(data, spec, settings, work=killing_work(path))
            KillingFile.reset()
            resumed = engine.fit(data, spec, settings, work=killing_work(path))
            assert KillingFile.n_saves == 3 - kill_after
            assert all(map(equal, whole, resumed))
            if single:
                assert resumed[0].logs == whole[0].logs
                assert torch.equal(resumed[0].predictions, whole[0].predictions)
            # Nothing is taken from another training.
            other = dataclasses.replace(spec, pairs=[(lr, 0.1) for lr, _ in spec.pairs])
            trained = engine.fit(data, other, settings, work=killing_work(path))
            assert KillingFile.n_saves == 3 - kill_after + 3
            assert all(map(equal, engine.fit(data, other, settings), trained))

    def test_from_the_host(self, training, sets):
        """Features that do not fit on the device give the bits of those that do."""
        engine, data, spec, settings, single = training
        host = dataclasses.replace(
            data, features=HostMatrix(data.features, CPU), test=HostMatrix(data.test, CPU)
        )
        expected, found = (engine.fit(one, spec, settings) for one in (data, host))
        assert all(map(equal, expected, found))
        assert engine.validate(host, sets[3], found) == engine.validate(data, sets[3], expected)
        if single:
            assert found[0].logs == expected[0].logs

    def test_divergence(self, training, sets):
        """It ends when all have diverged; the others of a product do not notice."""
        engine, data, spec, settings, single = training
        data = load(sets, engine, 50.0)
        rates = [1e37] + [0.01] * (len(spec.pairs) - 1)
        mixed = dataclasses.replace(spec, pairs=[(lr, 0.0) for lr in rates])
        trained = engine.fit(data, mixed, settings)
        assert [one.diverged for one in trained] == [True] + [False] * (len(rates) - 1)
        if single:
            assert len(trained[0].logs["test/top1"]) < 4
            assert len(trained[0].predictions) == len(sets[3])
        else:
            assert all(torch.isfinite(one.weight).all() for one in trained[1:])

    def test_graphs_give_the_bits_of_issued_steps(self, training, monkeypatch, caplog):
        engine, data, spec, settings, single = training
        expected = engine.fit(data, spec, settings)
        engine.graphs = graphs.Graphs(wanted=True)
        with ImitationCuda(monkeypatch) as cuda:
            found = engine.fit(data, spec, settings)
        assert all(map(equal, expected, found))
        n = len(spec.rows)
        sizes = {min(n, settings.batch_size), n % settings.batch_size or min(n, settings.batch_size)}
        assert len(cuda.graphs) == len(sizes)
        per_size = -(-n // settings.batch_size) * settings.n_epochs
        assert sum(graph.n_replays for graph in cuda.graphs) == per_size - len(sizes)
        assert found[0].replayed
        if single:
            assert found[0].logs["train/top1"] == expected[0].logs["train/top1"]
        assert not caplog.records

    @pytest.mark.parametrize("failure", first_quick(1, ["bits", *sorted({*FAILURES} - {"bits"})]))
    def test_graphs_that_fail_change_nothing(self, training, monkeypatch, caplog, failure):
        """One warning, for two trainings; weights and momentum are those of issued steps."""
        engine, data, spec, settings, _ = training
        expected = engine.fit(data, spec, settings)
        engine.graphs = graphs.Graphs(wanted=True)
        with ImitationCuda(monkeypatch, failure) as cuda:
            found = [engine.fit(data, spec, settings) for _ in range(2)]
        assert cuda.failure is None
        assert all(map(equal, [*expected, *expected], [*found[0], *found[1]]))
        assert not engine.graphs.enabled and not found[1][0].replayed
        (record,) = caplog.records
        assert "CUDA graphs are not used: " in record.message and "\n" not in record.message


def test_graphs_share_their_memory(sets, monkeypatch):
    """With a memory pool for each graph, those of all finished trainings would stay reserved."""
    engine = Engine(CPU)
    engine.graphs = graphs.Graphs(wanted=True)
    data = load(sets, engine)
    with ImitationCuda(monkeypatch) as cuda:
        for n_shot, rate in ((0, 1.0), (0, 2.0), (1, 1.0)):
            rows = draw(sets, n_shot) if n_shot else sets[2]
            engine.fit(data, spec_of(rows, rate), SETTINGS)
    assert len(cuda.graphs) > 3 and len({id(graph.memory) for graph in cuda.graphs}) == 1


def test_graphs_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("COG_CUDA_GRAPHS", "0")
    assert not graphs.Graphs(wanted=True).enabled
    monkeypatch.setenv("COG_CUDA_GRAPHS", "1")
    assert graphs.Graphs(wanted=True).enabled
    assert not graphs.Graphs(wanted=False).enabled


def test_a_captured_step_that_waits_is_found_out(sets, monkeypatch):
    """The imitation refuses what a GPU refuses: here the ties of a rank, looked for by the host."""
    engine = Engine(CPU)
    engine.graphs = graphs.Graphs(wanted=True)
    with ImitationCuda(monkeypatch), pytest.raises(AssertionError, match="nonzero while a graph is captured"):
        monkeypatch.setattr(metrics, "_may_wait", lambda device: True)
        engine.fit(load(sets, engine), spec_of(sets[2], 1.0, record=True), SETTINGS)


def test_without_memory_for_the_comparison(sets, monkeypatch, caplog):
    engine = Engine(CPU)
    data, spec = load(sets, engine), spec_of(sets[2], 1.0)
    expected = engine.fit(data, spec, SETTINGS)
    engine.graphs = graphs.Graphs(wanted=True)
    monkeypatch.setattr(graphs.Stepper, "_copies", lambda self: None)
    assert equal(engine.fit(data, spec, SETTINGS)[0], expected[0])
    assert "not enough memory" in caplog.text


def test_the_callers_matrix_precision_plays_no_part(sets):
    engine = Engine(CPU)
    data, spec = load(sets, engine), spec_of(sets[2], 3.0)
    expected = engine.fit(data, spec, SETTINGS)
    torch.set_float32_matmul_precision("medium")
    try:
        found = engine.fit(data, spec, SETTINGS)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert equal(found[0], expected[0])


@pytest.mark.parametrize("n", [1, 7, 255, 256, 257, 512])
def test_any_number_of_rows(sets, n):
    """Fewer rows than a batch, whole batches, a last one of a single row."""
    spec = spec_of(sets[2][torch.linspace(0, len(sets[2]) - 1, n).long()], 1.0, wd=0.0)
    engine = Engine(CPU)
    (trained,) = engine.fit(load(sets, engine), spec, SETTINGS)
    linear, _ = plain(sets, spec)
    np.testing.assert_allclose(trained.weight, linear.weight.detach(), rtol=1e-4, atol=1e-5)


def test_trials_share_products_of_a_thousand_columns():
    engine = Engine(CPU)
    for n_classes, expected in ((2, 500), (100, 10), (600, 1), (1000, 1), (20_000, 1)):
        assert engine.trials_per_batch(5000, SETTINGS, dim=64, n_classes=n_classes) == expected
    # Few rows: alone, but for those that are trained in their span.
    assert engine.trials_per_batch(4000, SETTINGS, dim=64, n_classes=2) == 1
    assert engine.trials_per_batch(4000, SETTINGS, dim=8000, n_classes=2) == 500
    mlp = dataclasses.replace(SETTINGS, classifier="mlp")
    assert engine.trials_per_batch(5000, mlp, dim=64, n_classes=2) == 1


# ------------------------------------------------------------------------------------------------------------
# Storage and scores


@given(npst.arrays(np.float32, (4, 6), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_split_features_lose_nothing(values):
    values = np.clip(values, -3e38, 3e38)
    expected, x = torch.from_numpy(values.copy()), torch.from_numpy(values.copy())
    split = SplitMatrix(x)
    assert split._planes.data_ptr() == x.data_ptr()  # no second copy
    rows = torch.tensor([3, 0, 0, 2])
    assert torch.equal(split.exact(rows).view(torch.int32), expected[rows].view(torch.int32))
    assert torch.equal(split.part(1, 3, exact=True).view(torch.int32), expected[1:3].view(torch.int32))
    assert torch.equal(split.part(1, 3, exact=False), split.batch(torch.tensor([1, 2])))
    rounded = expected.to(torch.bfloat16).float()
    # nearest: no farther away than torch's rounding, which differs in the direction of ties alone
    error = (split.batch(torch.arange(4)).double() - expected.double()).abs()
    assert (error <= (rounded.double() - expected.double()).abs()).all()


def test_features_beyond_bfloat16_are_refused():
    x = torch.ones(3, 4)
    assert SplitMatrix(x.clone()).n == 3
    x[1, 2] = 3.4e38
    with pytest.raises(CogError, match="do not fit into bfloat16"):
        SplitMatrix(x)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_features_kept_as_stored_give_the_same_bits(tmp_path, sets, precision, dtype):
    """Those of features that were read as float32, normalized or not; the file stays as it is."""
    x, y, rows, val = sets
    path = tmp_path / "X_Y.pth"
    feature_files.save(FeatureSet((7 * x).to(dtype), y, "scaled"), path)
    before = path.read_bytes()
    engine = Engine(CPU, precision)
    for normalize in (True, False):
        trained, scores = [], []
        for options in ({}, {"rounded": True}):
            loaded = feature_files.load(path, normalize=normalize, **options)
            data = prepare(loaded, FeatureSet(x[val].clone(), y[val], "test"), engine)
            assert isinstance(data.features, StoredMatrix) == bool(options)
            trained += engine.fit(data, spec_of(rows, 2.0), SETTINGS)
            scores.append(engine.validate(data, val, trained[-1:]))
        assert equal(*trained) and scores[0] == scores[1]
    assert path.read_bytes() == before


def test_features_go_to_the_host_when_the_device_is_full(monkeypatch):
    from cog.logreg import engine as module

    engine = Engine(CPU)
    monkeypatch.setattr(engine, "device", torch.device("meta"))  # no CPU, without memory
    monkeypatch.setattr(module, "device_room", lambda device: 1000.0)
    small, large = (FeatureSet(torch.ones(10, dim), torch.zeros(10), "") for dim in (20, 25))
    found = []

    def to(tensor, device):
        found.append(tuple(tensor.shape))
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.Tensor, "to", to)
    assert isinstance(engine.load(large), matrix.HostMatrix)
    assert found == []  # too large by its size
    assert isinstance(engine.load(small), matrix.HostMatrix)
    assert found == [(10, 20)]  # tried, in vain


def test_features_of_half_precision_are_converted_on_the_device_in_parts(monkeypatch):
    """There is room for the features in float32, not for a copy of all in their own type beside them."""
    from cog.logreg import engine as module

    engine = Engine(CPU)
    monkeypatch.setattr(module, "_ROWS", 3)
    monkeypatch.setattr(module, "device_room", lambda device: 4.8 * 10 * 20)
    monkeypatch.setattr(engine, "device", torch.device("meta"))
    sent, real = [], torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda x, *args: sent.append(tuple(x.shape)) or real(x, *args))
    x = torch.ones(10, 20, dtype=torch.float16)
    loaded = engine.load(FeatureSet(x, torch.zeros(10), "", norms=torch.ones(10, 1)))
    assert loaded.device.type == "meta" and (loaded.n, loaded.dim) == (10, 20)
    assert sent == [(3, 20)] * 3 + [(1, 20), (10, 1)]


def test_training_in_the_span_is_float32_whatever_the_precision_is():
    engine = Engine(CPU, "bf16")
    for (search, final), expected in (
        ((20, 20), "fp32"),
        ((0, 20), "fp32"),
        ((100, 120), "bf16"),
        ((0, 120), "bf16"),
        ((20, 25), "fp32 (search), bf16 (final training)"),
    ):
        used = engine.arithmetic(RowCounts(search, 9, final, 9), SETTINGS, 48)
        assert precision.describe(used) == expected
    mlp = dataclasses.replace(SETTINGS, classifier="mlp")
    assert engine.arithmetic(RowCounts(20, 9, 20, 9), mlp, 48)["precision"] == "bf16"


def test_many_classifiers_are_scored_as_one_is(sets):
    x, y, _, val = sets
    x, y = x.repeat(2, 1), y.repeat(2)  # more than one chunk
    rows = torch.cat([val, torch.arange(N, 2 * N)])
    generator = torch.Generator().manual_seed(0)
    classifiers = [
        sgd.TrainedClassifier([(torch.randn(CLASSES, DIM, generator=generator), torch.randn(CLASSES))]).logits
        for _ in "abc"
    ]
    classifiers.append(lambda part: torch.zeros(len(part), CLASSES))  # ties everywhere
    found = metrics.validate(FloatMatrix(x), y, rows, classifiers)
    expected = [metrics.evaluate(FloatMatrix(x[rows]), y[rows], one)[0].top1 for one in classifiers]
    assert found == pytest.approx(expected)


def test_precisions_by_device(monkeypatch):
    assert resolve_precision("auto", CPU) == ("bf16" if cpu_has_bfloat16() else "fp32")
    assert resolve_precision("fp32", CPU) == "fp32"
    with pytest.raises(CogError, match="tf32 needs an NVIDIA GPU"):
        resolve_precision("tf32", CPU)
    cuda = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    assert resolve_precision("auto", cuda) == "fp32"
    for name in ("tf32", "bf16"):
        with pytest.raises(CogError, match=f"{name} needs an NVIDIA GPU since Ampere"):
            resolve_precision(name, cuda)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert [resolve_precision(name, cuda) for name in ("auto", "tf32", "bf16")] == ["tf32", "tf32", "bf16"]


def test_products_are_set_for_the_block_alone():
    cuda = torch.device("cuda")
    options = torch.backends.cuda.matmul

    def current():
        return torch.get_float32_matmul_precision(), options.allow_bf16_reduced_precision_reduction

    before = current()
    with precision.products(cuda, "tf32"):
        assert current() == ("high", False)
        with precision.products(cuda, "fp32"):
            assert current() == ("highest", False)
        assert current() == ("high", False)
    assert current() == before


def test_ranks_that_do_not_wait_are_the_same(monkeypatch):
    scores = torch.randint(4, (200, 6), generator=torch.Generator().manual_seed(0)).float()
    scores[3, 2] = math.nan
    scores[4] = math.inf
    y = torch.randint(6, (200,), generator=torch.Generator().manual_seed(1))
    y[3] = 2
    rank = metrics.true_class_rank(scores, y)
    with monkeypatch.context() as patch:
        patch.setattr(metrics, "_may_wait", lambda device: False)
        assert torch.equal(metrics.true_class_rank(scores, y), rank)
    half = metrics.true_class_rank(torch.arange(4000.0).repeat(2, 1).half(), torch.tensor([0, 3999]))
    assert half[0] > 3000  # counts beyond what half precision can hold


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_on_a_gpu(sets, form, precision):
    """The accuracies of the CPU, with and without graphs."""
    n_shot, rates, changes = FORMS[form]
    spec = spec_of(draw(sets, n_shot) if n_shot else sets[2], *rates)
    settings = dataclasses.replace(SETTINGS, **changes)
    reference, ours = Engine(CPU), Engine(torch.device("cuda"), precision)
    expected = reference.validate(
        load(sets, reference), sets[3], reference.fit(load(sets, reference), spec, settings)
    )
    data = load(sets, ours)
    replayed = ours.fit(data, spec, settings)
    assert ours.validate(data, sets[3], replayed) == pytest.approx(expected, abs=1.0)
    assert replayed[0].replayed
    ours.graphs.enabled = False
    assert all(map(equal, replayed, ours.fit(data, spec, settings)))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_from_the_host_to_a_gpu(sets, monkeypatch, precision):
    """Batches that are sent give the bits of features that are on the GPU."""
    ours = Engine(torch.device("cuda"), precision)
    resident = load(sets, ours)
    monkeypatch.setattr("cog.logreg.engine._USABLE", 0.0)
    sent = load(sets, ours)
    assert isinstance(sent.features, HostMatrix) and not isinstance(resident.features, HostMatrix)
    expected, found = (
        ours.fit(data, spec_of(sets[2], 10.0, record=True), SETTINGS)[0] for data in (resident, sent)
    )
    assert equal(expected, found)
    assert expected.logs == found.logs
