"""Compute the features of one image on the CPU; the flags are those of ``extract_features.py``.

A study with ``--dry_run`` calls it once for each model.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence

from cog.commands import extract_features
from cog.runtime import cli as cli_tools
from cog.runtime.ranks import Rank


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line about the model, and return the exit code."""
    from cog.features.runner import try_network  # imports torch

    plan = extract_features.make_plan(extract_features.parse_args(argv), Rank(), time.time())
    print(try_network(plan, plan.images(plan.pairs[0])).removeprefix(f"{plan.model.model}: "))
    return 0


cli = functools.partial(cli_tools.run, main)

if __name__ == "__main__":
    cli()
