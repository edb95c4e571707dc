"""Do readings of the protocol move accuracies? Test top-1 of the same runs under two or three of them, paired by seed.

    python tests/benchmarks/bench_readings.py precision --features DIR     CLF.PRECISION bf16 and tf32 against fp32
    python tests/benchmarks/bench_readings.py pca --features DIR           CLF.PCA_NORM before against after

``DIR`` is what extract_features.py fills, see ``bench_search.py``: the classes of all data sets below it are put into
one. Without it: synthetic features.

``precision`` trains by :class:`cog.logreg.learners.LinearLearner` (many rows: the dense path). Where a processor has
no instructions for bfloat16, products of bfloat16 operands are computed in float32 and rounded to bfloat16: the same
numbers up to the order of sums, ten times as fast as PyTorch's emulation. ``tf32`` is always emulated: operands are
rounded to 10 bits of mantissa, as NVIDIA GPUs do; it says nothing about speed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

import torch
from bench_search import pooled, print_differences, synthetic

from cog.features.feature_files import FeatureSet, check_and_normalize_
from cog.logreg.engine import Engine
from cog.logreg.learners import LinearLearner
from cog.logreg.matrix import Data
from cog.logreg.precision import cpu_has_bfloat16
from cog.logreg.preprocess import prepare
from cog.logreg.protocol import run_protocol
from cog.logreg.settings import Settings

CPU = torch.device("cpu")

MM, ADDMM = torch.mm, torch.addmm


def _mm_bf16(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    return out.copy_(MM(a.float(), b.float())) if a.dtype == torch.bfloat16 else MM(a, b, out=out)


def _to_tf32(x: torch.Tensor) -> torch.Tensor:
    """Round to 10 bits of mantissa, to nearest, ties away from zero (PTX ``cvt.rna.tf32.f32``)."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def _mm_tf32(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    return MM(_to_tf32(a), _to_tf32(b), out=out)


def _addmm_tf32(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    return ADDMM(bias, _to_tf32(a), _to_tf32(b), out=out)


@contextlib.contextmanager
def _emulated(precision: str) -> Iterator[None]:
    """Replace the products of the training steps, and no others (validation and test stay float32)."""
    replaced: dict[str, Callable] = {}
    if precision == "tf32":
        replaced = {"mm": _mm_tf32, "addmm": _addmm_tf32}
    elif precision == "bf16" and not cpu_has_bfloat16():
        replaced = {"mm": _mm_bf16}
    with contextlib.ExitStack() as stack:
        for name in ("_forward", "_backward") if replaced else ():
            original = getattr(LinearLearner, name)

            def make(self, *args, original=original):
                part = original(self, *args)

                def emulated() -> None:
                    with mock.patch.multiple(torch, **replaced):
                        part()

                return emulated

            stack.enter_context(mock.patch.object(LinearLearner, name, make))
        yield


def check_emulation() -> None:
    """Stop unless the emulated products are PyTorch's (bfloat16), or as exact as they should be (TF32)."""
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(shape, generator=generator) for shape in ((64, 200), (200, 48)))
    low_a, low_b, exact = a.bfloat16(), b.bfloat16(), a.double() @ b.double()
    emulated, real = (
        of(low_a, low_b, out=torch.empty(64, 48, dtype=torch.bfloat16)) for of in (_mm_bf16, MM)
    )
    apart = (emulated.float() - real.float()).abs() / real.float().abs().clamp_min(1)
    assert apart.max() <= 2**-7 and (apart > 0).float().mean() < 0.02, "bfloat16 is not PyTorch's"
    error = (_mm_tf32(a, b, out=torch.empty(64, 48)) - exact).abs().max()
    assert 1e-4 < error < 200 * 2**-11 * 4, f"TF32 is off by {error}"


@dataclasses.dataclass(frozen=True)
class Reading:
    """A reading of the protocol: its name, how it prepares a data set, and how it trains."""

    name: str
    prepare: Callable[[FeatureSet, FeatureSet, Engine], Data]
    precision: str = "fp32"

    def top1(self, train: FeatureSet, test: FeatureSet, settings: Settings) -> float:
        """Test accuracy of a run in percent."""
        train, test = (dataclasses.replace(part, x=part.x.clone()) for part in (train, test))
        engine = Engine(CPU, "bf16" if self.precision == "bf16" else "fp32")
        with _emulated(self.precision):
            result = run_protocol(self.prepare(train, test, engine), settings, engine)
        assert result.classifier.logs is not None
        if self.precision != "fp32":
            assert result.arithmetic["form"] == "dense", "too few rows: trained in their span, in float32"
        return result.classifier.logs["test/top1"][-1]


def _prepare(
    train: FeatureSet, test: FeatureSet, engine: Engine, *, pca_dim: int = 0, first: bool = True
) -> Data:
    for part in (train, test):
        check_and_normalize_(part.x, part.name, normalize=first)
    settings = Settings(seed=0, pca_dim=pca_dim, pca_norm="before" if first else "after")
    return prepare(train, test, engine, settings)


def readings(args: argparse.Namespace) -> list[Reading]:
    """Return the readings to compare; the first is what the others are compared with."""
    dim = args.pca_dim
    if args.what == "pca":
        return [
            Reading("after", lambda *of: _prepare(*of, pca_dim=dim, first=False)),
            Reading("before", lambda *of: _prepare(*of, pca_dim=dim, first=True)),
        ]
    how = (lambda *of: _prepare(*of, pca_dim=dim, first=False)) if dim else _prepare
    return [Reading(precision, how, precision) for precision in ("fp32", "bf16", "tf32")]


def main() -> None:
    """Print mean, deviation over seeds and paired differences."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("what", choices=("precision", "pca"))
    parser.add_argument("--features", help="folder of feature folders (default: synthetic)")
    parser.add_argument("--classes", type=int, default=100, help="of synthetic features (default: 100)")
    parser.add_argument("--per_class", type=int, default=30, help="synthetic images per class (default: 30)")
    parser.add_argument("--dim", type=int, default=64, help="dimensions of synthetic features (default: 64)")
    parser.add_argument(
        "--pca_dim", type=int, default=0, help="principal components (default: none; pca: 32)"
    )
    parser.add_argument("--seeds", type=int, default=10, help="how many (default: 10)")
    parser.add_argument("--n_trials", type=int, default=10)
    parser.add_argument("--lr", type=float, help="learning rate (weight decay 1e-8) instead of a search")
    parser.add_argument("--n_epochs", type=int, default=100)
    args = parser.parse_args()
    if args.what == "pca":
        args.pca_dim = args.pca_dim or 32
    check_emulation()
    torch.set_num_threads(1)
    train, test = (
        pooled(Path(args.features), normalize=False)
        if args.features
        else synthetic(args.per_class, args.classes, args.dim)
    )
    n_classes = len(train.y.unique())
    components = f", {args.pca_dim} components" if args.pca_dim else ""
    search = f"{args.n_trials} trials" if args.lr is None else f"learning rate {args.lr:g}"
    print(
        f"{n_classes} classes, {len(train)} training and {len(test)} test images, {train.x.shape[1]} dimensions"
        f"{components}, {search}, {args.n_epochs} epochs"
    )
    start, found = time.monotonic(), {reading.name: [] for reading in readings(args)}
    for seed in range(args.seeds):
        pair = {"n_trials": args.n_trials} if args.lr is None else {"n_trials": 0, "lr": args.lr, "wd": 1e-8}
        settings = Settings(seed=seed, n_epochs=args.n_epochs, **pair)
        for reading in readings(args):
            found[reading.name].append(reading.top1(train, test, settings))
    print_differences("reading", found)
    print(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
