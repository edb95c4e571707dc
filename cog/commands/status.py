"""Show how far a study is: models by data sets, with what is done, running, failed, interrupted and missing."""

from __future__ import annotations

import argparse
import collections
import logging
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from cog import cli as cli_tools
from cog import config, files, names, slurm, study_tasks, tables
from cog import study_units as units
from cog.errors import CogError
from cog.study_units import Status, Study, Unit

logger = logging.getLogger("cog")  # also when run with python -m

FORMATS = ("text", "csv", "json")

_COLUMNS = ("kind", "model", "dataset", "split", "n_shot", "seed", "state", "detail", "folder")

_LETTERS = {units.RUNNING: "r", units.QUEUED: "q", units.FAILED: "f", units.INTERRUPTED: "i"}

#: Failures and running units that are listed one by one in text.
_LISTED = 20


def add_selection(parser: cli_tools.Parser, *, models_required: bool) -> None:
    """Add the flags that say which study is meant."""
    group = parser.add_argument_group("study")
    group.add_argument("--models_root_dir", required=True, help="root of all models")
    group.add_argument(
        "--models",
        nargs="+",
        required=models_required,
        help="names, or patterns such as 'deit_*' for folders under the root"
        + ("" if models_required else " (default: all of them)"),
    )
    group.add_argument(
        "--datasets",
        nargs="+",
        help="default: " + " ".join(names.DATASETS) + ("" if models_required else ", or what is there"),
    )
    group.add_argument(
        "--splits", nargs="+", choices=names.SPLITS, default=list(names.SPLITS), help="default: both"
    )
    group.add_argument(
        "--seeds",
        nargs="+",
        type=cli_tools.whole_number(0),
        default=list(names.SEEDS),
        metavar="SEED",
        help=f"default: {' '.join(map(str, names.SEEDS))}",
    )
    group.add_argument(
        "--shots",
        nargs="+",
        type=cli_tools.whole_number(0),
        default=[0, *names.SHOTS],
        metavar="N",
        help=f"training images per class, 0 for all (default: 0 {' '.join(map(str, names.SHOTS))})",
    )


def select(args: argparse.Namespace, opts: Sequence[str], *, config_file: str | None = None) -> Study:
    """Return the study that the flags describe.

    Raises:
        CogError: when a name is malformed or matches nothing.
    """
    for key, flag in (("EVAL.SEED", "--seeds"), ("CLF.N_SHOT", "--shots")):
        if key in opts[::2]:
            raise CogError(f"{key} is one run's; give the study's with {flag}")
    root = Path(os.path.abspath(files.require_dir(args.models_root_dir, "--models_root_dir")))
    models = units.find_models(root, args.models)
    cfg = config.get_cfg(config_file=config_file, opts=opts)
    return Study(
        root=root,
        models=models,
        datasets=tuple(dict.fromkeys(args.datasets or units.find_datasets(root, models))),
        splits=tuple(dict.fromkeys(args.splits)),
        seeds=tuple(dict.fromkeys(args.seeds)),
        n_shots=tuple(dict.fromkeys(args.shots)),
        evaluation=config.evaluation_name(cfg),
    )


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse flags; touches no file."""
    parser = cli_tools.Parser(__doc__ or "")
    add_selection(parser, models_required=False)
    parser.add_argument("--log_dir", help="log folder of submit_study.sh: shows what is in SLURM's queue")
    parser.add_argument("--format", choices=FORMATS, default="text", help="default: text")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Show the state of every unit; returns the exit code."""
    args = parse_args(argv)
    study = select(args, args.opts)
    statuses = units.survey(study)
    if args.log_dir is not None:
        log_dir = Path(os.path.abspath(files.require_dir(args.log_dir, "--log_dir")))
        try:
            statuses = study_tasks.with_queue(statuses, slurm.ahead(log_dir, study.root))
        except CogError as error:
            logger.warning("SLURM's queue is not shown: %s", error)
    if args.format == "text":
        sys.stdout.write(draw(study, statuses, width=shutil.get_terminal_size((140, 24)).columns))
    else:
        sys.stdout.write(tables.flat(records(study, statuses), _COLUMNS, args.format, decimals=0))
    return 0


