"""Put the finished classifier runs of each model and data set into one file, runs.zip, or back into their folders.

Every command reads packed runs like others. Fine-tuned models, features and analyses stay as they are.
"""

from __future__ import annotations

import argparse
import functools
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from cog import constants, paths
from cog.commands import image_flags, study_flags
from cog.errors import CogError, did_you_mean
from cog.results import find
from cog.runtime import cli as cli_tools
from cog.runtime import files
from cog.runtime.progress import Progress
from cog.study import pack, units

logger = logging.getLogger("cog")  # the same name when run with python -m

#: Largest number of left-out runs that are named one by one.
_NAMED = 10


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed flags; no file is read or written."""
    parser = cli_tools.Parser(__doc__ or "", no_opts="have no meaning here")
    study_flags.add_places(parser.add_argument_group("runs"), datasets="all of them")
    image_flags.add_models_file(parser.add_argument_group("names"))
    parser.add_argument("--unpack", action="store_true", help="put packed runs back, bit for bit")
    parser.add_argument(
        "--check", action="store_true", help="only read all runs and archives, and print what would be done"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Pack or unpack runs, and return the exit code."""
    args = parse_args(argv)
    root = Path(os.path.abspath(files.require_dir(args.models_root_dir, "--models_root_dir")))
    todo = _find_folders(root, args.models, args.datasets)
    total = pack.PackResult()
    n_failed = 0
    with Progress(len(todo), "unpacking" if args.unpack else "packing", unit="folders") as progress:
        for model, dataset, folder in todo:
            try:
                if args.check:
                    pack.unpack(folder, dry_run=True)
                if args.unpack:
                    result = pack.unpack(folder, dry_run=args.check)
                else:
                    result = pack.pack(folder, model, dataset, dry_run=args.check)
            except CogError as error:
                n_failed += 1
                logger.error("%s", error)
            else:
                total.runs += result.runs
                total.files += result.files
                total.left_out += result.left_out
            progress.update()
    for line in total.left_out[:_NAMED]:
        logger.warning("left as it is: %s", line)
    if len(total.left_out) > _NAMED:
        logger.warning("left as they are: %d more runs", len(total.left_out) - _NAMED)
    verb = "would be " * args.check + ("unpacked" if args.unpack else "packed")
    print(
        f"{total.runs:,} runs with {total.files:,} files and folders {verb if args.check else f'were {verb}'}"
    )
    return 2 if n_failed else 0


def _find_folders(
    root: Path, wanted_models: Sequence[str] | None, wanted_datasets: Sequence[str] | None
) -> list[tuple[str, str, Path]]:
    """Return model, data set and folder of each pair.

    Raises:
        CogError: a model has no folder under the root, or none of the models has a folder of a data set.
    """
    known = find.list_models(root)
    models = units.find_models(root, wanted_models)
    for model in models:
        if model not in known:
            raise CogError(
                f"--models {model}: there is no such model under {root}{did_you_mean(model, known)}"
            )
    datasets = {model: _datasets(paths.ModelDir(root, model).path) for model in models}
    there = sorted(set().union(*datasets.values()))
    for dataset in map(paths.check_dataset_name, wanted_datasets or ()):
        if dataset not in there:
            raise CogError(
                f"--datasets {dataset}: no model asked for has such a folder under {root}"
                f"{did_you_mean(dataset, there)}"
            )
    return [
        (model, dataset, paths.ModelDir(root, model).path / dataset)
        for model in models
        for dataset in (datasets[model] if wanted_datasets is None else dict.fromkeys(wanted_datasets))
        if dataset in datasets[model]
    ]


def _datasets(folder: Path) -> list[str]:
    return [name for name in find.list_folders(folder) if constants.is_plain_name(name)]


cli = functools.partial(cli_tools.run, main)

if __name__ == "__main__":
    cli()
