"""The trainer against torch.nn.Linear + torch.optim.SGD + CrossEntropyLoss, and the metrics against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from reference_sgd import SgdTrainer
from sklearn.metrics import accuracy_score, log_loss, top_k_accuracy_score

from cog.logreg import metrics, sgd
from cog.logreg.matrix import FloatMatrix
from cog.logreg.settings import Settings
from cog.runtime.random_streams import cpu_generator


def clusters(n, d, n_classes, seed=0, spread=1.5):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % n_classes
    x = torch.randn(n_classes, d, generator=generator)[y] + spread * torch.randn(n, d, generator=generator)
    return torch.nn.functional.normalize(x), y


def plain_loop(x, y, test_x, test_y, spec, settings):
    """The original protocol with torch's own parts and autograd; same initial weights and order."""
    n_classes, n_epochs = int(y.max()) + 1, settings.n_epochs
    linear = torch.nn.Linear(x.shape[1], n_classes)
    weight, bias = sgd.initial_layers([x.shape[1], n_classes], spec.init_seed)[0]
    with torch.no_grad():
        linear.weight.copy_(weight)
        linear.bias.copy_(bias)
    ((lr, wd),) = spec.pairs
    optimizer = torch.optim.SGD(linear.parameters(), lr=lr, momentum=settings.momentum, weight_decay=wd)
    criterion = torch.nn.CrossEntropyLoss()
    order_generator = cpu_generator(spec.order_seed)
    losses, test_losses = [], []
    for epoch in range(n_epochs):
        order = spec.rows[torch.randperm(len(spec.rows), generator=order_generator)]
        total = 0.0
        for batch in order.split(settings.batch_size):
            loss = criterion(linear(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
        losses.append(total / len(order))
        with torch.no_grad():
            test_losses.append(criterion(linear(test_x), test_y).item())
        for group in optimizer.param_groups:  # stepped after the epoch, with that epoch's index
            group["lr"] = lr * 0.5 * (1 + math.cos(math.pi * epoch / n_epochs))
    return linear, losses, test_losses


def score_linear(x, y, weight, bias):
    return metrics.evaluate(FloatMatrix(x), y, sgd.TrainedClassifier([(weight, bias)]).logits)


@pytest.mark.parametrize(
    ("lr", "wd", "momentum", "batch_size"),
    [(1.0, 1e-4, 0.9, 64), (20.0, 1e-6, 0.9, 64), (5.0, 1e-2, 0.0, 100), (0.1, 0.0, 0.9, 1024)],
)
def test_equals_torch_linear_sgd_and_cross_entropy(lr, wd, momentum, batch_size):
    x, y = clusters(500, 24, 7)
    test_x, test_y = clusters(100, 24, 7, seed=1)
    spec = sgd.TrainSpec(torch.arange(0, 500, 2), [(lr, wd)], init_seed=3, order_seed=4)
    settings = Settings(seed=0, n_epochs=20, batch_size=batch_size, momentum=momentum)
    linear, losses, test_losses = plain_loop(x, y, test_x, test_y, spec, settings)
    fit = SgdTrainer().fit(x, y, spec, settings, test=(test_x, test_y))
    np.testing.assert_allclose(fit.logs["train/loss"], losses, rtol=1e-5)
    np.testing.assert_allclose(fit.logs["test/loss"], test_losses, rtol=1e-5)
    scale = linear.weight.abs().max().item()
    np.testing.assert_allclose(
        fit.weight.numpy(), linear.weight.detach().numpy(), rtol=1e-5, atol=1e-5 * scale
    )
    np.testing.assert_allclose(fit.bias.numpy(), linear.bias.detach().numpy(), rtol=1e-5, atol=1e-5 * scale)
    assert torch.equal(fit.predictions, linear(test_x).argmax(1))
    assert not fit.diverged


def test_history_without_test_set_changes_nothing():
    x, y = clusters(100, 8, 3)
    spec = sgd.TrainSpec(torch.arange(100), [(3.0, 1e-5)], init_seed=0, order_seed=1)
    settings = Settings(seed=0, n_epochs=5, batch_size=32)
    silent, scored = (SgdTrainer().fit(x, y, spec, settings, test=test) for test in (None, (x, y)))
    assert torch.equal(silent.weight, scored.weight)
    assert silent.logs is None


def test_learning_rate_epochs_0_and_1_run_at_the_base_rate():
    rates = [sgd.learning_rate(2.0, epoch, 4) for epoch in range(4)]
    assert rates == pytest.approx([2.0, 2.0, 2 * 0.5 * (1 + math.cos(math.pi / 4)), 1.0])
    x, y = clusters(20, 4, 2)
    spec = sgd.TrainSpec(torch.arange(20), [(2.0, 0.0)], init_seed=0, order_seed=1)
    settings = Settings(seed=0, n_epochs=4, batch_size=8)
    logs = SgdTrainer().fit(x, y, spec, settings, test=(x, y)).logs
    # "lr" is the rate set after the epoch, as the original toolkit logs it
    assert logs["lr"] == pytest.approx([2.0, *rates[2:], 2 * 0.5 * (1 + math.cos(math.pi * 3 / 4))])


def test_divergence_stops_and_is_told():
    x, y = clusters(64, 4, 3)
    spec = sgd.TrainSpec(torch.arange(64), [(1e38, 0.0)], init_seed=0, order_seed=1)
    settings = Settings(seed=0, n_epochs=10, batch_size=8)
    fit = SgdTrainer().fit(1e3 * x, y, spec, settings, test=(x, y))
    assert fit.diverged
    assert len(fit.logs["test/top1"]) < 10
    assert fit.logs["test/top1"][-1] == 0.0


def test_initial_classifier_is_that_of_torch_linear():
    """Same distribution (uniform within 1/sqrt(d)), not the same numbers: the stream is our own."""
    ((weight, bias),) = sgd.initial_layers([100, 200], seed=5)
    reference = torch.nn.Linear(100, 200)
    assert weight.shape == reference.weight.shape
    assert bias.shape == reference.bias.shape
    assert weight.abs().max() <= 0.1
    assert weight.std().item() == pytest.approx(reference.weight.std().item(), rel=0.03)
    assert torch.equal(weight, sgd.initial_layers([100, 200], seed=5)[0][0])


def test_score_equals_scikit_learn():
    x, y = clusters(40000, 6, 12, spread=2.0)  # more than two chunks
    weight, bias = torch.randn(12, 6), torch.randn(12)
    score, predictions = score_linear(x, y, weight, bias)
    logits = (x @ weight.T + bias).numpy()
    assert score.top1 == pytest.approx(100 * accuracy_score(y, logits.argmax(1)))
    assert score.top5 == pytest.approx(100 * top_k_accuracy_score(y, logits, k=5))
    assert score.loss == pytest.approx(log_loss(y, torch.softmax(torch.tensor(logits).double(), 1)), rel=1e-6)
    assert (predictions.numpy() == logits.argmax(1)).all()


def test_fewer_than_five_classes():
    x, y = clusters(50, 4, 3)
    score, _ = score_linear(x, y, torch.randn(3, 4), torch.zeros(3))
    assert score.top5 == 100.0


def test_ties_count_as_argmax_ranks_them():
    y = torch.tensor([0, 1, 2, 2])
    logits = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [0.0, 2.0, 2.0], [0.0, 1.0, 2.0]])
    assert metrics.true_class_rank(logits, y).tolist() == [0, 1, 1, 0]
    # equal logits everywhere: only class 0 is right
    score, _ = score_linear(torch.zeros(30, 4), torch.arange(30) % 3, torch.randn(3, 4), torch.zeros(3))
    assert score.top1 == pytest.approx(100 / 3)


def test_non_finite_logits_are_wrong():
    logits = torch.tensor([[float("nan"), 0.0], [float("inf"), 0.0], [float("nan"), float("nan")]])
    assert metrics.true_class_rank(logits, torch.tensor([0, 0, 1])).tolist() == [2, 2, 2]


@pytest.mark.gpu
def test_cuda_agrees_with_the_cpu():
    x, y = clusters(2000, 64, 10)
    spec = sgd.TrainSpec(torch.arange(2000), [(5.0, 1e-5)], init_seed=0, order_seed=1)
    settings = Settings(seed=0, n_epochs=10, batch_size=256)
    cpu = SgdTrainer().fit(x, y, spec, settings, test=(x, y))
    x, y = x.cuda(), y.cuda()
    cuda = SgdTrainer("cuda").fit(x, y, spec, settings, test=(x, y))
    np.testing.assert_allclose(cuda.logs["train/loss"], cpu.logs["train/loss"], rtol=1e-4)
