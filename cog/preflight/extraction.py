"""``extract_features.py --check``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import config, names, shards
from cog.commands import extract_features as command
from cog.commands import image_flags
from cog.data import root_layout
from cog.feature_folder import FeatureFolder
from cog.identities import differences
from cog.models.formats.detect import checkpoint_files, detect
from cog.models.zoo import MODELS, get_spec
from cog.preflight import images as wanted
from cog.preflight import machine
from cog.preflight.report import Report

if TYPE_CHECKING:
    from cog.data.image_lists import ImageList

#: Bytes per row beside the features: label and path.
_ROW_BYTES = 64

_SHOWN = 3


def check(args: argparse.Namespace) -> int:
    """Look at everything that an extraction needs, print a summary, and return the exit code.

    Args:
        args: flags of ``extract_features.py``.
    """
    report = Report()
    cfg = None
    dim: int | None = None
    with report.step("configuration"):
        spec = MODELS.get(args.model) if args.model_loader else get_spec(args.model)
        cfg = config.get_cfg(model=spec, model_name=args.model, config_file=args.config, opts=args.opts)
        if spec is not None:
            dim = spec.resolve(cfg.FT_EXTRACT.PROFILE, cfg.FT_EXTRACT.VARIANT).feature_dim
    found = _check_model(report, args)
    folders: dict[tuple[str, str], FeatureFolder] = {}
    with report.step("output"):
        _, model_dir = command.resolve_paths(args) if found is not None else (None, None)
        if found is not None:
            folders = command.feature_folders(args, model_dir)
    lists: dict[tuple[str, str], ImageList] = {}
    pairs = folders or dict.fromkeys((dataset, split) for dataset in args.dataset for split in args.split)
    for pair in pairs:
        images = _check_images(report, args, *pair)
        if images is not None:
            lists[pair] = images
    todo = []
    for pair, folder in folders.items():
        identity = None
        if found is not None and cfg is not None and pair in lists:
            identity = found | command.describe_images(cfg, lists[pair])
        if _check_output(report, args, folder, identity, " ".join(pair)) and pair in lists:
            todo.append((folder.path, len(lists[pair])))
    _check_space(report, todo, dim, half=cfg is not None and cfg.FT_EXTRACT.PRECISION == "fp16")
    with report.step("device"):
        needs = "FT_EXTRACT.DECODE cuda" if cfg is not None and cfg.FT_EXTRACT.DECODE == "cuda" else ""
        machine.check_device(report, args.device, needs_cuda=needs)
    return report.finish()


def _check_model(report: Report, args: argparse.Namespace) -> dict[str, Any] | None:
    """Return the part of features.json that describes the network; None when it is not as it should be."""
    before = report.n_problems
    with report.step("checkpoint"):
        checkpoint, _ = command.resolve_paths(args)
        if checkpoint is not None:
            detect(checkpoint)
        described = command.describe_model(args, checkpoint)
        if checkpoint is None:
            report.ok("checkpoint", f"none; {args.model_loader} does without")
        else:
            n_bytes = sum(path.stat().st_size for path in checkpoint_files(checkpoint))
            known = {True: ", the published file", False: "", None: ""}[
                described.get("checkpoint_is_published")
            ]
            report.ok(
                "checkpoint",
                f"{checkpoint}, {machine.size(n_bytes)}, SHA-256 {described['checkpoint_sha256'][:12]}...{known}",
            )
    return described if report.n_problems == before else None


def _check_images(report: Report, args: argparse.Namespace, dataset: str, split: str) -> ImageList | None:
    label = f"{dataset} {split}"
    images = None
    with report.step(label):
        images = image_flags.list_images(args, dataset, split)
        absent: list[str] = []
        if (
            names.cog_level(dataset) is not None and args.images_root is None
        ):  # others are lists of what is there
            absent = wanted.missing(images)
        total = f"{len(images):,} images of {len(images.classes):,} classes"
        if not absent:
            report.ok(label, total)
        else:
            some = ", ".join(absent[:_SHOWN]) + (", ..." if len(absent) > _SHOWN else "")
            text = f"{len(absent):,} of {total} are missing under {images.root}: {some}"
            why = root_layout.hint(images.root)
            if len(absent) <= args.allow_failures:
                report.warn(label, f"{text} (--allow_failures {args.allow_failures} accepts that){why}")
            else:
                report.problem(
                    label,
                    f"{text}{why or f'; complete them, or accept it with --allow_failures {len(absent)}'}",
                )
    return images


def _check_output(
    report: Report,
    args: argparse.Namespace,
    folder: FeatureFolder,
    identity: dict[str, Any] | None,
    label: str,
) -> bool:
    """Say what would happen with one output folder; returns whether it will be written."""
    before = report.n_problems
    with report.step("output"):
        folder.check_usable(overwrite=args.overwrite, skip_complete=args.skip_complete)
        machine.check_state(report, folder.path)
        if identity is not None and folder.keeps(
            identity, overwrite=args.overwrite, skip_complete=args.skip_complete
        ):
            report.ok("output", f"{label}: {folder.features_file} is complete and would be skipped")
            return False
        if not machine.check_writable(report, folder.path):
            return False
        manifest = shards.read_manifest(folder.path)
        if report.n_problems > before:
            return False
        if manifest is not None and identity is not None:
            _check_unfinished(report, folder.path, manifest, identity, label, overwrite=args.overwrite)
        elif folder.is_complete() and args.overwrite:
            report.warn("output", f"{label}: {folder.features_file} would be replaced (--overwrite)")
        elif folder.is_complete():
            report.warn(
                "output",
                f"{label}: {folder.features_file} is complete; made for other images or not, is not known yet",
            )
        else:
            report.ok("output", f"{label}: {folder.path}")
    return report.n_problems == before


def _check_unfinished(
    report: Report,
    folder: Path,
    manifest: shards.Manifest,
    identity: dict[str, Any],
    label: str,
    *,
    overwrite: bool,
) -> None:
    # The device and the images per pass are part of it, too, but are not known without taking a GPU.
    wanted_keys = {key: value for key, value in identity.items() if key in manifest.identity}
    changed = differences({key: manifest.identity[key] for key in wanted_keys}, wanted_keys)
    work = shards.Shards(folder / shards.FOLDER, manifest)
    work.scan()
    state = f"{label}: {work.n_done():,} of {manifest.n_rows:,} images are done in {work.path}"
    if not changed:
        report.ok("output", f"{state}; continues from there")
    elif overwrite:
        report.warn("output", f"{state}, made differently; they would be discarded (--overwrite)")
    else:
        report.problem(
            "output",
            f"{state}, made differently ({'; '.join(changed)}); give the same settings to continue, or --overwrite",
        )


def _check_space(report: Report, todo: list[tuple[Path, int]], dim: int | None, *, half: bool) -> None:
    if not todo:
        return
    if dim is None:
        report.warn(
            "disk",
            "not estimated: the number of features of a model of your own is not known before it is loaded",
        )
        return
    with report.step("disk"):
        finals = [(path, n * (4 * dim + _ROW_BYTES)) for path, n in todo]
        # Finished ranges of rows exist beside the file made of them until that is in place; one split after the other.
        path, rows = max(todo, key=lambda item: item[1])
        done = sum(_bytes_in(path / shards.FOLDER) for path, _ in todo)
        machine.check_disk(report, [*finals, (path, rows * (2 if half else 4) * dim - done)])
    with report.step("memory"):
        most = max(n * 4 * dim for _, n in todo)
        machine.check_memory(report, most, f"the largest split, {machine.size(most)}, at its end")


def _bytes_in(folder: Path) -> int:
    try:
        return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    except OSError:
        return 0
