"""From flags to published runs: the work of ``logreg.py``.

The seeds of a number of shots are one unit of work, as far as they fit into memory: a group in lockstep. Each run is
published as a folder of its own. The trials and the state of the training of a group lie in the work folder of its last
run, which is published last.
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
from cog.logreg.settings import from_config
from cog.logreg.unfinished import read_trials
from cog.paths import ModelDir, check_dataset_name, features_file, seed_folder
from cog.runtime import files, log, signals
from cog.runtime.output import Output, Work

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from cog.logreg.engine import Engine
    from cog.logreg.features import Data

logger = logging.getLogger(__name__)

#: Packages on which the bits of a run depend.
_PACKAGES = ("torch", "optuna", "numpy")


def plan_runs(args: argparse.Namespace) -> tuple[list[Run], Path, Path]:
    """Return the requested runs by number of shots and seed, and the feature files of both splits.

    Raises:
        CogError: flags and keys that do not fit together; missing features, or those of different networks.
    """
    train, test, model_dir = _find_features(args)
    require_one_network(train, test)
    features = {
        f"{split}_features": identify_input(file) for split, file in (("train", train), ("test", test))
    }
    for flag, values, key in (("--seeds", args.seeds, "EVAL.SEED"), ("--n_shot", args.n_shot, "CLF.N_SHOT")):
        if values is not None and key in args.opts[::2]:
            raise CogError(f"{flag} and {key} are both given; leave one of them out")
    cfg = config.get_cfg(model_name=args.model, opts=args.opts)
    config.check_new_name(cfg, cfg.CLF.TYPE)
    runs = []
    for n_shot in args.n_shot or [cfg.CLF.N_SHOT]:
        for seed in args.seeds or [cfg.EVAL.SEED]:
            pair = ["EVAL.SEED", str(seed), "CLF.N_SHOT", str(n_shot)]
            of_run = config.get_cfg(model_name=args.model, opts=[*args.opts, *pair])
            settings = from_config(of_run, seed=seed, momentum=args.mom)
            identity = json.loads(json.dumps(dataclasses.asdict(settings) | features))
            metadata = {
                "model": args.model,
                "dataset": args.dataset,
                "train_features": str(train),
                "test_features": str(test),
                "configuration": config.flat(of_run),
                "versions": log.versions(_PACKAGES),
            }
            path = _output_of(args, of_run, model_dir)
            runs.append(Run(settings, Output(path, identity, RESULTS_FILE, CONTENTS), metadata))
    return runs, train, test


def _find_features(args: argparse.Namespace) -> tuple[Path, Path, ModelDir | None]:
    """Return the feature files of both splits, and the folder of the model; None when the flags do not name it."""
    if args.dataset is not None:
        check_dataset_name(args.dataset)
    if (args.train_features_dir is None) != (args.test_features_dir is None):
        raise CogError("give both --train_features_dir and --test_features_dir, or neither")
    model_dir = None
    if args.models_root_dir is not None and args.model is not None and args.dataset is not None:
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
    return folder.with_name(f"{folder.name}_N{n_shot}" if n_shot else folder.name) / seed_folder(seed)


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
    open_runs = []
    for run in runs:
        if not run.output.is_done(overwrite=args.overwrite):
            open_runs.append(run)
            continue
        logger.info("%s is complete, skipped", run.output.path)
        print_accuracies((run.output.read() or {}).get("final", {}), run.output.path)
    if not open_runs:
        return
    from cog.features import feature_files
    from cog.logreg.engine import Engine
    from cog.runtime.device import resolve_device
    from cog.runtime.memory import exhaustion_explained

    first = runs[0].settings
    engine = Engine(resolve_device(args.device), first.precision)
    seeds = list(dict.fromkeys(run.settings.seed for run in runs))
    with exhaustion_explained("preparing the training", "take a smaller CLF.BATCH_SIZE"):
        on_train, on_test = (
            feature_files.load(file, normalize=first.normalize, rounded=True) for file in (train, test)
        )
        data = engine.prepare(on_train, on_test, first, n_seeds=len(seeds))
        del on_train, on_test
    by_shots: dict[int, list[Run]] = {}
    for run in runs:
        by_shots.setdefault(run.settings.n_shot, []).append(run)
    most = data.together.seeds
    parts = [of[i : i + most] for of in by_shots.values() for i in range(0, len(of), most)]
    for number, part in enumerate(parts):
        signals.check("finished runs are saved" if number else "no training was begun")
        if wanted := [run for run in part if run in open_runs]:
            _do_group(part, wanted, data, engine, args)


def _do_group(
    part: Sequence[Run],
    wanted: Sequence[Run],
    data: Data,
    engine: Engine,
    args: argparse.Namespace,
) -> None:
    """Train those of ``part``, which may be in lockstep, that are ``wanted``; write and publish them."""
    import torch

    from cog.logreg import protocol
    from cog.runtime.memory import exhaustion_explained

    with contextlib.ExitStack() as stack:
        works = [(run, stack.enter_context(run.output.claimed())) for run in wanted]
        works = [(run, work) for run, work in works if not work.published]  # by another process, just now
        if not works:
            return
        folder = works[-1][1].folder
        group = _group(part, [run for run, _ in works], folder)
        for _, work in works:
            stack.enter_context(log.log_file(work.folder / "program.log"))
        seeds = " ".join(str(run.settings.seed) for run in group)
        logger.info(
            "%s: seeds %s, CLF.N_SHOT %d", works[-1][0].output.path.parent, seeds, group[0].settings.n_shot
        )
        with exhaustion_explained(
            f"training classifiers of {data.n_classes} classes", "take a smaller CLF.BATCH_SIZE"
        ):
            results = protocol.run_protocol(
                data,
                [run.settings for run in group],
                engine,
                folder=folder,
                versions=dict(works[0][0].metadata["versions"]),
                print_freq=args.print_freq,
            )
        by_seed = {run.settings.seed: result for run, result in zip(group, results, strict=True)}
        facts: dict[str, Any] = {"device": engine.device.type, "precision": engine.precision}
        facts["threads"] = torch.get_num_threads()  # the last bits depend on it on a CPU
        facts["lockstep"] = [run.settings.seed for run in group]
        for run, work in works:
            _publish(run, work, by_seed[run.settings.seed], data, facts)


def _publish(run: Run, work: Work, result: Any, data: Data, facts: dict[str, Any]) -> None:
    with work.publish() as stage:
        final = write_run(stage, result, data, run, facts | {"finished": log.now()})
    print_accuracies(final, run.output.path)


def _group(part: Sequence[Run], wanted: Sequence[Run], folder: Path) -> Sequence[Run]:
    """Return the runs to train in lockstep: those that are not done, or the group of unfinished work on them.

    A group that was interrupted between the publications of its runs has to be trained as a whole, since the last bits
    depend on what is in lockstep.
    """
    stored = read_trials(folder) or {"group": {"seeds": []}}
    begun = [run for run in part if run.settings.seed in stored["group"]["seeds"]]
    is_all = len(begun) == len(stored["group"]["seeds"]) and all(run in begun for run in wanted)
    return begun if is_all else wanted
