"""The generated miniature: inheritance, drawing, files, training, expectations."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny

from cog.errors import CogError
from cog.levels.wordnet import NounGraph
from cog.miniature import __main__ as command
from cog.miniature import concepts, render, traits, world
from cog.miniature.expectation import TRAINED, UNTRAINED, check_results

SMALL = {"seed": 3, "n_train": 3, "n_test": 2}


@pytest.fixture(scope="module")
def small_world(tmp_path_factory, wordnet) -> Path:
    folder = tmp_path_factory.mktemp("world")
    world.make_world(folder, wordnet, **SMALL)
    return folder


def wnid(number: int) -> str:
    return f"n{number:08d}"


def fan(n_pairs: int) -> NounGraph:
    """n_pairs families under one root: a family node with two children each."""
    parents: list[tuple[int, ...]] = [()]
    for k in range(n_pairs):
        family = 1 + 3 * k
        parents += [(0,), (family,), (family,)]
    return NounGraph(wnids=[wnid(k) for k in range(len(parents))], parents=parents)


def digest(folder: Path, *, but: str | None = None) -> dict[str, tuple[str, str]]:
    """Return a snapshot of a folder without the files of one suffix."""
    return {name: entry for name, entry in tiny.snapshot(folder).items() if Path(name).suffix != but}


# Traits ---------------------------------------------------------------------------------------------------


def test_traits_are_standard_normal_and_correlate_by_distance():
    graph = fan(400)
    leaves = [wnid(k) for k in range(1, 1201) if k % 3 != 1]
    # Over many seeds the root's traits average out.
    z = np.stack([traits.concept_traits(graph, leaves, seed=seed) for seed in range(20)])
    first, second = z[:, 0::2], z[:, 1::2]
    assert abs(z.std() - 1) < 0.05
    siblings = np.mean(first * second)
    cousins = np.mean(first * np.roll(second, 1, axis=1))
    kept = 1 - traits.CHANGE**2
    assert siblings == pytest.approx(kept, abs=0.05)  # two links
    assert cousins == pytest.approx(kept**2, abs=0.06)  # four links
    assert siblings > cousins + 0.05


def test_traits_do_not_depend_on_the_other_concepts():
    small, large = fan(2), fan(50)
    few = traits.concept_traits(small, [wnid(2), wnid(6)], seed=1)
    many = traits.concept_traits(large, [wnid(9), wnid(6), wnid(2)], seed=1)
    np.testing.assert_array_equal(few, many[[2, 1]])
    assert not np.allclose(few, traits.concept_traits(small, [wnid(2), wnid(6)], seed=2))


def test_traits_come_from_the_first_hypernym():
    two = NounGraph(wnids=[wnid(k) for k in range(4)], parents=[(), (0,), (0,), (2, 1)])
    single = NounGraph(wnids=[wnid(k) for k in range(4)], parents=[(), (0,), (0,), (2,)])
    of_two, of_single = (traits.concept_traits(graph, [wnid(3)], seed=0) for graph in (two, single))
    np.testing.assert_array_equal(of_two, of_single)


def test_a_long_chain_of_hypernyms_needs_no_recursion():
    n = 5000
    chain = NounGraph(wnids=[wnid(k) for k in range(n)], parents=[(), *((k,) for k in range(n - 1))])
    assert traits.concept_traits(chain, [wnid(n - 1)], seed=0).shape == (1, len(traits.TRAITS))


# Concepts -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_data_sets_are_trees_of_the_same_shape(wordnet):
    chosen = concepts.choose_concepts(wordnet, seed=0)
    assert len(chosen.seen) == 24 and len(chosen.unseen) == 120
    assert len(set(chosen.every)) == 144
    for side, families in (
        (chosen.seen, concepts.SEEN_FAMILIES),
        (chosen.unseen, concepts.SEEN_FAMILIES + concepts.UNSEEN_FAMILIES),
    ):
        above = [wordnet.parents[wordnet.index(w)] for w in side]
        assert all(len(parents) == 1 for parents in above)
        counts = {family: above.count((wordnet.index(family),)) for family in families}
        assert set(counts.values()) == {concepts.N_SIBLINGS}
    for k in range(0, len(concepts.UNSEEN_FAMILIES), 3):
        groups = [
            set(wordnet.parents[wordnet.index(family)]) for family in concepts.UNSEEN_FAMILIES[k : k + 3]
        ]
        assert set.intersection(*groups)
    every = {wordnet.index(w) for w in chosen.every}
    assert all(wordnet.above(node) & every == {node} for node in every)
    assert concepts.choose_concepts(wordnet, seed=1) != chosen
    assert concepts.choose_concepts(wordnet, seed=0) == chosen


def test_a_graph_without_the_families_is_refused():
    with pytest.raises(CogError, match="n02858304"):
        concepts.choose_concepts(fan(2), seed=0)


# Drawing --------------------------------------------------------------------------------------------------


def test_drawing_is_deterministic_varied_and_not_noise():
    looks = np.random.default_rng(0).standard_normal((6, len(traits.TRAITS)))
    drawn = [render.draw(look, 8, np.random.default_rng(1)) for look in looks]
    for look, pictures in zip(looks, drawn, strict=True):
        assert pictures.shape == (8, render.SIZE, render.SIZE, 3) and pictures.dtype == np.uint8
        np.testing.assert_array_equal(pictures, render.draw(look, 8, np.random.default_rng(1)))
        grey = pictures.mean(axis=3)
        assert grey.std(axis=(1, 2)).min() > 5  # something is to be seen
        neighbours = np.corrcoef(grey[:, :, 1:].ravel(), grey[:, :, :-1].ravel())[0, 1]
        assert neighbours > 0.7  # surfaces, not noise
        assert len({picture.tobytes() for picture in pictures}) == 8
    # The same nuisance, another concept: another picture.
    assert np.abs(drawn[0].astype(int) - drawn[1]).mean() > 5


@pytest.mark.filterwarnings("error")
def test_extreme_traits_can_be_drawn():
    for value in (-6.0, 6.0):
        pictures = render.draw(np.full(len(traits.TRAITS), value), 4, np.random.default_rng(0))
        assert pictures.std() > 0


def test_first_images_do_not_depend_on_how_many_are_drawn():
    look = np.zeros(len(traits.TRAITS))
    few = world.concept_images(wnid(7), look, 3, seed=0)
    many = world.concept_images(wnid(7), look, 60, seed=0)
    np.testing.assert_array_equal(few, many[:3])
    assert len({picture.tobytes() for picture in many}) == 60


# Files ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_layout_is_that_of_the_real_data(small_world, wordnet):
    chosen = concepts.choose_concepts(wordnet, seed=SMALL["seed"])
    for split, numbers in (("train", (0, 1, 2)), ("val", (3, 4))):
        root = small_world / "in1k" / split
        assert sorted(folder.name for folder in root.iterdir()) == list(chosen.seen)
        for w in chosen.seen:
            assert {path.name for path in (root / w).iterdir()} == {f"{w}_{k}.JPEG" for k in numbers}
    root = small_world / "in21k"
    assert sorted(folder.name for folder in root.iterdir()) == list(chosen.unseen)
    assert all(len(list((root / w).iterdir())) == 5 for w in chosen.unseen)
    assert (small_world / "seen_wnids.txt").read_text().split() == list(chosen.seen)
    assert (small_world / "image_counts.csv").read_text().splitlines()[:2] == [
        "wnid,count",
        f"{chosen.every[0]},5",
    ]


@pytest.mark.slow
def test_an_interrupted_run_is_repeated_and_a_complete_one_kept(small_world, wordnet, tmp_path):
    before = digest(small_world)
    again = tmp_path / "again"
    shutil.copytree(small_world, again)
    (again / "world.json").unlink()
    (again / ".drawing/in21k").mkdir(parents=True)
    (again / ".drawing/in21k/half.JPEG").write_bytes(b"half an im")
    shutil.rmtree(again / "in21k")
    world.make_world(again, wordnet, **SMALL)
    assert digest(again) == before
    kept = next((again / "in21k").iterdir())
    time = kept.stat().st_mtime_ns
    world.make_world(again, wordnet, **SMALL)
    assert kept.stat().st_mtime_ns == time


@pytest.mark.slow
def test_another_world_and_foreign_folders_are_refused(small_world, wordnet, tmp_path):
    before = digest(small_world)
    with pytest.raises(CogError, match="other settings"):
        world.make_world(small_world, wordnet, **SMALL | {"seed": 4})
    assert digest(small_world) == before
    (tmp_path / "in21k" / "mine").mkdir(parents=True)
    with pytest.raises(CogError, match="not part of a miniature"):
        world.make_world(tmp_path, wordnet, **SMALL)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in21k"]


# Levels, training, loader ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_levels_are_the_groups_by_distance(small_world, wordnet, tmp_path):
    from cog.commands import build_levels
    from cog.data.level_files import read_levels

    (tmp_path / "none.txt").write_text("")
    flags = {
        "--imagenet_images_root": small_world / "in21k", "--image_counts": small_world / "image_counts.csv",
        "--seen_wnids": small_world / "seen_wnids.txt",
        "--discarded_wnids": tmp_path / "none.txt", "--level_size": 24, "--output_dir": tmp_path / "levels",
    }  # fmt: skip
    argv = [str(part) for flag in flags.items() for part in flag]
    assert not build_levels.main([*argv, "LEVELS.MIN_IMAGES", "5", "LEVELS.N_TEST", "2"])
    mapping = tmp_path / "levels" / "cog_levels_mapping_file.pkl"
    levels = read_levels(mapping)
    rows = (concepts.SEEN_FAMILIES, *(concepts.UNSEEN_FAMILIES[k : k + 6] for k in range(0, 24, 6)))
    for level, families in zip(levels, rows, strict=True):
        assert len(level) == 24
        assert {wordnet.wnids[wordnet.parents[wordnet.index(w)][0]] for w in level} == set(families)
    from PIL import Image

    from cog.miniature.overview import write_overview

    write_overview(small_world, wordnet, levels, tmp_path / "overview.png")
    with Image.open(tmp_path / "overview.png") as picture:
        assert picture.width == 24 * render.SIZE and picture.height > 12 * render.SIZE


@pytest.mark.slow
def test_training_is_deterministic_reused_and_loads_as_a_custom_model(small_world, tmp_path):
    import torch

    import cog
    from cog.miniature.train import train_network

    loader = f"{Path(command.__file__).with_name('loader.py')}:load_my_model"
    x = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    features = []
    for name, n_epochs in (("a/convnet", 2), ("b/convnet", 2), ("a/random", 0)):
        checkpoint = tmp_path / name / "model.ckpt"
        train_network(small_world, checkpoint, n_epochs=n_epochs)
        network = cog.load_backbone(f"miniature_{checkpoint.parent.name}", checkpoint, loader=loader)
        assert not network.training
        with torch.no_grad():
            features.append(network(x).cpu())
    assert features[0].shape == (3, 128)
    assert torch.equal(features[0], features[1])
    assert not torch.allclose(features[0], features[2])
    time = checkpoint.stat().st_mtime_ns
    train_network(small_world, checkpoint, n_epochs=1)
    assert checkpoint.stat().st_mtime_ns == time


@pytest.mark.gpu
def test_training_uses_the_gpu(small_world, tmp_path, caplog):
    from cog.miniature.train import train_network

    caplog.set_level("INFO")
    train_network(small_world, tmp_path / "model.ckpt", n_epochs=1)
    assert "(cuda)" in caplog.text


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["train", "--output_dir", "nowhere"], "does not exist"),
        (["check", "--output_dir", "nowhere"], "does not exist"),
        (["check", "--output_dir", "."], "does not exist|no results"),
    ],
)
def test_wrong_use_is_named(argv, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CogError, match=message):
        command.main(argv)


@pytest.mark.slow
def test_a_damaged_image_is_named(small_world, tmp_path):
    shutil.copytree(small_world / "in1k" / "train", tmp_path / "in1k" / "train")
    broken = next((tmp_path / "in1k" / "train").rglob("*.JPEG"))
    broken.write_bytes(b"no image")
    with pytest.raises(CogError, match=broken.name):
        command.main(["train", "--output_dir", str(tmp_path)])


# Expectations ---------------------------------------------------------------------------------------------


def accuracies(model: str, n_shot: int, top1: dict[str, float]) -> dict[tuple[str, int, str], float]:
    return {(model, n_shot, dataset): value for dataset, value in top1.items()}


GOOD = {"in1k": 80.0, "cog_l1": 70.0, "cog_l2": 72.0, "cog_l3": 66.0, "cog_l4": 60.0, "cog_l5": 61.0}
CHANCE = dict.fromkeys(GOOD, 30.0)


@pytest.mark.parametrize(
    ("changed", "n_failed"),
    [
        ({}, 0),
        ({"in1k": 71.0}, 1),  # below level 2
        ({"in1k": 72.0}, 1),  # not above
        ({"cog_l5": 71.0}, 1),  # above level 1
        ({"cog_l4": 29.0}, 1),  # below the untrained network
    ],
)
def test_expectations(changed, n_failed):
    findings = check_results(
        accuracies(TRAINED, 0, {**GOOD, **changed})
        | accuracies(UNTRAINED, 0, CHANCE)
        | accuracies(TRAINED, 4, GOOD)
    )
    assert len(findings) == 4
    assert sum(not finding.holds for finding in findings) == n_failed


def test_nothing_is_claimed_without_results():
    assert check_results({}) == check_results(accuracies(UNTRAINED, 0, GOOD)) == []


# Scripts --------------------------------------------------------------------------------------------------


def test_quickstart_explains_itself_and_refuses_unknown_arguments(bash):
    shown = bash("quickstart.sh", "--help")
    assert shown.returncode == 0
    assert "control experiment" in shown.stdout and "output_dir" in shown.stdout
    for word in ("color=red", "images_per_concept=40", "--device"):
        refused = bash("quickstart.sh", word)
        assert (
            refused.returncode == 2
            and word.partition("=")[0] in refused.stderr
            and refused.stderr.count("\n") == 1
        )


@pytest.mark.slow
def test_quickstart_runs_and_runs_again(bash, tmp_path, wordnet):
    """Everything, with the answer that is known, on fewer images; the second run only reads."""
    words = [f"output_dir={tmp_path}", "shots=1", "seeds=22", "images_per_concept=20 10", "n_trials=2"]
    first = bash("quickstart.sh", *words)
    assert first.returncode == 0, first.stdout + first.stderr
    screen = first.stdout[first.stdout.index("Top-1 accuracy of linear classifiers") :].splitlines()
    assert len(screen) <= 24 and sum(line.startswith("as expected: ") for line in screen) == 4
    assert re.search(r"^trained network, 1 image +(\d+\.\d +){5}\d+\.\d$", "\n".join(screen), re.MULTILINE)
    models = tmp_path / "models" / "miniature"
    assert len(list((models / "convnet").rglob("results.json"))) == 12
    features = json.loads((models / "convnet/cog_l5/features_test/features.json").read_text())
    assert features["model"] == "miniature_convnet"
    page = (tmp_path / "report.html").read_text()
    assert "has the highest mean over L1 to L5" in page and "not compared with published ones" in page
    before = digest(tmp_path / "models", but=".log")
    second = bash("quickstart.sh", *words)
    assert second.returncode == 0, second.stdout + second.stderr
    assert digest(tmp_path / "models", but=".log") == before
