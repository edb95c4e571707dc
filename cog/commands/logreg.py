"""Tune and train a classifier on pre-extracted features, and test it.

A logistic regression (the protocol), or with CLF.TYPE an MLP; CLF.PCA_DIM and CLF.MAX_PER_CLASS change what it sees.

With --seeds and --n_shots one process does several runs: the features are loaded once, and every run is written to
the folder that a call of its own would write, with the same result.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import cli as cli_tools
from cog import config, files, interruption, names
from cog.errors import CogError
from cog.paths import ModelDir, check_dataset_name, seed_folder

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from cog.logreg.settings import Settings
    from cog.logreg.study import Claim, RunPlan

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
        "beside the features); with --seeds or --n_shots: <output_dir>[_N<n_shot>]/seed-<seed>/",
    )
    many = parser.add_argument_group("several runs in one process")
    many.add_argument(
        "--seeds",
        nargs="+",
        type=cli_tools.whole_number(0),
        metavar="SEED",
        help="instead of EVAL.SEED; the protocol's are 22 37 45 77 93",
    )
    many.add_argument(
        "--n_shots",
        nargs="+",
        type=cli_tools.whole_number(0),
        metavar="N",
        help="instead of CLF.N_SHOT: training images per class, 0 for all; the protocol's are 0 1 2 4 8 16 32 64 128",
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
    cli_tools.add_check(run)
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


def resolve_features(args: argparse.Namespace) -> tuple[Path, Path, ModelDir | None]:
    """Return the feature files of both splits, and the model's folder when the flags name one."""
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
    if args.output_dir is None and model_dir is None:
        raise CogError("nowhere to write: give --output_dir")
    return _features_file(train, "train"), _features_file(test, "test"), model_dir


def output_of(args: argparse.Namespace, cfg: CfgNode, model_dir: ModelDir | None) -> Path:
    """Return the folder of the run that ``cfg`` describes."""
    seed, n_shot = cfg.EVAL.SEED, cfg.CLF.N_SHOT
    if args.output_dir is None:
        assert model_dir is not None
        return model_dir.run(args.dataset, name=config.evaluation_name(cfg), n_shot=n_shot, seed=seed)
    if args.seeds is None and args.n_shots is None:
        return Path(args.output_dir)
    folder = Path(os.path.normpath(args.output_dir))
    return folder.with_name(f"{folder.name}_N{n_shot}" if n_shot else folder.name) / seed_folder(seed)


def _features_file(path: Path, split: str) -> Path:
    file = path / names.FEATURES_FILE if os.path.isdir(path) else path
    if not os.path.isfile(file):
        raise CogError(
            f"there are no {split} features {file}; run extract_features.py first, or check the path"
        )
    return file


def get_settings(args: argparse.Namespace, cfg: CfgNode, *, label: str = "") -> Settings:
    """Return the protocol's settings from flags and configuration."""
    config.check_new_name(cfg, cfg.CLF.TYPE)

    from cog.logreg.settings import Settings

    clf = cfg.CLF
    # What has no part in a run keeps its default: another value of it does not make another run.
    has_part: dict[str, int] = {}
    if clf.TYPE != "logreg":
        has_part |= {"mlp_hidden": clf.MLP_HIDDEN, "mlp_layers": clf.MLP_LAYERS}
    if clf.SEARCH == "batched":
        has_part["trials_per_round"] = clf.TRIALS_PER_ROUND
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
        precision=clf.PRECISION,
        search=clf.SEARCH,
        solver=clf.SOLVER,
        pruner=clf.PRUNER,
        classifier=clf.TYPE,
        pca_dim=clf.PCA_DIM,
        max_per_class=clf.MAX_PER_CLASS,
        label=label,
        **has_part,
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
        if key != "label"
    }  # fmt: skip
    for split, file in (("train", train), ("test", test)):
        made = FeatureFolder(file.parent).metadata() or {}
        identity[f"{split}_features"] = {
            "bytes": file.stat().st_size,
            "checkpoint_sha256": made.get("checkpoint_sha256"),
            "image_list_sha256": made.get("image_list_sha256"),
        }
    return identity


def _one_run_configs(args: argparse.Namespace, cfg: CfgNode) -> list[tuple[CfgNode, list[str]]]:
    """Return configuration and ``KEY VALUE`` pairs of each run, as single calls would have them."""
    for flag, values, key in (
        ("--seeds", args.seeds, "EVAL.SEED"),
        ("--n_shots", args.n_shots, "CLF.N_SHOT"),
    ):
        if values is not None and key in args.opts[::2]:
            raise CogError(f"{flag} and {key} are both given; leave one of them out")
        if values is not None and len(set(values)) < len(values):
            raise CogError(f"{flag} names a value twice: {' '.join(map(str, values))}")
    if args.seeds is None and args.n_shots is None:
        return [(cfg, args.opts)]
    configs = []
    for n_shot in args.n_shots if args.n_shots is not None else [cfg.CLF.N_SHOT]:
        for seed in args.seeds if args.seeds is not None else [cfg.EVAL.SEED]:
            pairs = ["EVAL.SEED", str(seed), "CLF.N_SHOT", str(n_shot)]
            one = cfg.clone()
            one.defrost()
            one.merge_from_list(pairs)
            config.check_values(one)
            one.freeze()
            configs.append((one, [*args.opts, *pairs]))
    return configs


