"""What print_results.py shows of three collections of results, recorded before these rooms are rearranged.

``shown.json.xz`` holds, by the words of a command, what it printed, logged and wrote: text, Markdown, CSV, LaTeX and
JSON of every view, the data files of figures and diagnostics, an exported file, and the words of the page (of its drawings only
the strips of ranks: those of figures and searches are compared by their data).

``python tests/golden/shown.py`` records it with the code that is there; see ``previous_root.py`` for when to do that.
"""

# ruff: noqa: E501
from __future__ import annotations

import contextlib
import itertools
import json
import lzma
import math
import re
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "helpers")]

from experiment_records import folder_of, write_record
from result_folders import make_logs, make_record, make_seed_folder

from cog.results import concept_counts
from golden import previous_root

FILE = Path(__file__).resolve().parent / "shown.json.xz"

SEEDS = (22, 37, 45, 78, 90)
LEVELS = ("cog_l1", "cog_l2", "cog_l3", "cog_l4", "cog_l5")
FORMATS = ("text", "markdown", "csv", "latex", "json")
VARIANTS = ("mlp", "mlp_noact", "logreg_pca32", "logreg_pca256", "logreg_max732", "finetune", "own-name")


# --- the root


def _counts(top1):
    """Return right answers of 100 images of each of 1,000 concepts that make an accuracy, in percent, exact to 0.001."""
    right = [min(100, max(0, round(top1 + 25 * math.sin(k * k)))) for k in range(1000)]
    missing, k = round(1000 * top1) - sum(right), 0
    step = 1 if missing > 0 else -1
    while missing:
        if 0 <= right[k % 1000] + step <= 100:
            right[k % 1000] += step
            missing -= step
        k += 1
    return concept_counts.write(right, [100] * 1000)


def _write_run(root, model, dataset, n_shot, seed, *, evaluation="logreg", places=1000, **final):
    """Write a run of this toolkit whose numbers follow from what it is of."""
    number = sum(
        ord(char) * (place + 1) for place, char in enumerate(f"{model}{dataset}{n_shot}{evaluation}")
    )
    level = int(dataset[-1]) if dataset[-1].isdigit() and dataset.startswith("cog") else 0
    top1 = 40 + number % 300 / 10 - 3 * level + (0 if n_shot == 0 else -20) + (seed * 7919 % 101) / 200
    name = f"eval_{evaluation}" + (f"_N{n_shot}" if n_shot else "")
    path = folder_of(root, model, dataset) / name / f"seed-{seed}"
    # Earlier versions did not record right answers per concept.
    counted = evaluation == "logreg" and places == 1000 and model != "my_other-net_x10"
    logs = make_logs(top1, min(100.0, top1 + 12), n_epochs=100)
    make_seed_folder(path, logs=logs)
    trials = [
        {
            "number": n, "lr": 10 ** (n / 3 - 1), "wd": 10 ** (-4 - n), "val_top1": top1 - abs(n - 4),
            "diverged": n == 7, "pruned": False, "seconds": 1.5,
        }
        for n in range(8)
    ]  # fmt: skip
    record = {
        "model": model, "dataset": dataset,
        "identity": {
            "seed": seed, "n_trials": 30, "n_epochs": 100, "batch_size": 1024, "momentum": 0.9, "val_frac": 0.2,
            "lr_interval": [0.1, 100.0], "wd_interval": [1e-12, 1e-4], "normalize": True,
            "train_features": {"bytes": 1, "checkpoint_sha256": "aa"},
            "test_features": {"bytes": 1, "checkpoint_sha256": "aa"},
        },
        "n_classes": places, "feature_dim": 8, "trials": trials, "best_trial": 4,
        "rows": {
            "final_train": n_shot * places or (1_281_167 if dataset == "in1k" else 1_100_000) * places // 1000,
            "test": 50 * places,
        },
        "seconds": {"search": 20.0, "final": 2.5}, "versions": {"torch": "2.10.0"}, "device": "cpu",
        "finished": "2026-01-01T10:00:00+00:00",
    }  # fmt: skip
    make_record(path, seed=seed, n_shot=n_shot, record=record, **final, **(_counts(top1) if counted else {}))


