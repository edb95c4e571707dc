"""Kill packing or unpacking at each of its operations, in a process without torch, so that forks are fast.

::

    python tests/helpers/pack_kills.py pack WORK [STEP]

kills it at every STEP-th operation (default: 1).

A fork does the work and kills itself right before the k-th operation on the folder, or in the middle of a write. After
that, reading must give the same runs as before, the next call must finish, and unpacking must give the original files,
bit for bit.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]
sys.path[:0] = [str(Path(__file__).resolve().parent)]

import crash_matrix  # noqa: E402
import result_folders  # noqa: E402

from cog.results import find  # noqa: E402
from cog.study import pack  # noqa: E402


def _fork(folder: Path, call, note: Path, kill: crash_matrix.Kill | None) -> list[str]:
    """Run ``call`` in a fork that kills itself at an operation; return the operations that were begun."""
    note.write_bytes(b"")
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            crash_matrix._count_operations(folder, os.open(note, os.O_WRONLY | os.O_APPEND), kill)
            call()
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == (0 if kill is None else -signal.SIGKILL), (code, kill)
    return note.read_text().splitlines()


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _read(root: Path) -> list[dict]:
    results = find.find_all(root)
    assert results.problems == [], results.problems
    return [dataclasses.asdict(run) for runs in results.runs.values() for run in runs]


def main(direction: str, work: Path, step: int) -> int:
    """Kill at every ``step``-th operation, and return the number of all operations."""
    root, keep, note = work / "models", work / "keep", work / "note"
    folder = root / "a/net/birds"
    for seed in (22, 37):
        path = result_folders.make_seed_folder(folder / f"eval_logreg/seed-{seed}", 50.0 + seed)
        result_folders.make_record(path, seed=seed)
        for name in ("study.pkl", "config.txt", "program.log"):
            (path / name).unlink()
    before, read = _files(folder), _read(root)

    def do():
        return pack.pack(folder, "a_net", "birds") if direction == "pack" else pack.unpack(folder)

    if direction == "unpack":
        pack.pack(folder, "a_net", "birds")
    shutil.copytree(folder, keep)
    operations = _fork(folder, do, note, None)
    for number, operation in list(enumerate(operations, 1))[step // 2 :: step]:
        for where in ("before", "within") if operation.startswith("write") else ("before",):
            shutil.rmtree(folder)
            shutil.copytree(keep, folder)
            _fork(folder, do, note, crash_matrix.Kill(signal.SIGKILL, operation=number, where=where))
            at = (number, where, operation)
            assert _read(root) == read, at
            do()
            assert _read(root) == read, at
            pack.unpack(folder)
            assert _files(folder) == before, at
            assert os.listdir(folder) == ["eval_logreg"], at
    return len(operations)


if __name__ == "__main__":
    print(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1))
