"""Show the progress of the last study in a models root: what is done, runs, has failed, is missing."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Sequence
from pathlib import Path

from cog.commands import flags
from cog.runtime import cli as cli_tools
from cog.runtime import files
from cog.study import networks, units
from cog.study.units import Study


def main(argv: Sequence[str] | None = None) -> int:
    """Show the state of every output, and return the exit code."""
    examples = ("--models_root_dir /models", "--models_root_dir /models --model 'deit_*' mine_net")
    parser = flags.parser(__doc__ or "", *examples, no_opts="have no effect here")
    flags.add(parser, "models_root_dir", required=True)
    flags.add(parser, "model", help="names, or patterns such as 'deit_*' (default: those of the study)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")
    args = parser.parse_args(argv)
    root = Path(os.path.abspath(files.require_dir(args.models_root_dir, "--models_root_dir")))
    path = root / units.STUDY_FILE
    study = Study(root, ())  # of the protocol
    if path.is_file():
        study = dataclasses.replace(Study.of_entries(files.read_object(path)), root=root)
    if args.model is not None or not study.models:
        study = dataclasses.replace(study, models=networks.choose(root, None, args.model))
    states = units.survey(study)
    if args.format == "text":
        print(units.draw(study, states), end="")
    else:
        found = [
            dataclasses.asdict(unit) | {"state": word, "detail": text}
            for unit, (word, text) in states.items()
        ]
        print(json.dumps(found, indent=1))
    return 0


cli = functools.partial(cli_tools.run, main)
