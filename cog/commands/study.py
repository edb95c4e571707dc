"""Run a whole study, models by data sets: on this machine, or as job arrays of SLURM.

What is finished is skipped, after a comparison with what the study would make: results of another checkpoint,
image size, pooling or training end it, or are made again with --overwrite. FT_EXTRACT keys are for the
features, all others for the classifiers.
"""

import argparse
import contextlib
import dataclasses
import functools
import logging
import os
import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cog import config, constants, paths
from cog.commands import flags
from cog.errors import CogError, some
from cog.runtime import cli, files, output
from cog.runtime.memory import n_processors
from cog.runtime.output import DONE
from cog.study import local, networks, slurm, tasks, units
from cog.study.tasks import EXTRACT, Task
from cog.study.units import Study

logger = logging.getLogger("cog")  # the same name when run with python -m


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed flags; no file is read or written."""
    parser = flags.parser(
        __doc__,
        "--models_root_dir /models --in1k_images_root /in1k --dataset in1k --dry_run",
        "--model 'deit_*' mine_net --models_file models.yaml --seeds 22 37 --n_shot all 8 CLF.N_EPOCHS 50",
        "--slurm='--partition=gpu --gres=gpu:1 --time=12:00:00' --overwrite",
    )
    flags.add(parser, "models_root_dir", required=True)
    flags.add(parser, "model", help="names, or patterns such as 'deit_*' (default: all that are there)")
    flags.add(parser, "dataset", default=list(constants.DATASETS))
    flags.add(parser, "seeds", default=list(constants.SEEDS))
    flags.add(parser, "n_shot", default=[0, *constants.SHOTS])
    flags.add(parser, "models_file", "model_loader", *flags.IMAGES, "log_dir")
    flags.add(parser, "overwrite", help="make results of other networks or settings again")
    add, number = parser.add_argument, cli.whole_number(1)
    add("--dry_run", action="store_true", help="print the tasks, and try each model on one image")
    add("--n_processes", type=number, metavar="N", help="tasks at a time (default: one per GPU or processor)")
    text = "submit to SLURM, with arguments of sbatch such as '--partition=gpu --gres=gpu:1'"
    add("--slurm", type=shlex.split, nargs="?", const=[], metavar="SBATCH_ARGS", help=text)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Submit or run the missing tasks, and return the exit code."""
    args = parse_args(argv)
    from cog.models.choice import find_model

    root = Path(os.path.abspath(args.models_root_dir))
    paths.require_dir(root.parent if paths.limit_of(root) else root, "--models_root_dir")
    log_dir = Path(os.path.abspath(args.log_dir or root / "study-logs"))
    for key, flag in (("EVAL.SEED", "--seeds"), ("CLF.N_SHOT", "--n_shot")):
        if key in args.opts[::2]:
            raise CogError(f"{key} is for a single run; give {flag} for a study")
    extract_opts, opts = list[str](), list[str]()
    for key, value in zip(args.opts[::2], args.opts[1::2], strict=True):
        (extract_opts if key.startswith("FT_EXTRACT.") else opts).extend((key, value))
    find = functools.partial(find_model, root=root, loader=args.model_loader, models_file=args.models_file)
    study, incomplete = _choose(args, root, find)
    compared = functools.partial(networks.compared, find=find, extract_opts=extract_opts, opts=opts)
    states = compared(study, units.survey(study))
    if (others := units.reasons(states, units.OTHER)) and not args.overwrite:
        for line in others:
            logger.error("%s", line)
        raise CogError("finished outputs are of other computations, see above; --overwrite makes them again")
    places = (*flags.IMAGES, "models_file", "model_loader")
    given = [f"--{name}={getattr(args, name)}" for name in places if getattr(args, name)]
    again = ["--overwrite"] * args.overwrite
    commands = tasks.commands_of(study, [*given, *again, *extract_opts], [*again, *opts])
    script = tasks.script(study, log_dir, opts)
    with contextlib.ExitStack() as stack:
        if not args.dry_run:  # one study lists and submits at a time: each look waits for a second
            root.mkdir(exist_ok=True)  # limit-N
            any(stack.enter_context(output.locked(log_dir)) for _ in range(60))
        listed = tasks.list_tasks(study, log_dir, append=False)
        todo = {number: task for number, task in listed.items() if tasks.is_open(study, task, states)}
        extractions = [task for task in todo.values() if task.kind == EXTRACT]
        for dataset in dict.fromkeys(task.dataset for task in extractions):
            why = f"the features of {dataset} are missing; extracting needs"
            flags.image_sources(args).require(dataset, why=why)
        n_done = sum(state.word == DONE for state in states.values())
        logger.info("%d of %d outputs are done; %d tasks to do", n_done, len(states), len(todo))
        if not args.dry_run:
            tasks.list_tasks(study, log_dir)
            files.write_json(root / units.STUDY_FILE, files.plain(vars(study)))
        if args.slurm is not None and todo:
            slurm.submit(todo, listed, commands, script, args.slurm, log_dir, dry_run=args.dry_run)
    if args.dry_run:
        for number, task in todo.items():
            print(f"# {number}: {task}\n{shlex.join(task.command(commands))}", flush=True)
        return _try_models(extractions, args, find, extract_opts) or incomplete
    if args.slurm is not None and slurm.queued_tasks(log_dir):
        return incomplete
    code = local.run_here(study, todo, commands, log_dir, args.n_processes) if args.slurm is None else 0
    if code:  # another process may have made what a task here could not
        states = compared(study, units.survey(study))
        n_open = sum(tasks.is_open(study, task, states) for task in todo.values())
        code = code if n_open else 0
    if code:
        logger.error("%d tasks failed, for the reasons above; the same command repeats only these", n_open)
    ended = subprocess.run(["sh", "-c", script], check=False).returncode
    return code or ended or incomplete


