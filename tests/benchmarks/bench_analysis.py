"""The label-free analyses (and PCA) at a size where memory and speed matter, beside scikit-learn.

    python tests/benchmarks/bench_analysis.py [--rows 100000] [--dim 2048] [--classes 1000] [--parts kmeans knn ...]
    python tests/benchmarks/bench_analysis.py --rows 20000 --dim 512 --classes 200      # a minute

Every part runs in a process of its own, which reads a feature file and measures

* seconds, reading the file apart;
* peak memory above that of the imports, relative to the feature file;
* the rate of its matrix products relative to the rate of one large product measured in the same process, before and
  after; of k-means, also how many of the plain algorithm's distances it computed;
* the time for a level of full size (1.1 M training and 50,000 test rows x 2048, k = 1000) by its number of
  operations; for a GPU this is an estimate: operations over ``--gpu_tflops`` x 60 %.

``--compare`` times scikit-learn at equal work, both sides in turn: the same starting centres and number of Lloyd
iterations, the same neighbours of the same test rows, on as many rows as ``--compare_rows``.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent)]

from cog.analysis import alignment, knn, lloyd, seeding
from cog.analysis.rows import FeatureRows
from cog.features import feature_files
from cog.features.feature_files import FeatureSet

CPU = torch.device("cpu")
FULL_ROWS, FULL_TEST, FULL_DIM, FULL_K = 1_100_000, 50_000, 2048, 1000
PARTS = ("kmeans", "knn", "uniformity", "pca")


def clouds(n: int, d: int, n_classes: int, seed: int) -> FeatureSet:
    """Non-negative features in overlapping clusters, with a spectrum that falls: about as real ones are."""
    spectrum = torch.arange(1, d + 1).float() ** -0.5
    centres = torch.randn(n_classes, d, generator=torch.Generator().manual_seed(1)) * spectrum
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % n_classes
    x = torch.empty(n, d)
    for rows in torch.arange(n).split(4096):
        noise = torch.randn(len(rows), d, generator=generator) * spectrum
        x[rows] = (centres[y[rows]] + noise).relu_()
    return FeatureSet(x, y, "clouds")


def status(field: str) -> int:
    """Return an entry of ``/proc/self/status`` in bytes."""
    found = re.search(rf"^{field}:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def gemm_rate(d: int) -> float:
    """Best rate of a matrix product here and now, in FLOP/s."""
    x, w = torch.randn(4096, d), torch.randn(1024, d)
    out = torch.empty(4096, 1024)
    best = 0.0
    for _ in range(8):
        start = time.perf_counter()
        torch.mm(x, w.T, out=out)
        best = max(best, 2 * 4096 * 1024 * d / (time.perf_counter() - start))
    return best


def run_part(part: str, folder: Path, k: int, iterations: int) -> dict[str, Any]:
    """Measure one part; in a process of its own."""
    found: dict[str, Any] = {}
    rates = [gemm_rate(FULL_DIM)]
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = status("VmRSS")
    size = (folder / "train.pth").stat().st_size
    start = time.perf_counter()
    train = feature_files.load(folder / "train.pth", normalize=True)
    test = feature_files.load(folder / "test.pth", normalize=True) if part == "knn" else None
    found["read"] = time.perf_counter() - start
    n, d = train.x.shape
    start = time.perf_counter()
    if part == "kmeans":
        rows = FeatureRows(train, CPU, centered=True)
        marks = []

        lloyd_start = lloyd._Lloyd.start

        def started(*args: Any) -> Any:
            marks.append(time.perf_counter() - start)
            return lloyd_start(*args)

        lloyd._Lloyd.start = started  # type: ignore[method-assign,assignment]
        result = lloyd.fit(rows, k, seed=22, max_iterations=iterations)
        seconds = time.perf_counter() - start
        computed = result.computed_frac * (result.iterations + 1) * n * k
        found |= {
            "iterations": result.iterations,
            "ended_by": result.ended_by,
            "computed_frac": result.computed_frac,
            "initial_seconds": marks[0],
            "flops": 2.0 * d * computed,
            "flop_seconds": seconds - marks[0],
            "plain_flops": 2.0 * d * n * k * (result.iterations + 1),
        }
        scale = FULL_ROWS * FULL_DIM * FULL_K / (n * d * k)
        candidates = seeding.ROUNDS * max(FULL_K, 100)
        found["full_flops"] = scale * found["flops"] + 2.0 * FULL_ROWS * FULL_DIM * candidates
    elif part == "knn":
        assert test is not None
        found_neighbours = knn.find(FeatureRows(train, CPU), FeatureRows(test, CPU), min(200, n))
        ks = [q for q in (1, 5, 10, 20, 100, 200) if q <= n]
        for temperature in (0.07, None):
            knn.vote(found_neighbours, train.y, ks, temperature=temperature)
        seconds = time.perf_counter() - start
        found |= {"flops": 2.0 * n * len(test) * d, "flop_seconds": seconds}
        found["full_flops"] = 2.0 * FULL_ROWS * FULL_TEST * FULL_DIM
    elif part == "uniformity":
        rows = FeatureRows(train, CPU, centered=True)
        alignment.uniformity(rows)
        seconds = time.perf_counter() - start
        found |= {"flops": float(n) * n * d, "flop_seconds": seconds}
        found["full_flops"] = float(FULL_TEST) ** 2 * FULL_DIM
    else:
        from cog.features import pca

        pca.fit(train)
        seconds = time.perf_counter() - start
        found |= {"flops": 2.0 * n * d * d, "flop_seconds": seconds}
        found["full_flops"] = 2.0 * FULL_ROWS * FULL_DIM**2
    found["seconds"] = seconds
    found["peak"] = status("VmHWM") - before
    found["file"] = size + (0 if test is None else (folder / "test.pth").stat().st_size)
    rates.append(gemm_rate(FULL_DIM))
    found["gemm"] = sum(rates) / 2
    return found


def show(part: str, found: dict[str, Any], gpu_tflops: float) -> None:
    """Print what a part measured."""
    rate = found["flops"] / found["flop_seconds"]
    full = found["full_flops"] / rate
    gpu = found["full_flops"] / (0.6e12 * gpu_tflops)
    print(
        f"{part:<10} {found['seconds']:8.1f} s (+ {found['read']:.1f} s reading)   "
        f"peak memory {found['peak'] / 1e6:6.0f} MB = {found['peak'] / found['file']:.2f} x the feature file(s)   "
        f"{rate / 1e9:5.0f} GFLOP/s = {rate / found['gemm']:4.0%} of {found['gemm'] / 1e9:.0f}",
        flush=True,
    )
    if part == "kmeans":
        print(
            f"{'':<10} start {found['initial_seconds']:.1f} s, {found['iterations']} iterations ({found['ended_by']}), "
            f"{found['computed_frac']:.0%} of the distances computed: as fast as the plain algorithm at "
            f"{found['plain_flops'] / found['flop_seconds'] / 1e9:.0f} GFLOP/s; "
            f"a level of full size at most {full / 60 / found['computed_frac']:.0f} min if the bounds never helped",
            flush=True,
        )
    print(
        f"{'':<10} a level of full size: {full / 60:.0f} min at this rate; on a GPU of {gpu_tflops:g} float32 TFLOP/s "
        f"about {gpu:.1f} s (estimated)",
        flush=True,
    )


def compare(n: int, d: int, k: int, iterations: int) -> None:
    """Time scikit-learn and this toolkit at equal work, in turn."""
    import warnings

    from sklearn.cluster import KMeans
    from sklearn.neighbors import KNeighborsClassifier

    warnings.simplefilter("ignore")
    train = clouds(n, d, k, 0)
    train.x.div_(train.x.norm(dim=1, keepdim=True))
    test = clouds(1000, d, k, 1)
    test.x.div_(test.x.norm(dim=1, keepdim=True))
    init = train.x[torch.randperm(n, generator=torch.Generator().manual_seed(0))[:k]].clone()
    for limit in (iterations, 300):
        start = time.perf_counter()
        ours = lloyd.fit(
            FeatureRows(train, CPU, centered=True),
            k,
            seed=0,
            centers=init,
            max_iterations=limit,
            tolerance=1e-4,
        )
        middle = time.perf_counter()
        theirs = KMeans(k, init=init.numpy(), n_init=1, max_iter=limit, tol=1e-4).fit(train.x.numpy())
        end = time.perf_counter()
        print(
            f"k-means, {n} x {d}, k = {k}, at most {limit} iterations: {middle - start:.1f} s ({ours.iterations} "
            f"iterations), scikit-learn {end - middle:.1f} s ({theirs.n_iter_}), ratio "
            f"{(end - middle) / (middle - start):.2f}; inertia {ours.inertia:.6g} and {theirs.inertia_:.6g}",
            flush=True,
        )
    start = time.perf_counter()
    found = knn.find(FeatureRows(train, CPU), FeatureRows(test, CPU), 20)
    ours_classes = knn.vote(found, train.y, [20], temperature=None)[20][:, 0]
    middle = time.perf_counter()
    classifier = KNeighborsClassifier(20, metric="cosine", algorithm="brute").fit(
        train.x.numpy(), train.y.numpy()
    )
    theirs_classes = classifier.predict(test.x.numpy())
    end = time.perf_counter()
    same = float((ours_classes.numpy() == theirs_classes).mean())
    print(
        f"kNN, k = 20, {len(test)} test rows against {n} x {d}: {middle - start:.1f} s, scikit-learn "
        f"{end - middle:.1f} s, ratio {(end - middle) / (middle - start):.2f}; {same:.2%} of the predictions equal",
        flush=True,
    )


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--test_rows", type=int, default=5_000)
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--iterations", type=int, default=300, help="most iterations of k-means")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--compare", action="store_true", help="time scikit-learn, too")
    parser.add_argument("--compare_rows", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--gpu_tflops", type=float, default=19.5, help="float32 without TF32; 19.5: A100")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.child:
        part, folder = args.child
        print(json.dumps(run_part(part, Path(folder), args.classes, args.iterations)))
        return
    load = Path("/proc/loadavg").read_text().split()[0]
    print(f"{args.threads} threads, load average {load} at the start", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        if args.parts:
            feature_files.save(clouds(args.rows, args.dim, args.classes, 0), Path(folder) / "train.pth")
            feature_files.save(clouds(args.test_rows, args.dim, args.classes, 1), Path(folder) / "test.pth")
            gc.collect()
        for part in args.parts:
            done = subprocess.run(
                [sys.executable, __file__, "--child", part, folder, "--classes", str(args.classes),
                 "--iterations", str(args.iterations), "--threads", str(args.threads)],
                stdout=subprocess.PIPE, text=True, check=True,
            )  # fmt: skip
            show(part, json.loads(done.stdout.splitlines()[-1]), args.gpu_tflops)
    if args.compare:
        compare(args.compare_rows, args.dim, args.classes, 5)


if __name__ == "__main__":
    main()
