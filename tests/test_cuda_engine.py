"""The GPU's engine: the same code on the CPU against the reference; its kernels interpreted; and on a GPU, if any."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from reference_sgd import SgdTrainer
from test_sgd import clusters

from cog import features
from cog.features import FeatureSet
from cog.logreg import cuda_engine, protocol, sgd, streaming
from cog.logreg.cpu_engine import CpuEngine
from cog.logreg.cuda_engine import CudaEngine
from cog.logreg.matrix import FloatMatrix, SplitMatrix
from cog.logreg.settings import Settings
from cog.randomness import cpu_generator

CPU = torch.device("cpu")
DEVICES = [CPU, pytest.param(torch.device("cuda"), marks=pytest.mark.gpu)]
RECIPE = sgd.Recipe(n_classes=7, n_epochs=6, batch_size=64, momentum=0.9)


def problem():
    x, y = clusters(700, 24, 7, spread=0.8)
    return x, y, torch.arange(0, 700, 5)  # the last: rows to score


def some_runs(n_trials, *, seeds=1, shots=(0,)):
    """Trials of several seeds and shots, as a study has them."""
    runs = []
    for n_shot in shots:
        for seed in range(seeds):
            rows = torch.arange(700)[torch.arange(700) % 5 != 0]
            if n_shot:
                rows = rows[torch.randperm(len(rows), generator=cpu_generator(seed))[: 7 * n_shot]].sort()[0]
            for trial in range(n_trials):
                lr, wd = 0.3 * 1.9**trial, 1e-6 * 2.5**trial
                runs.append(sgd.Run(rows, lr, wd, init_seed=seed, order_seed=100 * n_shot + seed))
    return runs


class Watch:
    """Scores all runs after every epoch: loss and top-1 on some rows, on the CPU."""

    def __init__(self, x, y, rows):
        self.x, self.y = x[rows], y[rows]
        self.losses, self.top1 = {}, {}

    def __call__(self, epoch, lives):
        for live in lives:
            logits = self.x @ live.weight.cpu().T + live.bias.cpu()
            loss = torch.nn.functional.cross_entropy(logits, self.y).item()
            self.losses.setdefault(live.index, []).append(loss)
            hits = (logits.argmax(1) == self.y).sum().item()
            self.top1.setdefault(live.index, []).append(100 * hits / len(self.y))
        return ()


def train(engine, runs, recipe=RECIPE, **options):
    """Return classifiers, and their accuracies on the rows to score."""
    x, y, rows = problem()
    matrix = engine.load(x)
    fits = engine.fit(matrix, y, runs, recipe, **options)
    return fits, engine.validate(matrix, y, rows, fits)


def assert_same_bits(fits, others):
    for fit, other in zip(fits, others, strict=True):
        assert torch.equal(fit.weight, other.weight)
        assert torch.equal(fit.bias, other.bias)
        assert fit.diverged == other.diverged


# ------------------------------------------------------------------------------------------------------------
# Against the reference


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("n_trials", "seeds", "shots"), [(1, 1, (0,)), (5, 2, (0, 3)), (10, 3, (1, 4))])
def test_equals_the_reference_trainer_at_every_epoch(device, n_trials, seeds, shots):
    x, y, rows = problem()
    runs = some_runs(n_trials, seeds=seeds, shots=shots)
    watch = Watch(x, y, rows)
    engine = CudaEngine(device)
    # the pruner's hook belongs to one lockstep set at a time: sets come in the order of the runs
    fits = []
    for shot_runs in (
        [r for r in runs if len(r.rows) == n] for n in dict.fromkeys(len(r.rows) for r in runs)
    ):
        part = Watch(x, y, rows)
        own = engine.fit(engine.load(x.clone()), y, shot_runs, RECIPE, monitor=part)
        for index in range(len(own)):
            watch.losses[len(fits) + index] = part.losses[index]
            watch.top1[len(fits) + index] = part.top1[index]
        fits += own
    together = engine.fit(engine.load(x.clone()), y, runs, RECIPE)
    assert_same_bits(fits, together)
    for index, (run, fit) in enumerate(zip(runs, fits, strict=True)):
        reference = SgdTrainer().fit(x, y, run, RECIPE, test=(x[rows], y[rows]))
        np.testing.assert_allclose(watch.losses[index], reference.history.logs["test/loss"], rtol=1e-5)
        assert watch.top1[index] == pytest.approx(reference.history.logs["test/top1"])
        scale = reference.weight.abs().max().item()
        torch.testing.assert_close(fit.weight.cpu(), reference.weight, rtol=1e-4, atol=1e-5 * scale)
        torch.testing.assert_close(fit.bias.cpu(), reference.bias, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch_size", [64, 100, 1024])
def test_recorded_run_has_the_history_of_the_reference(device, batch_size):
    x, y, rows = problem()
    recipe = dataclasses.replace(RECIPE, batch_size=batch_size)
    (run,) = some_runs(1)
    reference = SgdTrainer().fit(x, y, run, recipe, test=(x[rows], y[rows]))
    engine = CudaEngine(device)
    seen = []
    test = engine.load_test(x[rows]), y[rows].to(device)
    (fit,), _ = train(engine, [run], recipe, test=test, on_epoch=lambda epoch, history: seen.append(epoch))
    assert seen == list(range(RECIPE.n_epochs))
    assert fit.history.logs.keys() == reference.history.logs.keys()
    for key, values in reference.history.logs.items():
        np.testing.assert_allclose(fit.history.logs[key], values, rtol=1e-5, err_msg=key)
    assert torch.equal(fit.predictions, reference.predictions)


@pytest.mark.parametrize("device", DEVICES)
def test_bfloat16_agrees_with_the_cpu_engine(device):
    runs = some_runs(4, seeds=2)
    _, expected = train(CpuEngine("bf16"), runs)
    _, scores = train(CudaEngine(device, "bf16"), runs)
    assert scores == pytest.approx(expected, abs=1.5)  # 2 of 140 rows
    _, exact = train(CpuEngine("fp32"), runs)
    assert scores == pytest.approx(exact, abs=1.5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_protocol_gives_the_outcome_of_the_cpu_engine(device, precision):
    settings = Settings(seed=22, n_trials=12, n_epochs=6, batch_size=32, n_shot=8)

    def run(engine):
        (x, y), (test_x, test_y) = clusters(240, 16, 6, spread=0.8), clusters(120, 16, 6, seed=1, spread=0.8)
        return protocol.run(
            FeatureSet(x, y, "train"), FeatureSet(test_x, test_y, "test"), settings, engine, print_freq=0
        )

    outcome, expected = run(CudaEngine(device, precision)), run(CpuEngine(precision))
    if precision == "fp32":
        assert [t.val_top1 for t in outcome.trials] == [t.val_top1 for t in expected.trials]
        assert (outcome.lr, outcome.wd) == (expected.lr, expected.wd)
        assert outcome.fit.history.logs["test/top1"] == expected.fit.history.logs["test/top1"]
    else:
        top1 = expected.fit.history.logs["test/top1"][-1]
        assert outcome.fit.history.logs["test/top1"][-1] == pytest.approx(top1, abs=4.0)
    assert outcome.precision == precision


@pytest.mark.parametrize("device", DEVICES)
def test_runs_of_a_study_side_by_side_are_those_of_single_calls(device):
    study = [
        Settings(seed=seed, n_trials=12, n_epochs=4, batch_size=32, n_shot=n_shot)
        for n_shot in (4, 0)
        for seed in (22, 37, 45)
    ]

    def outcomes(*, side_by_side):
        engine = CudaEngine(device, "bf16")
        engine.side_by_side = side_by_side
        (x, y), (test_x, test_y) = clusters(240, 16, 6, spread=0.8), clusters(120, 16, 6, seed=1, spread=0.8)
        data = protocol.prepare(FeatureSet(x, y, "train"), FeatureSet(test_x, test_y, "test"), engine)
        return dict(protocol.run_all(data, study, engine, print_freq=0))

    single, together = outcomes(side_by_side=1), outcomes(side_by_side=5)
    assert sorted(together) == list(range(6))
    for position, outcome in together.items():
        assert [t.val_top1 for t in outcome.trials] == [t.val_top1 for t in single[position].trials]
        assert (outcome.lr, outcome.wd) == (single[position].lr, single[position].wd)
        assert outcome.fit.history.logs == single[position].fit.history.logs


# ------------------------------------------------------------------------------------------------------------
# What must not change a single bit


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_does_not_depend_on_what_else_is_trained(device, precision):
    runs = some_runs(5, seeds=2, shots=(0, 4))
    together, _ = train(CudaEngine(device, precision), runs)
    assert_same_bits(train(CudaEngine(device, precision, max_runs=1), runs)[0], together)
    assert_same_bits(train(CudaEngine(device, precision, max_runs=3), runs)[0], together)
    alone = [train(CudaEngine(device, precision), [run])[0][0] for run in (runs[0], runs[7], runs[-1])]
    assert_same_bits(alone, [together[0], together[7], together[-1]])
    assert_same_bits(train(CudaEngine(device, precision), runs[::-1])[0], together[::-1])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_streamed_features_give_the_same_bits(device, precision, caplog):
    caplog.set_level("INFO", logger="cog")
    runs = some_runs(3, seeds=2, shots=(0, 4))
    resident, scores = train(CudaEngine(device, precision), runs)
    assert "streamed" not in caplog.text
    streamed, streamed_scores = train(CudaEngine(device, precision, feature_memory=1000), runs)
    assert "streamed from the host" in caplog.text
    assert_same_bits(streamed, resident)
    assert streamed_scores == scores


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_mapped_features_give_the_same_bits(device, precision, tmp_path):
    x, y, _ = problem()
    features.save(FeatureSet(7 * x, y, "long"), tmp_path / "X_Y.pth")
    stored = (tmp_path / "X_Y.pth").read_bytes()
    runs, fits = some_runs(2), []
    for mapped, feature_memory in ((False, None), (True, None), (True, 0)):
        train_set = features.load(tmp_path, normalize=True, mapped=mapped)
        assert (train_set.norms is not None) == mapped
        engine = CudaEngine(device, precision, feature_memory=feature_memory)
        fits.append(engine.fit(engine.load(train_set.x, train_set.norms), y, runs, RECIPE))
    assert_same_bits(fits[1], fits[0])
    assert_same_bits(fits[2], fits[0])
    assert (tmp_path / "X_Y.pth").read_bytes() == stored


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block_steps", [1, 2, 5])
def test_the_size_of_blocks_changes_nothing(device, block_steps, monkeypatch):
    runs = some_runs(2, seeds=2)
    expected, _ = train(CudaEngine(device), runs)
    monkeypatch.setattr(cuda_engine, "_BLOCK_STEPS", block_steps)
    assert_same_bits(train(CudaEngine(device), runs)[0], expected)


@pytest.mark.parametrize("device", DEVICES)
def test_a_diverging_run_is_told_and_leaves_the_others_alone(device):
    runs = some_runs(4, seeds=2)
    expected, expected_scores = train(CudaEngine(device), runs)
    wild = [
        dataclasses.replace(run, lr=3e38, wd=1.0) if i in (1, 4, 5, 6, 7) else run
        for i, run in enumerate(runs)
    ]
    ends = {}

    def monitor(epoch, lives):
        for live in lives:
            ends[live.index] = epoch
        return ()

    fits, scores = train(CudaEngine(device), wild, monitor=monitor)
    assert [fit.diverged for fit in fits] == [i in (1, 4, 5, 6, 7) for i in range(8)]
    assert_same_bits([fits[i] for i in (0, 2, 3)], [expected[i] for i in (0, 2, 3)])
    assert ends == {0: 5, 2: 5, 3: 5}  # the others ended within the first epoch
    assert [scores[i] for i in (0, 2, 3)] == [expected_scores[i] for i in (0, 2, 3)]


@pytest.mark.parametrize("device", DEVICES)
def test_recorded_run_that_diverges(device):
    x, y, _ = problem()
    (run,) = some_runs(1)
    engine = CudaEngine(device)
    (fit,), _ = train(engine, [dataclasses.replace(run, lr=3e38)], test=(engine.load_test(x), y.to(device)))
    assert fit.diverged
    assert fit.history.logs["test/top1"] == [0.0]


@pytest.mark.parametrize("device", DEVICES)
def test_stopped_runs_come_back_as_they_are_and_leave_the_others_alone(device):
    runs = some_runs(4, seeds=2)
    expected, _ = train(CudaEngine(device), runs)
    short, _ = train(CudaEngine(device), runs, dataclasses.replace(RECIPE, n_epochs=2))

    def monitor(epoch, lives):
        return [live for live in lives if epoch == 1 and live.index in (2, 4, 5, 6, 7)]

    fits, _ = train(CudaEngine(device), runs, monitor=monitor)
    assert [fit.stopped for fit in fits] == [i in (2, 4, 5, 6, 7) for i in range(8)]
    assert_same_bits([fits[i] for i in (0, 1, 3)], [expected[i] for i in (0, 1, 3)])
    # the first two epochs run at the base rate, whatever the number of epochs
    assert_same_bits([fits[i] for i in (2, 4)], [short[i] for i in (2, 4)])


def test_blocks_cover_an_epoch():
    assert cuda_engine.batch_sizes(10, 4, 2) == [(4, 4), (2,)]
    assert cuda_engine.batch_sizes(8, 4, 16) == [(4, 4)]
    assert cuda_engine.batch_sizes(3, 3, 16) == [(3,)]


def test_batches_in_a_block_are_aligned_or_alone():
    assert cuda_engine._steps_in_block(1024 * 2048 * 2, 1) == 16
    assert cuda_engine._steps_in_block(1024 * 25 * 2, 10) == 25
    assert cuda_engine._steps_in_block(1024 * 2048 * 2, 1000) == 1
    assert cuda_engine._steps_in_block(100 * 25 * 2, 1) == 1


def test_matrix_product_settings_are_put_back():
    options = torch.backends.cuda.matmul
    before = torch.get_float32_matmul_precision(), options.allow_bf16_reduced_precision_reduction
    try:
        torch.set_float32_matmul_precision("medium")
        options.allow_bf16_reduced_precision_reduction = True
        with pytest.raises(KeyError):
            with cuda_engine.training_precision("tf32"):
                assert torch.get_float32_matmul_precision() == "high"
                assert not options.allow_bf16_reduced_precision_reduction
                raise KeyError
        assert torch.get_float32_matmul_precision() == "medium"
        assert options.allow_bf16_reduced_precision_reduction
    finally:
        torch.set_float32_matmul_precision(before[0])
        options.allow_bf16_reduced_precision_reduction = before[1]


# ------------------------------------------------------------------------------------------------------------
# Streaming


@pytest.mark.parametrize("kind", [FloatMatrix, SplitMatrix])
def test_both_feeds_deliver_the_rows_in_order(kind):
    x, y, _ = problem()
    matrix = kind(x)
    generator = cpu_generator(0)
    orders = [torch.randperm(700, generator=generator)[:250] for _ in range(3)]
    for source in (matrix, streaming.HostMatrix(matrix, CPU)):
        slots = [streaming.Slot(64, 24, matrix.dtype, CPU) for _ in range(2)]
        feed = streaming.open_feed(source, y, iter(orders), slots, None)
        for order in orders:
            for rows in order.split(64):
                slot = feed.next()
                assert torch.equal(slot.x[: len(rows)], matrix.batch(rows))
                assert torch.equal(slot.y[: len(rows)], y[rows])
                feed.release()
        feed.close()


def test_a_feed_can_be_closed_at_any_time():
    x, y, _ = problem()
    for n_taken in (0, 1, 4):
        slots = [streaming.Slot(10, 24, torch.float32, CPU) for _ in range(2)]
        feed = streaming.HostFeed(FloatMatrix(x), y, iter([torch.arange(700)] * 5), slots, None)
        for _ in range(n_taken):
            feed.next()
            feed.release()
        feed.close()
        assert not feed._thread.is_alive()


def test_what_fails_while_gathering_is_raised_in_training():
    class Broken(FloatMatrix):
        def batch(self, rows, out=None):
            raise OSError("the disk went away")

    x, y, _ = problem()
    engine = CudaEngine(CPU)
    with pytest.raises(OSError, match="disk went away"):
        engine.fit(streaming.HostMatrix(Broken(x), CPU), y, some_runs(1), RECIPE)


# ------------------------------------------------------------------------------------------------------------
# The Triton kernels, interpreted on the CPU

KERNEL_CHECK = """
import itertools
import torch
from cog.logreg import cuda_engine, cuda_kernels, kernels, matrix, sgd

