"""One experiment of full scale on one GPU: 1.1 M x 2048 features, 1000 classes, 30 trials of 100 epochs, final run.

    python tests/benchmarks/bench_cuda_fullscale.py [--precision bf16] [--search sequential]
    python tests/benchmarks/bench_cuda_fullscale.py --device cpu --rows 2000 --dim 32 --classes 10 --trials 3 --epochs 2

The features are made on the device: 1000 clusters, l2-normalised. The protocol is the one of logreg.py (search with
validation, final training with the test set scored after every epoch), run through the same functions; reading and
writing files is left out.

Printed: wall time and its parts; FLOP of the training steps (4 x rows x d x classes per epoch of a trial) and of all
the scores (2 x ...) per second; the fraction of the rate of large square matrix products, measured before; GPU
utilisation as nvidia-smi samples it; the loop of the original toolkit (plain_logreg.py) on the same GPU and features,
**extrapolated** from a few hundred steps and one pass over the validation rows.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE)]

import plain_logreg  # noqa: E402

from cog import features, randomness  # noqa: E402
from cog.logreg import protocol  # noqa: E402
from cog.logreg.cuda_engine import CudaEngine, training_precision  # noqa: E402
from cog.logreg.settings import Settings  # noqa: E402

BATCH = 1024


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="bf16", choices=("fp32", "tf32", "bf16"))
    parser.add_argument("--search", default="sequential", choices=("sequential", "batched"))
    parser.add_argument("--rows", type=int, default=1_100_000)
    parser.add_argument("--test_rows", type=int, default=50_000)
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=1, help="experiments side by side")
    parser.add_argument("--baseline_steps", type=int, default=300, help="0 leaves the baseline out")
    parser.add_argument("--streamed", action="store_true", help="keep the features in host memory")
    return parser.parse_args(argv)


def make_features(
    n: int, dim: int, n_classes: int, device: torch.device, *, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return clustered, l2-normalised features float32 ``(n, dim)`` on the device and labels on the CPU."""
    centres = torch.randn(n_classes, dim, generator=torch.Generator(device).manual_seed(0), device=device)
    generator = torch.Generator(device).manual_seed(seed)
    y = torch.arange(n) % n_classes
    x = torch.empty(n, dim, device=device)
    for rows in torch.arange(n).split(65536):
        part = torch.randn(len(rows), dim, generator=generator, device=device).mul_(6.0)
        x[rows[0] : rows[-1] + 1] = torch.nn.functional.normalize(part.add_(centres[y[rows].to(device)]))
    return x, y


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def product_rate(device: torch.device, precision: str, size: int) -> float:
    """Return FLOP/s of square matrix products on random data, the best of five rounds."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    best = 0.0
    with training_precision(precision):
        for _ in range(6):  # the first warms up
            synchronize(device)
            start = time.perf_counter()
            for _ in range(10):
                torch.mm(a, b, out=out)
            synchronize(device)
            best = max(best, 10 * 2 * size**3 / (time.perf_counter() - start))
    return best


class Utilisation:
    """Samples what nvidia-smi calls utilisation, every half second; NaN without it."""

    def __init__(self, device: torch.device) -> None:
        self._process = None
        if device.type == "cuda" and shutil.which("nvidia-smi"):
            query = ["nvidia-smi", f"--id={device.index or 0}", "--query-gpu=utilization.gpu"]
            self._process = subprocess.Popen(
                [*query, "--format=csv,noheader,nounits", "-lms", "500"],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip

    def stop(self) -> float:
        """Return the mean in percent."""
        if self._process is None:
            return float("nan")
        self._process.terminate()
        output, _ = self._process.communicate()
        values = [float(line) for line in output.split() if line.strip().isdigit()]
        return statistics.fmean(values) if values else float("nan")


def baseline_seconds(
    args: argparse.Namespace, device: torch.device, x: torch.Tensor, y: torch.Tensor, sizes: dict[str, int]
) -> tuple[float, float, float]:
    """Time the original loop; returns ms per step, seconds per validation, extrapolated seconds of the protocol."""
    n = min(args.baseline_steps * BATCH, len(x) // 2)
    train = x[:n], y[:n].to(device)
    held_out = x[-sizes["search_val"] :], y[-sizes["search_val"] :].to(device)
    options = {"n_classes": args.classes, "lr": 10.0, "wd": 1e-6}

    def timed(rows: int, **more: object) -> float:
        synchronize(device)
        start = time.perf_counter()
        part = train[0][:rows], train[1][:rows]
        plain_logreg.fit(part, held_out, n_epochs=1, **options, **more)  # type: ignore[arg-type]
        synchronize(device)
        return time.perf_counter() - start

    few = min(n, 10 * BATCH)
    timed(few, test_every_epoch=False)  # warms up
    steps = timed(n, test_every_epoch=False) / max(1, -(-n // BATCH))
    validation = timed(few, test_every_epoch=True) - timed(few, test_every_epoch=False)
    per_epoch = -(-sizes["search_train"] // BATCH) * steps + max(validation, 0.0)
    final = (
        -(-sizes["final_train"] // BATCH) * steps + max(validation, 0.0) * sizes["test"] / sizes["search_val"]
    )
    return 1e3 * steps, validation, args.epochs * (args.trials * per_epoch + final)


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    device = torch.device(args.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(
        f"{name}, torch {torch.__version__}, {args.precision}, {args.search} search, {vars(args)}", flush=True
    )
    x, y = make_features(args.rows, args.dim, args.classes, device, seed=1)
    test_x, test_y = make_features(args.test_rows, args.dim, args.classes, device, seed=2)
    rate = product_rate(device, args.precision, 8192 if device.type == "cuda" else 512)

    train_rows, val_rows = features.split_train_val(y, val_frac=0.2, rng=randomness.numpy_rng(22, "split"))
    sizes = {
        "search_train": len(train_rows), "search_val": len(val_rows), "final_train": len(y), "test": len(test_y)
    }  # fmt: skip
    baseline = None
    if args.baseline_steps:
        baseline = baseline_seconds(args, device, x, y, sizes)

    engine = CudaEngine(device, args.precision, feature_memory=0 if args.streamed else None)
    synchronize(device)
    start = time.perf_counter()
    matrix = engine.load(x.cpu() if args.streamed else x)
    del x
    data = protocol.Data(matrix, y, (test_x, test_y.to(device)), list(range(args.classes)))
    synchronize(device)
    loading = time.perf_counter() - start
    study = [
        Settings(
            seed=22 + seed, n_trials=args.trials, n_epochs=args.epochs, batch_size=BATCH, search=args.search,
            precision=args.precision, label=f"seed {22 + seed}: ",
        )
        for seed in range(args.seeds)
    ]  # fmt: skip
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    utilisation = Utilisation(device)
    start = time.perf_counter()
    outcomes = [outcome for _, outcome in protocol.run_all(data, study, engine, print_freq=0)]
    synchronize(device)
    wall = time.perf_counter() - start
    percent = utilisation.stop()

    assert outcomes[0].sizes == sizes
    per_product = 2 * args.dim * args.classes
    training = 2 * per_product * args.epochs * (args.trials * sizes["search_train"] + sizes["final_train"])
    scoring = per_product * (args.trials * sizes["search_val"] + args.epochs * sizes["test"])
    flop, scores = training * args.seeds, scoring * args.seeds
    print(f"loading the features {loading:.1f} s (not in what follows; compiling kernels is)")
    for outcome in outcomes:
        top1 = outcome.fit.history.logs["test/top1"][-1]
        print(
            f"search {outcome.seconds['search']:.1f} s, final {outcome.seconds['final']:.1f} s, test top-1 {top1:.2f}"
        )
    print(f"wall time {wall:.1f} s for {args.seeds} experiment(s)")
    print(
        f"training steps {flop / 1e15:.3g} PFLOP, scores {scores / 1e15:.3g} PFLOP: "
        f"{(flop + scores) / wall / 1e12:.3g} TFLOP/s = {100 * flop / wall / rate:.1f} % (training steps alone) of the "
        f"{rate / 1e12:.3g} TFLOP/s of square products in {args.precision}, measured in this run"
    )
    print(f"GPU utilisation (nvidia-smi) {percent:.0f} %")
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
        print(f"peak memory {peak / 1e9:.1f} GB, features {matrix.nbytes / 1e9:.1f} GB")
    if baseline is not None:
        step, validation, seconds = baseline
        print(
            f"original loop in float32: {step:.3f} ms per step, {validation:.2f} s per validation, EXTRAPOLATED to "
            f"{args.seeds * seconds:.0f} s for the same work: {args.seeds * seconds / wall:.1f} times as long"
        )
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sys.exit(main())
