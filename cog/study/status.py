"""The progress of a study, as records and as a table of models by data sets."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence

from cog.errors import printable
from cog.reporting.tables import writers
from cog.study import units
from cog.study.units import ExtractionUnit, Status, Study, TrainingUnit, Unit

#: Keys of the records.
COLUMNS = ("kind", "model", "dataset", "split", "n_shot", "seed", "state", "detail", "folder")

_LETTERS = {
    units.DELETED: "d",
    units.RUNNING: "r",
    units.QUEUED: "q",
    units.FAILED: "f",
    units.INTERRUPTED: "i",
}

#: Descriptions of states whose own names are not clear.
_WORDS = {units.DELETED: "features deleted"}

#: Largest number of failures and running units that are listed one by one in text.
_LISTED = 20


def as_records(study: Study, statuses: Mapping[Unit, Status]) -> list[dict[str, object]]:
    """Return one record per unit."""
    result = []
    for unit, status in statuses.items():
        kind = "features" if isinstance(unit, ExtractionUnit) else "run"
        fields = {name: getattr(unit, name, None) for name in ("model", "dataset", "split", "n_shot", "seed")}
        place = {"folder": str(unit.folder(study.root))}
        result.append({"kind": kind} | fields | {"state": status.state, "detail": status.detail} | place)
    return result


def draw(study: Study, statuses: Mapping[Unit, Status], *, width: int = 0) -> str:
    """Return the table, the totals, and lists of running and failed units.

    Args:
        study: wanted units.
        statuses: statuses of the units.
        width: number of columns of the terminal; 0: unlimited.
    """
    by_pair: dict[tuple[str, str], list[Unit]] = collections.defaultdict(list)
    for unit in statuses:
        for key in ((unit.model, unit.dataset), (unit.model, ""), ("", unit.dataset), ("", "")):
            by_pair[key].append(unit)
    columns = [*study.datasets, *([""] if len(study.datasets) > 1 else [])]
    rows = [*study.models, *([""] if len(study.models) > 1 else [])]
    table = writers.Table(
        title="features done/wanted, classifier runs done/wanted; of the others, "
        + ", ".join(f"{letter} {_WORDS.get(state, state)}" for state, letter in _LETTERS.items())
        + ", the rest missing",
        columns=tuple(name or "all" for name in columns),
        rows=tuple(
            (model or "all", tuple(_entry(by_pair[model, dataset], statuses) for dataset in columns))
            for model in rows
        ),
        words=frozenset(range(len(columns))),
    )
    lines = [writers.draw([table], "text", width=width)]
    for kind, label in ((ExtractionUnit, "features"), (TrainingUnit, "classifier runs")):
        counts = collections.Counter(statuses[unit].state for unit in statuses if isinstance(unit, kind))
        if counts:
            n_done, total = counts[units.DONE] + counts[units.DELETED], sum(counts.values())
            parts = [f"{counts[state]} {_WORDS.get(state, state)}" for state in units.STATES if counts[state]]
            lines.append(f"{label}: {', '.join(parts)} of {total} ({100 * n_done // total} %)\n")
    for state, title in ((units.RUNNING, "running"), (units.FAILED, "failed")):
        lines.append(_listing(title, ((u, s.detail) for u, s in statuses.items() if s.state == state)))
    return "".join(lines)


def _entry(some: Sequence[Unit], statuses: Mapping[Unit, Status]) -> writers.TableEntry:
    parts = []
    for kind in (ExtractionUnit, TrainingUnit):
        counts = collections.Counter(statuses[unit].state for unit in some if isinstance(unit, kind))
        marks = "".join(f" {counts[state]}{letter}" for state, letter in _LETTERS.items() if counts[state])
        n_done = counts[units.DONE] + counts[units.DELETED]
        parts.append(f"{n_done}/{sum(counts.values())}{marks}")
    return writers.TableEntry(", ".join(parts))


def _listing(title: str, some: Iterable[tuple[Unit, str]]) -> str:
    """Return a list of units by their details: runs of one process, or with the same failure, are one entry."""
    together: dict[str, list[Unit]] = {}
    for unit, detail in some:
        together.setdefault(detail, []).append(unit)
    if not together:
        return ""
    lines = [f"\n{title}:\n"]
    for detail, same in list(together.items())[:_LISTED]:
        more = f" and {len(same) - 1} more" if len(same) > 1 else ""
        lines.append(f"  {same[0]}{more}: {printable(detail)}\n")
    if len(together) > _LISTED:
        lines.append(f"  ... and {len(together) - _LISTED} more (--format csv lists all)\n")
    return "".join(lines)