def make_root(root: Path) -> Path:
    """Write results with variants, analyses, missing seeds, diverged and broken runs."""
    models = ("my_net", "my_other-net_x10", "dino_resnet50")
    for model, dataset, n_shot in itertools.product(models, ("in1k", *LEVELS), (0, 1, 8)):
        if model == "my_other-net_x10" and n_shot:
            continue
        seeds = SEEDS[:3] if (model, dataset) == ("my_net", "cog_l2") else SEEDS
        for seed in seeds:
            diverged = (model, dataset, n_shot, seed) == ("my_other-net_x10", "cog_l4", 0, 45)
            _write_run(root, model, dataset, n_shot, seed, diverged=diverged)
    for seed in SEEDS[:2]:
        _write_run(root, "toy_net", "in1k", 0, seed, places=17)
    for model, evaluation, dataset in itertools.product(models[:2], VARIANTS, ("in1k", "cog_l5")):
        for seed in SEEDS[:1] if evaluation == "finetune" else SEEDS:
            diverged = seed == 90 and evaluation == "mlp"
            _write_run(root, model, dataset, 0, seed, evaluation=evaluation, diverged=diverged)
    for model in models[:2]:
        _write_run(root, model, "in1k_blurred", 0, 22)
    for place, (model, dataset) in enumerate(itertools.product(models[:2], ("in1k", "cog_l1", "cog_l5"))):
        x = 0.4 + place / 50
        write_record(
            root, model, dataset, "kmeans",
            {"ami": x, "nmi": x + 0.1, "ari": x / 2, "purity": x, "purity_v1": x + 0.05, "inertia": 1000 * x},
            per_seed={str(s): {"ami": x - s / 100, "purity": x - s / 200} for s in range(3)},
        )  # fmt: skip
        write_record(
            root, model, dataset, "alignment",
            {"alignment": x, "uniformity": -2 * x, "uniformity_v1": 2 * x, "alignment_by_uniformity": 0.5 + x},
        )  # fmt: skip
        write_record(
            root, model, dataset, "knn",
            {f"{m}_k{k}_{v}": 50 + k + place for m in ("top1", "top5") for k in (1, 5, 20) for v in ("weighted", "uniform")},
            identity={"k": [1, 5, 20 + place % 2]},
        )  # fmt: skip
        write_record(
            root, model, dataset, "ncm", {"top1_cosine": 40 + x, "top1_euclidean": 39.0, "top5_cosine": 60.0}
        )
        if dataset == "cog_l5":
            continue
        write_record(
            root, model, dataset, "distance",
            {"spearman": -x, "spearman_low": -x - 0.1, "spearman_high": 0.1 - x, "nearest_accuracy": 60.0, "n_concepts": 1000},
            details={"bins": [{"similarity": s / 10, "accuracy": 50 + s, "standard_error": 0.5} for s in range(3, 7)]},
        )  # fmt: skip
        confident = {"confident_percent": 12.345, "auroc": 71.2, "n_confident": 4.5}
        write_record(root, model, dataset, "cross_in1k", confident)
        write_record(
            root, model, dataset, "winners_dino_resnet50",
            {"n_surely_better": 12, "n_surely_worse": 3, "p_sign_test": 1.25e-7, "mean_difference": 1.5},
            details={
                "against": "dino_resnet50",
                "winners": [{"names": "hen", "difference": 12.0, "accuracy": 80.0, "accuracy_against": 68.0, "false_discovery_rate": 0.01}],
                "losers": [{"wnid": "n01", "difference": -4.0, "accuracy": 30.0, "accuracy_against": 34.0}],
            },
        )  # fmt: skip
    write_record(root, "my_net", "in1k", "mystery", {"depth_percent": 3.25, "n_things": 4, "beauty": 0.125})
    broken = folder_of(root, "my_net", "in1k") / "eval_logreg"
    (broken / "seed-notanumber").mkdir()
    make_seed_folder(broken / "seed-99", logs=b"not a pickle")
    (folder_of(root, "my_net", "cog_l1") / "eval_logreg_N4" / "seed-22" / ".resume").mkdir(parents=True)
    bad = folder_of(root, "my_net", "cog_l1") / "analysis_broken"
    bad.mkdir()
    (bad / "results.json").write_text("{}")
    features = folder_of(root, "my_net", "in1k")
    for split, n in (("train", 1_281_167), ("test", 50_000)):
        (features / f"features_{split}").mkdir()
        description = {
            "n_images": n, "n_classes": 1000, "n_failed": 0, "checkpoint_sha256": "ab" * 32,
            "checkpoint_is_published": None, "loader": "my_net.py:load", "preprocessing": {"resize": 224},
            "image_list_sha256": "cd" * 32, "device": "cpu", "versions": {"torch": "2.10.0"},
        }  # fmt: skip
        (features / f"features_{split}" / "features.json").write_text(json.dumps(description))
    return root


