"""Signals that wait for the end of a unit, files that are whole or absent, memory, device, seeds."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time

import pytest
import torch

from cog.errors import CogError
from cog.runtime import device, files, memory, seeds, signals
from cog.runtime.signals import Interrupted, check, deferred, requested


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_work_goes_on_until_it_asks(number):
    before = [signal.getsignal(each) for each in signals.SIGNALS]
    done = []
    with (
        pytest.raises(Interrupted, match=f"ended by {number.name}: 1 of 2 units.*continues") as caught,
        deferred(),
    ):
        check("nothing")
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)  # repeated signals are one
        done.append("the rest of the unit")
        with deferred():
            assert requested() == number.name
        check("1 of 2 units")
    assert done and caught.value.exit_code == 75 and requested() is None
    assert [signal.getsignal(each) for each in signals.SIGNALS] == before


def test_threads_leave_signals_alone_and_workers_end_by_them():
    """Pools end their workers by SIGTERM; a worker that only took note of it would never be gone."""
    context, handlers, before = multiprocessing.get_context("fork"), [], signal.getsignal(signal.SIGTERM)

    def work():
        with deferred():
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [before]
    with deferred():
        worker = context.Process(target=time.sleep, args=(30,))
        worker.start()
        time.sleep(0.2)
        worker.terminate()
        worker.join(10)
        assert worker.exitcode == -signal.SIGTERM and requested() is None


def test_a_file_is_the_old_one_or_the_new_one(tmp_path):
    path = tmp_path / "a.json"
    files.write_json(path, {"caf\u00e9\udcff": 1})
    with pytest.raises(ZeroDivisionError), files.atomic_write(path) as handle:
        handle.write(b"half")
        raise ZeroDivisionError
    assert files.read_json(path) == {"caf\u00e9\udcff": 1} and os.listdir(tmp_path) == ["a.json"]
    for where in (tmp_path / "absent/a", tmp_path / "a.json/b", tmp_path):
        with pytest.raises(CogError, match="cannot write"):
            files.write_text(where, "")
    with pytest.raises(CogError, match="disk full"), files.atomic_write(path) as handle:
        raise RuntimeError("PytorchStreamWriter failed writing file data/0")
    with pytest.raises(CogError, match="expected a JSON object"):
        files.write_text(path, "[1]")
        files.read_object(path)


@pytest.mark.parametrize(("most", "expected"), [("max", 4000 * 1024), (3_000_000, 2_600_000), (100_000, 0)])
def test_memory_is_that_of_the_machine_and_of_its_control_group(tmp_path, most, expected):
    """What is used counts, what is cached does not; the limit may be that of a group above."""
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
    assert memory.available_memory(tmp_path, tmp_path) is None


def test_a_device_is_accepted_when_a_product_on_it_ran(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(device.glob, "glob", lambda pattern: [])
    assert device.resolve_device(None) == device.resolve_device("cpu") == torch.device("cpu")
    for name in ("gpu", "cuda", "meta"):
        with pytest.raises(CogError, match=r"--device.*(is not a device|cannot be used)"):
            device.resolve_device(name)
    monkeypatch.setattr(
        device.glob, "glob", lambda pattern: ["/dev/null"]
    )  # there is one, and PyTorch cannot use it
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        with pytest.raises(CogError, match="or give --device cpu"):
            device.resolve_device(None)
    with pytest.raises(CogError, match="CLF.PRECISION tf32 needs an NVIDIA GPU since Ampere"):
        device.require_precision(torch.device("cpu"), "CLF.PRECISION", "tf32")


@pytest.mark.parametrize("is_newer", [False, True])
def test_float32_is_exact_after_either_interface_and_is_put_back(is_newer):
    backends = torch.backends

    def now():
        settings = (backends.cuda.matmul, backends.mkldnn.matmul, backends.cudnn.conv)
        return [each.fp32_precision for each in settings], backends.cudnn.benchmark

    if is_newer:
        backends.fp32_precision = "tf32"
    else:
        torch.set_float32_matmul_precision("high")
    before = now()
    try:
        with device.exact_float32():
            assert not {"tf32", "bf16"} & {*now()[0]} and backends.cudnn.deterministic
            device.allow_tf32()
            assert backends.cuda.matmul.fp32_precision == "tf32"
        assert now() == before
    finally:
        backends.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")


def test_random_streams_are_independent_and_those_of_earlier_versions():
    assert seeds.torch_seed(22, "split") == 8472135465790890115
    words = {
        seeds.torch_seed(22, purpose, stage=stage, n_shot=n_shot)
        for purpose in seeds.PURPOSES
        for stage in seeds.STAGES
        for n_shot in (0, 8)
    }
    assert len(words) == len(seeds.PURPOSES) * 2 * 2
    assert seeds.numpy_rng(22, "draw").integers(1 << 30) == seeds.numpy_rng(22, "draw").integers(1 << 30)
