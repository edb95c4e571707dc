"""Run ``python analyze_features.py --help``; the work is in ``cog/commands/analyze_features.py``."""

from cog.commands.analyze_features import cli

if __name__ == "__main__":
    cli()
