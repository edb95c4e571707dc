"""List the models, download and check checkpoints, measure top-1."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence

from cog.errors import CogError
from cog.models import table
from cog.models.spec import PaperModel
from cog.models.zoo import MODELS, get_spec
from cog.paths import ModelDir
from cog.runtime import cli as cli_tools
from cog.runtime import files


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the flags, without access to files."""
    parser = cli_tools.OneLineParser(prog=cli_tools.started_as("cog.models"), description=__doc__)
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=cli_tools.OneLineParser
    )

    def command(name: str, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run=globals()[f"_{name}"])
        return added

    def add_root(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("models_root_dir", help="folder of all models")

    command("list", "print the table of models")
    fetching = command("fetch", "download checkpoints to <models_root_dir>/<title>/<architecture>/model.ckpt")
    add_root(fetching)
    fetching.add_argument("models", nargs="*", metavar="MODEL", help="names, such as dino_resnet50")
    fetching.add_argument("--all", action="store_true", help="all models")
    fetching.add_argument("--dry_run", action="store_true", help="only print what would be done")
    checking = command(
        "check", "verify checkpoints: hash, names and shapes of parameters, a run of the network"
    )
    add_root(checking)
    checking.add_argument("models", nargs="*", metavar="MODEL", help="names (default: all that are there)")
    top1 = command("top1", "measure the ImageNet-1K accuracy of a released classifier")
    add_root(top1)
    top1.add_argument("model", metavar="MODEL", help="name, such as sup_resnet50")
    top1.add_argument("--in1k_images_root", required=True, help="holds val/<wnid>/*.JPEG")
    top1.add_argument("--device", help="cpu, cuda or cuda:<index> (default: cuda if there is one, else cpu)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    args = parse_args(argv)
    return args.run(args)


def _chosen(names: Sequence[str]) -> list[PaperModel]:
    return [get_spec(name) for name in names] or list(MODELS.values())


def _list(args: argparse.Namespace) -> int:
    print(table.markdown(MODELS.values()))
    return 0


def _check(args: argparse.Namespace) -> int:
    from cog.models import check

    specs = _chosen(args.models)
    root = files.require_dir(args.models_root_dir, "<models_root_dir>")
    findings = check.check(specs, root)
    print(check.report(findings))
    return 2 if any(f.status == "bad" or (args.models and f.status == "absent") for f in findings) else 0


def _top1(args: argparse.Namespace) -> int:
    spec = get_spec(args.model)
    files.require_dir(args.in1k_images_root, "--in1k_images_root")
    from cog.models.formats.detect import require_checkpoint

    checkpoint = ModelDir(args.models_root_dir, spec.name).checkpoint
    require_checkpoint(checkpoint, "checkpoint")
    from cog.models import top1
    from cog.runtime.device import resolve_device

    accuracy, n_images = top1.measure(
        spec, checkpoint, args.in1k_images_root, device=resolve_device(args.device)
    )
    print(top1.verdict(spec, accuracy, n_images))
    return 0


def _fetch(args: argparse.Namespace) -> int:
    from cog.models import check, download

    if not args.models_root_dir.strip():
        raise CogError("<models_root_dir> is empty; give the folder that holds the models")
    if args.all == bool(args.models):
        raise CogError("give the names of models, or --all")
    outcomes = download.prepare(_chosen(args.models), args.models_root_dir, dry_run=args.dry_run)
    print(check.report(outcomes))
    return 2 if any(outcome.status == download.FAILED for outcome in outcomes) else 0


cli = functools.partial(cli_tools.run, main)

if __name__ == "__main__":
    cli()
