"""Feature files: reading, normalization, what identifies them, derived ones; rows of classifiers."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from cog.errors import CogError
from cog.features import feature_files, folder, sampling
from cog.logreg.features import Features
from cog.paths import ModelDir

IDENTITY = {
    **{"model": "a_b", "source": "a_b", "checkpoint_sha256": "1", "loader_sha256": None},
    **{"preprocessing": {"size": 224, "mean": [0.5] * 3}, "pooling": "default", "precision": "fp32"},
}


def write(place, x, y=None, **changes):
    """Write features with a record."""
    place.mkdir(parents=True)
    y = torch.arange(len(x)) % 2 if y is None else y
    features = feature_files.FeatureSet(x, y, "a_b_in1k_train")
    feature_files.write(place, features, {"identity": IDENTITY | changes}, [])
    return place / "X_Y.pth"


def save_rows(path, x):
    path.mkdir(exist_ok=True)
    feature_files.save(feature_files.FeatureSet(x, torch.arange(len(x)) % 2, "n"), path / "X_Y.pth")


# --- files


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_saved_features_are_loaded_as_float32(tmp_path, dtype):
    x, y = torch.randn(4, 3).to(dtype), torch.arange(4)
    feature_files.save(feature_files.FeatureSet(x, y, "a_b_in1k_train"), tmp_path / "X_Y.pth")
    raw = torch.load(tmp_path / "X_Y.pth", weights_only=True)
    assert torch.equal(raw["X"], x) and raw["Y"].dtype == torch.int64 and raw["name"] == "a_b_in1k_train"
    old = {"X": x, "Y": y.int(), "paths": np.array(["a.png"]), "n": np.int64(4)}
    torch.save(old, tmp_path / "X_Y.pth", _use_new_zipfile_serialization=dtype != torch.float64)
    loaded = feature_files.load(tmp_path)
    assert loaded.x.dtype == torch.float32 and torch.equal(loaded.x, x.float())
    assert loaded.y.dtype == torch.int64 and torch.equal(loaded.y, y)


@pytest.mark.parametrize("scale", [1.0, 3e37, 1e-13, 1e-35])
def test_rows_of_any_length_are_normalized(tmp_path, caplog, scale):
    """Their squares leave float32's range; so do the norms of the largest."""
    x = torch.from_numpy(np.random.default_rng(0).uniform(-10, 10, (2000, 9))).float()
    x[6] = 0
    save_rows(tmp_path, x * torch.where(torch.arange(2000) % 3 == 0, scale, 1.0)[:, None])
    found = feature_files.load(tmp_path, normalize=True).x
    assert [r.getMessage()[-45:] for r in caplog.records] == ["1 of 2000 rows of X are zeros, and stay zeros"]
    assert torch.allclose(found, torch.nn.functional.normalize(x), rtol=0, atol=1e-6)
    ordinary = torch.arange(2000) % 3 != 0  # beside such rows, they have the bits that they have without
    assert torch.equal(found[ordinary], (x / torch.linalg.vector_norm(x, dim=1, keepdim=True))[ordinary])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("normalize", [True, False])
def test_rounded_features_are_read_as_their_float32_values(tmp_path, dtype, normalize):
    """The same bits as a float32 file with the rounded values."""
    x = torch.from_numpy(np.random.default_rng(0).uniform(-10, 10, (1500, 9))).to(dtype)
    x[700] = 0
    for name, values in (("rounded", x), ("plain", x.float())):
        save_rows(tmp_path / name, values)
    expected = feature_files.load(tmp_path / "plain", normalize=normalize).x
    in_memory = feature_files.load(tmp_path / "rounded", normalize=normalize)
    assert in_memory.norms is None and torch.equal(in_memory.x, expected)
    kept = feature_files.load(tmp_path / "rounded", normalize=normalize, rounded=True)
    assert kept.x.dtype == dtype and torch.equal(kept.x, x)
    assert torch.equal(feature_files.load(tmp_path / "plain", normalize=normalize, rounded=True).x, expected)
    matrix = Features(kept, torch.device("cpu"), torch.float32, resident=True, copy=False)
    some = torch.arange(0, 1500, 7)
    assert torch.equal(matrix.rows(some), expected[some])


# --- what belongs together


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"checkpoint_sha256": "2"}, "checkpoint_sha256: 1 -> 2"),
        ({"loader_sha256": "3"}, "loader_sha256: None -> 3"),
        ({"preprocessing": {"size": 9, "mean": [0.5, 0.5, 0.5]}}, "preprocessing.size: 224 -> 9"),
        ({"pooling": "cls", "source": "x"}, "source: a_b -> x; pooling: default -> cls"),
    ],
)
def test_training_and_test_features_of_different_networks_are_refused(tmp_path, changes, says):
    x = torch.randn(4, 3)
    train, test = write(tmp_path / "train", x), write(tmp_path / "test", x, **changes)
    with pytest.raises(CogError, match=says):
        folder.require_one_network(train, test)
    folder.require_one_network(train, write(tmp_path / "rounded", x, precision="bf16"))
    (tmp_path / "test/features.json").unlink()  # of the original toolkit: nothing is known
    folder.require_one_network(train, test)


