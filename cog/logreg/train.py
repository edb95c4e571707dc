"""From flags to published runs: the work of ``logreg.py``.

The seeds of a number of shots are one unit of work, as far as they fit into memory: a group in lockstep. Each
run is published as a folder of its own. Trials and state of the training of a group lie in the work folder of
its last run, which is published last.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import config, constants
from cog.errors import CogError
from cog.features.folder import identify_input, no_features, require_one_network
from cog.logreg.run_files import CONTENTS, Run, print_accuracies, write_run
from cog.logreg.search import read_trials
from cog.logreg.settings import PACKAGES, from_config
from cog.paths import ModelDir, check_dataset_name, features_file, require_dir
from cog.runtime import files, log, signals
from cog.runtime.output import LOG_FILE, Output

if TYPE_CHECKING:
    from cog.logreg.engine import Engine
    from cog.logreg.features import Data

logger = logging.getLogger(__name__)


def plan_runs(args: argparse.Namespace) -> tuple[list[Run], Path, Path]:
    """Return the requested runs by number of shots and seed, and the feature files of both splits."""
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
            path = _output_of(args, model_dir, config.evaluation_name(cfg), n_shot, seed)
            output = Output(path, identity, contents=CONTENTS)
            runs.append(Run(settings, output, facts | {"configuration": config.flat(of_run)}))
    return runs, train, test


def _find_features(args: argparse.Namespace) -> tuple[Path, Path, ModelDir | None]:
    """Return the feature files of both splits, and the folder of the model, if the flags name it."""
    if args.dataset is not None:
        check_dataset_name(args.dataset)
    folders, model_dir = [args.train_features_dir, args.test_features_dir], None
    if None not in (args.models_root_dir, args.model, args.dataset):
        model_dir = ModelDir(require_dir(args.models_root_dir, "--models_root_dir"), args.model)
        if folders == [None, None]:
            folders = [model_dir.features(args.dataset, split) for split in constants.SPLITS]
    if None in folders:
        these = "--train_features_dir and --test_features_dir"
        raise CogError(f"no features: give --models_root_dir with --model and --dataset, or {these}")
    if args.output_dir is None and model_dir is None:
        raise CogError("nowhere to write: give --output_dir")
    train, test = (features_file(folder) for folder in folders)
    for path, split in ((train, "train"), (test, "test")):
        if not os.path.isfile(path):
            raise no_features(path, split)
    return train, test, model_dir


def _output_of(
    args: argparse.Namespace, model_dir: ModelDir | None, name: str, n_shot: int, seed: int
) -> Path:
    """Return the folder of a run."""
    if args.output_dir is None:
        assert model_dir is not None
        return model_dir.run(args.dataset, name=name, n_shot=n_shot, seed=seed)
    if args.seeds is None and args.n_shot is None:
        return Path(args.output_dir)
    folder = Path(os.path.normpath(args.output_dir))
    return folder.with_name(f"{folder.name}_N{n_shot}" if n_shot else folder.name) / f"seed-{seed}"


def train_all(runs: Sequence[Run], train: Path, test: Path, args: argparse.Namespace) -> None:
    """Do the runs that are not done, which differ in seed and shots only; print the accuracies of all.

    When one fails or the process is interrupted, finished ones stay, and the same call continues the others.
    """
    wanted = []
    for run in runs:
        path, record = run.output.path, run.output.path / constants.RESULTS_FILE
        is_original = any(path.glob(constants.FINAL_MODEL)) and not record.exists()  # the last file of a run
        if is_original and not args.overwrite:
            logger.warning("%s is kept, and no %s tells how it was made", path, constants.RESULTS_FILE)
        elif not run.output.is_done(overwrite=args.overwrite):
            wanted.append(run)
        else:
            logger.info("%s is complete, skipped", path)
            print_accuracies(files.read_object(record).get("final", {}), path)
    if not wanted:
        return
    from cog.features import feature_files
    from cog.logreg.engine import Engine
    from cog.runtime.device import resolve_device

    first, shots = runs[0].settings, list(dict.fromkeys(run.settings.n_shot for run in runs))
    engine = Engine(resolve_device(args.device), first.precision)
    load = functools.partial(feature_files.load, normalize=first.normalize, rounded=True)
    of_train, of_test = load(train), load(test)
    data = engine.prepare(of_train, of_test, first, n_seeds=len(runs) // len(shots))
    del of_train, of_test  # they may be on a device now
    of_shots, most = [[run for run in runs if run.settings.n_shot == n] for n in shots], data.together.seeds
    groups = [part[i : i + most] for part in of_shots for i in range(0, len(part), most)]
    for number, group in enumerate(groups):
        signals.check("finished runs are saved" if number else "no training was begun")
        _do_group(group, [run for run in group if run in wanted], data, engine, args.print_freq)


def _do_group(
    group: Sequence[Run], wanted: Sequence[Run], data: Data, engine: Engine, print_freq: int
) -> None:
    """Train those of a group that are ``wanted``; write and publish them."""
    import torch

    from cog.logreg.protocol import run_protocol

    with contextlib.ExitStack() as stack:
        for run in wanted:
            stack.enter_context(run.output.claimed())
        wanted = [run for run in wanted if not run.output.is_published]  # by another process, just now
        if not wanted:
            return
        for run in wanted:
            stack.enter_context(log.log_file(run.output.work / LOG_FILE))
        folder = wanted[-1].output.work
        # A group that was interrupted between the publications of its runs has to be trained as a whole,
        # since last bits depend on what is in lockstep.
        begun = read_trials(folder)[0].get("seeds", [])
        whole = [run for run in group if run.settings.seed in begun]
        if len(whole) < len(begun) or not {run.settings.seed for run in wanted} <= {*begun}:
            whole = [*wanted]
        facts: dict[str, Any] = {"device": engine.device.type, "precision": engine.precision}
        facts["threads"] = torch.get_num_threads()  # the last bits depend on it on a CPU
        seeds = facts["lockstep"] = [run.settings.seed for run in whole]
        logger.info("%s: seeds %s", group[0].output.path.parent, " ".join(map(str, seeds)))
        settings = [run.settings for run in whole]
        results = run_protocol(data, settings, engine, folder=folder, print_freq=print_freq)
        by_seed = dict(zip(seeds, results, strict=True))
        for run in wanted:
            with run.output.publish() as stage:
                finished = facts | {"finished": log.now()}
                final = write_run(stage, by_seed[run.settings.seed], data, run, finished)
            print_accuracies(final, run.output.path)