generator = torch.Generator().manual_seed(0)
def draw(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=generator).to(dtype)

worst = 0.0
def compare(a, b, dtype):
    exact = dtype == torch.float32
    torch.testing.assert_close(a, b, rtol=1e-5 if exact else 0.01, atol=1e-6 if exact else 1e-5)

for (b, c), low in itertools.product([(1, 2), (5, 7), (3, 1000)], [False, True]):
    dtype = torch.bfloat16 if low else torch.float32
    logits, bias = 5 * draw(b, c), draw(c)
    logits[0, :2] = 1.5  # ties
    bias[:2] = 0.0
    y = torch.randint(c, (b + 4,), generator=generator)
    for record in (False, True):
        results = []
        for module in (kernels, cuda_kernels):
            gradient = torch.full((b, c), float("nan"), dtype=dtype)
            loss, rank = torch.zeros(b + 4), torch.zeros(b + 4, dtype=torch.int32)
            module.softmax_gradient(logits.clone(), bias, y, 3, gradient, *((loss, rank) if record else ()))
            results.append((gradient, loss, rank))
        compare(results[1][0], results[0][0], dtype)
        compare(results[1][1], results[0][1], torch.float32)
        assert torch.equal(results[1][2], results[0][2])
        assert record == bool(results[0][1].any())