@pytest.mark.parametrize(
    ("test", "shared", "says"),
    [
        ("a_b_in1k_test", 0, ""),
        ("a_b_in1k_test", 5, "5 of 40 test features are training features"),
        ("a_b_cog_l1_test", 0, "not of one model and data set"),
        ("c_d_in1k_test", 0, "not of one model and data set"),
        ("mine", 0, ""),  # names of one's own tell nothing
    ],
)
def test_features_that_are_no_pair(test, shared, says):
    x = torch.randn(40, 3)
    train = feature_files.FeatureSet(x, torch.arange(40), "a_b_in1k_train", class_list="1")
    others = torch.cat([torch.randn(40 - shared, 3), x[30 : 30 + shared]])
    tested = feature_files.FeatureSet(others, torch.arange(40), test)
    assert says in (found := feature_files.check_pair(train, tested)) and bool(found) == bool(says)
    with pytest.raises(CogError, match="have 3 and 4 dimensions"):
        feature_files.check_pair(train, replace(tested, x=torch.ones(40, 4)))
    with pytest.raises(CogError, match="are of different classes"):
        feature_files.check_pair(train, replace(tested, class_list="2"))


def test_an_input_is_identified_by_its_record_or_its_rows(tmp_path):
    x, y = torch.randn(1500, 3), torch.arange(1500)
    file = write(tmp_path / "a", x, y)
    known = folder.identify_input(file)
    assert known["checkpoint_sha256"] == "1" and torch.equal(feature_files.load(file).x, x)
    save_rows(tmp_path / "a", x + 1)
    assert folder.identify_input(file)["rows_sha256"] != known["rows_sha256"]
    with pytest.raises(CogError, match="is not what features.json describes"):
        feature_files.load(file)
    (tmp_path / "a/features.json").unlink()
    other = x.clone()
    other[0, 2] += 1
    torch.save({"X": x, "Y": y}, file)
    assert folder.identify_input(file) == {"rows_sha256": known["rows_sha256"]}
    for changed, labels in (other, y), (x.flip(0), y), (x, y + 1), (x.half(), y):
        torch.save({"X": changed, "Y": labels}, file)
        assert folder.identify_input(file) != {"rows_sha256": known["rows_sha256"]}


def test_derived_features_have_an_identity_of_their_own(tmp_path):
    model, x = ModelDir(tmp_path, "a_b"), torch.randn(60, 8)
    sources = [write(model.features("in1k", split), x, split=split) for split in ("train", "test")]
    place = model.features("in1k_half", "train")
    results = iter([(x[:, :4], torch.arange(60) % 2, [], {})])  # it is computed once
    for _ in range(2):
        folder.derive(place, "a_b_in1k_half_train", sources, {"first": 4}, lambda: next(results))
    assert torch.equal(feature_files.load(place).x, x[:, :4])
    identity = folder.identify_input(place / "X_Y.pth")
    assert identity["derivation"] == {"first": 4} and identity["dataset"] == "in1k_half"
    folder.require_one_network(place / "X_Y.pth", sources[1])
    save_rows(tmp_path / "other", x + 1)
    with pytest.raises(CogError, match="another result"):  # of other features
        folder.derive(place, "a_b_in1k_half_train", [tmp_path / "other/X_Y.pth"], {"first": 4}, list)


# --- labels and rows


def test_smaller_caps_are_subsets_and_every_class_is_drawn_by_itself():
    y = torch.tensor([5] * 20 + [2] * 9 + [7] * 30 + [2] * 4)
    rows = {n: sampling.cap_per_class(y, n) for n in (1, 4, 13, 20, 100)}
    chosen = [set(kept.tolist()) for kept, _ in rows.values()]
    assert all(small < large for small, large in itertools.pairwise(chosen))
    assert [short for _, short in rows.values()] == [0, 0, 0, 1, 3]
    for n, (kept, _) in rows.items():
        assert kept.tolist() == sorted(kept.tolist())
        assert [int((y[kept] == label).sum()) for label in (2, 5, 7)] == [min(n, 13), min(n, 20), min(n, 30)]
    kept = sampling.cap_per_class(y[1:], 4)[0] + 1  # an image of class 5 is missing: the others keep theirs
    assert {r for r in kept.tolist() if y[r] != 5} == {r for r in rows[4][0].tolist() if y[r] != 5}


@pytest.mark.parametrize("count", [1, 2, 4, 5, 9, 10, 1300])
def test_split_takes_a_fifth_of_every_class(count):
    """One image of fewer than five, for which the original code loses the class; none of a single one."""
    order = torch.randperm(50 + count, generator=torch.Generator().manual_seed(1))
    y = torch.tensor([7] * 50 + [3] * count)[order]
    train, val = sampling.split_train_val(y, val_frac=0.2, rng=np.random.default_rng(0))
    assert sorted(torch.cat([train, val]).tolist()) == list(range(len(y)))
    assert (y[val] == 3).sum() == (max(int(count * 0.2), 1) if count > 1 else 0)
    assert (y[val] == 7).sum() == 10


def test_few_shot_draw_is_from_the_given_rows_and_uniform():
    y = torch.arange(60) % 3
    rows = torch.arange(0, 60, 2)  # 10 rows of every class
    drawn_counts = torch.zeros(60)
    for seed in range(400):
        drawn, short = sampling.draw_few_shot(y, rows, n_shot=4, rng=np.random.default_rng(seed))
        assert short == 0 and len(set(drawn.tolist())) == len(drawn) == 12
        assert torch.bincount(y[drawn]).tolist() == [4, 4, 4]
        drawn_counts[drawn] += 1
    assert (drawn_counts[1::2] == 0).all()
    # 400 draws with probability 0.4: mean 160, standard deviation 9.8
    assert drawn_counts[::2].min() > 110 and drawn_counts[::2].max() < 210
    y = torch.tensor([0] * 3 + [1] * 9)  # a class with too few images gives all
    drawn, short = sampling.draw_few_shot(y, torch.arange(12), n_shot=5, rng=np.random.default_rng(0))
    assert short == 1 and torch.bincount(y[drawn]).tolist() == [3, 5]
