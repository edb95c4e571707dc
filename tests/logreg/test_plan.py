"""The plan before training: sizes, memory, duration."""

from __future__ import annotations

import dataclasses
import re
import time

import pytest
import tiny
import torch
from classifier_runs import QUICK, clusters, command, feature_set, run_once

from cog.commands import logreg
from cog.errors import CogError
from cog.features import storage
from cog.features.feature_files import FeatureSet
from cog.logreg import estimate as plan
from cog.logreg import protocol
from cog.logreg.engine import Engine
from cog.logreg.preprocess import prepare
from cog.logreg.settings import RowCounts, Settings
from cog.runtime import machine_checks
from cog.runtime.state_file import StateFile

CPU = torch.device("cpu")


def prepared(train=None, precision="fp32"):
    engine = Engine(CPU, precision)
    return prepare(train or feature_set(), feature_set(seed=1), engine), engine


# ------------------------------------------------------------------------------------------------------------
# Work


@pytest.mark.parametrize("changes", [{}, {"n_shot": 1}, {"n_shot": 7}, {"n_shot": 1000}, {"val_frac": 0.45}])
def test_rows_are_those_of_the_protocol(changes):
    uneven = feature_set()
    keep = torch.cat([torch.arange(120)[uneven.y == c][: 20 - 3 * c] for c in range(6)])  # 20, 17, ... 5
    train = FeatureSet(uneven.x[keep], uneven.y[keep], "uneven")
    settings = dataclasses.replace(QUICK, n_trials=1, n_epochs=1, **changes)
    outcome = run_once(train, feature_set(seed=1), settings, Engine(CPU))
    assert plan.rows_of(torch.bincount(train.y).tolist(), settings, 120) == outcome.rows


def test_a_class_of_one_image_is_never_held_out():
    assert plan.rows_of([1, 10], QUICK, 7) == RowCounts(9, 2, 11, 7)
    fixed = dataclasses.replace(QUICK, n_trials=0, lr=1.0, wd=0.0)
    assert plan.rows_of([10, 10], fixed, 7) == RowCounts(0, 0, 20, 7)


def test_operations_at_full_scale():
    """1.1 M x 2048, 1000 classes: 22.6 PFLOP as counted by hand, of which 1 % is scoring."""
    settings = Settings(seed=0)
    rows = plan.rows_of([1100] * 1000, settings, 50_000)
    assert rows == RowCounts(880_000, 220_000, 1_100_000, 50_000)
    operations = plan.estimate_flops(rows, settings, dim=2048, n_classes=1000)
    products = 4 * 2048 * 1000
    by_hand = 30 * 100 * 880_000 * products + 100 * 1_100_000 * products
    by_hand += (30 * 220_000 + 100 * 50_000) * products / 2
    assert operations == by_hand
    assert operations == pytest.approx(22.6e15, rel=0.01)


@pytest.mark.slow
def test_described_in_three_lines(monkeypatch):
    monkeypatch.setattr(plan, "_MOMENT", 0)
    data, engine = prepared()
    study = [dataclasses.replace(QUICK, seed=seed, n_shot=n) for seed in (1, 2) for n in (0, 2)]
    lines = plan.describe(data, study, engine)
    assert len(lines) == 3
    assert "4 runs of 4 trials and a final training, 8 epochs, 6 classes" in lines[0]
    assert "in memory as float32 (7.68 kB)" in lines[1]
    assert re.search(r"about \S+ on cpu with 1 threads \(fp32, [\d.e+]+ GFLOP/s measured\)", lines[2])
    data, engine = prepared(precision="bf16")
    assert "as bfloat16 and the rest" in plan.describe(data, study, engine)[1]
    assert "of matrix products, 3 at a time" in plan.describe(data, study, engine, at_once=3)[0]
    fixed = dataclasses.replace(QUICK, n_trials=0, lr=1.0, wd=0.0)
    assert "1 run of one training" in plan.describe(data, [fixed], engine)[0]


def test_work_of_a_moment_is_not_measured(monkeypatch):
    data, engine = prepared()
    monkeypatch.setattr(plan, "Speed", None)
    assert plan.describe(data, [QUICK], engine)[2] == "plan: seconds on cpu with 1 threads (fp32)"


