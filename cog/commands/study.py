"""Run a whole study, models by data sets: on this machine, or as job arrays of SLURM.

What is finished is skipped, after a comparison with what the study would make: results of another checkpoint, image
size, pooling or training end it, or are made again with --overwrite. FT_EXTRACT keys are for the features, all others
for the classifiers.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import logging
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from cog import config, constants, paths
from cog.commands import flags
from cog.errors import CogError, FailedImagesError, some
from cog.runtime import cli as cli_tools
from cog.runtime import files, signals
from cog.runtime.output import DONE
from cog.study import identity, local, models, results, slurm, tasks, units
from cog.study.tasks import Task
from cog.study.units import Study

logger = logging.getLogger("cog")  # the same name when run with python -m

#: Log folder under the models root, unless ``--log_dir`` names another one.
LOG_FOLDER = "study-logs"

#: Exit codes of a study that a signal has ended.
_INTERRUPTED = (signals.EXIT_CODE, 130)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed flags; no file is read or written."""
    parser = flags.parser(
        __doc__ or "",
        "--models_root_dir /models --in1k_images_root /in1k --dataset in1k --dry_run",
        "--model 'deit_*' mine_net --models_file models.yaml --seeds 22 37 --n_shot all 8 CLF.N_EPOCHS 50",
        "--slurm='--partition=gpu --gres=gpu:1 --time=12:00:00' --overwrite",
    )
    group = parser.add_argument_group("study")
    flags.add(group, "models_root_dir", required=True)
    flags.add(
        group,
        "model",
        help="names, or patterns such as 'deit_*' (default: all under the root and in the file)",
    )
    flags.add(group, "dataset", default=list(constants.DATASETS))
    flags.add(group, "seeds", default=list(constants.SEEDS))
    flags.add(group, "n_shot", default=[0, *constants.SHOTS])
    flags.add(parser.add_argument_group("models and images"), "models_file", "model_loader")
    flags.add_images(parser.add_argument_group("images"))
    group = parser.add_argument_group("run")
    flags.add(
        group,
        "log_dir",
        metavar="DIR",
        help=f"logs, tasks and tables (default: <models_root_dir>/{LOG_FOLDER})",
    )
    flags.add(group, "overwrite", help="make results of other networks or settings again")
    group.add_argument(
        "--dry_run", action="store_true", help="print the tasks, and try each model on one image"
    )
    group.add_argument(
        "--delete_features", action="store_true", help="at the end, delete features whose runs are all done"
    )
    group.add_argument(
        "--n_processes",
        type=cli_tools.whole_number(1),
        metavar="N",
        help="tasks at a time here (default: one per GPU; without GPUs as many as processors and memory allow)",
    )
    group.add_argument(
        "--slurm",
        nargs="?",
        const="",
        metavar="SBATCH_ARGS",
        help="submit to SLURM, with arguments of sbatch such as '--partition=gpu --gres=gpu:1'",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Submit or run the missing tasks, and return the exit code."""
    args = parse_args(argv)
    root = Path(os.path.abspath(files.require_dir(args.models_root_dir, "--models_root_dir")))
    log_dir = Path(os.path.abspath(args.log_dir or root / LOG_FOLDER))
    extract_opts, opts = _keys_of_stages(args.opts)
    networks = identity.Networks(str(root), *_own_models(args), extract_opts)
    study, left_out = _choose(args, root, networks)
    states = units.survey(study)
    other = identity.other_results(study, networks, states, opts)
    if other and not args.overwrite:
        for line in identity.describe_others(other):
            logger.error("%s", line)
        raise CogError(
            f"{len(other)} finished outputs are of other computations, see above; add --overwrite to make them again"
        )
    again = ["--overwrite"] * args.overwrite
    extract = [*_places(args), *again, *extract_opts]
    commands = tasks.commands_of(study, {tasks.EXTRACT: extract, tasks.LOGREG: [*again, *opts]})
    with contextlib.nullcontext() if args.dry_run else tasks.one_at_a_time(log_dir):
        listed = tasks.list_tasks(study, log_dir, append=False)
        todo = {n: task for n, task in listed.items() if tasks.outputs_to_make(study, task, states, other)}
        for dataset in dict.fromkeys(task.dataset for task in todo.values() if task.stage == tasks.EXTRACT):
            flags.image_sources(args).require(
                dataset, why=f"the features of {dataset} are missing; extracting needs"
            )
        n_done = sum(state.word == DONE for unit, state in states.items() if unit not in other)
        logger.info("%d of %d outputs are done; %d tasks to do", n_done, len(states), len(todo))
        if not args.dry_run:
            tasks.list_tasks(study, log_dir)
            files.write_text(root / units.STUDY_FILE, study.as_json() + "\n")
        if args.slurm is not None and todo:
            last = results.command(study, log_dir, opts, delete_features=args.delete_features)
            options = _sbatch_words(args.slurm)
            slurm.submit(todo, listed, commands, last, options, log_dir, dry_run=args.dry_run)
    if args.dry_run:
        return _dry_run(todo, commands)
    code = 0 if args.slurm is not None else _run_here(study, todo, commands, log_dir, args.n_processes)
    if code in _INTERRUPTED or (args.slurm is not None and slurm.queued_tasks(log_dir)):
        return code
    try:
        print(results.write(study, log_dir, opts, delete_features=args.delete_features), end="", flush=True)
    except CogError as error:
        if not code:
            raise
        logger.error("%s", error)
    return code or (CogError.exit_code if left_out else 0)


def _keys_of_stages(opts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the keys and values of the extractions, and those of the classifiers."""
    for key, flag in (("EVAL.SEED", "--seeds"), ("CLF.N_SHOT", "--n_shot")):
        if key in opts[::2]:
            raise CogError(f"{key} is for a single run; give {flag} for a study")
    of_stages: tuple[list[str], list[str]] = ([], [])
    for key, value in zip(opts[::2], opts[1::2], strict=True):
        of_stages[not key.startswith("FT_EXTRACT.")].extend((key, value))
    return of_stages


def _choose(args: argparse.Namespace, root: Path, networks: identity.Networks) -> tuple[Study, bool]:
    """Return the study, without models that have to be loaded and cannot be, and whether some of these are named."""
    known, faults = models.list_models(root, args.models_file)
    study = Study(
        root=root,
        models=models.choose(known, args.model, must_exist=False),
        datasets=tuple(map(paths.check_dataset_name, args.dataset)),
        seeds=tuple(args.seeds),
        n_shots=tuple(args.n_shot),
        evaluation=config.evaluation_name(config.get_cfg(opts=args.opts)),
    )
    states = units.survey(study)
    unusable = {} if args.model else dict(faults)
    for model in study.models:
        try:
            if units.needs_network(study, states, model):
                networks.find(model)
        except CogError as error:
            unusable[model] = error
    usable = tuple(model for model in study.models if model not in unusable)
    if not usable:
        raise next(iter(unusable.values()))
    for model, fault in unusable.items() if args.model else ():
        logger.error("%s is left out: %s", model, fault)
    if unusable and not args.model:
        logger.warning(
            "left out, since they cannot be loaded: %s (name them for the reasons)", some([*unusable], 9)
        )
    return dataclasses.replace(study, models=usable), bool(unusable and args.model)


def _own_models(args: argparse.Namespace) -> tuple[str | None, str | None]:
    """Return ``--model_loader`` and ``--models_file`` with absolute paths."""
    file, _, function = (args.model_loader or "").rpartition(":")
    loader = f"{os.path.abspath(file)}:{function}" if file else None
    return loader, args.models_file and os.path.abspath(args.models_file)


def _places(args: argparse.Namespace) -> list[str]:
    """Return the flags of images and models, with absolute paths."""
    loader, models_file = _own_models(args)
    places = {
        flag: value and os.path.abspath(value) for flag, value in flags.image_sources(args).values.items()
    }
    places |= {"model_loader": loader, "models_file": models_file}
    return [f"--{flag}={value}" for flag, value in places.items() if value]


def _sbatch_words(text: str) -> list[str]:
    try:
        return [] if constants.is_unset(text) else shlex.split(text)
    except ValueError as error:
        raise CogError(f"--slurm {text!r}: {error}") from None


def _dry_run(todo: Mapping[int, Task], commands: Mapping[str, Sequence[str]]) -> int:
    """Print the tasks, try their models, and return the exit code."""
    trials: dict[str, list[str]] = {}
    for number, task in todo.items():
        print(f"# {number}: {task}\n{shlex.join(tasks.command_of(task, commands))}")
        for model in task.models if task.stage == tasks.EXTRACT else ():
            alone = dataclasses.replace(task, models=(model,))
            trials.setdefault(model, tasks.command_of(alone, commands))
    return 0 if models.try_models(trials) else CogError.exit_code


def _run_here(
    study: Study,
    todo: Mapping[int, Task],
    commands: Mapping[str, Sequence[str]],
    log_dir: Path,
    n: int | None,
) -> int:
    """Run tasks on this machine, ``n`` at a time, and return the exit code, which comes from the outputs."""
    slots = local.Slots.of_machine(study, n)
    mine = {
        n: dataclasses.replace(t, models=tuple(m for m in t.models if m in study.models))
        for n, t in todo.items()
    }
    if mine:
        logger.info("%d tasks at a time, %d threads each", slots.n, slots.n_threads)
    code = local.run_here(mine, commands, log_dir, slots, functools.partial(local.memory_of, study))
    if code in (0, *_INTERRUPTED):
        return code
    states = units.survey(study)
    n_open = sum(bool(tasks.outputs_to_make(study, task, states, ())) for task in mine.values())
    if not n_open:
        return 0  # another process has made what a task here could not
    advice = "the same command repeats only these"
    if code == FailedImagesError.exit_code:
        advice += "; first fix the images that cannot be decoded, or extract with --allow_failures N"
    logger.error("%d of %d tasks failed, for the reasons above; %s", n_open, len(todo), advice)
    return code


cli = functools.partial(cli_tools.run, main, continues=True)

if __name__ == "__main__":
    cli()
