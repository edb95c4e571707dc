"""Feature files, normalisation, validation split, few-shot draw."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cog import features, randomness
from cog.errors import CogError


def rng(seed=0):
    return np.random.default_rng(seed)


def test_save_and_load(tmp_path):
    stored = features.FeatureSet(torch.randn(6, 3), torch.tensor([0, 0, 1, 1, 2, 2]), "a_b_in1k_train")
    features.save(stored, tmp_path / "X_Y.pth")
    raw = torch.load(tmp_path / "X_Y.pth", weights_only=True)
    assert set(raw) == {"X", "Y", "name"}
    assert raw["X"].dtype == torch.float32
    assert raw["Y"].dtype == torch.int64
    assert raw["name"] == "a_b_in1k_train"
    loaded = features.load(tmp_path)
    assert torch.equal(loaded.x, stored.x)
    assert torch.equal(loaded.y, stored.y)
    assert loaded.name == stored.name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_types_become_float32(tmp_path, dtype):
    x = torch.randn(4, 3).to(dtype)
    torch.save({"X": x, "Y": torch.zeros(4, dtype=torch.int32), "extra": [1]}, tmp_path / "X_Y.pth")
    loaded = features.load(tmp_path / "X_Y.pth")
    assert loaded.x.dtype == torch.float32
    assert torch.equal(loaded.x, x.float())
    assert loaded.y.dtype == torch.int64


def test_normalisation_equals_torch_and_keeps_zero_rows(tmp_path):
    x = torch.randn(70000, 4)
    x[5] = 0
    features.save(features.FeatureSet(x, torch.zeros(len(x), dtype=torch.int64), "n"), tmp_path / "X_Y.pth")
    normalized = features.load(tmp_path, normalize=True).x
    assert torch.allclose(normalized, torch.nn.functional.normalize(x), rtol=0, atol=1e-7)
    assert (normalized[5] == 0).all()


def test_non_finite_rows_are_named(tmp_path):
    x = torch.zeros(100, 4)
    x[3, 1] = float("nan")
    x[70, 0] = float("inf")
    torch.save({"X": x, "Y": torch.zeros(100, dtype=torch.int64)}, tmp_path / "X_Y.pth")
    with pytest.raises(CogError, match=r"2 of 100 rows.*\(rows 3, 70\)"):
        features.load(tmp_path)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 9, 10, 24, 1300])
def test_split_takes_a_fifth_of_every_class(count):
    y = torch.tensor([7] * 50 + [3] * count)[
        torch.randperm(50 + count, generator=torch.Generator().manual_seed(1))
    ]
    train, val = features.split_train_val(y, val_frac=0.2, rng=rng())
    assert sorted(torch.cat([train, val]).tolist()) == list(range(len(y)))
    expected = max(int(count * 0.2), 1) if count > 1 else 0
    assert (y[val] == 3).sum() == expected
    assert (y[val] == 7).sum() == 10


def test_split_needs_something_to_hold_out():
    with pytest.raises(CogError, match="single training image"):
        features.split_train_val(torch.arange(5), val_frac=0.2, rng=rng())


def test_split_differs_between_seeds_and_not_within():
    y = torch.arange(1000) % 10
    first = [features.split_train_val(y, val_frac=0.2, rng=rng(s))[1] for s in (1, 1, 2)]
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[0], first[2])


def test_few_shot_draw_is_from_the_given_rows_and_uniform():
    y = torch.arange(60) % 3
    rows = torch.arange(0, 60, 2)  # 10 rows of every class
    drawn_counts = torch.zeros(60)
    for seed in range(400):
        drawn, short = features.draw_few_shot(y, rows, n_shot=4, rng=rng(seed))
        assert short == 0
        assert len(set(drawn.tolist())) == len(drawn) == 12
        assert torch.bincount(y[drawn]).tolist() == [4, 4, 4]
        drawn_counts[drawn] += 1
    assert (drawn_counts[1::2] == 0).all()
    # 400 draws with probability 0.4: mean 160, standard deviation 9.8
    assert drawn_counts[::2].min() > 110
    assert drawn_counts[::2].max() < 210


def test_few_shot_takes_all_of_a_small_class():
    y = torch.tensor([0] * 3 + [1] * 9)
    drawn, short = features.draw_few_shot(y, torch.arange(12), n_shot=5, rng=rng())
    assert short == 1
    assert torch.bincount(y[drawn]).tolist() == [3, 5]


def test_labels_are_renumbered():
    y, test_y, labels = features.to_consecutive_labels(torch.tensor([9, 4, 9, -2]), torch.tensor([4, -2, 9]))
    assert y.tolist() == [2, 1, 2, 0]
    assert test_y.tolist() == [1, 0, 2]
    assert labels == [-2, 4, 9]


def test_test_class_without_training_features():
    with pytest.raises(CogError, match="test labels 5"):
        features.to_consecutive_labels(torch.tensor([0, 1]), torch.tensor([0, 5]))


def test_streams_are_independent():
    """Every choice has its own stream; a stream is a function of its arguments alone."""
    arguments = [
        (seed, purpose, stage, n_shot)
        for seed in (0, 22, 37)
        for purpose in randomness.PURPOSES
        for stage in randomness.STAGES
        for n_shot in (0, 1, 128)
    ]
    seeds = [randomness.torch_seed(seed, p, stage=stage, n_shot=n) for seed, p, stage, n in arguments]
    assert len(set(seeds)) == len(seeds)
    assert seeds == [randomness.torch_seed(seed, p, stage=stage, n_shot=n) for seed, p, stage, n in arguments]
    assert all(0 <= seed < 2**63 for seed in seeds)
