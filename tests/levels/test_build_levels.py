"""build_levels.py from the command line: on a toy WordNet, on the real one, on bad input."""

import csv
import functools
import itertools
import json
import os
import pickle
import shutil
import statistics

import archive_forms
import numpy as np
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

from cog import constants
from cog.commands import build_levels
from cog.data.level_files import read_levels, read_split, write_levels
from cog.data.wnids import IN1K_LIST
from cog.errors import CogError
from cog.levels import build, similarity, wordnet
from cog.levels.inputs import read_wnids
from cog.levels.selection import DISCARDED_LIST, select
from cog.levels.wordnet import NounGraph


def wnid(number: int) -> str:
    return f"n{number:08d}"


PERSON, INNER = wnid(6), wnid(2)
GROUPS = {2: range(10, 16), 3: range(20, 26), 4: range(30, 36), 5: range(40, 46), 6: range(60, 63)}
LEAVES = [wnid(leaf) for leaves in GROUPS.values() for leaf in leaves]
SEEN = [wnid(10), wnid(20)]
N_IMAGES = 8
COUNTS = "id,number\n" + "".join(f"{w},{N_IMAGES}\n" for w in [INNER, *LEAVES])
KEYS = ["LEVELS.MIN_IMAGES", "6", "LEVELS.N_TEST", "2", "LEVELS.MAX_TRAIN", "4"]
KEYS += ["LEVELS.EXCLUDED_ROOTS", f"['{PERSON}']"]


def toy_graph() -> NounGraph:
    """Groups of leaves below a root; group 4 lies beside group 3: nearer to the seen 20 than group 5 is."""
    of_leaves = {leaf: (group,) for group, leaves in GROUPS.items() for leaf in leaves}
    parent = {1: (), **dict.fromkeys(GROUPS, (1,)), **of_leaves, 7: (1,), 3: (7,), 4: (7,)}
    numbers = sorted(parent)
    return NounGraph(
        wnids=[wnid(number) for number in numbers],
        parents=[tuple(numbers.index(p) for p in parent[number]) for number in numbers],
        names=[f"s{number:02d}.n.01" for number in numbers],
        lemmas=[(f"word_{number}", f"w{number}") for number in numbers],
        glosses=[f"gloss of group {number // 10}" for number in numbers],
    )


