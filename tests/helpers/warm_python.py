"""A Python that has already imported PyTorch and other slow packages, for scripts that tests start hundreds of times.

A short command spends most of its time in ``import torch``. :func:`started` starts a server that has imported torch,
and writes a program that is used like ``python``. The program sends its command line, environment, current folder and
standard streams to the server. The server forks a process that runs the command, and the program ends with the exit
code of this process. Signals are forwarded; if the program is killed, the process is killed, too. Every process imports
the package itself again.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

_LAUNCHER = """#!{python} -IS
import json, os, signal, socket, struct, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
request = json.dumps([sys.argv, dict(os.environ), os.getcwd(), ignored]).encode()
socket.send_fds(server, [struct.pack("q", len(request))], [0, 1, 2])
server.sendall(request)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
    if not (number == signal.SIGINT and ignored):
        signal.signal(number, lambda number, frame: server.send(bytes([number])))
code = struct.unpack("i", server.recv(4))[0]
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@contextlib.contextmanager
def started(folder: Path) -> Iterator[str]:
    """Yield the path of a program that works like Python as long as the context lasts.

    Args:
        folder: folder for the program and the server's socket; its path must be short, because those of sockets must.
    """
    address, launcher = str(folder / "socket"), folder / "python"
    server = subprocess.Popen([sys.executable, __file__, address, str(launcher)], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None and server.stdout.readline() == b"ready\n"
        launcher.write_text(_LAUNCHER.format(python=sys.executable, address=address))
        launcher.chmod(0o755)
        yield str(launcher)
    finally:
        server.kill()
        server.wait()


def serve(address: str, launcher: str) -> NoReturn:
    """Fork a process for every request, in an endless loop."""
    import fontTools.subset  # noqa: F401  (matplotlib, for PDFs)
    import jinja2  # noqa: F401
    import matplotlib.backends.backend_agg
    import matplotlib.figure  # noqa: F401
    import optuna  # noqa: F401
    import sklearn.metrics  # noqa: F401
    import torch._dynamo  # noqa: F401  (optimizers import it)
    import torchvision  # noqa: F401
    import yacs.config  # noqa: F401

    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen(64)
    signal.signal(signal.SIGCHLD, _reap)
    print("ready", flush=True)
    while True:
        client, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            _watch(client, launcher)
        client.close()


def _reap(number: int, frame: object) -> None:
    """Wait for children that have ended, so that their processor time is added to that of the server."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _watch(client: socket.socket, launcher: str) -> NoReturn:
    """Run a requested command in a fork, forward signals to it, and send its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    length, streams, _, _ = socket.recv_fds(client, 8, 3)
    with client.makefile("rb") as handle:
        argv, environment, folder, ignores_interrupts = json.loads(handle.read(*struct.unpack("q", length)))
    pid = os.fork()
    if pid == 0:
        client.close()
        os.setpgid(0, 0)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        if ignores_interrupts:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        _become(argv, environment, folder, launcher)
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(client, select.POLLIN)
    poll.register(ended, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if ended in ready:
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with contextlib.suppress(OSError):
                client.sendall(struct.pack("i", code))
            os._exit(0)
        numbers = client.recv(64)
        for number in numbers:
            os.kill(pid, number)
        if not numbers:  # the program was killed
            os.killpg(pid, signal.SIGKILL)
            poll.unregister(client)


def _become(argv: list[str], environment: dict[str, str], folder: str, launcher: str) -> NoReturn:
    """Turn this process into a Python with this command line."""
    import torch

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    words = argv[1:]
    if words[:1] == ["-u"]:
        words = words[1:]
    first = words[0] if words else "-"
    if first.startswith("-") and first not in ("-m", "-c"):
        os.execv(sys.executable, [sys.executable, *argv[1:]])
    sys.executable = launcher
    sys.pycache_prefix = environment.get("PYTHONPYCACHEPREFIX")
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    places = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    top = {"-m": folder, "-c": ""}.get(first, os.path.dirname(os.path.abspath(first)))
    sys.path[:] = [top, *places, *(path for path in sys.path[1:] if path not in places)]
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))))
    os._exit(_run(first, words))


def _run(first: str, words: list[str]) -> int:
    """Run a script, a module or a line of code, and return the exit code."""
    import atexit
    import runpy
    import threading
    import traceback

    code: Any = 0
    try:
        if first == "-m":
            sys.argv[:] = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif first == "-c":
            sys.argv[:] = ["-c", *words[2:]]
            exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv[:] = words
            runpy.run_path(first, run_name="__main__")
    except SystemExit as end:
        code = end.code
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return code if isinstance(code, int) else 0 if code is None else 1


if __name__ == "__main__":
    serve(*sys.argv[1:])
