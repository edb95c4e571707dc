"""Run ``python print_results.py --help``; the work is in ``cog/commands/print_results.py``."""

from cog.commands.print_results import cli

if __name__ == "__main__":
    cli()
