"""Tune and train a logistic regression classifier on pre-extracted features, and test it."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import cli as cli_tools
from cog import config, files, names
from cog.errors import CogError
from cog.paths import ModelDir, check_dataset_name

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from cog.logreg.settings import Settings

logger = logging.getLogger(__name__)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse flags; touches no file."""
    parser = cli_tools.Parser(__doc__ or "")
    where = parser.add_argument_group(
        "features: --models_root_dir with --model and --dataset, or --train_features_dir with --test_features_dir"
    )
    where.add_argument("--model", help="<model_title>_<architecture_name>, such as sup_resnet50")
    where.add_argument("--dataset", help=f"{', '.join(names.DATASETS)}, or a name of your own")
    where.add_argument(
        "--models_root_dir",
        help="reads <root>/<model_title>/<architecture_name>/<dataset>/features_{train,test}/X_Y.pth",
    )
    where.add_argument("--train_features_dir", help="folder (or X_Y.pth file) of the training features")
    where.add_argument("--test_features_dir", help="folder (or X_Y.pth file) of the test features")
    where.add_argument(
        "--output_dir",
        help="where to write (default with --models_root_dir: <dataset>/eval_logreg[_N<n_shot>]/seed-<seed>/ "
        "beside the features)",
    )
    run = parser.add_argument_group("run")
    run.add_argument("--device", help="cpu, cuda or cuda:<index> (default: cuda if there is one, else cpu)")
    run.add_argument("--mom", type=_fraction, default=0.9, help="momentum of SGD (default: 0.9)")
    run.add_argument(
        "--lr", type=_positive, help="fixed learning rate instead of a search; needs --wd and CLF.N_TRIALS 0"
    )
    run.add_argument("--wd", type=_not_negative, help="fixed weight decay instead of a search")
    run.add_argument(
        "--print_freq",
        type=cli_tools.whole_number(0),
        default=10,
        help="epochs between log lines of the final training, 0 for none (default: 10)",
    )
    cli_tools.add_common(run)
    return parser.parse_args(argv)