def records(study: Study, statuses: Mapping[Unit, Status]) -> list[dict[str, object]]:
    """Return one record per unit."""
    result = []
    for unit, status in statuses.items():
        kind = "features" if isinstance(unit, units.Extraction) else "run"
        fields = {name: getattr(unit, name, None) for name in ("model", "dataset", "split", "n_shot", "seed")}
        place = {"folder": str(unit.folder(study.root))}
        result.append({"kind": kind} | fields | {"state": status.state, "detail": status.detail} | place)
    return result


def draw(study: Study, statuses: Mapping[Unit, Status], *, width: int = 0) -> str:
    """Return the table, the totals, and what is running and failed.

    Args:
        study: what is wanted.
        statuses: of its units.
        width: columns of the terminal; 0: any.
    """
    by_pair: dict[tuple[str, str], list[Unit]] = collections.defaultdict(list)
    for unit in statuses:
        for key in (
            (unit.model, unit.dataset), (unit.model, ""), ("", unit.dataset), ("", "")
        ):  # fmt: skip
            by_pair[key].append(unit)
    columns = [*study.datasets, *([""] if len(study.datasets) > 1 else [])]
    rows = [*study.models, *([""] if len(study.models) > 1 else [])]
    table = tables.Table(
        title="features done/wanted, classifier runs done/wanted; of the others, "
        + ", ".join(f"{letter} {state}" for state, letter in _LETTERS.items())
        + ", the rest missing",
        columns=tuple(name or "all" for name in columns),
        rows=tuple(
            (model or "all", tuple(_entry(by_pair[model, dataset], statuses) for dataset in columns))
            for model in rows
        ),
        words=frozenset(range(len(columns))),
    )
    lines = [tables.draw([table], "text", width=width)]
    for kind, label in ((units.Extraction, "features"), (units.Training, "classifier runs")):
        counts = collections.Counter(statuses[unit].state for unit in statuses if isinstance(unit, kind))
        if counts:
            parts = [f"{counts[state]} {state}" for state in units.STATES if counts[state]]
            lines.append(f"{label}: {', '.join(parts)} of {sum(counts.values())}\n")
    for state, title in ((units.RUNNING, "running"), (units.FAILED, "failed")):
        lines.append(_listing(title, ((u, s.detail) for u, s in statuses.items() if s.state == state)))
    return "".join(lines)


def _entry(some: Sequence[Unit], statuses: Mapping[Unit, Status]) -> tables.Entry:
    parts = []
    for kind in (units.Extraction, units.Training):
        counts = collections.Counter(statuses[unit].state for unit in some if isinstance(unit, kind))
        marks = "".join(f" {counts[state]}{letter}" for state, letter in _LETTERS.items() if counts[state])
        parts.append(f"{counts[units.DONE]}/{sum(counts.values())}{marks}")
    return tables.Entry(", ".join(parts))


def _listing(title: str, some: Iterable[tuple[Unit, str]]) -> str:
    """List units by what is said about them: runs of one process, or with the same failure, are one entry."""
    together: dict[str, list[Unit]] = {}
    for unit, detail in some:
        together.setdefault(detail, []).append(unit)
    if not together:
        return ""
    lines = [f"\n{title}:\n"]
    for detail, same in list(together.items())[:_LISTED]:
        more = f" and {len(same) - 1} more" if len(same) > 1 else ""
        lines.append(f"  {same[0]}{more}: {tables.printable(detail)}\n")
    if len(together) > _LISTED:
        lines.append(f"  ... and {len(together) - _LISTED} more (--format csv lists all)\n")
    return "".join(lines)


def cli() -> NoReturn:
    """Run from the command line."""
    cli_tools.run(main)


if __name__ == "__main__":
    cli()