# more than a block of rows, of classes, of weights
for (b, c, d), low in itertools.product([(1, 2, 3), (300, 5, 3), (5, 33, 70)], [False, True]):
    dtype = torch.bfloat16 if low else torch.float32
    state = [draw(c, d), draw(c, d), draw(c, d).to(dtype) if low else None]
    rest = [draw(c, d, dtype=dtype), draw(c), draw(c), draw(b, c, dtype=dtype)]
    rates = torch.tensor([[9.0, 9.0], [0.7, 0.01], [9.0, 9.0]])
    results = []
    for module in (kernels, cuda_kernels):
        own = [None if t is None else t.clone() for t in state + rest]
        module.update(*own, rates, 1, 0.9)
        results.append(own)
    for ours, theirs in zip(*results):
        if ours is not None:
            compare(theirs, ours, ours.dtype)

# gathered features
for kind, dim in itertools.product((matrix.FloatMatrix, matrix.SplitMatrix), (5, 2100)):
    x, rows = draw(20, dim), torch.tensor([19, 0, 7, 7])
    expected, own = kind(x.clone()), cuda_engine.GatheredMatrix(kind(x), x)
    out = torch.zeros(4, dim, dtype=kind.dtype)
    assert torch.equal(own.batch(rows, out=out), expected.batch(rows)) and out.any()
    assert torch.equal(own.batch(rows[:1]), expected.batch(rows[:1]))
    assert torch.equal(own.exact(rows), expected.exact(rows))
    assert (own.n, own.dim, own.nbytes) == (20, dim, 80 * dim)

