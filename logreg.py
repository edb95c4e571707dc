"""Run ``python logreg.py --help``; the work is in ``cog/commands/logreg.py``."""

from cog.commands.logreg import cli

if __name__ == "__main__":
    cli()
