"""Analyses of trained classifiers: accuracy per concept, and confident predictions on other data.

Levels differ in domain as well as in similarity (all trees and herbs are in L5): hence ``subtree``.
An image that a classifier of another data set recognizes with a confidence above 0.99 looks like one of its
concepts, or shows one (label noise, supplement A.3); confidences depend on the learning rate of the seed.
"""

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from cog import config, constants
from cog.analysis.base import AnalysisInput, analysis
from cog.data.images import find_images
from cog.data.pixels import load_rgb
from cog.data.wnids import IN1K_LIST
from cog.errors import CogError
from cog.features.feature_files import open_file, unit_rows
from cog.features.folder import identify_input, network_differences, read_image_paths, read_record
from cog.levels.wordnet import NounGraph, optional_wordnet
from cog.paths import evaluation_folder, require_file
from cog.results.analysis_records import Number
from cog.results.records import load_record, mapping
from cog.results.runs import read_folder
from cog.runtime import files
from cog.runtime.safe_load import load_torch

logger = logging.getLogger(__name__)

#: Subtrees of WordNet 3.0, with at least 50 of the 5000 published concepts, by root; the deepest root counts.
SUBTREES = {
    "n01861778": "mammals",
    "n01503061": "birds",
    "n00015388": "other_animals",
    "n00017222": "plants",
    "n13086908": "plants",  # plant part
    "n00021265": "food",  # food, nutrient
    "n07555863": "food",  # solid food
    "n03051540": "clothing",
    "n03122748": "clothing",  # covering
    "n03309808": "clothing",  # fabric
    "n04341686": "structures",
    "n03100490": "vehicles",  # conveyance
    "n03183080": "devices",
    "n03094503": "containers",
    "n03405265": "furnishings",
    "n00021939": "other_artifacts",
    "n00030358": "activities",  # act, deed; sports among them
}

_SIMILARITY = ["wnid", "similarity", "nearest_seen", "nearest_seen_names", "level"]

_THRESHOLD, _N_SHOWN, _COLUMNS = 0.99, 60, 6
_AGAIN = "train again (logreg.py --overwrite)"


def evaluation(data: AnalysisInput) -> tuple[str, str]:
    """Return the evaluation folder that the configuration selects, and its part of a name: eval_raw, _raw."""
    name = evaluation_folder(config.evaluation_name(data.cfg), data.cfg.CLF.N_SHOT)
    return name, name.removeprefix("eval").removeprefix("_logreg")


def find_runs(data: AnalysisInput, dataset: str) -> list[Any]:
    """Return the complete runs of the model on a data set, by seed; none that can be read are a CogError."""
    folder = data.model_dir.path / dataset / evaluation(data)[0]
    found = read_folder(folder) if folder.is_dir() else None
    for skipped in found.skipped if found else ():
        logger.warning("%s is left out: %s", skipped.path, skipped.reason)
    if not found or not found.runs:
        raise CogError(f"no classifiers in {folder}; run logreg.py first, or check EVAL.NAME and CLF.N_SHOT")
    return found.runs


def output_labels(run: Any, n_classes: int) -> list[int]:
    """Return the label of each output of a classifier, in the features that it was trained on."""
    stated = (load_record(run.folder) or {}).get("labels")
    return list(map(int, stated)) if isinstance(stated, list) else list(range(n_classes))


def class_names(file: Path | None, dataset: str | None, n_classes: int) -> list[str]:
    """Return the name of each label of features: folder of its images, id of IN-1K, or ``class 17``."""
    names = [f"class {label}" for label in range(n_classes)]
    y = [] if file is None else open_file(file).y.long().tolist()
    images = None if file is None else read_image_paths(file, n_rows=len(y))
    if images is not None:
        folders = {label: path.split("/")[0] for label, path in zip(y, images, strict=True)}
        return [folders.get(label, name) for label, name in enumerate(names)]
    wnids = sorted(IN1K_LIST.read_text(encoding="utf-8").split()) if dataset == constants.IN1K else []
    return wnids if len(wnids) == n_classes else names


