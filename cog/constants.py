"""Literals that flags, paths, bash scripts and documentation share, spelled here once."""

import re

IN1K = "in1k"
#: IN-1K with faces blurred (paper supplement C.4): the same classes and layout, 104 images fewer.
IN1K_BLURRED = "in1k_blurred"
SPLITS = ("train", "test")

#: ILSVRC-2012 keeps its official validation images in ``val``; the benchmark tests on them.
IN1K_FOLDERS = {"train": "train", "test": "val"}

COG_LEVELS = tuple(f"cog_l{level}" for level in range(1, 6))
DATASETS = (IN1K, *COG_LEVELS)

#: Seeds and shots of the paper's study (Sec. 4.1; the values are those of the original bash scripts).
SEEDS = (22, 37, 45, 77, 93)
SHOTS = (1, 2, 4, 8, 16, 32, 64, 128)

CHECKPOINT_FILE, FEATURES_FILE = "model.ckpt", "X_Y.pth"
FEATURES_RECORD, IMAGE_PATHS_FILE = "features.json", "image_paths.txt"
RESULTS_FILE, LOGS_FILE, FINAL_MODEL = "results.json", "logs.pkl", "final*/model.pth"
LEVELS_FILE, SPLIT_FILE = "cog_levels_mapping_file.pkl", "cog_concepts_split_file.pkl"

#: Values of ``FT_EXTRACT.PREPROCESS`` and ``POOLING``.
GEOMETRIES = ("protocol", "model")
POOLINGS = ("default", "cls", "mean", "cls+mean", *(f"last{n}" for n in range(2, 13)))

#: Kinds of pretraining data, from which it follows whether the concepts of the levels were unseen.
PRETRAINING = ("IN-1K", "IN-21K", "IN-1K + other", "web", "unknown")

#: Values of ``CLF.TYPE`` and the keys that each sets: for MLPs as in the paper's first version (C.3, B).
CLASSIFIERS: dict[str, dict[str, object]] = {
    "logreg": {},
    "mlp": {"NORM_FTS": False, "LR_INTV": (1e-1, 1e2), "WD_INTV": (1e-8, 1e-4)},
    "mlp_noact": {"NORM_FTS": False, "LR_INTV": (1e-2, 1e1), "WD_INTV": (1e-8, 1e-4)},
}


def cog_level(dataset: str) -> int | None:
    """Return the 1-based level of ``cog_l<k>``, or None when ``dataset`` is not a level."""
    match = re.fullmatch(r"cog_l([1-9][0-9]{0,5})", dataset)
    return int(match.group(1)) if match else None


def is_plain_name(name: str) -> bool:
    """Return whether ``name`` can be one folder name: letters, digits and ``._+-``, no leading dot."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", name) is not None


def is_model_name(name: str) -> bool:
    """Return whether ``name`` has the form ``<model_title>_<architecture_name>``."""
    title, _, architecture = name.partition("_")
    return is_plain_name(title) and is_plain_name(architecture)


def is_unset(value: str) -> bool:
    """Return whether a value is the unset variable of a bash driver: ``None`` or ``null`` in any case."""
    return value.strip().lower() in ("none", "null")
