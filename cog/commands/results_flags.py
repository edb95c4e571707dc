"""The flags of print_results.py."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Sequence
from typing import Any

from cog import constants, paths
from cog.errors import CogError
from cog.runtime import cli as command_line

logger = logging.getLogger("cog")

#: Values of ``--show``, ``--format`` and ``--published``; a test compares them with the views, formats and sources.
VIEWS = ("accuracy", "fewshot", "rank", "drop")
FORMATS = ("text", "markdown", "latex", "csv", "json")
PAPERS = ("v2", "v1")


def parser(description: str) -> command_line.Parser:
    """Return the parser of the command line."""
    made = command_line.Parser(description)
    add = made.add_argument_group("source of the results").add_argument
    add("--models_root_dir", metavar="DIR", help="folder of all models")
    add("--logreg_root_dir", metavar="DIR", help="one evaluation folder, with a subfolder per seed")
    add("--import", nargs="+", dest="imports", type=_many(str), metavar="FILE", help="files of --export")
    add(
        "--published",
        nargs="?",
        const=PAPERS[0],
        choices=PAPERS,
        help="the paper's results of its 31 models: v2, the final version (default), or v1, of January 2021 (7 models, "
        "other levels)",
    )
    add = made.add_argument_group("selection").add_argument
    add(
        "--model",
        nargs="+",
        type=_many(str),
        metavar="NAME",
        help="names, or quoted patterns such as 'deit_*'; default: all. Tables keep the order given",
    )
    add("--dataset", nargs="+", type=_many(str), metavar="NAME", help="in1k, cog_l1, ...; default: all")
    add(
        "--n_shot",
        nargs="+",
        type=_many(_shots),
        metavar="N",
        help="training images per class, `all` or 0 for all of them; default: every one found, or CLF.N_SHOT with one "
        "--model and one --dataset",
    )
    add(
        "--seeds",
        nargs="+",
        type=_many(command_line.whole_number(0)),
        metavar="SEED",
        help="seeds to average; missing ones are listed. Default: all found, and missing ones of the protocol's "
        f"{' '.join(map(str, constants.SEEDS))} are listed unless other seeds are found",
    )
    add = made.add_argument_group("what is shown").add_argument
    add(
        "--show",
        choices=VIEWS,
        help="accuracy (default): models x data sets, a table per number of shots; fewshot: models x shots, a table "
        "per data set (Tables 5-10); rank: ranks among the models shown; drop: change since in1k in percent",
    )
    add(
        "--relative_to",
        metavar="MODEL",
        help="differences to a model in points, with 95%% intervals over concepts and seeds, and whether they are "
        "significant after Holm's correction for all of them",
    )
    add(
        "--analysis",
        nargs="+",
        type=_many(str),
        metavar="NAME",
        help="other experiments, a table per number: analyses (kmeans, alignment, knn, ncm, ...), other classifiers "
        "(mlp, pca, balanced, blurred, finetune), or all. For the other views of a classifier, give its keys at the "
        "end instead, such as CLF.TYPE mlp",
    )
    add(
        "--format",
        choices=FORMATS,
        default="text",
        help="default: %(default)s. csv and json have top-5 accuracies and all digits; latex has the paper's names",
    )
    add = made.add_argument_group("instead of tables").add_argument
    add("--export", metavar="FILE", help="write the selected results as one file to share, see --import")
    add("--figures", metavar="DIR", help="draw the paper's figures and the searches, with their data as CSV")
    add("--report", metavar="FILE", help="write a self-contained HTML page")
    add("--overwrite", action="store_true", help="replace files that exist")
    return made


def _many(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a type for flags with several values, in which ``None`` and ``null`` mean that no value is given."""
    return lambda text: None if constants.is_unset(text) else parse(text)


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
    chosen = [flag for flag in ("show", "relative_to", "analysis") if getattr(args, flag)]
    if len(chosen) > 1:
        raise CogError(f"--{chosen[0]} and --{chosen[1]} are different views; give one of them")
    source = args.models_root_dir or args.logreg_root_dir
    if not (source or args.imports or args.published):
        raise CogError(
            "nothing to read: give --logreg_root_dir, or --models_root_dir, or --import, or --published (see --help)"
        )
    if args.logreg_root_dir and (args.models_root_dir or args.model or args.dataset or args.n_shot):
        logger.warning("--logreg_root_dir names the runs: other flags that select runs have no effect")
        args.models_root_dir = args.model = args.dataset = args.n_shot = None
    limit = paths.limit_above(source) if source else 0
    if limit and (args.published or args.export):
        raise CogError(
            f"results below limit-{limit} are a test of the commands on a few images; they are neither shown beside "
            "published numbers nor exported"
        )
    return args
