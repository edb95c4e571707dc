"""Show the progress of the last study in a models root: done, running, failed, interrupted and missing outputs."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
from collections.abc import Sequence
from pathlib import Path

from cog.commands import flags
from cog.runtime import cli as cli_tools
from cog.runtime import files
from cog.study import models, status, units
from cog.study.units import Study


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed flags; no file is read or written."""
    parser = flags.parser(
        __doc__ or "",
        "--models_root_dir /models",
        "--models_root_dir /models --model 'deit_*' mine_net",
        "--models_root_dir /models --format json",
        no_opts="have no effect here",
    )
    flags.add(parser, "models_root_dir", required=True)
    flags.add(parser, "model", help="names, or patterns such as 'deit_*' (default: those of the study)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Show the state of every output, and return the exit code."""
    args = parse_args(argv)
    root = Path(os.path.abspath(files.require_dir(args.models_root_dir, "--models_root_dir")))
    known, _ = models.list_models(root, None)
    path = root / units.STUDY_FILE
    if path.is_file():  # else the outputs of the protocol
        study = dataclasses.replace(Study.of_entries(files.read_object(path)), root=root)
    else:
        study = Study(root, models.choose(known, None, must_exist=True))
    if args.model is not None:
        chosen = models.choose(list(dict.fromkeys([*study.models, *known])), args.model, must_exist=True)
        study = dataclasses.replace(study, models=chosen)
    states = units.survey(study)
    if args.format == "text":
        print(status.draw(study, states), end="")
    else:
        print(json.dumps(status.records(study, states), indent=1))
    return 0


cli = functools.partial(cli_tools.run, main)

if __name__ == "__main__":
    cli()
