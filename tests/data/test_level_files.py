"""The split file, and drawing training and test images."""

import pickle

import numpy as np
import pytest

from cog.data import level_files
from cog.errors import CogError

A, B = "n00000001", "n00000002"


def read_back(tmp_path, data, **options):
    """Return what is read from a split file with these contents."""
    path = tmp_path / "split.pkl"
    path.write_bytes(pickle.dumps(data, protocol=4))
    return level_files.read_split(path, **options)


def names(wnid, *numbers):
    return [f"{wnid}/{wnid}_{number}.JPEG" for number in numbers]


def test_round_trip_and_the_contract(tmp_path):
    path = tmp_path / "split.pkl"
    level_files.write_split(path, {A: {"train": names(A, 1, 2), "test": np.array(names(A, 3))}})
    plain = pickle.loads(path.read_bytes())
    assert type(plain) is dict and sorted(plain[A]) == ["test", "train"]
    assert all(type(part) is np.ndarray and part.dtype.kind == "U" for part in plain[A].values())
    read = level_files.read_split(path)
    assert read[A]["train"].tolist() == names(A, 1, 2) and read[A]["test"].tolist() == names(A, 3)
    with pytest.raises(CogError, match="inside the root"):
        level_files.write_split(tmp_path / "no.pkl", {A: {"train": ["../x"], "test": ["y"]}})
    assert not (tmp_path / "no.pkl").exists()


def test_only_the_asked_concepts_are_looked_at(tmp_path):
    data = {A: {"train": names(A, 1), "test": names(A, 2)}, B: "rubbish"}
    assert list(read_back(tmp_path, data, concepts=[A, A])) == [A]
    with pytest.raises(CogError, match=f"concept {B} has no 'train' and 'test'"):
        read_back(tmp_path, data)
    with pytest.raises(CogError, match="no images for 1 of 2 concepts .n00000009"):
        read_back(tmp_path, data, concepts=[A, "n00000009"])


def train(chosen):
    return {A: {"train": chosen, "test": names(A, 2)}}


def test_leading_separators_are_dropped_and_odd_names_kept(tmp_path):
    odd = ["n1/a..b.JPEG", "n1/.hidden", "n1/x...JPEG", "n1/a:b", f"{A}/\udcff.JPEG"]  # the last is not UTF-8
    leads = ("/", "\\", "//", "\\/")
    listed = [lead + name for lead, name in zip(leads, names(A, *range(4, 8)), strict=True)]
    for kind in (list, np.array):
        read = read_back(tmp_path, train(kind([*odd, *listed])))[A]["train"].tolist()
        assert read == [*odd, *names(A, *range(4, 8))]


OUTSIDE = ["../x.JPEG", "n1/../../x", "/../x", "..", r"a\..\x", r"C:\x", "c:/x", "/", "x/..", r"\\..\x", ""]


@pytest.mark.parametrize("name", [*OUTSIDE, "\ud800.JPEG", "a\udfff.JPEG"])
@pytest.mark.parametrize("kind", [list, np.array, lambda names: np.array(names, dtype=object)])
def test_names_outside_the_root_are_refused(tmp_path, name, kind):
    with pytest.raises(CogError, match="inside the root of the images"):
        read_back(tmp_path, train(kind([*names(A, 1), name])))


RING: dict = train([])
RING[A]["train"].append(RING)
KNOT = np.empty(2, dtype=object)
KNOT[:] = [KNOT, "a.JPEG"]
LIST = "expected a list or an array of file names"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (RING, LIST),
        ([], "holds no dict"),
        ({}, "holds no dict"),
        ({A: {"train": names(A, 1)}}, "no 'train' and 'test'"),
        *((train(part), LIST) for part in ([], np.arange(3), "x.JPEG", [1], np.array([names(A, 1)]))),
        (train(names(A, 1, 1)), "the same image twice"),
        (train([f"/{A}/{A}_2.JPEG"]), "the same image twice"),
        ({A: print}, "refused"),
        (train(KNOT), "refused"),
    ],
)
def test_other_contents_are_refused(tmp_path, data, says):
    with pytest.raises(CogError, match=says):
        read_back(tmp_path, data)


# ---- drawing


def draw(files, **changes):
    return level_files.draw(files, **{"wnid": A, "n_test": 3, "max_train": 5, "seed": 22, **changes})


def test_draw_never_changes():
    """It is part of the benchmark: the same on every machine, in whatever order files are listed."""
    files = names(A, *range(12))
    for listed in (files, files[::-1], np.random.default_rng(1).permutation(np.array(files))):
        parts = draw(listed)
        assert parts["train"].tolist() == names(A, 0, 10, 2, 6, 7)
        assert parts["test"].tolist() == names(A, 1, 4, 5)
    files = names(A, *range(40))
    large, small = draw(files, max_train=30), draw(files, max_train=10)
    assert np.array_equal(large["test"], small["test"])
    assert set(small["train"]) < set(large["train"])
    for n in (0, 2, 3):
        with pytest.raises(CogError, match=f"has {n} images, expected at least 4"):
            draw(names(A, *range(n)))
