"""Extract features with frozen models into ``X_Y.pth`` files, one per model, data set and split.

--limit N is a trial: the first N images of the first N classes, into <root>/limit-N, a root for others.
"""

import argparse
import itertools
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cog import constants, paths
from cog.commands import flags
from cog.errors import CogError, some
from cog.runtime import cli, signals
from cog.runtime.memory import this_rank

EXAMPLES = (
    "--model sup_resnet50 --models_root_dir /models --dataset in1k --in1k_images_root /in1k --split test",
    "--model timm_resnet18 dino_resnet50 --models_root_dir /models --dataset cog_l1 --split train test "
    "--imagenet_images_root /in21k --cog_levels_mapping_file levels.pkl --cog_concepts_split_file split.pkl",
    "--model my_net --model_loader my_net.py:load_my_model --models_root_dir /models --dataset birds "
    "--images_root /birds --split train test FT_EXTRACT.PRECISION fp16",
)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed flags; no file is read or written."""
    parser = flags.parser(__doc__, *EXAMPLES)
    flags.add(parser, "model", "dataset", "split", required=True)
    flags.add(parser, "models_root_dir", "ckpt_file", "model_loader", "models_file", "output_dir")
    flags.add(parser, *flags.IMAGES, "allow_failures", "device", "overwrite")
    limit = "only the first N images of the first N classes, into <models_root_dir>/limit-N"
    parser.add_argument("--limit", metavar="N", type=cli.whole_number(1), help=limit)
    return parser.parse_args(argv)


def plan(args: argparse.Namespace) -> tuple[list[Any], dict[str, CogError]]:
    """Return the extractions, one per model, data set and split, and the errors of models that have none.

    Nothing is written.
    """
    from cog.features.extract import Model  # imports torch
    from cog.features.run import Extraction
    from cog.models.choice import find_model

    root, output_dir = args.models_root_dir, args.output_dir
    if root is None and output_dir is None:
        raise CogError("nowhere to write: give --models_root_dir, or --ckpt_file with --output_dir")
    if args.limit:
        if root is None or output_dir is not None:
            raise CogError("--limit writes below --models_root_dir: give that, without --output_dir")
        root = f"{root}/limit-{args.limit}"
    flags.each(args, "model", of_one=("ckpt_file",))
    flags.each(args, "model", "dataset", "split", of_one=("output_dir",))
    if output_dir is not None:  # it is made later; what is there already has to be a folder
        path = Path(output_dir).absolute()
        paths.require_dir(next(there for there in (path, *path.parents) if there.exists()), "--output_dir")
    how = {"checkpoint": args.ckpt_file, "loader": args.model_loader, "models_file": args.models_file}
    models, failed = list[Model](), dict[str, CogError]()
    for name in args.model:
        try:
            choice = find_model(name, root=root, **how)
            models.append(Model(choice, choice.config(args.opts)))
        except CogError as error:  # it does not take the others of its pass along
            failed[name] = error
    if not models:
        raise next(iter(failed.values()))
    for name, each in failed.items():
        logging.getLogger("cog").error("%s: %s", name, each)
    pairs, sources = itertools.product(args.dataset, args.split), flags.image_sources(args)
    lists = {pair: sources.list_images(*pair) for pair in pairs}
    for dataset in args.dataset if len(args.split) > 1 else ():
        train, test = (lists[dataset, split].classes for split in constants.SPLITS)
        if differing := sorted({*train} ^ {*test}):
            raise CogError(f"{dataset}: only one split has {some(differing)}; both need the same classes")
    planned = []
    for (pair, images), model in itertools.product(lists.items(), models):
        folder = Path(output_dir or paths.ModelDir(root, model.choice.name).features(*pair))
        planned.append(Extraction(model, images, folder, args.device, args.overwrite))
    return planned, failed


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    args, rank = parse_args(argv), this_rank()
    # Before torch is imported: its threads wait in a loop, which takes the processors from decoding. With
    # three small networks in one pass, 384 instead of 244 images/s on 2 processors.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if rank.number:  # all say the same
        logging.getLogger("cog").setLevel(logging.ERROR)
    with signals.deferred():
        extractions, failed = plan(args)
        from cog.features.run import extract

        extract(extractions, allow_failures=args.allow_failures, rank=rank)
    if failed:
        raise CogError(f"no features of {', '.join(failed)}: {next(iter(failed.values()))}")
    return 0
