"""CLF.PCA_DIM and CLF.MAX_PER_CLASS in runs, the names of their folders; and degenerate features."""

from __future__ import annotations

import json
import math

import pytest
import sklearn.decomposition
import tiny
import torch
from classifier_runs import cloud, command, run_once

from cog import config, paths
from cog.analysis import classifiers
from cog.commands import logreg
from cog.errors import CogError
from cog.features import feature_files, pca
from cog.features.feature_files import FeatureSet
from cog.logreg import preprocess, protocol
from cog.logreg.engine import Engine
from cog.logreg.preprocess import prepare
from cog.logreg.settings import Settings

CPU = torch.device("cpu")


def rows_of(matrix):
    """All rows of features as the engine keeps them."""
    return matrix.part(0, matrix.n, exact=True)


def labelled(n_per_class, n_classes, dim, seed):
    x, y = tiny.make_xy(n_per_class=n_per_class, n_classes=n_classes, dim=dim, seed=seed, spread=2.0)
    return FeatureSet(x + 0.3, y, "tiny_net_birds_train")


# ------------------------------------------------------------------------------------------------------------
# Principal components


@pytest.mark.parametrize("normalize", [True, False])
def test_accuracy_equals_that_on_scikit_learns_projection(tmp_path, normalize):
    """The whole protocol on both."""
    train, test = labelled(40, 8, 24, 0), labelled(20, 8, 24, 1)
    tiny.write_features(tmp_path, train.x, train.y)
    oracle = sklearn.decomposition.PCA(6, svd_solver="full").fit(train.x.double().numpy())
    expected = [
        FeatureSet(torch.from_numpy(oracle.transform(one.x.double().numpy())).float(), one.y, one.name)
        for one in (train, test)
    ]
    for one in expected:
        feature_files.check_and_normalize_(one.x, "", normalize=normalize)
    made = prepare(
        feature_files.load(tmp_path), FeatureSet(test.x.clone(), test.y, test.name), Engine(CPU),
        Settings(seed=0, pca_dim=6, normalize=normalize),
    )  # fmt: skip
    torch.testing.assert_close(rows_of(made.features), expected[0].x, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(rows_of(made.test), expected[1].x, rtol=1e-4, atol=1e-5)
    assert torch.equal(made.y, train.y)
    assert torch.equal(made.test_y, test.y)
    settings = Settings(seed=22, n_trials=4, n_epochs=10, normalize=normalize, lr_interval=(1e-1, 1e1))
    ours = protocol.run_protocol(made, settings, Engine(CPU))
    theirs = run_once(*expected, settings, Engine(CPU))
    assert [t.val_top1 for t in ours.search.trials] == [t.val_top1 for t in theirs.search.trials]
    top1 = ours.classifier.logs["test/top1"][-1]
    assert top1 == theirs.classifier.logs["test/top1"][-1] and 30 < top1 < 100


def test_components_of_normalized_features(tmp_path):
    """CLF.PCA_NORM before: scikit-learn's components of unit rows, as they are."""
    train, test = labelled(40, 8, 24, 0), labelled(20, 8, 24, 1)
    tiny.write_features(tmp_path, train.x, train.y)
    units = [torch.nn.functional.normalize(one.x.double()).numpy() for one in (train, test)]
    oracle = sklearn.decomposition.PCA(6, svd_solver="full").fit(units[0])
    made = prepare(
        feature_files.load(tmp_path, normalize=True),
        FeatureSet(torch.nn.functional.normalize(test.x), test.y, test.name),
        Engine(CPU), Settings(seed=0, pca_dim=6, pca_norm="before"),
    )  # fmt: skip
    for found, rows in zip((made.features, made.test), units, strict=True):
        expected = torch.from_numpy(oracle.transform(rows)).float()
        torch.testing.assert_close(rows_of(found), expected, rtol=1e-4, atol=1e-6)


def test_a_run_on_components_of_normalized_features(feature_folders, tmp_path):
    """The saved run gives the recorded accuracy; it is another run than the default, which earlier records name not."""
    pairs = ["CLF.PCA_DIM", "3"]
    logreg.main(command(feature_folders, tmp_path / "out", *pairs, "CLF.PCA_NORM", "before"))
    run = classifiers.read_run(tmp_path / "out", n_shot=None, seed=22)
    test = feature_files.load(feature_folders[1])
    predicted = classifiers.load_classifier(run, normalize=True).logits(test.x).argmax(1)
    results = json.loads((tmp_path / "out/results.json").read_text())
    top1 = 100 * (predicted == test.y).double().mean().item()
    assert top1 == pytest.approx(results["final"]["test_top1"])
    assert results["identity"]["pca_norm"] == "before" and results["pca"]["normalized"] is False
    with pytest.raises(CogError, match="pca_norm: before -> after"):
        logreg.main(command(feature_folders, tmp_path / "out", *pairs))
    with pytest.raises(CogError, match="pca_dim: 3 -> 2"):
        other = [*pairs, "CLF.PCA_NORM", "before", "CLF.PCA_DIM", "2"]
        logreg.main(command(feature_folders, tmp_path / "out", *other))
    logreg.main(command(feature_folders, tmp_path / "whole"))
    logreg.main(command(feature_folders, tmp_path / "whole", "CLF.PCA_NORM", "before"))  # no effect


def test_a_saved_run_can_be_applied_to_new_features(feature_folders, tmp_path):
    """pca.pth and model.pth turn raw features into the recorded accuracy; the log and the record name the share."""
    logreg.main(command(feature_folders, tmp_path / "out", "CLF.PCA_DIM", "3"))
    results = json.loads((tmp_path / "out/results.json").read_text())
    final = tmp_path / "out" / results["final"]["folder"]
    projection = torch.load(final / "pca.pth", weights_only=True)
    model = torch.load(final / "model.pth", weights_only=True)["model"]
    train, test = feature_files.load(feature_folders[0]), feature_files.load(feature_folders[1])
    x = torch.nn.functional.normalize((test.x - projection["mean"]) @ projection["components"].T)
    top1 = 100 * ((x @ model["weight"].T + model["bias"]).argmax(1) == test.y).double().mean().item()
    assert results["final"]["test_top1"] == pytest.approx(top1)
    assert (results["feature_dim"], results["identity"]["pca_dim"]) == (3, 3)
    share = sklearn.decomposition.PCA().fit(train.x.numpy()).explained_variance_ratio_
    assert results["pca"]["explained_variance"] == pytest.approx(share[:3].sum(), abs=1e-5)
    assert results["pca"]["explained_variance_of_first"] == pytest.approx(
        {"1": share[0], "2": share[:2].sum(), "3": share[:3].sum()}, abs=1e-5
    )


# ------------------------------------------------------------------------------------------------------------
# Images per class


@pytest.mark.parametrize("normalize", [True, False])
def test_capped_features_are_those_of_the_file(tmp_path, normalize):
    x, y = tiny.make_xy(n_per_class=30, n_classes=4)
    tiny.write_features(tmp_path, x, y)
    kept, _ = feature_files.cap_per_class(y, 11)
    whole = feature_files.load(tmp_path, normalize=normalize)
    made, projected = (
        prepare(
            feature_files.load(tmp_path, normalize=normalize),
            feature_files.load(tmp_path, normalize=normalize),
            Engine(CPU), Settings(seed=0, max_per_class=11, normalize=normalize, pca_dim=dim),
        )
        for dim in (0, 3)
    )  # fmt: skip
    assert torch.equal(rows_of(made.features), whole.x[kept])
    assert torch.equal(made.y, y[kept])
    assert torch.equal(rows_of(made.test), whole.x)
    assert made.preparation == {"max_per_class": {"n": 11, "rows": 44, "of_rows": 120, "smaller_classes": 0}}
    assert made.projection is None
    components = pca.fit(whole, rows=kept).components[:3].float()  # of the images that are left
    torch.testing.assert_close(projected.projection["components"], components)
    assert projected.preparation["pca"]["rows"] == projected.features.n == 44


# ------------------------------------------------------------------------------------------------------------
# In the command


@pytest.mark.parametrize(
    ("pairs", "name"),
    [
        ([], "logreg"),
        (["CLF.PCA_DIM", "256", "CLF.MAX_PER_CLASS", "732"], "logreg_pca256_max732"),
        (["CLF.TYPE", "mlp_noact", "CLF.PCA_DIM", "32"], "mlp_noact_pca32"),
        (["CLF.TYPE", "mlp", "EVAL.NAME", "mine"], "mine"),
        (["CLF.PCA_DIM", "32", "EVAL.NAME", "mine"], "mine_pca32"),
    ],
)
def test_names_of_evaluations(pairs, name):
    """They read back as what they are, few-shot or not."""
    assert config.evaluation_name(config.get_cfg(opts=pairs)) == name
    for n_shot in (0, 8):
        assert paths.parse_evaluation_folder(paths.evaluation_folder(name, n_shot)) == (name, n_shot)


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("mine_max732", "logreg", "EVAL.NAME mine_max732 ends like the evaluation folders of CLF"),
        ("mlp", "mlp_noact", "the name of runs with CLF.TYPE mlp, and this is CLF.TYPE mlp_noact"),
        ("finetune", "logreg", "the name of runs of finetune.py, and this is CLF.TYPE logreg"),
    ],
)
def test_the_name_of_another_kind_is_refused(feature_folders, tmp_path, name, kind, words):
    """It would be shown as that: a logistic regression in the table of fine-tuned networks."""
    more = ["CLF.TYPE", kind, "CLF.MLP_HIDDEN", "4"]
    with pytest.raises(CogError, match=words):
        logreg.main(command(feature_folders, tmp_path / "out", "EVAL.NAME", name, *more))
    assert not (tmp_path / "out").exists()
    logreg.main(command(feature_folders, tmp_path / "out", "EVAL.NAME", kind, *more))


