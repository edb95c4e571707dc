"""Classify the concepts of the levels in levels by other similarities and random draws (paper, Fig. 7).

--levels_dir holds one output folder of build_levels.py --rerank for each kind of levels (wup, random1 ...;
bash-scripts/other_levels.sh builds them). The features of the published levels are grouped into these levels,
classifiers are trained on them as by logreg.py, with its keys, and accuracies are printed and drawn.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from cog import config, constants
from cog.commands import flags, logreg
from cog.data.level_files import read_levels
from cog.errors import CogError
from cog.paths import ModelDir, require_dir


def main(argv: Sequence[str] | None = None) -> int:
    """Group features by the levels of each kind, train, print the table, draw the figure."""
    example = "--models_root_dir /models --model sup_resnet50 --levels_dir levels --output_dir other_models"
    parser = flags.parser(__doc__, example, f"{example} --seeds 22 37", f"{example} CLF.N_SHOT 8")
    flags.add(parser, "models_root_dir", "model", required=True)
    parser.add_argument("--levels_dir", required=True, metavar="DIR", help="has a folder for each kind")
    flags.add(parser, "output_dir", required=True, help="root of features and results on other levels")
    flags.add(parser, "seeds", default=list(constants.SEEDS))
    flags.add(parser, "device")
    args = parser.parse_args(argv)
    for one in flags.each(args, "model"):
        cfg = config.get_cfg(model_name=one.model, opts=args.opts)
        names = _group(one)
        given = ["--models_root_dir", args.output_dir, "--model", one.model, "--device", str(args.device)]
        given += ["--dataset", *names, "--seeds", *map(str, args.seeds)]
        logreg.main([*given, *args.opts])
        from cog.reporting import other_levels
        from cog.results import read

        which = {"n_shots": [cfg.CLF.N_SHOT], "evaluations": [config.evaluation_name(cfg)]}
        how = {"models": [one.model], "datasets": names, "seeds": args.seeds, **which}
        scores = read.read(args.output_dir, **how).scores.query("metric == 'top1'")
        table, interval = other_levels.compare(scores.groupby("dataset")["value"].mean())
        print(f"\n{one.model}: top-1 (%), mean over seeds\n\n{table.to_string(float_format='{:.1f}'.format)}")
        if interval:
            print(f"± {interval:.2f}: 95 % interval of the mean over random draws, each a level of its own")
        path = Path(args.output_dir) / f"other_levels_{one.model}.png"
        other_levels.draw(path, table, interval)
        print(f"\n{path}", flush=True)
    return 0


def _group(args: argparse.Namespace) -> list[str]:
    """Group the features by the levels of each kind, beside links to the published ones; return data sets."""
    from cog.features.folder import regroup

    source = ModelDir(require_dir(args.models_root_dir, "--models_root_dir"), args.model)
    target = ModelDir(Path(args.output_dir), args.model)
    given = require_dir(args.levels_dir, "--levels_dir")
    folders = sorted(path for path in given.iterdir() if (path / constants.LEVELS_FILE).is_file())
    if not folders:
        raise CogError(f"--levels_dir {given} has no folder with a {constants.LEVELS_FILE}")
    there = sorted(folder.parent.name for folder in source.path.glob("*/features_test"))
    levels = [name for name in there if constants.cog_level(name) is not None]
    if not levels:
        raise CogError(f"{source.path} has no features of any level; run extract_features.py on them first")
    datasets = [name for name in (constants.IN1K, *levels) if name in there]
    target.path.mkdir(parents=True, exist_ok=True)
    for name in datasets:
        if not (target.path / name).exists():
            os.symlink(os.path.abspath(source.path / name), target.path / name)
    for folder in folders:
        for number, wnids in enumerate(read_levels(folder / constants.LEVELS_FILE), start=1):
            datasets.append(f"{folder.name}_l{number}")
            regroup(source, target, datasets[-1], wnids, levels=levels)
    return datasets
