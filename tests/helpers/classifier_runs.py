"""Short classifier runs for tests, and their oracle: ``torch.optim.SGD``."""

from __future__ import annotations

import dataclasses
import json
import pickle

import torch

from cog.features.feature_files import FeatureSet
from cog.logreg.engine import Engine, learning_rate
from cog.logreg.mlp import initial_layers
from cog.logreg.settings import Settings
from cog.logreg.unfinished import Unfinished
from cog.runtime.seeds import torch_seed

# ------------------------------------------------------------------------------------------------------------
# The command

FLAGS = ["CLF.N_TRIALS", "3", "CLF.N_EPOCHS", "4", "--device", "cpu", "--print_freq", "0"]
LOG_KEYS = {"train/loss", "train/top1", "train/top5", "test/loss", "test/top1", "test/top5", "lr"}


def command(feature_folders, output, *extra):
    train, test = feature_folders
    places = [
        "--train_features_dir",
        str(train),
        "--test_features_dir",
        str(test),
        "--output_dir",
        str(output),
    ]
    return [*places, *FLAGS, *extra]


def logs_of(folder):
    (final,) = folder.glob("final-lr-*_wd-*")
    return pickle.loads((final / "logs.pkl").read_bytes())  # plain pickle, as other tools read it


def contents(root):
    """Return the contents of all files by name: results.json without times, program.log not at all."""
    values = {}
    for path in sorted(p for p in root.rglob("*") if p.is_file() and p.name != "program.log"):
        data: object = path.read_bytes()
        if path.name == "results.json":
            data = json.loads(path.read_bytes())
            data.pop("seconds"), data.pop("finished")
            for trial in data["trials"]:
                trial.pop("seconds")
        values[str(path.relative_to(root))] = data
    return values


def complete(root):
    return sorted(str(path.parent.relative_to(root)) for path in root.rglob("results.json"))


# ------------------------------------------------------------------------------------------------------------
# The engine


def feature_set(n=1200, dim=32, n_classes=8, seed=0, spread=2.0, name="tiny_net_birds_train"):
    """l2-normalized clusters; those of all seeds have the same centers."""
    centers = torch.randn(n_classes, dim, generator=torch.Generator().manual_seed(99))
    y = torch.arange(n) % n_classes
    x = centers[y] + spread * torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))
    return FeatureSet(torch.nn.functional.normalize(x), y, name)


TRAIN, TEST = feature_set(), feature_set(400, seed=1, name="tiny_net_birds_test")


@dataclasses.dataclass(eq=False)
class Spec:
    """Rows ``(S, n)``, and pairs of learning rate and weight decay ``(S, K)``; the seeds are 0 to S - 1."""

    rows: torch.Tensor
    pairs: list[list[tuple[float, float]]]
    record: bool = False

    @property
    def stage(self):
        return "final" if self.record else "search"

    def seeds(self, purpose):
        return [torch_seed(seed, purpose, stage=self.stage) for seed in range(len(self.pairs))]


def spec_of(n_seeds, n_trials, *, n=1000, wd=1e-4, record=False):
    """S x K trainings on rows that each seed draws."""
    rows = [
        torch.randperm(len(TRAIN), generator=torch.Generator().manual_seed(s))[:n] for s in range(n_seeds)
    ]
    pairs = [[(0.5 + k + 0.1 * s, k * wd) for k in range(n_trials)] for s in range(n_seeds)]
    return Spec(torch.stack(rows), pairs, record)


def sgd(spec, settings, s, k):
    """Train ``nn.Linear`` by ``torch.optim.SGD`` as classifier k of seed s; return its start and its end."""
    ((start, bias),) = initial_layers([TRAIN.x.shape[1], int(TRAIN.y.max()) + 1], spec.seeds("init")[s])
    linear = torch.nn.Linear(*reversed(start.shape))
    with torch.no_grad():
        linear.weight.copy_(start), linear.bias.copy_(bias)
    lr, wd = spec.pairs[s][k]
    optimizer = torch.optim.SGD(linear.parameters(), lr=lr, momentum=settings.momentum, weight_decay=wd)
    generator = torch.Generator().manual_seed(spec.seeds("order")[s])
    for epoch in range(settings.n_epochs):
        optimizer.param_groups[0]["lr"] = learning_rate(lr, epoch, settings.n_epochs)
        order = torch.randperm(spec.rows.shape[1], generator=generator)
        for rows in spec.rows[s][order].split(settings.batch_size):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(linear(TRAIN.x[rows]), TRAIN.y[rows]).backward()
            optimizer.step()
    return start, linear.weight.detach(), linear.bias.detach()


def error(trained, spec, settings, s, k):
    """Return the distance of a trained weight from the oracle's, relative to the way from the start."""
    start, weight, bias = sgd(spec, settings, s, k)
    found = trained.classifier(s, k).layers[0]
    assert torch.allclose(found[1].cpu(), bias, atol=2e-2)
    return float((found[0].cpu() - weight).norm() / (weight - start).norm())


def fit(spec, settings, *, precision="fp32", device="cpu", fused=None, place=None, **options):
    """Train; return engine, data and the trained classifiers. ``place``: of the features, None: as the engine says."""
    engine = Engine(torch.device(device), precision, fused=fused)
    data = engine.prepare(TRAIN, TEST, settings, n_seeds=len(spec.pairs), place=place)
    runs = [dataclasses.replace(settings, seed=seed) for seed in range(len(spec.pairs))]
    return engine, data, engine.fit(data, runs, spec.rows, spec.pairs, stage=spec.stage, **options)


def parameters(trained):
    """Return the bits of all weights and biases."""
    return [
        values.cpu().clone().view(torch.int32)
        for s, of_seed in enumerate(trained.diverged)
        for k in range(len(of_seed))
        for layer in trained.learner.layers(s, k)
        for values in layer
    ]


def same(one, other):
    return all(map(torch.equal, one, other))


QUICK = Settings(seed=0, n_epochs=4, batch_size=128)


class Killed(BaseException):
    """An imitation of SIGKILL: no exception handler between its origin and the test catches it."""


class Killing(Unfinished):
    """Saves after every epoch, and the end of the process after the given number of them."""

    interval, most_share = 0.0, 1e9

    def __init__(self, folder, kill_after=None):
        folder.mkdir(exist_ok=True)
        super().__init__(folder, {"seeds": [0]})
        self.left = kill_after

    def offer(self, key, state):
        super().offer(key, state)
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                raise Killed
