"""Studies on one machine: order, failures, GPUs, signals; and the same results as the sequential drivers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from marks import first_quick
from waiting import wait_for

from cog.study import local
from cog.study.tasks import Commands, StudyTask

QUICK = [
    "--device", "cpu", "FT_EXTRACT.IMAGE_RESIZE_SIZE", "16", "FT_EXTRACT.IMAGE_CROP_SIZE", "16",
    "FT_EXTRACT.N_WORKERS", "0", "CLF.N_TRIALS", "1", "CLF.N_EPOCHS", "2",
]  # fmt: skip


class Script(Commands):
    """Tasks that are shell commands: the model of a task is the name of one in ``scripts``."""

    scripts: dict[str, str] = {}  # noqa: RUF012

    def of_task(self, task: StudyTask) -> list[str]:
        return ["bash", "-c", self.scripts[f"{task.stage} {task.model}"]]


def runner(tmp_path: Path, scripts: dict[str, str], n_processes: int = 2, gpus=()) -> local.Runner:
    commands = Script((), ())
    commands.scripts.clear()
    commands.scripts.update(scripts)
    tasks = {}
    for number, name in enumerate(scripts, 1):
        stage, model = name.split()
        tasks[number] = StudyTask(stage, "in1k", model)
    return local.Runner(tasks, commands, tmp_path, n_processes=n_processes, gpus=gpus)


def test_classifiers_begin_when_their_features_have_ended_however(tmp_path, caplog):
    caplog.set_level("INFO", logger="cog")
    run = runner(tmp_path, {
        "extract a_net": "echo cannot do it; exit 3",
        "extract b_net": f"sleep 0.3; touch {tmp_path}/features",
        "logreg a_net": f"touch {tmp_path}/began; exit 2",
        "logreg b_net": f"test -e {tmp_path}/features",
    })  # fmt: skip
    assert run.run() == 3
    assert run.codes == {1: 3, 2: 0, 3: 2, 4: 0}
    assert (tmp_path / "began").exists()
    assert f"extract in1k a_net: exit code 3: cannot do it ({tmp_path}/1.log)" in caplog.text


def test_running_tasks_are_reported(tmp_path, caplog, monkeypatch):
    caplog.set_level("INFO", logger="cog")
    monkeypatch.setattr(local, "_REPORT_SECONDS", 0.0)
    run = runner(
        tmp_path, {"extract a_net": "echo 5 of 9 images, 3s left; sleep 0.3", "logreg a_net": "sleep 0.3"}
    )
    assert run.run() == 0
    assert "extract in1k a_net, 0s: 5 of 9 images, 3s left" in caplog.text
    assert "0 of 2 tasks have ended" in caplog.text and "1 of 2 tasks have ended" in caplog.text


@pytest.mark.slow
def test_as_many_at_a_time_each_with_its_gpu(tmp_path):
    script = "echo $EPOCHREALTIME; sleep 0.4; echo $EPOCHREALTIME; echo gpu=$CUDA_VISIBLE_DEVICES"
    run = runner(tmp_path, {f"extract net_{n}": script for n in range(6)}, n_processes=3, gpus=["0", "2"])
    assert run.run() == 0
    spans = []
    for number in range(1, 7):
        lines = (tmp_path / f"{number}.log").read_text().splitlines()[-3:]
        spans.append((float(lines[0]), float(lines[1]), lines[2]))
    most = 0
    for begin, _, _ in spans:
        same_time = [gpu for other, end, gpu in spans if other <= begin < end]
        most = max(most, len(same_time))
        assert same_time.count("gpu=2") <= 1  # three slots share two GPUs in turn: 0, 2, 0
    assert most == 3
    assert {gpu for _, _, gpu in spans} == {"gpu=0", "gpu=2"}


def test_processors_are_shared(monkeypatch):
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    cpus = len(os.sched_getaffinity(0))
    assert local.place(0, 1, [])["OMP_NUM_THREADS"] == str(cpus)
    assert local.place(1, 10 * cpus, [])["OMP_NUM_THREADS"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in local.place(0, 1, [])
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert local.place(0, 1, [])["OMP_NUM_THREADS"] == "3"


def test_gpus_that_are_visible(tmp_path, monkeypatch):
    for visible, names in (("3, 5", ["3", "5"]), ("", [])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert local.find_gpus() == names
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nprintf 'GPU %d: NVIDIA A100 (UUID: GPU-a)\\n' 0 1\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert local.find_gpus() == ["0", "1"]
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert local.find_gpus() == []


SAVES = "trap 'echo saved; exit 75' TERM; trap 'echo at once; exit 130' INT; echo ready; while true; do sleep 0.1; done"


@pytest.mark.parametrize(("sent", "code"), first_quick(1, [
    ([signal.SIGHUP], 75), ([signal.SIGTERM], 75), ([signal.SIGUSR1], 75), ([signal.SIGINT], 130),
]))  # fmt: skip
def test_signals_let_tasks_save(tmp_path, sent, code):
    """Nothing more is started, nothing is left running."""
    driver = driver_of(tmp_path)
    try:
        wait_for(lambda: all(text(tmp_path / f"{n}.log").endswith("ready\n") for n in (1, 2)))
        for number in sent:
            driver.send_signal(number)
        assert driver.wait(timeout=20) == code
    finally:
        driver.kill()
    assert all(text(tmp_path / f"{n}.log").endswith("saved\n") for n in (1, 2))
    assert not (tmp_path / "3.log").exists()


def test_tasks_of_a_killed_study_save_and_end(tmp_path):
    driver = driver_of(tmp_path)
    wait_for(lambda: all(text(tmp_path / f"{n}.log").endswith("ready\n") for n in (1, 2)))
    driver.kill()
    wait_for(lambda: all(text(tmp_path / f"{n}.log").endswith("saved\n") for n in (1, 2)))


def driver_of(folder: Path) -> subprocess.Popen:
    """Start a process that runs three tasks, two at a time."""
    code = f"""
