"""The command ``python -m cog miniature make | train | check``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cog import constants
from cog.errors import CogError
from cog.runtime import cli

if TYPE_CHECKING:
    import pandas as pd

#: Names of the trained network, and of the control: the same network before training.
TRAINED, UNTRAINED = "miniature_convnet", "miniature_random"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one step, and return the exit code: 1 if the answer is not the known one."""
    parser = cli.Parser(
        "The generated miniature: draw its images and save an untrained network (make), train a network on "
        "the seen concepts (train), or show examples of all concepts in one picture, and the accuracies "
        "beside the known answer (check). Existing images and networks are kept.",
        has_keys=False,
    )
    parser.add_argument("step", choices=("make", "train", "check"), help="what to do, see above")
    add = functools.partial(parser.add_argument, metavar="N")
    add("--output_dir", type=Path, required=True, metavar="DIR", help="folder of the miniature")
    add("--seed", type=cli.whole_number(0), default=0, help="make: seed (default: 0)")
    images = functools.partial(add, type=cli.whole_number(1))
    images("--n_train", default=80, help="make: training images per concept (default: 80)")
    images("--n_test", default=50, help="make: test images per concept (default: 50)")
    args = parser.parse_args(argv)
    folder: Path = args.output_dir
    from cog.levels.wordnet import load_wordnet
    from cog.miniature import world

    if args.step == "make":
        world.make_world(folder, load_wordnet(), seed=args.seed, n_train=args.n_train, n_test=args.n_test)
    if args.step in ("make", "train"):
        from cog.miniature.network import N_EPOCHS, train_network
        from cog.paths import ModelDir

        model, n_epochs = (UNTRAINED, 0) if args.step == "make" else (TRAINED, N_EPOCHS)
        checkpoint = ModelDir(folder / "models", model).checkpoint
        train_network(folder / world.IN1K_DIR / "train", checkpoint, n_epochs=n_epochs)
        return 0
    from cog.data.level_files import read_levels
    from cog.results.frame import average
    from cog.results.read import read

    world.write_overview(folder, load_wordnet(), read_levels(folder / "levels" / constants.LEVELS_FILE))
    found = read(folder / "models", models=[TRAINED, UNTRAINED], evaluations=["logreg"])
    table = top1(average(found.scores))
    findings = check(table)
    if not findings:
        raise CogError(f"{folder / 'models'} has no results of {TRAINED} on {constants.IN1K} and the levels")
    shown = table.set_axis([_label(*row) for row in table.index]).to_string(float_format="{:.1f}".format)
    print("Top-1 accuracy of linear classifiers on the features, in percent", end="")
    print(f" (24 concepts per data set: guessing gives 4.2)\n\n{shown}\n")
    print("seen: the concepts that the trained network has learned; L1 to L5: concepts that are new to it,")
    print("from siblings of the seen ones in WordNet (L1) to other kingdoms (L5: snakes and conifers)\n")
    for text, holds in findings:
        print(f"{'as expected' if holds else 'NOT AS EXPECTED'}: {text}")
    return 0 if all(holds for _, holds in findings) else 1


def top1(means: pd.DataFrame) -> pd.DataFrame:
    """Return accuracies in percent by model and number of images (0: all); the columns are the data sets."""
    of_top1 = means[means["metric"] == "top1"]
    wide = of_top1.pivot_table(index=["model", "n_shot"], columns="dataset", values="value")
    wide = wide.reindex(columns=list(constants.DATASETS)).dropna()
    wide.columns = ["seen", *(f"L{k}" for k in range(1, len(constants.COG_LEVELS) + 1))]
    return wide.loc[sorted(wide.index, key=lambda row: (row[0] != TRAINED, row[1] != 0, -row[1]))]


def _label(model: str, n_shot: int) -> str:
    images = {0: "all images", 1: "1 image"}.get(n_shot, f"{n_shot} images")
    return f"{'trained' if model == TRAINED else 'untrained'} network, {images}"


def check(table: pd.DataFrame) -> list[tuple[str, bool]]:
    """Return the expectations, none about neighboring levels of few concepts, and whether they hold."""
    findings = []
    for (model, n_shot), row in table.iterrows():
        if model == TRAINED:
            images, highest = _label(model, n_shot).split(", ")[1], row.drop("seen").max()
            text = f"{images}: best on the seen concepts, {row['seen']:.1f}; at most {highest:.1f} on a level"
            findings.append((text, bool(row["seen"] > highest)))
    if {(TRAINED, 0), (UNTRAINED, 0)} <= {*table.index}:
        trained, untrained = table.loc[(TRAINED, 0)], table.loc[(UNTRAINED, 0)]
        text = f"near concepts are easier than far ones: {trained['L1']:.1f} on L1, {trained['L5']:.1f} on L5"
        findings.append((text, bool(trained["L1"] > trained["L5"])))
        margins = trained - untrained
        text = f"training helps on every data set, by {margins.min():.1f} to {margins.max():.1f} points"
        findings.append((text, bool(margins.min() > 0)))
    return findings
