"""Build concept generalization levels: select concepts, rank them by similarity, cut the ranking, split the images.

Eligible concepts of ImageNet-21K are ranked by similarity to the seen concepts; the images of every concept of a level
become training and test images. With the image counts of the Fall-2011 release the result is the published benchmark.
Thresholds are configuration keys: LEVELS.MIN_IMAGES 782, LEVELS.N_TEST 50, LEVELS.MAX_TRAIN 1300 (732 balances the
classes), LEVELS.EXCLUDED_ROOTS.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence

from cog import config
from cog.runtime import cli as cli_tools


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed flags; no file is read or written."""
    parser = cli_tools.Parser(__doc__ or "")
    whole = cli_tools.whole_number
    add = parser.add_argument_group("input: images, counts or both (then the counts select)").add_argument
    add(
        "--imagenet_images_root",
        metavar="DIR",
        help="ImageNet-21K, a folder or tar file per synset; its images are counted and split",
    )
    add("--image_counts", metavar="FILE", help="CSV file with rows wnid,count, instead of counting images")
    add(
        "--in1k_images_root",
        metavar="DIR",
        help="IN-1K with train and val: its images per concept are drawn beside those of the levels (Fig. 9)",
    )
    add(
        "--seen_wnids",
        metavar="FILE",
        help="ids of the concepts the networks were trained on (default: the 1000 of IN-1K)",
    )
    add(
        "--discarded_wnids",
        metavar="FILE",
        help="ids discarded by hand, protocol v2 (default: the 70 of the paper; an empty file: none)",
    )
    add(
        "--rerank",
        metavar="LEVELS.pkl",
        help="rank the concepts of these levels anew, without selecting concepts",
    )
    add = parser.add_argument_group("levels").add_argument
    add(
        "--protocol",
        choices=("v2", "v1"),
        default="v2",
        help="selection of the final or first version of the paper: 5,146 or 5,754 eligible concepts (default: v2)",
    )
    add(
        "--similarity",
        default="lin",
        metavar="NAME",
        help="lin (published), lin_max_ic, jcn, wup, random, or a text file of word vectors: word2vec, GloVe, "
        "Wikipedia2Vec (default: lin)",
    )
    add("--n_levels", type=whole(1), metavar="N", help="number of levels; default: 5, or as in --rerank")
    add(
        "--level_size",
        type=whole(1),
        metavar="N",
        help="concepts per level; default: 1000, or as in --rerank",
    )
    add(
        "--seed",
        type=whole(0),
        default=22,
        metavar="N",
        help="seed of the split and of --similarity random (default: 22)",
    )
    add = parser.add_argument_group("output").add_argument
    add("--output_dir", metavar="DIR", help="folder of all outputs")
    add("--overwrite", action="store_true", help="replace existing levels")
    add("--dry_run", action="store_true", help="print the levels' numbers, write nothing")
    add(
        "--compare",
        nargs="+",
        metavar="LEVELS",
        help="print how many concepts of each level of the first levels file (or its folder) are in the same level of "
        "each other one, and which ones are not, and do nothing else",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Build or compare levels and return the exit code.

    Raises:
        CogError: bad arguments or input; no file is written.
    """
    args = parse_args(argv)
    if args.compare is not None:
        from cog.levels import report

        print(report.compare(args.compare))
    else:
        from cog.levels import job  # imports matplotlib

        job.run(args, config.get_cfg(opts=args.opts))
    return 0


cli = functools.partial(cli_tools.run, main)
