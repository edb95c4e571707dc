"""Everything that tables, figures, files and pages say of recorded results is what was recorded."""

from __future__ import annotations

import difflib

import pytest
from golden import shown

RECORDED = shown.recorded()

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return shown.collect(tmp_path_factory.mktemp("shown"))


def test_all_commands_are_recorded(found):
    assert found.keys() == RECORDED.keys()


@pytest.mark.parametrize("name", RECORDED)
def test_nothing_else_is_shown(found, name):
    assert found[name].keys() == RECORDED[name].keys()
    for part, text in RECORDED[name].items():
        if found[name][part] != text:
            lines = difflib.unified_diff(
                text.splitlines(), found[name][part].splitlines(), "recorded", "found", n=1
            )
            pytest.fail(f"{part}\n" + "\n".join([*lines][:60]))
