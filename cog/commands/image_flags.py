"""Flags of the commands that read images: the model and its output folder, and the images of data sets."""

from __future__ import annotations

import argparse

from cog.commands import flags
from cog.data import datasets
from cog.data.datasets import ImageSources
from cog.models.request import ModelRequest
from cog.runtime import cli as cli_tools


def add_places(group: argparse._ArgumentGroup) -> None:
    """Add the flags that locate images."""
    flags.add_images(group)


def add_models_file(group: argparse._ArgumentGroup) -> None:
    """Add the flag of a file of the user's models."""
    flags.add(group, "models_file")


def add_target(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """Add the required flags ``--model`` and ``--dataset`` in a group with this title, and return the group."""
    group = parser.add_argument_group(title)
    group.add_argument(
        "--model", required=True, help="<model_title>_<architecture_name>, such as sup_resnet50"
    )
    group.add_argument(
        "--dataset",
        required=True,
        nargs="+",
        help=f"one or several of {', '.join(datasets.names())}, or with --images_root a name of your own",
    )
    return group


def add(parser: argparse.ArgumentParser) -> None:
    """Add the flags that locate images and select the accepted problems."""
    group = parser.add_argument_group("images")
    add_places(group)
    group.add_argument(
        "--allow_failures",
        type=cli_tools.whole_number(0),
        default=0,
        metavar="N",
        help="accept up to N images per data set and split that cannot be decoded (default: 0; with more, the exit "
        "code is 3)",
    )


def sources(args: argparse.Namespace) -> ImageSources:
    """Return the values of the flags of :func:`add_places`."""
    return ImageSources({flag: getattr(args, flag) for flag in datasets.flags()})


def add_model(parser: argparse.ArgumentParser, *, writes: str) -> None:
    """Add the flags that locate a model and the output folder; ``writes`` is its default below that of the model."""
    group = parser.add_argument_group("model and output: --models_root_dir, or --ckpt_file with --output_dir")
    flags.add(
        group,
        "models_root_dir",
        help=f"reads <root>/<model_title>/<architecture_name>/model.ckpt, writes {writes} beside it",
    )
    group.add_argument(
        "--ckpt_file",
        help="checkpoint to load instead (a TensorFlow checkpoint: the common part of the paths of its .index and "
        ".data files)",
    )
    group.add_argument("--output_dir", help="folder to write to instead (for a single output)")
    flags.add(group, "model_loader")
    add_models_file(group)


def model_request(args: argparse.Namespace) -> ModelRequest:
    """Return the values of ``--model`` and of the flags of :func:`add_model`."""
    return ModelRequest(
        args.model,
        models_root_dir=args.models_root_dir,
        ckpt_file=args.ckpt_file,
        output_dir=args.output_dir,
        model_loader=args.model_loader,
    ).with_models_file(args.models_file)
