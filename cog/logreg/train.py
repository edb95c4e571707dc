"""From flags to published runs: the work of ``logreg.py``.

The seeds of a number of shots are one unit of work, as far as they fit into memory: a group in lockstep. Each run is
published as a folder of its own. The trials and the state of the training of a group lie in the work folder of its
last run, which is published last.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import config, constants
from cog.errors import CogError
from cog.features.folder import identify_input, no_features, require_one_network
from cog.logreg.run_files import CONTENTS, RESULTS_FILE, Run, print_accuracies, write_run
from cog.logreg.settings import PACKAGES, from_config
from cog.logreg.unfinished import read_trials
from cog.paths import ModelDir, check_dataset_name, features_file
from cog.runtime import files, log, signals
from cog.runtime.output import Output

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from cog.logreg.engine import Engine
    from cog.logreg.features import Data

logger = logging.getLogger(__name__)


def plan_runs(args: argparse.Namespace) -> tuple[list[Run], Path, Path]:
    """Return the requested runs by number of shots and seed, and the feature files of both splits.

    Raises:
        CogError: flags and keys that do not fit together; missing features, or those of different networks.
    """
    train, test, model_dir = _find_features(args)
    require_one_network(train, test)
    features = {"train_features": identify_input(train), "test_features": identify_input(test)}
    for flag, values, key in (("--seeds", args.seeds, "EVAL.SEED"), ("--n_shot", args.n_shot, "CLF.N_SHOT")):
        if values is not None and key in args.opts[::2]:
            raise CogError(f"{flag} and {key} are both given; leave one of them out")
    cfg = config.get_cfg(model_name=args.model, opts=args.opts)
    config.check_new_name(cfg, cfg.CLF.TYPE)
    facts = {"model": args.model, "dataset": args.dataset, "versions": log.versions(PACKAGES)}
    facts |= {"train_features": str(train), "test_features": str(test)}
    runs = []
    for n_shot in args.n_shot or [cfg.CLF.N_SHOT]:
        for seed in args.seeds or [cfg.EVAL.SEED]:
            pair = ["EVAL.SEED", str(seed), "CLF.N_SHOT", str(n_shot)]
            of_run = config.get_cfg(model_name=args.model, opts=[*args.opts, *pair])
            settings = from_config(of_run, seed=seed, momentum=args.mom)
            identity = json.loads(json.dumps(dataclasses.asdict(settings) | features))
            output = Output(_output_of(args, of_run, model_dir), identity, RESULTS_FILE, CONTENTS)
            runs.append(Run(settings, output, facts | {"configuration": config.flat(of_run)}))
    return runs, train, test


def _find_features(args: argparse.Namespace) -> tuple[Path, Path, ModelDir | None]:
    """Return the feature files of both splits, and the folder of the model; None when the flags do not name it."""
    if args.dataset is not None:
        check_dataset_name(args.dataset)
    if (args.train_features_dir is None) != (args.test_features_dir is None):
        raise CogError("give both --train_features_dir and --test_features_dir, or neither")
    model_dir = None
    if None not in (args.models_root_dir, args.model, args.dataset):
        model_dir = ModelDir(files.require_dir(args.models_root_dir, "--models_root_dir"), args.model)
    if args.train_features_dir is not None:
        folders = [Path(args.train_features_dir), Path(args.test_features_dir)]
    elif model_dir is not None:
        folders = [model_dir.features(args.dataset, split) for split in constants.SPLITS]
    else:
        raise CogError(
            "no features: give --models_root_dir with --model and --dataset, or --train_features_dir with "
            "--test_features_dir"
        )
    if args.output_dir is None and model_dir is None:
        raise CogError("nowhere to write: give --output_dir")
    train, test = (features_file(folder) for folder in folders)
    for path, split in zip((train, test), constants.SPLITS, strict=True):
        if not os.path.isfile(path):
            raise no_features(path, split)
    return train, test, model_dir


def _output_of(args: argparse.Namespace, cfg: CfgNode, model_dir: ModelDir | None) -> Path:
    """Return the folder of the run that ``cfg`` describes."""
    seed, n_shot = cfg.EVAL.SEED, cfg.CLF.N_SHOT
    if args.output_dir is None:
        assert model_dir is not None
        return model_dir.run(args.dataset, name=config.evaluation_name(cfg), n_shot=n_shot, seed=seed)
    if args.seeds is None and args.n_shot is None:
        return Path(args.output_dir)
    folder = Path(os.path.normpath(args.output_dir))
    return folder.with_name(f"{folder.name}_N{n_shot}" if n_shot else folder.name) / f"seed-{seed}"


def train_all(runs: Sequence[Run], train: Path, test: Path, args: argparse.Namespace) -> None:
    """Load the features once and do the runs that are not done; publish each, and print the accuracies of all.

    When a run fails or the process is interrupted, the finished runs stay, and the same call continues the others.

    Args:
        runs: all requested runs; they differ in seed and number of shots only.
        train: feature file of the training images.
        test: feature file of the test images.
        args: flags ``device``, ``print_freq`` and ``overwrite``.

    Raises:
        CogError: files, folders or a device that cannot be used, too little memory; see also
            :func:`cog.logreg.protocol.run_protocol`.
        Interrupted: when the process was asked to end.
    """
    wanted = []
    for run in runs:
        if not run.output.is_done(overwrite=args.overwrite):
            wanted.append(run)
            continue
        logger.info("%s is complete, skipped", run.output.path)
        print_accuracies((run.output.read() or {}).get("final", {}), run.output.path)
    if not wanted:
        return
    from cog.features import feature_files
    from cog.logreg.engine import Engine
    from cog.runtime.device import resolve_device
    from cog.runtime.memory import exhaustion_explained

    first, shots = runs[0].settings, list(dict.fromkeys(run.settings.n_shot for run in runs))
    engine = Engine(resolve_device(args.device), first.precision)
    with exhaustion_explained("preparing the training", "take a smaller CLF.BATCH_SIZE"):
        on_train, on_test = (
            feature_files.load(file, normalize=first.normalize, rounded=True) for file in (train, test)
        )
        data = engine.prepare(on_train, on_test, first, n_seeds=len(runs) // len(shots))
        del on_train, on_test  # they may be on a device now
    of_shots = [[run for run in runs if run.settings.n_shot == n] for n in shots]
    most = data.together.seeds
    for number, group in enumerate(
        part[i : i + most] for part in of_shots for i in range(0, len(part), most)
    ):
        signals.check("finished runs are saved" if number else "no training was begun")
        if open_runs := [run for run in group if run in wanted]:
            _do_group(group, open_runs, data, engine, args.print_freq)


def _do_group(
    group: Sequence[Run], wanted: Sequence[Run], data: Data, engine: Engine, print_freq: int
) -> None:
    """Train those of a group that are ``wanted``; write and publish them."""
    import torch

    from cog.logreg.protocol import run_protocol
    from cog.runtime.memory import exhaustion_explained

    with contextlib.ExitStack() as stack:
        works = [(run, stack.enter_context(run.output.claimed())) for run in wanted]
        works = [(run, work) for run, work in works if not work.published]  # by another process, just now
        if not works:
            return
        for _, work in works:
            stack.enter_context(log.log_file(work.folder / "program.log"))
        last, work = works[-1]
        # A group that was interrupted between the publications of its runs has to be trained as a whole, since the
        # last bits depend on what is in lockstep.
        begun = read_trials(work.folder)[0].get("seeds", [])
        whole = [run for run in group if run.settings.seed in begun]
        seeds = [run.settings.seed for run, _ in works]
        if len(whole) < len(begun) or not {*seeds} <= {*begun}:
            whole = [run for run, _ in works]
        lockstep = [run.settings.seed for run in whole]
        logger.info("%s: seeds %s, CLF.N_SHOT %d", last.output.path.parent, lockstep, last.settings.n_shot)
        settings = [run.settings for run in whole]
        task = f"training classifiers of {data.n_classes} classes"
        with exhaustion_explained(task, "take a smaller CLF.BATCH_SIZE"):
            results = run_protocol(data, settings, engine, folder=work.folder, print_freq=print_freq)
        facts: dict[str, Any] = {"device": engine.device.type, "precision": engine.precision}
        facts["threads"] = torch.get_num_threads()  # the last bits depend on it on a CPU
        facts["lockstep"] = lockstep
        by_seed = dict(zip(lockstep, results, strict=True))
        for run, work in works:
            with work.publish() as stage:
                result = by_seed[run.settings.seed]
                final = write_run(stage, result, data, run, facts | {"finished": log.now()})
            print_accuracies(final, run.output.path)
