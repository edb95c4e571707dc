"""Flags of print_results.py that select the results to read."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from cog import constants
from cog.commands import limits
from cog.errors import CogError
from cog.results import published, query
from cog.runtime import cli as command_line

#: Default version of the paper.
_PAPER = "v2"


def add(parser: command_line.Parser) -> None:
    """Add the flags to the parser."""
    group = parser.add_argument_group("source of the results")
    add = group.add_argument
    add("--logreg_root_dir", metavar="DIR", help="one evaluation folder, with a subfolder per seed")
    add("--models_root_dir", metavar="DIR", help="folder of all models")
    limits.add(group, shows=True)
    add(
        "--import",
        nargs="+",
        dest="imports",
        type=many(str),
        metavar="FILE",
        help="files written by --export",
    )
    add("--with_published", action="store_true", help="add the paper's results of its 31 models")
    add("--published_only", action="store_true", help="show the paper's results alone; no runs are read")
    add(
        "--paper",
        choices=tuple(published.SOURCES),
        help="version of the paper: v2, the final one (default), or v1, of January 2021 (7 models, other levels)",
    )

    add(
        "--models_file",
        metavar="FILE",
        help="models of your own, as for extract_features.py, with their labels and pretraining; default: those in "
        "features.json",
    )

    add = parser.add_argument_group("selection").add_argument
    add(
        "--model",
        nargs="+",
        type=many(str),
        metavar="NAME",
        help="names, or quoted patterns such as 'deit_*'; default: all, in natural order, or the paper's where its "
        "results are shown; tables keep the order given",
    )
    add(
        "--category",
        nargs="+",
        type=many(_category),
        metavar="GROUP",
        help=f"groups of models: {', '.join(query.CATEGORIES)}",
    )
    add("--dataset", nargs="+", type=many(str), metavar="NAME", help="in1k, cog_l1, ...; default: all")
    add(
        "--n_shot",
        nargs="+",
        type=many(_shots),
        metavar="N",
        help="training images per class, `all` or 0 for all of them; default: every one found, or CLF.N_SHOT "
        "with one --model and one --dataset",
    )
    add(
        "--seeds",
        nargs="+",
        type=many(command_line.whole_number(0)),
        metavar="SEED",
        help="average the runs of these seeds, and list missing ones; default: all seeds found; missing ones of the "
        f"protocol's {' '.join(map(str, constants.SEEDS))} are listed unless other seeds are found",
    )
    add(
        "--allow_mixed_epochs",
        action="store_true",
        help="average seeds that were trained for different numbers of epochs, with a warning",
    )


def many(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a type for flags with several values, in which ``None`` and ``null`` mean that no value is given."""

    def parse_one(text: str) -> Any:
        return None if constants.is_unset(text) else parse(text)

    return parse_one


def _shots(text: str) -> int:
    return 0 if text.lower() == "all" else command_line.whole_number(0)(text)


def _category(text: str) -> str:
    if text not in query.CATEGORIES:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(query.CATEGORIES)}")
    return text


def given(values: Sequence[Any] | None) -> list[Any] | None:
    """Return the values that are set, without repetition; None without any value."""
    return list(dict.fromkeys(value for value in values or () if value is not None)) or None


def settle_published(args: argparse.Namespace) -> argparse.Namespace:
    """Return the flags with the selection of the paper's results completed.

    Raises:
        CogError: a version of the paper is given without a flag that shows its results.
    """
    if args.claims and not (args.models_root_dir or args.logreg_root_dir or given(args.imports)):
        args = argparse.Namespace(**vars(args) | {"published_only": True})
    if args.paper is not None and not (args.with_published or args.published_only or args.report):
        raise CogError(
            f"--paper {args.paper} chooses among the paper's results; add --with_published or --published_only"
        )
    return argparse.Namespace(**vars(args) | {"paper": args.paper or _PAPER})
