"""The classifier engine against the loop of the original toolkit, side by side.

    python tests/benchmarks/bench_logreg.py [--cases 512x100 2048x1000 few1 ...] [--precisions fp32 bf16] [--repeats 3]
    python tests/benchmarks/bench_logreg.py --whole 512x100     # the whole protocol of both, nothing extrapolated

The baseline is tests/benchmarks/plain_logreg.py. Both do the protocol: 30 trials of 100 epochs on 80 % of the rows, one
final training on all of them, scored on a test set after every epoch. Without ``--whole`` each part is timed over a
few epochs (baseline and engine take turns) and scaled to the protocol's numbers; the search's own time (30 suggestions
of the sampler) is measured in full and added to both sides.

Columns: seconds of the whole protocol for each side (medians), the ratio (median over the turns), the same for the
search alone (in few-shot runs most of the rest is the test curve of the final training), the fraction of the machine's
matrix-product rate that the engine's training steps reach (rate measured in the same run, in the same precision, on the
shape that is fastest), peak memory above that of the imports relative to the size of the feature files (in processes
of their own).
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE)]

import plain_logreg

from cog.features import feature_files
from cog.features.feature_files import FeatureSet
from cog.logreg import protocol, search
from cog.logreg.engine import Engine
from cog.logreg.preprocess import prepare
from cog.logreg.settings import Settings
from cog.logreg.sgd import TrainedClassifier, TrainSpec
from cog.runtime import random_streams

TRIALS, EPOCHS, BATCH, SEED = 30, 100, 1024, 22

#: name: (training rows, test rows, d, classes, shots)
CASES = {
    "512x100": (20_000, 5_000, 512, 100, 0),
    "2048x200": (20_000, 5_000, 2048, 200, 0),
    "2048x1000": (20_000, 5_000, 2048, 1000, 0),
    **{f"few{n}": (250_000, 50_000, 2048, 1000, n) for n in (1, 2, 4, 8, 16, 32, 64, 128)},
}


def status(field: str) -> int:
    """Return an entry of ``/proc/self/status`` in bytes."""
    found = re.search(rf"^{field}:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def feature_sets(case: str) -> tuple[FeatureSet, FeatureSet]:
    """Clustered, l2-normalized random features, about as hard to separate as real ones."""
    n, m, d, n_classes, _ = CASES[case]
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(n_classes, d, generator=generator)
    sets = []
    for size in (n, m):
        y = torch.arange(size) % n_classes
        x = torch.randn(size, d, generator=generator)
        for rows in torch.arange(size).split(8192):
            x[rows] += 4.5 / d**0.5 * centres[y[rows]]
            x[rows] /= x[rows].norm(dim=1, keepdim=True)
        sets.append(FeatureSet(x, y, case))
    return sets[0], sets[1]


def timed(function) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def gemm_rate(precision: str) -> float:
    """Best matrix-product rate of this machine over a few shapes, in FLOP/s."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    best = 0.0
    for d, c in ((512, 500), (512, 1000), (2048, 250), (2048, 1000)):
        x, w = torch.randn(BATCH, d).to(dtype), torch.randn(c, d).to(dtype)
        out = torch.empty(BATCH, c, dtype=dtype)
        seconds = min(timed(lambda x=x, w=w, out=out: torch.mm(x, w.T, out=out)) for _ in range(15))
        best = max(best, 2 * BATCH * d * c / seconds)
    return best


def sampler_seconds() -> float:
    """Time of the sampler for 30 sequential suggestions."""
    suggestions = search.Search(Settings(seed=SEED, n_trials=TRIALS))
    start = time.perf_counter()
    while pairs := suggestions.ask():
        suggestions.tell([search.Result(50.0 + lr % 1, False, 0.0) for lr, _ in pairs])
    return time.perf_counter() - start


