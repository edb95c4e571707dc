"""Run a whole study, models by data sets: submit what is missing to SLURM, or run it on this machine.

What follows ``--`` goes to the scripts: FT_EXTRACT.* keys to extract_features.py, other keys to logreg.py, flags to
both.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import io
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from cog import cli as cli_tools
from cog import files, locks, names, paths, slurm, study_local, study_tasks
from cog import study_units as units
from cog.commands import extract_features, image_flags, logreg, status, study_results
from cog.errors import CogError
from cog.slurm import Array, Resources
from cog.study_tasks import EXTRACT, LOGREG, Commands, Plan
from cog.study_units import Study

logger = logging.getLogger("cog")  # also when run with python -m

RESULTS = "results"
STAGES = (EXTRACT, LOGREG, RESULTS)


def parse_args(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Parse flags; touches no file.

    Returns:
        The flags, and what follows ``--``.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    cut = given.index("--") if "--" in given else len(given)
    parser = cli_tools.Parser(__doc__ or "")
    status.add_selection(parser, models_required=False)
    run = parser.add_argument_group("run")
    run.add_argument("--log_dir", required=True, help="folder of logs, task lists and the table of results")
    run.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES), help="default: all")
    run.add_argument("--extract_task", choices=study_tasks.EXTRACT_TASKS, default="dataset",
                     help="what one extraction task does (default: both splits of a data set)")  # fmt: skip
    run.add_argument("--logreg_task", choices=study_tasks.LOGREG_TASKS, default="dataset",
                     help="what one classifier task does (default: all runs of a data set)")  # fmt: skip
    run.add_argument(
        "--extract_args", type=_words, default=[], help="further arguments of extract_features.py"
    )
    run.add_argument("--logreg_args", type=_words, default=[], help="further arguments of logreg.py")
    run.add_argument("--dry_run", action="store_true", help="show what would be run, and do nothing")
    run.add_argument(
        "--check", action="store_true", help="only check all inputs, as each script's --check does"
    )
    images = parser.add_argument_group("models and images, as for extract_features.py")
    images.add_argument("--model_loader", type=cli_tools.python_target, metavar="FILE.py:FUNCTION")
    for flag, text in image_flags.FLAGS.items():
        images.add_argument(f"--{flag}", help=text)
    local = parser.add_argument_group("on this machine")
    local.add_argument("--n_processes", type=cli_tools.whole_number(1),
                       help="tasks at a time (default: one per GPU; 1 without)")  # fmt: skip
    local.add_argument("--gpu_ids", nargs="+", help="GPUs to use, in turn (default: all that are visible)")
    cluster = parser.add_argument_group("SLURM")
    cluster.add_argument("--slurm", action="store_true", help="submit to SLURM")
    for flag in ("partition", "account", "qos", "constraint", "mem", "extract_time", "logreg_time"):
        cluster.add_argument(f"--{flag}")
    cluster.add_argument("--gpus", type=cli_tools.whole_number(0), default=1, help="per process (default: 1)")
    cluster.add_argument("--cpus", type=cli_tools.whole_number(1), help="per process")
    cluster.add_argument("--ranks_per_task", type=cli_tools.whole_number(1), default=1,
                         help="processes that share an extraction task (default: 1)")  # fmt: skip
    cluster.add_argument(
        "--throttle", type=cli_tools.whole_number(1), help="tasks of a kind at the same time"
    )
    cluster.add_argument("--requeue", choices=("yes", "no"), default="yes")
    cluster.add_argument("--max_requeues", type=cli_tools.whole_number(1), default=100)
    cluster.add_argument("--signal_seconds", type=cli_tools.whole_number(0), default=120,
                         help="before the time limit, tasks are told to save (default: 120)")  # fmt: skip
    cluster.add_argument(
        "--max_array_size", type=cli_tools.whole_number(1), help="default: SLURM's MaxArraySize"
    )
    for flag in ("sbatch_args", "extract_sbatch_args", "logreg_sbatch_args", "results_sbatch_args"):
        cluster.add_argument(f"--{flag}", type=_words, default=[], help="further arguments of sbatch")
    args = parser.parse_args(given[:cut])
    if args.opts:
        parser.error(f"{args.opts[0]} and other KEY VALUE pairs go behind --")
    return args, given[cut + 1 :]


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


@dataclass(frozen=True)
class _Extras:
    """What the scripts are given beside what the study says.

    Attributes:
        extract: arguments of extract_features.py.
        logreg: arguments of logreg.py.
        opts: the classifiers' ``KEY VALUE`` pairs.
        config_file: value of ``--config``; or None.
    """

    extract: tuple[str, ...]
    logreg: tuple[str, ...]
    opts: tuple[str, ...]
    config_file: str | None


def share_out(args: argparse.Namespace, more: Sequence[str]) -> _Extras:
    """Give every further argument to the script it is for.

    Raises:
        CogError: when one is nobody's, or would overwrite results.
    """

    def fail(message: str) -> NoReturn:
        raise CogError(message)

    flags, opts = cli_tools.split_opts(list(more), fail)
    of_extract: list[str] = []
    of_logreg: list[str] = []
    for key, value in zip(opts[::2], opts[1::2], strict=True):
        (of_extract if key.startswith("FT_EXTRACT.") else of_logreg).extend((key, value))
    passed = [
        f"--{name}={os.path.abspath(value)}" for name in image_flags.FLAGS if (value := getattr(args, name))
    ]
    if args.model_loader is not None:
        file, _, function = args.model_loader.rpartition(":")
        passed.append(f"--model_loader={os.path.abspath(file)}:{function}")
    extract = (*passed, *flags, *args.extract_args, *of_extract)
    train = (*flags, *args.logreg_args, *of_logreg)
    if "--overwrite" in (*extract, *train):
        fail("--overwrite would repeat what is done with every submission; use it with the script itself")
    parsed = _parsed(
        "extract_features.py", extract_features.parse_args,
        ["--models_root_dir=.", "--model=a_b", "--dataset", "in1k", "--split", "test", *extract],
    )  # fmt: skip
    of_runs = _parsed(
        "logreg.py", logreg.parse_args, ["--models_root_dir=.", "--model=a_b", "--dataset=in1k", *train]
    )
    for flag, value in (("--output_dir", parsed.output_dir), ("--output_dir", of_runs.output_dir),
                        ("--ckpt_file", parsed.ckpt_file), ("--train_features_dir", of_runs.train_features_dir),
                        ("--seeds", of_runs.seeds), ("--n_shots", of_runs.n_shots)):  # fmt: skip
        if value is not None:
            fail(f"{flag} is not for a study, whose results all lie under --models_root_dir; leave it out")
    return _Extras(extract, train, tuple(of_runs.opts), of_runs.config)


def _parsed(script: str, parse: Callable[[Sequence[str]], Any], arguments: Sequence[str]) -> Any:
    """Let a script parse its arguments now: an error in each of a hundred jobs comes too late."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            return parse(arguments)
    except SystemExit as error:
        reason = said.getvalue().partition("error: ")[2].partition(" (see ")[0].strip()
        raise CogError(f"{script} would refuse its arguments: {reason or 'see its --help'}") from error


