"""CLF.TYPE mlp and mlp_noact: the engine against autograd and torch.optim.SGD, and what it promises beside."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import test_resume_protocol as resume_tests
import tiny
import torch
from fake_cuda import FakeCuda
from test_logreg import LOG_KEYS, command
from test_study import assert_same, contents, single_calls, study_command
from torch.utils.flop_counter import FlopCounterMode

from cog import features as feature_files
from cog import interruption, randomness
from cog.commands import logreg
from cog.errors import CogError
from cog.interruption import Interrupted
from cog.logreg import metrics, mlp_engine, plan, protocol, sgd
from cog.logreg.checkpoint import RunState
from cog.logreg.cpu_engine import CpuEngine
from cog.logreg.cuda_engine import CudaEngine
from cog.logreg.mlp_engine import MlpEngine
from cog.logreg.settings import Settings

sys.path.append(str(Path(__file__).parent / "benchmarks"))
import plain_mlp

N, DIM, CLASSES, EPOCHS, HIDDEN = 1000, 24, 10, 6, 40
RECIPE = sgd.Recipe(n_classes=CLASSES, n_epochs=EPOCHS, batch_size=128, momentum=0.9)
MODULES = {"mlp": torch.nn.ReLU, "mlp_noact": torch.nn.Identity}
SMALL = ["CLF.MLP_HIDDEN", "16", "CLF.N_TRIALS", "3", "CLF.N_EPOCHS", "4", "--device", "cpu"]


@pytest.fixture(scope="module")
def data():
    """Clusters on spheres: only a network with an activation tells them apart well."""
    generator = torch.Generator().manual_seed(5)
    y = torch.randint(CLASSES, (N,), generator=generator)
    x = torch.randn(CLASSES, DIM, generator=generator)[y] + 1.5 * torch.randn(N, DIM, generator=generator)
    rows, val = feature_files.split_train_val(y, val_frac=0.2, rng=np.random.default_rng(0))
    return x, y, rows, val


def engine(kind="mlp", precision="fp32", *, hidden=HIDDEN, layers=2, base=CpuEngine):
    base = base(precision) if base is CpuEngine else base(torch.device("cpu"), precision)
    return MlpEngine(base, Settings(seed=0, classifier=kind, mlp_hidden=hidden, mlp_layers=layers))


def run_of(rows, lr=0.1, wd=1e-5, seed=7):
    return sgd.Run(rows=rows, lr=lr, wd=wd, init_seed=seed, order_seed=seed + 1)


def equal(a, b):
    """Whether two classifiers have the same bits (NaN included)."""
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return all(torch.equal(p.view(torch.int32), q.view(torch.int32)) for p, q in pairs)


@pytest.mark.parametrize("base", [CpuEngine, CudaEngine])
@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize(("lr", "wd", "layers"), [(0.1, 1e-5, 2), (0.03, 1e-2, 1), (0.05, 0.0, 3)])
def test_equals_the_plain_loop_in_float32(data, kind, lr, wd, layers, base):
    """Loss to 1e-5 and the same accuracy after every epoch; the storage of both engines' features."""
    x, y, rows, val = data
    run = run_of(rows, lr, wd)
    sizes = [DIM, *[HIDDEN] * layers, CLASSES]
    oracle = plain_mlp.network(sizes, MODULES[kind], seed=run.init_seed)
    generator = randomness.cpu_generator(run.order_seed)
    theirs = plain_mlp.fit(
        oracle, (x[rows], y[rows]), (x[val], y[val]), lr=lr, wd=wd, n_epochs=EPOCHS, batch_size=128,
        next_order=lambda n: torch.randperm(n, generator=generator),
    )  # fmt: skip
    ours = engine(kind, layers=layers, base=base)
    features = ours.load(x.clone())
    (fit,) = ours.fit(features, y, [run], RECIPE, test=(x[val], y[val]))
    logs = fit.history.logs
    for key in ("train/loss", "test/loss"):
        np.testing.assert_allclose(logs[key], theirs[key], rtol=1e-5, atol=1e-5)
    assert logs["test/top1"] == pytest.approx(theirs["test/top1"], abs=1e-4)
    assert set(logs) == LOG_KEYS
    for name, parameter in oracle.state_dict().items():
        torch.testing.assert_close(fit.state_dict()[name], parameter, rtol=1e-3, atol=1e-5)
    assert ours.validate(features, y, val, [fit]) == pytest.approx([theirs["test/top1"][-1]], abs=1e-4)
    assert str(fit.module()) == str(oracle)