def load_classifier(run: Any, data: AnalysisInput) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """Return float32 weight ``(C, d)`` and bias ``(C,)`` of a run, and whether it takes unit rows."""
    path = Path(run.folder, run.details["final"], "model.pth")
    state: Any = mapping(mapping(load_torch(path)).get("model"))
    weight, bias = (state.get(key) for key in ("weight", "bias"))
    are_tensors = isinstance(weight, torch.Tensor) and isinstance(bias, torch.Tensor)
    if not are_tensors or weight.ndim != 2 or bias.shape != weight.shape[:1]:
        raise CogError(f"{path} holds no linear layer, expected {{'model': {{'weight', 'bias'}}}}")
    if not bool(torch.isfinite(weight).all() & torch.isfinite(bias).all()):
        raise CogError(f"{path} holds NaN or infinite weights: the training diverged; leave its seed out")
    settings = (load_record(run.folder) or {}).get("configuration") or {}
    normalize = settings.get("CLF.NORM_FTS", data.cfg.CLF.NORM_FTS)
    return weight.to(data.device).float(), bias.to(data.device).float(), bool(normalize)


def _concepts_inputs(data: AnalysisInput) -> tuple[str, dict[str, Any]]:
    folder, suffix = evaluation(data)
    file = data.flags["levels_csv"]
    runs = find_runs(data, data.dataset)
    key, now = "image_list_sha256", identify_input(data.file("test"))
    if any(run.details["used"]["test"].get(key) not in (None, now.get(key)) for run in runs):
        raise CogError(f"{data.label}the test features are of other images than the classifiers; {_AGAIN}")
    return suffix, {
        "evaluation": folder,
        "levels_csv_sha256": None if file is None else files.sha256(require_file(file, "--levels_csv")),
        "runs": {str(run.seed): [run.details["finished"], run.value] for run in runs},
    }


@analysis("concepts", inputs=_concepts_inputs)
def concepts(data: AnalysisInput) -> dict[str, Number]:
    """Write the table; return the mean accuracy, and its rank correlation with similarity (--levels_csv)."""
    runs = find_runs(data, data.dataset)
    counted = {run.seed: run.correct for run in runs if run.correct is not None}
    if not counted:
        raise CogError(f"{data.label}no run has right answers per concept; {_AGAIN}")
    labels = output_labels(runs[0], len(next(iter(counted.values())).correct))
    names = class_names(data.file("test"), data.dataset, 1 + max(labels))
    graph = optional_wordnet()
    table = pd.DataFrame({"wnid": [names[label] for label in labels]})
    table["names"] = table["wnid"].map(graph.words)
    table = table.join(_levels(data.flags["levels_csv"]), on="wnid")
    table["subtree"] = [_subtree(graph, wnid) for wnid in table["wnid"]]
    for split in constants.SPLITS:
        y = open_file(data.file(split)).y.long().numpy()
        table[f"n_{split}"] = np.bincount(y, minlength=1 + max(labels))[labels]
    for seed, counts in counted.items():
        table[f"seed_{seed}"] = 100.0 * np.array(counts.correct) / np.array(counts.images_of_each)
        data.per_seed[seed] = {"accuracy": table[f"seed_{seed}"].mean()}
    table["accuracy"] = table[[f"seed_{seed}" for seed in counted]].mean(axis=1)
    files.write_text(data.folder / "concepts.csv", table.to_csv(index=False))
    known = table[table["similarity"].notna()]
    data.details.update(n_concepts=len(table), n_with_similarity=len(known))
    value, low, high = spearman(known["similarity"].to_numpy(), known["accuracy"].to_numpy())
    numbers = {"spearman": value, "spearman_low": low, "spearman_high": high}
    return {"accuracy": table["accuracy"].mean(), **numbers}


