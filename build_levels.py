"""Run ``python build_levels.py --help``; the work is in ``cog/commands/build_levels.py``."""

from cog.commands.build_levels import cli

if __name__ == "__main__":
    cli()
