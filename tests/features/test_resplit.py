"""Repeated splits of extracted features, and the spread over them."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
import tiny
import torch

from cog.commands import resplit_features
from cog.data import split_files
from cog.errors import CogError
from cog.features import feature_files, rearranged
from cog.reporting.tables import other_data
from cog.results.scores import SeedAverage

N_TRAIN, N_TEST, N_CLASSES = 7, 3, 4


@pytest.fixture
def root(tmp_path):
    """Features whose value tells which image they are of: class * 100 + number of the image."""
    for part, numbers in (("train", range(N_TRAIN)), ("test", range(N_TRAIN, N_TRAIN + N_TEST))):
        y = torch.arange(N_CLASSES).repeat_interleave(len(numbers))
        ids = [(label, number) for label in range(N_CLASSES) for number in numbers]
        x = torch.tensor([[100.0 * label + number, 1.0] for label, number in ids])
        folder = tmp_path / f"models/tiny/net/cog_l1/features_{part}"
        tiny.write_features(folder, x, y)
        (folder / "image_paths.txt").write_text("".join(f"c{a}/c{a}_{b}.JPEG\n" for a, b in ids))
    return tmp_path / "models"


def run(root, *flags):
    return resplit_features.main(["--models_root_dir", str(root), "--model", "tiny_net", *flags])


def load(root, dataset, part):
    folder = root / f"tiny/net/{dataset}/features_{part}"
    return feature_files.load(folder), (folder / "image_paths.txt").read_text().split()


def test_a_split_has_the_same_images_divided_otherwise(root, capsys):
    assert run(root, "--dataset", "cog_l1", "--split_seed", "1", "2") == 0
    assert capsys.readouterr().out.split() == [str(root / f"tiny/net/cog_l1_split{seed}") for seed in (1, 2)]
    tests = []
    for seed in (1, 2):
        everything = []
        for part, n in (("train", N_TRAIN), ("test", N_TEST)):
            features, paths = load(root, f"cog_l1_split{seed}", part)
            assert features.name == f"tiny_net_cog_l1_split{seed}_{part}"
            assert features.y.tolist() == sorted(features.y.tolist())
            assert features.y.bincount().tolist() == [n] * N_CLASSES
            expected = [f"c{int(v) // 100}/c{int(v) // 100}_{int(v) % 100}.JPEG" for v in features.x[:, 0]]
            assert paths == expected and [int(v) // 100 for v in features.x[:, 0]] == features.y.tolist()
            everything += paths
        tests.append(set(paths))
        assert len(set(everything)) == N_CLASSES * (N_TRAIN + N_TEST)
        for label in range(N_CLASSES):  # the draw of new levels
            names = [name for name in everything if name.startswith(f"c{label}/")]
            drawn = split_files.draw(names, wnid=f"n{label:08d}", n_test=N_TEST, max_train=99, seed=seed)
            assert {name for name in paths if name in names} == set(drawn["test"].tolist())
    assert tests[0] != tests[1] != set(load(root, "cog_l1", "test")[1])


def test_it_does_not_depend_on_the_model_nor_on_the_order_of_rows():
    labels = np.repeat([0, 1], 6)
    is_test = np.tile([True, False, False], 4)
    names = [f"{label}/{row}" for row, label in enumerate(labels)]
    train, test = rearranged.draw_rows(labels, is_test, names, split_seed=3)
    assert sorted([*train, *test]) == list(range(12)) and len(test) == 4
    order = np.random.default_rng(0).permutation(12)
    again = rearranged.draw_rows(labels[order], is_test[order], [names[row] for row in order], split_seed=3)
    assert [names[row] for row in test] == [names[order[row]] for row in again[1]]


def test_a_complete_split_is_kept_and_one_of_other_features_refused(root, capsys):
    flags = ("--dataset", "cog_l1", "--split_seed", "1")
    run(root, *flags)
    before = tiny.snapshot(root)
    run(root, *flags)
    assert tiny.snapshot(root) == before
    folder = root / "tiny/net/cog_l1/features_test"
    x, y = torch.rand(N_CLASSES * N_TEST, 2), torch.arange(N_CLASSES).repeat_interleave(N_TEST)
    tiny.write_features(folder, x, y)
    with pytest.raises(CogError, match="was made differently"):
        run(root, *flags)
    run(root, *flags, "--overwrite")
    (folder / "image_paths.txt").unlink()  # as the original toolkit's features
    run(root, "--dataset", "cog_l1", "--split_seed", "9")
    assert load(root, "cog_l1_split9", "test")[1][0].split("/")[0] in ("train", "test")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--dataset", "in1k", "--split_seed", "1"], "official validation images"),
        (["--dataset", "cog_l2", "--split_seed", "1"], "no features .*features_train"),
        (["--dataset", "cog_l1"], "give either --split_seed"),
        (["--dataset", "cog_l1", "--split_seed", "1", "--spread"], "give either --split_seed"),
        (
            ["--dataset", "cog_l1", "--split_seed", "1", "CLF.N_SHOT", "2"],
            "CLF.N_SHOT has no effect on splits",
        ),
        (["--model", "DINO", "--dataset", "L2", "--split_seed", "1"], "dino/resnet50/cog_l2"),
        (["--dataset", "cog_l1", "--spread"], "has runs on two splits"),
    ],
)
def test_refusals(root, flags, words):
    before = tiny.snapshot(root)
    with pytest.raises(CogError, match=words) as error:
        run(root, *flags)
    assert error.value.exit_code == 2 and tiny.snapshot(root) == before


def test_spreads_by_definition():
    rng = np.random.default_rng(0)
    values = {seed: tuple(rng.normal(70, 2, 3).tolist()) for seed in (1, 2, 10)}

    def average(dataset, by_seed):
        return SeedAverage(
            "m_x", dataset, "logreg", "top1", 0, statistics.fmean(by_seed), 0.0, (22, 37, 45), by_seed=by_seed
        )

    averages = [average(f"cog_l1_split{seed}", row) for seed, row in values.items()]
    averages += [average("cog_l1", (70.0, 71.0, 72.0)), average("cog_l2_split1", (1.0, 2.0, 3.0))]
    ((label, entries),) = other_data.of_splits(averages, ["cog_l1", "cog_l2"]).rows
    table = np.array(list(values.values()))
    over_splits = table.mean(axis=1).std(ddof=1)
    over_seeds = math.sqrt(table.var(axis=1, ddof=1).mean())
    assert label == "m_x, cog_l1"
    numbers = (f"{number:.2f}" for number in (table.mean(), over_splits, over_seeds))
    assert [entry.number for entry in entries] == ["71.00", "3", *numbers]
    of_one_seed = [average(f"cog_l1_split{seed}", row[:1]) for seed, row in values.items()][:2]
    ((_, (published, *_, spread)),) = other_data.of_splits(of_one_seed, ["cog_l1"]).rows
    assert published is None and spread is None
    assert other_data.of_splits(averages, ["cog_l2"]).rows == ()
