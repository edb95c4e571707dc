"""The work of ``build_levels.py``: read the inputs, build the levels, split the images, write all files."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cog import constants
from cog.data import split_files
from cog.data.level_files import read_levels, write_levels
from cog.data.root_layout import open_store
from cog.data.wnids import IN1K_LIST
from cog.errors import CogError, some
from cog.levels import figures, images, report, wordnet
from cog.levels.build import RANDOM, build
from cog.levels.selection import DISCARDED_LIST, read_wnids
from cog.levels.similarity import MEASURES
from cog.runtime import files, provenance
from cog.runtime.csv_text import write_csv
from cog.runtime.output_folder import OutputFolder

if TYPE_CHECKING:
    from yacs.config import CfgNode

logger = logging.getLogger(__name__)

REPORT = "report.json"

#: All files that a job may write.
_OUTPUTS = (
    constants.LEVELS_FILE,
    constants.SPLIT_FILE,
    "levels.csv",
    "concepts.csv",
    "image_counts.csv",
    "similarity.png",
    "images.png",
    REPORT,
)


class LevelsFolder(OutputFolder):
    """The output folder of levels. A job takes seconds, so a complete folder is not compared but refused."""

    markers = (REPORT,)

    def replaced(self) -> tuple[str, ...]:
        """Return the names of all files that may be written."""
        return _OUTPUTS

    def holds_result(self) -> bool:
        """Return False.

        Raises:
            CogError: the folder has files that would be replaced, and there is no ``--overwrite``.
        """
        existing = [name for name in _OUTPUTS if (self.path / name).exists()]
        if existing and not self.overwrite:
            raise CogError(
                f"--output_dir {self.path} already holds {some(existing)}; choose another folder or add --overwrite"
            )
        return False


def run(args: argparse.Namespace, cfg: CfgNode) -> None:
    """Build levels and the split of their images, print a summary, and write all files unless ``--dry_run``.

    Args:
        args: flags of ``build_levels.py``.
        cfg: the configuration.

    Raises:
        CogError: bad input; no file is written.
    """
    if args.dry_run:
        _make(args, cfg, None)
        print("dry run: nothing was written")
        return
    if args.output_dir is None:
        raise CogError("no --output_dir was given; add it, or --dry_run to only see the numbers")
    folder = LevelsFolder(args.output_dir, overwrite=args.overwrite)
    folder.is_done()
    with folder.claim() as claim:
        claim.is_done()
        with claim.publish() as stage:
            _make(args, cfg, stage)
            written = sorted(os.listdir(stage))
    print(f"wrote {folder.path}: {', '.join(written)}")


def _make(args: argparse.Namespace, cfg: CfgNode, stage: Path | None) -> None:
    """Build and print the levels, and write all files into the folder ``stage``; None: write nothing."""
    inputs = _input_files(args)
    store = in1k_root = in1k_counts = counts = given = None
    if args.imagenet_images_root is not None:
        store = open_store(files.require_dir(args.imagenet_images_root, "--imagenet_images_root"))
    if args.in1k_images_root is not None:
        in1k_root = files.require_dir(args.in1k_images_root, "--in1k_images_root")
    if args.rerank is not None:
        given = read_levels(args.rerank)
        sizes = sorted({len(level) for level in given})
        if args.level_size is None and len(sizes) > 1:
            raise CogError(
                f"the levels of --rerank {args.rerank} have {sizes[0]:,} to {sizes[-1]:,} concepts; give --level_size"
            )
    graph = wordnet.load_wordnet()
    if args.image_counts is not None:
        counts = images.read_counts(inputs["image_counts"])
    elif store is not None:
        counts = images.count_images(store)
    limits = {"n_test": cfg.LEVELS.N_TEST, "max_train": cfg.LEVELS.MAX_TRAIN}
    built = build(
        graph,
        counts,
        read_wnids(inputs["seen_wnids"]),
        measure=args.similarity,
        vectors=inputs.get("similarity"),
        pool=None if given is None else {wnid for level in given for wnid in level},
        protocol=args.protocol,
        n_levels=args.n_levels or len(given or range(5)),
        level_size=args.level_size or (1000 if given is None else len(given[0])),
        min_images=cfg.LEVELS.MIN_IMAGES,
        excluded_roots=cfg.LEVELS.EXCLUDED_ROOTS,
        discarded=read_wnids(inputs["discarded_wnids"]),
        seed=args.seed,
    )
    if built.left_out:
        logger.info("seen concepts that are not among the concepts are left out: %s", some(built.left_out))
    facts = report.level_facts(built, counts, **limits)
    print(f"WordNet 3.0: {len(graph):,} noun synsets, {graph.source}")
    print(report.summary(built, facts, protocol=args.protocol), flush=True)
    for fact in facts:
        if fact.get("warning"):
            logger.warning(
                "the order of concepts in L%d is largely arbitrary: %s", fact["level"], fact["warning"]
            )
    if stage is None:
        return
    split = None
    if store is not None:
        wnids = [wnid for level in built.levels for wnid in level]
        split = images.draw_split(store, wnids, counts=counts or {}, seed=args.seed, **limits)
        split_files.write_split(stage / constants.SPLIT_FILE, split)
    else:
        logger.info("no %s: add --imagenet_images_root DIR to split the images", constants.SPLIT_FILE)
    write_levels(stage / constants.LEVELS_FILE, built.levels)
    report.write_levels_csv(stage / "levels.csv", built, graph, counts)
    if built.selection is not None:
        report.write_concepts_csv(stage / "concepts.csv", built, graph, counts or {})
    if counts is not None and args.image_counts is None:
        write_csv(stage / "image_counts.csv", ("wnid", "n_images"), sorted(counts.items()))
    if built.similarity is not None:
        figures.save_similarity_figure(stage / "similarity.png", built)
    if counts is not None and all("training_images" in fact for fact in facts):
        if in1k_root is not None:
            in1k_counts = images.count_in1k(in1k_root)
        most = cfg.LEVELS.N_TEST + cfg.LEVELS.MAX_TRAIN
        of_levels = [[min(counts[wnid], most) for wnid in level] for level in built.levels]
        figures.save_images_figure(stage / "images.png", of_levels, in1k_counts)
    record = {
        "created": provenance.now(),
        "versions": provenance.versions(("numpy", "matplotlib", "pillow")),
        "command": sys.argv,
        "options": vars(args),
        "config": {f"LEVELS.{key}": value for key, value in cfg.LEVELS.items()},
        "inputs": {flag: {"path": str(path), "sha256": files.sha256(path)} for flag, path in inputs.items()},
        "wordnet": graph.source,
        **report.record(built, facts),
        "split": None
        if split is None
        else {part: sum(len(parts[part]) for parts in split.values()) for part in split_files.PARTS},
    }
    files.write_json(stage / REPORT, record)


def _input_files(args: argparse.Namespace) -> dict[str, Path]:
    """Return the input files by flag; ``similarity`` is a file of word vectors.

    Raises:
        CogError: nothing to build from, an absent file, or a ``--similarity`` that is no measure.
    """
    if args.imagenet_images_root is None and args.image_counts is None and args.rerank is None:
        raise CogError(
            "nothing to build from: give --imagenet_images_root DIR, --image_counts FILE.csv, or --rerank LEVELS.pkl"
        )
    given = {
        "image_counts": args.image_counts,
        "seen_wnids": args.seen_wnids or IN1K_LIST,
        "discarded_wnids": args.discarded_wnids or DISCARDED_LIST,
        "rerank": args.rerank,
    }
    if args.similarity not in (*MEASURES, RANDOM):
        if not os.path.isfile(args.similarity):
            raise CogError(
                f"--similarity {args.similarity} is none of {', '.join(MEASURES)}, {RANDOM}, and no file of vectors"
            )
        given["similarity"] = args.similarity
    return {flag: files.require_file(path, f"--{flag}") for flag, path in given.items() if path is not None}
