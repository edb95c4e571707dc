"""Feature files, normalization, validation split, few-shot draw."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cog.errors import CogError
from cog.features import feature_files, sampling
from cog.logreg.features import Features


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    ("train", "test", "mixed"),
    [
        ("a_b_in1k_train", "a_b_in1k_test", False),
        ("a_b_in1k_train", "a_b_cog_l1_test", True),
        ("a_b_in1k_train", "c_d_in1k_test", True),
        ("a_b_in1k_test", "a_b_in1k_train", True),
        ("a_b_in1k_train", "a_b_in1k_train", True),
        ("mine", "a_b_in1k_test", False),  # names of one's own tell nothing
    ],
)
def test_features_that_are_no_pair(train, test, mixed):
    sets = [feature_files.FeatureSet(torch.randn(2, 3), torch.arange(2), name) for name in (train, test)]
    assert bool(feature_files.check_pair(*sets)) == mixed
    sets[1] = feature_files.FeatureSet(torch.ones(2, 4), torch.arange(2), test)
    with pytest.raises(CogError, match="3 dimensions, test features 4"):
        feature_files.check_pair(*sets)


def test_save_and_load(tmp_path):
    stored = feature_files.FeatureSet(torch.randn(6, 3), torch.tensor([0, 0, 1, 1, 2, 2]), "a_b_in1k_train")
    feature_files.save(stored, tmp_path / "X_Y.pth")
    raw = torch.load(tmp_path / "X_Y.pth", weights_only=True)
    assert set(raw) == {"X", "Y", "name"}
    assert raw["X"].dtype == torch.float32
    assert raw["Y"].dtype == torch.int64
    assert raw["name"] == "a_b_in1k_train"
    loaded = feature_files.load(tmp_path)
    assert torch.equal(loaded.x, stored.x)
    assert torch.equal(loaded.y, stored.y)
    assert loaded.name == stored.name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_types_become_float32(tmp_path, dtype):
    x = torch.randn(4, 3).to(dtype)
    torch.save({"X": x, "Y": torch.zeros(4, dtype=torch.int32), "extra": [1]}, tmp_path / "X_Y.pth")
    loaded = feature_files.load(tmp_path / "X_Y.pth")
    assert loaded.x.dtype == torch.float32
    assert torch.equal(loaded.x, x.float())
    assert loaded.y.dtype == torch.int64


def save_rows(path, x):
    feature_files.save(feature_files.FeatureSet(x, torch.arange(len(x)) % 2, "n"), path / "X_Y.pth")


@pytest.mark.parametrize("scale", [1.0, 3e37, 1e19, 1e-13, 1e-19, 1e-35])
def test_rows_of_any_length_are_normalized(tmp_path, scale):
    """Their squares leave float32's range; so do the norms of the largest."""
    x = torch.from_numpy(rng().uniform(-10, 10, (2000, 9))).float()
    x[6] = 0
    scaled = x * torch.where(torch.arange(2000) % 3 == 0, scale, 1.0)[:, None]
    save_rows(tmp_path, scaled)
    found = feature_files.load(tmp_path, normalize=True).x
    assert torch.allclose(found, torch.nn.functional.normalize(x), rtol=0, atol=1e-6)
    ordinary = torch.arange(2000) % 3 != 0
    # beside such rows, the others have the bits that they have without
    assert torch.equal(found[ordinary], (x / torch.linalg.vector_norm(x, dim=1, keepdim=True))[ordinary])


def test_subnormal_rows_are_normalized(tmp_path):
    smallest = 2.0**-149
    x = torch.tensor([[3 * smallest, 4 * smallest], [0.0, smallest], [1.0, 0.0]])
    save_rows(tmp_path, x)
    expected = torch.tensor([[0.6, 0.8], [0.0, 1.0], [1.0, 0.0]])
    assert torch.equal(feature_files.load(tmp_path, normalize=True).x, expected)
    assert torch.equal(feature_files.unit_rows(x), expected)


def assert_every_reader_returns(expected, kept):
    """Compare what the readers of rounded features return, of all rows and of some, with features as float32."""
    matrix = Features(kept, torch.device("cpu"), torch.float32)
    some = torch.arange(0, len(expected), 7)
    assert matrix.rows(some).dtype == torch.float32
    assert torch.equal(matrix.rows(some), expected[some])