def _choose(args: argparse.Namespace, root: Path, find: Callable[[str], Any]) -> tuple[Study, int]:
    """Return the study without models that cannot be loaded, and the exit code if such ones are named."""
    models = networks.choose(root, args.models_file, args.model)
    data = tuple(map(paths.check_dataset_name, args.dataset))
    evaluation = config.evaluation_name(config.get_cfg(opts=args.opts))
    study = Study(root, models, data, tuple(args.seeds), tuple(args.n_shot), evaluation)
    states, unusable = units.survey(study), {}
    for model in study.models:
        try:
            if any(tasks.is_open(study, Task(EXTRACT, name, (model,)), states) for name in study.datasets):
                find(model)
        except CogError as error:
            unusable[model] = error
    usable = tuple(model for model in study.models if model not in unusable)
    if not usable:
        raise next(iter(unusable.values()))
    if unusable:
        names, reason = some([*unusable], 9), next(iter(unusable.values()))
        logger.warning("left out, since they cannot be loaded: %s (the first: %s)", names, reason)
    return dataclasses.replace(study, models=usable), CogError.exit_code if unusable and args.model else 0


def _try_models(
    tasks: Sequence[Task], args: argparse.Namespace, find: Callable[[str], Any], opts: Sequence[str]
) -> int:
    """Try each model of extractions on images in a process of its own, and return the exit code."""
    dataset_of: dict[str, str] = {}  # the first one
    for task in tasks:
        dataset_of |= {model: task.dataset for model in task.models if model not in dataset_of}
    if not dataset_of:
        return 0
    import timm  # noqa: F401 (and torchvision, which most networks need: once, for all processes)
    import torch

    from cog.features.extract import Model
    from cog.features.run import try_model

    sources, split = flags.image_sources(args), constants.SPLITS[1]
    lists = {dataset: sources.list_images(dataset, split) for dataset in dict.fromkeys(dataset_of.values())}

    def trial(name: str) -> str | CogError:
        torch.set_num_threads(1)
        try:
            choice = find(name)
            return try_model(Model(choice, choice.config(opts)), lists[dataset_of[name]])
        except CogError as error:
            return error

    code, tried = 0, networks.in_processes(trial, [*dataset_of], n_processors())
    for model, result in zip(dataset_of, tried, strict=True):
        print(f"# {model}: {result or 'its process has crashed'}", flush=True)
        code = code if isinstance(result, str) else CogError.exit_code
    return code
