"""Run :mod:`cog.commands.analyze_features`; ``python analyze_features.py --help`` lists the flags."""

from cog.commands import cli

if __name__ == "__main__":
    cli("analyze_features")
