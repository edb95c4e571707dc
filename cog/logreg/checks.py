"""Whether the plan of ``logreg.py`` can be done (``--check``): inputs, outputs, memory, disk and device."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from cog import config
from cog.errors import CogError
from cog.features import feature_files
from cog.features.feature_files import FeatureFile
from cog.logreg.estimate import require_room, stays_in_file
from cog.logreg.plan import plan_runs, resolve_features
from cog.runtime import machine_checks
from cog.runtime.check_report import Report

if TYPE_CHECKING:
    from cog.logreg.run_folder import RunPlan
    from cog.logreg.settings import Settings

_SHOWN = 5

#: Bytes of a finished run beside its classifier: study, logs, settings.
_RUN_BYTES = 1 << 20


def check(args: argparse.Namespace) -> int:
    """Look at everything that the runs need, print a summary, and return the exit code.

    Args:
        args: flags of ``logreg.py``.
    """
    report = Report()
    cfg = None
    with report.step("configuration"):
        cfg = config.get_cfg(model_name=args.model, config_file=args.config, opts=args.opts)
    train = test = None
    with report.step("features"):
        train, test, _ = resolve_features(args)
    sets = [_check_features(report, path) for path in (train, test) if path is not None]
    plans: list[RunPlan] = []
    if cfg is not None and train is not None and test is not None:
        with report.step("runs"):
            plans, _, _ = plan_runs(args, cfg)
        if len(sets) == 2 and sets[0] is not None and sets[1] is not None:
            _check_together(report, sets[0], sets[1], plans)
        todo = _check_outputs(report, args, plans)
        with report.step("memory"):
            if not stays_in_file(train, test):
                report.ok("memory", "the features of both splits fit into what is available")
            if sets[0] is not None and todo and args.device == "cpu":
                first = todo[0].settings
                require_room(first, len(sets[0].y), *_classifier_shape(first, sets[0]), torch.device("cpu"))
        if sets[0] is not None and sets[1] is not None and todo:
            with report.step("disk"):
                _check_space(report, todo, sets[0], len(sets[1].y))
    with report.step("device"):
        precision = "" if cfg is None else cfg.CLF.PRECISION
        machine_checks.check_device(report, args.device, "CLF.PRECISION", precision)
    return report.finish()


def _check_features(report: Report, path: Path) -> FeatureFile | None:
    """Read what describes a feature file (its values stay in the file)."""
    with report.step("features"):
        found = feature_files.open_file(path, mapped=True)
        n_classes = len(torch.unique(found.y))
        report.ok(
            "features",
            f"{path}: {len(found.x):,} x {found.x.shape[1]} {str(found.x.dtype).rpartition('.')[2]}, "
            f"{n_classes:,} classes",
        )
        return found
    return None


def _check_together(report: Report, train: FeatureFile, test: FeatureFile, plans: list[RunPlan]) -> None:
    with report.step("features"):
        if train.x.shape[1] != test.x.shape[1]:
            raise CogError(
                f"the training features have {train.x.shape[1]} dimensions, the test features {test.x.shape[1]}; "
                "extract both with the same model"
            )
        y, _, _ = feature_files.to_consecutive_labels(train.y.long(), test.y.long())
        counts = torch.bincount(y)
        if plans:
            most = plans[0].settings.max_per_class
            counts = counts.clamp(max=most) if most else counts
            _check_components(report, plans[0].settings.pca_dim, train.x.shape[1], int(counts.sum()))
        for n_shot in sorted({plan.settings.n_shot for plan in plans}):
            short = int((counts < n_shot).sum())
            if short:
                report.warn(
                    "features", f"{short} classes have fewer than {n_shot} images, of which all are taken"
                )
        if any(plan.settings.n_trials for plan in plans) and int(counts.max()) < 2:
            report.problem(
                "features",
                "every class has a single training image, so none can be held out to tune on; give --lr and --wd with "
                "CLF.N_TRIALS 0",
            )


def _check_components(report: Report, wanted: int, dim: int, n_rows: int) -> None:
    """See whether there can be so many principal components; whether there are shows when they are computed."""
    if wanted > dim:
        report.problem(
            "features", f"CLF.PCA_DIM {wanted}: there are {dim} dimensions; set at most that, or 0"
        )
    elif wanted > n_rows - 1:
        report.problem(
            "features",
            f"CLF.PCA_DIM {wanted}: {n_rows} training images vary in {n_rows - 1} directions at most; set at most that",
        )


def _classifier_shape(settings: Settings, train: FeatureFile) -> tuple[int, int]:
    """Return what the classifier sees (components or features), and the number of classes."""
    return settings.pca_dim or train.x.shape[1], len(torch.unique(train.y))


def _check_outputs(report: Report, args: argparse.Namespace, plans: list[RunPlan]) -> list[RunPlan]:
    """Say what would happen with each run; returns those to do."""
    todo, complete, refused = [], 0, 0
    for plan in plans:
        before = report.n_problems
        if refused < _SHOWN:
            with report.step("output"):
                if not machine_checks.check_state(report, plan.folder.path):
                    refused += 1
                    continue
                if plan.folder.would_skip():
                    complete += 1
                elif machine_checks.check_writable(report, plan.folder.path):
                    todo.append(plan)
        refused += report.n_problems > before
    begun = sum(plan.folder.resume.read() is not None for plan in todo)
    where = plans[0].folder.path if len(plans) == 1 else plans[0].folder.path.parent if plans else None
    if where is not None:
        parts = [f"{len(todo)} to do" + (f" ({begun} begun)" if begun else "")]
        parts += [f"{complete} complete, skipped"] if complete else []
        parts += [f"{refused} cannot be done"] if refused else []
        report.ok(
            "runs", f"{len(plans)} in {where}{' and beside it' if len(plans) > 1 else ''}: {', '.join(parts)}"
        )
    return todo


def _check_space(report: Report, todo: list[RunPlan], train: FeatureFile, n_test: int) -> None:
    settings = todo[0].settings  # in all of this, runs differ in seed and shots only
    classifier = 4 * settings.n_parameters(*_classifier_shape(settings, train))
    projection = 4 * (settings.pca_dim + 1) * train.x.shape[1] if settings.pca_dim else 0
    needs = []
    for plan in todo:
        # what is saved of trainings in progress: weights, momentum and the best so far of each
        at_once = plan.settings.trials_per_round if plan.settings.search == "batched" else 1
        needs.append(
            (plan.folder.path, classifier * (1 + 3 * at_once) + projection + 8 * n_test + _RUN_BYTES)
        )
    machine_checks.check_disk(report, needs)