# ------------------------------------------------------------------------------------------------------------
# Degenerate features


def degenerate(x, y, pairs, tmp_path):
    """Run the command on these features; return the record of the run, or the text of the error."""
    folder, out = tiny.write_features(tmp_path / "features", x, y), tmp_path / "out"
    try:
        logreg.main(command((folder, folder), out, *pairs))
    except CogError as error:
        assert not list(out.rglob("results.json"))
        return str(error)
    return json.loads((out / "results.json").read_text())


def pairs_of(dim):
    return ["CLF.PCA_DIM", str(dim)]


Y = torch.arange(4).repeat_interleave(6)


@pytest.mark.parametrize(
    ("x", "pairs", "message"),
    [
        (cloud(24, 8), pairs_of(9), "has 8 dimensions; set at most that"),
        (cloud(24, 40), pairs_of(24), "vary in 23 directions only; set at most 23"),
        (torch.ones(24, 8), pairs_of(1), "do not vary at all; leave it out"),
        (cloud(24, 8).index_fill(1, torch.tensor([2, 5]), 7.0), pairs_of(7), "vary in 6 directions only"),
        (cloud(24, 8).index_fill(0, torch.tensor([3]), math.nan), pairs_of(2), "1 of 24 rows of X hold NaN"),
        (cloud(24, 8), ["CLF.PCA_DIM", "-1"], "CLF.PCA_DIM = -1 is not valid"),
        (cloud(24, 8), ["CLF.PCA_NORM", "never"], "'never' is not valid, expected after or before"),
        (cloud(24, 8), ["CLF.MAX_PER_CLASS", "-3"], "CLF.MAX_PER_CLASS = -3 is not valid"),
        (cloud(24, 8), ["CLF.MAX_PER_CLASS", "1"], "every class has a single training image"),
        (cloud(24, 8), [*pairs_of(4), "CLF.MAX_PER_CLASS", "1"], "vary in 3 directions only"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_one_line(x, pairs, message, tmp_path):
    text = degenerate(x, Y, pairs, tmp_path)
    assert message in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("x", "pairs"),
    [
        (cloud(24, 8), pairs_of(8)),
        (cloud(24, 40), pairs_of(23)),
        (1e18 * cloud(24, 8), pairs_of(4)),
        (1e-18 * cloud(24, 8), pairs_of(4)),
        (cloud(24, 8).index_fill(0, torch.tensor([0, 7]), 0.0), pairs_of(4)),
        (cloud(12, 8).repeat_interleave(2, 0), pairs_of(4)),
        (cloud(24, 8).index_fill(1, torch.tensor([2, 5]), 7.0), pairs_of(6)),
        (cloud(24, 1), pairs_of(1)),
        (cloud(24, 8), ["CLF.MAX_PER_CLASS", "1000000"]),
        (cloud(24, 8), ["CLF.MAX_PER_CLASS", "2"]),
        (cloud(24, 8), [*pairs_of(4), "CLF.N_SHOT", "2", "CLF.MAX_PER_CLASS", "4"]),
    ],
)  # fmt: skip
def test_what_is_unusual_is_done(x, pairs, tmp_path):
    """All of it, duplicates, few rows, extreme scales, dead features, one dimension, caps beyond the classes."""
    results = degenerate(x, Y, pairs, tmp_path)
    assert isinstance(results, dict), results
    assert not results["final"]["diverged"]
    assert 0 <= results["final"]["test_top1"] <= 100


def test_classes_smaller_than_the_cap_are_named(tmp_path, caplog):
    y = torch.tensor([0] * 14 + [1] * 6 + [2] * 4)
    results = degenerate(cloud(24, 8), y, ["CLF.MAX_PER_CLASS", "6"], tmp_path)
    assert results["max_per_class"] == {"n": 6, "rows": 16, "of_rows": 24, "smaller_classes": 1}
    assert "1 classes have fewer than CLF.MAX_PER_CLASS 6 images" in caplog.text


def test_components_beyond_memory(tmp_path, monkeypatch):
    """Features that are kept rounded need room for what becomes of them."""
    x, y = tiny.make_xy(n_per_class=30, n_classes=4)
    feature_files.save(FeatureSet(x.half(), y, "rounded"), tmp_path / "X_Y.pth")
    monkeypatch.setattr(preprocess, "available_memory", lambda: 100)
    for values in ({"pca_dim": 2}, {"max_per_class": 9}):
        with pytest.raises(CogError, match="of memory are available; lower CLF.PCA_DIM or CLF.MAX_PER_CLASS"):
            train, test = feature_files.load(tmp_path, rounded=True), feature_files.load(tmp_path)
            prepare(train, test, Engine(CPU), Settings(seed=0, **values))
