"""Flags that select a study."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from cog import config, constants
from cog.errors import CogError
from cog.models import models_file
from cog.results import find
from cog.runtime import cli as cli_tools
from cog.runtime import files
from cog.study import units
from cog.study.units import Study

logger = logging.getLogger(__name__)


def add_places(group: argparse._ArgumentGroup, *, datasets: str) -> None:
    """Add the flags of root, models and data sets; ``datasets`` describes the default of ``--datasets`` in its help."""
    group.add_argument("--models_root_dir", required=True, help="root of all models")
    group.add_argument(
        "--models",
        nargs="+",
        help="names, or patterns such as 'deit_*' for folders under the root and entries of --models_file (default: "
        "all of them)",
    )
    group.add_argument("--datasets", "--dataset", nargs="+", help=f"names (default: {datasets})")


def add(parser: cli_tools.Parser, *, shows: bool = True) -> None:
    """Add the flags.

    Args:
        parser: parser for the flags.
        shows: whether the command only shows a study (else it runs a study).
    """
    group = parser.add_argument_group("study")
    usual = " ".join(constants.DATASETS)
    add_places(group, datasets=f"those under the root; {usual} if there are none" if shows else usual)
    group.add_argument(
        "--seeds",
        nargs="+",
        type=cli_tools.whole_number(0),
        default=list(constants.SEEDS),
        metavar="SEED",
        help=f"default: {' '.join(map(str, constants.SEEDS))}",
    )
    group.add_argument(
        "--shots",
        nargs="+",
        type=cli_tools.whole_number(0),
        default=[0, *constants.SHOTS],
        metavar="N",
        help=f"training images per class, 0 for all (default: 0 {' '.join(map(str, constants.SHOTS))})",
    )


def add_delete_features(group: cli_tools.Parser | argparse._ArgumentGroup) -> None:
    """Add the flag that deletes the features at the end of a study."""
    group.add_argument(
        "--delete_features",
        action="store_true",
        help="at the end, delete the features of each model and data set whose classifier runs are all done, unless "
        "another unfinished output may need them; the deleted files are listed",
    )


def select(args: argparse.Namespace, opts: Sequence[str], *, models_root: Path | None = None) -> Study:
    """Return the study that the flags describe.

    Args:
        args: the flags.
        opts: ``KEY VALUE`` pairs.
        models_root: folder of the models, if it is not that of the results.

    Raises:
        CogError: a name is malformed, or matches no model.
    """
    for key, flag in (("EVAL.SEED", "--seeds"), ("CLF.N_SHOT", "--shots")):
        if key in opts[::2]:
            raise CogError(f"{key} is for a single run; give {flag} for a study")
    files.require_dir(models_root or args.models_root_dir, "--models_root_dir")
    root = Path(os.path.abspath(args.models_root_dir))
    # Commands that only show a study have no flag --models_file.
    user_models, faults = _user_models(getattr(args, "models_file", None))
    for error in faults.values():
        logger.warning("%s; this entry is left out", error)
    models = units.find_models(models_root or root, args.models, user_models)
    return Study(
        root=root,
        models=models,
        datasets=tuple(dict.fromkeys(args.datasets or units.find_datasets(root, models))),
        seeds=tuple(dict.fromkeys(args.seeds)),
        n_shots=tuple(dict.fromkeys(args.shots)),
        evaluation=config.evaluation_name(config.get_cfg(opts=opts)),
    )


def left_out(args: argparse.Namespace, study: Study) -> dict[str, CogError]:
    """Return the errors of the entries that are not in a study because they cannot be used, by name."""
    return {
        name: error
        for name, error in _user_models(args.models_file)[1].items()
        if name not in study.models
        and (args.models is None or any(find.matches(name, model) for model in args.models))
    }


def _user_models(file: str | None) -> tuple[list[str], dict[str, CogError]]:
    """Return the names of the models in the user's file, and the errors of the entries that cannot be used, by name."""
    names: list[str] = []
    faults: dict[str, CogError] = {}
    for name, entry in (models_file.read(file) if file is not None else {}).items():
        try:
            names.append(models_file.parse(file or "", name, entry).name)
        except CogError as error:
            faults[name] = error
    return names, faults
