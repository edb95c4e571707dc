"""Flags of print_results.py for views and output files."""

from __future__ import annotations

import argparse

from cog.commands.results_source_flags import many
from cog.reporting.show import DECIMALS, FINE_DECIMALS, TABLE_DECIMALS
from cog.reporting.tables import accuracies, experiments, writers
from cog.results import exchange, labels, published, uncertainty
from cog.runtime import cli as command_line


def add(parser: command_line.Parser) -> None:
    """Add the flags to the parser."""
    add = parser.add_argument_group("what is shown").add_argument
    add(
        "--view",
        choices=accuracies.LAYOUTS,
        help="datasets (default): models x data sets, a table per number of shots; shots: models x numbers of shots, "
        "a table per data set (Tables 5-10); table: shots, then models x data sets for all images (Fig. 3)",
    )
    add("--relative_to", metavar="MODEL", help="differences to a model, in points")
    add("--drop", action="store_true", help="change since the model's own in1k accuracy, in percent of it")
    add("--rank", action="store_true", help="ranks among the models shown, sorted by their mean")
    add(
        "--baseline",
        metavar="MODEL",
        help="print the difference of every model to this one with a 95%% interval over concepts and seeds, whether "
        "it is significant after Holm's correction for all of them, and where the order of models changes over the "
        "levels",
    )
    add(
        "--compare",
        nargs=2,
        metavar=("MODEL", "BASELINE"),
        help="the same as --model MODEL --baseline BASELINE",
    )
    add(
        "--claims",
        action="store_true",
        help="check the statements of the paper against the published numbers, and against the results read if there "
        "are any",
    )
    add(
        "--power",
        action="store_true",
        help="the smallest difference that can be detected with these seeds, and with 5, 10 or 20, on each data set "
        "and number of shots, and how many seeds a difference of one point needs; from own runs of two models or more",
    )
    add(
        "--interval_over",
        choices=uncertainty.OVER,
        default=uncertainty.CONCEPTS,
        help="sampling units, beside seeds, of the 95%% intervals of accuracies, --baseline, --relative_to and "
        "--drop: concepts with their images, or images of the same concepts, from saved predictions (preds.pkl); "
        "significance is always over concepts (default: %(default)s)",
    )
    add("--metric", choices=(*labels.METRIC_LABELS, "both"), help="default: top1 in tables, else both")

    add = parser.add_argument_group("other experiments").add_argument
    add(
        "--analysis",
        nargs="+",
        type=many(str),
        metavar="NAME",
        help="results of analyze_features.py: kmeans, alignment, knn, ncm, cross, distance, ... or all",
    )
    add(
        "--by_subtree",
        dest="analysis",
        action="store_const",
        const=["subtrees"],
        help="accuracy by WordNet subtree, short for --analysis subtrees",
    )
    add(
        "--variants",
        nargs="+",
        type=many(_variant),
        metavar="NAME",
        help="other classifiers beside the protocol's: mlp (CLF.TYPE mlp, mlp_noact), pca (CLF.PCA_DIM), balanced "
        "(CLF.MAX_PER_CLASS), blurred (data set in1k_blurred), finetune (finetune.py), or all. For the other "
        "views of one of them, give its keys at the end instead, such as CLF.PCA_DIM 256",
    )
    add("--overview", action="store_true", help="the main numbers of all experiments, a table per data set")

    add = parser.add_argument_group("format").add_argument
    add("--format", choices=writers.FORMATS, default="text", help="default: %(default)s")
    add(
        "--decimals",
        type=command_line.whole_number(0, 15),
        metavar="N",
        help=f"digits after the point; default: {TABLE_DECIMALS}; {FINE_DECIMALS} for one evaluation and --baseline; "
        f"{DECIMALS['csv']} in csv; "
        "json has all",
    )
    add(
        "--labels",
        choices=("name", "paper"),
        default="name",
        help="paper: the paper's names of its 31 models, and the labels of your own in models.yaml",
    )
    add(
        "--width",
        type=command_line.whole_number(0),
        metavar="N",
        help="width of text tables in characters; wider ones continue below; 0: any width (default: the terminal's, "
        f"{writers.WIDTH} in files and pipes)",
    )
    add("--output", metavar="FILE", help="write the tables to this file instead of standard output")
    add("--overwrite", action="store_true", help="replace existing files")

    add = parser.add_argument_group("instead of tables (which --output adds)").add_argument
    add("--export", metavar="FILE", help="write the selected results as one file to share, see --import")
    add("--label", type=_label, help="name of the runs in an exported file; default: the name of that file")
    add("--figures", metavar="DIR", help="draw the paper's figures, with their data as CSV")
    add("--figure_formats", nargs="+", type=many(str), metavar="FORMAT", help="pdf, png, svg; default: all")
    add("--figure_names", nargs="+", type=many(str), metavar="NAME", help="fig3, fig4, ...; default: all")
    add("--report", metavar="FILE", help="write a self-contained HTML page")
    add("--diagnostics", metavar="DIR", help="draw search and training curves of every run")
    command_line.add_check(parser.add_argument_group("check"), "results, output files")


def _variant(text: str) -> str:
    if text not in (*experiments.VARIANTS, experiments.ALL):
        known = ", ".join((*experiments.VARIANTS, experiments.ALL))
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {known}")
    return text


def _label(text: str) -> str:
    try:
        if text in published.SOURCES.values():
            raise ValueError("it is reserved for published numbers")
        return exchange.check_label(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