# logits that are not finite, as a diverged run has them
logits = torch.tensor([[float("nan"), 0, 1], [float("inf"), 0, 1], [0, float("nan"), 1]])
for label in range(3):
    ranks = []
    for module in (kernels, cuda_kernels):
        rank = torch.zeros(3, dtype=torch.int32)
        y = torch.full((3,), label)
        module.softmax_gradient(logits.clone(), torch.zeros(3), y, 0, torch.zeros(3, 3), torch.zeros(3), rank)
        ranks.append(rank)
    assert torch.equal(*ranks)

# a whole training with them
x, y = draw(60, 9), torch.randint(4, (60,), generator=generator)
runs = [sgd.Run(torch.arange(20), 2.0**i, 1e-3, 0, 1) for i in range(2)]
weights = []
for module in (kernels, cuda_kernels):
    cuda_engine._select_kernels = lambda *_: module
    engine = cuda_engine.CudaEngine(torch.device("cpu"))
    fits = engine.fit(engine.load(x), y, runs, sgd.Recipe(n_classes=4, n_epochs=2, batch_size=8, momentum=0.9))
    weights.append(torch.stack([fit.weight for fit in fits]))
compare(weights[1], weights[0], torch.float32)
print("agree")
"""


@pytest.mark.slow
def test_triton_kernels_agree_with_the_plain_ones():
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    assert run_python(KERNEL_CHECK, environment) == "agree"


COMPILE_CHECK = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from cog.logreg import cuda_kernels

def compile(kernel, types, constants):
    names = kernel.arg_names
    multiples = [n for n in names if types.get(n, "").startswith("*") or n in ("n_weights", "batch")]
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in multiples}
    source = ASTSource(
        kernel,
        signature={name: types.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs=aligned,
    )
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": True}).asm["ptx"]
    assert "ld.global.v4" in ptx and "st.global.v4" in ptx, "not vectorised"
    assert "atom" not in ptx and ".local" not in ptx

real = dict.fromkeys(["logits", "bias", "loss"], "*fp32")
compile(
    cuda_kernels._softmax_gradient,
    real | {"y": "*i64", "start": "i32", "gradient": "*bf16", "rank": "*i32"},
    {"N_CLASSES": 1000, "BLOCK": 1024, "RECORD": True},
)
real = dict.fromkeys(["weight", "weight_velocity", "bias", "bias_velocity", "rates"], "*fp32")
low = dict.fromkeys(["low", "weight_gradient", "gradient"], "*bf16")
whole, scalar = dict.fromkeys(["n_weights", "batch", "row"], "i32"), dict.fromkeys(["momentum", "scale"], "fp32")
sizes = {"BLOCK": 2048, "BLOCK_CLASSES": 16, "BLOCK_ROWS": 256}
compile(
    cuda_kernels._update, real | low | whole | scalar, sizes | {"N_CLASSES": 1000, "N_BIAS": 63, "LOW": True}
)
compile(
    cuda_kernels._gather,
    {"source": "*bf16", "rows": "*i64", "out": "*bf16"},
    {"STRIDE": 4096, "DIM": 2048, "BLOCK": 2048},
)
print("compiled")
"""


