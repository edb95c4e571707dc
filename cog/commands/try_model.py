"""Compute the features of one image on the CPU; the flags are those of ``extract_features.py``.

A study with ``--dry_run`` calls it once for each model.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from cog.commands import extract_features
from cog.runtime import cli as cli_tools


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line about the model, and return the exit code."""
    from cog.features.run import try_model  # imports torch

    print(try_model(extract_features.plan(extract_features.parse_args(argv))[0]))
    return 0


cli = functools.partial(cli_tools.run, main)

if __name__ == "__main__":
    cli()
