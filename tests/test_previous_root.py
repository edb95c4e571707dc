"""What an earlier commit has left is read and printed as it would have been by that commit."""

from __future__ import annotations

import dataclasses

import pytest
from golden import previous_root

from cog.results import exchange
from cog.results.scores import Counts, is_classifier, is_protocol

FOLDER = previous_root.FOLDER

pytestmark = pytest.mark.usefixtures("seen_in1k_alone")


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
