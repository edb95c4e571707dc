"""Group extracted features into other levels (paper, Fig. 7).

--levels_dir holds one output folder of build_levels.py --rerank for each kind of levels, with the name of the kind
(wup, jcn, random1 ...). bash-scripts/other_levels.sh does everything: levels, overlap, features, classifiers and table.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cog import config, constants
from cog.errors import CogError
from cog.paths import ModelDir
from cog.runtime import cli as cli_tools
from cog.runtime import files

if TYPE_CHECKING:
    pass


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed flags; no file is read or written."""
    parser = cli_tools.Parser(__doc__ or "")
    add = parser.add_argument
    add(
        "--models_root_dir",
        metavar="DIR",
        required=True,
        help="folder of all models, with the features of the levels",
    )
    add(
        "--model",
        metavar="NAME",
        required=True,
        help="<model_title>_<architecture_name>, such as sup_resnet50",
    )
    add(
        "--levels_dir",
        metavar="DIR",
        required=True,
        help="group the features into the levels of its folders, and print the names of the data sets",
    )
    add(
        "--output_dir",
        metavar="DIR",
        required=True,
        help="root of the features and results on other levels, laid out like --models_root_dir",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Group features by the levels of each kind, and return the exit code."""
    args = parse_args(argv)
    source = ModelDir(files.require_dir(args.models_root_dir, "--models_root_dir"), args.model)
    target = ModelDir(Path(args.output_dir), args.model)
    # The keys are those of the classifiers; an error in them is reported before features are copied.
    config.get_cfg(model_name=args.model, opts=args.opts)
    from cog.data.level_files import read_levels
    from cog.features.rearranged import regroup

    given = files.require_dir(args.levels_dir, "--levels_dir")
    folders = sorted(path for path in given.iterdir() if (path / constants.LEVELS_FILE).is_file())
    if not folders:
        raise CogError(f"--levels_dir {given} has no folder with a {constants.LEVELS_FILE}")
    there = sorted(folder.parent.name for folder in source.path.glob("*/features_test"))
    levels = [name for name in there if constants.cog_level(name) is not None]
    if not levels:
        raise CogError(
            f"{source.path} has no features of any level; run extract_features.py on cog_l1, cog_l2, ... first"
        )
    linked = [*([constants.IN1K] if constants.IN1K in there else []), *levels]
    for name in linked:  # the table shows the results of these data sets, too
        place = target.path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            os.symlink(os.path.abspath(source.path / name), place)
    made = []
    for folder in folders:
        for number, wnids in enumerate(read_levels(folder / constants.LEVELS_FILE), start=1):
            made.append(f"{folder.name}_l{number}")
            regroup(source, target, made[-1], wnids, levels=levels)
    sys.stdout.write(f"{' '.join([*linked, *made])}\n")
    return 0


cli = functools.partial(cli_tools.run, main)

if __name__ == "__main__":
    cli()
