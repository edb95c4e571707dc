"""Fine-tune models on data sets, as a control for classifiers on frozen features (paper, C.2, Fig. 6).

The network and a new linear classifier are trained together on all training images and tested after every
epoch. The paper gives no hyper-parameters; the recipe is FINETUNE in configs/default.py. Several GPUs: start
it with torchrun.
"""

from collections.abc import Sequence
from pathlib import Path

from cog import config, paths
from cog.commands import flags
from cog.errors import CogError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    start = "--models_root_dir /models --model sup_resnet50 --dataset"
    in1k = f"{start} in1k --in1k_images_root /in1k"
    examples = in1k, f"{start} birds --images_root /birds", f"{in1k} EVAL.SEED 37 FINETUNE.LR 0.01"
    parser = flags.parser(__doc__, *examples)
    flags.add(parser, "model", "dataset", required=True)
    flags.add(parser, "models_root_dir", "model_loader", "output_dir", *flags.IMAGES)
    flags.add(parser, "allow_failures", "overwrite")
    args = parser.parse_args(argv)
    runs = flags.each(args, "model", "dataset", of_one=("output_dir",))
    from cog.finetune import run  # imports torch
    from cog.models.choice import find_model

    if args.models_root_dir is None and args.output_dir is None:
        raise CogError("nowhere to write: give --models_root_dir or --output_dir")
    sources = flags.image_sources(args)
    with run.joined() as (rank, device):
        for one in runs:
            choice = find_model(one.model, root=one.models_root_dir, loader=one.model_loader)
            cfg = choice.config(one.opts)
            name = config.FINETUNE if cfg.EVAL.NAME == "logreg" else cfg.EVAL.NAME
            place = paths.ModelDir(one.models_root_dir, one.model)
            output = one.output_dir or place.run(one.dataset, name=name, n_shot=0, seed=cfg.EVAL.SEED)
            how = {"allow_failures": one.allow_failures, "overwrite": one.overwrite}
            run.fine_tune(choice, cfg, sources, one.dataset, Path(output), rank=rank, device=device, **how)
    return 0
