"""build_levels.py from the command line: on a toy WordNet, on the real one, on the miniature, on bad input."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import os
import pickle
import shutil
import statistics
import subprocess
import sys
from collections import Counter

import archive_forms
import numpy as np
import pytest
import tiny
from test_output_folder import taken_over_at

from cog import constants
from cog.analysis import concepts
from cog.commands import build_levels, levels_flags, other_levels
from cog.data.image_sources import ImageSources
from cog.data.level_files import read_levels, write_levels
from cog.data.root_layout import open_store
from cog.data.split_files import read_split
from cog.data.wnids import IN1K_LIST
from cog.errors import CogError
from cog.levels import figures, image_folders, job, plan, wordnet
from cog.levels.builder import SIMILARITIES
from cog.levels.selection import DISCARDED_LIST, read_wnids, select
from cog.levels.wordnet import NounGraph
from cog.runtime import cli
from cog.runtime.locks import LockedError, locked


def wnid(number: int) -> str:
    return f"n{number:08d}"


ROOT, PERSON, INNER = wnid(1), wnid(6), wnid(2)
GROUPS = {2: range(10, 16), 3: range(20, 26), 4: range(30, 36), 5: range(40, 46), 6: range(60, 63)}
SEEN = [wnid(10), wnid(20)]
N_IMAGES = 8


def toy_graph() -> NounGraph:
    parent = {
        1: (),
        **dict.fromkeys(GROUPS, (1,)),
        **{leaf: (g,) for g, leaves in GROUPS.items() for leaf in leaves},
    }
    # Group 4 lies beside group 3: nearer to the seen 20 than group 5 is.
    parent |= {7: (1,), 3: (7,), 4: (7,)}
    numbers = sorted(parent)
    place = {number: i for i, number in enumerate(numbers)}
    return NounGraph(
        wnids=[wnid(number) for number in numbers],
        parents=[tuple(place[p] for p in parent[number]) for number in numbers],
        names=[f"s{number:02d}.n.01" for number in numbers],
        lemmas=[(f"word_{number}", f"w{number}") for number in numbers],
        glosses=[f"gloss of group {number // 10}" for number in numbers],
        source="toy",
    )


LEAVES = [wnid(leaf) for leaves in GROUPS.values() for leaf in leaves]
KEYS = ["LEVELS.MIN_IMAGES", "6", "LEVELS.N_TEST", "2", "LEVELS.MAX_TRAIN", "4"]
KEYS += ["LEVELS.EXCLUDED_ROOTS", f"['{PERSON}']"]


class Toy:
    """A folder of inputs and a way to run the command on them."""

    def __init__(self, root):
        self.root = root
        self.figures = False  # drawing takes longer than all the rest
        self.images = root / "images"
        self.out = root / "out"
        rows = "".join(f"{w},{N_IMAGES}\n" for w in [INNER, *LEAVES])
        self.counts = self.write("counts.csv", "id,number\n" + rows)
        self.seen = self.write("seen.txt", "\n".join(SEEN))

    def write(self, name: str, text: str):
        path = self.root / name
        path.write_text(text)
        return path

    def make_images(self):
        for concept in [INNER, *LEAVES]:
            (self.images / concept).mkdir(parents=True)
            for i in range(N_IMAGES):
                (self.images / concept / f"{concept}_{i}.JPEG").touch()
        return self.images

    def run(self, *flags, keys=KEYS, seen=True, out=True, size=5, n=4):
        argv = [*map(str, flags), *keys]
        if seen:
            argv += ["--seen_wnids", str(self.seen)]
        if out:
            argv += ["--output_dir", str(self.out)]
        if size:
            argv += ["--n_levels", str(n), "--level_size", str(size)]
        return build_levels.main(argv)

    def rows(self, name):
        with (self.out / name).open(newline="") as handle:
            return list(csv.DictReader(handle))

    def levels(self):
        return read_levels(self.out / constants.LEVELS_FILE)

    def split(self):
        return read_split(self.out / constants.SPLIT_FILE)

    @property
    def report(self):
        return json.loads((self.out / "report.json").read_text())


@pytest.fixture
def toy(tmp_path, monkeypatch):
    monkeypatch.setattr(wordnet, "load_wordnet", lambda folder=None: toy_graph())
    toy, draw = Toy(tmp_path), job._draw_figures
    monkeypatch.setattr(job, "_draw_figures", lambda *args: draw(*args) if toy.figures else None)
    return toy


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_help_lists_what_exists(capsys):
    assert tuple(SIMILARITIES) == levels_flags.SIMILARITIES
    with pytest.raises(SystemExit) as done:
        cli.run(build_levels.main, ["--help"])
    text = capsys.readouterr().out
    assert done.value.code == 0
    assert "--similarity" in text and "KEY VALUE" in text


def test_from_counts(toy, capsys, caplog):
    toy.figures = True
    assert toy.run("--image_counts", toy.counts) == 0
    assert (
        "the order of concepts in L4 is largely arbitrary: 5 of 5 concepts share the similarity 0.0000 (1 different "
        "values)" in caplog.text
    )
    assert sorted(os.listdir(toy.out)) == sorted(
        [constants.LEVELS_FILE, "concepts.csv", "images.png", "levels.csv", "report.json", "similarity.png"]
    )
    levels = toy.levels()
    assert [len(level) for level in levels] == [5, 5, 5, 5]
    rows = toy.rows("levels.csv")
    assert [row["rank"] for row in rows] == [str(rank) for rank in range(22)]
    for number, level in enumerate(levels, start=1):
        assert level == [row["wnid"] for row in rows if row["level"] == f"L{number}"]
    assert [row["level"] for row in rows].count("gap") == 2
    values = [float(row["similarity"]) for row in rows]
    assert values == sorted(values, reverse=True)
    of_equals = [statistics.mean(rank for rank, v in enumerate(values) if v == value) for value in values]
    assert [float(row["average_rank"]) for row in rows] == of_equals
    first = rows[0]
    assert first["names"].startswith("word ") and first["nearest_seen"] in SEEN and first["images"] == "8"
    # Siblings of the seen concepts come first, then group 4 beside group 3, last group 5.
    assert {row["wnid"] for row in rows[:10]} == {wnid(n) for n in (*range(11, 16), *range(21, 26))}
    assert {row["wnid"] for row in rows[-6:]} == {wnid(n) for n in range(40, 46)}
    near = {wnid(n) for n in range(30, 36)}
    assert {row["nearest_seen"] for row in rows if row["wnid"] in near} == {wnid(20)}
    status = {row["wnid"]: row["status"] for row in toy.rows("concepts.csv")}
    assert status[SEEN[0]] == "seen" and status[wnid(60)] == "excluded_subtree"
    assert status[INNER] == "ancestor"
    assert sorted(w for w, s in status.items() if s == "eligible") == sorted(row["wnid"] for row in rows)
    report = toy.report
    for number, level in enumerate(report["levels"], start=1):
        inside = Counter(float(row["similarity"]) for row in rows if row["level"] == f"L{number}")
        assert level["distinct_similarities"] == len(inside)
        assert level["largest_tie"]["concepts"] == max(inside.values())
        assert inside[level["largest_tie"]["similarity"]] == max(inside.values())
        assert bool(level["warning"]) == (2 * max(inside.values()) >= 5)
    assert [step["n_left"] for step in report["selection"]["steps"]] == [26, 26, 23, 22, 22]
    assert report["selection"]["eligible"] == 22
    assert report["inputs"]["image_counts"]["sha256"] == sha256(toy.counts)
    assert report["outputs"][constants.LEVELS_FILE]["sha256"] == sha256(toy.out / constants.LEVELS_FILE)
    assert report["levels"][0]["training_images"] == 5 * 4 and report["levels"][0]["test_images"] == 5 * 2
    assert report["options"]["config"]["LEVELS.MIN_IMAGES"] == 6
    printed = capsys.readouterr().out
    assert "below n00000006" in printed and "wrote" in printed


def test_from_images_equals_from_counts_and_makes_a_split(toy):
    toy.run("--imagenet_images_root", toy.make_images())
    split = toy.split()
    levels = toy.levels()
    assert sorted(split) == sorted(concept for level in levels for concept in level)
    for concept, parts in split.items():
        assert len(parts["train"]) == 4 and len(parts["test"]) == 2
        for name in (*parts["train"], *parts["test"]):
            assert name.startswith(f"{concept}/") and (toy.images / name).is_file()
    first = {name: sha256(toy.out / name) for name in (constants.LEVELS_FILE, "levels.csv", "concepts.csv")}
    cached = toy.out / "image_counts.csv"
    shutil.copy(cached, toy.root / "cached.csv")
    toy.run("--image_counts", cached, "--overwrite")
    assert {name: sha256(toy.out / name) for name in first} == first
    assert cached.read_bytes() == (toy.root / "cached.csv").read_bytes()  # an input is not deleted
    assert not (toy.out / constants.SPLIT_FILE).exists()  # of the older result


def test_limit_makes_small_levels_that_nothing_takes_for_levels(toy, capsys, caplog):
    images, flags = toy.make_images(), ("--limit", "2", "--imagenet_images_root", toy.root / "images")
    assert toy.run(*flags, keys=KEYS[:2] + KEYS[6:], size=None) == 0
    assert os.listdir(toy.out) == ["limit-2"] and toy.run(*flags, keys=KEYS[:2] + KEYS[6:], size=None) == 0
    assert "--limit 2: a test of the command on a few concepts, not levels" in capsys.readouterr().out
    place = toy.out / "limit-2"
    assert json.loads((place / "report.json").read_text())["options"]["limit"] == 2
    assert not (place / "image_counts.csv").exists()  # of some concepts alone
    levels_file, split_file = place / constants.LEVELS_FILE, place / constants.SPLIT_FILE
    with levels_file.open("rb") as file:
        content = pickle.load(file)
    assert content["limit"] == 2 and [len(level) for level in content["levels"]] == [2] * 5
    split = read_split(split_file)
    assert {len(parts[name]) for parts in split.values() for name in ("train", "test")} == {2}

    # In its place for --limit 2 alone; elsewhere for nobody.
    values = {"imagenet_images_root": str(images)} | {
        "cog_levels_mapping_file": str(levels_file), "cog_concepts_split_file": str(split_file),
    }  # fmt: skip
    assert len(ImageSources(values, limit=2).list_images("cog_l5", "train")) == 4
    for limit in (0, 3):
        with pytest.raises(CogError, match=r"made with --limit 2: use it with --limit 2 only"):
            ImageSources(values, limit=limit).list_images("cog_l1", "train")
    moved = {flag: shutil.copy(path, toy.root) for flag, path in values.items() if flag.endswith("_file")}
    for limit in (0, 2):
        with pytest.raises(
            CogError, match=r"made with --limit 2: it is a test of build_levels.py, not levels"
        ):
            ImageSources(values | moved, limit=limit).list_images("cog_l1", "train")
    (toy.root / "tiny/net/cog_l1/features_test").mkdir(parents=True)
    other = ["--model", "tiny_net", "--models_root_dir", toy.root, "--output_dir", toy.root / "other"]
    for use in (
        lambda: toy.run("--image_counts", toy.counts, "--rerank", levels_file),
        lambda: toy.run("--image_counts", toy.counts, "--compare", levels_file, levels_file),
        lambda: toy.run("--image_counts", toy.counts, "--overlap", place, place),
        lambda: concepts.read_levels_csv(place / "levels.csv"),
        lambda: other_levels.main(list(map(str, (*other, "--levels_dir", toy.out)))),
    ):
        with pytest.raises(CogError, match="it is a test of build_levels.py, not levels"):
            use()


def test_without_limit_nothing_is_written_among_outputs_of_it(toy):
    toy.out = toy.out / "limit-2"
    with pytest.raises(
        CogError, match="is a folder of outputs of --limit; choose another folder or add --limit"
    ):
        toy.run("--image_counts", toy.counts)
    assert toy.run("--image_counts", toy.counts, "--limit", "2", size=None) == 0  # there already
    assert constants.LEVELS_FILE in os.listdir(toy.out)
    with pytest.raises(CogError, match="is for outputs of --limit 2, not of --limit 3"):
        toy.run("--image_counts", toy.counts, "--limit", "3", size=None)


def test_limit_lists_few_folders(toy, monkeypatch):
    """Of many folders those of a choice; of --concepts and --rerank those that they name."""
    images, counted = toy.make_images(), []
    monkeypatch.setattr(plan, "_LIMITED_CHOICE", 2)
    monkeypatch.setattr(
        image_folders, "list_images", lambda store, name: counted.append(name) or sorted(store.names(name))
    )
    flags = ("--limit", "2", "--imagenet_images_root", images, "--n_levels", "2", "--dry_run")
    chosen = sorted([INNER, *LEAVES])[::3]
    assert toy.run(*flags, keys=KEYS[:2] + KEYS[6:], size=None) == 0
    assert sorted(counted) == chosen
    counted.clear()
    some = toy.write("some.txt", "\n".join(LEAVES[6:11]))
    assert toy.run(*flags, "--concepts", some, keys=KEYS[:2] + KEYS[6:], size=None) == 0
    assert sorted(counted) == LEAVES[6:11]
    counted.clear()
    toy.run("--image_counts", toy.counts)
    again = ("--rerank", toy.out / constants.LEVELS_FILE)
    assert toy.run(*flags, *again, keys=KEYS[:2] + KEYS[6:], size=None) == 0
    pool = sorted(concept for level in read_levels(again[1]) for concept in level)
    assert sorted(counted) == sorted({*chosen, *pool[::2]})


def test_images_of_in1k_are_drawn_before_those_of_the_levels(toy, monkeypatch):
    """Fig. 9: images of each concept, most first; of IN-1K training and validation images."""
    toy.figures, drawn = True, []
    monkeypatch.setattr(figures, "_save", lambda figure, path: drawn.append(figure))
    in1k = toy.root / "in1k"
    for concept, (n_train, n_val) in zip(SEEN, ((3, 2), (7, 1))):
        for split, n in (("train", n_train), ("val", n_val)):
            (in1k / split / concept).mkdir(parents=True)
            for i in range(n):
                (in1k / split / concept / f"{i}.JPEG").touch()
    flags = ("--image_counts", toy.counts, "--in1k_images_root", in1k)
    assert toy.run(*flags) == 0
    panels = [panel for panel in drawn[-1].axes if panel.get_title()]
    assert [panel.get_title() for panel in panels] == [
        "IN-1K: 13 images",
        *(f"L{k}: 30 images" for k in (1, 2, 3, 4)),
    ]
    assert panels[0].lines[0].get_ydata().tolist() == [8, 5]
    assert panels[1].lines[0].get_ydata().tolist() == [6] * 5, "two test images, and four of the others"
    assert toy.report["inputs"]["in1k_images_root"] == {"path": str(in1k)}
    with pytest.raises(CogError, match="in1k_images_root"):
        toy.run("--image_counts", toy.counts)
    assert toy.run("--image_counts", toy.counts, "--overwrite") == 0
    assert len([panel for panel in drawn[-1].axes if panel.get_title()]) == 4
    shutil.rmtree(in1k / "val")
    with pytest.raises(CogError, match="--in1k_images_root"):
        toy.run(*flags, "--overwrite")


def test_same_seed_same_split_whatever_the_listing_order(toy, monkeypatch):
    root = toy.make_images()
    toy.run("--imagenet_images_root", root)
    before = sha256(toy.out / constants.SPLIT_FILE)
    scandir = os.scandir

    def scandir_in_reverse(path):
        if not str(path).startswith(str(root)):
            return scandir(path)
        with scandir(path) as entries:
            return contextlib.nullcontext(list(entries)[::-1])

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scandir_in_reverse)
        toy.run("--imagenet_images_root", root, "--overwrite", keys=[*KEYS, "LEVELS.N_WORKERS", "1"])
    assert sha256(toy.out / constants.SPLIT_FILE) == before
    toy.run("--imagenet_images_root", root, "--overwrite", "--seed", "23")
    assert sha256(toy.out / constants.SPLIT_FILE) != before


def test_counts_select_and_images_are_split(toy, caplog):
    root = toy.make_images()
    (root / LEAVES[1] / f"{LEAVES[1]}_0.JPEG").unlink()
    shutil.rmtree(root / SEEN[0])
    with caplog.at_level("WARNING", "cog"):
        toy.run("--imagenet_images_root", root, "--image_counts", toy.counts)
    said = f"1 of 20 concepts have another number of images on disk than in the counts: {LEAVES[1]}"
    assert said in caplog.text
    assert len(toy.split()) == 20
    assert not (toy.out / "image_counts.csv").exists()


def test_things_that_are_not_images_do_not_count(toy, caplog):
    root = toy.make_images()
    (root / "lost+found").mkdir()
    (root / "README").touch()
    folder = root / LEAVES[1]
    (folder / "notes.txt").touch()
    (folder / ".hidden.JPEG").touch()
    (folder / "folder.JPEG").mkdir()
    with caplog.at_level("WARNING", "cog"):
        toy.run("--imagenet_images_root", root)
    assert {row["images"] for row in toy.rows("levels.csv")} == {"8"}
    assert "ignored" in caplog.text and "README, lost+found" in caplog.text


def test_class_balanced_variant(toy):
    root = toy.make_images()
    uncapped = [key for key in KEYS if key not in ("LEVELS.MAX_TRAIN", "4")]
    toy.run("--imagenet_images_root", root, keys=uncapped)
    full = toy.split()
    toy.run("--imagenet_images_root", root, "--max_train", "3", "--overwrite", keys=uncapped)
    capped = toy.split()
    for concept, parts in capped.items():
        assert len(parts["train"]) == 3 and len(full[concept]["train"]) == 6
        assert np.array_equal(parts["test"], full[concept]["test"])
    with pytest.raises(CogError, match="set the same value"):
        toy.run("--imagenet_images_root", root, "--max_train", "3", "--overwrite")


def test_verify_images(toy, caplog):
    from PIL import Image

    root = toy.make_images()
    for concept in LEAVES:
        for i in range(N_IMAGES):
            Image.new("RGB", (4, 4), (i, 2 * i, 3)).save(root / concept / f"{concept}_{i}.JPEG")
    bad = f"{LEAVES[1]}/{LEAVES[1]}_3.JPEG"
    (root / bad).write_bytes(b"not an image")
    cut = f"{LEAVES[2]}/{LEAVES[2]}_5.JPEG"
    (root / cut).write_bytes((root / cut).read_bytes()[:-20])
    keys = [*KEYS, "LEVELS.MIN_IMAGES", "8"]
    with caplog.at_level("INFO", "cog"):
        toy.run("--imagenet_images_root", root, "--verify_images", keys=keys)
    listed = toy.rows("unreadable_images.csv")
    assert [row["image"] for row in listed] == [bad, cut] and all(row["error"] for row in listed)
    split = toy.split()
    used = {name for parts in split.values() for part in parts.values() for name in part}
    assert bad not in used and cut not in used
    assert "2 concepts have fewer than 8 images to split" in caplog.text
    assert toy.report["split"]["unreadable_images"] == 2


@pytest.mark.parametrize("form", ["tar_per_class", "winter_parts"])
def test_levels_from_archives_are_those_from_folders(toy, form, caplog):
    """Counts, levels, split and images that cannot be decoded."""
    folders = toy.make_images()
    for concept in LEAVES:
        for i in range(N_IMAGES):
            tiny.write_image(folders / concept / f"{concept}_{i}.JPEG", size=(4, 4), seed=i)
    (folders / LEAVES[1] / f"{LEAVES[1]}_3.JPEG").write_bytes(b"not an image")
    (folders / INNER / "notes.txt").touch()
    written = []
    for root in (folders, toy.root / "packed"):
        if root != folders:
            root.mkdir()
            archive_forms.FORMS[form](folders, root)
        toy.run(
            "--imagenet_images_root",
            root,
            "--verify_images",
            "--overwrite",
            keys=[*KEYS, "LEVELS.MIN_IMAGES", "7"],
        )
        names = (constants.LEVELS_FILE, constants.SPLIT_FILE, "image_counts.csv", "unreadable_images.csv")
        written.append([(toy.out / name).read_bytes() for name in names])
    assert written[0] == written[1] and LEAVES[1].encode() in written[0][-1]
    assert "are no noun ids" not in caplog.text
    (root / "notes.txt").touch()
    assert image_folders.count_images(open_store(root), n_workers=1)[1] == ["notes.txt"]


def test_dry_run_writes_nothing(toy, capsys):
    assert toy.run("--image_counts", toy.counts, "--dry_run") == 0
    assert toy.run("--imagenet_images_root", toy.make_images(), "--dry_run", out=False) == 0
    assert not toy.out.exists()
    assert "dry run" in capsys.readouterr().out


def state(folder):
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


def test_repeated_command_is_complete(toy, caplog):
    """The same settings and inputs, wherever their files lie by now; neither is the number of threads a difference."""
    toy.run("--imagenet_images_root", toy.make_images())
    before = state(toy.out)
    toy.seen = toy.seen.rename(toy.root / "elsewhere.txt")
    caplog.set_level("INFO", logger="cog")
    assert toy.run("--imagenet_images_root", toy.images, keys=[*KEYS, "LEVELS.N_WORKERS", "1"]) == 0
    assert f"{toy.out} is complete, skipped" in caplog.text
    assert state(toy.out) == before
    assert toy.run("--imagenet_images_root", toy.images, "--check") == 0


@pytest.mark.parametrize("change", ["seed", "key", "seen", "image", "root", "output", "report"])
def test_another_command_is_no_repetition(toy, change):
    toy.run("--imagenet_images_root", toy.make_images())
    flags, keys, root, said = [], KEYS, toy.images, change
    if change == "seed":
        flags = ["--seed", "23"]
    elif change == "key":
        keys, said = [*KEYS, "LEVELS.N_TEST", "3"], "LEVELS.N_TEST: 2 -> 3"
    elif change == "seen":
        toy.seen.write_text(SEEN[0])
    elif change == "image":
        (toy.images / LEAVES[0] / f"{LEAVES[0]}_99.JPEG").touch()
    elif change == "root":
        root = toy.root / "moved"
        shutil.copytree(toy.images, root)
    elif change == "output":
        (toy.out / constants.LEVELS_FILE).write_bytes(b"")
        said = f"{constants.LEVELS_FILE} is missing or was changed"
    else:
        (toy.out / "report.json").write_text("[1]")
    before = state(toy.out)
    with pytest.raises(CogError, match=rf"already holds .*{said}.*add --overwrite$"):
        toy.run("--imagenet_images_root", root, *flags, keys=keys)
    assert toy.run("--imagenet_images_root", root, *flags, "--check", keys=keys) == 2
    assert state(toy.out) == before


def test_one_process_at_a_time(toy, monkeypatch):
    """A second start is refused at once; one that came between look and lock leaves its levels in place."""
    with locked(toy.out, flag="x"), pytest.raises(LockedError, match="is being written by"):
        toy.run("--image_counts", toy.counts)
    assert not toy.out.exists()
    claim, seen = plan.LevelsFolder.claim, []

    def late(folder):
        monkeypatch.setattr(plan.LevelsFolder, "claim", claim)
        toy.run("--image_counts", toy.counts)
        seen.append(state(toy.out))
        return claim(folder)

    monkeypatch.setattr(plan.LevelsFolder, "claim", late)
    assert toy.run("--image_counts", toy.counts) == 0
    assert seen == [state(toy.out)]


def test_who_comes_late_writes_nothing(toy, monkeypatch):
    with monkeypatch.context() as patch:
        before = taken_over_at(patch, "cog.levels.outputs.write_levels_csv", toy.out)
        with pytest.raises(LockedError, match="taken over by .* on elsewhere"):
            toy.run("--image_counts", toy.counts)
    assert tiny.snapshot(toy.out) == before[0]


def test_overwrite_replaces_the_levels_alone(toy):
    toy.run("--image_counts", toy.counts)
    (toy.out / "mine.txt").touch()
    toy.run("--image_counts", toy.counts, "--overwrite", size=3)
    assert (toy.out / "mine.txt").exists()
    assert len(toy.levels()[0]) == 3


def test_files_without_a_report_are_kept_whatever_a_dead_process_left(toy):
    toy.out.mkdir()
    (toy.out / "levels.csv").write_text("of the user")
    (toy.out / ".partial-abc").mkdir()
    with pytest.raises(CogError, match=r"already holds levels\.csv; choose another folder"):
        toy.run("--image_counts", toy.counts)
    assert os.listdir(toy.out) == ["levels.csv"]


@pytest.mark.parametrize("measure", [m for m in SIMILARITIES if m not in ("embedding", "random")])
def test_every_measure_builds(toy, measure):
    toy.run("--image_counts", toy.counts, "--similarity", measure)
    values = [float(row["similarity"]) for row in toy.rows("levels.csv")]
    assert values == sorted(values, reverse=True)


@pytest.mark.slow
def test_random_control(toy):
    flags = ("--image_counts", toy.counts, "--similarity", "random", "--overwrite", "--seed")
    toy.figures = True
    toy.run(*flags, "1")
    first = toy.levels()
    assert not (toy.out / "similarity.png").exists()
    assert {row["similarity"] for row in toy.rows("levels.csv")} == {""}
    toy.run(*flags, "1")
    assert toy.levels() == first
    toy.run(*flags, "2")
    assert toy.levels() != first


def test_embedding(toy, capsys):
    rows = {"word": [1, 0], "gloss": [0, 0.1], **{str(n): [n % 10, n // 10] for n in range(100)}}
    vectors = toy.write("vectors.txt", "".join(f"{w} {x} {y}\n" for w, (x, y) in rows.items()))
    toy.run("--image_counts", toy.counts, "--similarity", "embedding", "--embeddings", vectors)
    facts = toy.report["similarity"]["embeddings"]
    assert facts["concepts"] == 24 and facts["dimensions"] == 2
    assert facts["distinct_words_without_vector"] == 26  # "of", "group", and w11, w12, ... of each concept
    assert toy.report["inputs"]["embeddings"]["path"] == str(vectors)
    assert "have none" in capsys.readouterr().out


@pytest.mark.slow
def test_rerank_keeps_the_concepts(toy):
    given = toy.root / "given.pkl"
    pool = [wnid(n) for n in (*range(11, 16), *range(40, 45))]
    write_levels(given, [pool[5:], pool[:5]])
    toy.figures = True
    toy.run("--rerank", given, "--similarity", "path", size=None)  # no counts needed
    levels = toy.levels()
    assert [set(level) for level in levels] == [set(pool[:5]), set(pool[5:])]
    assert not (toy.out / "concepts.csv").exists() and not (toy.out / "images.png").exists()
    # Lin needs the concepts, which span the taxonomy.
    toy.run("--rerank", given, "--image_counts", toy.counts, "--overwrite", size=2, n=3)
    assert [len(level) for level in toy.levels()] == [2, 2, 2]
    with pytest.raises(CogError, match="lin needs all concepts"):
        toy.run("--rerank", given, "--overwrite", size=None)
    write_levels(given, [pool[:3], pool[3:]])
    with pytest.raises(CogError, match="3 to 7 concepts; give --level_size"):
        toy.run("--rerank", given, "--overwrite", size=None)


def test_seen_concepts_outside_the_concepts(toy, caplog):
    some = toy.write("some.csv", "".join(f"{w},8\n" for w in LEAVES if w != SEEN[0]))
    with caplog.at_level("INFO", "cog"):
        toy.run("--image_counts", some)
    assert toy.report["seen"] == {"concepts": 1, "left_out_because_not_among_the_concepts": [SEEN[0]]}
    assert SEEN[0] in caplog.text
    none = toy.write("none.csv", "".join(f"{w},8\n" for w in LEAVES if w not in SEEN))
    toy.run("--image_counts", none, "--overwrite")
    assert toy.report["seen"]["concepts"] == 2


def test_concepts_file(toy):
    listed = toy.write("concepts.txt", "# mine\n" + "".join(f"{w}, more\n" for w in [*LEAVES, LEAVES[0]]))
    toy.run("--image_counts", toy.counts, "--concepts", listed)
    assert INNER not in {row["wnid"] for row in toy.rows("concepts.csv")}
    root = toy.make_images()
    shutil.rmtree(root / wnid(45))
    toy.run("--imagenet_images_root", root, "--concepts", listed, "--overwrite")
    lost = next(row for row in toy.rows("concepts.csv") if row["wnid"] == wnid(45))
    assert (lost["status"], lost["reason"]) == ("few_images", "0 images")


def test_input_order_does_not_matter(toy):
    toy.run("--image_counts", toy.counts)
    levels = (toy.out / constants.LEVELS_FILE).read_bytes()
    header, *rows = toy.counts.read_text().splitlines()
    toy.write("counts.csv", "\n".join([header, *rows[::-1]]) + "\n")
    toy.write("seen.txt", "\n".join([*SEEN[::-1], *SEEN]))
    toy.run("--image_counts", toy.counts, "--overwrite")
    assert (toy.out / constants.LEVELS_FILE).read_bytes() == levels


def test_protocol_v1_and_discarded(toy):
    toy.run("--image_counts", toy.counts, "--protocol", "v1")
    steps = [(step["key"], step["n_removed"]) for step in toy.report["selection"]["steps"]]
    assert steps == [
        ("seen", 2),
        ("seen_ancestor", 1),
        ("few_images", 0),
        ("excluded_subtree", 3),
        ("ancestor", 0),
    ]
    assert toy.report["options"]["ties"] == "wnid"
    discarded = toy.write("discarded.txt", f"{wnid(11)}\nn99999999\n")
    toy.run("--image_counts", toy.counts, "--discarded_wnids", discarded, "--overwrite")
    assert next(r for r in toy.rows("concepts.csv") if r["wnid"] == wnid(11))["status"] == "discarded"


def test_ancestors_of_concepts_with_few_images():
    """Protocol v2 removes the ancestors of all concepts, v1 only those of the concepts that are left."""
    counts, options = (
        {wnid(4): N_IMAGES, wnid(30): 1},
        {"min_images": 6, "excluded_roots": (), "discarded": ()},
    )
    for protocol, expected in (("v2", []), ("v1", [wnid(4)])):
        selection = select(toy_graph(), counts=counts, seen=SEEN, protocol=protocol, **options)
        assert selection.eligible == expected


# ---- bad input: one line, exit code 2, nothing written


def csv_of(text):
    """Return flags: a CSV of counts with ``text`` after the good rows."""
    return lambda toy: ["--image_counts", toy.write("x.csv", toy.counts.read_text() + text)]


def only(flag, text):
    """Return flags: one file of just ``text``."""
    return lambda toy: [flag, toy.write("x.txt", text)]


def plus(*flags, **file):
    """Return flags: good counts, ``flags``, and ``--<name>`` with a file of the text given."""
    return lambda toy: [
        "--image_counts", toy.counts, *flags,
        *(item for name, text in file.items() for item in (f"--{name}", toy.write("x.txt", text))),
    ]  # fmt: skip


#: Name -> (flags of the toy folder, what the message says).
BAD = {
    "unknown id": (csv_of("n00000099,9\n"), "'n00000099' is not a noun synset"),
    "verb": (csv_of("v00000099,9\n"), "'v00000099' is not a noun id"),
    "second row": (csv_of(f"{LEAVES[3]},9\n"), f"{LEAVES[3]} has a second row"),
    "negative": (csv_of("n00000005,-1\n"), "is '-1', expected a whole number"),
    "no count": (csv_of("n00000005,\n"), "is '', expected"),
    "one column": (csv_of("n00000005\n"), "is '', expected"),
    "a fraction": (csv_of("n00000005,1.5\n"), "is '1.5', expected"),
    "empty csv": (only("--image_counts", ""), "has no rows"),
    "only a header": (only("--image_counts", "wnid,count\n"), "has no rows"),
    "no csv": (lambda toy: ["--image_counts", toy.root / "none.csv"], "does not exist"),
    "too few": (plus("--level_size", "6"), "22 eligible concepts are too few for 4 levels of 6"),
    "seen empty": (plus(seen_wnids="\n# nothing\n"), "lists no ids"),
    "seen unknown": (plus(seen_wnids="n77777777\n"), "n77777777"),
    "seen malformed": (plus(seen_wnids="dog\n"), "line 1: 'dog' does not start"),
    "concepts unknown": (plus(concepts="n77777777\n"), "n77777777"),
    "concepts empty": (plus(concepts=""), "lists no ids"),
    "concepts uncounted": (plus(concepts=ROOT), "has no row for 1 of the 1"),
    "root unknown": (plus("LEVELS.EXCLUDED_ROOTS", "['n00000077']"), "LEVELS.EXCLUDED_ROOTS: 'n00000077'"),
    "no input": (lambda toy: [], "nothing to build from"),
    "no folder": (lambda toy: ["--imagenet_images_root", toy.root / "none"], "does not exist"),
    "no synsets": (lambda toy: ["--imagenet_images_root", toy.root], "no folder named by a noun id"),
    "verify without images": (plus("--verify_images"), "--verify_images needs the images"),
    "embedding without file": (plus("--similarity", "embedding"), "give --embeddings FILE"),
    "file without embedding": (plus(embeddings="a 1\n"), "--embeddings has no effect"),
    "not vectors": (plus("--similarity", "embedding", embeddings="a b"), "word vectors"),
    "rerank garbage": (only("--rerank", "no pickle"), "x.txt"),
    "key unknown": (plus("LEVELS.MIN_IMAGE", "3"), "did you mean LEVELS.MIN_IMAGES"),
    "key out of range": (plus("LEVELS.N_TEST", "9"), "more than LEVELS.N_TEST"),
    "output is a file": (lambda toy: plus("--output_dir", toy.counts)(toy), "is not a folder"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(toy, case):
    make, says = BAD[case]
    flags = make(toy)
    before = sorted(os.listdir(toy.root))
    with pytest.raises(CogError) as caught:
        argv = [
            "--seen_wnids", str(toy.seen), "--output_dir", str(toy.out), "--n_levels", "4", "--level_size",
            "5",
        ]  # fmt: skip
        build_levels.main([*argv, *KEYS, *map(str, flags)])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2
    assert sorted(os.listdir(toy.root)) == before


def test_a_folder_that_cannot_be_listed(toy, monkeypatch):
    root = toy.make_images()
    listed = os.scandir

    def refuse(path):
        if str(path).endswith(LEAVES[4]):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(CogError, match=f"cannot list the images in .*{LEAVES[4]}: Permission denied"):
        toy.run("--imagenet_images_root", root)
    assert not toy.out.exists()


def test_too_few_images_on_disk_for_the_split(toy):
    root = toy.make_images()
    for i in range(6):
        (root / LEAVES[1] / f"{LEAVES[1]}_{i}.JPEG").unlink()
    with pytest.raises(CogError, match=f"concept {LEAVES[1]} has 2 images, expected at least 3"):
        toy.run("--imagenet_images_root", root, "--image_counts", toy.counts)
    assert not toy.out.exists()


def test_exit_code_and_single_line(tmp_path, repository):
    command = [
        sys.executable, "build_levels.py", "--wordnet_dir", str(tmp_path), "--image_counts", "setup.py",
        "--dry_run",
    ]  # fmt: skip
    found = subprocess.run(command, check=False, capture_output=True, text=True, cwd=repository)
    assert found.returncode == 2
    assert found.stdout == ""
    assert found.stderr.count("\n") == 1 and "holds no data.noun" in found.stderr


# ---- comparison


def test_compare(toy, capsys):
    a, b = toy.root / "a.pkl", toy.root / "b.pkl"
    write_levels(a, [[wnid(11), wnid(12)], [wnid(13), wnid(14)]])
    write_levels(b, [[wnid(12), wnid(13)], [wnid(11), wnid(14)], [wnid(15)]])
    assert build_levels.main(["--compare", str(a), str(b)]) == 0
    text = capsys.readouterr().out
    assert "2 of 5 concepts are in the same level of both" in text
    assert [line.split()[1:4] for line in text.splitlines() if line.startswith("L") and "%" in line] == [
        ["2", "2", "1"],
        ["2", "2", "1"],
        ["0", "1", "0"],
    ]
    assert any(line.split()[:3] == [wnid(15), "-", "L3"] for line in text.splitlines())
    assert "word 13" in text
    build_levels.main(["--compare", str(a), str(b), "--output_dir", str(toy.out)])
    assert [(r["wnid"], r["a"], r["b"]) for r in toy.rows("comparison.csv")] == [
        (wnid(11), "L1", "L2"),
        (wnid(13), "L2", "L1"),
        (wnid(15), "-", "L3"),
    ]
    reversed_a = [level[::-1] for level in read_levels(a)]
    for other, order in ((read_levels(a), "in the same order"), (reversed_a, "in another order")):
        write_levels(toy.root / "c.pkl", other)
        build_levels.main(["--compare", str(a), str(toy.root / "c.pkl")])
        assert f"4 of 4 concepts are in the same level of both, {order}" in capsys.readouterr().out
    before = tiny.snapshot(toy.out)
    assert build_levels.main(["--compare", str(a), str(b), "--output_dir", str(toy.out)]) == 0
    assert "comparison.csv is complete, skipped" in capsys.readouterr().out
    assert tiny.snapshot(toy.out) == before
    with pytest.raises(CogError, match="holds another comparison; remove it or add --overwrite"):
        build_levels.main(["--compare", str(b), str(a), "--output_dir", str(toy.out)])
    assert tiny.snapshot(toy.out) == before


def test_overlap_by_brute_force(toy, capsys):
    """Of several files, by level; a random draw of one level against each."""
    concepts = [wnid(n) for n in range(100, 130)]
    rng = np.random.default_rng(0)
    reference = [concepts[:10], concepts[10:20]]
    files, drawn = [], {}
    for name, n_levels in (("wup", 2), ("random_1", 1), ("random_2", 1), ("long", 3)):
        order = rng.permutation(concepts).tolist()
        drawn[name] = [order[10 * k : 10 * k + 10] for k in range(n_levels)]
        (toy.root / name).mkdir()
        write_levels(toy.root / name / constants.LEVELS_FILE, drawn[name])
        files.append(str(toy.root / name))
    write_levels(toy.root / "reference.pkl", reference)
    argv = ["--overlap", str(toy.root / "reference.pkl"), *files]
    assert build_levels.main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"concepts in the same level as in {argv[1]}" and lines[2].split() == [
        "concepts",
        "10",
        "10",
    ]
    rows = {line[:16].strip(): line.split()[-2:] for line in lines[3:]}
    expected = {
        name: [sum(w in levels[min(k, len(levels) - 1)] for w in level) for k, level in enumerate(reference)]
        for name, levels in drawn.items()
    }
    for name, numbers in expected.items():
        assert rows[name] == [str(n) for n in numbers]
    both = list(zip(expected["random_1"], expected["random_2"], strict=True))
    assert rows["random_* mean"] == [f"{sum(pair) / 2:.1f}" for pair in both]
    assert rows["random_* range"] == [f"{min(pair)}-{max(pair)}" for pair in both]
    assert build_levels.main([*argv, "--check"]) == 0
    for bad, words in ((argv[:2], "at least one other"), ([*argv, argv[2]], "twice")):
        with pytest.raises(CogError, match=words):
            build_levels.main(bad)


# ---- the real thing


def test_shipped_lists(shared_dir):
    in1k, discarded = read_wnids(IN1K_LIST), read_wnids(DISCARDED_LIST)
    assert len(in1k) == 1000 and len(discarded) == 70
    assert in1k == (shared_dir / "imagenet21k" / "in1k_wnids.txt").read_text().split()
    assert sorted(discarded) == sorted((shared_dir / "paper" / "discarded_synsets.txt").read_text().split())


@pytest.fixture(scope="module")
def real_counts(shared_dir, wordnet):
    return shared_dir / "imagenet21k" / "fall11_image_counts.csv"


@pytest.fixture(scope="module")
def published(real_counts, tmp_path_factory):
    """The folder that the first command of the documentation writes."""
    out = tmp_path_factory.mktemp("levels") / "v2"
    assert build_levels.main(["--image_counts", str(real_counts), "--output_dir", str(out)]) == 0
    return out


@pytest.mark.slow
def test_published_selection_and_sizes(published):
    report = json.loads((published / "report.json").read_text())
    assert report["selection"]["concepts"] == 21_841
    assert [(step["key"], step["n_left"]) for step in report["selection"]["steps"]] == [
        ("seen", 20_842),
        ("few_images", 7_999),
        ("excluded_subtree", 7_391),
        ("ancestor", 5_216),
        ("discarded", 5_146),
    ]
    assert report["similarity"]["taxonomy_synsets"] == 23_546
    assert report["similarity"]["distinct_values"] == 335
    assert report["seen"] == {"concepts": 999, "left_out_because_not_among_the_concepts": ["n04399382"]}
    assert [level["first_rank"] for level in report["levels"]] == [0, 1036, 2072, 3108, 4146]
    millions = [round(level["training_images"] / 1e6, 3) for level in report["levels"]]
    assert millions == [1.119, 1.116, 1.095, 1.107, 1.092]
    assert report["concepts_in_gaps"] == 146
    assert [level["distinct_similarities"] for level in report["levels"]] == [84, 94, 93, 47, 16]
    assert [level["largest_tie"]["concepts"] for level in report["levels"]] == [69, 60, 53, 127, 686]
    assert [bool(level["warning"]) for level in report["levels"]] == [False] * 4 + [True]


DIGESTS = ["f5456283223c84d4", "17678e28d53d7835", "12475eaf7d5ce327", "785513da66e0851f", "3d24c53be2c10257"]


@pytest.mark.slow
def test_published_levels_never_change(published):
    """Digest of the sorted ids of each level, so that it does not depend on the order within a level."""
    levels = read_levels(published / constants.LEVELS_FILE)
    assert [len(level) for level in levels] == [1000] * 5
    assert [hashlib.sha256(" ".join(sorted(level)).encode()).hexdigest()[:16] for level in levels] == DIGESTS
    with (published / constants.LEVELS_FILE).open("rb") as handle:
        plain = pickle.load(handle)
    assert type(plain) is list and all(type(level) is list and type(level[0]) is str for level in plain)


@pytest.mark.slow
def test_published_levels_depend_on_the_order_of_ties(published, real_counts, tmp_path, capsys):
    build_levels.main(
        ["--image_counts", str(real_counts), "--output_dir", str(tmp_path / "o"), "--ties", "wnid"]
    )
    capsys.readouterr()
    build_levels.main(
        ["--compare", str(published / constants.LEVELS_FILE), str(tmp_path / "o" / constants.LEVELS_FILE)]
    )
    assert "in the same level of both" in capsys.readouterr().out
    ours, clean = (read_levels(folder / constants.LEVELS_FILE) for folder in (published, tmp_path / "o"))
    assert [len(set(a) - set(b)) for a, b in zip(ours, clean, strict=True)] == [1, 6, 13, 12, 0]


@pytest.mark.slow
def test_protocol_v1_numbers(real_counts, tmp_path):
    out = tmp_path / "v1"
    build_levels.main(["--image_counts", str(real_counts), "--output_dir", str(out), "--protocol", "v1"])
    steps = json.loads((out / "report.json").read_text())["selection"]["steps"]
    assert [(step["key"], step["n_removed"], step["n_left"]) for step in steps] == [
        ("seen", 999, 20_842),
        ("seen_ancestor", 761, 20_081),
        ("few_images", 12_638, 7_443),
        ("excluded_subtree", 603, 6_840),
        ("ancestor", 1_086, 5_754),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        ("wup", [599, 313, 290, 277, 750]),
        ("jcn", [961, 854, 843, 889, 965]),
        ("lin_max_ic", [999, 991, 988, 989, 1000]),
    ],
)
def test_overlap_of_other_measures_with_the_published_levels(
    published, real_counts, tmp_path, capsys, measure, expected
):
    out = tmp_path / measure
    build_levels.main(["--image_counts", str(real_counts), "--similarity", measure, "--output_dir", str(out)])
    capsys.readouterr()
    build_levels.main(["--overlap", str(published), str(out)])
    assert capsys.readouterr().out.splitlines()[-1].replace(",", "").split() == [measure, *map(str, expected)]


@pytest.mark.slow
def test_miniature_is_rebuilt_and_consumed(shared_dir, real_counts, tmp_path):
    """Acceptance: levels and split from a folder of images, read by feature extraction."""
    from cog.data.image_lists import cog_level

    root = shared_dir / "miniature" / "in21k"
    out = tmp_path / "levels"
    seen = tmp_path / "seen.txt"
    seen.write_text("\n".join(sorted(os.listdir(shared_dir / "miniature" / "in1k" / "val"))))
    keys = ["LEVELS.MIN_IMAGES", "40", "LEVELS.N_TEST", "16", "LEVELS.MAX_TRAIN", "24"]
    build_levels.main([
        "--imagenet_images_root", str(root), "--seen_wnids", str(seen), "--output_dir", str(out),
        "--n_levels", "5", "--level_size", "17", *keys,
    ])  # fmt: skip
    levels = read_levels(out / constants.LEVELS_FILE)
    assert sorted(w for level in levels for w in level) == sorted(os.listdir(root))
    for number, level in enumerate(levels, start=1):
        for part, n in (("train", 24), ("test", 16)):
            images = cog_level(
                f"cog_l{number}", part, images_root=root, levels_file=out / constants.LEVELS_FILE,
                split_file=out / constants.SPLIT_FILE,
            )  # fmt: skip
            assert images.counts().tolist() == [n] * 17 and images.classes == tuple(sorted(level))
            assert all((root / images.file(row)).is_file() for row in range(0, len(images), 40))
