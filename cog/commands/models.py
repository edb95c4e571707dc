"""List the models of the paper, download and check their checkpoints, measure top-1."""

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence

from cog.commands import flags
from cog.errors import CogError, printable
from cog.models.choice import unknown_model
from cog.models.paper_models import MODELS, table
from cog.models.spec import PaperModel
from cog.paths import ModelDir, require_dir
from cog.runtime import cli


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    parser = cli.Parser(__doc__, has_keys=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for run in (_list, _fetch, _check, _top1):
        text = run.__doc__
        command = commands.add_parser(run.__name__[1:], help=text, description=text, has_keys=False)
        command.set_defaults(run=run)
        if run is not _list:
            command.add_argument("models_root_dir", help="folder of all models")
            n = 1 if run is _top1 else "*"
            command.add_argument("models", nargs=n, metavar="MODEL", help="names, such as dino_resnet50")
        if run is _fetch:
            command.add_argument("--all", action="store_true", help="all models")
            command.add_argument("--dry_run", action="store_true", help="only print what would be done")
        if run is _top1:
            flags.add(command, "in1k_images_root", required=True)
            flags.add(command, "device")
    args = parser.parse_args(argv)
    return args.run(args)


def _chosen(names: Sequence[str]) -> list[PaperModel]:
    for name in names:
        if name not in MODELS:
            raise unknown_model(name)
    return [MODELS[name] for name in names] or list(MODELS.values())


def _show(results: Iterable[tuple[str, str, str]]) -> Counter[str]:
    """Print a line after each model, and the number of models of each status."""
    counts: Counter[str] = Counter()
    for name, status, detail in results:
        counts[status] += 1
        print(f"{name:<24} {status:<7} {printable(detail)}", flush=True)
    print(", ".join(f"{n} {status}" for status, n in counts.items()))
    return counts


def _list(args: argparse.Namespace) -> int:
    """Print the table of models."""
    print(table())
    return 0


def _fetch(args: argparse.Namespace) -> int:
    """Download checkpoints to <models_root_dir>/<title>/<architecture>/model.ckpt."""
    from cog.models import fetch

    if not args.models_root_dir.strip():
        raise CogError("<models_root_dir> is empty; give the folder that holds the models")
    if args.all == bool(args.models):
        raise CogError("give the names of models, or --all")
    counts = _show(fetch.fetch(_chosen(args.models), args.models_root_dir, dry_run=args.dry_run))
    return 2 if counts["failed"] else 0


def _check(args: argparse.Namespace) -> int:
    """Verify checkpoints: hash, names and shapes of parameters, a run of the network."""
    models = _chosen(args.models)
    root = require_dir(args.models_root_dir, "<models_root_dir>")
    from cog.models import verify

    counts = _show(verify.check(models, root))
    return 2 if counts["bad"] or (args.models and counts["absent"]) else 0


def _top1(args: argparse.Namespace) -> int:
    """Measure the ImageNet-1K accuracy of a released classifier."""
    (row,) = _chosen(args.models)
    images = str(require_dir(args.in1k_images_root, "--in1k_images_root"))
    from cog.models import verify
    from cog.models.fetch import require_checkpoint
    from cog.runtime.device import resolve_device
    from cog.runtime.memory import n_processors

    checkpoint = ModelDir(args.models_root_dir, row.name).checkpoint
    require_checkpoint(checkpoint, "checkpoint")
    device, n_workers = resolve_device(args.device), min(n_processors(), 16)
    print(verify.top1(row, checkpoint, images, device, n_workers))
    return 0
