"""What identifies features: what does not belong together is refused; derived features; rows per class."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import sklearn.decomposition
import tiny
import torch

from cog.errors import CogError
from cog.features import derived, feature_files, folder, sampling
from cog.features.rows import rows_digest
from cog.paths import ModelDir

IDENTITY = {
    "model": "a_b",
    "source": "a_b",
    "checkpoint_sha256": "1",
    "loader_sha256": None,
    "preprocessing": {"size": 224, "mean": [0.5, 0.5, 0.5]},
    "pooling": "default",
    "precision": "fp32",
}


def write(place, x, y, *, paths=None, root="/images", **changes):
    """Write features with a record."""
    place.mkdir(parents=True)
    feature_files.save(feature_files.FeatureSet(x, y, "a_b_in1k_train"), place / "X_Y.pth")
    record = {"identity": IDENTITY | changes, "rows_sha256": rows_digest(x, y), "images_root": root}
    (place / "features.json").write_text(json.dumps(record))
    if paths is not None:
        (place / "image_paths.txt").write_text("".join(f"{path}\n" for path in paths))
    return place / "X_Y.pth"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": "a_c"}, "model: a_b -> a_c"),
        ({"checkpoint_sha256": "2"}, "checkpoint_sha256: 1 -> 2"),
        ({"loader_sha256": "3"}, "loader_sha256: None -> 3"),
        (
            {"preprocessing": {"size": 224, "mean": [0, 0, 0]}},
            r"preprocessing.mean: \[0.5, 0.5, 0.5\] -> \[0, 0, 0\]",
        ),
        ({"pooling": "cls", "source": "x"}, "source: a_b -> x; pooling: default -> cls"),
        ({"precision": "bf16"}, None),
    ],
)
def test_training_and_test_features_of_different_networks_are_refused(tmp_path, changes, says):
    x, y = torch.randn(4, 3), torch.arange(4)
    train, test = write(tmp_path / "train", x, y), write(tmp_path / "test", x, y, **changes)
    if says is None:
        folder.require_one_network(train, test)
    else:
        with pytest.raises(CogError, match=says):
            folder.require_one_network(train, test)
    (tmp_path / "test/features.json").unlink()  # of the original toolkit: nothing is known
    folder.require_one_network(train, test)


@pytest.mark.parametrize(
    ("roots", "shared", "n"),
    [
        (("/images", "/images"), 2, 2),
        (("/images", "/images"), 1, 1),
        (("/images", "/images"), 0, 0),
        (("/a", "/b"), 2, 0),
    ],
)
def test_images_in_both_splits_are_told(tmp_path, caplog, roots, shared, n):
    """By their files: splits in folders of their own often have the same names."""
    x, y = torch.randn(2, 3), torch.arange(2)
    names = ["c/0.png", "c/1.png"]
    train = write(tmp_path / "train", x, y, paths=names, root=roots[0])
    others = names[:shared] + [f"c/{number}.png" for number in range(5, 7 - shared)]
    test = write(tmp_path / "test", x, y, paths=others, root=roots[1])
    folder.require_one_network(train, test)
    assert (f"{n} of the 2 test images" in caplog.text) == bool(n)


def test_an_input_is_identified_by_its_record_or_its_rows(tmp_path):
    x, y = torch.randn(1500, 3), torch.arange(1500)
    file = write(tmp_path / "a", x, y)
    known = folder.identify_input(file)
    assert known["checkpoint_sha256"] == "1"
    (tmp_path / "a/features.json").unlink()
    assert folder.identify_input(file) == {"rows_sha256": known["rows_sha256"]}
    for change in ("x", "y", "type", "order"):
        other_x = x.clone()
        if change == "x":
            other_x[0, 2] += 1
        if change == "order":
            other_x = x.flip(0)
        torch.save({"X": other_x.half() if change == "type" else other_x, "Y": y + (change == "y")}, file)
        assert folder.identify_input(file) != {"rows_sha256": known["rows_sha256"]}


# --- derived features


def cloud(n, dim, *, offset=0.0, seed=0):
    rng = np.random.default_rng(seed)
    scales = 0.9 ** np.arange(dim)
    return torch.from_numpy(rng.normal(size=(n, dim)) * scales @ rng.normal(size=(dim, dim)) + offset).float()


@pytest.mark.parametrize("offset", [0.0, 300.0])
@pytest.mark.parametrize(("n", "dim"), [(5000, 96), (40, 64)])
def test_principal_components_equal_scikit_learns(tmp_path, n, dim, offset):
    x, test = cloud(n, dim, offset=offset), cloud(30, dim, offset=offset, seed=1)
    model = ModelDir(tmp_path, "a_b")
    write(model.features("in1k", "train"), x, torch.arange(n) % 2, paths=map(str, range(n)))
    write(model.features("in1k", "test"), test, torch.arange(30) % 2, split="test")
    oracle = sklearn.decomposition.PCA(8, svd_solver="full").fit(x.double().numpy())
    assert derived.pca(model, "in1k", 8) == "in1k_pca8"
    for split, rows in (("train", x), ("test", test)):
        ours = feature_files.load(model.features("in1k_pca8", split))
        np.testing.assert_allclose(
            ours.x.numpy(), oracle.transform(rows.double().numpy()), rtol=1e-4, atol=1e-3
        )
    train, test_file = (model.features_file("in1k_pca8", split) for split in ("train", "test"))
    folder.require_one_network(train, test_file)
    assert folder.identify_input(train)["derivation"] == {"pca": 8, "normalize": False}
    before = tiny.snapshot(tmp_path)
    derived.pca(model, "in1k", 8)
    assert tiny.snapshot(tmp_path) == before
    with pytest.raises(CogError, match="directions only"):
        derived.pca(model, "in1k", 97)


def test_derived_features_of_other_features_are_other_features(tmp_path):
    model = ModelDir(tmp_path, "a_b")
    for split in ("train", "test"):
        write(model.features("in1k", split), cloud(60, 8), torch.arange(60) % 2)
    derived.pca(model, "in1k", 4)
    for split in ("train", "test"):
        (model.features("in1k", split) / "X_Y.pth").unlink()
        (model.features("in1k", split) / "features.json").unlink()
        model.features("in1k", split).rmdir()
        write(model.features("in1k", split), cloud(60, 8, seed=2), torch.arange(60) % 2)
    with pytest.raises(CogError, match="another result"):
        derived.pca(model, "in1k", 4)


# --- images per class


def test_smaller_caps_are_subsets_and_every_class_is_drawn_by_itself():
    y = torch.tensor([5] * 20 + [2] * 9 + [7] * 30 + [2] * 4)
    rows = {n: sampling.cap_per_class(y, n) for n in (1, 4, 13, 20, 100)}
    chosen = [set(kept.tolist()) for kept, _ in rows.values()]
    assert all(small < large for small, large in itertools.pairwise(chosen))
    assert [short for _, short in rows.values()] == [0, 0, 0, 1, 3]
    for n, (kept, _) in rows.items():
        assert kept.tolist() == sorted(kept.tolist())
        assert [int((y[kept] == label).sum()) for label in (2, 5, 7)] == [min(n, 13), min(n, 20), min(n, 30)]
    shorter = y[1:]  # one image of class 5 is missing: the other classes keep theirs
    kept = sampling.cap_per_class(shorter, 4)[0] + 1
    assert {r for r in kept.tolist() if y[r] != 5} == {r for r in rows[4][0].tolist() if y[r] != 5}


def test_features_beside_the_record_of_others_are_refused(tmp_path):
    x, y = torch.randn(30, 3), torch.arange(30)
    file = write(tmp_path / "a", x, y)
    assert torch.equal(feature_files.load(file).x, x)
    feature_files.save(feature_files.FeatureSet(x + 1, y, "other"), file)
    with pytest.raises(CogError, match=r"does not have the features that features.json .*--overwrite"):
        feature_files.load(file)
