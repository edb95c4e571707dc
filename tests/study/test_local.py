"""Studies on one machine: order, failures, GPUs, memory, signals; and whole studies by study.sh."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from studies import command, outputs, small_study
from tiny import snapshot
from waiting import wait_for

from cog.study import local
from cog.study.tasks import Task


def run(tmp_path: Path, scripts: dict[str, str], n: int | None = 2) -> int:
    """Run tasks that are shell commands, by their words."""
    tasks, commands = {}, {}
    for number, (words, script) in enumerate(scripts.items(), 1):
        stage, dataset, *models = words.split()
        tasks[number] = Task(stage, dataset, tuple(models))
        (tmp_path / words).write_text(script)
        # The words of a command are --dataset D --model M...
        (tmp_path / f"{stage}.sh").write_text(f'exec bash "{tmp_path}/{stage} $2 ${{*:4}}"')
        commands[stage] = ["bash", f"{tmp_path}/{stage}.sh"]
    return local.run_here(small_study(tmp_path), tasks, commands, tmp_path, n)


def test_classifiers_begin_when_their_features_have_ended_however(tmp_path, caplog):
    caplog.set_level("INFO", logger="cog")
    scripts = {
        "extract in1k a_net": "echo cannot do it; exit 3",
        "extract in1k b_net c_net": f"sleep 0.3; touch {tmp_path}/features",
        "logreg in1k a_net": f"touch {tmp_path}/began; exit 2",
        "logreg in1k c_net": f"test -e {tmp_path}/features",
    }
    assert run(tmp_path, scripts) == 3
    assert (tmp_path / "began").exists()
    assert f"extract in1k a_net: exit code 3: cannot do it ({tmp_path}/1.log)" in caplog.text
    assert "2 of 4 tasks are done, 2 failed, 0 run" in caplog.text


COUNTS = "n=$(ls {0} | wc -l); touch {0}/$$; [ $n -lt {1} ] || touch {0}/../too_many; sleep 0.4; rm {0}/$$"


@pytest.mark.parametrize(("n", "n_bytes", "most"), [(3, 0, 3), (4, 600, 1)])
def test_as_many_at_a_time_as_slots_and_memory_allow(tmp_path, monkeypatch, caplog, n, n_bytes, most):
    monkeypatch.setattr(local.memory, "available_memory", lambda: 1000)
    monkeypatch.setattr(local, "memory_of", lambda study, task: n_bytes)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0, 2")
    (tmp_path / "now").mkdir()
    counts = COUNTS.format(tmp_path / "now", most)
    script = f"{counts}; echo gpu=$CUDA_VISIBLE_DEVICES threads=$OMP_NUM_THREADS"
    assert run(tmp_path, {f"extract in1k net_{k}": script for k in range(5)}, n) == 0
    assert not (tmp_path / "too_many").exists()
    said = {(tmp_path / f"{k}.log").read_text().splitlines()[-1] for k in range(1, 6)}
    assert said == {f"gpu={gpu} threads=5" for gpu in (["0", "2"] if most > 1 else ["0"])}
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(10))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    caplog.set_level("INFO", logger="cog")
    run(tmp_path, {}, None)
    assert "4 tasks at a time, 2 threads each" in caplog.text  # as many as pairs of model and data set


SAVES = "trap 'echo saved; exit 75' TERM; echo ready; while true; do sleep 0.1; done"


def driver_of(folder: Path) -> subprocess.Popen:
    """Start a process that runs three tasks, two at a time, and wait until they are running."""
    (folder / "saves.sh").write_text(SAVES)
    code = f"""
