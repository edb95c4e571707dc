"""Show results: one evaluation, tables of all results, figures, a report, or one file to share.

Print mean +- population standard deviation of top-1 and top-5 over seeds. One evaluation, seed by seed:
--logreg_root_dir, or --models_root_dir with one --model and one --dataset (--n_shot 8 or CLF.N_SHOT 8 for
few-shot). Otherwise tables of all results, also of the original toolkit. EVAL.NAME selects the evaluation.
"""

import argparse
import logging
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from cog import config, constants, paths
from cog.commands import flags
from cog.errors import CogError, printable, some
from cog.runtime.log import now

logger = logging.getLogger("cog")

#: Values of ``--format`` and ``--published``.
FORMATS = ("text", "markdown", "latex", "csv", "json")
PAPERS = ("v2", "v1")

EXAMPLES = (
    "--models_root_dir /models --published",
    "--models_root_dir /models --model sup_resnet50 --dataset cog_l5",
    "--models_root_dir /models --model sup_resnet50 mine_net --relative_to sup_resnet50 --report page.html",
)

_SHOW = "accuracy (default); fewshot: models x shots; rank: among the models shown; drop: since in1k, in %%"
_RELATIVE = "differences to a model in points, with 95%% intervals, and whether they are significant (Holm)"
_ANALYSIS = "other experiments: analyses (kmeans, knn ...), other classifiers (mlp, finetune ...), or all"
_FORMAT = "default: text. csv and json have top-5 accuracies and all digits; latex has the paper's names"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the flags; a CogError says that they contradict each other, or that there is nothing to read."""
    parser = flags.parser(__doc__, *EXAMPLES)
    add = parser.add_argument
    flags.add(parser, "models_root_dir")
    exported = parser.get_default("models_root_dir")  # for those who name no other source
    parser.set_defaults(models_root_dir=None)
    add("--logreg_root_dir", metavar="DIR", help="one evaluation folder, with a subfolder per seed")
    add("--import", dest="imports", nargs="+", metavar="FILE", help="files of --export")
    add("--published", nargs="?", const=PAPERS[0], choices=PAPERS, help="numbers of the paper: v2 (or v1)")
    flags.add(parser, "model", help="names, or quoted patterns such as 'deit_*'; tables keep the order given")
    flags.add(parser, "dataset", "n_shot", "seeds")
    add("--show", metavar="VIEW", help=_SHOW)
    add("--relative_to", metavar="MODEL", help=_RELATIVE)
    add("--analysis", action=flags.Several, metavar="NAME", help=_ANALYSIS)
    add("--format", choices=FORMATS, default="text", help=_FORMAT)
    add("--export", metavar="FILE", help="write the selected results as one file to share, see --import")
    add("--figures", metavar="DIR", help="draw the paper's figures and the searches, with their data as CSV")
    add("--report", metavar="FILE", help="write a self-contained HTML page")
    flags.add(parser, "overwrite")
    args = parser.parse_args(argv)
    args.imports = [file for file in args.imports or () if not constants.is_unset(file)]
    chosen = [flag for flag in ("show", "relative_to", "analysis") if getattr(args, flag)]
    if len(chosen) > 1:
        raise CogError(f"--{chosen[0]} and --{chosen[1]} are different views; give one of them")
    if args.logreg_root_dir:
        if args.model or args.dataset or args.n_shot:
            logger.warning("--logreg_root_dir names the runs: other flags that select runs have no effect")
        args.models_root_dir = args.model = args.dataset = args.n_shot = None
    if args.show:
        from cog.reporting.views import VIEWS

        if args.show not in VIEWS:
            raise CogError(f"--show {args.show} is not one of {', '.join(VIEWS)}")
    if not (args.models_root_dir or args.logreg_root_dir or args.imports or args.published):
        args.models_root_dir = exported
    args.source = args.models_root_dir or args.logreg_root_dir
    if not (args.source or args.imports or args.published):
        raise CogError("nothing to read: give --models_root_dir, --logreg_root_dir, --import or --published")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Read results, show them, and return the exit code."""
    args = parse(argv)
    if args.export or args.figures or args.report:
        _write(args)
        return 0
    text = _tables(args, shutil.get_terminal_size((100, 0)).columns if sys.stdout.isatty() else 100)
    print(text, end="")
    return 0


