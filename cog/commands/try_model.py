"""Compute the features of one image on the CPU; the flags are those of ``extract_features.py``.

A study with ``--dry_run`` calls it once for each model.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence

from cog.commands import extract_features
from cog.errors import CogError
from cog.runtime import cli as cli_tools
from cog.runtime.ranks import Rank

#: Largest difference of an image's features in two passes of a sound network, in terms of their root mean square.
_ROUNDING = 1e-4


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line about the model, and return the exit code."""
    import torch

    from cog.features.extract import Extractor
    from cog.models.backbone import probe

    plan = extract_features.make_plan(extract_features.parse_args(argv), Rank(), time.time())
    images = plan.images(plan.pairs[0])
    device = torch.device("cpu")
    backbone = plan.model.load(device, plan.cfg)
    probe(backbone, plan.cfg.FT_EXTRACT.IMAGE_CROP_SIZE)  # sets its number of features
    extractor = Extractor.from_config(backbone, plan.cfg, device, n_workers=0)
    first, again = (extractor.extract(images, [(0, 1)]) for _ in range(2))
    if first.failures:
        raise CogError(f"{images.file(0)} could not be decoded ({first.failures[0][1]})")
    x, other = first.x[0].float(), again.x[0].float()
    rms = float(x.square().mean().sqrt())
    if rms == 0:
        raise CogError("all features are 0; check the checkpoint and the loader")
    if float((other - x).abs().max()) > _ROUNDING * rms:
        raise CogError("features of an image differ between two passes; is something in training mode?")
    summary = plan.model.summary(backbone, plan.cfg).removeprefix(f"{plan.model.model}: ")
    print(f"{summary}; tried on {images.file(0)}")
    return 0


cli = functools.partial(cli_tools.run, main)

if __name__ == "__main__":
    cli()