def test_rows_of_zeros_are_counted_and_rows_that_are_not_finite_named(tmp_path, caplog):
    x = torch.ones(1000, 4)
    x[[1, 600]] = 0
    save_rows(tmp_path, x)
    feature_files.load(tmp_path, normalize=True)
    assert [record.message for record in caplog.records] == [
        f"{tmp_path / 'X_Y.pth'}: 2 of 1000 rows of X are all zeros, which have no direction; they stay zeros"
    ]
    x[3, 1], x[700, 0] = float("nan"), float("inf")
    save_rows(tmp_path, x)
    with pytest.raises(CogError, match=r"2 of 1000 rows of X hold NaN or infinite values \(rows 3, 700\)"):
        feature_files.load(tmp_path)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 9, 10, 24, 1300])
def test_split_takes_a_fifth_of_every_class(count):
    """One image of fewer than five, for which the original code loses the whole class; none of a single one."""
    y = torch.tensor([7] * 50 + [3] * count)[
        torch.randperm(50 + count, generator=torch.Generator().manual_seed(1))
    ]
    train, val = sampling.split_train_val(y, val_frac=0.2, rng=rng())
    assert sorted(torch.cat([train, val]).tolist()) == list(range(len(y)))
    expected = max(int(count * 0.2), 1) if count > 1 else 0
    assert (y[val] == 3).sum() == expected
    assert (y[val] == 7).sum() == 10


def test_few_shot_draw_is_from_the_given_rows_and_uniform():
    y = torch.arange(60) % 3
    rows = torch.arange(0, 60, 2)  # 10 rows of every class
    drawn_counts = torch.zeros(60)
    for seed in range(400):
        drawn, short = sampling.draw_few_shot(y, rows, n_shot=4, rng=rng(seed))
        assert short == 0
        assert len(set(drawn.tolist())) == len(drawn) == 12
        assert torch.bincount(y[drawn]).tolist() == [4, 4, 4]
        drawn_counts[drawn] += 1
    assert (drawn_counts[1::2] == 0).all()
    # 400 draws with probability 0.4: mean 160, standard deviation 9.8
    assert drawn_counts[::2].min() > 110
    assert drawn_counts[::2].max() < 210
    y = torch.tensor([0] * 3 + [1] * 9)  # a class with too few images gives all
    drawn, short = sampling.draw_few_shot(y, torch.arange(12), n_shot=5, rng=rng())
    assert short == 1 and torch.bincount(y[drawn]).tolist() == [3, 5]


def test_labels_that_cannot_be_used():
    with pytest.raises(CogError, match="single training image"):
        sampling.split_train_val(torch.arange(5), val_frac=0.2, rng=rng())
    with pytest.raises(CogError, match="test labels 5"):
        sampling.to_consecutive_labels(torch.tensor([0, 1]), torch.tensor([0, 5]))


# --- rounded features (FT_EXTRACT.SAVE_DTYPE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("normalize", [True, False])
def test_rounded_features_are_read_as_their_float32_values(tmp_path, dtype, normalize):
    """The same bits as a float32 file with the rounded values."""
    x = torch.from_numpy(rng().uniform(-10, 10, (1500, 9))).to(dtype)
    x[700] = 0
    for name, values in (("rounded", x), ("plain", x.float())):
        (tmp_path / name).mkdir()
        save_rows(tmp_path / name, values)
    expected = feature_files.load(tmp_path / "plain", normalize=normalize).x
    in_memory = feature_files.load(tmp_path / "rounded", normalize=normalize)
    assert in_memory.norms is None and in_memory.x.dtype == torch.float32
    assert torch.equal(in_memory.x, expected)
    kept = feature_files.load(tmp_path / "rounded", normalize=normalize, rounded=True)
    assert kept.x.dtype == dtype and torch.equal(kept.x, x)
    assert torch.equal(feature_files.load(tmp_path / "plain", normalize=normalize, rounded=True).x, expected)
    assert_every_reader_returns(expected, kept)
