"""Signals that announce the end of a job wait for the end of a unit of work."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from cog.runtime import signals
from cog.runtime.signals import Interrupted, check, deferred, requested


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_work_goes_on_until_it_asks(number):
    done = []
    with pytest.raises(Interrupted) as caught, deferred():
        check("nothing")
        os.kill(os.getpid(), number)
        done.append("the rest of the unit")
        assert requested() == number.name
        check("1 of 2 units")
        done.append("the next unit")
    assert done == ["the rest of the unit"]
    assert str(caught.value) == f"ended by {number.name}: 1 of 2 units; the same command continues from here"
    assert caught.value.exit_code == 75


def test_repeated_signals_are_one():
    with deferred():
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert requested() == "SIGUSR1"
    assert requested() is None  # work that was finished all the same ends as finished


def test_handlers_come_back():
    before = [signal.getsignal(number) for number in signals.SIGNALS]
    with pytest.raises(KeyError), deferred():
        assert signal.getsignal(signal.SIGTERM) is not before[0]
        raise KeyError
    assert [signal.getsignal(number) for number in signals.SIGNALS] == before
    with deferred():
        assert requested() is None


def test_a_closed_terminal_means_nothing_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with deferred():
            os.kill(os.getpid(), signal.SIGHUP)
            assert requested() is None
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_before_an_inner_block_is_not_forgotten():
    with deferred():
        os.kill(os.getpid(), signal.SIGTERM)
        with deferred():
            assert requested() == "SIGTERM"
        with pytest.raises(Interrupted):
            check("all")


def test_threads_leave_signals_alone():
    handlers = []

    def work():
        with deferred():
            check("all")
            handlers.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [before]


def test_forked_workers_end_by_sigterm():
    """Pools end their workers that way; a worker that only took note of it would never be gone."""
    context = multiprocessing.get_context("fork")
    started = context.Event()

    def work():
        started.set()
        time.sleep(30)

    with deferred():
        worker = context.Process(target=work)
        worker.start()
        assert started.wait(10)
        worker.terminate()
        worker.join(10)
        assert worker.exitcode == -signal.SIGTERM
        assert requested() is None


def test_exit_code_of_a_script():
    code = """
import os, signal
from cog.runtime import cli, signals
def main(argv):
    with signals.deferred():
        os.kill(os.getpid(), signal.SIGTERM)
        signals.check("3 of 7")
cli.run(main)
"""
    result = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert result.returncode == 75
    assert result.stderr == "error: ended by SIGTERM: 3 of 7; the same command continues from here\n"


@pytest.mark.parametrize(
    ("number", "restarts", "calls"),
    [
        (signal.SIGUSR1, "", ["requeue 7_3"]),
        (signal.SIGTERM, "", []),  # who cancels a task does not want it back
        (signal.SIGUSR1, "100", []),
    ],
)
def test_a_task_of_an_array_queues_itself_again_before_its_limit(
    tmp_path, monkeypatch, number, restarts, calls
):
    program, log = tmp_path / "scontrol", tmp_path / "calls"
    program.write_text(f'#!/bin/sh\necho "$@" >> {log}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    for name, value in (("ARRAY_JOB_ID", "7"), ("ARRAY_TASK_ID", "3"), ("RESTART_COUNT", restarts)):
        monkeypatch.setenv(f"SLURM_{name}", value)
    with pytest.raises(Interrupted), deferred():
        os.kill(os.getpid(), number)
        check("saved")
    signals.requeue()
    assert (log.read_text().splitlines() if log.exists() else []) == calls
