"""Run :mod:`cog.commands.print_results`; ``python print_results.py --help`` lists the flags."""

from cog.commands import cli

if __name__ == "__main__":
    cli("print_results")
