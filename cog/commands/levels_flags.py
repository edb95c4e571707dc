"""Flags of build_levels.py."""

from __future__ import annotations

from cog.runtime import cli as cli_tools

# Repeated here because importing the modules that define these values would make --help slow; a test compares them.
SIMILARITIES = ("lin", "lin_max_ic", "resnik", "jcn", "wup", "path", "lch", "embedding", "random")


def add(parser: cli_tools.Parser) -> None:
    """Add all flags: input, levels, split, output."""
    inputs = parser.add_argument_group(
        "input: images, image counts or both (then the counts select the concepts)"
    )
    add = inputs.add_argument
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
    add("--concepts", metavar="FILE", help="ids of all concepts, one per line (default: all counted ones)")
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
    add("--n_levels", type=whole(1), metavar="N", help="number of levels; default: 5, or as in --rerank")
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
        help="seed of the split and of --similarity random (default: 22)",
    )
    add(
        "--verify_images",
        action="store_true",
        help="decode all images of the levels; leave out and list those that fail",
    )

    output = parser.add_argument_group("output")
    add = output.add_argument
    add("--output_dir", metavar="DIR", help="folder of all outputs")
    add("--overwrite", action="store_true", help="replace existing output")
    add("--dry_run", action="store_true", help="print the levels' numbers, write nothing")
    add(
        "--limit",
        type=whole(2),
        metavar="N",
        help="try the command in seconds: levels of N concepts, N images of each per split; without --image_counts few "
        "concepts are counted. Outputs lie in <output_dir>/limit-N/; commands without --limit refuse them",
    )
    add("--config", metavar="FILE", help="YAML file with keys, such as LEVELS: {MIN_IMAGES: 500}")
    add(
        "--compare",
        nargs=2,
        metavar=("A.pkl", "B.pkl"),
        help="compare two levels files and do nothing else; with --output_dir, write the list of all moved concepts "
        "there",
    )
    add(
        "--overlap",
        nargs="+",
        metavar="LEVELS",
        help="print how many concepts of each level of the first levels file (or its folder) are in the same level of "
        "each other one, and do nothing else",
    )
    cli_tools.add_check(output, "inputs, output, disk")
