"""A Python that starts at once: a server, which has imported the libraries, forks for each command.

The package itself is imported by the command, from where ``python`` would find it.
"""

import gc
import marshal
import os
import runpy
import socket
import sys
import traceback
from importlib import import_module

LIBRARIES = "torch torchvision optuna pandas sklearn scipy.stats matplotlib.figure jinja2 yacs.config"

#: A program that hands all that a process has to the server, and ends as the command does.
CLIENT = """#!{python} -IS
import marshal, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
socket.send_fds(server, [b"."], [0, 1, 2])
server.sendall(marshal.dumps((os.getcwd(), dict(os.environ), sys.argv)))
server.shutdown(socket.SHUT_WR)
sys.exit(int(server.recv(9) or 70))
"""


def accept(address: str) -> socket.socket:
    """Import the libraries, say so, and return the connection of a command in a fork for it."""
    for name in LIBRARIES.split():
        import_module(name)
    gc.freeze()  # a collection would look at, and so copy, what all forks share
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            if not os.fork():
                return connection
            connection.close()


def run(program: str, *words: str) -> None:
    """Run ``[-P] (-m MODULE | -c CODE | - | FILE) WORDS`` as Python does."""
    sys.executable, is_safe = program, words[0] == "-P"
    words = words[is_safe:]
    kind, sys.argv = words[0], [*words[words[0] == "-m" :]]
    places = [] if is_safe else [os.path.dirname(os.path.abspath(kind))]
    sys.path[:0] = [*places, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if kind == "-m":
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif kind in ("-c", "-"):
        exec(words[1] if kind == "-c" else sys.stdin.read(), {"__name__": "__main__"})
    else:
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    connection, code = accept(sys.argv[1]), 1
    try:
        for number, stream in enumerate(socket.recv_fds(connection, 1, 3)[1]):
            os.dup2(stream, number)
            os.close(stream)
        folder, environment, words = marshal.loads(connection.makefile("rb").read())
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        run(*words)
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:
        traceback.print_exc()
    finally:  # without freeing all objects, which takes most of a second
        sys.stdout.flush()
        connection.sendall(b"%d" % code)
        os._exit(0)
