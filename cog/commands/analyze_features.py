"""Analyze pre-extracted features: clusters, alignment and uniformity, neighbors, class means; or apply classifiers of
another data set to them (cross).

Every result is a record <dataset>/analysis_<name>/results.json that print_results.py reads. With several data sets and
analyses one process does all of them; the features of each data set are read once.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence

from cog.analysis import base, registry
from cog.analysis.base import ANALYSES
from cog.commands import feature_flags
from cog.runtime import cli as cli_tools


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed flags; no file is read or written."""
    parser = cli_tools.Parser(__doc__ or "")
    work = parser.add_argument_group("what to do")
    listed = "; ".join(f"{analysis.name}: {analysis.help}" for analysis in ANALYSES.values())
    everything = " ".join(analysis.name for analysis in ANALYSES.values() if analysis.in_all)
    work.add_argument(
        "--analysis",
        nargs="+",
        default=[registry.ALL],
        metavar="NAME",
        help=f"{listed}; all: {everything} (default: all)",
    )
    feature_flags.add(
        parser,
        "--datasets",
        output_help="where to write analysis_<name>/ (several data sets: <dataset>/analysis_<name>/); default with "
        "--models_root_dir: <dataset>/ beside the features",
    )
    run = parser.add_argument_group("run")
    run.add_argument("--device", help="cpu, cuda or cuda:<index> (default: cuda if there is one, else cpu)")
    cli_tools.add_common(run)
    cross = parser.add_argument_group("cross: the classifiers that EVAL.NAME and the CLF keys select")
    cross.add_argument("--trained_on", metavar="DATASET", help="data set whose saved classifiers are applied")
    cross.add_argument(
        "--images_root",
        metavar="DIR",
        help="folder of the images named in image_paths.txt of the test features, to show the first ones (default: the "
        "folder that they were extracted from)",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    args = parse_args(argv)

    todo = registry.pending(args)
    if todo:
        from cog.runtime.device import resolve_device

        base.execute(todo, device=resolve_device(args.device, float64=True))
    return 0


cli = functools.partial(cli_tools.run, main, continues=True)
