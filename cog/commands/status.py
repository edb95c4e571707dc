"""Show the progress of the last study in a models root: what is done, runs, has failed, is missing."""

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path

from cog.commands import flags
from cog.paths import require_dir
from cog.runtime import files
from cog.study import networks, units
from cog.study.units import Study


def main(argv: Sequence[str] | None = None) -> int:
    """Show the state of every output, and return the exit code."""
    example = "--models_root_dir /models"
    others = f"{example} --model 'deit_*' mine_net", f"{example} --format json"
    parser = flags.parser(__doc__, example, *others, has_keys=False)
    flags.add(parser, "models_root_dir", required=True)
    flags.add(parser, "model", help="names, or patterns such as 'deit_*' (default: those of the study)")
    flags.add(parser, "format")
    args = parser.parse_args(argv)
    root = Path(os.path.abspath(require_dir(args.models_root_dir, "--models_root_dir")))
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
        rows = [{**vars(unit), "state": word, "detail": text} for unit, (word, text) in states.items()]
        print(json.dumps(rows, indent=1))
    return 0