def test_initial_layers_are_torchs():
    """Bit for bit, so that the seed alone says where training began."""
    sizes = [13, 7, 5, 3]
    model = plain_mlp.network(sizes, torch.nn.ReLU, seed=11)
    ours = [t for layer in mlp_engine.initial_layers(sizes, 11) for t in layer]
    for mine, theirs in zip(ours, model.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", MODULES)
def test_a_run_does_not_depend_on_its_company(data, kind, precision, monkeypatch):
    """Alone, among the trials of its search, with few-shot runs of other seeds, and in sweeps of two."""
    x, y, rows, _ = data
    ours = engine(kind, precision)
    features = ours.load(x.clone())
    few = feature_files.draw_few_shot(y, rows, n_shot=4, rng=np.random.default_rng(1))[0]
    runs = [run_of(rows, lr) for lr in (0.01, 0.05, 0.1, 0.02, 0.2)] + [run_of(few, 0.1, seed=3)]
    alone = [ours.fit(features, y, [run], RECIPE)[0] for run in runs]
    together = ours.fit(features, y, runs, RECIPE)
    assert all(map(equal, alone, together))
    monkeypatch.setattr(mlp_engine, "_PARAMETERS", 2 * (DIM * HIDDEN + HIDDEN * HIDDEN + HIDDEN * CLASSES))
    assert all(map(equal, alone, ours.fit(features, y, runs, RECIPE)))
    assert not equal(alone[0], alone[1])


def test_keeping_a_history_changes_nothing(data):
    x, y, rows, val = data
    for precision in ("fp32", "bf16"):
        ours = engine(precision=precision)
        features = ours.load(x.clone())
        (plain,) = ours.fit(features, y, [run_of(rows)], RECIPE)
        (recorded,) = ours.fit(features, y, [run_of(rows)], RECIPE, test=(x[val], y[val]))
        assert equal(plain, recorded)
        assert (plain.history, plain.predictions) == (None, None)
        top1 = 100 * (recorded.predictions == y[val]).double().mean().item()
        assert recorded.history.logs["test/top1"][-1] == pytest.approx(top1)


@pytest.mark.parametrize("kind", MODULES)
def test_bfloat16_gives_the_same_accuracy(data, kind):
    x, y, rows, val = data
    scores = {}
    for precision in ("fp32", "bf16"):
        ours = engine(kind, precision)
        features = ours.load(x.clone())
        fits = ours.fit(features, y, [run_of(rows, seed=seed) for seed in range(6)], RECIPE)
        scores[precision] = np.mean(ours.validate(features, y, val, fits))
    assert abs(scores["bf16"] - scores["fp32"]) < 1.0  # of 300 images, 6 runs: one image is 0.06
    assert scores["fp32"] > 50


def test_a_diverged_run_ends_and_the_others_go_on(data):
    x, y, rows, _ = data
    ours = engine("mlp_noact")
    features = ours.load(x.clone())
    fits = ours.fit(features, y, [run_of(rows, 0.01), run_of(rows, 1e4), run_of(rows, 0.02)], RECIPE)
    assert [fit.diverged for fit in fits] == [False, True, False]
    (alone,) = ours.fit(features, y, [run_of(rows, 0.02)], RECIPE)
    assert equal(fits[2], alone)


def test_a_diverged_final_training_is_recorded(data):
    x, y, rows, val = data
    ours = engine("mlp_noact")
    (fit,) = ours.fit(ours.load(x.clone()), y, [run_of(rows, 1e6)], RECIPE, test=(x[val], y[val]))
    assert fit.diverged
    assert len(fit.history.logs["test/top1"]) == 1
    assert len(fit.predictions) == len(val)


@pytest.mark.parametrize("n", [1, 2, 127, 128, 129, 256])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_any_number_of_rows(data, n, precision):
    x, y, _, _ = data
    ours = engine(precision=precision)
    fits = ours.fit(ours.load(x.clone()), y, [run_of(torch.arange(n)), run_of(torch.arange(n))], RECIPE)
    assert all(not fit.diverged and torch.isfinite(fit.weight).all() for fit in fits)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_mapped_features_are_those_in_memory(tmp_path, data, precision):
    x, y, rows, _ = data
    tiny.write_features(tmp_path, x, y)
    fits = []
    for mapped in (False, True):
        ours, stored = engine(precision=precision), feature_files.load(tmp_path, mapped=mapped)
        (fit,) = ours.fit(ours.load(stored.x, stored.norms), y, [run_of(rows)], RECIPE)
        fits.append(fit)
    assert equal(*fits)


class Saver:
    """A checkpoint in memory that asks the engine to end at one of its saves."""

    def __init__(self, interrupt_at=None):
        self.states, self.saves, self.interrupt_at = None, 0, interrupt_at

    def restore(self, n_runs):
        return [None] * n_runs if self.states is None else self.states

    def due(self):
        return True

    def save(self, states):
        self.saves += 1
        self.states = [
            None if s is None else RunState(s.epochs, {
                key: [t.clone() for t in tensors] for key, tensors in s.values.items()
            }, s.ended, s.seconds, None if s.logs is None else {k: list(v) for k, v in s.logs.items()})
            for s in states
        ]  # fmt: skip
        if self.saves == self.interrupt_at:
            raise Interrupted("here")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("interrupt_at", [1, 4, 6, 9])
def test_an_interrupted_search_goes_on_with_the_same_bits(data, interrupt_at, precision, monkeypatch):
    """In sweeps of two: whole, begun and unbegun runs, one of which diverged."""
    x, y, rows, _ = data
    monkeypatch.setattr(mlp_engine, "_PARAMETERS", 2 * (DIM * HIDDEN + HIDDEN * HIDDEN + HIDDEN * CLASSES))
    ours = engine("mlp_noact", precision)
    features = ours.load(x.clone())
    runs = [run_of(rows, lr) for lr in (0.01, 1e4, 0.05, 0.02)]
    whole = ours.fit(features, y, runs, RECIPE)
    saver = Saver(interrupt_at)
    with pytest.raises(Interrupted):
        ours.fit(features, y, runs, RECIPE, checkpoint=saver)
    before = [0 if state is None else state.epochs for state in saver.states]
    assert 0 < sum(before) < 4 * EPOCHS
    resumed = ours.fit(features, y, runs, RECIPE, checkpoint=saver)
    assert all(map(equal, whole, resumed))
    assert [fit.diverged for fit in resumed] == [False, True, False, False]
    assert saver.saves > interrupt_at


def test_an_interrupted_final_training_keeps_its_curves(data):
    x, y, rows, val = data
    ours = engine()
    features = ours.load(x.clone())
    (whole,) = ours.fit(features, y, [run_of(rows)], RECIPE, test=(x[val], y[val]))
    saver, seen = Saver(3), []
    for _ in range(2):
        try:
            (fit,) = ours.fit(
                features, y, [run_of(rows)], RECIPE, test=(x[val], y[val]),
                on_epoch=lambda epoch, history: seen.append(epoch), checkpoint=saver,
            )  # fmt: skip
        except Interrupted:
            assert seen == [0, 1, 2]
    assert seen == list(range(EPOCHS))
    assert equal(fit, whole)
    assert fit.history.logs == whole.history.logs
    assert torch.equal(fit.predictions, whole.predictions)


killing = resume_tests.killing


@pytest.mark.parametrize("kind", MODULES)
def test_a_run_killed_after_every_save_goes_on(tmp_path, killing, kind):
    """Search and final training of the protocol, from what the files in the folder hold."""
    settings = Settings(
        seed=22, n_trials=3, n_epochs=3, batch_size=16, classifier=kind, mlp_hidden=8, lr_interval=(1e-2, 1e3),
        normalize=False, precision="bf16",
    )  # fmt: skip

    def outcome(folder):
        return resume_tests.outcome(
            lambda: MlpEngine(CpuEngine("bf16"), settings), [settings], [tmp_path / folder]
        )

    killing(None)
    whole = outcome("whole")
    n_saves = resume_tests.Killing.saves
    assert n_saves >= 4
    for last in range(1, n_saves + 1):
        killing(last)
        with pytest.raises(resume_tests.Killed):
            outcome(str(last))
        killing(None)
        resumed = outcome(str(last))
        resume_tests.assert_same(resumed, whole)
        assert equal(resumed[0].fit, whole[0].fit)
        assert resume_tests.Killing.saves == n_saves - last  # nothing that was saved is trained again


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
    monkeypatch.setattr(plan, "available_memory", lambda: 10**8)
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


@pytest.mark.parametrize("pairs", [["CLF.TYPE", "mlp"], ["CLF.TYPE", "mlp_noact", "CLF.PCA_DIM", "3"]])
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
        (["CLF.SOLVER", "lbfgs"], "CLF.SOLVER lbfgs is for logistic regression, and CLF.TYPE is mlp"),
        (["CLF.PRUNER", "median"], "CLF.PRUNER median is for logistic regression, and CLF.TYPE is mlp"),
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
        sets = [feature_files.FeatureSet(1e6 * x.clone(), y, "huge") for _ in range(2)]
        protocol.run(*sets, settings, MlpEngine(CpuEngine(), settings), print_freq=0)


def test_zero_features_and_zero_vectors():
    """Dead inputs train the biases alone: the most frequent class."""
    y = torch.tensor([0] * 12 + [1] * 6)
    settings = Settings(seed=22, n_trials=0, lr=0.1, wd=0.0, n_epochs=20, classifier="mlp", mlp_hidden=8)
    sets = [feature_files.FeatureSet(torch.zeros(18, 4), y, "zeros") for _ in range(2)]
    outcome = protocol.run(*sets, settings, MlpEngine(CpuEngine(), settings), print_freq=0)
    assert outcome.fit.predictions.tolist() == [0] * 18
    share = torch.tensor([12.0, 6.0]) / 18
    assert outcome.fit.history.logs["test/loss"][-1] == pytest.approx(
        -(share * share.log()).sum().item(), abs=0.02
    )
    assert math.isfinite(outcome.fit.history.logs["train/loss"][-1])


def test_it_takes_no_notice_of_a_request_to_end_when_there_is_no_checkpoint(data, monkeypatch):
    x, y, rows, _ = data
    monkeypatch.setattr(interruption, "requested", lambda: "SIGTERM")
    ours = engine()
    assert ours.fit(ours.load(x.clone()), y, [run_of(rows)], RECIPE)[0].diverged is False


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
    ours = MlpEngine(CpuEngine(), settings)
    sets = [
        feature_files.FeatureSet(*tiny.make_xy(n_per_class=20, n_classes=5, dim=7, seed=seed), "tiny")
        for seed in (0, 1)
    ]
    prepared = protocol.prepare(*sets, ours)
    with FlopCounterMode(display=False) as counted:
        list(protocol.run_all(prepared, [settings], ours, print_freq=0))
    rows = plan.rows_of([20] * 5, settings)
    expected = plan.multiplications(rows, settings, n_test=100, dim=7, n_classes=5)
    assert counted.get_total_flops() == expected
    assert plan.describe(prepared, [settings], ours)[2].startswith("plan: seconds on cpu")
    speed = plan.Speed(prepared, [settings], ours, 80)
    assert speed.run(rows, settings) > 0
    assert speed.operations_per_second > 0


# ------------------------------------------------------------------------------------------------------------
# GPUs


@pytest.mark.parametrize("feature_memory", [None, 0])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_streams_wait_for_each_other(data, precision, feature_memory, monkeypatch):
    """On an imitation of a GPU, with features there or streamed: no race, and the bits of the CPU."""
    x, y, rows, val = data
    runs = [run_of(rows, 0.05), run_of(rows, 0.1), run_of(rows[:50], 0.1)]
    monkeypatch.setattr(mlp_engine, "_BLOCK_BYTES", 3 * 128 * DIM * (2 if precision == "bf16" else 4))
    settings, recipe = (
        Settings(seed=0, classifier="mlp", mlp_hidden=HIDDEN),
        dataclasses.replace(RECIPE, n_epochs=3),
    )
    base = CudaEngine(torch.device("cpu"), precision, feature_memory=feature_memory)
    plain = MlpEngine(base, settings)
    features = plain.load(x.clone())
    expected = plain.fit(features, y, runs, recipe)
    (recorded,) = plain.fit(features, y, runs[:1], recipe, test=(x[val], y[val]))
    ours = MlpEngine(base, settings)
    with FakeCuda(monkeypatch) as fake:
        ours._gathering = fake.streams[1]
        fits = ours.fit(features, y, runs, recipe)
        (again,) = ours.fit(features, y, runs[:1], recipe, test=(x[val], y[val]))
    assert all(map(equal, fits, expected))
    assert again.history.logs == recorded.history.logs


def test_ranks_that_do_not_wait_are_the_same():
    scores = torch.randint(4, (200, 6), generator=torch.Generator().manual_seed(0)).float()
    scores[3, 2] = math.nan
    scores[4] = math.inf
    y = torch.randint(6, (200,), generator=torch.Generator().manual_seed(1))
    y[3] = 2
    assert torch.equal(mlp_engine.rank_without_waiting(scores, y), metrics.true_class_rank(scores, y))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_on_a_gpu(data, precision):
    """The accuracies of the CPU, and the same bits in company."""
    x, y, rows, val = data
    device = torch.device("cuda")
    settings = Settings(seed=0, classifier="mlp", mlp_hidden=HIDDEN)
    ours = MlpEngine(CudaEngine(device, precision), settings)
    features = ours.load(x.clone())
    runs = [run_of(rows, 0.05), run_of(rows, 0.1)]
    together = ours.fit(features, y, runs, RECIPE)
    alone = [ours.fit(features, y, [run], RECIPE)[0] for run in runs]
    assert all(map(equal, together, alone))
    reference = engine()
    on_cpu = reference.fit(reference.load(x.clone()), y, runs, RECIPE)
    scores = ours.validate(features, y, val, together)
    assert scores == pytest.approx(reference.validate(reference.load(x.clone()), y, val, on_cpu), abs=2.0)
