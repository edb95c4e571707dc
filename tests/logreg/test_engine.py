"""The engine against the loop of the original toolkit (``torch.optim.SGD``) and scikit-learn."""

import dataclasses
import functools
import math
import types

import numpy as np
import pytest
import torch
from classifier_runs import QUICK, TEST, TRAIN, assert_continues, error, feature_set, fit, plain, spec_of

from cog.errors import CogError
from cog.features import feature_files
from cog.features.feature_files import FeatureSet
from cog.logreg import metrics, mlp, step
from cog.logreg.engine import Engine, learning_rate, resolve_precision
from cog.logreg.features import Features, Lockstep
from cog.logreg.settings import Settings
from cog.runtime.seeds import torch_seed

CPU = torch.device("cpu")


def logits_of(layers, x):
    return x @ layers[0][0].T + layers[0][1]


# --- Training


@pytest.mark.parametrize(("s", "k"), [(1, 1), (5, 1), (1, 10), (5, 10)])
@pytest.mark.parametrize(
    ("n", "momentum", "n_shot"), [(1000, 0.9, 0), (1024, 0.9, 0), (90, 0.0, 4), (1025, 0.0, 0)]
)
def test_weights_equal_those_of_torch_sgd(s, k, n, momentum, n_shot):
    """Batches that divide the rows or not, fewer rows than a batch; few-shot orders of their own."""
    spec, settings = spec_of(s, k, n=n), dataclasses.replace(QUICK, momentum=momentum, n_shot=n_shot)
    trained = fit(spec, settings)[1]
    assert max(error(trained, spec, settings, i, j) for i, j in {(0, k // 2), (s - 1, k - 1)}) < 1e-6


@pytest.mark.parametrize("is_compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("s", "k", "n"), [(5, 1, 1000), (2, 3, 1024)])
def test_fused_steps_equal_torch_sgd_and_those_in_place(monkeypatch, precision, s, k, n, is_compiled):
    """Here on the CPU; twenty at a time, the last batch is filled up."""
    spec, tolerance = spec_of(s, k, n=n, record=k == 1), {"fp32": 1e-6, "bf16": 5e-3}[precision]
    in_place = fit(spec, QUICK, precision=precision)[1]
    monkeypatch.setattr(step, "has_compiler", lambda device_type: True)
    if not is_compiled:
        monkeypatch.setattr(step, "compiled", lambda function, *key: function)
    fused = fit(spec, QUICK, precision=precision)[1]
    assert max(error(fused, spec, QUICK, i, j) for i in range(s) for j in range(k)) < tolerance
    for one, other in zip(fused.logs, in_place.logs, strict=True):
        for name, values in one.items():
            assert values == pytest.approx(other[name], rel=10 * tolerance, abs=0.6 * (precision == "bf16"))


def test_each_shape_has_compiled_code_and_without_a_compiler_one_line_says_so(monkeypatch, caplog):
    # PyTorch gives up after 8 compilations of the same code.
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    assert step.compiled(step.update, 1) is step.compiled(step.update, 1)
    assert step.compiled(step.update, 1) is not step.compiled(step.update, 2)

    def fail(*args, **options):
        raise RuntimeError("Cannot find a working triton installation\nmore lines")

    monkeypatch.setattr(torch, "compile", fail)
    step.has_compiler.cache_clear()
    assert [step.has_compiler(name) for name in ("cuda", "cuda", "cpu")] == [False] * 3
    step.has_compiler.cache_clear()
    (record,) = caplog.records
    assert "does not work for cuda (Cannot find a working triton installation)" in record.message


def test_a_recorded_training_has_the_curves_of_the_original_loop():
    spec = spec_of(1, 1, record=True)
    _, _, expected = plain(spec, QUICK)
    trained = fit(spec, QUICK)[1]
    for name, values in expected.items():
        np.testing.assert_allclose(trained.logs[0][name], values, rtol=1e-4)
    assert trained.logs[0]["lr"] == [learning_rate(0.5, epoch + 1, 4) for epoch in range(4)]
    predicted = logits_of(trained.learner.layers(0, 0), TEST.x).argmax(1)
    assert torch.equal(trained.predictions[0], predicted)


def test_bfloat16_moves_no_accuracy_and_trials_are_scored_in_float32():
    scores, rows = [], spec_of(2, 1, n=400).rows
    for precision in ("fp32", "bf16"):
        trained = fit(spec_of(2, 10), QUICK, precision=precision, val_rows=rows)[1]
        scores.append(np.array(trained.top1))
        for k, top1 in enumerate(scores[-1][0]):
            predicted = logits_of(trained.learner.layers(0, k), TRAIN.x[rows[0]]).argmax(1)
            assert top1 == pytest.approx(100 * (predicted == TRAIN.y[rows[0]]).numpy().mean())
    final = fit(spec_of(1, 1, record=True), QUICK, precision="bf16")[1]  # so is the last epoch
    loss = torch.nn.functional.cross_entropy(logits_of(final.learner.layers(0, 0), TEST.x), TEST.y)
    assert final.logs[0]["test/loss"][-1] == pytest.approx(float(loss), rel=1e-5)
    assert abs((scores[0] - scores[1]).mean()) < 0.1 and np.abs(scores[0] - scores[1]).max() < 0.6


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("s", "k", "classifier"), [(3, 1, "logreg"), (2, 4, "logreg"), (1, 1, "mlp")])
def test_killed_after_every_epoch(tmp_path, precision, s, k, classifier):
    settings = dataclasses.replace(QUICK, n_epochs=3, classifier=classifier, mlp_hidden=16)
    assert_continues(tmp_path, spec_of(s, k, n=300, record=k == 1), settings, precision=precision)


def test_divergence_of_one_is_not_noticed_by_the_others():
    pairs = [[(1e30, 1.0), (0.1, 0.0)], [(0.1, 0.0), (1e30, 1.0)]]
    trained = fit(dataclasses.replace(spec_of(2, 2), pairs=pairs), QUICK)[1]
    assert trained.diverged == [[True, False], [False, True]] and trained.top1[0][0] == 0.0
    alone = fit(dataclasses.replace(spec_of(1, 1), pairs=[[(0.1, 0.0)]]), QUICK)[1]
    weights = [one.learner.layers(0, k)[0][0] for one, k in ((trained, 1), (alone, 0))]
    assert torch.allclose(*weights, atol=1e-5)
    spec = dataclasses.replace(spec_of(2, 1, record=True), pairs=[[(1e30, 1.0)], [(0.1, 0.0)]])
    logs = fit(spec, QUICK)[1].logs
    assert [len(of_seed["lr"]) for of_seed in logs] == [1, 4]  # those of a diverged training end with it
    assert [math.isfinite(of_seed["test/loss"][-1]) for of_seed in logs] == [False, True]


@pytest.mark.parametrize(("kind", "layers"), [("mlp", 2), ("mlp_noact", 1)])
def test_a_network_equals_the_original_loop(kind, layers):
    settings = dataclasses.replace(QUICK, classifier=kind, mlp_hidden=24, mlp_layers=layers)
    spec = dataclasses.replace(spec_of(1, 1, record=True), pairs=[[(0.1, 1e-3)]])
    _, oracle, expected = plain(spec, settings)
    trained = fit(spec, settings)[1]
    for name, values in expected.items():
        np.testing.assert_allclose(trained.logs[0][name], values, rtol=1e-5)
    found = mlp.state_dict(trained.learner.layers(0, 0))
    assert found.keys() == oracle.state_dict().keys()
    for name, parameter in oracle.state_dict().items():
        torch.testing.assert_close(found[name], parameter, rtol=1e-4, atol=1e-6)
    accuracy = 100 * (oracle(TEST.x).argmax(1) == TEST.y).numpy().mean()
    assert trained.logs[0]["test/top1"][-1] == pytest.approx(accuracy)


def test_initial_weights_are_those_of_torch_and_differ_by_seed_and_phase():
    with torch.random.fork_rng():
        torch.manual_seed(11)
        model = torch.nn.Sequential(*(torch.nn.Linear(a, b) for a, b in ((13, 7), (7, 5), (5, 3))))
    ours = sum(mlp.initial_layers([13, 7, 5, 3], 11), ())
    assert all(map(torch.equal, ours, model.parameters()))
    streams = [("init", "search"), ("init", "final"), ("order", "search"), ("order", "final")]
    starts = {torch_seed(seed, name, phase=phase) for seed in (1, 2) for name, phase in streams}
    assert len(starts | {torch_seed(1, "order", n_shot=n) for n in (1, 2)}) == 10


# --- Scores


def test_scores_equal_scikit_learn():
    from sklearn.metrics import accuracy_score, log_loss, top_k_accuracy_score

    sets = feature_set(9000, 6, 12), feature_set(5000, 6, 12, seed=1)
    generator = torch.Generator().manual_seed(0)
    weight, bias = (torch.randn(shape, generator=generator) for shape in ((3, 12, 6), (3, 12)))
    rows = torch.randperm(9000, generator=generator)[:4000]
    for one, scored in ((sets[0], rows), (sets[1], torch.arange(5000))):
        features = Features(one, CPU, torch.float32, resident=True, copy=False)
        score = functools.partial(metrics.evaluate, features, one.y, scored)
        sums, predictions = score(lambda x: torch.einsum("bd,mcd->bmc", x, weight) + bias)
        y = one.y[scored].numpy()
        for m, found in enumerate(sums):
            logits = one.x[scored] @ weight[m].T + bias[m]
            loss = log_loss(y, torch.softmax(logits.double(), 1))
            top1, top5 = accuracy_score(y, logits.argmax(1)), top_k_accuracy_score(y, logits.numpy(), k=5)
            expected = (loss, 100 * top1, 100 * top5)
            assert metrics.to_scores(found, len(y)) == pytest.approx(expected, rel=1e-6)
            assert torch.equal(predictions[m], logits.argmax(1))


def test_ties_rank_as_argmax_and_logits_that_are_not_finite_are_wrong():
    y = torch.tensor([0, 1, 2, 2])
    logits = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [0.0, 2.0, 2.0], [0.0, 1.0, 2.0]])
    assert metrics.true_class_rank(logits, y).tolist() == [0, 1, 1, 0]
    odd = torch.tensor([[math.nan, 0.0], [math.inf, 0.0], [math.nan, math.nan]])
    assert metrics.true_class_rank(odd, torch.tensor([0, 0, 1])).tolist() == [2, 2, 2]
    for scores, labels in ((logits, y), (odd, torch.tensor([0, 0, 1]))):
        sums, zeros = torch.zeros(1, 3), torch.zeros(1, 1, scores.shape[1])
        metrics.add_scores(sums, scores[None], zeros, labels[None], torch.ones(len(labels)))
        assert sums[0, 1] == (metrics.true_class_rank(scores, labels) < 1).sum()


# --- Features and memory


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("normalize", [True, False])
def test_features_give_the_same_batches_wherever_they_are(tmp_path, precision, dtype, normalize):
    feature_files.save(FeatureSet((7 * TRAIN.x).to(dtype), TRAIN.y, "x"), tmp_path / "X_Y.pth")
    stored = feature_files.load(tmp_path, normalize=normalize, rounded=True)
    expected = feature_files.load(tmp_path, normalize=normalize).x
    index = torch.tensor([3, 1199, 3, 0])
    for resident, copy in ((True, True), (True, False), (False, False)):
        features = Features(stored, CPU, precision, resident=resident, copy=copy)
        out = torch.empty(4, features.dim, dtype=precision)
        assert torch.equal(features.rows(index, out=out), expected[index].to(precision))
        assert torch.equal(features.rows(index), expected[index].to(precision))
        assert torch.equal(features.rows(index, exact=True), expected[index])


def shaped(n, dim):
    return FeatureSet(torch.empty(n, dim, device="meta"), torch.empty(0), "")


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (140e9, Lockstep(5, 10)),
        (24e9, Lockstep(5, 10)),
        (20e9, Lockstep(5, 10, copy=False)),
        (12e9, Lockstep(5, 10, resident=False)),
        (2.0e9, Lockstep(3, 10, resident=False)),
    ],
)
def test_what_is_in_lockstep_follows_from_the_size_of_the_memory(monkeypatch, total, expected):
    """Of a GPU; the features of a level take 9.4 GB, and half of that again in bfloat16."""
    engine = Engine(CPU, "bf16")
    monkeypatch.setattr(engine, "device", torch.device("cuda", 0))
    monkeypatch.setattr("cog.runtime.memory.available_memory", lambda: 64 * 10**9)
    sizes = types.SimpleNamespace(total_memory=total)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: sizes)
    sets = shaped(1_100_000, 2048), shaped(50_000, 2048)
    assert engine.lockstep(*sets, Settings(seed=0), n_classes=1000, n_seeds=5) == expected
    sizes.total_memory = 1e8
    with pytest.raises(CogError, match="takes .* to train, and .* can be used"):
        engine.lockstep(*sets, Settings(seed=0), n_classes=10_000, n_seeds=5)


def test_a_cpu_trains_a_thousand_columns_in_lockstep(monkeypatch):
    lockstep = functools.partial(Engine(CPU).lockstep, shaped(5000, 64), shaped(500, 64))
    for n_classes, s, k in ((2, 5, 10), (100, 5, 2), (300, 3, 1), (1000, 1, 1)):
        found = lockstep(Settings(seed=0), n_classes=n_classes, n_seeds=5)
        assert (found.seeds, found.trials) == (s, k)
    settings = Settings(seed=0, classifier="mlp", mlp_hidden=9000, mlp_layers=3)
    monkeypatch.setattr("cog.runtime.memory.available_memory", lambda: 0)
    with pytest.raises(CogError, match="CLF.TYPE mlp .* takes .* GB to train"):
        lockstep(settings, n_classes=3, n_seeds=5)


def test_precisions_by_device(monkeypatch):
    with pytest.raises(CogError, match="CLF.PRECISION tf32 needs an NVIDIA GPU since Ampere"):
        resolve_precision("tf32", CPU)
    cuda = torch.device("cuda")
    for capability, expected in (((7, 5), "fp32"), ((8, 0), "tf32")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, c=capability: c)
        assert resolve_precision("auto", cuda) == expected
