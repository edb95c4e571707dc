"""Run :mod:`cog.commands.build_levels`; ``python build_levels.py --help`` lists the flags."""

from cog.commands import cli

if __name__ == "__main__":
    cli("build_levels")
