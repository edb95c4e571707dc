"""Fine-tune models on data sets, as a control for classifiers on frozen features (paper, supplement C.2, Fig. 6).

The network and a new linear classifier are trained together on all training images and tested after every epoch.
The paper gives no hyper-parameters; the recipe is FINETUNE in configs/default.py. Several GPUs: start it with
torchrun.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from cog.commands import flags
from cog.runtime import cli as cli_tools


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed flags; no file is read or written."""
    parser = flags.parser(
        __doc__ or "", "--model sup_resnet50 --models_root_dir DIR --dataset in1k --in1k_images_root DIR"
    )
    target = parser.add_argument_group("what to train")
    flags.add(target, "model", "dataset", required=True)
    files = parser.add_argument_group("model and output: --models_root_dir, or --ckpt_file with --output_dir")
    flags.add(files, "models_root_dir", "ckpt_file", "output_dir", "model_loader", "models_file")
    flags.add_images(parser.add_argument_group("images"))
    run = parser.add_argument_group("run")
    flags.add(run, "allow_failures", "device", "overwrite")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    args = parse_args(argv)
    runs = flags.each(args, "model", "dataset", of_one=("ckpt_file", "output_dir"))
    from cog import config
    from cog.errors import CogError
    from cog.finetune import run  # imported here because it imports torch
    from cog.models.choice import find_model
    from cog.paths import ModelDir

    if args.models_root_dir is None and args.output_dir is None:
        raise CogError("give --models_root_dir, or --output_dir (with --ckpt_file or --model_loader)")
    with run.joined(args.device) as (rank, device):
        for one in runs:
            choice = find_model(
                one.model,
                root=one.models_root_dir,
                checkpoint=one.ckpt_file,
                loader=one.model_loader,
                models_file=one.models_file,
            )
            cfg = choice.config(one.opts)
            usual = cfg.EVAL.NAME == config.default_cfg().EVAL.NAME
            name = config.FINETUNE if usual else cfg.EVAL.NAME
            if one.output_dir is not None:
                output = Path(one.output_dir)
            else:
                folder = ModelDir(Path(one.models_root_dir), one.model)
                output = folder.run(one.dataset, name=name, n_shot=0, seed=cfg.EVAL.SEED)
            run.fine_tune(
                choice,
                cfg,
                flags.image_sources(one),
                one.dataset,
                output,
                rank=rank,
                device=device,
                allow_failures=one.allow_failures,
                overwrite=one.overwrite,
            )
    return 0


def cli() -> None:
    """Run the console script ``cog-finetune``."""
    cli_tools.run(main, continues=True)


if __name__ == "__main__":
    cli()
