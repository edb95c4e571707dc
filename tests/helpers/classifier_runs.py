"""Short classifier runs for tests, and their oracle: the loop of the original toolkit."""

import dataclasses
import pickle

import numpy as np
import plain_logreg
import pytest
import torch

from cog.features.feature_files import FeatureSet
from cog.logreg.engine import Engine
from cog.logreg.mlp import initial_layers
from cog.logreg.search import Unfinished
from cog.logreg.settings import Settings
from cog.runtime.seeds import torch_seed

# --- The command

FLAGS = ["CLF.N_TRIALS", "3", "CLF.N_EPOCHS", "4", "--device", "cpu", "--print_freq", "0"]
LOG_KEYS = {"lr", *(f"{part}/{name}" for part in ("train", "test") for name in ("loss", "top1", "top5"))}


def command(feature_folders, output, *extra):
    train, test = feature_folders
    places = f"--train_features_dir {train} --test_features_dir {test} --output_dir {output}"
    return [*places.split(), *FLAGS, *extra]


def logs_of(folder):
    (final,) = folder.glob("final-lr-*_wd-*")
    return pickle.loads((final / "logs.pkl").read_bytes())  # plain pickle, as other tools read it


def complete(root):
    return sorted(str(path.parent.relative_to(root)) for path in root.rglob("results.json"))


# --- The engine


def feature_set(n=1200, dim=32, n_classes=8, seed=0, spread=2.0, name="tiny_net_birds_train"):
    """l2-normalized clusters; those of all seeds have the same centers."""
    centers = torch.randn(n_classes, dim, generator=torch.Generator().manual_seed(99))
    y = torch.arange(n) % n_classes
    x = centers[y] + spread * torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))
    return FeatureSet(torch.nn.functional.normalize(x), y, name)


TRAIN, TEST = feature_set(), feature_set(400, seed=1, name="tiny_net_birds_test")
QUICK = Settings(seed=0, n_epochs=4, batch_size=128)


@dataclasses.dataclass(eq=False)
class Spec:
    """Rows ``(S, n)``, and pairs of learning rate and weight decay ``(S, K)``; the seeds are 0 to S - 1."""

    rows: torch.Tensor
    pairs: list[list[tuple[float, float]]]
    record: bool = False


def spec_of(n_seeds, n_trials, *, n=1000, record=False):
    """S x K trainings on rows that each seed draws."""
    rows = [torch.from_numpy(np.random.default_rng(s).permutation(len(TRAIN))[:n]) for s in range(n_seeds)]
    pairs = [[(0.5 + k + 0.1 * s, k * 1e-4) for k in range(n_trials)] for s in range(n_seeds)]
    return Spec(torch.stack(rows), pairs, record)


def plain(spec, settings, s=0, k=0):
    """Train classifier k of seed s by the original toolkit's loop; return initial layers, model and logs."""
    sizes = settings.layer_sizes(TRAIN.x.shape[1], len(TRAIN.y.unique()))
    phase = "final" if spec.record else "search"
    layers = initial_layers(sizes, torch_seed(s, "init", phase=phase))
    model = plain_logreg.network(sizes, torch.nn.ReLU if settings.classifier == "mlp" else torch.nn.Identity)
    with torch.no_grad():
        for parameter, values in zip(model.parameters(), sum(layers, ()), strict=True):
            parameter.copy_(values)
    orders = torch.Generator().manual_seed(torch_seed(s, "order", phase=phase, n_shot=settings.n_shot))
    lr, wd = spec.pairs[s][k]
    how = {"n_epochs": settings.n_epochs, "batch_size": settings.batch_size, "momentum": settings.momentum}
    how["next_order"] = lambda n: torch.randperm(n, generator=orders)
    sets = (TRAIN.x[spec.rows[s]], TRAIN.y[spec.rows[s]]), (TEST.x, TEST.y)
    return layers, model, plain_logreg.fit(model, *sets, lr=lr, wd=wd, **how)


def error(trained, spec, settings, s, k):
    """Return the distance of a trained weight from the oracle's, relative to the way from the start."""
    ((start, _),), model, _ = plain(spec, settings, s, k)
    (weight, bias), (found, found_bias) = model[0].state_dict().values(), trained.learner.layers(s, k)[0]
    assert torch.allclose(found_bias.cpu(), bias, atol=2e-2)
    return float((found.cpu() - weight).norm() / (weight - start).norm())


def fit(spec, settings, *, precision="fp32", device="cpu", place=None, **options):
    """Train; return data and the trained classifiers. ``place``: a Lockstep instead of the engine's."""
    engine = Engine(torch.device(device), precision)
    if place is not None:
        engine.lockstep = lambda *args, **sizes: place
    data = engine.prepare(TRAIN, TEST, settings, n_seeds=len(spec.pairs))
    runs = [dataclasses.replace(settings, seed=seed) for seed in range(len(spec.pairs))]
    val_rows = None if spec.record else spec.rows[:, :90]
    return data, engine.fit(data, runs, spec.rows, spec.pairs, **{"val_rows": val_rows} | options)


def parameters(trained):
    """Return the bits of all weights and biases."""
    places = [(s, k) for s, of_seed in enumerate(trained.diverged) for k in range(len(of_seed))]
    layers = [layer for place in places for layer in trained.learner.layers(*place)]
    return torch.cat([values.cpu().flatten().view(torch.int32) for layer in layers for values in layer])


class Killed(BaseException):
    """An imitation of SIGKILL: no exception handler between its origin and the test catches it."""


class Killing(Unfinished):
    """Saves after every epoch, and the end of the process after the given number of them."""

    interval = 0.0

    def __init__(self, folder, kill_after=-1):
        folder.mkdir(exist_ok=True)
        super().__init__(folder, {"seeds": [0]})
        self.left = kill_after

    def offer(self, key, state):
        super().offer(key, state)
        self.left -= 1
        if self.left == 0:
            raise Killed


def assert_continues(folder, spec, settings, **options):
    """Kill trainings after each epoch: they continue with the same bits, and others do not continue them."""
    other = dataclasses.replace(spec, pairs=[[(lr, 0.1) for lr, _ in pairs] for pairs in spec.pairs])
    whole, another = (fit(one, settings, **options)[1] for one in (spec, other))
    for kill_after in range(1, settings.n_epochs):
        path = folder / str(kill_after)
        with pytest.raises(Killed):
            fit(spec, settings, unfinished=Killing(path, kill_after), **options)
        resumed = fit(spec, settings, unfinished=Killing(path), **options)[1]
        assert torch.equal(parameters(resumed), parameters(whole)) and resumed.logs == whole.logs
    begun = fit(other, settings, unfinished=Killing(path), **options)[1]
    assert torch.equal(parameters(begun), parameters(another))
