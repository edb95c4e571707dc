"""``python -m cog`` lists the commands, ``python -m cog COMMAND ...`` runs one."""

from __future__ import annotations

import importlib
import sys

import cog
from cog.errors import did_you_mean


def main() -> None:
    """Run the command that the first argument names; without an argument, print the list of commands."""
    # By name, like the functions of ``cog``: this file starts what is above the room that it lies in.
    commands = {command.name: command for command in importlib.import_module("cog.commands").COMMANDS}
    name, *words = sys.argv[1:] or ["--help"]
    if name in commands:
        sys.argv = [f"python -m cog {name}", *words]
        importlib.import_module(commands[name].module).cli()
    elif name == "--version":
        print(f"imagenet-cog {cog.__version__}")
    elif name in ("-h", "--help"):
        print("usage: python -m cog [-h] [--version] COMMAND ...\n\nCommands (each with --help):")
        for command in commands.values():
            print(f"  {command.name:<{max(map(len, commands))}}  {command.help}")
    else:
        hint = did_you_mean(name, commands) or f"; expected {', '.join(commands)}"
        print(f"python -m cog: error: unknown command {name!r}{hint}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