def test_measuring_changes_no_result(monkeypatch):
    monkeypatch.setattr(plan, "_MOMENT", 0)
    data, engine = prepared(precision="bf16")
    before = protocol.run_protocol(data, QUICK, engine)
    state = torch.random.get_rng_state()
    plan.describe(data, [QUICK], engine)
    assert torch.equal(torch.random.get_rng_state(), state)
    after = protocol.run_protocol(data, QUICK, engine)
    assert torch.equal(before.classifier.weight, after.classifier.weight)
    assert before.classifier.logs == after.classifier.logs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "d", "n_classes", "n_shot"),
    [(408, 1280, 17, 0), (408, 1280, 17, 2), (6000, 128, 50, 0), (6000, 2048, 50, 0)],
)
def test_estimate_is_near(monkeypatch, n, d, n_classes, n_shot):
    """Processor time, as the tests' machine has other things to do; about a factor of 1.3 when it is quiet."""
    monkeypatch.setattr(plan, "_clock", time.process_time)
    engine = Engine(CPU)
    data = prepare(*(FeatureSet(*clusters(m, d, n_classes), "random") for m in (n, 272)), engine)
    settings = Settings(seed=1, n_trials=12, n_epochs=20, n_shot=n_shot)
    rows = plan.rows_of(torch.bincount(data.y).tolist(), settings, data.test.n)
    speed = plan.Speed(data, settings, engine, max(rows.search_train, rows.final_train))
    estimate = speed.run(rows, settings)
    start = time.process_time()
    protocol.run_protocol(data, settings, engine)
    assert 1 / 4 < estimate / (time.process_time() - start) < 4


@pytest.mark.parametrize(("largest", "form", "n_steps"), [(40, "span", 1), (41, "dense", 3)])
def test_the_form_that_will_run_is_measured(monkeypatch, largest, form, n_steps):
    """Batches of 16 rows of 80 features: few enough for their span, but not what they are batches of."""
    engine = Engine(CPU)
    data = prepare(*(FeatureSet(*clusters(60, 80, 3), "random") for _ in range(2)), engine)
    fit, measured = engine.fit, []

    def recorded(data, spec, settings):
        (trained,) = fit(data, spec, settings)
        measured.append(trained.arithmetic["form"])
        return [trained]

    clock = iter(range(1000))
    monkeypatch.setattr(engine, "fit", recorded)
    monkeypatch.setattr(plan, "_clock", lambda: next(clock))  # one second for all steps of an epoch
    speed = plan.Speed(data, Settings(seed=1, batch_size=16), engine, largest)
    assert set(measured) == {form}
    assert speed.full_step == pytest.approx(1 / n_steps)


def test_command_plans_and_maps_with_the_same_result(feature_folders, tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", logger="cog")
    logreg.main(command(feature_folders, tmp_path / "read"))
    assert len(re.findall(r"plan: ", caplog.text)) == 3
    assert "stay in their file" not in caplog.text
    monkeypatch.setattr(storage, "available_memory", lambda: 1500)
    logreg.main(command(feature_folders, tmp_path / "mapped"))
    assert "stay in their file (memory-mapped" in caplog.text
    finals = [
        {k: v for k, v in tiny.snapshot(tmp_path / name).items() if k.endswith(("logs.pkl", "model.pth"))}
        for name in ("read", "mapped")
    ]
    assert finals[0] == finals[1]
    assert len(finals[0]) == 2


def test_nothing_is_written_when_features_do_not_fit(feature_folders, tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "available_memory", lambda: 1000)
    with pytest.raises(CogError, match="memory"):
        logreg.main(command(feature_folders, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_disk_estimate_covers_saved_states_of_trials_in_lockstep(tmp_path, monkeypatch):
    x, y = clusters(6000, 256, 100)
    folders = [tiny.write_features(tmp_path / "features" / split, x, y) for split in ("train", "test")]
    argv = command(folders, tmp_path / "out", "CLF.N_TRIALS", "10", "CLF.N_EPOCHS", "3")
    needed, most = [], 0
    monkeypatch.setattr(machine_checks, "check_disk", lambda report, needs: needed.extend(needs))
    assert logreg.main([*argv, "--check"]) == 0

    save = StateFile.save

    def measured(file, state):
        nonlocal most
        before = file.path.stat().st_size if file.path.exists() else 0
        save(file, state)
        most = max(most, before + file.path.stat().st_size)

    monkeypatch.setattr(StateFile, "due", lambda file: True)
    monkeypatch.setattr(StateFile, "save", measured)
    assert logreg.main(argv) == 0
    written = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file())
    estimate = sum(n_bytes for _, n_bytes in needed)
    assert most > 10 * 2 * 4 * 100 * 257  # weights and momentum of ten classifiers
    assert most + written < estimate < 2 * (most + written)


def test_the_start_of_a_gpu_is_not_measured(monkeypatch):
    """The first call loads kernels and libraries, for longer than a measurement."""
    now = [0.0]

    def work(repeats):
        now[0] += 0.010 + 0.0006 * repeats + (0.4 if now[0] == 0.0 else 0.0)

    monkeypatch.setattr(plan, "_clock", lambda: now[0])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    each, setup = plan._time(work, torch.device("cuda", 0))
    assert (each, setup) == (pytest.approx(0.0006), pytest.approx(0.010))
