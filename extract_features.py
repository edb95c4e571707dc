"""Run ``python extract_features.py --help``; the work is in ``cog/commands/extract_features.py``."""

from cog.commands.extract_features import cli

if __name__ == "__main__":
    cli()
