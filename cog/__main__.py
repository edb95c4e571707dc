"""``python -m cog`` lists the commands, ``python -m cog COMMAND ...`` runs one."""

import importlib
import sys

import cog
from cog.errors import did_you_mean


def main() -> None:
    """Run the command that the first argument names; without an argument, print the list of commands."""
    # By name, like the functions of ``cog``: this file starts what is above the room that it lies in.
    commands = importlib.import_module("cog.commands")
    name, *words = sys.argv[1:] or ["--help"]
    if name in commands.COMMANDS:
        sys.argv = [f"python -m cog {name}", *words]
        commands.cli(name)
    elif name == "--version":
        print(f"imagenet-cog {cog.__version__}")
    elif name in ("-h", "--help"):
        print("usage: python -m cog [-h] [--version] COMMAND ...\n\nCommands (each with --help):")
        for command, text in commands.COMMANDS.items():
            print(f"  {command:<{max(map(len, commands.COMMANDS))}}  {text}")
    else:
        hint = did_you_mean(name, commands.COMMANDS) or f"; expected {', '.join(commands.COMMANDS)}"
        print(f"python -m cog: error: unknown command {name!r}{hint}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
