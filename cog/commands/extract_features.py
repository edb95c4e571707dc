"""Extract the features of data sets with frozen models into ``X_Y.pth`` files, one per model, data set and split."""

from __future__ import annotations

import argparse
import functools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cog import constants
from cog.commands import flags
from cog.errors import CogError, some
from cog.paths import ModelDir, limit_of
from cog.runtime import cli as cli_tools
from cog.runtime import files, signals
from cog.runtime.ranks import this_rank

if TYPE_CHECKING:
    from cog.data.images import ImageList
    from cog.features.chunks import Extraction, Model

EXAMPLES = (
    "--model sup_resnet50 --models_root_dir /models --dataset in1k --in1k_images_root /data/in1k --split train test",
    "--model timm_resnet18 dino_resnet50 --models_root_dir /models --dataset cog_l1 cog_l2 --split train test "
    "--imagenet_images_root /data/in21k --cog_levels_mapping_file levels.pkl --cog_concepts_split_file split.pkl",
    "--model my_net --model_loader my_net.py:load_my_model --models_root_dir /models --dataset birds "
    "--images_root /data/birds --split train test FT_EXTRACT.PRECISION fp16",
)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed flags; no file is read or written."""
    parser = flags.parser(__doc__ or "", *EXAMPLES)
    flags.add(parser, "model", "dataset", "split", required=True)
    flags.add(parser, "models_root_dir", "ckpt_file", "model_loader", "models_file", "output_dir")
    flags.add_images(parser)
    flags.add(parser, "allow_failures", "device", "overwrite")
    parser.add_argument(
        "--limit",
        type=cli_tools.whole_number(2),
        default=0,
        metavar="N",
        help="the first N images of the first N classes alone, into <models_root_dir>/limit-N/, a root for the other "
        "commands",
    )
    return parser.parse_args(argv)


def plan(args: argparse.Namespace) -> list[Extraction]:
    """Return the extractions, one per model, data set and split, after checks of their inputs; nothing is written."""
    from cog.features.chunks import Extraction, Model  # imported here because it imports torch
    from cog.models.choice import find_model

    pairs = [(dataset, split) for dataset in args.dataset for split in args.split]
    if args.models_root_dir is None and args.output_dir is None:
        raise CogError("nowhere to write: give --models_root_dir, or --ckpt_file with --output_dir")
    if args.ckpt_file is not None and len(args.model) > 1:
        raise CogError(f"--ckpt_file is the checkpoint of one model, and --model names {len(args.model)}")
    if args.output_dir is not None and (args.limit or len(pairs) * len(args.model) > 1):
        raise CogError(
            "--output_dir takes the features of one model, data set and split, without --limit; give --models_root_dir "
            f"instead, or one at a time (here: {len(pairs) * len(args.model)})"
        )
    flag = "models_root_dir" if args.output_dir is None else "output_dir"
    place = Path(getattr(args, flag)).absolute()
    # The folder itself is made later; what is there already has to be a folder.
    files.require_dir(next(path for path in (place, *place.parents) if path.exists()), f"--{flag}")
    models = []
    for name in args.model:
        choice = find_model(
            name,
            root=args.models_root_dir,
            checkpoint=args.ckpt_file,
            loader=args.model_loader,
            models_file=args.models_file,
        )
        models.append(Model(choice, choice.config(args.opts)))
    lists = {pair: flags.image_sources(args).list_images(*pair) for pair in pairs}
    if args.limit:
        lists = {pair: images.first(args.limit) for pair, images in lists.items()}
    _require_same_classes(args.dataset, lists)

    def folder(model: Model, pair: tuple[str, str]) -> Path:
        if args.output_dir is not None:
            return Path(args.output_dir)
        root = Path(args.models_root_dir)
        if args.limit and limit_of(root) != args.limit:
            root /= f"limit-{args.limit}"
        return ModelDir(root, model.choice.name).features(*pair)

    return [
        Extraction(model, images, folder(model, pair), device_name=args.device, overwrite=args.overwrite)
        for pair, images in lists.items()
        for model in models
    ]


def _require_same_classes(datasets: Sequence[str], lists: Mapping[tuple[str, str], ImageList]) -> None:
    """Refuse a data set whose listed splits have different classes, so that labels do not agree."""
    for dataset in datasets:
        train, test = (lists.get((dataset, split)) for split in constants.SPLITS)
        if train is not None and test is not None and train.classes != test.classes:
            differing = sorted({*train.classes} ^ {*test.classes})
            raise CogError(
                f"{dataset} has {len(train.classes)} classes for training and {len(test.classes)} for testing, which "
                f"differ in {some(differing)}; labels are positions among them, so both need the same"
            )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    args, rank = parse_args(argv), this_rank()
    if rank.number:  # all say the same
        logging.getLogger("cog").setLevel(logging.ERROR)
    with signals.deferred():
        extractions = plan(args)
        from cog.features.run import extract

        extract(extractions, device=args.device, allow_failures=args.allow_failures, rank=rank)
    return 0


cli = functools.partial(cli_tools.run, main, continues=True)
