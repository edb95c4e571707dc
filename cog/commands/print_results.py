"""Show results: one evaluation, tables of all results, figures, a report, or one file to share."""

from __future__ import annotations

import argparse
import functools
import logging
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cog import config, constants, paths
from cog.commands import results_flags
from cog.errors import CogError, did_you_mean, printable, some
from cog.runtime import cli as command_line
from cog.runtime import files
from cog.runtime.log import now

if TYPE_CHECKING:
    import pandas as pd

    from cog.results.read import Results

logger = logging.getLogger("cog")  # the same name when run with python -m

_DESCRIPTION = """\
Print mean +- population standard deviation of top-1 and top-5 over seeds. One evaluation, seed by seed:
--logreg_root_dir, or --models_root_dir with one --model and one --dataset (CLF.N_SHOT 8 or --n_shot 8 for
few-shot). Otherwise one table of everything found under --models_root_dir: models x data sets, one table per
number of shots. Folders of the original toolkit are read as well (eval_logreg-N8/seed_22). Folders that
cannot be included are listed as warnings. EVAL.NAME selects the evaluation; EVAL.SEED has no effect. The
published results of the paper's 31 models can be shown beside, or alone (--published), and results that
others exported can be added (--import); all views treat them alike."""

_WIDTH = 100


def parser() -> command_line.Parser:
    """Return the parser of the command line."""
    return results_flags.parser(_DESCRIPTION)


def main(argv: Sequence[str] | None = None) -> int:
    """Read results, show them, and return the exit code.

    Raises:
        CogError: the arguments are wrong, or there is no result to show.
    """
    args = results_flags.parse(_DESCRIPTION, argv)
    if args.export or args.figures or args.report:
        _write(args)
    else:
        width = shutil.get_terminal_size((_WIDTH, 0)).columns if sys.stdout.isatty() else _WIDTH
        _print(_tables(args, width))
    return 0


def tables(argv: Sequence[str]) -> str:
    """Return the tables that :func:`main` prints."""
    return _tables(results_flags.parse(_DESCRIPTION, argv), _WIDTH)


def _read(args: argparse.Namespace, *, everything: bool) -> Results:
    """Return the selected results with those that a view refers to; of one evaluation, or ``everything``."""
    from cog.results import read
    from cog.results.runs import is_pattern

    for flag, names in (("--model", args.model or []), ("--relative_to", [args.relative_to])):
        for name in names:
            if name is not None and not is_pattern(name):
                paths.split_model_name(name, flag=flag)
    one_model = args.model[0] if len(args.model or ()) == 1 and not is_pattern(args.model[0]) else None
    cfg = config.get_cfg(model_name=one_model, opts=args.opts)
    if "CLF.N_SHOT" in args.opts[::2]:
        if args.n_shot not in (None, [cfg.CLF.N_SHOT]):
            raise CogError("--n_shot and CLF.N_SHOT disagree; give one of them")
        args.n_shot = [cfg.CLF.N_SHOT]
    elif args.n_shot is None and one_model and len(args.dataset or ()) == 1 and _is_plain(args):
        args.n_shot = [cfg.CLF.N_SHOT]
    evaluation = config.evaluation_name(cfg)
    if args.logreg_root_dir:
        # The name of the folder, not the configuration, determines the evaluation of its runs.
        name = files.require_dir(args.logreg_root_dir, "--logreg_root_dir").absolute().name
        evaluation = (paths.parse_evaluation_folder(name) or (evaluation,))[0]
    in1k = [constants.IN1K] * bool(everything or args.show == "drop")
    results = read.read(
        args.models_root_dir,
        folder=args.logreg_root_dir,
        models=args.model and [*args.model, *filter(None, [args.relative_to])],
        datasets=args.dataset and [*args.dataset, *in1k],
        n_shots=args.n_shot,
        seeds=args.seeds,
        evaluations=None if everything and evaluation == "logreg" else {evaluation, "logreg"},
        imports=args.imports or (),
        published=args.published,
        flag="--import",
    )
    if not everything:
        results = read.of_evaluation(results, evaluation)
    read.warn_of_skipped(results.found.skipped)
    if results.scores.empty:
        if args.logreg_root_dir:
            refused = f" ({len(results.found.skipped)} could not be counted, see above)" * bool(
                results.found.skipped
            )
            raise CogError(
                f"no finished run{_of(args)} in --logreg_root_dir {args.logreg_root_dir}{refused}; expected "
                "seed-<seed>/results.json there"
            )
        where = args.models_root_dir, args.model, args.dataset, results.found.skipped
        raise CogError(read.nothing_found(*where, evaluation, more=_of(args)))
    return results


def _of(args: argparse.Namespace) -> str:
    """Return the selected shots and seeds in words."""
    shots = f" with n_shot {' '.join(map(str, args.n_shot))}" if args.n_shot else ""
    return shots + (f" with seeds {' '.join(map(str, args.seeds))}" if args.seeds else "")