def spearman(x: np.ndarray, y: np.ndarray) -> tuple[float | None, float | None, float | None]:
    """Return Spearman's correlation of two ``(n,)`` and its 95 % bootstrap interval; None: undefined."""

    def ranks(places: np.ndarray) -> np.ndarray:  # equals share the mean of their ranks
        counts = np.bincount(places)
        return (counts.cumsum() - (counts - 1) / 2)[places]

    def correlation(rows: np.ndarray) -> float:
        a, b = (ranks(values[rows]) for values in places)
        return float(np.corrcoef(a, b)[0, 1]) if np.ptp(a) and np.ptp(b) else np.nan

    every, places = np.arange(len(x)), [np.unique(values, return_inverse=True)[1] for values in (x, y)]
    value = correlation(every) if len(x) > 2 and not np.isnan(x + y).any() else np.nan
    if np.isnan(value):
        return None, None, None
    rng = np.random.default_rng(0)
    resampled = [correlation(rng.choice(every, len(every))) for _ in range(1000)]
    low, high = np.nanpercentile(resampled, [2.5, 97.5])
    return value, float(low), float(high)


def _levels(file: str | None) -> pd.DataFrame:
    """Return the similarities in a levels.csv, by wnid; none without a file."""
    if file is None:
        return pd.DataFrame(columns=_SIMILARITY).set_index("wnid")
    try:
        table = pd.read_csv(file, dtype={"wnid": str})[_SIMILARITY].set_index("wnid")
        if not table.index.is_unique:
            raise ValueError("a concept is there twice")
        return table
    except (OSError, ValueError, KeyError) as error:
        raise CogError(f"--levels_csv {file} is no levels.csv of build_levels.py: {error}") from error


def _subtree(graph: NounGraph, wnid: str) -> str:
    if wnid not in graph.node:
        return ""
    name_of = {graph.node[root]: name for root, name in SUBTREES.items()}
    roots = graph.above(graph.node[wnid]) & name_of.keys()
    return name_of[max(roots, key=graph.depth)] if roots else "rest"


def _confident_inputs(data: AnalysisInput) -> tuple[str, dict[str, Any]]:
    trained_on = data.flags["trained_on"]
    if trained_on is None:
        raise CogError("--analysis confident needs --trained_on DATASET, whose classifiers are applied")
    runs = find_runs(data, trained_on)
    if changed := network_differences(runs[0].details["used"]["train"], identify_input(data.file("test"))):
        raise CogError(
            f"the classifiers of {trained_on} were trained on features that were made differently from those "
            f"of {data.dataset} ({'; '.join(changed)}); extract both with the same network, and train again"
        )
    digests = {run.seed: files.sha256(Path(run.folder, run.details["final"], "model.pth")) for run in runs}
    folder, suffix = evaluation(data)
    has_picture = "images_root" in read_record(data.file("test").parent)
    return f"_{trained_on}{suffix}", {"evaluation": folder, "classifiers": digests, "picture": has_picture}


