"""Principal components and MLPs: seconds, memory, and the MLP engine against a plain loop of autograd and SGD.

    python tests/benchmarks/bench_variants.py pca [--rows 100000] [--dims 32 256 1024]
    python tests/benchmarks/bench_variants.py mlp [--cases full small] [--repeats 3]

``pca``: features of ``rows`` x 2048 are written to a file; a process of its own reads them, finds the components and
projects both sets, as logreg.py does before a run. Columns: seconds of fitting and of projecting, GFLOP/s of fitting
(the n D^2 multiplications and additions that a symmetric matrix needs), peak memory above that of the imports
relative to the size of the feature files, seconds extrapolated to a level (1.1 M rows; fitting but for the
eigenvectors, and projecting, are linear in the rows).

``mlp``: seconds of a step of 1024 rows, medians over turns taken one after the other; the plain loop
(tests/benchmarks/plain_mlp.py) in float32 and under bfloat16 autocast. ``search``: 10 trials on the same batches, per
trial. Extrapolated: a run of the protocol (30 trials of 100 epochs on 80 % of 1.1 M rows, and one on all) in days.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE)]

import plain_mlp

from cog.features import feature_files, pca
from cog.features.feature_files import FeatureSet
from cog.logreg.engine import Engine
from cog.logreg.preprocess import prepare
from cog.logreg.settings import Settings
from cog.logreg.sgd import TrainSpec
from cog.runtime import random_streams

LEVEL_ROWS, DIM = 1_100_000, 2048

#: name: (d, units of the hidden layers, classes, steps that are timed)
CASES = {"full": (2048, 2048, 1000, 4), "small": (128, 128, 20, 200)}
BATCH = 1024


def timed(function: Callable[[], object]) -> float:
    """Seconds of a call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def peak_bytes() -> int:
    """Most memory that this process has had so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmHWM in /proc/self/status")


def bench_pca(n_rows: int, dims: list[int]) -> list[dict[str, float]]:
    """Measure; returns one row per number of components."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for split, n in (("train", n_rows), ("test", max(n_rows // 20, 10))):
            generator = torch.Generator().manual_seed(len(split))
            x = torch.randn(n, DIM, generator=generator)
            x *= torch.logspace(0, -2, DIM)
            Path(folder, split).mkdir()
            feature_files.save(FeatureSet(x, torch.arange(n) % 1000, split), Path(folder, split, "X_Y.pth"))
            del x
        for dim in dims:
            command = [sys.executable, __file__, "one-pca", folder, str(dim)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found.append(json.loads(done.stdout))
    return found


def one_pca(folder: str, dim: int) -> dict[str, float]:
    """One preparation in a fresh process."""
    before = peak_bytes()
    seconds = {}
    for name in ("fit", "project"):
        original = getattr(pca, name)

        def watched(*args, _original=original, _name=name, **kwargs):
            start = time.perf_counter()
            result = _original(*args, **kwargs)
            seconds[_name] = seconds.get(_name, 0.0) + time.perf_counter() - start
            return result

        setattr(pca, name, watched)
    train, test = (feature_files.load(Path(folder, split)) for split in ("train", "test"))
    n_rows, size = len(train), train.x.nbytes + test.x.nbytes
    prepare(train, test, Engine(torch.device("cpu")), Settings(seed=0, pca_dim=dim))
    eigenvectors = timed(
        lambda: torch.linalg.eigh(torch.eye(DIM, dtype=torch.float64) + 1e-3 * torch.rand(DIM, DIM))
    )
    fit = seconds["fit"]
    return {
        "rows": n_rows,
        "dim": dim,
        "fit_s": fit,
        "project_s": seconds["project"],
        "gflop_per_s": n_rows * DIM**2 / max(fit - eigenvectors, 1e-9) / 1e9,
        "peak_ratio": (peak_bytes() - before) / size,
        "level_s": eigenvectors + (fit - eigenvectors + seconds["project"]) * LEVEL_ROWS / n_rows,
    }


def bench_mlp(case: str, repeats: int) -> dict[str, float]:
    """Seconds per step of one case, by way of training."""
    d, hidden, n_classes, steps = CASES[case]
    n = BATCH * steps
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=generator)
    y = torch.randint(n_classes, (n,), generator=generator)
    settings = Settings(seed=0, n_epochs=1, batch_size=BATCH, classifier="mlp", mlp_hidden=hidden)
    sizes = settings.layer_sizes(d, n_classes)
    rows = torch.arange(n)
    order = random_streams.cpu_generator(0)
    candidates: dict[str, Callable[[], float]] = {}

    def plain(*, autocast: bool) -> float:
        model = plain_mlp.network(sizes, torch.nn.ReLU, seed=0)
        return timed(
            lambda: plain_mlp.fit(
                model, (x, y), None, lr=0.01, wd=1e-6, n_epochs=1, autocast=autocast,
                next_order=lambda m: torch.randperm(m, generator=order),
            )
        )  # fmt: skip

    candidates["plain fp32"] = lambda: plain(autocast=False)
    candidates["plain autocast"] = lambda: plain(autocast=True)
    for precision in ("fp32", "bf16"):
        engine = Engine(torch.device("cpu"), precision)
        data = prepare(FeatureSet(x.clone(), y, case), FeatureSet(x[:BATCH].clone(), y[:BATCH], case), engine)
        spec = TrainSpec(rows, [(0.01, 1e-6)], 0, 0)
        candidates[precision] = lambda engine=engine, data=data: engine.fit(data, spec, settings)[0].seconds
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, function in candidates.items():
            seconds[name].append(function() / steps)
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("pca", "mlp", "one-pca"))
    parser.add_argument("rest", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dims", type=int, nargs="+", default=[32, 256, 1024])
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), default=list(CASES))
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    if args.what == "one-pca":
        print(json.dumps(one_pca(args.rest[0], int(args.rest[1]))))
        return
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    if args.what == "pca":
        for row in bench_pca(args.rows, args.dims):
            print(
                f"{row['rows']} x {DIM} to {row['dim']}: fit {row['fit_s']:.1f} s ({row['gflop_per_s']:.0f} GFLOP/s), "
                f"project {row['project_s']:.1f} s, peak {row['peak_ratio']:.2f} x the files; "
                f"a level {row['level_s']:.0f} s"
            )
        return
    for case in args.cases:
        seconds = bench_mlp(case, args.repeats)
        d, hidden, n_classes, _ = CASES[case]
        sizes = [d, hidden, hidden, n_classes]
        products = [a * b for a, b in itertools.pairwise(sizes)]
        flop = 2 * BATCH * (3 * sum(products) - products[0])
        steps = (30 * 0.8 + 1) * 100 * LEVEL_ROWS / BATCH
        for name, value in seconds.items():
            days = f", {value * steps / 86400:.1f} days" if case == "full" else ""
            print(
                f"{case} {name}: {1000 * value:.2f} ms per step ({flop / value / 1e9:.0f} GFLOP/s), "
                f"{seconds['plain fp32'] / value:.2f} x plain fp32, "
                f"{seconds['plain autocast'] / value:.2f} x autocast{days}"
            )


if __name__ == "__main__":
    main()
