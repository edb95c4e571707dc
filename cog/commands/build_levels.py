"""Build concept generalization levels: select concepts, rank them by similarity, cut the ranking, split the images.

Eligible concepts of ImageNet-21K are ranked by similarity to the seen concepts; the images of every concept of a level
become training and test images. With the image counts of the Fall-2011 release the result is the published benchmark.
Thresholds are configuration keys: LEVELS.MIN_IMAGES 782, LEVELS.N_TEST 50, LEVELS.MAX_TRAIN 1300 (732 balances the
classes), LEVELS.EXCLUDED_ROOTS.
"""

from __future__ import annotations

import argparse
import functools
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import config, constants
from cog.data.wnids import IN1K_LIST
from cog.errors import CogError, some
from cog.runtime import cli as cli_tools

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from cog.data.level_files import Split

logger = logging.getLogger(__name__)

REPORT = "report.json"

#: All files that a result may have.
FILES = (
    constants.LEVELS_FILE,
    constants.SPLIT_FILE,
    "levels.csv",
    "concepts.csv",
    "image_counts.csv",
    "similarity.png",
    "images.png",
    REPORT,
)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed flags; no file is read or written."""
    parser = cli_tools.Parser(__doc__ or "")
    group = parser.add_argument_group("input: images, counts or both (then the counts select)")
    add: Any = functools.partial(group.add_argument, metavar="FILE")
    root_help = "ImageNet-21K, a folder or tar file per synset; its images are counted and split"
    add("--imagenet_images_root", metavar="DIR", help=root_help)
    add("--image_counts", help="CSV file with rows wnid,count, instead of counting images")
    in1k_help = (
        "IN-1K with train and val: its images per concept are drawn beside those of the levels (Fig. 9)"
    )
    add("--in1k_images_root", metavar="DIR", help=in1k_help)
    add("--seen_wnids", default=str(IN1K_LIST), help="ids that the networks were trained on (default: IN-1K)")
    add("--discarded_wnids", help="ids discarded by hand, protocol v2 (default: the 70 of the paper)")
    add("--rerank", help="levels file whose concepts are ranked anew, without selecting concepts")
    add = parser.add_argument_group("levels").add_argument
    protocol_help = "selection of the final or first version of the paper: 5,146 or 5,754 eligible concepts"
    add("--protocol", choices=("v2", "v1"), default="v2", help=f"{protocol_help} (default: v2)")
    measures = (
        "lin (published), lin_max_ic, jcn, wup, random, or a text file of word vectors: word2vec, GloVe, "
    )
    add("--similarity", default="lin", metavar="NAME", help=f"{measures}Wikipedia2Vec (default: lin)")
    add(
        "--n_levels",
        type=cli_tools.whole_number(1),
        metavar="N",
        help="number of levels; default: 5, or as in --rerank",
    )
    add(
        "--level_size",
        type=cli_tools.whole_number(1),
        metavar="N",
        help="concepts per level; default: 1000, or as in --rerank",
    )
    seed_help = "seed of the split and of --similarity random (default: 22)"
    add("--seed", type=cli_tools.whole_number(0), default=22, metavar="N", help=seed_help)
    add = parser.add_argument_group("output").add_argument
    add("--output_dir", metavar="DIR", help="folder of all outputs; without it the levels are only shown")
    add("--overwrite", action="store_true", help="replace existing levels")
    compare_help = (
        "print how many concepts of each level of the first levels file (or its folder) are in the same "
    )
    compare_help += "level of each other one, and which ones are not, and do nothing else"
    add("--compare", nargs="+", metavar="LEVELS", help=compare_help)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Build levels and the split of their images, print a summary, and write all files into ``--output_dir``.

    Raises:
        CogError: bad arguments or input; no file is written.
    """
    args = parse_args(argv)
    from cog.data import level_files
    from cog.data.images import find_images
    from cog.levels import inputs, report, selection, wordnet
    from cog.levels.build import build, equals_published
    from cog.runtime import files, log

    if args.compare is not None:
        print(report.compare(args.compare))
        return 0
    cfg = config.get_cfg(opts=args.opts).LEVELS
    paths = _require_inputs(args)
    root, found, counts, old = args.imagenet_images_root, None, {}, None
    if root is not None:
        files.require_dir(root, "--imagenet_images_root")
    if args.rerank is not None:
        old = level_files.read_levels(args.rerank)
        if args.level_size is None and len({len(level) for level in old}) > 1:
            raise CogError(f"the levels of --rerank {args.rerank} have different sizes; give --level_size")
    graph = wordnet.load_wordnet()
    if args.image_counts is not None:
        counts = inputs.read_counts(paths["image_counts"])
    elif root is not None:
        found = find_images(root)
        counts = inputs.count_images(found)

    every_seen = inputs.read_wnids(paths["seen_wnids"])
    seen = sorted(set(every_seen) & set(counts)) or sorted(every_seen)
    if not seen:
        raise CogError("there are no seen concepts; --seen_wnids lists no ids")
    left_out = sorted(set(every_seen) - set(seen))
    if left_out:
        logger.info("seen concepts that are not among the concepts are left out: %s", some(left_out))
    chosen = None
    if old is None:
        rules = {
            "protocol": args.protocol,
            "min_images": cfg.MIN_IMAGES,
            "excluded_roots": cfg.EXCLUDED_ROOTS,
        }
        discarded = inputs.read_wnids(paths["discarded_wnids"])
        chosen = selection.select(graph, counts, seen, discarded=discarded, **rules)
    built = build(
        graph,
        {wnid for level in old or () for wnid in level} if chosen is None else chosen.eligible,
        counts,
        seen,
        measure=args.similarity,
        as_published=args.protocol == "v2",
        n_levels=args.n_levels or len(old or range(5)),
        level_size=args.level_size or (1000 if old is None else len(old[0])),
        seed=args.seed,
    )
    facts = report.level_facts(built, n_test=cfg.N_TEST, max_train=cfg.MAX_TRAIN)
    print(f"WordNet 3.0: {len(graph):,} noun synsets, {graph.source}")
    print(report.summary(built, facts, chosen.steps if chosen else ()), flush=True)
    if tied := report.tied_levels(facts):
        logger.warning("ranks mean little among concepts that share one similarity: %s", tied)
    if args.output_dir is None:
        print("no --output_dir was given: nothing was written")
        return 0

    in1k = None if args.in1k_images_root is None else inputs.count_in1k(args.in1k_images_root)
    figures = report.figures(built, facts, in1k, most=cfg.N_TEST + cfg.MAX_TRAIN)
    tables = {"levels.csv": built.table.to_csv(index=False)}
    if chosen is not None:
        tables["concepts.csv"] = report.concepts_table(chosen, graph, counts).to_csv(index=False)
    split = None
    if root is not None:
        wnids = {wnid for level in built.levels for wnid in level}
        limits = {"n_test": cfg.N_TEST, "max_train": cfg.MAX_TRAIN}
        found = found or find_images(root, wnids)
        split = inputs.draw_split(found, wnids, counts=counts, seed=args.seed, **limits)
        if args.image_counts is None:
            rows = (f"{wnid},{n_images}\n" for wnid, n_images in sorted(counts.items()))
            tables["image_counts.csv"] = "".join(["wnid,n_images\n", *rows])
    else:
        logger.info("no %s: add --imagenet_images_root DIR to split the images", constants.SPLIT_FILE)
    record = {
        # A build is repeated, never resumed: its time is its identity.
        "identity": {
            "created": log.now(),
            "options": vars(args),
            "config": {**cfg},
            "inputs": {flag: files.sha256(path) for flag, path in paths.items()},
        },
        "command": sys.argv,
        "versions": log.versions(("numpy", "pandas", "matplotlib", "pillow")),
        "wordnet": graph.source,
        "equal_to_the_published_levels": equals_published(built.levels),
        "seen": {"concepts": len(seen), "left_out_because_not_among_the_concepts": left_out},
        "selection": [step._asdict() for step in chosen.steps] if chosen else None,
        "similarity": built.facts,
        "levels": facts.to_dict("records"),
    }
    _write(args, record, built.levels, split, tables, figures)
    return 0