@analysis("confident", splits=("test",), inputs=_confident_inputs)
def confident(data: AnalysisInput) -> dict[str, Number]:
    """Return the share of the images that classifiers are confident of; list (by best seed) and draw them."""
    test, trained_on = data.load("test", normalize=False), data.flags["trained_on"]
    found, n_classes = [], 0
    for run in find_runs(data, trained_on):
        weight, bias, normalize = load_classifier(run, data)
        predicted = predict(data, test.x, weight, bias, normalize)
        labels = np.array(output_labels(run, len(bias)))
        predicted["label"], predicted["seed"] = labels[predicted["output"]], run.seed
        found.append(predicted[predicted["confidence"] > _THRESHOLD])
        n_classes = max(n_classes, 1 + labels.max())
        data.per_seed[run.seed] = {"confident_percent": 100 * (len(found[-1]) / len(test))}
    table = pd.concat(found).sort_values(["log_odds", "row"], ascending=[False, True])
    table["n_seeds"] = table.groupby("row")["row"].transform("size")
    table = table.drop_duplicates("row")
    tried = [data.model_dir.features_file(trained_on, split) for split in ("test", "train")]
    own_file = next((file for file in tried if file.is_file()), None)
    names = class_names(own_file, trained_on, n_classes)
    true_names = class_names(data.file("test"), data.dataset, int(test.y.max()) + 1)
    paths = read_image_paths(data.file("test"), n_rows=len(test))
    table["image"] = [paths[row] if paths else f"row {row}" for row in table["row"]]
    table["wnid"] = [true_names[test.y[row]] for row in table["row"]]
    table["predicted_wnid"] = [names[label] for label in table["label"]]
    words = optional_wordnet().words
    table["names"], table["predicted_names"] = (table[key].map(words) for key in ("wnid", "predicted_wnid"))
    columns = ["image", "wnid", "names", "predicted_wnid", "predicted_names", "confidence", "seed", "n_seeds"]
    files.write_text(data.folder / "confident.csv", table[columns].to_csv(index=False))
    root = read_record(data.file("test").parent).get("images_root")
    if paths and isinstance(root, str) and len(table):
        try:
            _draw(data.folder / "confident.png", table[:_N_SHOWN], Path(root))
        except CogError as error:
            logger.warning("no picture of the images, which cannot be read: %s", error)
    data.details.update(threshold=_THRESHOLD, n_images=len(test))
    return {"confident_percent": float(np.mean([of["confident_percent"] for of in data.per_seed.values()]))}


def predict(
    data: AnalysisInput, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, normalize: bool
) -> pd.DataFrame:
    """Return most probable outputs of rows; ``log_odds`` also order confidences that round to 1."""
    if weight.shape[1] != x.shape[1]:
        found = f"the classifier takes features of {weight.shape[1]} dimensions, found {x.shape[1]}"
        raise CogError(f"{found}; both have to come from the same model")
    parts = []
    for _, block in data.blocks(x):
        logits = torch.addmm(bias, unit_rows(block) if normalize else block, weight.T)
        log_p = torch.log_softmax(logits.double(), dim=1)
        best, output = log_p.max(dim=1)
        others = log_p.scatter(1, output[:, None], -math.inf).logsumexp(dim=1)
        parts.append(torch.stack([output.double(), best.exp(), best - others]).cpu())
    output, confidence, log_odds = torch.cat(parts, dim=1).numpy()
    columns = {"row": range(len(x)), "output": output.astype(int)}
    return pd.DataFrame({**columns, "confidence": confidence, "log_odds": log_odds})


def _draw(path: Path, table: pd.DataFrame, root: Path) -> None:
    """Draw the images of rows of the list, each with its concept and its prediction."""
    from matplotlib.figure import Figure

    images = find_images(root, {name.rpartition("/")[0] for name in table.image}).image_list("", "")
    rows = {images.file(row): row for row in range(len(images))}
    n_lines = -(-len(table) // _COLUMNS)
    figure = Figure(figsize=(2 * _COLUMNS, 2.4 * n_lines))
    # A constrained layout of 60 images takes seconds.
    figure.subplots_adjust(0.01, 0.01, 0.99, 1 - 0.2 / n_lines, wspace=0.05, hspace=0.3)
    for position, row in enumerate(table.itertuples(), start=1):
        axes = figure.add_subplot(n_lines, _COLUMNS, position)
        axes.set_axis_off()
        true, predicted = (text.split(",")[0] for text in (row.names, row.predicted_names))
        axes.set_title(f"{true}\n-> {predicted}\n{row.confidence:.4f}", fontsize=7)
        try:
            axes.imshow(load_rgb(images.read(rows[row.image])))
        except Exception:  # Pillow raises many kinds of errors on a damaged file
            logger.warning("%s cannot be read below %s", row.image, root)
    figure.savefig(path, dpi=100)
