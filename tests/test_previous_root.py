"""What an earlier commit has left is read, printed and continued as it would have been by that commit."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json

import pytest
import tiny
from golden import previous_root

from cog.results import exchange
from cog.results.scores import Counts, is_classifier, is_protocol

FOLDER = previous_root.FOLDER

pytestmark = pytest.mark.usefixtures("seen_in1k_alone")

#: Of features and of what is computed from them: last bits depend on the processor and on the version of PyTorch.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The recorded root, for tests that only read it."""
    return previous_root.unpack(tmp_path_factory.mktemp("previous") / "root")


def call(*command):
    """Run a command that succeeds; returns its standard output."""
    code, out, errors = previous_root.call(*command)
    assert code == 0, errors
    return out


@pytest.mark.parametrize("name", previous_root.tables(FOLDER))
def test_tables_are_printed_equally(unpacked, name):
    out = call(*previous_root.tables(unpacked)[name])
    assert previous_root.without(out, unpacked) == (FOLDER / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", previous_root.imported_tables(FOLDER))
def test_exported_results_are_printed_equally(name):
    out = call(*previous_root.imported_tables(FOLDER / "export.json")[name])
    table, _, note = out.partition("\nUnverified: ")
    if name != "imported_csv":  # the note was added since
        assert "the file does not say how many classes and images" in " ".join(note.split())
    assert table == (FOLDER / f"{name}.txt").read_text()


def test_results_are_exported_equally(unpacked, tmp_path):
    call("print_results", "--models_root_dir", unpacked / "models", "--export", tmp_path / "export.json")
    computed, recorded = (exchange.load(folder / "export.json") for folder in (tmp_path, FOLDER))
    of_classifiers = [average for average in computed if is_classifier(average.evaluation)]
    assert all(average.counts != Counts() and average.epochs for average in of_classifiers)  # added since
    without = (dataclasses.replace(a, counts=Counts(), epochs=a.epochs * is_protocol(a)) for a in computed)
    assert sorted(without, key=repr) == sorted(recorded, key=repr)


def test_complete_work_is_skipped(tmp_path):
    root = previous_root.unpack(tmp_path / "root")
    before = tiny.snapshot(root)
    for command in previous_root.complete_commands(root):
        call(*command)
    assert tiny.snapshot(root) == before


@pytest.mark.parametrize("name", previous_root.INTERRUPTED)
def test_interrupted_work_is_continued(tmp_path, name):
    """What is saved was changed after the interruption: beginning anew would give another result."""
    root = previous_root.unpack(tmp_path / "root")
    previous_root.of_now(root)
    work = previous_root.INTERRUPTED[name]
    folder = root / work.output
    finished = json.loads((FOLDER / "finished.json").read_text())
    recorded = finished[name]
    other_optuna = importlib.metadata.version("optuna") != finished["optuna"]
    if other_optuna and name in ("search", "final training"):
        # An Optuna that would have drawn other trials refuses the search in one line: what was saved is kept.
        before = contents(folder)
        code, _, errors = previous_root.call(*work.command(root))
        if code:
            assert code == 2
            assert "Optuna or NumPy draws other numbers here; finish the run where it was begun" in errors
            after = contents(folder)
            lost = {path.name for path in before if not after.get(path, b"").startswith(before[path])}
            assert lost <= {
                "identity.json",
                "provenance.json",
                ".lock",
            }  # they count sessions; the lock is freed
            return
    else:
        call(*work.command(root))
    computed = previous_root.outcome(name, folder)
    if name == "search" and other_optuna:
        # Its next suggestion may be another one.
        computed, recorded = {"trials": computed["trials"][:11]}, {"trials": recorded["trials"][:11]}
    if name == "final training":
        # Its search is kept. The training of the version before was another engine's, and begins again: the first
        # epoch has its own loss, everything else is the same.
        assert computed["logs"]["train/loss"][0] < 10
        recorded["logs"]["train/loss"][0] = computed["logs"]["train/loss"][0]
    assert_close(computed, recorded)
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]


def contents(folder):
    """Return the bytes of all files in a folder, of hidden ones too."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_close(computed, recorded, key=""):
    """Compare nested JSON values; durations of what is computed now are not compared."""
    assert type(computed) is type(recorded), key
    if isinstance(recorded, dict):
        assert computed.keys() == recorded.keys(), key
        for name in recorded:
            if name != "seconds" or recorded[name] >= 100:
                assert_close(computed[name], recorded[name], f"{key} {name}")
    elif isinstance(recorded, list):
        assert len(computed) == len(recorded), key
        for number, (value, other) in enumerate(zip(computed, recorded, strict=True)):
            assert_close(value, other, f"{key} {number}")
    elif isinstance(recorded, float) and ("top1" in key or "top5" in key):
        assert abs(computed - recorded) <= 100 / 12 + 1e-9, key  # an image of the smallest set
    elif isinstance(recorded, float):
        assert computed == pytest.approx(recorded, rel=TOLERANCE * 10, abs=TOLERANCE), key
    else:
        assert computed == recorded, key
