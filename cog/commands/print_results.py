"""Show results: one evaluation, tables of all results, figures, a report, or one file to share."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import logging
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from cog import config, paths
from cog.commands import results_flags
from cog.errors import CogError
from cog.reporting import outputs, show
from cog.reporting.tables import writers
from cog.results import find, scores
from cog.results.query import ResultQuery
from cog.runtime import cli as command_line
from cog.runtime import files

logger = logging.getLogger("cog")  # the same name when run with python -m

_DESCRIPTION = """\
Print mean +- population standard deviation of top-1 and top-5 over seeds. One evaluation, seed by seed:
--logreg_root_dir, or --models_root_dir with one --model and one --dataset (CLF.N_SHOT 8 or --n_shot 8 for
few-shot). Otherwise one table of everything found under --models_root_dir: models x data sets, one table per
number of shots. Folders of the original toolkit are read as well (eval_logreg-N8/seed_22). Folders that
cannot be included are listed as warnings. EVAL.NAME selects the evaluation; EVAL.SEED has no effect. The
published results of the paper's 31 models can be shown beside (--with_published) or alone, and results that
others exported can be added (--import); all views treat them alike."""

#: Checks of outputs that are written instead of tables, by flag.
_OUTPUTS = {"export": outputs.check_file, "report": outputs.check_file} | dict.fromkeys(
    ("figures", "diagnostics"), outputs.check_folder
)


def parser() -> command_line.Parser:
    """Return the parser of the command line."""
    return results_flags.parser(_DESCRIPTION)


def main(argv: Sequence[str] | None = None) -> int:
    """Read results, show them, and return the exit code.

    Raises:
        CogError: the arguments are wrong, or there is no result to show.
    """
    args = results_flags.parse(_DESCRIPTION, argv)
    targets = {
        flag: check(name, flag=f"--{flag}", overwrite=args.overwrite)
        for flag, check in _OUTPUTS.items()
        if (name := getattr(args, flag))
    }
    if len(set(targets.values())) < len(targets):
        raise CogError("two outputs have the same path; give each its own")
    if targets:
        query = _query(args)
        show.write_files(show.read(query, args), query, args, targets)
    else:
        width = shutil.get_terminal_size((writers.WIDTH, 0)).columns if sys.stdout.isatty() else writers.WIDTH
        _print(_tables(args, width))
    return 0


def tables(argv: Sequence[str]) -> str:
    """Return the tables that :func:`main` prints."""
    return _tables(results_flags.parse(_DESCRIPTION, argv), writers.WIDTH)


def _tables(args: argparse.Namespace, width: int) -> str:
    query = _query(args)
    return show.as_text(show.read(query, args), query, args, width=width)


def _query(args: argparse.Namespace) -> ResultQuery:
    """Return the selection of the flags.

    Raises:
        CogError: flags contradict each other, or name no results.
    """
    for model in args.model or ():
        if not find.is_pattern(model):
            paths.split_model_name(model, flag="--model")
    if args.relative_to:
        paths.split_model_name(args.relative_to, flag="--relative_to")
    for dataset in args.dataset or ():
        paths.check_dataset_name(dataset)
    exact = [model for model in args.model or () if not find.is_pattern(model)]
    one_model = exact[0] if len(exact) == 1 == len(args.model) else None
    cfg = config.get_cfg(model_name=one_model, opts=args.opts)
    evaluation = config.evaluation_name(cfg)
    query = ResultQuery(
        imports=tuple(map(Path, args.imports or ())),
        paper=args.paper if args.with_published or args.published_only else None,
        seeds=args.seeds,
        eval_name=evaluation,
        baseline=args.relative_to,
        # An evaluation other than the protocol's is exported, drawn and reported alone.
        experiments=bool(
            args.analysis or (evaluation == scores.LOGREG and (args.export or args.figures or args.report))
        ),
    )
    if args.logreg_root_dir is not None and not args.published_only:
        if args.models_root_dir is not None or args.model or args.dataset or args.n_shot:
            logger.warning("--logreg_root_dir names the runs: other flags that select runs have no effect")
        folder = files.require_dir(args.logreg_root_dir, "--logreg_root_dir")
        # The name of the folder, not the configuration, determines the evaluation of its runs.
        parsed = paths.parse_evaluation_folder(folder.absolute().name)
        if parsed is not None and parsed[0] != evaluation:
            query = dataclasses.replace(query, eval_name=parsed[0], experiments=bool(args.analysis))
        return dataclasses.replace(query, logreg_root_dir=folder)
    root = None
    if args.models_root_dir is not None and not args.published_only:
        root = files.require_dir(args.models_root_dir, "--models_root_dir")
    elif not query.imports and query.paper is None:
        raise CogError(
            "nothing to read: give --logreg_root_dir, or --models_root_dir, or --import, or --published_only "
            "(see --help)"
        )
    n_shots = args.n_shot
    if "CLF.N_SHOT" in args.opts[::2]:
        if n_shots not in (None, [cfg.CLF.N_SHOT]):
            raise CogError("--n_shot and CLF.N_SHOT disagree; give one of them")
        n_shots = [cfg.CLF.N_SHOT]
    elif n_shots is None and one_model and len(args.dataset or ()) == 1 and show.is_plain(args):
        n_shots = [cfg.CLF.N_SHOT]
    return dataclasses.replace(
        query, models_root_dir=root, models=args.model, datasets=args.dataset, n_shots=n_shots
    )


def _print(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:  # the terminal's encoding may lack the plus-minus sign
        text = text.replace("±", "+-").replace("†", "*").encode(encoding, "backslashreplace").decode(encoding)
    sys.stdout.write(text)
    sys.stdout.flush()


cli = functools.partial(command_line.run, main)

if __name__ == "__main__":
    cli()
