"""Build the levels: select concepts, rank them by similarity, cut the ranking, split the images.

Eligible concepts of ImageNet-21K are ranked by similarity to the seen concepts. With the image counts of the
Fall-2011 release the result is the published benchmark. Keys: LEVELS.MIN_IMAGES 782, LEVELS.N_TEST 50,
LEVELS.MAX_TRAIN 1300 (732 balances the classes), and EVAL.SEED 22 of the split and of --similarity random.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cog import config, constants
from cog.commands import flags
from cog.data.wnids import IN1K_LIST
from cog.errors import CogError, some
from cog.paths import require_dir, require_file
from cog.runtime import cli

logger = logging.getLogger(__name__)

REPORT = "report.json"
CONTENTS = (constants.LEVELS_FILE, constants.SPLIT_FILE, "*.csv", "*.png", REPORT)

EXAMPLES = (
    "--image_counts fall11_image_counts.csv --imagenet_images_root /in21k --output_dir levels",
    "--image_counts counts.csv --rerank levels.pkl --similarity wup --output_dir levels_wup",
    "--compare levels.pkl published.pkl",
)
FILES = {
    "imagenet_images_root": "ImageNet-21K, a folder or tar file per synset, to be counted and split",
    "image_counts": "CSV file with rows wnid,count, instead of counting images",
    "in1k_images_root": "IN-1K with train and val: its images are drawn beside those of the levels (Fig. 9)",
    "seen_wnids": "ids that the networks were trained on (default: IN-1K)",
    "discarded_wnids": "ids discarded by hand, protocol v2 (default: the 70 of the paper)",
    "rerank": "levels file whose concepts are ranked anew, without selecting concepts",
    "output_dir": "folder of all outputs",
}


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed flags; no file is read or written."""
    parser = flags.parser(__doc__, *EXAMPLES)
    add, number = parser.add_argument, cli.whole_number(1)
    for name, text in FILES.items():
        add(f"--{name}", metavar="PATH", help=text)
    add("--protocol", choices=("v2", "v1"), default="v2", help="of the paper (default: v2, 5,146 concepts)")
    measures = "lin (published; default), lin_max_ic, jcn, wup, random, or a text file of word vectors"
    add("--similarity", default="lin", metavar="NAME", help=measures)
    add("--n_levels", type=number, metavar="N", help="default: 5, or as in --rerank")
    add("--level_size", type=number, metavar="N", help="concepts per level; default: 1000, or as in --rerank")
    add("--dry_run", action="store_true", help="show the levels, and write nothing")
    add("--overwrite", action="store_true", help="replace existing levels")
    add("--compare", nargs="+", metavar="LEVELS", help="only compare the first levels file with the others")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Build levels and the split of their images, print a summary, and write all files."""
    args = parse_args(argv)
    from cog.levels import inputs, report

    if args.compare is not None:
        print(report.compare(args.compare))
        return 0
    from cog.data.images import find_images

    cfg, paths = config.get_cfg(opts=args.opts), _require_inputs(args)
    root, found, counts = args.imagenet_images_root, None, {}
    if args.image_counts is not None:
        counts = inputs.read_counts(paths["image_counts"])
    elif root is not None:
        found = find_images(root)
        counts = inputs.count_images(found)
    built, parts, tables = _build(args, cfg, paths, counts)
    limits = {"n_test": cfg.LEVELS.N_TEST, "max_train": cfg.LEVELS.MAX_TRAIN}
    facts = report.level_facts(built, **limits)
    print(report.summary(built, facts, parts["selection"] or ()), flush=True)
    if tied := report.tied_levels(facts):
        logger.warning("ranks mean little among concepts that share one similarity: %s", tied)
    if args.dry_run or args.output_dir is None:
        print("nothing was written")
        return 0
    in1k = None if args.in1k_images_root is None else inputs.count_in1k(args.in1k_images_root)
    figures = report.figures(built, facts, in1k, most=sum(limits.values()))
    split = None
    if root is not None:
        wnids = {wnid for level in built.levels for wnid in level}
        found = found or find_images(root, wnids)
        split = inputs.draw_split(found, wnids, counts, seed=cfg.EVAL.SEED, **limits)
        if args.image_counts is None:
            rows = (f"{wnid},{n_images}\n" for wnid, n_images in sorted(counts.items()))
            tables["image_counts.csv"] = "".join(["wnid,n_images\n", *rows])
    parts |= {"similarity": built.facts, "levels": facts.to_dict("records")}
    _write(args, cfg, paths, parts, (built.levels, split, tables, figures))
    return 0


def _build(args: argparse.Namespace, cfg: Any, paths: dict[str, Path], counts: dict[str, int]) -> Any:
    """Return the levels, parts of the record, and tables as CSV by file name."""
    from cog.data import level_files
    from cog.levels import inputs, report, selection, wordnet
    from cog.levels.build import build

    graph = wordnet.load_wordnet()
    print(f"WordNet 3.0: {len(graph.wnids):,} noun synsets, {graph.source}")
    given = {*inputs.read_wnids(paths["seen_wnids"])}
    seen = sorted(given & counts.keys()) or sorted(given)
    if not seen:
        raise CogError("there are no seen concepts; --seen_wnids lists no ids")
    left_out = sorted(given - {*seen})
    print(f"{len(seen):,} seen concepts; not among the concepts: {some(left_out) or 'none'}")
    facts = {"concepts": len(seen), "left_out_because_not_among_the_concepts": left_out}
    parts: dict[str, Any] = {"wordnet": graph.source, "seen": facts, "selection": None}
    n_levels, level_size, tables = args.n_levels or 5, args.level_size or 1000, {}
    if args.rerank is not None:
        old = level_files.read_levels(args.rerank)
        if args.level_size is None and len({len(level) for level in old}) > 1:
            raise CogError(f"the levels of --rerank {args.rerank} have different sizes; give --level_size")
        n_levels, level_size = args.n_levels or len(old), args.level_size or len(old[0])
        pool = {wnid for level in old for wnid in level}
    else:
        rules = {"min_images": cfg.LEVELS.MIN_IMAGES, "excluded_roots": cfg.LEVELS.EXCLUDED_ROOTS}
        rules |= {"protocol": args.protocol, "discarded": inputs.read_wnids(paths["discarded_wnids"])}
        chosen = selection.select(graph, counts, seen, **rules)
        pool, parts["selection"] = {*chosen.eligible}, chosen.steps
        tables["concepts.csv"] = report.concepts_table(chosen, graph, counts).to_csv(index=False)
    how = {"measure": args.similarity, "as_published": args.protocol == "v2", "seed": cfg.EVAL.SEED}
    built = build(graph, pool, counts, seen, n_levels=n_levels, level_size=level_size, **how)
    return built, parts, tables | {"levels.csv": built.table.to_csv(index=False)}


def _write(args: argparse.Namespace, cfg: Any, paths: dict[str, Path], parts: Any, made: Any) -> None:
    from cog.data import level_files
    from cog.levels.build import equals_published
    from cog.runtime import files, log
    from cog.runtime.output import Output

    levels, split, tables, figures = made
    identity = {
        "created": log.now(),  # a build is repeated, never resumed: its time is its identity
        "options": vars(args),
        "config": {**cfg.LEVELS, "SEED": cfg.EVAL.SEED},
        "inputs": {flag: files.sha256(path) for flag, path in paths.items()},
    }
    record = {"identity": identity, "command": sys.argv, **parts}
    record["versions"] = log.versions(("numpy", "pandas", "matplotlib", "pillow"))
    record["equal_to_the_published_levels"] = equals_published(levels)
    output = Output(Path(args.output_dir), identity, REPORT, contents=CONTENTS)
    output.is_done(overwrite=args.overwrite)
    with output.claimed(), output.publish() as stage:
        level_files.write_levels(stage / constants.LEVELS_FILE, levels)
        if split is not None:
            level_files.write_split(stage / constants.SPLIT_FILE, split)
        for name, text in tables.items():
            files.write_text(stage / name, text)
        for name, figure in figures.items():
            figure.savefig(stage / f"{name}.png", dpi=150, metadata={"Software": None})
        files.write_json(stage / REPORT, files.plain(record))
    print(f"wrote {output.path}: {', '.join(sorted(os.listdir(output.path)))}")


def _require_inputs(args: argparse.Namespace) -> dict[str, Path]:
    """Return the input files by flag, after checks of what is given and of the output folder."""
    from cog.levels.build import RANDOM
    from cog.levels.selection import DISCARDED_LIST
    from cog.levels.similarity import MEASURES

    if args.imagenet_images_root is None and args.image_counts is None and args.rerank is None:
        raise CogError("nothing to build from: give --imagenet_images_root, --image_counts, or --rerank")
    if args.output_dir is not None and not args.overwrite and (Path(args.output_dir) / REPORT).exists():
        raise CogError(f"{args.output_dir} holds levels; choose another folder or add --overwrite")
    for flag in ("imagenet_images_root", "in1k_images_root"):
        if getattr(args, flag) is not None:
            require_dir(getattr(args, flag), f"--{flag}")
    given = {"image_counts": args.image_counts, "rerank": args.rerank}
    given["seen_wnids"] = args.seen_wnids or IN1K_LIST
    if args.similarity not in (known := (*MEASURES, RANDOM)):
        if not os.path.isfile(args.similarity):
            raise CogError(f"--similarity {args.similarity} is none of {', '.join(known)}, and no file")
        given["similarity"] = args.similarity
    given["discarded_wnids"] = args.discarded_wnids or DISCARDED_LIST
    return {flag: require_file(path, f"--{flag}") for flag, path in given.items() if path is not None}
