"""Everything that tables, figures, files and pages say of recorded results is what was recorded."""

from __future__ import annotations

import difflib

import pytest
from golden import shown

from cog.results import exchange

RECORDED = shown.recorded()

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return shown.collect(tmp_path_factory.mktemp("shown"))


def test_all_commands_are_recorded(found):
    assert found.keys() == RECORDED.keys()


@pytest.mark.parametrize("name", RECORDED)
def test_nothing_else_is_shown(found, name, tmp_path):
    assert found[name].keys() == RECORDED[name].keys()
    for part, text in RECORDED[name].items():
        if shown.is_exported(text):
            recorded, shared = (_averages(tmp_path, content) for content in (text, found[name][part]))
            # Both have the same numbers, or they would not merge; the epochs of variants were added since.
            merged = exchange.merge(("recorded", recorded), ("found", shared))
            assert sorted(merged, key=repr) == sorted(shared, key=repr)
        elif found[name][part] != text:
            lines = difflib.unified_diff(
                text.splitlines(), found[name][part].splitlines(), "recorded", "found", n=1
            )
            pytest.fail(f"{part}\n" + "\n".join([*lines][:60]))


def _averages(folder, content):
    (folder / "exported.json").write_text(content)
    return exchange.load(folder / "exported.json")
