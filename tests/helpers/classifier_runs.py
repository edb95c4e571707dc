"""Short classifier runs for tests, started by the command or by the protocol function."""

from __future__ import annotations

import dataclasses
import json
import pickle

import torch

from cog.commands import logreg
from cog.features.feature_files import FeatureSet
from cog.logreg import protocol
from cog.logreg.checkpoint import CHECKPOINT_FILE, Work
from cog.logreg.engine import Engine
from cog.logreg.preprocess import prepare
from cog.logreg.search import Result, Search
from cog.logreg.settings import Settings
from cog.runtime.resume_dir import ResumeFolder
from cog.runtime.state_file import StateFile

# ------------------------------------------------------------------------------------------------------------
# The command

FLAGS = ["CLF.N_TRIALS", "3", "CLF.N_EPOCHS", "4", "--device", "cpu", "--print_freq", "0"]
LOG_KEYS = {"train/loss", "train/top1", "train/top5", "test/loss", "test/top1", "test/top5", "lr"}


def command(feature_folders, output, *extra):
    train, test = feature_folders
    return [
        "--train_features_dir", str(train), "--test_features_dir", str(test), "--output_dir", str(output),
        *FLAGS, *extra,
    ]  # fmt: skip


def logs_of(folder):
    (final,) = folder.glob("final-lr-*_wd-*")
    return pickle.loads((final / "logs.pkl").read_bytes())  # plain pickle, as other tools read it


SEEDS, SHOTS = (22, 37), (0, 2, 4)
FOLDERS = {f"out{f'_N{n}' if n else ''}/seed-{seed}" for n in SHOTS for seed in SEEDS}


def study_command(feature_folders, root, *extra, seeds=SEEDS, shots=SHOTS):
    return [
        *command(feature_folders, root / "out", *extra),
        *(["--seeds", *map(str, seeds)] if seeds else []),
        *(["--n_shots", *map(str, shots)] if shots else []),
    ]


def single_calls(feature_folders, root, *extra):
    for n_shot in SHOTS:
        for seed in SEEDS:
            out = root / (f"out_N{n_shot}" if n_shot else "out") / f"seed-{seed}"
            pairs = ["EVAL.SEED", str(seed), "CLF.N_SHOT", str(n_shot)]
            logreg.main(command(feature_folders, out, *extra, *pairs))


def contents(root):
    """Return the contents of all files by name: without times where a file has them, else as bytes."""
    values = {}
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        name = str(path.relative_to(root))
        data: object = path.read_bytes()
        if path.name == "program.log":
            continue
        if path.name == "results.json":
            data = json.loads(path.read_bytes())
            assert set(data.pop("seconds")) == {"search", "final"}
            assert data.pop("started")
            assert data.pop("finished")
            for trial in data["trials"]:
                assert trial.pop("seconds") >= 0
        values[name] = data
    return values


def assert_same_files(ones, others):
    assert set(ones) == set(others)
    for name, value in ones.items():
        assert value == others[name], name


def complete(root):
    return sorted(str(path.parent.relative_to(root)) for path in root.rglob("results.json"))


# ------------------------------------------------------------------------------------------------------------
# The protocol

QUICK = Settings(seed=22, n_trials=4, n_epochs=8, batch_size=64)


def clusters(n, d, n_classes, seed=0, spread=1.5):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % n_classes
    x = torch.randn(n_classes, d, generator=generator)[y] + spread * torch.randn(n, d, generator=generator)
    return torch.nn.functional.normalize(x), y


def feature_set(n=120, d=16, n_classes=6, seed=0):
    x, y = clusters(n, d, n_classes, seed=seed, spread=0.8)
    return FeatureSet(x, y, "tiny")


class Spy(Engine):
    """An engine that records the requested trainings."""

    def __init__(self, precision="fp32"):
        super().__init__(torch.device("cpu"), precision)
        self.specs, self.fits, self.tested = [], [], []

    def fit(self, data, spec, settings, **options):
        fits = super().fit(data, spec, settings, **options)
        self.specs += [dataclasses.replace(spec, pairs=[pair]) for pair in spec.pairs]
        self.fits += fits
        self.labels = data.labels
        self.tested += [spec.record] * len(fits)
        return fits


def run_once(train, test, settings, engine, work=None):
    """Prepare the data and run the protocol."""
    return protocol.run_protocol(prepare(train, test, engine), settings, engine, work)


def run_spied(settings, train=None, test=None, precision="fp32"):
    engine = Spy(precision)
    return run_once(train or feature_set(), test or feature_set(seed=1), settings, engine), engine


def search(objective, *, n_trials, seed=1, lr_interval=(0.1, 100.0), wd_interval=(1e-12, 1e-4)):
    """Run a search on a function instead of training; return the search and the sizes of its rounds."""
    settings = Settings(seed=seed, n_trials=n_trials, lr_interval=lr_interval, wd_interval=wd_interval)
    finished, rounds = Search(settings), []
    while pairs := finished.ask():
        rounds.append(len(pairs))
        outcomes = [objective(lr, wd) for lr, wd in pairs]  # accuracy, and whether it diverged
        finished.tell([Result(top1, diverged, 0.0) for top1, diverged in outcomes])
    return finished, rounds


class Killed(BaseException):
    """An imitation of SIGKILL: no exception handler between its origin and the test catches it."""


class KillingFile(StateFile):
    """A state file that is saved after every epoch and raises :class:`Killed` after a given number of saves.

    The saves of all instances are counted together.
    """

    n_saves, kill_after = 0, None

    @classmethod
    def reset(cls, kill_after=None):
        cls.n_saves, cls.kill_after = 0, kill_after

    def due(self):
        return True

    def save(self, state):
        super().save(state)
        KillingFile.n_saves += 1
        if self.n_saves == self.kill_after:
            raise Killed


def begun(folder):
    """Return the folder of unfinished work of a run in a folder; both are created."""
    folder.mkdir(exist_ok=True)
    resume = ResumeFolder(folder)
    resume.create()
    return resume


def killing_work(folder):
    """Return the work in progress of a run in a folder, saved to a :class:`KillingFile`."""
    resume = begun(folder)
    work = Work(resume)
    work._file = KillingFile(resume.path / CHECKPOINT_FILE, create=resume.create)
    return work


def cloud(n, dim, *, seed=0, offset=0.5):
    """Return anisotropic points around a center off the origin, float32 ``(n, dim)``."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(dim, dim, generator=torch.Generator().manual_seed(99)) / dim**0.5
    scales = torch.logspace(0, -1.5, dim)
    return (torch.randn(n, dim, generator=generator) * scales) @ mixing + offset
