"""The flags of print_results.py."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from cog import constants, paths
from cog.errors import CogError
from cog.reporting.tables import accuracies, writers
from cog.results import published
from cog.runtime import cli as command_line

#: Flags of views, of which at most one is given.
_VIEWS = ("relative_to", "drop", "rank", "analysis")


def parser(description: str) -> command_line.Parser:
    """Return the parser of the command line."""
    made = command_line.Parser(description)
    add = made.add_argument_group("source of the results").add_argument
    add("--logreg_root_dir", metavar="DIR", help="one evaluation folder, with a subfolder per seed")
    add("--models_root_dir", metavar="DIR", help="folder of all models")
    add(
        "--import",
        nargs="+",
        dest="imports",
        type=_many(str),
        metavar="FILE",
        help="files written by --export",
    )
    add("--with_published", action="store_true", help="add the paper's results of its 31 models")
    add("--published_only", action="store_true", help="show the paper's results alone; no runs are read")
    add(
        "--paper",
        choices=tuple(published.SOURCES),
        default="v2",
        help="version of the paper: v2, the final one (default), or v1, of January 2021 (7 models, other levels)",
    )
    add = made.add_argument_group("selection").add_argument
    add(
        "--model",
        nargs="+",
        type=_many(str),
        metavar="NAME",
        help="names, or quoted patterns such as 'deit_*'; default: all, in natural order, or the paper's where its "
        "results are shown; tables keep the order given",
    )
    add("--dataset", nargs="+", type=_many(str), metavar="NAME", help="in1k, cog_l1, ...; default: all")
    add(
        "--n_shot",
        nargs="+",
        type=_many(_shots),
        metavar="N",
        help="training images per class, `all` or 0 for all of them; default: every one found, or CLF.N_SHOT "
        "with one --model and one --dataset",
    )
    add(
        "--seeds",
        nargs="+",
        type=_many(command_line.whole_number(0)),
        metavar="SEED",
        help="average the runs of these seeds, and list missing ones; default: all seeds found; missing ones of the "
        f"protocol's {' '.join(map(str, constants.SEEDS))} are listed unless other seeds are found",
    )
    add = made.add_argument_group("what is shown").add_argument
    add(
        "--view",
        choices=accuracies.LAYOUTS,
        help="datasets (default): models x data sets, a table per number of shots; shots: models x numbers of shots, "
        "a table per data set (Tables 5-10)",
    )
    add(
        "--relative_to",
        metavar="MODEL",
        help="differences to a model in points, with 95%% intervals over concepts and seeds, and whether they are "
        "significant after Holm's correction for all of them",
    )
    add("--drop", action="store_true", help="change since the model's own in1k accuracy, in percent of it")
    add("--rank", action="store_true", help="ranks among the models shown, sorted by their mean")
    add(
        "--analysis",
        nargs="+",
        type=_many(str),
        metavar="NAME",
        help="other experiments, a table for each number: analyses (kmeans, alignment, knn, ncm, cross, ...), other "
        "classifiers (mlp, pca, balanced, blurred, finetune), or all. For the other views of a classifier, give its "
        "keys at the end instead, such as CLF.PCA_DIM 256",
    )
    add(
        "--format",
        choices=writers.FORMATS,
        default="text",
        help="default: %(default)s. csv and json have top-5 accuracies and all digits; latex has the paper's names",
    )
    add = made.add_argument_group("instead of tables").add_argument
    add("--export", metavar="FILE", help="write the selected results as one file to share, see --import")
    add("--figures", metavar="DIR", help="draw the paper's figures, with their data as CSV")
    add("--report", metavar="FILE", help="write a self-contained HTML page")
    add("--diagnostics", metavar="DIR", help="draw search and training curves of every run")
    add("--overwrite", action="store_true", help="replace files that exist")
    return made


def _many(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a type for flags with several values, in which ``None`` and ``null`` mean that no value is given."""

    def parse_one(text: str) -> Any:
        return None if constants.is_unset(text) else parse(text)

    return parse_one


def _shots(text: str) -> int:
    return 0 if text.lower() == "all" else command_line.whole_number(0)(text)


def parse(description: str, argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the flags; lists without repetition, None for an empty one.

    Raises:
        CogError: flags contradict each other.
    """
    args = parser(description).parse_args(argv)
    for flag in ("imports", "model", "dataset", "n_shot", "seeds", "analysis"):
        values = dict.fromkeys(value for value in getattr(args, flag) or () if value is not None)
        setattr(args, flag, list(values) or None)
    chosen = [flag for flag in _VIEWS if getattr(args, flag)]
    if args.view and args.analysis:
        chosen.insert(0, "view")
    if len(chosen) > 1:
        raise CogError(f"--{chosen[0]} and --{chosen[1]} are different views; give one of them")
    if args.diagnostics and (args.published_only or not (args.models_root_dir or args.logreg_root_dir)):
        raise CogError("--diagnostics needs runs: give --models_root_dir or --logreg_root_dir")
    limited = next(
        filter(None, map(paths.limit_of, filter(None, (args.models_root_dir, args.logreg_root_dir)))), 0
    )
    if limited and (args.with_published or args.export):
        raise CogError(
            f"results below limit-{limited} are a test of the commands on a few images; they are neither shown beside "
            "published numbers nor exported"
        )
    args.limited = 0 if args.published_only else limited
    return args
