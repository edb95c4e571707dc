"""The plan of ``logreg.py``: the runs, their files and folders, and their checks (``--check``).

Torch is imported only when features are opened, so that a call with only complete runs takes no time.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import config, constants
from cog.errors import CogError
from cog.features.folder import identify_input, no_features, with_class_list
from cog.logreg.run_folder import RunFolder, RunPlan
from cog.logreg.settings import Settings, from_config
from cog.paths import ModelDir, check_dataset_name, features_file, seed_folder
from cog.runtime import files, machine_checks, provenance
from cog.runtime.check_report import Report

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from cog.features.feature_files import FeatureSet

_SHOWN = 5

#: Size of the files of a finished run beside its classifier, in bytes: study, logs, settings.
_RUN_BYTES = 1 << 20


# ------------------------------------------------------------------------------------------------------------
# Runs


def plan_runs(args: argparse.Namespace) -> tuple[list[RunPlan], Path, Path]:
    """Return the plans of the requested runs, and the feature files of both splits.

    Raises:
        CogError: flags and keys that do not fit together; missing features.
    """
    train, test, model_dir = _resolve_features(args)
    runs = _run_configs(args)
    flags = {
        name: value for name, value in vars(args).items() if name not in ("opts", "seeds", "n_shots", "check")
    }
    plans = []
    for run_cfg, opts in runs:
        label = f"[seed {run_cfg.EVAL.SEED}, {run_cfg.CLF.N_SHOT or 'all'}] " if len(runs) > 1 else ""
        settings = _get_settings(args, run_cfg, label)
        output = _output_of(args, run_cfg, model_dir)
        identity = identify(settings, train, test, output)
        metadata = {
            "model": args.model,
            "dataset": args.dataset,
            "train_features": str(train),
            "test_features": str(test),
            "configuration": config.flat(run_cfg),
            "versions": provenance.versions(("torch", "optuna", "numpy")),
        }
        folder = RunFolder(output, identity, overwrite=args.overwrite, skip_complete=args.skip_complete)
        arguments = flags | {"output_dir": str(output) if args.output_dir else None, "opts": opts}
        plans.append(RunPlan(settings, folder, arguments, run_cfg.dump(), metadata))
    return plans, train, test


def _resolve_features(args: argparse.Namespace) -> tuple[Path, Path, ModelDir | None]:
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


def _run_configs(args: argparse.Namespace) -> list[tuple[CfgNode, list[str]]]:
    """Return the configuration and the ``KEY VALUE`` pairs of each run, as for a call with this run alone."""
    for flag, values, key in (
        ("--seeds", args.seeds, "EVAL.SEED"),
        ("--n_shots", args.n_shots, "CLF.N_SHOT"),
    ):
        if values is not None and key in args.opts[::2]:
            raise CogError(f"{flag} and {key} are both given; leave one of them out")
        if values is not None and len(set(values)) < len(values):
            raise CogError(f"{flag} names a value twice: {' '.join(map(str, values))}")
    cfg, runs = _config(args, args.opts), [args.opts]
    if args.seeds is not None or args.n_shots is not None:
        runs = [
            [*args.opts, "EVAL.SEED", str(seed), "CLF.N_SHOT", str(n_shot)]
            for n_shot in args.n_shots or [cfg.CLF.N_SHOT]
            for seed in args.seeds or [cfg.EVAL.SEED]
        ]
    return [(_config(args, opts), opts) for opts in runs]


def _config(args: argparse.Namespace, opts: list[str]) -> CfgNode:
    return config.get_cfg(model_name=args.model, config_file=args.config, opts=opts)


def _get_settings(args: argparse.Namespace, cfg: CfgNode, label: str) -> Settings:
    """Return the protocol's settings from flags and configuration."""
    config.check_new_name(cfg, cfg.CLF.TYPE)
    return from_config(cfg, seed=cfg.EVAL.SEED, momentum=args.mom, lr=args.lr, wd=args.wd, label=label)