import sys
from pathlib import Path
from cog.study import local
from cog.study.tasks import Commands, StudyTask
class Script(Commands):
    def of_task(self, task):
        return ["bash", "-c", {SAVES!r}]
tasks = {{n: StudyTask("extract", "in1k", f"net_{{n}}") for n in (1, 2, 3)}}
sys.exit(local.Runner(tasks, Script((), ()), Path({str(folder)!r}), n_processes=2, gpus=[]).run())
"""
    return subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])


def text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


# ---- study.sh --------------------------------------------------------------------------------------------------------


@pytest.fixture
def bash(repository, python):
    def start(script: str, *arguments: str) -> subprocess.Popen:
        return subprocess.Popen(
            ["bash", str(repository / "bash-scripts" / script), *arguments],
            env={**os.environ, "COG_PYTHON": python, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    return start


def finish(process: subprocess.Popen, timeout: float = 300) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def variables(workshop, tmp_path: Path) -> list[str]:
    return [
        f"models_root_dir={workshop.models}", f"log_dir={tmp_path / 'the logs'}", "model_names=tiny_*",
        f"model_loader={workshop.loader}:load_my_model", f"in1k_images_root={workshop.in1k}",
        f"imagenet_images_root={workshop.in21k}", f"cog_levels_mapping_file={workshop.levels_file}",
        f"cog_concepts_split_file={workshop.split_file}", "datasets=in1k cog_l1", "seeds=1", "shots=0 1",
        "n_processes=2", *QUICK,
    ]  # fmt: skip


def test_help_and_missing_variables(bash, monkeypatch):
    monkeypatch.delenv("models_root_dir", raising=False)
    code, out, _ = finish(bash("study.sh", "--help"))
    assert code == 0 and "Variables: model_names datasets" in out
    code, _, err = finish(bash("study.sh", "modle_names=x"))
    assert code == 2 and "unknown variable modle_names" in err
    code, _, err = finish(bash("study.sh"))
    assert code == 2 and "--models_root_dir" in err
    code, _, err = finish(bash("slurm/submit_study.sh", "models_root_dir=x"))
    assert code == 2 and "models_root_dir" in err


@pytest.mark.slow
def test_study_that_fails_once_equals_the_sequential_drivers(bash, workshop, tmp_path, repository, python):
    broken = workshop.in1k / "val" / "n01440764" / "n01440764_0.JPEG"
    image = broken.read_bytes()
    broken.write_bytes(b"broken")
    given = variables(workshop, tmp_path)
    code, out, err = finish(bash("study.sh", *given))
    assert code == 3, err
    assert "2 of 4 tasks failed" in err
    assert "2 of 4 classifier runs are missing from these tables" in out
    broken.write_bytes(image)
    code, out, err = finish(bash("study.sh", *given))
    assert code == 0, err
    assert "features: 3 done, 1 failed; to do now: 1 task\n" in err
    assert "classifier runs: 2 done, 2 missing; to do now: 1 task\n" in err
    code, again, err = finish(bash("study.sh", *given))
    assert code == 0 and again == out and err.count("; nothing to do now\n") == 2

    other = tmp_path / "other"
    (other / "tiny/net").mkdir(parents=True)
    (other / "tiny/net/model.ckpt").write_bytes(workshop.checkpoint.read_bytes())
    model = [f"models_root_dir={other}", "model_name=tiny_net"]
    extraction = [word for word in given if re.match("(in1k|imagenet|cog|model_loader|datasets)", word)]
    assert finish(bash("extract_features.sh", *model, *extraction, *QUICK))[0] == 0
    assert finish(bash("logreg.sh", *model, "dataset=in1k cog_l1", "seeds=1", *QUICK))[0] == 0
    assert finish(bash("fewshot.sh", *model, "dataset=in1k cog_l1", "seeds=1", "shots=1", *QUICK))[0] == 0
    table = subprocess.run(
        [python, str(repository / "print_results.py"), "--models_root_dir", str(other), "--model", "tiny_net",
         "--dataset", "in1k", "cog_l1", "--n_shot", "0", "1", "--seeds", "1"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert out == table


@pytest.mark.slow
def test_interrupted_study_continues(bash, workshop, tmp_path):
    """A network that takes its time is interrupted by SIGTERM; the same command finishes what it had begun."""
    workshop.loader.write_text(
        workshop.loader.read_text().replace(
            "    def forward(self, x):\n", "    def forward(self, x):\n        import time; time.sleep(1)\n"
        )
    )
    given = [*variables(workshop, tmp_path), "datasets=in1k", "n_processes=1"]
    process = bash("study.sh", *given)
    log = tmp_path / "the logs/1.log"
    wait_for(lambda: "on in1k" in text(log))
    time.sleep(1.5)
    process.send_signal(signal.SIGTERM)
    code, _, err = finish(process)
    assert code == 75, err
    assert "ended by SIGTERM: 0 of 2 tasks are done; the same command continues" in err
    assert not list(workshop.models.rglob("results.json"))
    code, out, err = finish(bash("study.sh", *given))
    assert code == 0, err
    assert "tiny_net" in out
    assert "interrupted" in err  # what the announcement says of the features