class Parts:
    """The parts of the protocol that are timed, for one case."""

    def __init__(self, case: str, precisions: list[str]) -> None:
        n, _, self.dim, self.n_classes, n_shot = CASES[case]
        train, test = feature_sets(case)
        rows, val = feature_files.split_train_val(
            train.y, val_frac=0.2, rng=random_streams.numpy_rng(SEED, "split")
        )
        everything = torch.arange(n)
        if n_shot:
            rng = random_streams.numpy_rng(SEED, "draw", stage="search", n_shot=n_shot)
            rows = feature_files.draw_few_shot(train.y, rows, n_shot=n_shot, rng=rng)[0]
            rng = random_streams.numpy_rng(SEED, "draw", stage="final", n_shot=n_shot)
            everything = feature_files.draw_few_shot(train.y, everything, n_shot=n_shot, rng=rng)[0]
        self.rows, self.val, self.everything = rows, val, everything
        self.plain_data = {
            "search": ((train.x[rows], train.y[rows]), (train.x[val], train.y[val])),
            "final": ((train.x[everything], train.y[everything]), (test.x, test.y)),
        }
        self.engines = {}
        for precision in precisions:
            engine = Engine(torch.device("cpu"), precision)
            sets = (FeatureSet(one.x.clone(), one.y, case) for one in (train, test))
            self.engines[precision] = engine, prepare(*sets, engine)

    def plain_model(self) -> torch.nn.Linear:
        """A classifier as ``nn.Linear`` draws it."""
        return torch.nn.Linear(self.dim, self.n_classes)

    def plain(self, stage: str, epochs: int) -> None:
        data = self.plain_data[stage]
        plain_logreg.fit(self.plain_model(), *data, lr=10.0, wd=1e-6, n_epochs=epochs)

    def ours(self, precision: str, what: str, epochs: int) -> None:
        engine, data = self.engines[precision]
        settings = Settings(seed=SEED, n_epochs=epochs, batch_size=BATCH)
        if what == "final":
            engine.fit(data, TrainSpec(self.everything, [(10.0, 1e-6)], 1, 2, record=True), settings)
            return
        count = {"together": 10, "alone": 1}[what.split()[1]]
        pairs = [(lr, 1e-6) for lr in torch.logspace(-1, 2, 10).tolist()[-count:]]
        width = engine.trials_per_batch(
            len(self.rows), settings, dim=data.features.dim, n_classes=self.n_classes
        )
        for part in (pairs[start : start + width] for start in range(0, count, width)):
            if what.startswith("train"):
                engine.fit(data, TrainSpec(self.rows, part, 1, 2), settings)
            else:
                start = torch.zeros(self.n_classes, data.features.dim), torch.zeros(self.n_classes)
                engine.validate(data, self.val, [TrainedClassifier([start]) for _ in part])