def _number(text: str, *, low: float, high: float, wanted: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not low <= value < high:
        raise argparse.ArgumentTypeError(f"{text} is out of range, expected {wanted}")
    return value


def _fraction(text: str) -> float:
    return _number(text, low=0.0, high=1.0, wanted="0 <= momentum < 1")


def _positive(text: str) -> float:
    return _number(text, low=5e-324, high=float("inf"), wanted="a positive number")


def _not_negative(text: str) -> float:
    return _number(text, low=0.0, high=float("inf"), wanted="zero or a positive number")


def resolve_paths(args: argparse.Namespace, cfg: CfgNode) -> tuple[Path, Path, Path]:
    """Return the feature files of both splits and the output folder."""
    if args.dataset is not None:
        check_dataset_name(args.dataset)
    given = (args.train_features_dir, args.test_features_dir)
    if (given[0] is None) != (given[1] is None):
        raise CogError("give both --train_features_dir and --test_features_dir, or neither")
    model_dir = None
    if args.models_root_dir is not None and args.model is not None and args.dataset is not None:
        model_dir = ModelDir(files.require_dir(args.models_root_dir, "--models_root_dir"), args.model)
    if given[0] is not None:
        train, test = Path(given[0]), Path(given[1])
    elif model_dir is not None:
        train, test = (model_dir.features(args.dataset, split) for split in names.SPLITS)
    else:
        raise CogError(
            "no features: give --models_root_dir with --model and --dataset, or --train_features_dir with "
            "--test_features_dir"
        )
    if args.output_dir is not None:
        output = Path(args.output_dir)
    elif model_dir is not None:
        output = model_dir.run(args.dataset, name=cfg.EVAL.NAME, n_shot=cfg.CLF.N_SHOT, seed=cfg.EVAL.SEED)
    else:
        raise CogError("nowhere to write: give --output_dir")
    return _features_file(train, "train"), _features_file(test, "test"), output


def _features_file(path: Path, split: str) -> Path:
    file = path / names.FEATURES_FILE if os.path.isdir(path) else path
    if not os.path.isfile(file):
        raise CogError(
            f"there are no {split} features {file}; run extract_features.py first, or check the path"
        )
    return file


def get_settings(args: argparse.Namespace, cfg: CfgNode) -> Settings:
    """Return the protocol's settings from flags and configuration."""
    from cog.logreg.settings import Settings

    clf = cfg.CLF
    return Settings(
        seed=cfg.EVAL.SEED,
        n_shot=clf.N_SHOT,
        n_trials=clf.N_TRIALS,
        n_epochs=clf.N_EPOCHS,
        batch_size=clf.BATCH_SIZE,
        momentum=args.mom,
        val_frac=clf.VAL_PERC,
        lr_interval=_interval(clf.LR_INTV),
        wd_interval=_interval(clf.WD_INTV),
        normalize=clf.NORM_FTS,
        lr=args.lr,
        wd=args.wd,
    )


def _interval(pair: Sequence[float]) -> tuple[float, float]:
    low, high = pair
    return float(low), float(high)


def identify(settings: Settings, train: Path, test: Path) -> dict[str, Any]:
    """Return what makes two runs the same: settings and features (by size and, if known, origin)."""
    from cog.feature_folder import FeatureFolder

    identity: dict[str, Any] = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in dataclasses.asdict(settings).items()
    }  # fmt: skip
    for split, file in (("train", train), ("test", test)):
        made = FeatureFolder(file.parent).metadata() or {}
        identity[f"{split}_features"] = {
            "bytes": file.stat().st_size,
            "checkpoint_sha256": made.get("checkpoint_sha256"),
            "image_list_sha256": made.get("image_list_sha256"),
        }
    return identity


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script; returns its exit code."""
    args = parse_args(argv)
    cfg = config.get_cfg(model_name=args.model, config_file=args.config, opts=args.opts)
    train, test, output = resolve_paths(args, cfg)

    from cog.run_folder import RESULTS_FILE, RunFolder

    settings = get_settings(args, cfg)
    identity = identify(settings, train, test)
    folder = RunFolder(output)
    if args.skip_complete and not args.overwrite and folder.is_complete():
        changed = folder.differences(identity)
        if changed:
            raise CogError(
                f"{output} holds a different run ({'; '.join(changed)}); add --overwrite to replace it"
            )
        logger.info("%s is complete, skipped", output)
        return 0
    folder.check_free(overwrite=args.overwrite)

    from cog import record
    from cog.staging import staged

    with staged(output, marker=RESULTS_FILE, flag="--output_dir") as stage:
        stage.replaces = folder.existing()
        with record.log_file(stage.path / "program.log"):
            top1, top5 = run(args, cfg, settings, identity, train, test, stage.path)
    print(f"top-1: {top1:.2f}  top-5: {top5:.2f}  ({output})")
    return 0


def run(
    args: argparse.Namespace,
    cfg: CfgNode,
    settings: Settings,
    identity: dict[str, Any],
    train: Path,
    test: Path,
    stage: Path,
) -> tuple[float, float]:
    """Load the features, run the protocol, stage the files; returns test top-1 and top-5 in percent."""
    from cog import features, record, run_folder
    from cog.device import resolve_device
    from cog.logreg import protocol
    from cog.logreg.sgd import SgdTrainer

    device = resolve_device(args.device)
    train_set = features.load(train, normalize=settings.normalize)
    test_set = features.load(test, normalize=settings.normalize)
    logger.info(
        "%s: %d x %d training and %d test features, seed %d, %s, %s",
        train_set.name, *train_set.x.shape, len(test_set), settings.seed,
        f"{settings.n_shot} images per class" if settings.n_shot else "all images", device,
    )  # fmt: skip
    trainer = SgdTrainer(device)
    outcome = protocol.run(train_set, test_set, settings, trainer, print_freq=args.print_freq)
    run_folder.write(
        stage,
        outcome,
        settings=settings,
        identity=identity,
        arguments={key: value for key, value in vars(args).items() if key != "opts"} | {"opts": args.opts},
        config_text=cfg.dump(),
        metadata={
            "model": args.model,
            "dataset": args.dataset,
            "train_features": str(train),
            "test_features": str(test),
            "configuration": config.flat(cfg),
            "device": str(device),
            "versions": record.versions(("torch", "optuna", "numpy")),
            "finished": record.now(),
        },
    )
    assert outcome.fit.history is not None
    logs = outcome.fit.history.logs
    return logs["test/top1"][-1], logs["test/top5"][-1]


def cli() -> None:
    """Console script ``cog-logreg``."""
    cli_tools.run(main)
