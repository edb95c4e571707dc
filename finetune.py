"""Run :mod:`cog.commands.finetune`; ``python finetune.py --help`` lists the flags."""

from cog.commands import cli

if __name__ == "__main__":
    cli("finetune")