def _read(args: argparse.Namespace, *, everything: bool) -> Any:
    """Return the selected results with those that a view refers to; of one evaluation, or ``everything``."""
    from cog.results import read

    names = [name for name in args.model or () if not set(name) & set("*?[")]  # no patterns
    for flag, given in (("--model", names), ("--relative_to", filter(None, [args.relative_to]))):
        for name in given:
            paths.split_model_name(name, flag=flag)
    one_model = names[0] if len(args.model or ()) == len(names) == 1 else None
    cfg = config.get_cfg(model_name=one_model, opts=args.opts)
    if "CLF.N_SHOT" in args.opts[::2] and args.n_shot not in (None, [cfg.CLF.N_SHOT]):
        raise CogError("--n_shot and CLF.N_SHOT disagree; give one of them")
    is_one = one_model and len(args.dataset or ()) == 1 and _is_plain(args)
    if "CLF.N_SHOT" in args.opts[::2] or (args.n_shot is None and is_one):
        args.n_shot = [cfg.CLF.N_SHOT]
    evaluation = config.evaluation_name(cfg)
    if args.logreg_root_dir:
        # The name of the folder, not the configuration, determines the evaluation of its runs.
        name = paths.require_dir(args.logreg_root_dir, "--logreg_root_dir").absolute().name
        evaluation = (paths.parse_evaluation_folder(name) or (evaluation,))[0]
    in1k = [constants.IN1K] * bool(everything or args.show == "drop")
    models = args.model and [*args.model, *filter(None, [args.relative_to])]
    datasets = args.dataset and [*args.dataset, *in1k]
    evaluations = None if everything and evaluation == "logreg" else {evaluation, "logreg"}
    which = {"models": models, "datasets": datasets, "n_shots": args.n_shot, "seeds": args.seeds}
    sources = {"folder": args.logreg_root_dir, "imports": args.imports, "published": args.published}
    results = read.read(args.models_root_dir, evaluations=evaluations, **which, **sources)
    results = results if everything else read.of_evaluation(results, evaluation)
    read.warn_of_skipped(results.skipped)
    if results.scores.empty:
        shots = f" with n_shot {' '.join(map(str, args.n_shot))}" if args.n_shot else ""
        shots += f" with seeds {' '.join(map(str, args.seeds))}" if args.seeds else ""
        shots += f" under {args.logreg_root_dir}" if args.logreg_root_dir else ""
        raise CogError(read.nothing_found(results, args.model or (), args.dataset or (), shots))
    return results


def _is_plain(args: argparse.Namespace) -> bool:
    """Return whether no view and no file is asked for, so that one evaluation is shown seed by seed."""
    others = ("show", "relative_to", "analysis", "imports", "export", "figures", "report")
    return args.format == "text" and not any(getattr(args, flag) for flag in others)


def _tables(args: argparse.Namespace, width: int) -> str:
    from cog.reporting import render, views
    from cog.results import frame, notices, read

    results = _read(args, everything=bool(args.analysis))
    means = frame.average(results.scores, args.seeds or ())
    read.warn_of_absent(means, model=args.model, dataset=args.dataset, n_shot=args.n_shot)
    for notice in notices.check(means, results, training=True):
        more = f" and {len(notice.places) - 2} more lines" if len(notice.places) > 2 else ""
        logger.warning("%s", printable(f"{notice.title}: {'; '.join(notice.places[:2])}{more}"))
    own = results.scores[results.scores["source"] == frame.RUNS]
    n_values = {len(values or ()) for values in (args.model, args.dataset, args.n_shot)}
    is_one = (args.logreg_root_dir or n_values == {1}) and len(own[frame.PLACE[:-1]].drop_duplicates()) == 1
    if is_one and _is_plain(args):
        return views.seed_by_seed(own, means[means["source"] == frame.RUNS], args.published)
    how = {"relative_to": args.relative_to, "analysis": args.analysis or (), "format": args.format}
    how |= {"models": args.model, "datasets": args.dataset, "beside": args.published if len(own) else None}
    text = render.table(frame.in_order(means, args.model or ()), args.show or "accuracy", width=width, **how)
    return render.spelled(text, sys.stdout.encoding)


def _write(args: argparse.Namespace) -> None:
    from cog.reporting import report
    from cog.reporting.figures import draw
    from cog.results import frame, share

    targets = {
        flag: report.check_target(name, f"--{flag}", overwrite=args.overwrite)
        for flag in ("figures", "report", "export")
        if (name := getattr(args, flag))
    }
    if export := targets.pop("export", None):
        share.write(export, _read(args, everything=True).scores)
        logger.info("wrote %s", export)
    if not targets:
        return
    args.published = args.published or PAPERS[0]  # figures and page show the published results, too
    results, seeds = _read(args, everything=True), args.seeds or ()
    if folder := targets.get("figures"):
        n = len(draw.write(frame.average(results.scores, seeds), results.scores, folder))
        logger.info("wrote %d files to %s", n, folder)
    if target := targets.get("report"):
        if lost := report.not_shown(target, results):
            raise CogError(f"--report {target} shows more ({some(lost)}), so it stays; name another file")
        how = {"root": args.source, "baseline": args.relative_to, "seeds": seeds, "created": now()}
        report.write(target, results, **how)
        logger.info("wrote %s", target)
