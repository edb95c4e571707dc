"""Build the concept generalization levels: select concepts, rank them by similarity, cut, split images."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from cog import cli as command_line
from cog import names
from cog.errors import CogError

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from cog.levels.builder import BuiltLevels, Options
    from cog.levels.split_builder import BuiltSplit
    from cog.staging import Stage
    from cog.wordnet.graph import NounGraph

LOG = logging.getLogger("cog")

_DESCRIPTION = """\
Build concept generalization levels: select the eligible concepts of ImageNet-21K, rank them by similarity to
the seen concepts, cut the ranking into levels, and split the images of every concept into training and test
images. With the image counts of the Fall-2011 release the result is the published benchmark. Thresholds are
configuration keys: LEVELS.MIN_IMAGES 782, LEVELS.N_TEST 50, LEVELS.MAX_TRAIN 1300, LEVELS.EXCLUDED_ROOTS,
LEVELS.N_WORKERS 8. `build_levels.py --compare A.pkl B.pkl` tells how far two levels files agree."""

# Repeated here, and compared by a test, because importing their homes would make --help slow.
SIMILARITIES = ("lin", "lin_max_ic", "resnik", "jcn", "wup", "path", "lch", "embedding", "random")
#: Of all files together: the split file of 5000 concepts has 680 MB.
_MOST_BYTES = 800 << 20

_SHOWN_MOVES = 20


def _parser() -> command_line.Parser:
    parser = command_line.Parser(_DESCRIPTION, prog="build_levels.py")
    inputs = parser.add_argument_group(
        "input (images or counts; with both, counts select and images are split)"
    )
    add = inputs.add_argument
    add(
        "--imagenet_images_root",
        metavar="DIR",
        help="ImageNet-21K, one folder per synset; counted, and split",
    )
    add("--image_counts", metavar="FILE", help="CSV with rows wnid,count instead of counting (any header)")
    add(
        "--concepts", metavar="FILE", help="ids of all concepts, one per line (default: all that are counted)"
    )
    add("--seen_wnids", metavar="FILE", help="ids the networks were trained on (default: the 1000 of IN-1K)")
    add(
        "--discarded_wnids",
        metavar="FILE",
        help="ids discarded by hand, protocol v2 (default: the 70 of the paper; an empty file: none)",
    )
    add("--rerank", metavar="LEVELS.pkl", help="rank the concepts of these levels, without selection")
    add(
        "--wordnet_dir",
        metavar="DIR",
        help="folder of WordNet 3.0 (default: $COG_WORDNET_DIR, NLTK's data, Debian's)",
    )

    how = parser.add_argument_group("levels")
    add = how.add_argument
    whole = command_line.whole_number
    add(
        "--protocol",
        choices=("v2", "v1"),
        default="v2",
        help="selection of the final or first version of the paper: 5,146 or 5,754 eligible concepts "
        "(default: v2)",
    )
    add(
        "--similarity",
        choices=SIMILARITIES,
        default="lin",
        metavar="NAME",
        help=f"{', '.join(SIMILARITIES)} (default: lin, as published)",
    )
    add(
        "--embeddings",
        metavar="FILE",
        help="word vectors for --similarity embedding: word2vec text or binary, GloVe or Wikipedia2Vec text, "
        ".npz",
    )
    add("--n_levels", type=whole(1), metavar="N", help="default: 5, or as in --rerank")
    add(
        "--level_size",
        type=whole(1),
        metavar="N",
        help="concepts per level (default: 1000, or as in --rerank)",
    )
    add(
        "--ties",
        choices=("introsort", "wnid"),
        help="order of concepts of equal similarity: that of the published levels (default with protocol v2) "
        "or ascending ids (default with v1)",
    )

    images = parser.add_argument_group("split")
    add = images.add_argument
    add(
        "--max_train",
        type=whole(1),
        metavar="N",
        help="cap on training images per concept, same as LEVELS.MAX_TRAIN; 732 balances the classes",
    )
    add(
        "--seed",
        type=whole(0),
        default=22,
        metavar="N",
        help="of the split, and of --similarity random (default: 22)",
    )
    add(
        "--verify_images",
        action="store_true",
        help="decode all images of the levels; leave out and list those that fail",
    )

    output = parser.add_argument_group("output")
    add = output.add_argument
    add("--output_dir", metavar="DIR", help="where everything is written")
    add("--overwrite", action="store_true", help="replace existing output")
    add("--dry_run", action="store_true", help="print the levels' numbers, write nothing")
    add(
        "--config",
        metavar="FILE",
        help="YAML file with configuration keys, such as LEVELS: {MIN_IMAGES: 500}",
    )
    add(
        "--compare",
        nargs=2,
        metavar=("A.pkl", "B.pkl"),
        help="compare two levels files, and do nothing else; with --output_dir the list of all moves is "
        "written there",
    )
    command_line.add_check(output)
    return parser


@dataclass(frozen=True)
class _Inputs:
    """What was read. ``counts`` is None when nothing is counted (only with ``pool``)."""

    counts: dict[str, int] | None
    concepts: list[str] | None
    seen: list[str]
    pool: list[str] | None
    images_root: Path | None
    scanned: bool
    files: dict[str, Path]


def main(argv: Sequence[str] | None = None) -> int:
    """Build or compare levels and return the exit code.

    Raises:
        CogError: bad arguments or input; nothing is written then.
    """
    args = _parser().parse_args(argv)
    if args.check:
        return _preflight(args)
    if args.compare is not None:
        return _compare(args)
    cfg = _configuration(args)
    output_dir = _check_output(args)
    root = _check_flags(args)

    from cog.levels import builder as level_builder
    from cog.levels import outputs as level_outputs
    from cog.wordnet import load_wordnet

    graph = load_wordnet(args.wordnet_dir)
    options, given_levels = _options(args, cfg)
    inputs = _read_inputs(args, cfg, graph, root, given_levels)
    built = level_builder.build(
        graph,
        counts=inputs.counts,
        seen=inputs.seen,
        options=options,
        concepts=inputs.concepts,
        pool=inputs.pool,
    )
    if built.seen_outside:
        LOG.info("seen but not among the concepts, left out: %s", _some(built.seen_outside))
    rows = level_outputs.level_facts(
        built, inputs.counts, n_test=cfg.LEVELS.N_TEST, max_train=cfg.LEVELS.MAX_TRAIN
    )
    _print(f"WordNet 3.0: {len(graph):,} noun synsets, {graph.source}")
    _print(level_outputs.describe(built, graph, rows, options.protocol))
    if output_dir is None:
        _print("dry run: nothing was written")
        return 0
    split = _split(args, cfg, built, inputs)
    _write(output_dir, _Run(args, cfg, graph, options, inputs, built, rows, split))
    return 0


def _preflight(args: argparse.Namespace) -> int:
    """Look at everything that the command needs, print a summary, and return the exit code."""
    from cog.levels import read_levels
    from cog.preflight import machine
    from cog.preflight.report import Report
    from cog.wordnet import load_wordnet

    report = Report()
    if args.compare is not None:
        for path in args.compare:
            with report.step("levels"):
                report.ok("levels", f"{path}: {len(read_levels(path))} levels")
        return report.finish()
    with report.step("input"):
        cfg = _configuration(args)
        root = _check_flags(args)
        graph = load_wordnet(args.wordnet_dir)
        report.ok("wordnet", f"{len(graph):,} noun synsets, {graph.source}")
        _, given_levels = _options(args, cfg)
        inputs = _read_inputs(args, cfg, graph, root, given_levels)
        counts = inputs.counts or {}
        report.ok(
            "input", f"{len(counts):,} concepts with {sum(counts.values()):,} images" if counts else "levels"
        )
    with report.step("output"):
        folder = _check_output(args)
        if folder is not None and machine.check_writable(report, folder):
            report.ok("output", str(folder))
            machine.check_disk(report, [(folder, _MOST_BYTES)])
    return report.finish()


def _configuration(args: argparse.Namespace) -> CfgNode:
    from cog import config

    opts = list(args.opts)
    if args.max_train is not None:
        if "LEVELS.MAX_TRAIN" in opts[::2]:
            raise CogError("--max_train and LEVELS.MAX_TRAIN say the same; give one of them")
        opts += ["LEVELS.MAX_TRAIN", str(args.max_train)]
    return config.get_cfg(config_file=args.config, opts=opts)


def _check_flags(args: argparse.Namespace) -> Path | None:
    """Check what the flags need of each other, and return the root of the images."""
    from cog import files

    if args.embeddings is not None and args.similarity != "embedding":
        raise CogError(
            f"--embeddings has no effect with --similarity {args.similarity}; add --similarity embedding"
        )
    if args.embeddings is None and args.similarity == "embedding":
        raise CogError("--similarity embedding needs a file of word vectors: give --embeddings FILE")
    if args.imagenet_images_root is None and args.image_counts is None and args.rerank is None:
        raise CogError(
            "nothing to build from: give --imagenet_images_root DIR, --image_counts FILE.csv, or "
            "--rerank LEVELS.pkl"
        )
    if args.verify_images and args.imagenet_images_root is None:
        raise CogError("--verify_images needs the images: give --imagenet_images_root DIR")
    for flag in ("image_counts", "concepts", "seen_wnids", "discarded_wnids", "rerank", "embeddings"):
        if getattr(args, flag) is not None:
            files.require_file(getattr(args, flag), f"--{flag}")
    if args.imagenet_images_root is None:
        return None
    return files.require_dir(args.imagenet_images_root, "--imagenet_images_root")


def _check_output(args: argparse.Namespace) -> Path | None:
    """Return the output folder (None: a dry run) after checking that nothing in it would be lost."""
    if args.dry_run:
        return None
    if args.output_dir is None:
        raise CogError("no --output_dir was given; add it, or --dry_run to only see the numbers")
    folder = Path(args.output_dir)
    if folder.exists() and not folder.is_dir():
        raise CogError(f"--output_dir {folder} is not a folder")
    existing = [name for name in _output_names(scanned=args.image_counts is None) if (folder / name).exists()]
    if existing and not args.overwrite:
        raise CogError(
            f"--output_dir {folder} already holds {_some(existing)}; choose another folder or add --overwrite"
        )
    parent = folder
    while not parent.exists():
        parent = parent.parent
    if not os.access(parent, os.W_OK | os.X_OK):
        raise CogError(f"cannot write into --output_dir {folder}: no permission in {parent}")
    return folder


def _output_names(*, scanned: bool) -> list[str]:
    from cog.levels import outputs as out

    found = [names.LEVELS_FILE, names.SPLIT_FILE, out.LEVELS_CSV, out.CONCEPTS_CSV, out.REPORT,
    out.UNREADABLE_CSV,
             out.SIMILARITY_FIGURE, out.IMAGES_FIGURE]  # fmt: skip
    return [*found, out.COUNTS_CSV] if scanned else found


def _options(args: argparse.Namespace, cfg: CfgNode) -> tuple[Options, list[list[str]] | None]:
    """Return how to build, and the levels of --rerank."""
    from cog.levels import read_levels
    from cog.levels.builder import Options
    from cog.levels.selection import DISCARDED_LIST, read_wnids

    n_levels, level_size, given = args.n_levels or 5, args.level_size or 1000, None
    if args.rerank is not None:
        given = read_levels(args.rerank)
        sizes = sorted({len(level) for level in given})
        if args.level_size is None and len(sizes) > 1:
            raise CogError(
                f"the levels of --rerank {args.rerank} have {sizes[0]:,} to {sizes[-1]:,} concepts; "
                f"give --level_size"
            )
        n_levels, level_size = args.n_levels or len(given), args.level_size or sizes[0]
    discarded = read_wnids(Path(args.discarded_wnids or DISCARDED_LIST))
    return Options(
        protocol=args.protocol,
        similarity=args.similarity,
        ties=args.ties or ("introsort" if args.protocol == "v2" else "wnid"),
        n_levels=n_levels,
        level_size=level_size,
        min_images=cfg.LEVELS.MIN_IMAGES,
        excluded_roots=tuple(cfg.LEVELS.EXCLUDED_ROOTS),
        discarded=tuple(discarded) if args.protocol == "v2" else (),
        embeddings=None if args.embeddings is None else Path(args.embeddings),
        seed=args.seed,
    ), given


def _read_inputs(
    args: argparse.Namespace, cfg: CfgNode, graph: NounGraph, root: Path | None, given: list[list[str]] | None
) -> _Inputs:
    from cog.levels import image_folders
    from cog.levels.selection import IN1K_LIST, read_wnids

    paths = {
        flag: Path(getattr(args, flag))
        for flag in ("image_counts", "concepts", "seen_wnids", "discarded_wnids", "rerank", "embeddings")
        if getattr(args, flag) is not None
    }
    # Everything that is quick to read and can be wrong comes before the images are counted.
    seen = read_wnids(paths.get("seen_wnids", IN1K_LIST))
    if not seen:
        raise CogError(f"--seen_wnids {args.seen_wnids} lists no ids, expected at least one")
    graph.indices(seen, f"--seen_wnids {args.seen_wnids or IN1K_LIST.name}")
    concepts = read_wnids(paths["concepts"]) if "concepts" in paths else None
    if concepts is not None:
        if not concepts:
            raise CogError(f"--concepts {args.concepts} lists no ids, expected at least one")
        graph.indices(concepts, f"--concepts {args.concepts}")
    graph.indices(cfg.LEVELS.EXCLUDED_ROOTS, "LEVELS.EXCLUDED_ROOTS")
    pool = None if given is None else sorted({wnid for level in given for wnid in level})
    if pool is not None:
        graph.indices(pool, f"--rerank {args.rerank}")
    counts, scanned = None, False
    if "image_counts" in paths:
        counts = image_folders.read_counts(paths["image_counts"])
        graph.indices(counts, f"--image_counts {args.image_counts}")
        absent = [wnid for wnid in concepts or () if wnid not in counts]
        if absent:
            raise CogError(
                f"--image_counts {args.image_counts} has no row for {len(absent):,} of the "
                f"{len(concepts or ()):,} "
                f"--concepts ({_some(absent)}); add rows, with 0 where there are no images"
            )
    elif root is not None:
        counts, others = image_folders.count_images(root, n_workers=cfg.LEVELS.N_WORKERS)
        scanned = True
        graph.indices(counts, f"--imagenet_images_root {root}")
        if others:
            LOG.warning("not folders of a noun id, ignored in %s: %s", root, _some(others))
        absent = [wnid for wnid in concepts or () if wnid not in counts]
        if absent:
            LOG.warning("%d concepts have no folder in %s and count as without images", len(absent), root)
            counts |= dict.fromkeys(absent, 0)
    return _Inputs(counts, concepts, seen, pool, root, scanned, paths)


def _split(args: argparse.Namespace, cfg: CfgNode, built: BuiltLevels, inputs: _Inputs) -> BuiltSplit | None:
    """Return the split of all concepts of the levels; None when there are no images to split."""
    from cog.levels.split_builder import build_split

    if inputs.images_root is None:
        LOG.info(
            "no %s: the names of the images are not known; add --imagenet_images_root DIR to split them",
            names.SPLIT_FILE,
        )
        return None
    split = build_split(
        inputs.images_root,
        (wnid for level in built.levels for wnid in level),
        n_test=cfg.LEVELS.N_TEST,
        max_train=cfg.LEVELS.MAX_TRAIN,
        seed=args.seed,
        verify=args.verify_images,
        n_workers=cfg.LEVELS.N_WORKERS,
    )
    counts = inputs.counts or {}
    changed = [wnid for wnid, n in split.n_found.items() if counts.get(wnid, n) != n]
    if changed:
        LOG.warning(
            "%d of %d concepts have another number of images on disk than in the counts: %s",
            len(changed), len(split.split), _some(changed),
        )  # fmt: skip
    if args.verify_images:
        LOG.info(
            "%d of %d images cannot be decoded and are left out",
            len(split.unreadable), sum(split.n_found.values()),
        )  # fmt: skip
    minimum = cfg.LEVELS.MIN_IMAGES
    few = [wnid for wnid, n in split.n_usable.items() if n < minimum]
    if few:
        LOG.warning("%d concepts have fewer than %d images to split: %s", len(few), minimum, _some(few))
    return split


@dataclass(frozen=True)
class _Run:
    """What outputs are made of."""

    args: argparse.Namespace
    cfg: CfgNode
    graph: NounGraph
    options: Options
    inputs: _Inputs
    built: BuiltLevels
    level_rows: list[dict[str, Any]]
    split: BuiltSplit | None


def _write(folder: Path, run: _Run) -> None:
    """Write all files; they appear together, the report last."""
    from cog import files, levels, splits
    from cog.levels import image_folders
    from cog.levels import outputs as out

    report = _report(run)
    built, counts = run.built, run.inputs.counts
    with _publishing(folder, marker=out.REPORT) as stage:
        stage.replaces = _output_names(scanned=run.inputs.scanned)
        levels.write_levels(stage.path / names.LEVELS_FILE, built.levels)
        if run.split is not None:
            splits.write_split(stage.path / names.SPLIT_FILE, run.split.split)
        out.write_levels_csv(stage.path / out.LEVELS_CSV, built, run.graph, counts)
        if built.selection is not None:
            out.write_concepts_csv(stage.path / out.CONCEPTS_CSV, built, run.graph, counts or {})
        if run.inputs.scanned:
            image_folders.write_counts(stage.path / out.COUNTS_CSV, counts or {})
        if run.split is not None and run.args.verify_images:
            rows = sorted(run.split.unreadable.items())
            out.write_csv(stage.path / out.UNREADABLE_CSV, ("image", "error"), rows)
        _draw_figures(stage.path, run)
        written = sorted(os.listdir(stage.path))
        report["outputs"] = {name: {"sha256": files.sha256(stage.path / name)} for name in written}
        files.write_json(stage.path / out.REPORT, report)
    _print(f"wrote {folder}: {', '.join([*written, out.REPORT])}")


@contextlib.contextmanager
def _publishing(folder: Path, *, marker: str) -> Iterator[Stage]:
    """Collect files that appear together in ``--output_dir``, which nobody else writes to meanwhile."""
    from cog.locks import locked
    from cog.staging import staged, tidy

    with locked(folder, flag="--output_dir") as lock:
        tidy(folder)
        with staged(folder, marker=marker, flag="--output_dir") as stage:
            yield stage
            lock.require_held()


def _draw_figures(folder: Path, run: _Run) -> None:
    from cog.levels import figures as level_figures
    from cog.levels import outputs as out

    built, counts, limits = run.built, run.inputs.counts, run.cfg.LEVELS
    try:
        if built.ranking.similarities is not None:
            level_figures.save_similarity_figure(folder / out.SIMILARITY_FIGURE, built)
        if counts is not None and all(wnid in counts for level in built.levels for wnid in level):
            level_figures.save_images_figure(
                folder / out.IMAGES_FIGURE, built.levels, counts,
                n_test=limits.N_TEST, max_train=limits.MAX_TRAIN,
            )  # fmt: skip
    except ImportError:
        LOG.info("no figures: matplotlib is not installed (pip install matplotlib)")


def _report(run: _Run) -> dict[str, Any]:
    """Return everything needed to tell what was built from what, and how."""
    from cog import config, files, record
    from cog.levels.selection import DISCARDED_LIST, IN1K_LIST

    args, cfg, graph, options, inputs, built = (
        run.args, run.cfg, run.graph, run.options, run.inputs, run.built,
    )  # fmt: skip
    used = {"seen_wnids": IN1K_LIST, "discarded_wnids": DISCARDED_LIST, **inputs.files}
    if options.protocol != "v2" or built.selection is None:
        del used["discarded_wnids"]
    selection = built.selection
    hidden = ("discarded", "embeddings")  # files, listed with the inputs
    return {
        "created": record.now(),
        "versions": record.versions(("numpy", "matplotlib", "pillow")),
        "command": sys.argv,
        "options": {
            **{key: value for key, value in asdict(options).items() if key not in hidden},
            "verify_images": args.verify_images,
            "config": {key: value for key, value in config.flat(cfg).items() if key.startswith("LEVELS.")},
        },
        "inputs": {
            "wordnet": {
                "version": "3.0",
                "files": {str(path): {"sha256": files.sha256(path)} for path in graph.files},
            },
            **{
                flag: {"path": str(path), "sha256": files.sha256(path)} for flag, path in sorted(used.items())
            },
            **({"imagenet_images_root": {"path": str(inputs.images_root)}} if inputs.images_root else {}),
        },
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
        "levels": run.level_rows,
        "concepts_in_gaps": built.level_of.count(None),
        "split": None if run.split is None else {
            "seed": args.seed,
            "training_images": sum(len(parts["train"]) for parts in run.split.split.values()),
            "test_images": sum(len(parts["test"]) for parts in run.split.split.values()),
            "unreadable_images": len(run.split.unreadable) if args.verify_images else None,
        },
    }  # fmt: skip


def _compare(args: argparse.Namespace) -> int:
    """Print the agreement of two levels files; exit code 0 whatever it is."""
    from cog.levels import comparison as level_comparison
    from cog.levels import outputs as level_outputs
    from cog.levels import read_levels

    a, b = (read_levels(path) for path in args.compare)
    comparison = level_comparison.compare(a, b)
    rows = [
        (wnid, level_comparison.label(in_a), level_comparison.label(in_b))
        for wnid, (in_a, in_b) in comparison.moves.items()
    ]
    folder = None if args.output_dir is None or args.dry_run else Path(args.output_dir)
    if folder is not None and (folder / level_outputs.COMPARISON_CSV).exists() and not args.overwrite:
        raise CogError(f"{folder / level_outputs.COMPARISON_CSV} exists; remove it or add --overwrite")
    _print(f"A: {args.compare[0]}\nB: {args.compare[1]}\n{level_comparison.describe(comparison)}")
    if rows:
        words = _words_of([row[0] for row in rows[:_SHOWN_MOVES]], args.wordnet_dir)
        _print("\nconcept    in A  in B  names")
        for wnid, in_a, in_b in rows[:_SHOWN_MOVES]:
            _print(f"{wnid:<10} {in_a:<5} {in_b:<5} {words.get(wnid, '')}".rstrip())
        if len(rows) > _SHOWN_MOVES:
            where = f"all are in {level_outputs.COMPARISON_CSV}" if folder else "--output_dir DIR writes all"
            _print(f"... and {len(rows) - _SHOWN_MOVES:,} more; {where}")
    if folder is not None:
        with _publishing(folder, marker=level_outputs.COMPARISON_CSV) as stage:
            level_outputs.write_csv(stage.path / level_outputs.COMPARISON_CSV, ("wnid", "a", "b"), rows)
        _print(f"wrote {folder / level_outputs.COMPARISON_CSV}")
    return 0


def _words_of(wnids: list[str], wordnet_dir: str | None) -> dict[str, str]:
    """Return the names of concepts; none where WordNet is not at hand: a comparison does not need it."""
    from cog.wordnet import load_wordnet

    try:
        graph = load_wordnet(wordnet_dir)
    except CogError as error:
        if wordnet_dir is not None:
            raise
        LOG.info("names are not shown: %s", error)
        return {}
    return {wnid: graph.words(graph.index(wnid)) for wnid in wnids if wnid in graph}


def _some(items: Sequence[str], limit: int = 3) -> str:
    more = f" and {len(items) - limit:,} more" if len(items) > limit else ""
    return ", ".join(items[:limit]) + more


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()  # in order with the log on standard error


def cli() -> NoReturn:
    """Run from the command line."""
    command_line.run(main)


if __name__ == "__main__":
    cli()
