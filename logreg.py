"""Run :mod:`cog.commands.logreg`; ``python logreg.py --help`` lists the flags."""

from cog.commands import cli

if __name__ == "__main__":
    cli("logreg")
