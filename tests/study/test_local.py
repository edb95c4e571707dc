"""Studies on one machine: order, failures, GPUs, memory, signals; and whole studies by study.sh."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from studies import Script, pace, small_study
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
        "logreg in1k a_net": f"touch {tmp_path}/began; kill -9 $$",
        "logreg in1k c_net": f"test -e {tmp_path}/features",
    }
    assert run(tmp_path, scripts) == 3
    assert (tmp_path / "began").exists()
    assert f"extract in1k a_net: exit code 3: cannot do it ({tmp_path}/1.log)" in caplog.text
    assert "logreg in1k a_net: killed by signal 9: " in caplog.text
    assert "2 of 4 tasks are done, 2 failed, 0 run" in caplog.text


COUNTS = "n=$(ls {0} | wc -l); touch {0}/$$; [ $n -lt {1} ] || touch {0}/../too_many; sleep 0.3; rm {0}/$$"


@pytest.mark.parametrize(("n", "n_bytes", "most"), [(3, 0, 3), (4, 600, 1)])
def test_as_many_at_a_time_as_slots_and_memory_allow(tmp_path, monkeypatch, n, n_bytes, most):
    monkeypatch.setattr(local.memory, "available_memory", lambda: 1000)
    monkeypatch.setattr(local, "memory_of", lambda study, task: n_bytes)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0, 2")
    monkeypatch.setenv("SLURM_STEP_ID", "0")  # of a shell in a step of several processes
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)  # macOS lacks it
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    (tmp_path / "now").mkdir()
    count = COUNTS.format(tmp_path / "now", most)
    script = f"{count}; echo $CUDA_VISIBLE_DEVICES $OMP_NUM_THREADS$SLURM_STEP_ID $PYTHON_CPU_COUNT"
    assert run(tmp_path, {f"extract in1k net_{k}": script for k in range(4)}, n) == 0
    assert not (tmp_path / "too_many").exists()
    said = {(tmp_path / f"{k}.log").read_text().splitlines()[-1] for k in range(1, 5)}
    assert said == {f"{gpu} 5 2" for gpu in ("02" if most > 1 else "0")}


@pytest.fixture
def study(workshop, tmp_path, repository, python):
    words = ("model_name=tiny_*", "seeds=1", "shots=0 1", "n_processes=2")
    return Script(workshop, repository, tmp_path / "logs", {**os.environ, "COG_PYTHON": python}, *words)


@pytest.mark.slow
def test_study_fails_once_is_repaired_and_finds_a_new_checkpoint(study, workshop):
    broken = workshop.in1k / "val" / "n01440764" / "n01440764_0.JPEG"
    image = broken.read_bytes()
    broken.write_bytes(b"broken")
    code, out, err = study.run()
    assert code == 3 and "2 tasks failed" in err
    assert "classifier runs: 2 done, 2 missing of 4 (50 %)" in out
    broken.write_bytes(image)
    code, out, err = study.run()
    assert code == 0 and "5 of 8 outputs are done; 2 tasks to do" in err
    before = study.outputs()
    records = [json.loads(path.read_text()) for path in workshop.models.rglob("*s.json")]
    assert [record["threads"] for record in records] == [1] * 8
    code, again, err = study.run()
    assert code == 0 and again == out and "8 of 8 outputs are done; 0 tasks to do" in err

    torch.save({"mix": torch.tensor([3.0, 2.0, 1.0])}, workshop.checkpoint)
    code, _, err = study.run()
    assert code == 2 and "features of tiny_net on in1k train and 7 more: checkpoint_sha256: " in err
    assert study.outputs() == before
    broken.write_bytes(b"broken")
    assert study.run("--overwrite")[0] == 3  # the old results are still there, and are not what is wanted
    broken.write_bytes(image)
    code, _, err = study.run("--overwrite")
    after = study.outputs()
    made = [name for name in before if name.endswith("X_Y.pth") and "birds" not in name]
    assert code == 0 and len(made) == 4 and all(after[name] != before[name] for name in made)


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGUSR1, 75), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_tasks_save_and_end_with_the_study_however_it_ends(study, workshop, sent, code):
    seconds = pace(workshop)
    seconds.write_text("0.1")
    process = study.start("n_processes=1")
    wait_for(lambda: " to do, on cpu" in study.log(1))
    process.send_signal(sent)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == code
    wait_for(lambda: "ended by SIGTERM" in study.log(1))
    if code == 75:
        assert "0 of 4 tasks had ended; the same command continues" in errors
        seconds.write_text("0")
        assert study.run()[0] == 0 and len(study.outputs()) == 2 + 4 + 3 * 4


@pytest.mark.slow
def test_dry_run_tries_each_model_and_writes_nothing(study, workshop):
    other = workshop.models / "tiny/other/model.ckpt"
    other.parent.mkdir()
    torch.save({"mix": torch.ones(3)}, other)
    line = "    model = Tiny()\n"
    crash = f"{line}    if init_args['model_name'] == 'tiny_other':\n        import os; os._exit(9)\n"
    workshop.loader.write_text(workshop.loader.read_text().replace(line, crash))
    before = snapshot(workshop.root)
    code, out, err = study.run("--dry_run")
    lines = out.splitlines()
    assert lines[0] == "# 1: extract in1k tiny_net tiny_other" and "--model tiny_net tiny_other" in lines[1]
    assert lines[-2].startswith("# tiny_net: tried on n01440764")
    assert code == 2 and lines[-1] == "# tiny_other: its process has crashed"
    assert err.count("in1k test: expected 1000 classes") == 1
    assert snapshot(workshop.root) == before and not study.log_dir.exists()