def check_inputs(args: argparse.Namespace, study: Study, arrays: Sequence[Array]) -> None:
    """Check what every extraction task needs, before anything is submitted.

    Raises:
        CogError: when a model, or what its images need, is not there.
    """
    from cog.models.formats.detect import checkpoint_files
    from cog.models.zoo import get_spec

    todo = [
        unit for array in arrays if array.kind == EXTRACT for some in array.units.values() for unit in some
    ]
    for model in dict.fromkeys(unit.model for unit in todo):
        if args.model_loader is None:
            get_spec(model)
            checkpoint = paths.ModelDir(study.root, model).checkpoint
            if not checkpoint_files(checkpoint):
                raise CogError(
                    f"there is no checkpoint {checkpoint}; prepare_models/README.md says how to get it"
                )
        else:
            files.require_file(args.model_loader.rpartition(":")[0], "--model_loader")
    for dataset in dict.fromkeys(unit.dataset for unit in todo):
        image_flags.require(
            args, dataset, why=f"the features of {dataset} are missing, and extracting them needs"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Submit or run what is missing; returns the exit code."""
    args, more = parse_args(argv)
    extras = share_out(args, more)
    args.datasets = args.datasets or list(names.DATASETS)
    study = status.select(args, extras.opts, config_file=extras.config_file)
    for dataset in study.datasets:
        paths.check_dataset_name(dataset)
    repository = Path(__file__).resolve().parents[2]
    task_script = repository / "bash-scripts" / "slurm" / "task.sh"
    if not task_script.is_file():
        raise CogError(f"{task_script} is not there; a study is run from a checkout, see README.md")
    log_dir = Path(os.path.abspath(args.log_dir))
    options = slurm.Options(
        log_dir=log_dir,
        task_script=task_script,
        partition=args.partition,
        account=args.account,
        qos=args.qos,
        constraint=args.constraint,
        throttle=args.throttle,
        requeue=args.requeue == "yes",
        max_requeues=args.max_requeues,
        signal_seconds=args.signal_seconds,
        more=tuple(args.sbatch_args),
    )
    if args.ranks_per_task > 1 and not args.slurm:
        raise CogError(
            "--ranks_per_task is for SLURM; on one machine several tasks run at a time (--n_processes)"
        )
    # srun does not take the number of processors per task from the job, since SLURM 22.05.
    per_rank = [f"--cpus-per-task={args.cpus}"] if args.cpus else []
    commands = Commands(
        python=sys.executable,
        repository=repository,
        root=study.root,
        extract_flags=extras.extract,
        logreg_flags=extras.logreg,
        launcher=("srun", *per_rank) if args.ranks_per_task > 1 else (),
    )
    with contextlib.ExitStack() as stack:
        if not (args.dry_run or args.check):
            stack.enter_context(locks.locked(log_dir, flag="--log_dir"))
        ahead = slurm.ahead(log_dir, study.root) if args.slurm else slurm.Ahead({}, ())
        statuses = study_tasks.with_queue(units.survey(study), ahead)
        plan = study_tasks.plan(
            study,
            statuses,
            ahead,
            commands,
            extract=_resources(args, EXTRACT),
            logreg=_resources(args, LOGREG),
            extract_task=args.extract_task,
            logreg_task=args.logreg_task,
            stages=args.stages,
            throttle=args.throttle,
            max_array_size=_max_array_size(args),
        )
        check_inputs(args, study, plan.arrays)
        if args.check:
            return max(check_place(plan, options, slurm_too=args.slurm), check(study, statuses, commands))
        _announce(study, statuses, plan)
        opts = [*_names_evaluation(extras.config_file), *extras.opts]
        with_results = RESULTS in args.stages
        if args.slurm:
            last = _results_command(study, log_dir, opts) if with_results else None
            return submit(
                study, plan, ahead, options, last, results=_resources(args, RESULTS), dry_run=args.dry_run
            )
        return run_here(args, study, plan, log_dir, opts, with_results=with_results)


def _max_array_size(args: argparse.Namespace) -> int:
    if args.max_array_size is not None:
        return args.max_array_size
    return slurm.max_array_size() if args.slurm else sys.maxsize


def _resources(args: argparse.Namespace, kind: str) -> Resources:
    if kind == RESULTS:
        return Resources(more=tuple(args.results_sbatch_args))
    extract = kind == EXTRACT
    return Resources(
        gpus=args.gpus,
        cpus=args.cpus,
        mem=args.mem,
        time=args.extract_time if extract else args.logreg_time,
        n_ranks=args.ranks_per_task if extract else 1,
        more=tuple(args.extract_sbatch_args if extract else args.logreg_sbatch_args),
    )


def _results_command(study: Study, log_dir: Path, opts: Sequence[str]) -> list[str]:
    return [
        "env", f"PYTHONPATH={Path(__file__).resolve().parents[2]}", sys.executable, "-m", "cog.commands.study_results",
        f"--models_root_dir={study.root}", f"--log_dir={log_dir}", "--models", *study.models,
        "--datasets", *study.datasets, "--splits", *study.splits, "--seeds", *map(str, study.seeds),
        "--shots", *map(str, study.n_shots), *opts,
    ]  # fmt: skip


def _names_evaluation(config_file: str | None) -> list[str]:
    """Return what of a configuration file names the evaluation: print_results.py takes no ``--config``."""
    from cog import config

    if config_file is None:
        return []
    flat = config.flat(config.get_cfg(config_file=config_file))
    default = config.flat(config.default_cfg())
    keys = ("EVAL.NAME", "CLF.TYPE", "CLF.PCA_DIM", "CLF.MAX_PER_CLASS")
    return [word for key in keys if flat.get(key) != default.get(key) for word in (key, str(flat[key]))]


def _announce(study: Study, statuses: dict[units.Unit, units.Status], plan: Plan) -> None:
    """Say how much there is to do, and what is left out."""
    for kind, label, of in (
        (EXTRACT, "features", units.Extraction),
        (LOGREG, "classifier runs", units.Training),
    ):
        counts = collections.Counter(found.state for unit, found in statuses.items() if isinstance(unit, of))
        planned = {
            unit
            for array in plan.arrays
            if array.kind == kind
            for some in array.units.values()
            for unit in some
        }
        tasks = sum(len(array.commands) for array in plan.arrays if array.kind == kind)
        states = ", ".join(f"{counts[state]} {state}" for state in units.STATES if counts[state])
        logger.info("%s: %s; to do now: %d in %d tasks", label, states, len(planned), tasks)
    for line in plan.held_back:
        logger.warning("left out: %s", line)


def check_place(plan: Plan, options: slurm.Options, *, slurm_too: bool) -> int:
    """Check that logs can be written, and that SLURM would accept the tasks; returns the exit code."""
    log_dir = options.log_dir
    existing = next(folder for folder in (log_dir, *log_dir.parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        print(f"error    log_dir       {log_dir} cannot be created or written to")
        return 2
    print(f"ok       log_dir       {log_dir}")
    worst = 0
    for kind in dict.fromkeys(array.kind for array in plan.arrays if slurm_too):
        array = next(array for array in plan.arrays if array.kind == kind)
        alone = dataclasses.replace(array, after=(), after_jobs=(), after_tasks=())
        command = slurm.sbatch(alone, options, task_list=Path("tasks.txt"), jobs={})
        try:
            slurm.ask(command[0], "--test-only", *command[1:])
            print(f"ok       SLURM         would accept {kind} tasks")
        except CogError as error:
            print(f"error    SLURM         {kind} tasks: {error}")
            worst = 2
    return worst


def check(study: Study, statuses: dict[units.Unit, units.Status], commands: Commands) -> int:
    """Run the scripts' own checks of what is missing; returns the worst exit code."""
    worst = 0
    for model in study.models:
        todo = [
            unit for unit, found in statuses.items()
            if isinstance(unit, units.Extraction) and unit.model == model and found.state != units.DONE
        ]  # fmt: skip
        calls: list[tuple[str, list[str]]] = []
        if todo:
            datasets = list(dict.fromkeys(unit.dataset for unit in todo))
            splits = list(dict.fromkeys(unit.split for unit in todo))
            command = commands.extract(model, datasets, splits)[len(commands.launcher) :]
            calls.append((f"features of {model} on {' '.join(datasets)}", command))
        waiting = {unit.dataset for unit in todo}
        calls += [
            (
                f"classifiers of {model} on {dataset}",
                commands.logreg(model, dataset, study.seeds, study.n_shots),
            )
            for dataset in study.datasets
            if dataset not in waiting
        ]
        for label, call in calls:
            print(f"\n{label}:", flush=True)
            code = subprocess.run([*call, "--check"], check=False).returncode
            worst = max(worst, code)
    return worst


def submit(
    study: Study,
    plan: Plan,
    ahead: slurm.Ahead,
    options: slurm.Options,
    last: list[str] | None,
    *,
    results: Resources,
    dry_run: bool,
) -> int:
    """Hand the arrays to SLURM, and the job that makes the table when they have ended."""
    log_dir = options.log_dir
    submission = slurm.Submission(log_dir, slurm.next_submission(log_dir))
    earlier = {task.split("_")[0] for task, _ in ahead.units.values()}
    table = log_dir / study_results.TABLE_FILE
    if not plan.arrays and (last is None or earlier or ahead.last or table.is_file()):
        logger.info("nothing to submit%s", f"; results: {table}" if table.is_file() else "")
        return 0
    lists = {array.name: (submission.path / f"{array.name}.txt", array.task_list()) for array in plan.arrays}
    if last is not None:
        lists[RESULTS] = (submission.path / f"{RESULTS}.txt", slurm.command_line(last) + "\n")
    if dry_run:
        return _show(plan, lists, options, results, earlier, with_results=last is not None)
    try:
        submission.path.mkdir(parents=True)
        (log_dir / "logs").mkdir(exist_ok=True)
    except OSError as error:
        raise CogError(f"cannot write into --log_dir {log_dir}: {error.strerror or error}") from error
    for path, content in lists.values():
        files.write_text(path, content)
    jobs: dict[str, str] = {}
    for array in plan.arrays:
        command = slurm.sbatch(array, options, task_list=lists[array.name][0], jobs=jobs)
        jobs[array.name] = slurm.submit(command)
        submission.add(jobs[array.name], kind=array.kind, root=study.root, units=array.units)
        print(
            f"{jobs[array.name]}  {array.kind}: {len(array.commands)} tasks ({lists[array.name][0]})",
            flush=True,
        )
    if last is not None:
        after = [*jobs.values(), *sorted(earlier)]
        job = slurm.submit(
            slurm.sbatch_last(options, results, kind=RESULTS, task_list=lists[RESULTS][0], after=after)
        )
        submission.add(job, kind=RESULTS, root=study.root, units={})
        print(f"{job}  results: {table} when all of these have ended", flush=True)
    return 0


def _show(
    plan: Plan,
    lists: dict[str, tuple[Path, str]],
    options: slurm.Options,
    results: Resources,
    earlier: set[str],
    *,
    with_results: bool,
) -> int:
    """Print task lists and commands as a script would have them."""
    for path, content in lists.values():
        print(f"# {path}")
        print(content)
    stand_in = {array.name: f"JOB_OF_{array.name}_" for array in plan.arrays}

    def assign(name: str, command: Sequence[str]) -> None:
        line = slurm.command_line(command)
        for other, placeholder in stand_in.items():
            line = line.replace(placeholder, f"${{{_variable(other)}}}")
        print(f"{_variable(name)}=$({line})")

    for array in plan.arrays:
        assign(array.name, slurm.sbatch(array, options, task_list=lists[array.name][0], jobs=stand_in))
    if with_results:
        after = [*stand_in.values(), *sorted(earlier)]
        path = lists[RESULTS][0]
        assign(RESULTS, slurm.sbatch_last(options, results, kind=RESULTS, task_list=path, after=after))
    return 0


def _variable(name: str) -> str:
    return f"job_{name.replace('-', '_')}"


def run_here(
    args: argparse.Namespace,
    study: Study,
    plan: Plan,
    log_dir: Path,
    opts: Sequence[str],
    *,
    with_results: bool,
) -> int:
    """Run the tasks on this machine, then make the table."""
    tasks = study_local.tasks_of(plan.arrays, log_dir)
    gpus = list(args.gpu_ids or study_local.find_gpus(os.environ))
    n_processes = args.n_processes or max(1, len(gpus))
    if args.dry_run:
        for task in tasks:
            print(
                f"# {task.name}: {task.label}" + (f" (after {', '.join(task.needs)})" if task.needs else "")
            )
            print(slurm.command_line(task.command))
        print(f"# {n_processes} at a time, GPUs: {' '.join(gpus) or 'none'}")
        return 0
    try:
        (log_dir / "logs").mkdir(exist_ok=True)
    except OSError as error:
        raise CogError(f"cannot write into --log_dir {log_dir}: {error.strerror or error}") from error
    summary = study_local.run(tasks, n_processes=n_processes, gpus=gpus, environment=os.environ)
    if summary.signal is not None:
        ended = sum(code == 0 for code in summary.codes.values())
        logger.error(
            "ended by %s: %d of %d tasks are done; the same command continues",
            summary.signal.name,
            ended,
            len(tasks),
        )
        return summary.exit_code
    failed = sum(code != 0 for code in summary.codes.values())
    if failed:
        logger.error(
            "%d of %d tasks failed, %d were not begun, for the reasons above; the same command repeats only these",
            failed, len(tasks), len(summary.skipped),
        )  # fmt: skip
    if with_results:
        try:
            study_results.write(study, log_dir, opts)
            print((log_dir / study_results.TABLE_FILE).read_text(encoding="utf-8"), end="")
        except CogError as error:
            if not failed:
                raise
            logger.error("%s", error)
    return summary.exit_code


def cli() -> NoReturn:
    """Run from the command line."""
    cli_tools.run(main)


if __name__ == "__main__":
    cli()
