"""Classify the concepts of the levels in levels by other similarities and random draws (paper, Fig. 7).

--levels_dir holds one output folder of build_levels.py --rerank for each kind of levels (wup, random1 ...;
bash-scripts/other_levels.sh builds them). The features of the published levels are grouped into these levels,
classifiers are trained on them as by logreg.py, with its keys, and accuracies are printed and drawn.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cog import config, constants
from cog.commands import flags, logreg
from cog.data.level_files import read_levels
from cog.errors import CogError
from cog.paths import ModelDir
from cog.runtime import files

if TYPE_CHECKING:
    import pandas as pd

_LEVEL = r"^(?P<kind>.+)_l(?P<level>[0-9]{1,3})$"
_LABELS = {"cog": "published (Lin)", "wup": "Wu-Palmer", "jcn": "Jiang-Conrath", "embedding": "word vectors"}


def main(argv: Sequence[str] | None = None) -> int:
    """Group features by the levels of each kind, train, print the table, draw the figure."""
    example = "--models_root_dir /models --model sup_resnet50 --levels_dir levels --output_dir other_models"
    parser = flags.parser(__doc__ or "", example)
    flags.add(parser, "models_root_dir", "model", required=True)
    text = "folder with an output folder of build_levels.py for each kind of levels"
    parser.add_argument("--levels_dir", required=True, metavar="DIR", help=text)
    flags.add(parser, "output_dir", required=True, help="root of features and results on other levels")
    flags.add(parser, "seeds", default=list(constants.SEEDS))
    flags.add(parser, "device")
    args = parser.parse_args(argv)
    for one in flags.each(args, "model"):
        cfg = config.get_cfg(model_name=one.model, opts=args.opts)
        names = _group(one)
        given = ["--models_root_dir", args.output_dir, "--model", one.model, "--device", str(args.device)]
        given += ["--dataset", *names, "--seeds", *map(str, args.seeds)]
        if code := logreg.main([*given, *args.opts]):
            return code
        from cog.results import read

        which = {"n_shots": [cfg.CLF.N_SHOT], "evaluations": [config.evaluation_name(cfg)]}
        how = {"models": [one.model], "datasets": names, "seeds": args.seeds, **which}
        scores = read.read(args.output_dir, **how).scores.query("metric == 'top1'")
        if scores.empty:
            raise CogError(f"{args.output_dir} has no runs of {one.model} that can be read")
        table, interval = compare(scores.groupby("dataset")["value"].mean())
        print(f"\n{one.model}: top-1 (%), mean over seeds\n\n{table.to_string(float_format='{:.1f}'.format)}")
        if interval:
            print(f"± {interval:.2f}: 95 % interval of the mean over random draws, each a level of its own")
        draw(Path(args.output_dir) / f"other_levels_{one.model}.png", table, interval)
    return 0


def _group(args: argparse.Namespace) -> list[str]:
    """Group the features by the levels of each kind, beside links to the published ones; return data sets."""
    from cog.features.folder import regroup

    source = ModelDir(files.require_dir(args.models_root_dir, "--models_root_dir"), args.model)
    target = ModelDir(Path(args.output_dir), args.model)
    given = files.require_dir(args.levels_dir, "--levels_dir")
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


def compare(top1: pd.Series) -> tuple[pd.DataFrame, float]:
    """Return a table of accuracies, levels by kind, and half of the 95 % interval over random draws.

    ``top1`` has accuracies in percent by data set. The mean of the draws stands at every level.
    """
    from scipy import stats

    found = top1.index.to_series().str.extract(_LEVEL).assign(top1=top1)
    found["level"] = "L" + found["level"]
    drawn = found.loc[found["kind"].str.fullmatch(r"random\d*", na=False), "top1"]
    table = found.drop(drawn.index).pivot_table(index="kind", columns="level", values="top1")
    table = table.loc[sorted(table.index, key=lambda kind: (kind != "cog", kind))].rename(index=_LABELS)
    interval = 0.0
    if len(drawn):
        table.loc[f"{len(drawn)} random draws"] = drawn.mean()
        interval = float(stats.t.ppf(0.975, len(drawn) - 1) * drawn.sem()) if len(drawn) > 1 else 0.0
    if constants.IN1K in top1:
        table.insert(0, "IN-1K", top1[constants.IN1K])
    return table.rename_axis(index=None, columns=None), interval


def draw(path: Path, table: pd.DataFrame, interval: float) -> None:
    """Draw accuracies by level, a line for each kind of levels, with a band for random draws."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0, 3.6), layout="constrained")
    axes = figure.add_subplot(ylabel="top-1 (%)")
    for kind, row in table.iterrows():
        axes.plot(list(table), row, marker="o", markersize=3, label=kind)
    if interval:
        axes.fill_between(list(table), row - interval, row + interval, color="gray", alpha=0.2, lw=0)
    axes.legend(fontsize=8)
    with files.atomic_write(path) as handle:
        figure.savefig(handle, format="png", dpi=150, metadata={"Software": None})
    print(f"\n{path}", flush=True)