def plan_runs(args: argparse.Namespace, cfg: CfgNode) -> tuple[list[RunPlan], Path, Path]:
    """Return the runs that the command line asks for, and the feature files of both splits."""
    train, test, model_dir = resolve_features(args)
    configs = _one_run_configs(args, cfg)

    from cog import record
    from cog.logreg.study import RunPlan

    flags = {
        key: value for key, value in vars(args).items() if key not in ("opts", "seeds", "n_shots", "check")
    }
    plans = []
    for one, opts in configs:
        label = f"[seed {one.EVAL.SEED}, {one.CLF.N_SHOT or 'all'}] " if len(configs) > 1 else ""
        settings = get_settings(args, one, label=label)
        output = output_of(args, one, model_dir)
        plans.append(
            RunPlan(
                settings=settings,
                output=output,
                identity=identify(settings, train, test),
                arguments=flags | {"output_dir": str(output) if args.output_dir else None, "opts": opts},
                config_text=one.dump(),
                metadata={
                    "model": args.model,
                    "dataset": args.dataset,
                    "train_features": str(train),
                    "test_features": str(test),
                    "configuration": config.flat(one),
                    "versions": record.versions(("torch", "optuna", "numpy")),
                },
            )
        )
    return plans, train, test


def warn_of_changed_protocol(args: argparse.Namespace, cfg: CfgNode) -> None:
    """Say so when the results will not be comparable with the paper's, and would lie among those that are."""
    changed = [
        f"{key} {value}" for key, value in config.flat(cfg).items()
        if (key, value) in (("CLF.SOLVER", "lbfgs"), ("CLF.PRUNER", "median"))
    ]  # fmt: skip
    if changed:
        apart = args.output_dir is not None or cfg.EVAL.NAME != config.default_cfg().EVAL.NAME
        logger.warning(
            "%s changes the protocol: the results are not comparable with the paper's%s", changed[0],
            "" if apart else f"; EVAL.NAME {changed[0].split()[1]} keeps them apart from the protocol's folders",
        )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script; returns its exit code."""
    args = parse_args(argv)
    if args.check:
        from cog.preflight import classifier

        return classifier.check(args)
    cfg = config.get_cfg(model_name=args.model, config_file=args.config, opts=args.opts)
    plans, train, test = plan_runs(args, cfg)

    from cog.logreg import study

    options = {"skip_complete": args.skip_complete, "overwrite": args.overwrite}
    with interruption.deferred():
        plans = study.pending(plans, **options)
        if plans:
            with study.claimed(plans, **options) as claims:
                if claims:
                    train_all(args, cfg, claims, train, test)
    return 0


def train_all(
    args: argparse.Namespace, cfg: CfgNode, claims: Sequence[Claim], train: Path, test: Path
) -> None:
    """Load the features and do the runs, see :func:`cog.logreg.study.execute`."""
    from cog import features
    from cog.device import resolve_device
    from cog.logreg import protocol, study, variants
    from cog.logreg.engine import get_engine
    from cog.logreg.plan import describe, require_room, stays_in_file

    warn_of_changed_protocol(args, cfg)
    plans = [claim.plan for claim in claims]
    device = resolve_device(args.device)
    engine = get_engine(device, "fp32" if cfg.CLF.SOLVER == "lbfgs" else cfg.CLF.PRECISION)
    if plans[0].settings.is_mlp:
        from cog.logreg.mlp_engine import MlpEngine

        engine = MlpEngine(engine, plans[0].settings)
    study.begin(claims, device=device.type, precision=engine.precision, overwrite=args.overwrite)
    normalize = cfg.CLF.NORM_FTS and not cfg.CLF.PCA_DIM  # then done to what that leaves
    train_set = features.load(train, normalize=normalize, mapped=stays_in_file(train, test))
    test_set = features.load(test, normalize=normalize)
    logger.info(
        "%s: %d x %d training and %d test features, %s, %s",
        train_set.name, *train_set.x.shape, len(test_set), device, engine.precision,
    )  # fmt: skip
    made = variants.prepare(train_set, test_set, clf=cfg.CLF, device=device)
    del train_set, test_set
    data = protocol.prepare(made.train, made.test, engine, projection=made.projection)
    for plan in plans:
        plan.metadata.update(made.record)
    del made
    require_room(plans[0].settings, data.features.n, data.features.dim, len(data.labels), device)
    for line in describe(data, [plan.settings for plan in plans], engine):
        logger.info(line)
    for plan in plans:
        plan.metadata["device"] = str(device)
    interruption.check("no training was begun")
    study.execute(claims, data, engine, print_freq=args.print_freq)


def cli() -> None:
    """Console script ``cog-logreg``."""
    cli_tools.run(main)
