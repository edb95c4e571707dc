"""Schedule and start of a training; the metrics against scikit-learn."""

from __future__ import annotations

import math

import pytest
import torch
from classifier_runs import clusters
from sklearn.metrics import accuracy_score, log_loss, top_k_accuracy_score

from cog.logreg import metrics, sgd
from cog.logreg.matrix import FloatMatrix


def score_linear(x, y, weight, bias):
    return metrics.evaluate(FloatMatrix(x), y, sgd.TrainedClassifier([(weight, bias)]).logits)


def test_learning_rate_epochs_0_and_1_run_at_the_base_rate():
    rates = [2.0, 2.0, 2 * 0.5 * (1 + math.cos(math.pi / 4)), 1.0, 2 * 0.5 * (1 + math.cos(math.pi * 3 / 4))]
    assert [sgd.learning_rate(2.0, epoch, 4) for epoch in range(4)] == pytest.approx(rates[:4])
    # The logs have the rate set after the epoch, as those of the original toolkit.
    assert [sgd.logged_rate(2.0, epoch, 4) for epoch in range(4)] == pytest.approx(rates[1:])


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