def _output_of(args: argparse.Namespace, cfg: CfgNode, model_dir: ModelDir | None) -> Path:
    """Return the folder of the run that ``cfg`` describes."""
    seed, n_shot = cfg.EVAL.SEED, cfg.CLF.N_SHOT
    if args.output_dir is None:
        assert model_dir is not None
        return model_dir.run(args.dataset, name=config.evaluation_name(cfg), n_shot=n_shot, seed=seed)
    if args.seeds is None and args.n_shots is None:
        return Path(args.output_dir)
    folder = Path(os.path.normpath(args.output_dir))
    return folder.with_name(f"{folder.name}_N{n_shot}" if n_shot else folder.name) / seed_folder(seed)


def identify(settings: Settings, train: Path, test: Path, output: Path) -> dict[str, Any]:
    """Return the identity of a run, which is equal for equal settings and features (by size and, if known, origin).

    Raises:
        CogError: when the features and ``output`` belong to different values of ``--limit``.
    """
    identity = dataclasses.asdict(settings)
    del identity["label"]
    for split, file in (("train", train), ("test", test)):
        features, made = identify_input(file, output)
        if "limit" in made:
            identity["limit"] = made["limit"]
        # float16 and bfloat16 files have the same size
        if made.get("save_dtype", "float32") != "float32":
            features["save_dtype"] = made["save_dtype"]
        identity[f"{split}_features"] = features
    return identity


# ------------------------------------------------------------------------------------------------------------
# Checks


def check(args: argparse.Namespace) -> int:
    """Check all requirements of the runs, print a summary, and return the exit code.

    Args:
        args: flags of ``logreg.py``.
    """
    import torch

    from cog.features.storage import stays_in_file
    from cog.logreg.estimate import require_room

    report = Report()
    cfg = train = test = None
    plans: list[RunPlan] = []
    with report.step("configuration"):
        cfg = _config(args, args.opts)
    with report.step("features"):
        train, test, _ = _resolve_features(args)
    sets = [_check_features(report, path) for path in (train, test) if path is not None]
    if cfg is not None and train is not None and test is not None:
        train_set, test_set = sets
        with report.step("runs"):
            plans, _, _ = plan_runs(args)
        if train_set is not None and test_set is not None:
            _check_together(report, train_set, test_set, plans)
        todo = _check_outputs(report, plans)
        with report.step("memory"):
            if not stays_in_file(train, test, rounded=True):
                report.ok("memory", "the features of both splits fit into what is available")
            if train_set is not None and todo and args.device == "cpu":
                shape = _classifier_shape(todo[0].settings, train_set)
                require_room(todo[0].settings, len(train_set.y), *shape, torch.device("cpu"))
        if train_set is not None and test_set is not None and todo:
            with report.step("disk"):
                _check_space(report, todo, train_set, len(test_set.y), args.device)
    with report.step("device"):
        precision = "" if cfg is None else cfg.CLF.PRECISION
        machine_checks.check_device(report, args.device, "CLF.PRECISION", precision)
    return report.finish()


def _check_features(report: Report, path: Path) -> FeatureSet | None:
    """Return the features of a file without reading their values, and report their shape; None when that fails."""
    from cog.features import feature_files

    with report.step("features"):
        features = feature_files.open_file(path, mapped=True)
        (n, dim), dtype = features.x.shape, str(features.x.dtype).rpartition(".")[2]
        report.ok("features", f"{path}: {n:,} x {dim} {dtype}, {len(features.y.unique()):,} classes")
        return with_class_list(features, path)
    return None