@pytest.mark.slow
def test_triton_kernels_compile_for_hopper(tmp_path):
    """Down to PTX, which needs no GPU: vectorised, and without atomic operations, which would not be repeatable."""
    triton = pytest.importorskip("triton")
    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 3):
        pytest.skip("the compiler's own interface was another one")
    assert run_python(COMPILE_CHECK, os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}) == "compiled"


def run_python(code, environment):
    root = str(Path(__file__).resolve().parent.parent)
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment | {"PYTHONPATH": root}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", [[], ["--streamed", "--precision", "fp32", "--seeds", "2"]])
def test_full_scale_benchmark_in_small(device, options, capsys):
    sys.path.append(str(Path(__file__).parent / "benchmarks"))
    import bench_cuda_fullscale

    sizes = {
        "rows": 2000,
        "test_rows": 300,
        "dim": 32,
        "classes": 10,
        "trials": 3,
        "epochs": 2,
        "baseline_steps": 1,
    }
    flags = [part for name, value in sizes.items() for part in (f"--{name}", str(value))]
    assert bench_cuda_fullscale.main([*flags, "--device", device.type, *options]) == 0
    printed = capsys.readouterr().out
    assert "EXTRAPOLATED" in printed
    assert f"for {2 if options else 1} experiment(s)" in printed


