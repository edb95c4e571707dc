"""Build concept generalization levels: select concepts, rank them by similarity, cut the ranking, split the images.

Eligible concepts of ImageNet-21K are ranked by similarity to the seen concepts; the images of every concept of a level
become training and test images. With the image counts of the Fall-2011 release the result is the published benchmark.
Thresholds are configuration keys: LEVELS.MIN_IMAGES 782, LEVELS.N_TEST 50, LEVELS.MAX_TRAIN 1300,
LEVELS.EXCLUDED_ROOTS, LEVELS.N_WORKERS 8. `build_levels.py --compare A.pkl B.pkl` tells how far two levels files agree,
`--overlap A.pkl B.pkl C.pkl ...` how many concepts of each level of A the others have in it.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import NoReturn

from cog.runtime import cli as cli_tools

# Repeated here, and compared by a test, because importing their homes would make --help slow.
SIMILARITIES = ("lin", "lin_max_ic", "resnik", "jcn", "wup", "path", "lch", "embedding", "random")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse flags; touches no file."""
    parser = cli_tools.Parser(__doc__ or "", prog="build_levels.py")
    inputs = parser.add_argument_group("input (images or counts; with both, counts select and images split)")
    add = inputs.add_argument
    add(
        "--imagenet_images_root",
        metavar="DIR",
        help="ImageNet-21K, a folder or tar file per synset: counted, split",
    )
    add("--image_counts", metavar="FILE", help="CSV with rows wnid,count instead of counting (any header)")
    add("--concepts", metavar="FILE", help="ids of all concepts, one per line (default: all counted ones)")
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
    whole = cli_tools.whole_number
    add(
        "--protocol",
        choices=("v2", "v1"),
        default="v2",
        help="selection of the final or first version of the paper: 5,146 or 5,754 eligible concepts (default: v2)",
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
        help="word vectors for --similarity embedding: word2vec text or binary, GloVe or Wikipedia2Vec text, .npz",
    )
    add("--n_levels", type=whole(1), metavar="N", help="default: 5, or as in --rerank")
    add(
        "--level_size",
        type=whole(1),
        metavar="N",
        help="concepts per level; default: 1000, or as in --rerank",
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
    add("--config", metavar="FILE", help="YAML file with keys, such as LEVELS: {MIN_IMAGES: 500}")
    add(
        "--compare",
        nargs=2,
        metavar=("A.pkl", "B.pkl"),
        help="compare two levels files, and do nothing else; with --output_dir the list of all moves is written there",
    )
    add(
        "--overlap",
        nargs="+",
        metavar="LEVELS",
        help="print how many concepts of each level of the first levels file (or folder with one) the others have in "
        "it, and do nothing else",
    )
    cli_tools.add_check(output)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Build or compare levels and return the exit code.

    Raises:
        CogError: bad arguments or input; nothing is written then.
    """
    args = parse_args(argv)
    from cog.levels import comparison, job, plan  # they import numpy

    if args.compare is not None or args.overlap is not None:
        return comparison.run(args)
    fields = dataclasses.fields(plan.LevelsPlan)
    levels_plan = plan.LevelsPlan(**{field.name: getattr(args, field.name) for field in fields})
    if args.check:
        return levels_plan.check()
    job.run(levels_plan)
    return 0


def cli() -> NoReturn:
    """Run from the command line."""
    cli_tools.run(main)
