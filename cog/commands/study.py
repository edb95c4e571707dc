"""Run a whole study, models by data sets: submit its missing tasks to SLURM, or run them on this machine.

Arguments after ``--`` go to the scripts: FT_EXTRACT.* keys to extract_features.py, other keys to logreg.py, flags to
both.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cog import constants, paths
from cog.commands import image_flags, limits, passthrough, slurm_flags, study_flags, study_results
from cog.errors import CogError, some
from cog.runtime import cli as cli_tools
from cog.runtime import locks
from cog.study import check, local_workers, plan, slurm, submit, units

logger = logging.getLogger("cog")  # the same name when run with python -m


def parse_args(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Return the parsed flags; no file is read or written.

    Returns:
        The flags, and the words after ``--``.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    cut = given.index("--") if "--" in given else len(given)
    parser = cli_tools.Parser(__doc__ or "", no_opts="go behind --")
    study_flags.add(parser, shows=False)
    group = parser.add_argument_group("run")
    add = group.add_argument
    add("--log_dir", required=True, help="folder of logs, task lists and the table of results")
    add("--stages", nargs="+", choices=plan.STAGES, default=list(plan.STAGES), help="default: all")
    add("--extract_task", choices=plan.EXTRACT_TASKS, default="dataset",
        help="what one extraction task does (default: both splits of a data set)")  # fmt: skip
    add("--logreg_task", choices=plan.LOGREG_TASKS, default="dataset",
        help="what one classifier task does (default: all runs of a data set)")  # fmt: skip
    for script in ("extract_features", "logreg"):
        flag = f"--{script.partition('_')[0]}_args"
        add(flag, type=slurm_flags.words, default=[], help=f"further arguments of {script}.py")
    add("--dry_run", action="store_true", help="show what would be run, and do nothing")
    add("--check", action="store_true", help="only check all inputs, as each script's --check does")
    study_flags.add_delete_features(group)
    images = parser.add_argument_group("models and images, as for extract_features.py")
    images.add_argument("--model_loader", type=cli_tools.python_target, metavar="FILE.py:FUNCTION",
                        help="loader of a model of your own")  # fmt: skip
    image_flags.add_models_file(images)
    image_flags.add_places(images)
    add = parser.add_argument_group("on this machine").add_argument
    add("--n_processes", type=cli_tools.whole_number(1),
        help="tasks at a time (default: one per GPU; 1 without)")  # fmt: skip
    add("--gpu_ids", nargs="+", help="GPUs to use, in turn (default: all that are visible)")
    slurm_flags.add(parser)
    args = parser.parse_args(given[:cut])
    if args.delete_features and args.slurm and plan.RESULTS not in args.stages:
        parser.error("--delete_features is the end of the stage results, which --stages leaves out")
    if any(w.partition("=")[0] == "--limit" for w in (*given[cut:], *args.extract_args, *args.logreg_args)):
        parser.error("--limit is for the study as a whole: give it before --")
    return args, given[cut + 1 :]


def main(argv: Sequence[str] | None = None) -> int:
    """Submit or run the missing units, and return the exit code."""
    parsed, words = parse_args(argv)
    args = limits.apply(parsed)
    passed = passthrough.split(args, words)
    args.datasets = args.datasets or list(constants.DATASETS)
    study = study_flags.select(args, passed.opts, config_file=passed.config_file)
    left_out = study_flags.left_out(args, study)
    for dataset in study.datasets:
        paths.check_dataset_name(dataset)
    log_dir = Path(os.path.abspath(args.log_dir))
    options = slurm_flags.options(args, log_dir)
    commands = plan.ScriptCommands(study.root, passed.extract, passed.logreg, slurm_flags.launcher(args))
    with contextlib.ExitStack() as stack:
        if not (args.dry_run or args.check):
            stack.enter_context(locks.locked(log_dir, flag="--log_dir"))
        queued = slurm.queued_jobs(log_dir, study.root) if args.slurm else slurm.QueuedJobs()
        statuses = plan.with_queue(units.survey(study), queued)
        tasks = plan.make_plan(
            study,
            statuses,
            queued,
            commands,
            extract_task=args.extract_task,
            logreg_task=args.logreg_task,
            stages=args.stages,
            throttle=args.throttle,
            max_array_size=slurm_flags.max_array_size(args),
        )
        if args.check:  # each script checks its own inputs, so that one problem does not hide others
            return check.check_study(
                study, tasks, statuses, commands, options, left_out.values(), with_slurm=args.slurm
            )
        faulty = check.check_inputs(
            study,
            tasks,
            image_flags.sources(args),
            model_loader=args.model_loader,
            models_file=args.models_file,
        )
        tasks = tasks.without(faulty)
        left_out |= faulty
        tasks.log(statuses)
        opts = passed.results_opts()
        with_results = plan.RESULTS in args.stages
        finish = (
            functools.partial(study_results.delete_features, study, log_dir) if args.delete_features else None
        )
        if args.slurm:
            last = submit.results_command(study, log_dir, opts, delete_features=args.delete_features)
            code = submit.submit(
                study,
                tasks,
                queued,
                options,
                last if with_results else None,
                dry_run=args.dry_run,
                finish=finish,
            )
        else:
            show = functools.partial(study_results.show, study, log_dir, opts)
            code = local_workers.run_plan(
                study, tasks, log_dir, n_processes=args.n_processes, gpu_ids=args.gpu_ids, dry_run=args.dry_run,
                show_results=show if with_results else None, finish=finish,
            )  # fmt: skip
        if left_out:
            logger.error("left out, for the reasons above: %s", some(list(left_out)))
        return code or (CogError.exit_code if left_out else 0)


cli = functools.partial(cli_tools.run, main, continues=True)

if __name__ == "__main__":
    cli()