from pathlib import Path
from cog.runtime import cli
from cog.study import local, units
from cog.study.tasks import Task
folder, commands = Path({str(folder)!r}), {{"extract": ["bash", {str(folder / "saves.sh")!r}]}}
tasks = {{n: Task("extract", "in1k", (f"net_{{n}}",)) for n in (1, 2, 3)}}
cli.run(lambda _: local.run_here(units.Study(folder, ("net_1",)), tasks, commands, folder, 2))
"""
    driver = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    wait_for(lambda: all(text(folder / f"{n}.log").endswith("ready\n") for n in (1, 2)))
    return driver


def text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGUSR1, 75), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_tasks_save_and_end_with_the_study_however_it_ends(tmp_path, sent, code):
    driver = driver_of(tmp_path)
    try:
        driver.send_signal(sent)
        assert driver.wait(timeout=20) == code
    finally:
        driver.kill()
    wait_for(lambda: all(text(tmp_path / f"{n}.log").endswith("saved\n") for n in (1, 2)))
    assert not (tmp_path / "3.log").exists()


@pytest.fixture
def study(workshop, tmp_path, repository, python):
    """Start study.sh for a model on two data sets; returns the process."""
    given = ("model_name=tiny_*", "seeds=1", "shots=0 1", "n_processes=2")
    words = command(workshop, repository, tmp_path / "the logs", *given)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return lambda *more: subprocess.Popen(
        [*words, *more], env={**os.environ, "COG_PYTHON": python}, **streams
    )


def finish(process: subprocess.Popen, timeout: float = 300) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


@pytest.mark.slow
def test_study_fails_once_is_repaired_and_finds_a_new_checkpoint(study, workshop):
    broken = workshop.in1k / "val" / "n01440764" / "n01440764_0.JPEG"
    image = broken.read_bytes()
    broken.write_bytes(b"broken")
    code, out, err = finish(study())
    assert code == 3 and "2 tasks failed" in err
    assert "classifier runs: 2 done, 2 missing of 4 (50 %)" in out
    broken.write_bytes(image)
    code, out, err = finish(study())
    assert code == 0 and "5 of 8 outputs are done; 2 tasks to do" in err
    before = outputs(workshop)
    patterns = ("in1k/features_*/features.json", "results.json")
    records = [path for pattern in patterns for path in workshop.models.rglob(pattern)]
    assert len(records) == 6 and all(json.loads(path.read_text())["threads"] == 1 for path in records)
    code, again, err = finish(study())
    assert code == 0 and again == out and "8 of 8 outputs are done; 0 tasks to do" in err

    torch.save({"mix": torch.tensor([3.0, 2.0, 1.0])}, workshop.checkpoint)
    code, _, err = finish(study())
    assert code == 2 and "features of tiny_net on in1k train and 7 more: checkpoint_sha256: " in err
    code, _, err = finish(study("CLF.N_EPOCHS", "3", "--dry_run"))
    assert code == 2 and "n_epochs: 2 -> 3" in err and outputs(workshop) == before
    broken.write_bytes(b"broken")
    assert finish(study("--overwrite"))[0] == 3  # the old results are still there, and are not what is wanted
    broken.write_bytes(image)
    code, _, err = finish(study("--overwrite"))
    after = outputs(workshop)
    made = [name for name in before if name.endswith("X_Y.pth") and "birds" not in name]
    assert code == 0 and len(made) == 4 and all(after[name] != before[name] for name in made)
    code, _, err = finish(study("--overwrite"))
    assert code == 0 and "8 of 8 outputs are done; 0 tasks to do" in err and outputs(workshop) == after


@pytest.mark.slow
def test_an_interrupted_study_goes_on_in_two_at_once(study, workshop, tmp_path):
    """Both end with 0, or the one that ends first with 2; all outputs are those of a single study."""
    workshop.make_slow()
    first = study("n_processes=1")
    wait_for(lambda: "in1k" in text(tmp_path / "the logs/1.log"))
    first.send_signal(signal.SIGTERM)
    code, _, err = finish(first)
    assert code == 75 and "0 of 4 tasks had ended; the same command continues" in err
    codes = sorted(finish(process)[0] for process in [study(), study()])
    assert codes in ([0, 0], [0, 2])
    assert finish(study())[0] == 0 and len(outputs(workshop)) == 2 + 4 + 3 * 4


@pytest.mark.slow
def test_twelve_studies_at_once_make_every_output(study, workshop):
    processes = [study("n_processes=1", "dataset=in1k", "shots=0") for _ in range(12)]
    ended = [finish(process) for process in processes]
    assert {code for code, _, _ in ended} <= {0, 2} and 0 in {code for code, _, _ in ended}
    assert not any("Traceback" in err for _, _, err in ended)
    assert len(outputs(workshop)) == 2 + 2 + 3
    assert len({out for code, out, _ in ended if code == 0}) == 1


@pytest.mark.slow
def test_dry_run_tries_each_model_and_writes_nothing(study, workshop, tmp_path):
    before = snapshot(workshop.root)
    code, out, _ = finish(study("--dry_run"))
    lines = out.splitlines()
    assert code == 0 and lines[0] == "# 1: extract in1k tiny_net" and "--model tiny_net" in lines[1]
    assert lines[-1].startswith("# tiny_net: ") and "tried on n01440764" in lines[-1]
    assert snapshot(workshop.root) == before and not (tmp_path / "the logs").exists()
    workshop.loader.write_text("def load_my_model(init_args):\n    raise ValueError('no such layer')\n")
    code, out, _ = finish(study("--dry_run"))
    assert code == 2 and "no such layer" in out.splitlines()[-1]