def _check_together(report: Report, train: FeatureSet, test: FeatureSet, plans: list[RunPlan]) -> None:
    """Compare the sets with each other, and the class sizes with the settings."""
    from cog.features import feature_files
    from cog.runtime import random_streams

    with report.step("features"):
        if mixed := feature_files.check_pair(train, test):
            report.warn("features", mixed)
        y, _, _ = feature_files.to_consecutive_labels(train.y.long(), test.y.long())
        if not plans:
            return
        settings = plans[0].settings  # the runs differ only in seed and shots
        if settings.max_per_class:
            y = y[feature_files.cap_per_class(y, settings.max_per_class)[0]]
        dim = train.x.shape[1]
        most = min(dim, len(y) - 1)  # the true number of directions takes a computation
        if settings.pca_dim > most:
            report.problem(
                "features",
                f"CLF.PCA_DIM {settings.pca_dim}: {len(y)} training images of {dim} dimensions vary in {most} "
                "directions at most; set at most that, or 0",
            )
        for n_shot in sorted({plan.settings.n_shot for plan in plans}):
            if n_short := int((y.bincount() < n_shot).sum()):
                text = f"{n_short} classes have fewer than {n_shot} images, of which all are taken"
                report.warn("features", text)
        if settings.n_trials:
            rng = random_streams.numpy_rng(settings.seed, "split")
            feature_files.split_train_val(y, val_frac=settings.val_frac, rng=rng)


def _classifier_shape(settings: Settings, train: FeatureSet) -> tuple[int, int]:
    """Return the width of a classifier's input (components or features), and the number of classes."""
    return settings.pca_dim or train.x.shape[1], len(train.y.unique())


def _check_outputs(report: Report, plans: list[RunPlan]) -> list[RunPlan]:
    """Report the state of all folders, and return the runs to do."""
    todo, n_complete, n_refused = [], 0, 0
    for plan in plans:
        if n_refused == _SHOWN:
            break
        with report.step("output") as step:
            if machine_checks.check_state(report, plan.folder.path):
                if plan.folder.would_skip():
                    n_complete += 1
                elif machine_checks.check_writable(report, plan.folder.path):
                    todo.append(plan)
        n_refused += not step.ok
    if plans:
        path = plans[0].folder.path
        place = f"{path}" if len(plans) == 1 else f"{path.parent} and beside it"
        n_begun = sum(plan.folder.resume.read() is not None for plan in todo)
        parts = [f"{len(todo)} to do" + (f" ({n_begun} begun)" if n_begun else "")]
        parts += [f"{n_complete} complete, skipped"] if n_complete else []
        parts += [f"{n_refused} cannot be done"] if n_refused else []
        report.ok("runs", f"{len(plans)} in {place}: {', '.join(parts)}")
    return todo


def _check_space(
    report: Report, todo: list[RunPlan], train: FeatureSet, n_test: int, device_name: str | None
) -> None:
    """Compare the free disk space with the results of all runs and the saved states of those side by side."""
    import torch

    from cog.logreg.engine import Engine
    from cog.logreg.search import N_STARTUP_TRIALS
    from cog.runtime.device import resolve_device

    settings = todo[0].settings  # seed and shots do not matter here
    dim, n_classes = _classifier_shape(settings, train)
    classifier = 4 * settings.n_parameters(dim, n_classes)
    projection = 4 * (settings.pca_dim + 1) * train.x.shape[1] if settings.pca_dim else 0
    result = classifier + projection + 8 * n_test + _RUN_BYTES
    device = torch.device("cpu")
    with contextlib.suppress(CogError):  # the check of the device reports it
        device = resolve_device(device_name)
    engine = Engine(device)
    width = engine.trials_per_batch(len(train.y), settings, dim=dim, n_classes=n_classes)
    together = max(N_STARTUP_TRIALS, settings.trials_per_round if settings.search == "batched" else 1)
    n_saved = max(1, min(width, together, settings.n_trials))
    # A state has weights and momentum of each classifier; the old file exists until the new one is complete.
    state = 2 * 2 * classifier * n_saved
    at_once = todo[: engine.max_parallel_runs]
    needs = [(plan.folder.path, result) for plan in todo] + [(plan.folder.path, state) for plan in at_once]
    machine_checks.check_disk(report, needs)
