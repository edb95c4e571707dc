"""``python -m cog`` lists the commands, ``python -m cog COMMAND ...`` runs one."""

from __future__ import annotations

import argparse
import importlib
import sys

from cog.commands import COMMANDS
from cog.runtime import cli


def main() -> None:
    """Run the command that the first argument names; without an argument, print the list of commands."""
    words = sys.argv[1:]
    commands = {command.name: command for command in COMMANDS}
    width = max(map(len, commands))
    parser = cli.OneLineParser(
        prog="python -m cog",
        usage="python -m cog [-h] [--version] COMMAND ...",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Commands (each with --help):\n"
        + "\n".join(f"  {command.name:<{width}}  {command.help}" for command in COMMANDS),
    )
    parser.add_argument("command", metavar="COMMAND", choices=tuple(commands), help="one of the above")
    if not words:
        parser.print_help()
        return
    command = commands[parser.parse_args(words[:1]).command]
    sys.argv = [f"python -m cog {command.name}", *words[1:]]
    importlib.import_module(command.module).cli()


if __name__ == "__main__":
    main()
