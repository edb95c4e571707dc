"""Run :mod:`cog.commands.extract_features`; ``python extract_features.py --help`` lists the flags."""

from cog.commands import cli

if __name__ == "__main__":
    cli("extract_features")