# --- commands


def commands(root: Path, exported: Path, out: Path) -> dict[str, list[object]]:
    """Return the commands, by a name."""
    here = ["--models_root_dir", root]
    sources = {
        "root": [*here, "--models_root_dir", root],
        "beside": [*here, "--with_published"],
        "imported": ["--import", exported, "--with_published"],
        "v2": ["--published_only"],
        "v1": ["--published_only", "--paper", "v1"],
    }
    views = {
        "datasets": [], "shots": ["--view", "shots"], "table": ["--view", "table", "--labels", "paper"],
        "rank": ["--rank"], "drop": ["--drop"], "relative": ["--relative_to", "dino_resnet50"],
        "baseline": ["--baseline", "dino_resnet50"], "overview": ["--overview"], "analysis": ["--analysis", "all"],
        "variants": ["--variants", "all"], "both": ["--metric", "both", "--n_shot", 0, 8],
    }  # fmt: skip
    found: dict[str, list[object]] = {}
    for (source, where), (view, flags), fmt in itertools.product(sources.items(), views.items(), FORMATS):
        if source != "root" and fmt in ("markdown", "latex", "json"):
            continue
        if source == "v2" and (fmt == "csv" or view == "table") and view != "datasets":
            continue
        if source in ("beside", "imported") and view in ("shots", "table", "both"):
            continue
        found[f"{source} {view} {fmt}"] = [*where, *flags, "--format", fmt]
    one = [*here, "--model", "my_net", "--dataset", "cog_l2"]
    found |= {
        "one": one, "one few": [*one, "CLF.N_SHOT", 8], "one published": [*here, "--model", "dino_resnet50", "--dataset", "in1k", "--with_published"],
        "one toy": [*here, "--model", "toy_net", "--dataset", "in1k", "--with_published"],
        "power": [*here, "--power"], "compare dino": [*here, "--compare", "my_net", "dino_resnet50"],
        "compare": [*here, "--compare", "my_net", "my_other-net_x10"],
        "narrow": [*here, "--width", 50], "top5": [*here, "--metric", "top5", "--decimals", 3],
        "seeds": [*here, "--seeds", 22, 37, 45, "--dataset", "cog_l2"], "category": [*here, "--with_published", "--category", "custom", "reference"],
        "knn": [*here, "--analysis", "knn", "--metric", "both"], "pca": [*here, "CLF.PCA_DIM", 32], "own": [*here, "EVAL.NAME", "own-name"],
        "own overview": [*here, "EVAL.NAME", "own-name", "--overview"],
        "nothing": [*here, "--model", "my_nett"], "nothing on": [*here, "--dataset", "cog_l9"], "no analysis": [*here, "--analysis", "nope"],
        "no baseline": [*here, "--baseline", "my_nett"],
        "toy rank": [*here, "--with_published", "--rank", "--dataset", "in1k", "--n_shot", 0],
        "toy baseline": [*here, "--baseline", "toy_net", "--with_published"],
    }  # fmt: skip
    for source in ("root", "imported", "v1"):
        drawn = () if source == "root" else ("--figure_names", "fig3", "drop", "v1_fig8", "mlp")
        if source != "imported":
            written = ["--figures", out / f"{source}-figures", "--figure_formats", "svg"]
            found[f"{source} figures"] = [*sources[source], *written, *drawn]
        found[f"{source} report"] = [*sources[source], "--report", out / f"{source}.html"]
        found[f"{source} export"] = [*sources[source], "--export", out / f"{source}.json"]
    found["toy report"] = [*here, "--model", "toy_net", "--report", out / "toy.html"]
    found["one report"] = [*here, "--model", "my_net", "--report", out / "one.html"]
    found["root diagnostics"] = [
        *here, "--model", "my_net", "--diagnostics", out / "diagnostics", "--figure_formats", "svg",
    ]  # fmt: skip
    return found


