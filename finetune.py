"""Run ``python finetune.py --help``; the work is in ``cog/commands/finetune.py``."""

from cog.commands.finetune import cli

if __name__ == "__main__":
    cli()