# ------------------------------------------------------------------------------------------------------------
# Only on a GPU: sizes at which cuBLAS has a choice of kernels

CUDA = torch.device("cuda")
LARGE = sgd.Recipe(n_classes=1000, n_epochs=4, batch_size=1024, momentum=0.9)


def train_large(engine, runs=None, **options):
    """20000 x 2048, 1000 classes; returns classifiers and their accuracies."""
    x, y = clusters(20000, 2048, 1000, spread=6.0)
    shuffled = torch.randperm(20000, generator=cpu_generator(0))
    rows = shuffled[:5000]
    train_rows = [shuffled[5000 + 1000 * seed :] for seed in range(2)]
    if runs is None:
        runs = [(trial, seed) for seed in range(2) for trial in range(5)]
    specs = [
        sgd.Run(train_rows[seed], 3.0 * 1.7**trial, 1e-7, init_seed=seed, order_seed=seed)
        for trial, seed in runs
    ]
    matrix = engine.load(x)
    fits = engine.fit(matrix, y, specs, LARGE, **options)
    return fits, engine.validate(matrix, y, rows, fits)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_large_runs_are_the_same_alone_together_again_and_without_graphs(precision):
    together, scores = train_large(CudaEngine(CUDA, precision))
    again, again_scores = train_large(CudaEngine(CUDA, precision))
    assert_same_bits(again, together)
    assert again_scores == scores
    assert_same_bits(train_large(CudaEngine(CUDA, precision, graphs=False))[0], together)
    assert_same_bits(train_large(CudaEngine(CUDA, precision, feature_memory=0))[0], together)
    alone = [train_large(CudaEngine(CUDA, precision), [run])[0][0] for run in ((0, 0), (3, 1))]
    assert_same_bits(alone, [together[0], together[8]])


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_large_runs_in_lower_precision_are_as_accurate(precision):
    _, exact = train_large(CudaEngine(CUDA, "fp32"))
    _, scores = train_large(CudaEngine(CUDA, precision))
    assert np.mean(scores) == pytest.approx(np.mean(exact), abs=0.1)
    assert scores == pytest.approx(exact, abs=0.3)  # 15 of 5000 rows


