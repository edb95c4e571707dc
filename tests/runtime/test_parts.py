"""Signals that wait for the end of a unit, files that are whole or absent, memory, device, ranks, seeds."""

import os
import signal

import pytest
import torch

from cog.errors import CogError
from cog.runtime import device, files, memory, seeds, signals
from cog.runtime.memory import Rank, this_rank
from cog.runtime.signals import Interrupted, check, deferred, requested


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_work_goes_on_until_it_asks(number):
    before = [signal.getsignal(each) for each in signals.SIGNALS]
    done = []
    with pytest.raises(Interrupted, match=f"ended by {number.name}: 1 of 2.*continues") as caught, deferred():
        check("nothing")
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)  # the first one decides
        done.append("the rest of the unit")
        assert requested() == number.name
        check("1 of 2 units")
    assert done and caught.value.exit_code == 75 and requested() is None
    assert [signal.getsignal(each) for each in signals.SIGNALS] == before


def test_a_file_is_the_old_one_or_the_new_one(tmp_path):
    path = tmp_path / "a.json"
    files.write_json(path, {"caf\u00e9\udcff": 1})
    with pytest.raises(ZeroDivisionError), files.atomic_write(path) as handle:
        handle.write(b"half")
        raise ZeroDivisionError
    assert files.read_object(path) == {"caf\u00e9\udcff": 1} and os.listdir(tmp_path) == ["a.json"]
    for where in (tmp_path / "absent/a", tmp_path / "a.json/b", tmp_path):
        with pytest.raises(CogError, match="cannot write"):
            files.write_text(where, "")
    with pytest.raises(CogError, match="disk full"), files.atomic_write(path) as handle:
        raise RuntimeError("PytorchStreamWriter failed writing file data/0")


@pytest.mark.parametrize(("most", "expected"), [("max", 4000 * 1024), (3_000_000, 2_600_000), (100_000, 0)])
def test_memory_is_that_of_the_machine_and_of_its_control_group(tmp_path, most, expected):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 99 kB\nMemAvailable:    4000 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/job/step\n")
    for group, limit, used in (("job/step", "max", 1), ("job", most, 500_000)):
        folder = tmp_path / "control" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text("anon 7\ninactive_file 100000\n")
    assert memory.available_memory(tmp_path / "proc", tmp_path / "control") == expected


def test_a_device_is_accepted_when_a_product_on_it_ran(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(device.glob, "glob", lambda pattern: [])
    assert device.resolve_device(None) == device.resolve_device("cpu") == torch.device("cpu")
    for name in ("gpu", "cuda:99", "cuda:x", "meta", "cuda:256", f"cuda:{10**20}"):
        with pytest.raises(CogError, match=r"--device.*(is not a device|cannot be used)"):
            device.resolve_device(name)
    monkeypatch.setattr(device.glob, "glob", lambda pattern: ["/dev/null"])
    if not torch.cuda.device_count():
        with pytest.raises(CogError, match="give --device cpu, or export"):
            device.resolve_device(None)


@pytest.mark.parametrize("newer", [(), (0,), (1, 2), (3, 4)])
def test_float32_is_exact_after_either_interface_and_is_put_back(newer):
    backends = torch.backends
    places = backends, backends.cudnn, backends.mkldnn.conv, backends.cuda.matmul, backends.cudnn.conv
    start = [each.fp32_precision for each in places]
    torch.set_float32_matmul_precision("highest" if newer else "high")
    for number in newer:
        places[number].fp32_precision = "tf32"
    before = [each.fp32_precision for each in places]
    try:
        with device.exact_float32():
            assert not {"tf32", "bf16"} & {each.fp32_precision for each in places}
        with device.exact_float32(tf32=True):
            assert backends.cuda.matmul.fp32_precision == "tf32" and backends.cudnn.deterministic
        assert [each.fp32_precision for each in places] == before
    finally:
        torch.set_float32_matmul_precision("highest")
        for each, value in zip(places, start, strict=True):
            each.fp32_precision = value


SRUN = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_NODES": "3"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, Rank()),
        ({**SRUN, "SLURM_STEP_ID": "0"}, Rank(3, 8, 1, 3)),
        (SRUN, Rank()),  # a batch script
        ({**SRUN, **TORCHRUN, "SLURM_STEP_ID": "0"}, Rank(1, 4, 1, 2)),
    ],
)
def test_rank_is_that_of_torchrun_or_of_a_job_step(monkeypatch, variables, expected):
    for name in (*SRUN, *TORCHRUN, "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert this_rank() == expected


def test_random_streams_are_independent_and_those_of_earlier_versions():
    assert seeds.torch_seed(22, "split") == 8472135465790890115
    places = [(purpose, phase, n) for purpose in seeds.PURPOSES for phase in seeds.PHASES for n in (0, 8)]
    assert len({seeds.torch_seed(22, p, phase=phase, n_shot=n) for p, phase, n in places}) == len(places)