def _require_inputs(args: argparse.Namespace) -> dict[str, Path]:
    """Return the input files by flag, after checks of what is given and of the output folder."""
    from cog.levels.build import RANDOM
    from cog.levels.selection import DISCARDED_LIST
    from cog.levels.similarity import MEASURES
    from cog.runtime import files

    if args.imagenet_images_root is None and args.image_counts is None and args.rerank is None:
        raise CogError(
            "nothing to build from: give --imagenet_images_root DIR, --image_counts FILE.csv, or --rerank LEVELS.pkl"
        )
    if args.output_dir is not None and not args.overwrite and (Path(args.output_dir) / REPORT).exists():
        raise CogError(
            f"--output_dir {args.output_dir} holds levels; choose another folder or add --overwrite"
        )
    if args.in1k_images_root is not None:
        files.require_dir(args.in1k_images_root, "--in1k_images_root")
    args.discarded_wnids = args.discarded_wnids or str(DISCARDED_LIST)
    given = ["seen_wnids", "discarded_wnids", "image_counts", "rerank"]
    if args.similarity not in (*MEASURES, RANDOM):
        if not os.path.isfile(args.similarity):
            known = ", ".join((*MEASURES, RANDOM))
            raise CogError(f"--similarity {args.similarity} is none of {known}, and no file of vectors")
        given.append("similarity")
    paths = {flag: getattr(args, flag) for flag in given if getattr(args, flag) is not None}
    return {flag: files.require_file(path, f"--{flag}") for flag, path in paths.items()}


def _write(
    args: argparse.Namespace,
    record: Mapping[str, Any],
    levels: Sequence[Sequence[str]],
    split: Split | None,
    tables: Mapping[str, str],
    figures: Mapping[str, Figure],
) -> None:
    from cog.data import level_files
    from cog.runtime import files
    from cog.runtime.output import Output

    output = Output(Path(args.output_dir), record["identity"], REPORT, contents=FILES)
    output.is_done(overwrite=args.overwrite)
    with output.claimed() as work, work.publish() as stage:
        level_files.write_levels(stage / constants.LEVELS_FILE, levels)
        if split is not None:
            level_files.write_split(stage / constants.SPLIT_FILE, split)
        for name, text in tables.items():
            files.write_text(stage / name, text)
        for name, figure in figures.items():
            figure.savefig(stage / f"{name}.png", dpi=150, metadata={"Software": None})
        files.write_json(stage / REPORT, files.plain(record))
        written = sorted(os.listdir(stage))
    print(f"wrote {output.path}: {', '.join(written)}")


cli = functools.partial(cli_tools.run, main)