@pytest.mark.gpu
def test_fp32_on_both_devices():
    _, on_cpu = train_large(CpuEngine("fp32"), [(0, 0)])
    _, on_gpu = train_large(CudaEngine(CUDA, "fp32"), [(0, 0)])
    assert on_gpu == pytest.approx(on_cpu, abs=0.05)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_one_copy_of_the_features(precision):
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    x, y = clusters(200_000, 512, 10)
    engine = CudaEngine(CUDA, precision)
    matrix = engine.load(x)
    runs = [sgd.Run(torch.arange(100_000), 1.0, 0.0, 0, seed) for seed in range(5)]
    engine.fit(matrix, y, runs, dataclasses.replace(LARGE, n_classes=10, n_epochs=3))
    blocks = 5 * 2 * cuda_engine._BLOCK_BYTES
    assert torch.cuda.max_memory_allocated() - before < 1.05 * x.nbytes + blocks + 2**28


@pytest.mark.gpu
def test_the_callers_stream_stays_current():
    stream = torch.cuda.current_stream()
    train(CudaEngine(CUDA), some_runs(1))
    assert torch.cuda.current_stream() == stream


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("n_classes", "dtype"), [(10, torch.float32), (1000, torch.bfloat16), (16384, torch.bfloat16)]
)
def test_triton_kernels_on_the_gpu(n_classes, dtype):
    pytest.importorskip("triton")
    from cog.logreg import cuda_kernels, kernels

    results = []
    for module in (kernels, cuda_kernels):
        generator = torch.Generator(CUDA).manual_seed(0)

        def draw(*shape, generator=generator):
            return torch.randn(*shape, generator=generator, device=CUDA)

        weight, velocity, bias, bias_velocity = (
            draw(n_classes, 96),
            draw(n_classes, 96),
            draw(n_classes),
            draw(n_classes),
        )
        low, gradient = weight.to(dtype), torch.empty(700, n_classes, dtype=dtype, device=CUDA)
        y = torch.arange(800, device=CUDA) % n_classes
        loss, rank = torch.zeros(800, device=CUDA), torch.zeros(800, dtype=torch.int32, device=CUDA)
        module.softmax_gradient(5 * draw(700, n_classes), bias, y, 50, gradient, loss, rank)
        rates = torch.tensor([[9.0, 9.0], [0.3, 0.01]], device=CUDA)
        module.update(
            weight, velocity, low, draw(n_classes, 96).to(dtype), bias, bias_velocity, gradient, rates, 1, 0.9
        )
        results.append([gradient, loss, rank, weight, velocity, bias, bias_velocity, low])
    for plain, fused in zip(*results, strict=True):
        tolerance = 1e-4 if plain.dtype == torch.float32 else 0.02
        torch.testing.assert_close(fused, plain, rtol=tolerance, atol=tolerance)
