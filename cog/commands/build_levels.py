"""Build concept generalization levels: select concepts, rank them by similarity, cut the ranking, split the images.

Eligible concepts of ImageNet-21K are ranked by similarity to the seen concepts; the images of every concept of a level
become training and test images. With the image counts of the Fall-2011 release the result is the published benchmark.
Thresholds are configuration keys: LEVELS.MIN_IMAGES 782, LEVELS.N_TEST 50, LEVELS.MAX_TRAIN 1300,
LEVELS.EXCLUDED_ROOTS, LEVELS.N_WORKERS 8. `build_levels.py --compare A.pkl B.pkl` compares two levels
files; `--overlap A.pkl B.pkl C.pkl ...` counts the concepts of each level of A that are in the same level of B, C.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Sequence

from cog.commands import levels_flags
from cog.runtime import cli as cli_tools


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed flags; no file is read or written."""
    parser = cli_tools.Parser(__doc__ or "")
    levels_flags.add(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Build or compare levels and return the exit code.

    Raises:
        CogError: bad arguments or input; no file is written.
    """
    args = parse_args(argv)
    from cog.levels import comparison, job, plan  # imported here because they import numpy

    if args.compare is not None or args.overlap is not None:
        return comparison.run(args)
    fields = dataclasses.fields(plan.LevelsPlan)
    levels_plan = plan.LevelsPlan(**{field.name: getattr(args, field.name) for field in fields})
    if args.check:
        return levels_plan.check()
    job.run(levels_plan)
    return 0


cli = functools.partial(cli_tools.run, main)
