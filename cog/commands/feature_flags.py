"""Flags of the commands that read features: the model and its data sets, or folders of features, and the output."""

from __future__ import annotations

import argparse

from cog.data import datasets


def add(parser: argparse.ArgumentParser, *dataset_aliases: str, output_help: str) -> None:
    """Add the flags that locate features and the output folder.

    Args:
        parser: parser for the group of flags.
        dataset_aliases: other spellings of ``--dataset``.
        output_help: help of ``--output_dir``.
    """
    group = parser.add_argument_group(
        "features: --models_root_dir with --model and --dataset, or --train_features_dir and --test_features_dir"
    )
    group.add_argument("--model", help="<model_title>_<architecture_name>, such as sup_resnet50")
    group.add_argument(
        "--dataset",
        *dataset_aliases,
        nargs="+",
        help=f"one or several of {', '.join(datasets.names())}, or a name of your own",
    )
    group.add_argument(
        "--models_root_dir",
        help="reads <root>/<model_title>/<architecture_name>/<dataset>/features_{train,test}/X_Y.pth",
    )
    group.add_argument("--train_features_dir", help="folder (or X_Y.pth file) of the training features")
    group.add_argument("--test_features_dir", help="folder (or X_Y.pth file) of the test features")
    group.add_argument("--output_dir", help=output_help)