class _Words(HTMLParser):
    """The words of a page, one line for each element, and the strips of ranks; no other drawings, style or script."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._skipped = 0
        self._in_strip = False

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag == "svg":
            self._in_strip = given.get("class") == "strip"
        self._skipped += tag in ("svg", "style", "script")
        if self._in_strip:
            self.lines += [f"{name}={given[name]}" for name in ("d", "cx") if name in given]
        if not self._skipped:
            self.lines += [f"{name}={given[name]}" for name in ("title", "href", "data-v") if name in given]

    def handle_endtag(self, tag):
        self._in_strip &= tag != "svg"
        self._skipped -= tag in ("svg", "style", "script")

    def handle_data(self, data):
        if not self._skipped and data.strip():
            self.lines.append(" ".join(data.split()))


def words(page: str) -> str:
    """Return what a page says."""
    parser = _Words()
    parser.feed(page)
    return "\n".join(parser.lines)


def _content(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return words(text) if path.suffix == ".html" else text


@contextlib.contextmanager
def _without_drawings():
    """Let figures be made and not drawn, which takes longest, since nothing of their drawings is recorded."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    execute, savefig = ConstrainedLayoutEngine.execute, Figure.savefig
    ConstrainedLayoutEngine.execute = lambda self, figure: None
    Figure.savefig = lambda self, stream, **how: stream.write(b"<svg></svg>")
    try:
        yield
    finally:
        ConstrainedLayoutEngine.execute, Figure.savefig = execute, savefig


@_without_drawings()
def collect(folder: Path, wanted: str = "") -> dict[str, dict[str, str]]:
    """Run every command whose name has ``wanted`` on a root below ``folder``: what each printed, said and wrote."""
    root, out = make_root(folder / "models"), folder / "out"
    out.mkdir()
    exported = folder / "their lab.json"
    own = ["--model", "my_net", "toy_net"]
    code, _, errors = previous_root.call(
        "print_results", "--models_root_dir", root, *own, "--export", exported
    )
    assert code == 0, errors
    found = {}
    written: set[Path] = set()
    for name, words_ in commands(root, exported, out).items():
        if wanted not in name:
            continue
        code, printed, said = previous_root.call("print_results", *words_)
        files = {path for path in out.rglob("*") if path.is_file() and path.suffix != ".svg"} - written
        written |= files
        result = {"code": str(code), "printed": printed, "said": said}
        result |= {path.relative_to(out).as_posix(): _content(path) for path in sorted(files)}
        found[name] = {key: _plain(text, folder) for key, text in result.items()}
    return found


def _plain(text: str, folder: Path) -> str:
    """Leave out what no two runs of a command share."""
    text = text.replace(str(folder), "<folder>")
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d+)?", "<time>", text)
    text = re.sub(r'"written": "[^"]*"', '"written": ""', text)
    return re.sub(r"written \d{4}-\d\d-\d\d \d\d:\d\d UTC", "written", text)


def recorded() -> dict[str, dict[str, str]]:
    """Return what was recorded."""
    return json.loads(lzma.decompress(FILE.read_bytes()))


def is_exported(text: str) -> bool:
    """Return whether a file is one of --export."""
    return text.startswith('{\n  "format": "imagenet-cog results"')


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        shown = collect(Path(name))
    for name, parts in recorded().items():  # exported files keep their first version, which is read in tests
        shown[name] |= {part: text for part, text in parts.items() if is_exported(text)}
    FILE.write_bytes(lzma.compress(json.dumps(shown, indent=0, sort_keys=True).encode(), preset=9))