def _is_plain(args: argparse.Namespace) -> bool:
    """Return whether no view and no file is asked for, so that one evaluation is shown seed by seed."""
    flags = ("show", "relative_to", "analysis", "imports", "export", "figures", "report")
    return args.format == "text" and not any(getattr(args, flag) for flag in flags)


def _tables(args: argparse.Namespace, width: int) -> str:
    from cog.reporting import render, views
    from cog.results import frame

    results = _read(args, everything=bool(args.analysis))
    means = frame.average(results.scores, args.seeds or ())
    _warn(args, means, results)
    own = results.scores[results.scores["source"] == frame.RUNS]
    places = own[["model", "dataset", "n_shot"]].drop_duplicates()
    is_one = args.logreg_root_dir or (
        len(args.n_shot or ()) == len(args.dataset or ()) == len(args.model or ()) == 1
    )
    if is_one and len(places) == 1 and _is_plain(args):
        return views.seed_by_seed(own, means[means["source"] == frame.RUNS], args.published)
    return render.table(
        frame.in_order(means, args.model or ()),
        args.show or "accuracy",
        relative_to=args.relative_to,
        analysis=args.analysis or (),
        beside=args.published if len(own) else None,
        select=functools.partial(_is_selected, args),
        format=args.format,
        width=width,
    )


def _is_selected(args: argparse.Namespace, view: pd.DataFrame) -> pd.Series:
    """Return whether a row of a view is asked for, and not only what others refer to."""
    from cog.results.runs import matches

    is_model = view["model"].map(lambda name: any(matches(name, pattern) for pattern in args.model or ["*"]))
    return is_model & view["dataset"].isin(args.dataset or view["dataset"])


def _warn(args: argparse.Namespace, means: pd.DataFrame, results: Results) -> None:
    """Log filters without results, and doubts about runs that tables do not show."""
    from cog.results import notices, published, runs

    kind = "result" if args.published or args.imports else "finished run"
    for flag, column, wanted in (
        ("--model", "model", args.model),
        ("--dataset", "dataset", args.dataset),
        ("--n_shot", "n_shot", args.n_shot),
    ):
        there = set(map(str, means[column]))
        absent = [str(one) for one in wanted or () if not any(runs.matches(name, str(one)) for name in there)]
        if absent:
            logger.warning("no %s for %s %s%s", kind, flag, " ".join(absent), did_you_mean(absent[0], there))
    if args.relative_to and args.relative_to not in set(means["model"]):
        hint = did_you_mean(args.relative_to, set(means["model"]))
        if args.relative_to in published.MODELS and not args.published:
            hint = "; add --published to read the paper's"
        raise CogError(f"--relative_to {args.relative_to}: no result of it among those read{hint}")
    for notice in notices.of_training(means, results.found):
        more = f" and {len(notice.places) - 2} more lines" if len(notice.places) > 2 else ""
        logger.warning("%s", printable(f"{notice.title}: {'; '.join(notice.places[:2])}{more}"))


def _write(args: argparse.Namespace) -> None:
    """Write the requested files; those that can still fail for another reason than a full disk are written first."""
    from cog.reporting import outputs

    checks: dict[str, Any] = {
        "figures": outputs.check_folder,
        "report": outputs.check_file,
        "export": outputs.check_file,
    }
    targets = {
        flag: check(name, flag=f"--{flag}", overwrite=args.overwrite)
        for flag, check in checks.items()
        if (name := getattr(args, flag))
    }
    if len(set(targets.values())) < len(targets):
        raise CogError("two outputs have the same path; give each its own")
    export = targets.pop("export", None)
    if targets:
        _draw(args, targets)
    if export:
        from cog.results import share

        results = _read(args, everything=True)
        share.write(export, results.scores)
        logger.info("wrote %s", export)


def _draw(args: argparse.Namespace, targets: dict[str, Any]) -> None:
    """Write figures and the page, which show the published results, too."""
    from cog.reporting import report
    from cog.reporting.figures import draw as figures
    from cog.results import frame, published

    args.published = args.published or next(iter(published.SOURCES))
    results = _read(args, everything=True)
    if folder := targets.get("figures"):
        means = frame.average(results.scores, args.seeds or ())
        logger.info("wrote %d files to %s", len(figures.write(means, results.scores, folder)), folder)
    if target := targets.get("report"):
        if lost := report.not_shown(target, results):
            raise CogError(
                f"--report {args.report} shows more than this page would ({some(lost)}), so it stays; name another file"
            )
        root = args.models_root_dir or args.logreg_root_dir
        report.write(
            target, results, root=root, baseline=args.relative_to, seeds=args.seeds or (), created=now()
        )
        logger.info("wrote %s", target)


def _print(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:  # the terminal's encoding may lack the plus-minus sign
        text = text.replace("±", "+-").replace("†", "*").replace("‡", "#")
        text = text.encode(encoding, "backslashreplace").decode(encoding)
    sys.stdout.write(text)
    sys.stdout.flush()


cli = functools.partial(command_line.run, main)

if __name__ == "__main__":
    cli()
