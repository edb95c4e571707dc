"""The requests of print_results.py, made from its flags."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import shutil
import sys
from pathlib import Path

from cog import config, paths
from cog.commands.results_source_flags import given, settle_published
from cog.errors import CogError
from cog.reporting.request import OutputRequest, ResultsRequest
from cog.reporting.tables import writers
from cog.results import find, scores, uncertainty
from cog.results.query import ResultQuery
from cog.runtime import files

logger = logging.getLogger(__name__)

#: Flags of views, of which at most one is given.
_VIEWS = ("relative_to", "drop", "rank", "baseline", "claims", "power", "analysis", "variants", "overview")

#: Flags that show or export differences; with them, predictions are read for runs without counts per concept.
_WITH_INTERVALS = ("relative_to", "drop", "baseline", "claims", "power", "export", "report")

#: Views that can have intervals over images, as tables of accuracies can.
_OVER_IMAGES = frozenset({"baseline", "relative_to", "drop"})


def output_request(args: argparse.Namespace) -> OutputRequest:
    """Return the request of the flags for output files."""
    return OutputRequest(
        **{
            flag: getattr(args, flag)
            for flag in ("output", "export", "label", "report", "figures", "diagnostics")
        },
        figure_names=given(args.figure_names),
        figure_formats=given(args.figure_formats),
        overwrite=args.overwrite,
        reads_runs=not args.published_only and bool(args.models_root_dir or args.logreg_root_dir),
    )


def results_request(args: argparse.Namespace) -> ResultsRequest:
    """Return the request of the flags: results to read and to show.

    Raises:
        CogError: flags contradict each other, name no results, or name results that do not exist.
    """
    if args.compare is not None:
        if given(args.model) or args.baseline:
            raise CogError("--compare MODEL BASELINE stands for --model and --baseline; leave those out")
        args = argparse.Namespace(**vars(args) | {"model": [args.compare[0]], "baseline": args.compare[1]})
    args = settle_published(args)
    request = ResultsRequest(
        ResultQuery(),
        analysis=given(args.analysis),
        variants=given(args.variants),
        limit=getattr(args, "limit", 0),
        **{
            flag: getattr(args, flag)
            for flag in ("view", "relative_to", "drop", "rank", "baseline", "claims", "power", "overview", "metric",
                         "with_published", "paper", "format", "decimals", "labels", "allow_mixed_epochs",
                         "interval_over")
        },
        width=_width(args),
    )  # fmt: skip
    chosen = [flag for flag in _VIEWS if getattr(request, flag)]
    by_image, output = args.interval_over == uncertainty.IMAGES, output_request(args)
    views = [*chosen, *filter(None, (args.view, given(args.imports), args.published_only, by_image))]
    request = dataclasses.replace(request, per_seed=not views and not output.without_tables)
    if args.view and request.shows_experiments:
        chosen.insert(0, "view")
    if len(chosen) > 1:
        raise CogError(f"--{chosen[0]} and --{chosen[1]} are different views; give one of them")
    if by_image and (output.without_tables or not _OVER_IMAGES.issuperset(chosen)):
        known = ", ".join(f"--{flag}" for flag in sorted(_OVER_IMAGES))
        raise CogError(f"--interval_over images is for tables of accuracies, {known}; leave out the others")
    for flag in ("overview", "claims", "power", "variants"):
        if args.metric in ("top5", "both") and getattr(request, flag):
            raise CogError(f"--{flag} shows top-1 only; leave out --metric {args.metric}")
    return dataclasses.replace(request, selection=_select(args, request))


def _width(args: argparse.Namespace) -> int:
    if args.width is not None or args.output is not None or not sys.stdout.isatty():
        return writers.WIDTH if args.width is None else args.width
    return shutil.get_terminal_size((writers.WIDTH, 0)).columns


def _select(args: argparse.Namespace, request: ResultsRequest) -> ResultQuery:
    models, datasets, n_shots = given(args.model), given(args.dataset), given(args.n_shot)
    named = [("model", model) for model in models or () if not find.is_pattern(model)]
    named += [(flag, model) for flag in ("relative_to", "baseline") if (model := getattr(args, flag))]
    for flag, model in named:
        paths.split_model_name(model, flag=f"--{flag}" if args.compare is None else "--compare")
    for dataset in datasets or ():
        paths.check_dataset_name(dataset)
    exact = models if models is not None and not any(map(find.is_pattern, models)) else None
    one_model = exact[0] if exact is not None and len(exact) == 1 else None
    cfg = config.get_cfg(model_name=one_model, opts=args.opts)
    evaluation = config.evaluation_name(cfg)
    common = ResultQuery(
        imports=tuple(map(Path, given(args.imports) or ())),
        paper=args.paper if args.with_published or args.published_only else None,
        categories=given(args.category),
        seeds=given(args.seeds),
        eval_name=evaluation,
        models_file=args.models_file,
        baseline=args.relative_to or args.baseline,
        compared=args.compare is not None,
        reads_predictions=any(getattr(args, flag) for flag in _WITH_INTERVALS),
        by_image=request.interval_over == uncertainty.IMAGES,
        # An evaluation other than the protocol's is exported, drawn and reported alone.
        experiments=request.shows_experiments
        or request.claims
        or (evaluation == scores.LOGREG and any((args.export, args.figures, args.report))),
    )
    if args.published_only:
        if args.logreg_root_dir or args.models_root_dir:
            logger.warning("--published_only: the folders given are not read")
    elif args.logreg_root_dir is not None:
        if args.models_root_dir is not None or models or datasets or n_shots or common.categories:
            logger.warning("--logreg_root_dir names the runs: other flags that select runs have no effect")
        folder = files.require_dir(args.logreg_root_dir, "--logreg_root_dir")
        # The name of the folder, not the configuration, determines the evaluation of its runs.
        parsed = paths.parse_evaluation_folder(folder.absolute().name)
        if parsed is not None and parsed[0] != evaluation:
            common = dataclasses.replace(common, eval_name=parsed[0], experiments=request.shows_experiments)
        return dataclasses.replace(common, logreg_root_dir=folder)
    elif args.models_root_dir is None and not common.imports and not args.with_published:
        raise CogError(
            "nothing to read: give --logreg_root_dir, or --models_root_dir, or --import, or --published_only "
            "(see --help)"
        )
    from_cfg = "CLF.N_SHOT" in args.opts[::2]
    if from_cfg and n_shots not in (None, [cfg.CLF.N_SHOT]):
        raise CogError("--n_shot and CLF.N_SHOT disagree; give one of them")
    if from_cfg or (n_shots is None and request.per_seed and one_model and len(datasets or ()) == 1):
        n_shots = [cfg.CLF.N_SHOT]
    root = None
    if args.models_root_dir is not None and not args.published_only:
        root = files.require_dir(args.models_root_dir, "--models_root_dir")
    return dataclasses.replace(
        common, models_root_dir=root, models=models, datasets=datasets, n_shots=n_shots
    )
