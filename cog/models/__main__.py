"""List the models, download and check checkpoints, measure top-1."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from cog.errors import CogError
from cog.models import model_docs, table
from cog.models.names import find_model
from cog.models.spec import CATEGORIES, ModelSpec
from cog.models.zoo import MODELS, get_spec, list_models
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
        return commands.add_parser(name, help=text, description=text)

    listing = command("list", "print the table of models")
    listing.add_argument("--format", choices=sorted(table.FORMATS), default="text", help="default: text")
    listing.add_argument("--category", choices=CATEGORIES, help="only these models")

    checking = command("check", "verify the existing checkpoints: hash, parameter names, shapes")
    checking.add_argument("--models_root_dir", required=True, help="folder of all models")
    checking.add_argument("--model", action="append", help="check only this model; may be repeated")
    checking.add_argument("--deep", action="store_true", help="also run each network once")

    top1 = command("top1", "measure the ImageNet-1K accuracy of a released classifier")
    top1.add_argument("--model", required=True, help="name, such as sup_resnet50")
    top1.add_argument("--in1k_images_root", required=True, help="holds val/<wnid>/*.JPEG")
    place = top1.add_mutually_exclusive_group(required=True)
    place.add_argument("--models_root_dir", help="holds <model_title>/<architecture_name>/model.ckpt")
    place.add_argument("--ckpt_file", help="the checkpoint, with its classifier")
    top1.add_argument("--device", help="cpu, cuda or cuda:<index> (default: cuda if there is one, else cpu)")
    top1.add_argument(
        "--batch_size", type=cli_tools.whole_number(1), default=128, help="images (default: 128)"
    )
    top1.add_argument(
        "--n_workers", type=cli_tools.whole_number(0), default=8, help="decoding threads (default: 8)"
    )
    top1.add_argument(
        "--limit",
        type=cli_tools.whole_number(0),
        default=0,
        help="number of images, spread over the classes (default: all 50000)",
    )

    download = command(
        "download", "download checkpoints into <models_root_dir>; prepare_models/*.sh call this"
    )
    which = download.add_mutually_exclusive_group(required=True)
    which.add_argument("--script", choices=sorted(model_docs.families()), metavar="SCRIPT",
                       help="the models of one script in prepare_models/")  # fmt: skip
    which.add_argument("--model", action="append", help="a model; may be repeated")
    which.add_argument("--all", action="store_true", help="all models")
    download.add_argument("models_root_dir", help="folder of all models")
    download.add_argument("--dry_run", action="store_true", help="only print what would be done")

    docs = command("docs", "compare prepare_models/, docs/models.md and docs/data.md with the declarations")
    docs.add_argument("--write", action="store_true", help="rewrite it")
    # The scripts put "--" before the user's own arguments, which may start with flags.
    words = list(sys.argv[1:] if argv is None else argv)
    if "--" in words:
        words.remove("--")
    return parser.parse_args(words)


def chosen(names: Sequence[str] | None) -> list[ModelSpec]:
    """Return the declarations of the named models, or of all."""
    return [get_spec(find_model(name)) for name in names] if names else list(MODELS.values())


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    args = parse_args(argv)
    return {"list": _list, "check": _check, "top1": _top1, "download": _download, "docs": _docs}[
        args.command
    ](args)


def _list(args: argparse.Namespace) -> int:
    print(table.FORMATS[args.format]([MODELS[name] for name in list_models(args.category)]))
    return 0


def _check(args: argparse.Namespace) -> int:
    from cog.models import check

    specs = chosen(args.model)
    root = files.require_dir(args.models_root_dir, "--models_root_dir")
    findings = check.check(specs, root, deep=args.deep)
    print(check.report(findings, ("ok", "bad", "absent")))
    absent_matters = args.model is not None
    return 2 if any(f.status == "bad" or (absent_matters and f.status == "absent") for f in findings) else 0


def _top1(args: argparse.Namespace) -> int:
    spec = get_spec(find_model(args.model))
    files.require_dir(args.in1k_images_root, "--in1k_images_root")
    checkpoint = (
        Path(args.ckpt_file) if args.ckpt_file else ModelDir(args.models_root_dir, spec.name).checkpoint
    )
    from cog.models.formats.detect import require_checkpoint

    require_checkpoint(checkpoint, "--ckpt_file" if args.ckpt_file else "checkpoint")
    from cog.models import top1
    from cog.runtime.device import resolve_device

    accuracy, n_images = top1.measure(
        spec,
        checkpoint,
        args.in1k_images_root,
        device=resolve_device(args.device),
        batch_size=args.batch_size,
        n_workers=args.n_workers,
        limit=args.limit,
    )
    print(top1.verdict(spec, accuracy, n_images))
    return 0


def _download(args: argparse.Namespace) -> int:
    from cog.models import check, download

    if not args.models_root_dir.strip():
        raise CogError("<models_root_dir> is empty; give the folder that holds the models")
    if args.script:
        specs = model_docs.families()[args.script]
    else:
        specs = chosen(args.model)
    outcomes = download.prepare(specs, args.models_root_dir, dry_run=args.dry_run)
    print(check.report(outcomes))
    return 2 if any(outcome.status == download.FAILED for outcome in outcomes) else 0


def _docs(args: argparse.Namespace) -> int:
    repository = Path(__file__).resolve().parents[2]
    files.require_dir(repository / "prepare_models", "the checkout's")
    stale = model_docs.changed(repository)
    if args.write:
        for path, text in stale.items():
            files.write_text(path, text)
            if path.suffix == ".sh":
                path.chmod(0o755)
            print(f"wrote {path}")
    elif stale:
        which = ", ".join(str(path.relative_to(repository)) for path in stale)
        raise CogError(f"{which} differ from the declarations; run `python -m cog.models docs --write`")
    return 0


cli = functools.partial(cli_tools.run, main)

if __name__ == "__main__":
    cli()