class Toy:
    """A folder of inputs and a way to run the command on them."""

    def __init__(self, root):
        self.root, self.images, self.out, self.figures = root, root / "images", root / "out", {}
        self.counts = self.write("counts.csv", COUNTS)
        self.seen = self.write("seen.txt", "\n".join(SEEN))

    def write(self, name: str, text: str):
        (self.root / name).write_text(text)
        return self.root / name

    def run(self, *flags, size=5, n=4):
        argv = [*map(str, flags), *KEYS, "--seen_wnids", str(self.seen), "--output_dir", str(self.out)]
        if size:
            argv += ["--n_levels", str(n), "--level_size", str(size)]
        return build_levels.main(argv)

    def rows(self, name):
        return list(csv.DictReader((self.out / name).read_text().splitlines()))

    def levels(self):
        return read_levels(self.out / constants.LEVELS_FILE)

    def report(self, entry):
        return json.loads((self.out / "report.json").read_text())[entry]


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Inputs in a folder; figures are kept instead of drawn."""
    monkeypatch.setattr(wordnet, "load_wordnet", toy_graph)
    made = Toy(tmp_path)

    def savefig(figure, path, **_):
        made.figures[path.stem] = figure
        path.touch()

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", savefig)
    return made


def test_from_counts(toy, capsys, caplog):
    assert toy.run("--image_counts", toy.counts) == 0
    written = {"concepts.csv", "images.png", "levels.csv", "report.json", "similarity.png"}
    assert set(os.listdir(toy.out)) == {*written, constants.LEVELS_FILE}
    rows = toy.rows("levels.csv")
    assert [row["rank"] for row in rows] == [str(rank) for rank in range(22)]
    for number, level in enumerate(toy.levels(), start=1):
        assert level == [row["wnid"] for row in rows if row["level"] == f"L{number}"] and len(level) == 5
    values = [float(row["similarity"]) for row in rows]
    assert values == sorted(values, reverse=True)
    of_equals = [statistics.mean(rank for rank, v in enumerate(values) if v == value) for value in values]
    assert [float(row["average_rank"]) for row in rows] == of_equals
    # Siblings of the seen concepts come first, then group 4 beside group 3, last group 5.
    assert {row["wnid"] for row in rows[:10]} == {wnid(n) for n in (*range(11, 16), *range(21, 26))}
    # Equals have the order of numpy's introsort of 2020, which is neither stable nor that of the ids.
    assert [row["wnid"] for row in rows[10:16]] == [wnid(n) for n in (35, 34, 33, 30, 31, 32)]
    assert {row["nearest_seen"] for row in rows if row["wnid"] == wnid(30)} == {wnid(20)}
    status = {row["wnid"]: (row["status"], row["reason"]) for row in toy.rows("concepts.csv")}
    assert status[SEEN[0]] == ("seen", "seen concept")
    assert status[wnid(60)] == ("excluded_subtree", "below n00000006 (s06.n.01)")
    assert status[INNER] == ("ancestor", "ancestor of the concept n00000010 (s10.n.01)")
    assert {w for w, why in status.items() if why == ("eligible", "")} == {row["wnid"] for row in rows}
    first = toy.report("levels")[0]
    assert first["tied"] == values[:5].count(first["tied_at"]) and first["values"] == len({*values[:5]})
    assert f"{first['tied']} of the 5 of L1" in caplog.text
    assert (first["training"], first["test"]) == (5 * 4, 5 * 2)
    assert [step["n_left"] for step in toy.report("selection")] == [26, 26, 23, 22, 22]
    assert "equal to the published levels: no" in capsys.readouterr().out


def test_images_are_counted_and_split_and_archives_give_the_same(toy, caplog):
    tiny.write_class_folders(toy.images, classes=[INNER, *LEAVES], n_images=N_IMAGES)
    (toy.images / INNER / "notes.txt").touch()
    packed = toy.root / "packed"
    packed.mkdir()
    archive_forms.tar_per_class(toy.images, packed)
    written = []
    for root in (toy.images, packed):
        toy.run("--imagenet_images_root", root, "--overwrite")
        written.append(tiny.snapshot(toy.out) | {"report.json": ""})
    assert written[0] == written[1] and "are no noun ids" not in caplog.text
    split = read_split(toy.out / constants.SPLIT_FILE)
    assert sorted(split) == sorted(concept for level in toy.levels() for concept in level)
    for concept, parts in split.items():
        assert len(parts["train"]) == 4 and len(parts["test"]) == 2
        for name in (*parts["train"], *parts["test"]):
            assert name.startswith(f"{concept}/") and (toy.images / name).is_file()
    counted = shutil.copy(toy.out / "image_counts.csv", toy.root / "counted.csv")
    toy.run("--image_counts", counted, "--overwrite")
    assert tiny.snapshot(toy.out)["levels.csv"] == written[0]["levels.csv"]
    assert not (toy.out / constants.SPLIT_FILE).exists()  # of the older result
    # Counts select, and images are split.
    (toy.images / LEAVES[1] / f"{LEAVES[1]}_0.JPEG").unlink()
    toy.run("--imagenet_images_root", toy.images, "--image_counts", toy.counts, "--overwrite")
    words = f"1 of 20 concepts have another number of images on disk than in the counts: {LEAVES[1]}"
    assert words in caplog.text and not (toy.out / "image_counts.csv").exists()
    assert len(read_split(toy.out / constants.SPLIT_FILE)) == 20


def test_existing_levels_are_replaced_by_overwrite_alone_and_a_dry_run_writes_nothing(toy):
    toy.run("--image_counts", toy.counts, "--dry_run")
    assert not toy.out.exists()
    toy.run("--image_counts", toy.counts)
    before = tiny.snapshot(toy.out)
    with pytest.raises(CogError, match="holds levels; choose another folder or add --overwrite"):
        toy.run("--image_counts", toy.counts)
    assert tiny.snapshot(toy.out) == before
    toy.run("--image_counts", toy.counts, "--overwrite", size=3)
    assert len(toy.levels()[0]) == 3 and not toy.out.with_name(".out.work").exists()


def test_random_control(toy):
    flags = ("--image_counts", toy.counts, "--similarity", "random", "--overwrite", "EVAL.SEED")
    for seed, numbers in (("2", ()), ("1", (25, 40, 13, 42, 43))):  # the same in every version of numpy
        toy.run(*flags, seed)
        assert (toy.levels()[0] == list(map(wnid, numbers))) == (seed == "1")
    assert not (toy.out / "similarity.png").exists()
    assert {row["similarity"] for row in toy.rows("levels.csv")} == {""}


def test_a_similarity_of_ones_own_is_one_function(toy, monkeypatch):
    def shared(graph, ic, rows, columns):
        """number of common ancestors"""
        above = [set(graph.above(node)) for node in columns.tolist()]
        return np.array([[len({*graph.above(row)} & one) for one in above] for row in rows.tolist()], float)

    write_levels(given := toy.root / "given.pkl", [[wnid(n) for n in range(40, 45)]])
    monkeypatch.setitem(similarity.MEASURES, "shared", shared)
    toy.run("--rerank", given, "--similarity", "shared", size=None)  # it needs no counts
    toy.run("--image_counts", toy.counts, "--similarity", "shared", "--overwrite")
    assert toy.report("similarity")["definition"] == "number of common ancestors"
    assert float(toy.rows("levels.csv")[0]["similarity"]) > float(toy.rows("levels.csv")[-1]["similarity"])


def test_word_vectors(toy):
    rows = {"word": [1, 0], "gloss": [0, 0.1], **{str(n): [n % 10, n // 10] for n in range(100)}}
    vectors = toy.write("vectors.txt", "".join(f"{w} {x} {y}\n" for w, (x, y) in rows.items()))
    toy.run("--image_counts", toy.counts, "--similarity", vectors)
    facts = toy.report("similarity")
    assert (facts["measure"], facts["concepts_without_vector"]) == ("word vectors", 0)
    assert facts["words_without_vector"] == 3 * 24  # "of", "group", and w11, w12, ... of each concept


def test_rerank_keeps_the_concepts(toy):
    given = toy.root / "given.pkl"
    pool = [wnid(n) for n in (*range(11, 16), *range(40, 45))]
    write_levels(given, [pool[5:], pool[:5]])
    toy.run("--rerank", given, "--similarity", "wup", size=None)  # no counts needed
    assert [set(level) for level in toy.levels()] == [set(pool[:5]), set(pool[5:])]
    assert not (toy.out / "concepts.csv").exists() and not (toy.out / "images.png").exists()
    # Lin needs the concepts, which span the taxonomy.
    toy.run("--rerank", given, "--image_counts", toy.counts, "--overwrite", size=2, n=3)
    assert [len(level) for level in toy.levels()] == [2, 2, 2]
    with pytest.raises(CogError, match="lin needs all concepts"):
        toy.run("--rerank", given, "--overwrite", size=None)


def test_protocol_v1_and_discarded(toy):
    toy.run("--image_counts", toy.counts, "--protocol", "v1")
    steps = {step["key"]: step["n_removed"] for step in toy.report("selection")}
    assert steps == {"seen": 2, "seen_ancestor": 1, "few_images": 0, "excluded_subtree": 3, "ancestor": 0}
    assert toy.report("similarity")["ties"] == "by id"
    discarded = toy.write("discarded.txt", f"{wnid(11)}\nn99999999\n")
    toy.run("--image_counts", toy.counts, "--discarded_wnids", discarded, "--overwrite")
    assert next(r for r in toy.rows("concepts.csv") if r["wnid"] == wnid(11))["status"] == "discarded"
    # v2 removes the ancestors of all concepts, v1 only those of the concepts that are left.
    counts, options = {wnid(4): 8, wnid(30): 1}, {"min_images": 6, "excluded_roots": (), "discarded": ()}
    for protocol, eligible in (("v2", []), ("v1", [wnid(4)])):
        assert select(toy_graph(), counts, SEEN, protocol=protocol, **options).eligible == eligible


@pytest.mark.parametrize(
    ("flags", "content", "says"),
    [
        ("--image_counts {x}", f"{COUNTS}n00000099,9\n", "'n00000099' is not a noun synset"),
        ("--image_counts {x}", f"{COUNTS}v00000099,9\n", "found 'v00000099,9', expected a noun id"),
        ("--image_counts {x}", f"{COUNTS}{LEAVES[3]},9\n", f"{LEAVES[3]},9', expected another id"),
        ("--image_counts {x}s", "", "does not exist"),
        ("--image_counts {c} --level_size 6", "", "22 eligible concepts are too few for 4 levels of 6"),
        ("--image_counts {c} --seen_wnids {x}", "\n# nothing\n", "lists no ids"),
        ("--image_counts {c} --seen_wnids {x}", "dog\n", "line 1: 'dog' is no noun id"),
        ("", "", "nothing to build from"),
        ("--imagenet_images_root {root}", "", "no folder named by a noun id"),
        ("--image_counts {c} --similarity path", "", "is none of lin, lin_max_ic, jcn, wup, "),
        ("--image_counts {c} --similarity {x}", "a b", "no text file of word vectors"),
        ("--rerank {x}", "no pickle", "x.txt"),
        ("--image_counts {c} LEVELS.N_TEST 9", "", "more than LEVELS.N_TEST"),
    ],
)
def test_bad_input_ends_in_one_line_and_writes_nothing(toy, flags, content, says):
    given = {"x": toy.write("x.txt", content), "c": toy.counts, "root": toy.root}
    before = sorted(os.listdir(toy.root))
    argv = f"--seen_wnids {toy.seen} --output_dir {toy.out} --n_levels 4 --level_size 5".split()
    with pytest.raises(CogError) as caught:
        build_levels.main([*argv, *KEYS, *flags.format(**given).split()])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2
    assert sorted(os.listdir(toy.root)) == before


@given(st.integers(1, 9), st.integers(1, 40), st.integers(0, 200))
def test_levels_never_overlap_and_use_both_ends(n_levels, size, spare):
    levels = build.cut(n_levels * size + spare, n_levels=n_levels, level_size=size)
    starts = [level.start for level in levels]
    assert starts[0] == 0 and {len(level) for level in levels} == {size}
    if n_levels > 1:
        gaps = [b - a - size for a, b in itertools.pairwise(starts)]
        assert starts[-1] + size == n_levels * size + spare and min(gaps) >= 0
        assert len(set(gaps[:-1])) <= 1 and 0 <= gaps[-1] - gaps[0] < n_levels - 1


def test_levels_are_compared(tmp_path, capsys):
    contents = {"a": [[11, 12], [13, 14]], "b": [[12], [11], [15]], "draw": [[12, 13, 14]]}
    for name, levels in contents.items():
        write_levels(tmp_path / name, [list(map(wnid, level)) for level in levels])
    assert build_levels.main(["--compare", *(str(tmp_path / name) for name in contents)]) == 0
    lines = [line.split()[-2:] for line in capsys.readouterr().out.splitlines()]
    assert lines[1:] == [["2", "2"], ["1", "0"], ["1", "2"]]


def test_figures_of_the_levels_and_of_in1k(toy):
    """Fig. 2; Fig. 9: images of each concept, most first; of IN-1K training and validation images."""
    in1k = toy.root / "in1k"
    for concept, (n_train, n_val) in zip(SEEN, ((3, 2), (7, 1)), strict=True):
        tiny.write_class_folders(in1k / "train", classes=[concept], n_images=n_train)
        tiny.write_class_folders(in1k / "val", classes=[concept], n_images=n_val)
    assert toy.run("--image_counts", toy.counts, "--in1k_images_root", in1k) == 0
    values = [float(row["similarity"]) for row in toy.rows("levels.csv")]
    assert toy.figures["similarity"].axes[0].lines[0].get_ydata().tolist() == values
    panels = {panel.get_title(): panel.dataLim.y1 for panel in toy.figures["images"].axes}
    assert panels == {"IN-1K: 13 images": 8} | {f"L{k}: 30 images": 6 for k in (1, 2, 3, 4)}


def test_shipped_lists(shared_dir):
    in1k, discarded = read_wnids(IN1K_LIST), read_wnids(DISCARDED_LIST)
    assert len(in1k) == 1000 and len(discarded) == 70
    assert in1k == (shared_dir / "imagenet21k" / "in1k_wnids.txt").read_text().split()
    assert sorted(discarded) == sorted((shared_dir / "paper" / "discarded_synsets.txt").read_text().split())


@pytest.fixture(scope="module")
def build_real(shared_dir, wordnet, tmp_path_factory):
    """A function that builds levels from the real counts with flags (no figures then), in a folder."""

    @functools.cache
    def build_with(flags=""):
        out = tmp_path_factory.mktemp("levels") / "out"
        argv = f"--image_counts {shared_dir}/imagenet21k/fall11_image_counts.csv --output_dir {out} {flags}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("cog.levels.wordnet.load_wordnet", lambda: wordnet)
            if flags:
                patch.setattr("matplotlib.figure.Figure.savefig", lambda _, path, **options: path.touch())
            assert build_levels.main(argv.split()) == 0
        return out

    return build_with


@pytest.mark.slow
def test_published_levels_never_change(build_real):
    published = build_real()
    report = json.loads((published / "report.json").read_text())
    assert [step["n_left"] for step in report["selection"]] == [20_842, 7_999, 7_391, 5_216, 5_146]
    assert report["similarity"]["taxonomy_synsets"] == 23_546
    assert report["similarity"]["distinct_values"] == 335
    assert report["seen"] == {"concepts": 999, "left_out_because_not_among_the_concepts": ["n04399382"]}
    millions = [round(level["training"] / 1e6, 3) for level in report["levels"]]
    assert millions == [1.119, 1.116, 1.095, 1.107, 1.092]
    assert [level["tied"] for level in report["levels"]] == [69, 60, 53, 127, 686]
    levels = pickle.loads((published / constants.LEVELS_FILE).read_bytes())
    assert type(levels) is list and [(type(level), len(level)) for level in levels] == [(list, 1000)] * 5
    assert report["equal_to_the_published_levels"] and not build.equals_published(levels[::-1])
    # The whole tables, with the order of ties and all digits of the similarities.
    digests = tiny.snapshot(published)
    assert digests["levels.csv"][:16] == "3f57702ef2bcbab4"
    assert digests["concepts.csv"][:16] == "a17643751f6a267c"


@pytest.mark.slow
def test_protocol_v1_numbers(build_real):
    steps = json.loads((build_real("--protocol v1") / "report.json").read_text())["selection"]
    assert [step["n_left"] for step in steps] == [20_842, 20_081, 7_443, 6_840, 5_754]


@pytest.mark.slow
def test_overlap_of_other_measures_with_the_published_levels(build_real, capsys):
    expected = ["612 311 303 283 746", "961 854 843 889 965", "999 991 988 989 1000"]
    folders = [build_real(), *(build_real(f"--similarity {one}") for one in ("wup", "jcn", "lin_max_ic"))]
    capsys.readouterr()
    build_levels.main(["--compare", *map(str, folders)])
    rows = capsys.readouterr().out.replace(",", "").splitlines()[2:]
    assert [" ".join(row.split()[-5:]) for row in rows] == expected
