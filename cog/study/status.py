"""The progress of a study: a table of models by data sets with percentages, running and failed outputs with reasons."""

from __future__ import annotations

import collections
from collections.abc import Collection, Mapping

from tabulate import tabulate

from cog.errors import printable
from cog.runtime.output import DONE, FAILED, INTERRUPTED, RUNNING, State
from cog.study.units import DELETED, STATES, Study, Unit

_LETTERS = {DELETED: "d", RUNNING: "r", FAILED: "f", INTERRUPTED: "i"}

#: Largest number of reasons that are listed one by one.
_LISTED = 20


def records(study: Study, states: Mapping[Unit, State]) -> list[dict[str, object]]:
    """Return one record per output."""
    return [
        {
            "kind": "features" if unit.split else "run",
            "model": unit.model,
            "dataset": unit.dataset,
            "split": unit.split or None,
            "n_shot": None if unit.split else unit.n_shot,
            "seed": None if unit.split else unit.seed,
            "state": state.word,
            "detail": state.detail,
            "folder": str(study.folder(unit)),
        }
        for unit, state in states.items()
    ]


def draw(study: Study, states: Mapping[Unit, State]) -> str:
    """Return the table, the totals, and lists of running and failed outputs."""
    counts: dict[tuple[str, str, bool], collections.Counter[str]] = collections.defaultdict(
        collections.Counter
    )
    for unit, state in states.items():
        for key in ((unit.model, unit.dataset), (unit.model, "all"), ("all", unit.dataset), ("all", "all")):
            counts[*key, bool(unit.split)][state.word] += 1
    columns = [*study.datasets, *["all"] * (len(study.datasets) > 1)]
    rows = [
        [
            model,
            *(
                ", ".join(_entry(counts[model, dataset, kind]) for kind in (True, False))
                for dataset in columns
            ),
        ]
        for model in (*study.models, *["all"] * (len(study.models) > 1))
    ]
    letters = ", ".join(f"{letter} {word}" for word, letter in _LETTERS.items())
    text = f"features and classifier runs, done/wanted; of the others {letters}, the rest missing\n\n"
    text += f"{tabulate(rows, ['', *columns], disable_numparse=True)}\n\n"
    for kind, label in ((True, "features"), (False, "classifier runs")):
        found = counts["all", "all", kind]
        n_done, total = found[DONE] + found[DELETED], found.total()
        parts = ", ".join(f"{found[word]} {word}" for word in STATES if found[word])
        text += f"{label}: {parts} of {total} ({100 * n_done // max(1, total)} %)\n"
    for word in (RUNNING, FAILED):
        text += _reasons(word, [(unit, state.detail) for unit, state in states.items() if state.word == word])
    return text


def _entry(found: Mapping[str, int]) -> str:
    marks = "".join(f" {found[word]}{letter}" for word, letter in _LETTERS.items() if found[word])
    return f"{found[DONE] + found[DELETED]}/{sum(found.values())}{marks}"


def _reasons(word: str, reasons: Collection[tuple[Unit, str]]) -> str:
    """Return a list of outputs by their details: runs of one process, or with the same failure, are one entry."""
    together: dict[str, list[Unit]] = {}
    for unit, detail in reasons:
        together.setdefault(detail, []).append(unit)
    lines = [
        f"  {same[0]}{f' and {len(same) - 1} more' if len(same) > 1 else ''}: {printable(detail)}\n"
        for detail, same in list(together.items())[:_LISTED]
    ]
    more = [f"  ... and {len(together) - _LISTED} more (--format json lists all)\n"] * (
        len(together) > _LISTED
    )
    return "".join([f"\n{word}:\n", *lines, *more]) if together else ""
