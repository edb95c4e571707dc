"""The flag ``--limit N``: a trial of a command on a few images, in seconds, with outputs in a separate folder.

One number limits all counts: classes, images per class and split, trials, epochs. This module sets the folder of the
outputs and the keys; :meth:`cog.data.image_sources.ImageSources.list_images` limits the images.
"""

from __future__ import annotations

import argparse

from cog import paths
from cog.errors import CogError
from cog.runtime import cli as cli_tools

#: Keys that become N; ``KEY VALUE`` pairs of the command line override them.
_KEYS = ("CLF.N_TRIALS", "CLF.N_EPOCHS", "FINETUNE.N_EPOCHS", "FINETUNE.BATCH_SIZE")

#: Smallest N: two classes, each with an image for training and a held-out image.
_LEAST = 2

#: Flags of folders in which outputs lie in a sub-folder ``limit-N``.
_FOLDERS = ("models_root_dir", "log_dir", "figures", "diagnostics")

#: Flags of other folders, and of files for other people, which are not allowed with ``--limit``.
_PLACES = ("output_dir", "train_features_dir", "test_features_dir", "classifier_dir", "export")


def add(group: argparse._ActionsContainer, *, shows: bool = False) -> None:
    """Add the flag.

    Args:
        group: group for the flag.
        shows: whether the command only reads the outputs of other commands.
    """
    group.add_argument(
        "--limit",
        type=cli_tools.whole_number(_LEAST),
        metavar="N",
        help="use the outputs that other commands made with --limit N, in <models_root_dir>/limit-N/"
        if shows
        else "try the command in seconds: the first N classes, N images of each per split, N trials, N epochs. Outputs "
        "lie in <models_root_dir>/limit-N/ and do not count as results",
    )


def apply(args: argparse.Namespace) -> argparse.Namespace:
    """Return the flags with the folders and keys of ``--limit``; a root ``limit-N`` implies ``--limit N``.

    Raises:
        CogError: ``--models_root_dir`` is missing, a flag names outputs elsewhere, or a root is that of another limit.
    """
    flags = dict(vars(args))
    root = args.models_root_dir
    of_place = next(
        (paths.limit_of(place) for place in (root, flags.get("logreg_root_dir")) if place is not None), 0
    )
    limit = flags.pop("limit", None) or of_place
    if not limit:
        return argparse.Namespace(**flags)  # without ``limit``, as in records from before this flag existed
    if root is None and not of_place:
        raise CogError(f"--limit {limit} reads and writes below --models_root_dir; give that")
    for flag in _PLACES:
        if flags.get(flag) is not None:
            raise CogError(f"--limit {limit} reads and writes below --models_root_dir; leave out --{flag}")
    for flag in _FOLDERS:
        if flags.get(flag) is not None:
            flags[flag] = str(paths.with_limit(flags[flag], limit))
    keys = [word for key in _KEYS for word in (key, str(limit))]
    return argparse.Namespace(**flags | {"limit": limit, "opts": [*keys, *args.opts]})
