"""The command ``python -m cog.miniature make | train | check``."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cog import constants
from cog.errors import CogError
from cog.runtime import cli as cli_tools

if TYPE_CHECKING:
    import pandas as pd

#: Names of the trained network, and of the control: the same network before training.
TRAINED, UNTRAINED = "miniature_convnet", "miniature_random"


def parser() -> cli_tools.Parser:
    """Return the parser of the command line."""
    p = cli_tools.Parser(
        "The generated miniature: draw its images (make), train its network on the seen concepts (train), or, at the "
        "end, put examples of all concepts into one picture and show the accuracies beside the known answer (check). "
        "Existing images and networks are kept.",
        no_opts="have no effect here",
    )
    p.add_argument("step", choices=("make", "train", "check"), help="what to do, see above")
    p.add_argument("--output_dir", type=Path, required=True, metavar="DIR", help="folder of the miniature")
    number = functools.partial(p.add_argument, metavar="N")
    number("--seed", type=cli_tools.whole_number(0), default=0, help="make: seed (default: 0)")
    for name, default in (("train", 80), ("test", 50)):
        text = f"make: {name} images per concept (default: {default})"
        number(f"--n_{name}", type=cli_tools.whole_number(1), default=default, help=text)
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run one step, and return the exit code: 1 if the answer is not the known one."""
    args: argparse.Namespace = parser().parse_args(argv)
    folder: Path = args.output_dir
    from cog.levels.wordnet import load_wordnet
    from cog.miniature import world

    if args.step == "make":
        world.make_world(folder, load_wordnet(), seed=args.seed, n_train=args.n_train, n_test=args.n_test)
        return 0
    if args.step == "train":
        from cog.miniature.network import N_EPOCHS, train_network
        from cog.paths import ModelDir

        for model, n_epochs in ((UNTRAINED, 0), (TRAINED, N_EPOCHS)):
            checkpoint = ModelDir(folder / "models", model).checkpoint
            train_network(folder / world.IN1K_DIR / "train", checkpoint, n_epochs=n_epochs)
        return 0
    from cog.data.level_files import read_levels
    from cog.results.frame import average
    from cog.results.read import read

    levels = read_levels(folder / "levels" / constants.LEVELS_FILE)
    world.write_overview(folder, load_wordnet(), levels)
    means = average(read(folder / "models", models=[TRAINED, UNTRAINED], evaluations=["logreg"]).scores)
    table = top1(means)
    findings = check(table)
    if not findings:
        raise CogError(f"{folder / 'models'} has no results of {TRAINED} on {constants.IN1K} and the levels")
    shown = table.to_string(float_format="{:.1f}".format, na_rep="-")
    print(
        "Top-1 accuracy of linear classifiers on the features, in percent (24 concepts per data set: guessing gives "
        f"4.2)\n\n{shown}\n\n"
        "The trained network has learned the seen concepts alone. L1 holds their siblings, L5 snakes and conifers.\n"
    )
    for text, holds in findings:
        print(f"{'as expected' if holds else 'NOT AS EXPECTED'}: {text}")
    return 0 if all(holds for _, holds in findings) else 1


def top1(means: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracies in percent: rows are networks and numbers of images, columns the data sets."""
    means = means[means["metric"] == "top1"]
    order = sorted(set(means["n_shot"]), key=lambda n: (n != 0, -n))
    wanted = [(TRAINED, n) for n in order] + [(UNTRAINED, 0)]
    wide = means.pivot_table(index=["model", "n_shot"], columns="dataset", values="value").reindex(wanted)
    wide = wide.reindex(columns=list(constants.DATASETS))
    wide.columns = ["seen", *(f"L{k}" for k in range(1, constants.N_LEVELS + 1))]
    images = {0: "all images", 1: "1 image"}
    wide.index = [
        f"{'trained' if m == TRAINED else 'untrained'} network, {images.get(n, f'{n} images')}"
        for m, n in wanted
    ]
    return wide.dropna(how="all")


def check(table: pd.DataFrame) -> list[tuple[str, bool]]:
    """Return the expectations, which follow from inheritance and training, and whether they hold.

    With any number of images, the trained network must be better on the seen concepts than on every level. With all, it
    must be better on level 1 than on level 5, and better than the untrained network on every data set. There is no
    expectation about neighboring levels: 24 concepts per level are too few to determine their order.
    """
    findings = []
    for name, row in table.iterrows():
        kind, images = str(name).split(" network, ")
        highest = row.drop("seen").max()
        if kind == "trained" and row.notna()["seen"] and highest == highest:
            text = f"{images}: best on the seen concepts, {row['seen']:.1f}; at most {highest:.1f} on a level"
            findings.append((text, bool(row["seen"] > highest)))
    rows = [f"{kind} network, all images" for kind in ("trained", "untrained")]
    if findings and set(rows) <= set(table.index):
        trained, untrained = (table.loc[row] for row in rows)
        text = f"near concepts are easier than far ones: {trained['L1']:.1f} on L1, {trained['L5']:.1f} on L5"
        findings.append((text, bool(trained["L1"] > trained["L5"])))
        margins = (trained - untrained).dropna()
        text = f"training helps on every data set, by {margins.min():.1f} to {margins.max():.1f} points"
        findings.append((text, bool(margins.min() > 0)))
    return findings


cli = functools.partial(cli_tools.run, main)

if __name__ == "__main__":
    cli()
