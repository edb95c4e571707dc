"""Flags of the analyses of trained classifiers: cross, distance, subtrees, winners."""

from __future__ import annotations

import argparse

from cog.data import datasets
from cog.runtime import cli

#: Flags that cross, distance, subtrees and winners have in common.
PROBE_FLAGS = ("run_seeds", "cog_levels_mapping_file")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of cross, distance, subtrees and winners to the parser of the command."""
    runs = parser.add_argument_group(
        "classifiers (cross, distance, subtrees, winners): selected by EVAL.NAME and the CLF keys"
    )
    runs.add_argument(
        "--run_seeds",
        nargs="+",
        type=cli.whole_number(0),
        metavar="SEED",
        help="seeds of the runs (default: all complete runs)",
    )
    runs.add_argument(
        "--levels_csv", metavar="FILE", help="distance, subtrees: levels.csv of build_levels.py"
    )
    runs.add_argument(
        "--n_resamples",
        type=cli.whole_number(0),
        default=10_000,
        metavar="N",
        help="distance, subtrees: bootstrap resamples of the confidence interval (default: 10000; 0: none)",
    )
    runs.add_argument(
        "--subtrees",
        nargs="+",
        metavar="WNID",
        help="subtrees: root synset of each subtree (default: 13 domains, see docs/other-experiments.md)",
    )
    runs.add_argument("--against", metavar="MODEL", help="winners: the model to compare --model with")
    runs.add_argument(
        "--top_n",
        type=cli.whole_number(1),
        default=20,
        metavar="N",
        help="winners: concepts listed at each end of the ranking by difference (default: 20)",
    )
    cross = parser.add_argument_group("classifiers of one data set on the test features of another (cross)")
    cross.add_argument("--trained_on", metavar="DATASET", help="data set whose saved classifiers are applied")
    cross.add_argument(
        "--classifier_dir",
        metavar="DIR",
        help="folder of the classifiers, instead of --models_root_dir: holds seed-<seed>/, or is itself one such "
        "folder",
    )
    cross.add_argument(
        "--trained_features_dir",
        metavar="DIR",
        help="features the classifiers were trained or tested on, for the names of their classes (default: beside "
        "the classifiers)",
    )
    cross.add_argument(
        "--confidence",
        type=cli.real_number(0, 1, "0 <= P < 1"),
        default=0.99,
        metavar="P",
        help="list images predicted with a confidence above P (default: 0.99)",
    )
    cross.add_argument(
        "--sheet_images",
        type=cli.whole_number(0),
        default=60,
        metavar="N",
        help="largest number of images on the contact sheet, which needs the root of the images (default: 60; 0: no "
        "sheet)",
    )
    for flag, text in datasets.root_flags().items():
        cross.add_argument(
            f"--{flag}", metavar="DIR", help=f"root of the images on the contact sheet, {text}"
        )
    cross.add_argument(
        "--cog_levels_mapping_file",
        metavar="FILE",
        help="levels file with the classes of cog_l*, for features without class names (those of the original toolkit)",
    )
    cross.add_argument(
        "--wordnet_dir", metavar="DIR", help="folder of WordNet 3.0, for the names of concepts"
    )
