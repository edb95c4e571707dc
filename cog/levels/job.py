"""Execution of a plan of levels: construction, and all output files."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cog import constants
from cog.data import split_files
from cog.data.level_files import write_levels
from cog.errors import some
from cog.levels import builder, figures, image_folders, outputs
from cog.levels.builder import BuiltLevels
from cog.levels.plan import LevelsPlan
from cog.levels.split_builder import BuiltSplit, build_split
from cog.runtime import files, provenance
from cog.runtime.csv_text import write_csv
from cog.runtime.output_folder import FolderClaim

logger = logging.getLogger(__name__)


def run(plan: LevelsPlan) -> None:
    """Build levels and splits, print a summary, and write all files into the output folder.

    Raises:
        CogError: bad input; no file is written.
    """
    folder = plan.folder
    plan.check_flags()
    if folder is not None and folder.is_done():
        return
    _ = plan.inputs, plan.in1k_counts
    if folder is None:
        _build(plan)
        outputs.show("dry run: nothing was written")
        return
    with folder.claim() as claim:
        if not claim.is_done():
            built, rows = _build(plan)
            split = _split(plan, built)
            _write(claim, plan, built, split, _report(plan, built, rows, split))


def _build(plan: LevelsPlan) -> tuple[BuiltLevels, list[dict[str, Any]]]:
    """Build and print the levels, and return them with the facts about each level."""
    inputs, limits = plan.inputs, plan.cfg.LEVELS
    built = builder.build(plan.graph, inputs, plan.options)
    if built.seen_outside:
        logger.info(
            "seen concepts that are not among the concepts are left out: %s", some(built.seen_outside)
        )
    rows = outputs.level_facts(built, inputs.counts, n_test=limits.N_TEST, max_train=limits.MAX_TRAIN)
    outputs.show(f"WordNet 3.0: {len(plan.graph):,} noun synsets, {plan.graph.source}")
    outputs.show(outputs.describe(built, plan.graph, rows, plan.protocol))
    if plan.limit:
        outputs.show(f"--limit {plan.limit}: a test of the command on a few concepts, not levels")
    for row in rows:
        if row.get("warning"):
            logger.warning(
                "the order of concepts in L%d is largely arbitrary: %s", row["level"], row["warning"]
            )
    return built, rows


def _split(plan: LevelsPlan, built: BuiltLevels) -> BuiltSplit | None:
    """Return the split of all concepts of the levels; None when there are no images to split."""
    limits = plan.cfg.LEVELS
    if plan.store is None:
        logger.info(
            "no %s: the names of the images are not known; add --imagenet_images_root DIR to split them",
            constants.SPLIT_FILE,
        )
        return None
    split = build_split(
        plan.store,
        (wnid for level in built.levels for wnid in level),
        n_test=limits.N_TEST,
        max_train=limits.MAX_TRAIN,
        seed=plan.seed,
        verify=plan.verify_images,
        n_workers=limits.N_WORKERS,
    )
    counts = plan.inputs.counts or {}
    changed = [wnid for wnid, n in split.n_found.items() if counts.get(wnid, n) != n]
    if changed:
        logger.warning(
            "%d of %d concepts have another number of images on disk than in the counts: %s",
            len(changed), len(split.split), some(changed),
        )  # fmt: skip
    if plan.verify_images:
        logger.info(
            "%d of %d images cannot be decoded and are left out",
            len(split.unreadable), sum(split.n_found.values()),
        )  # fmt: skip
    few = [wnid for wnid, n in split.n_usable.items() if n < limits.MIN_IMAGES]
    if few:
        logger.warning(
            "%d concepts have fewer than %d images to split: %s", len(few), limits.MIN_IMAGES, some(few)
        )
    return split


def _write(
    claim: FolderClaim, plan: LevelsPlan, built: BuiltLevels, split: BuiltSplit | None, report: dict[str, Any]
) -> None:
    """Write all files, which appear together; the report is written last."""
    counts = plan.inputs.counts
    with claim.publish() as stage:
        write_levels(stage / constants.LEVELS_FILE, built.levels, limit=plan.limit or 0)
        if split is not None:
            split_files.write_split(stage / constants.SPLIT_FILE, split.split)
        outputs.write_levels_csv(stage / outputs.LEVELS_CSV, built, plan.graph, counts)
        if built.selection is not None:
            outputs.write_concepts_csv(stage / outputs.CONCEPTS_CSV, built, plan.graph, counts or {})
        if plan.inputs.scanned:
            image_folders.write_counts(stage / outputs.COUNTS_CSV, counts or {})
        if split is not None and plan.verify_images:
            rows = sorted(split.unreadable.items())
            write_csv(stage / outputs.UNREADABLE_CSV, ("image", "error"), rows)
        _draw_figures(stage, plan, built)
        written = sorted(os.listdir(stage))
        report["outputs"] = {name: {"sha256": files.sha256(stage / name)} for name in written}
        files.write_json(stage / outputs.REPORT, report)
    outputs.show(f"wrote {claim.folder.path}: {', '.join([*written, outputs.REPORT])}")


def _draw_figures(folder: Path, plan: LevelsPlan, built: BuiltLevels) -> None:
    counts, limits = plan.inputs.counts, plan.cfg.LEVELS
    if built.ranking.similarities is not None:
        figures.save_similarity_figure(folder / outputs.SIMILARITY_FIGURE, built)
    if counts is not None and all(wnid in counts for level in built.levels for wnid in level):
        figures.save_images_figure(
            folder / outputs.IMAGES_FIGURE,
            built.levels,
            counts,
            n_test=limits.N_TEST,
            max_train=limits.MAX_TRAIN,
            in1k=plan.in1k_counts,
        )


def _report(
    plan: LevelsPlan, built: BuiltLevels, rows: list[dict[str, Any]], split: BuiltSplit | None
) -> dict[str, Any]:
    """Return the record of the construction: settings, inputs and facts about the result."""
    selection = built.selection
    return {
        "created": provenance.now(),
        "versions": provenance.versions(("numpy", "matplotlib", "pillow")),
        "command": sys.argv,
        **plan.made_from,
        "seen": {
            "concepts": len(built.seen),
            "left_out_because_not_among_the_concepts": built.seen_outside,
        },
        "selection": None if selection is None else {
            "concepts": selection.n_concepts,
            "steps": [asdict(step) for step in selection.steps],
            "eligible": len(selection.eligible),
        },
        "similarity": built.ranking.facts,
        "levels": rows,
        "concepts_in_gaps": built.n_in_gaps,
        "split": None if split is None else {
            "seed": plan.seed,
            "training_images": sum(len(parts["train"]) for parts in split.split.values()),
            "test_images": sum(len(parts["test"]) for parts in split.split.values()),
            "unreadable_images": len(split.unreadable) if plan.verify_images else None,
        },
    }  # fmt: skip
