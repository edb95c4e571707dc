"""The generated miniature: inheritance, drawing, files, training, expectations."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny

from cog.errors import CogError
from cog.levels.wordnet import NounGraph
from cog.miniature import __main__ as command
from cog.miniature import concepts, render, traits, world
from cog.miniature.expectation import check_results
from cog.results.scores import SeedAverage

SMALL = world.WorldSettings(seed=3, n_train=3, n_test=2)


@pytest.fixture(scope="module")
def small_world(tmp_path_factory, wordnet) -> Path:
    folder = tmp_path_factory.mktemp("world")
    world.make_world(folder, wordnet, SMALL, n_workers=2)
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


def test_the_default_number_of_epochs_is_that_of_the_help():
    from cog.miniature.train import TrainSettings

    shown = command.parser().format_help().partition("--n_epochs N ")[2]
    assert f"(default: {TrainSettings().n_epochs})" in shown


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
        above = [wordnet.parents(wordnet.index(w)) for w in side]
        assert all(len(parents) == 1 for parents in above)
        counts = {family: above.count((wordnet.index(family),)) for family in families}
        assert set(counts.values()) == {concepts.N_SIBLINGS}
    for k in range(0, len(concepts.UNSEEN_FAMILIES), 3):
        groups = [
            set(wordnet.parents(wordnet.index(family))) for family in concepts.UNSEEN_FAMILIES[k : k + 3]
        ]
        assert set.intersection(*groups)
    every = {wordnet.index(w) for w in chosen.every}
    assert all(wordnet.subsumers(node) & every == {node} for node in every)
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
    chosen = concepts.choose_concepts(wordnet, seed=SMALL.seed)
    for split, numbers in (("train", (0, 1, 2)), ("val", (3, 4))):
        root = small_world / "in1k" / split
        assert sorted(folder.name for folder in root.iterdir()) == list(chosen.seen)
        for w in chosen.seen:
            assert {path.name for path in (root / w).iterdir()} == {f"{w}_{k}.JPEG" for k in numbers}
    root = small_world / "in21k"
    assert sorted(folder.name for folder in root.iterdir()) == list(chosen.unseen)
    assert all(len(list((root / w).iterdir())) == 5 for w in chosen.unseen)
    assert (small_world / "seen_wnids.txt").read_text().split() == list(chosen.seen)
    assert (small_world / "concepts.txt").read_text().split() == list(chosen.every)
    assert (small_world / "image_counts.csv").read_text().splitlines()[:2] == [
        "wnid,count",
        f"{chosen.every[0]},5",
    ]


@pytest.mark.slow
def test_images_do_not_depend_on_workers_and_an_interrupted_run_goes_on(small_world, wordnet, tmp_path):
    before = digest(small_world)
    again = tmp_path / "again"
    shutil.copytree(small_world, again)
    in21k = sorted((again / "in21k").iterdir())
    shutil.rmtree(in21k[3])
    shutil.rmtree(again / "in1k" / "val")
    kept = next(in21k[0].iterdir())
    time = kept.stat().st_mtime_ns
    stopped = in21k[5].with_name(f".{in21k[5].name}.partial")
    in21k[5].rename(stopped)
    next(iter(stopped.iterdir())).write_bytes(b"half an im")
    world.make_world(again, wordnet, SMALL, n_workers=1)
    assert digest(again) == before
    assert kept.stat().st_mtime_ns == time  # not drawn again
    world.make_world(again, wordnet, SMALL, n_workers=1)  # when nothing is missing
    assert kept.stat().st_mtime_ns == time


@pytest.mark.slow
def test_another_world_and_foreign_folders_are_refused(small_world, wordnet, tmp_path):
    before = digest(small_world)
    with pytest.raises(CogError, match="other settings"):
        world.make_world(small_world, wordnet, world.WorldSettings(seed=4, n_train=3, n_test=2))
    assert digest(small_world) == before
    (tmp_path / "in21k" / "mine").mkdir(parents=True)
    with pytest.raises(CogError, match="not part of a miniature"):
        world.make_world(tmp_path, wordnet, SMALL)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in21k"]


# Levels, training, loader ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_levels_are_the_groups_by_distance(small_world, wordnet, tmp_path):
    from cog.commands import build_levels
    from cog.data.level_files import read_levels

    (tmp_path / "none.txt").write_text("")
    flags = {
        "--imagenet_images_root": small_world / "in21k", "--image_counts": small_world / "image_counts.csv",
        "--seen_wnids": small_world / "seen_wnids.txt", "--concepts": small_world / "concepts.txt",
        "--discarded_wnids": tmp_path / "none.txt", "--level_size": 24, "--output_dir": tmp_path / "levels",
    }  # fmt: skip
    argv = [str(part) for flag in flags.items() for part in flag]
    assert not build_levels.main([*argv, "LEVELS.MIN_IMAGES", "5", "LEVELS.N_TEST", "2"])
    mapping = tmp_path / "levels" / "cog_levels_mapping_file.pkl"
    levels = read_levels(mapping)
    rows = (
        concepts.SEEN_FAMILIES,
        *(concepts.UNSEEN_FAMILIES[k : k + 6] for k in range(0, 24, 6)),
    )
    for level, families in zip(levels, rows, strict=True):
        assert len(level) == 24
        assert {wordnet.wnids[wordnet.parents(wordnet.index(w))[0]] for w in level} == set(families)

    assert not command.main(
        ["overview", "--output_dir", str(small_world), "--cog_levels_mapping_file", str(mapping)]
    )
    from PIL import Image

    with Image.open(small_world / "overview.png") as picture:
        assert picture.width == 24 * render.SIZE and picture.height > 12 * render.SIZE
    (small_world / "overview.png").unlink()


def train(folder: Path, root: Path, *more: str) -> Path:
    argv = ["train", "--output_dir", str(folder), "--models_root_dir", str(root), *more]
    assert not command.main(argv)
    name = "random" if "miniature_random" in more else "convnet"
    return root / "miniature" / name / "model.ckpt"


@pytest.mark.slow
def test_training_is_deterministic_reused_and_loads_as_a_custom_model(small_world, tmp_path, caplog):
    import torch

    import cog

    first = train(small_world, tmp_path / "a", "--n_epochs", "2")
    second = train(small_world, tmp_path / "b", "--n_epochs", "2")
    untrained = train(small_world, tmp_path / "a", "--model", "miniature_random")
    loader = f"{Path(command.__file__).with_name('loader.py')}:load_my_model"
    x = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    features = []
    for name, path in (("convnet", first), ("convnet", second), ("random", untrained)):
        network = cog.load_backbone(f"miniature_{name}", path, loader=loader)
        assert not network.training
        with torch.no_grad():
            features.append(network(x))
    assert features[0].shape == (3, 128)
    assert torch.equal(features[0], features[1])
    assert not torch.allclose(features[0], features[2])

    time = first.stat().st_mtime_ns
    train(small_world, tmp_path / "a", "--n_epochs", "2")
    assert first.stat().st_mtime_ns == time
    with pytest.raises(CogError, match="--overwrite"):
        train(small_world, tmp_path / "a", "--n_epochs", "1")
    train(small_world, tmp_path / "a", "--n_epochs", "1", "--overwrite")
    assert first.stat().st_mtime_ns != time


@pytest.mark.slow
def test_training_learns(small_world, tmp_path):
    """The training images of 24 concepts are learnt far beyond chance (4 %)."""
    import torch

    from cog.miniature import loader
    from cog.miniature.train import _normalize, _read_images

    path = train(small_world, tmp_path, "--n_epochs", "24")
    network, _ = loader.load_my_model({"model_name": "", "ckpt_file": path, "model_dir": ""})
    classes = torch.load(path, weights_only=True)["classes"]
    x, y = _read_images(small_world / "in1k" / "train", classes)
    with torch.no_grad():
        accuracy = (network(_normalize(x)).argmax(1) == y).float().mean().item()
    assert accuracy > 0.5


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["train", "--output_dir", "nowhere"], "does not exist"),
        (["train", "--output_dir", "."], "make the miniature first|does not exist"),
        (["overview", "--output_dir", "."], "--cog_levels_mapping_file"),
        (["check", "--output_dir", "nowhere"], "does not exist"),
        (["check", "--output_dir", ".", "--models_root_dir", "."], "no results"),
    ],
)
def test_wrong_use_is_named(argv, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CogError, match=message):
        command.main(argv)


def test_keys_have_no_effect(capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(["make", "--output_dir", "x", "CLF.N_SHOT", "1"])
    assert "CLF.N_SHOT and other KEY VALUE pairs have no effect here" in capsys.readouterr().err


@pytest.mark.slow
def test_a_damaged_image_is_named(small_world, tmp_path):
    shutil.copytree(small_world / "in1k" / "train", tmp_path / "in1k" / "train")
    broken = next((tmp_path / "in1k" / "train").rglob("*.JPEG"))
    broken.write_bytes(b"no image")
    with pytest.raises(CogError, match=broken.name):
        train(tmp_path, tmp_path / "models")


# Expectations ---------------------------------------------------------------------------------------------


def cells(model: str, n_shot: int, top1: dict[str, float]) -> list[SeedAverage]:
    return [
        SeedAverage(model, dataset, "logreg", "top1", n_shot, mean, 0.0, (22,))
        for dataset, mean in top1.items()
    ]


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
        cells("a_b", 0, {**GOOD, **changed}) + cells("a_c", 0, CHANCE) + cells("a_b", 4, GOOD),
        trained="a_b",
        untrained="a_c",
    )
    assert len(findings) == 4
    assert sum(not finding.holds for finding in findings) == n_failed


def test_nothing_is_claimed_without_results():
    assert check_results([], trained="a_b", untrained="a_c") == []
    assert check_results(cells("a_c", 0, GOOD), trained="a_b", untrained="a_c") == []


# Scripts --------------------------------------------------------------------------------------------------


def test_quickstart_explains_itself_and_refuses_unknown_arguments(bash):
    shown = bash("quickstart.sh", "--help")
    assert shown.returncode == 0
    assert "control experiment" in shown.stdout and "output_dir" in shown.stdout
    for word in ("color=red", "images_per_concept=40", "n_trials=none"):
        refused = bash("quickstart.sh", word)
        assert refused.returncode == 2 and word in refused.stderr and refused.stderr.count("\n") == 1


@pytest.mark.slow
def test_quickstart_runs_and_runs_again(bash, tmp_path, wordnet):
    """Everything, with the answer that is known, on fewer images; the second run only reads."""
    words = [f"output_dir={tmp_path}", "shots=1", "seeds=22", "images_per_concept=20 10", "n_trials=2"]
    first = bash("quickstart.sh", *words)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "NOT AS EXPECTED" not in first.stdout and first.stdout.count("as expected: ") >= 4
    models = tmp_path / "models" / "miniature"
    assert len(list((models / "convnet").rglob("results.json"))) == 12
    features = json.loads((models / "convnet/cog_l5/features_test/features.json").read_text())
    assert features["model"] == "miniature_convnet"
    assert first.stdout.rstrip().endswith(f"{tmp_path}/report.html")
    page = (tmp_path / "report.html").read_text()
    assert "most distant level here (cog_l5): −" in page and "not meaningful" in page
    before = digest(tmp_path / "models", but=".log")
    second = bash("quickstart.sh", *words)
    assert second.returncode == 0, second.stdout + second.stderr
    assert digest(tmp_path / "models", but=".log") == before