def scaled(case: str, precisions: list[str], repeats: int) -> None:
    """Time the parts in turn and print the scaled totals."""
    n, _, d, c, _ = CASES[case]
    parts = Parts(case, precisions)
    steps = -(-len(parts.rows) // BATCH)
    epochs = max(2, min(10, 320 // steps)) if d * c < 500_000 else max(1, 16 // steps)
    plain_epochs = 1 if len(parts.val) > 20_000 else epochs
    sampler = sampler_seconds()
    plain: list[tuple[float, float]] = []  # search, final
    ours: dict[str, list[dict[str, float]]] = {precision: [] for precision in precisions}
    parts.plain("search", 1)  # warms up
    for _ in range(repeats):  # both sides take turns, so that what else the machine does meets both
        search, final = (
            timed(lambda s=stage: parts.plain(s, plain_epochs)) / plain_epochs
            for stage in ("search", "final")
        )
        plain.append((EPOCHS * TRIALS * search + sampler, EPOCHS * final))
        for precision in precisions:
            together, rest, final = (
                EPOCHS * timed(lambda w=what, p=precision: parts.ours(p, w, epochs)) / epochs
                for what in ("train together", "train alone", "final")
            )
            first, others = (
                timed(lambda w=what, p=precision: parts.ours(p, w, 1))
                for what in ("score together", "score alone")
            )
            n_later = TRIALS - 10
            training, scoring = together + n_later * rest, first + n_later * others
            ours[precision].append(
                {
                    "training": training,
                    "validation": scoring,
                    "final": final,
                    "search": training + scoring + sampler,
                    "all": training + scoring + sampler + final,
                }
            )
    for precision in precisions:
        turns = list(zip(plain, ours[precision], strict=True))
        ratio = statistics.median(sum(p) / o["all"] for p, o in turns)
        search_ratio = statistics.median(p[0] / o["search"] for p, o in turns)
        middle = {key: statistics.median(o[key] for o in ours[precision]) for key in ours[precision][0]}
        rate = RATES[precision]
        reached = TRIALS * EPOCHS * 4 * len(parts.rows) * d * c / middle["training"] / rate
        reached_text = (
            f"{reached:4.0%} of {rate / 1e9:.0f} GFLOP/s"
            if 2 * len(parts.rows) > d
            else "in the span of the rows"
        )
        print(
            f"{case:<10} {n:>7} x {d} x {c}  {precision}  plain {statistics.median(map(sum, plain)):9.1f} s   "
            f"ours {middle['all']:8.1f} s   ratio {ratio:5.2f} (search {search_ratio:.2f})   {reached_text}   "
            f"(training {middle['training']:.1f} s, validation {middle['validation']:.1f} s, "
            f"final {middle['final']:.1f} s, sampler {sampler:.1f} s)",
            flush=True,
        )


def whole(case: str, precisions: list[str]) -> None:
    """Run the whole protocol of both sides and print times and accuracies."""
    parts = Parts(case, precisions)
    start = time.perf_counter()
    suggestions = search.Search(Settings(seed=SEED, n_trials=TRIALS))
    while pairs := suggestions.ask():
        results = []
        for lr, wd in pairs:
            logs = plain_logreg.fit(parts.plain_model(), *parts.plain_data["search"], lr=lr, wd=wd)
            results.append(search.Result(logs["test/top1"][-1], False, 0.0))
        suggestions.tell(results)
    best = suggestions.best
    logs = plain_logreg.fit(parts.plain_model(), *parts.plain_data["final"], lr=best.lr, wd=best.wd)
    plain = time.perf_counter() - start
    print(
        f"{case}: plain {plain:.1f} s, validation {best.val_top1:.2f}, test {logs['test/top1'][-1]:.2f}",
        flush=True,
    )
    for precision, (engine, data) in parts.engines.items():
        start = time.perf_counter()
        result = protocol.run_protocol(data, Settings(seed=SEED, n_shot=CASES[case][4]), engine)
        seconds = time.perf_counter() - start
        print(
            f"{case}: {precision} {seconds:.1f} s, validation {result.search.best.val_top1:.2f}, test "
            f"{result.classifier.logs['test/top1'][-1]:.2f}, ratio {plain / seconds:.2f}",
            flush=True,
        )


def memory(case: str, side: str) -> None:
    """Print peak memory of one side, relative to the feature files (runs in a process of its own)."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{split}.pth" for split in ("train", "test")]
        writer = subprocess.run(
            [sys.executable, __file__, "--write", case, *map(str, files)], check=True, capture_output=True
        )
        assert writer.returncode == 0
        size = sum(file.stat().st_size for file in files)
        search.Search(Settings(seed=0))  # imports Optuna
        torch.mm(torch.randn(64, 64), torch.randn(64, 64))
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before = status("VmHWM")
        if side == "plain":
            sets = []
            for file in files:
                loaded = torch.load(file, weights_only=True)
                sets.append((torch.nn.functional.normalize(loaded["X"], p=2, dim=1), loaded["Y"]))
                del loaded
            rows, val = feature_files.split_train_val(
                sets[0][1], val_frac=0.2, rng=random_streams.numpy_rng(SEED, "split")
            )
            part, held_out = tuple((sets[0][0][r], sets[0][1][r]) for r in (rows, val))
            plain_logreg.fit(torch.nn.Linear(*CASES[case][2:4]), part, held_out, lr=1.0, wd=0.0, n_epochs=1)
        else:
            engine = Engine(torch.device("cpu"), side)
            train, test = (feature_files.load(file, normalize=True) for file in files)
            data = prepare(train, test, engine)
            settings = Settings(seed=SEED, n_trials=11, n_epochs=1, n_shot=CASES[case][4])
            protocol.run_protocol(data, settings, engine)
        peak = status("VmHWM") - before
        print(json.dumps({"peak": peak, "files": size}))


def print_memory(case: str, precisions: list[str]) -> None:
    for side in ("plain", *precisions):
        done = subprocess.run(
            [sys.executable, __file__, "--memory", case, side], check=True, capture_output=True, text=True
        )
        found = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{case:<10} {side:<6} peak memory {found['peak'] / 1e6:7.0f} MB above the imports = "
            f"{found['peak'] / found['files']:.2f} x the feature files ({found['files'] / 1e6:.0f} MB)",
            flush=True,
        )


RATES: dict[str, float] = {}


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cases",
        nargs="+",
        choices=list(CASES),
        default=["512x100", "2048x200", "2048x1000", "few1", "few8"],
    )
    parser.add_argument("--precisions", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--whole", choices=list(CASES), help="run the whole protocol of both sides on one case"
    )
    parser.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--write", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--no_memory", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.write:
        for data, file in zip(feature_sets(args.write[0]), args.write[1:], strict=True):
            feature_files.save(data, file)
        return
    if args.memory:
        memory(*args.memory)
        return
    print(f"torch {torch.__version__}, {args.threads} threads, {torch.backends.cpu.get_cpu_capability()}")
    if args.whole:
        whole(args.whole, args.precisions)
        return
    RATES.update({precision: gemm_rate(precision) for precision in args.precisions})
    for case in args.cases:
        scaled(case, args.precisions, args.repeats)
        if not args.no_memory and not case.startswith("few"):
            print_memory(case, args.precisions)


if __name__ == "__main__":
    main()
