"""Packing of the finished runs of a model and data set into one archive, and unpacking.

The format of the archive is that of :mod:`cog.runtime.run_archive`. If a process dies at any point, every run is still
whole in its folder, in the archive, or in both. A new archive is written beside the old one, synced to the disk, read
again, compared with the runs, and renamed in one step. Only then are the folders of the runs moved away, each in one
step and while its lock is held, and deleted. Unpacking has the same steps in the other direction. Runs are moved within
their evaluation folder, which may be a link to another file system. The next call removes the leftovers of a process
that died.
"""

from __future__ import annotations

import calendar
import contextlib
import copy
import os
import shutil
import stat
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from cog import constants, paths
from cog.errors import CogError, os_errors_explained
from cog.results import run_records
from cog.runtime import files, locks, machine_checks, run_archive
from cog.runtime.check_report import PROBLEM, Report
from cog.runtime.locks import LOCK_FILE
from cog.runtime.output_folder import DONE, read_state
from cog.runtime.run_archive import ARCHIVE_FILE, RunArchive

#: One process packs or unpacks the runs of a model and data set at a time.
_LOCK = ".runs.lock"

#: Prefixes of the folders in an evaluation folder for runs that are about to be deleted, and that are being unpacked. A
#: hidden folder would be reported there as an unfinished run.
_PACKED, _UNPACKING = f"{ARCHIVE_FILE}.packed-", f"{ARCHIVE_FILE}.unpacking-"

#: The same of earlier versions, in the folder of the data set.
_OLD_PACKED, _OLD_UNPACKING = ".packed-", ".unpacking-"

#: Suffix of the files of weights, which compression does not make smaller.
_INCOMPRESSIBLE = ".pth"

#: First and last year that a zip file can record.
_YEARS = (1980, 2107)


@dataclass
class PackResult:
    """The result of packing or unpacking the runs of a model and data set.

    Attributes:
        runs: number of runs that were packed or unpacked.
        files: number of files and folders of these runs outside of an archive.
        left_out: a line for each run that was left out, with the reason.
    """

    runs: int = 0
    files: int = 0
    left_out: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _LooseRun:
    """A finished run in its folder.

    Attributes:
        name: ``<evaluation folder>/<seed folder>``.
        path: the seed folder.
        files: status of each file, by its path below the seed folder.
        n_folders: number of folders, with the seed folder itself.
        summary: entry of the run in the index of the archive.
    """

    name: str
    path: Path
    files: Mapping[str, os.stat_result]
    n_folders: int
    summary: Mapping[str, object]


def pack(folder: Path, model: str, dataset: str, *, dry_run: bool = False) -> PackResult:
    """Move the finished runs in the folder of a model and data set into its archive.

    Args:
        folder: ``<models_root_dir>/<title>/<architecture>/<dataset>``.
        model: name of the model.
        dataset: name of the data set.
        dry_run: whether to only return the expected result, without any change.

    Raises:
        LockedError: another process packs or unpacks in this folder.
        CogError: the archive in the folder is damaged, or a file cannot be written (also with ``dry_run``).
    """
    result = PackResult()
    if not folder.is_dir():
        return result
    with _locked(folder, dry_run=dry_run):
        archive = run_archive.open_archive(folder)
        loose = _find(folder, model, dataset, archive, result)
        result.runs = len(loose)
        result.files = sum(len(run.files) + run.n_folders for run in loose)
        if dry_run or not loose:
            return result
        new = [run for run in loose if archive is None or run.name not in archive.runs]
        if new:
            _write(folder / ARCHIVE_FILE, archive, new)
            _sync(folder)
        _remove(folder, loose, result)
    return result


def unpack(folder: Path, *, dry_run: bool = False) -> PackResult:
    """Move the runs of an archive back into their folders, and remove the archive.

    Args:
        folder: ``<models_root_dir>/<title>/<architecture>/<dataset>``.
        dry_run: whether to only read the whole archive and return the expected result, without any change.

    Raises:
        LockedError: another process packs or unpacks in this folder.
        CogError: the archive is damaged or hostile, or another folder has the name of a run; no file is changed.
    """
    result = PackResult()
    if not folder.is_dir():
        return result
    with _locked(folder, dry_run=dry_run):
        archive = run_archive.open_archive(folder)
        if archive is None:
            return result
        members = _judge(archive)
        result.runs = len(members)
        result.files = sum(1 + len(names) + len({os.path.dirname(name) for name in names} - {""})
                           for names in members.values())  # fmt: skip
        missing = [run for run in members if not _is_same(archive, run, members[run], folder / run)]
        _require_writable(*sorted({(folder / run).parent for run in missing}))
        if dry_run:
            for names in members.values():
                for info in names.values():
                    archive.content(info)
            return result
        sizes = {folder / run: sum(info.file_size for info in members[run].values()) for run in missing}
        _require_space(sizes)
        with os_errors_explained(f"cannot write into {folder}"), contextlib.ExitStack() as stack:
            stages: dict[Path, Path] = {}
            for evaluation in sorted({(folder / run).parent for run in missing}):
                evaluation.mkdir(exist_ok=True)
                stage = tempfile.TemporaryDirectory(
                    dir=evaluation, prefix=_UNPACKING, ignore_cleanup_errors=True
                )
                stages[evaluation] = Path(stack.enter_context(stage))
            for run in missing:
                _extract(archive, members[run], stages[(folder / run).parent] / run)
            for run in missing:
                os.rename(stages[(folder / run).parent] / run, folder / run)
                _sync((folder / run).parent)
            _sync(folder)
            archive.path.unlink()
    return result


@contextlib.contextmanager
def _locked(folder: Path, *, dry_run: bool) -> Iterator[None]:
    """Hold the lock of the folder, and first clean up after processes that died."""
    if dry_run:
        _require_writable(folder)
        yield
        return
    with locks.locked(folder, flag="--models_root_dir", name=_LOCK, create=False):
        archive = run_archive.open_archive(folder)
        for path in sorted((*folder.glob(f"*/{_PACKED}*/*/*"), *folder.glob(f"{_OLD_PACKED}*/*/*"))):
            run = f"{path.parent.name}/{path.name}"
            if archive is None or run not in archive.runs:  # the archive was removed in the meantime
                (folder / run).parent.mkdir(exist_ok=True)
                os.rename(path, folder / run)
        for pattern in (f"*/{_PACKED}*", f"*/{_UNPACKING}*", f"{_OLD_PACKED}*", f"{_OLD_UNPACKING}*",
                        f".{ARCHIVE_FILE}.*.tmp"):  # fmt: skip
            for path in folder.glob(pattern):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        yield


def _require_writable(*folders: Path) -> None:
    """Raise an error unless all of these folders can be written to or created."""
    report = Report()
    for folder in folders:
        machine_checks.check_writable(report, folder)
    _raise_problems(report)


def _raise_problems(report: Report) -> None:
    problems = [finding.text for finding in report.findings if finding.level == PROBLEM]
    if problems:
        raise CogError("; ".join(problems))


# ------------------------------------------------------------------------------------------------------------
# Packing


def _find(
    folder: Path, model: str, dataset: str, archive: RunArchive | None, result: PackResult
) -> list[_LooseRun]:
    """Return the finished runs in folders; other runs are added to ``result.left_out``."""
    runs = []
    for evaluation in sorted(entry.name for entry in os.scandir(folder) if entry.is_dir()):
        parsed = paths.parse_evaluation_folder(evaluation)
        # A fine-tuned backbone is a checkpoint that other commands open by its path.
        if parsed is None or parsed[0].startswith("finetune"):
            continue
        for seed in sorted(entry.name for entry in os.scandir(folder / evaluation) if entry.is_dir()):
            name = f"{evaluation}/{seed}"
            if not run_archive.is_run_name(name) or not (listed := os.listdir(folder / name)):
                continue
            try:
                if not run_archive.holds_result(listed):
                    raise CogError("not finished")
                run = _look(folder / name, name, listed, model, dataset, parsed)
                _require_writable(folder / evaluation, folder / name)
                # The folder of a run in the archive remains if a process died before it removed the folder.
                if archive is not None and name in archive.runs:
                    _is_same(archive, name, _judge(archive)[name], folder / name)
                runs.append(run)
            except CogError as error:
                result.left_out.append(f"{folder / name}: {error}")
    return runs


def _look(
    path: Path, name: str, listed: Sequence[str], model: str, dataset: str, parsed: tuple[str, int]
) -> _LooseRun:
    """Return a finished run.

    Raises:
        CogError: the run is not finished, or its folder has other files, which would be lost.
    """
    state = read_state(path, listed, complete=True)
    if state.state != DONE:
        raise CogError(f"in progress: {state.holder}")
    evaluation, n_shot = parsed
    seed = paths.parse_seed_folder(path.name)
    assert seed is not None
    run = run_records.read_run(path, run_records.RunPlace(model, dataset, n_shot, seed, evaluation))
    statuses, n_folders = _statuses(path)
    return _LooseRun(name, path, statuses, n_folders, run_records.summary_of(run))


def _statuses(path: Path) -> tuple[dict[str, os.stat_result], int]:
    """Return the files of a run with their status, and the number of its folders."""
    statuses: dict[str, os.stat_result] = {}
    n_folders = 0
    for root, folders, names in os.walk(path):
        n_folders += 1
        inside = os.path.relpath(root, path)
        for name in (*folders, *names):
            if name.startswith(LOCK_FILE):
                continue
            below = name if inside == "." else f"{inside}/{name}"
            status = os.lstat(os.path.join(root, name))
            if not constants.is_plain_name(name) or not (
                stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
            ):
                raise CogError(f"it has {below}, which is no file of a finished run")
            if stat.S_ISREG(status.st_mode):
                statuses[below] = status
                if status.st_size > run_archive.LARGEST_MEMBER:
                    raise CogError(f"its {below} has {status.st_size:,} bytes")
        if not folders and not names:
            raise CogError(f"it has the empty folder {inside}")
    return statuses, n_folders


def _write(path: Path, old: RunArchive | None, new: Sequence[_LooseRun]) -> None:
    """Write an archive of the old and the new runs, read it again, and rename it to its final name."""
    runs = {**(old.runs if old is not None else {}), **{run.name: run.summary for run in new}}
    with files.atomic_write(path, "w+b") as handle:
        with zipfile.ZipFile(handle, "w") as archive:
            run_archive.write_index(archive, dict(sorted(runs.items())))
            if old is not None:
                for info in old.members.values():
                    # Writing changes the record, of which the old archive needs its own.
                    archive.writestr(copy.copy(info), old.content(info))
            for run in new:
                for name, status in run.files.items():
                    archive.writestr(_info(f"{run.name}/{name}", status), (run.path / name).read_bytes())
        handle.flush()
        os.fsync(handle.fileno())
        _compare(handle, new)


def _compare(handle: IO[bytes], new: Sequence[_LooseRun]) -> None:
    """Read a whole new archive, and compare it with the files of the new runs."""
    run_archive.verify(handle)
    with zipfile.ZipFile(handle) as archive:
        for run in new:
            for name in run.files:
                if archive.read(f"{run.name}/{name}") != (run.path / name).read_bytes():
                    raise CogError(
                        f"{run.path / name} changed while it was packed; run the same command again"
                    )


def _info(name: str, status: os.stat_result) -> zipfile.ZipInfo:
    when = time.gmtime(status.st_mtime)
    year = min(max(when.tm_year, _YEARS[0]), _YEARS[1])
    info = zipfile.ZipInfo(name, (year, *when[1:5], min(when.tm_sec, 59)))
    info.external_attr = (stat.S_IFREG | stat.S_IMODE(status.st_mode)) << 16
    info.compress_type = zipfile.ZIP_STORED if name.endswith(_INCOMPRESSIBLE) else zipfile.ZIP_DEFLATED
    return info


def _remove(folder: Path, loose: Sequence[_LooseRun], result: PackResult) -> None:
    """Delete the folders of runs that are in the archive; folders that have changed since they were read stay."""
    stages: dict[Path, Path] = {}
    for run in loose:
        evaluation = run.path.parent
        try:
            if evaluation not in stages:
                stages[evaluation] = Path(tempfile.mkdtemp(dir=evaluation, prefix=_PACKED))
            away = stages[evaluation] / run.name
            away.parent.mkdir(exist_ok=True)
            with locks.locked(run.path, flag="--models_root_dir", create=False):
                if _versions(_statuses(run.path)[0]) != _versions(run.files):
                    raise CogError("it changed while it was packed")
                os.rename(run.path, away)
        except CogError as error:
            result.left_out.append(f"{run.path}: {error}")
            result.runs -= 1
            result.files -= len(run.files) + run.n_folders
        except OSError as error:
            raise CogError(f"cannot write into {evaluation}: {error.strerror or error}") from error
    for evaluation, stage in stages.items():
        _sync(evaluation)
        shutil.rmtree(stage, ignore_errors=True)


def _versions(statuses: Mapping[str, os.stat_result]) -> dict[str, tuple[int, int, int]]:
    """Return the facts that change with a file."""
    return {name: (status.st_ino, status.st_size, status.st_mtime_ns) for name, status in statuses.items()}


# ------------------------------------------------------------------------------------------------------------
# Unpacking


def _judge(archive: RunArchive) -> dict[str, dict[str, zipfile.ZipInfo]]:
    """Return the zip records of each run by their path below its folder.

    Raises:
        CogError: a record that packing never writes: a path out of the folder, a link, or a repeated name.
    """
    members: dict[str, dict[str, zipfile.ZipInfo]] = {run: {} for run in archive.runs}
    for name, info in archive.members.items():
        parts = name.split("/")
        run, kind = "/".join(parts[:2]), stat.S_IFMT(info.external_attr >> 16)
        good = run in members and len(parts) > 2 and all(map(constants.is_plain_name, parts))
        if not good or kind not in (0, stat.S_IFREG) or info.file_size > run_archive.LARGEST_MEMBER:
            raise CogError(
                f"{archive.path} has {name[:200]!r}, which is no file of its runs; it is not unpacked"
            )
        members[run]["/".join(parts[2:])] = info
    folders = {os.path.dirname(name) for name in archive.members}
    bad = [run for run, names in members.items() if not names] + sorted(folders & archive.members.keys())
    if bad:
        raise CogError(f"{archive.path} has no files of {bad[0][:200]!r}; it is not unpacked")
    return members


def _is_same(archive: RunArchive, run: str, names: Mapping[str, zipfile.ZipInfo], path: Path) -> bool:
    """Return whether the folder of a run has the files of the run in the archive; False for a missing or empty folder.

    Raises:
        CogError: the folder has other files.
    """
    try:
        if not os.listdir(path):
            return False
    except FileNotFoundError:
        return False
    same = _statuses(path)[0].keys() == names.keys() and all(
        (path / name).read_bytes() == archive.content(info) for name, info in names.items()
    )
    if not same:
        raise CogError(f"{path} differs from the contents of {archive.path}; move one of them away")
    return True


def _require_space(needs: Mapping[Path, int]) -> None:
    """Raise an error if a file system lacks the space for folders of these sizes in bytes."""
    report = Report()
    machine_checks.check_disk(report, needs.items())
    _raise_problems(report)


def _extract(archive: RunArchive, names: Mapping[str, zipfile.ZipInfo], path: Path) -> None:
    """Write the files of a run into a new folder, and sync them to the disk."""
    for name, info in names.items():
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "xb") as handle:
            handle.write(archive.content(info))
            handle.flush()
            os.fsync(handle.fileno())
        mode = (info.external_attr >> 16) & 0o777
        os.chmod(target, mode or 0o644)
        with contextlib.suppress(ValueError, OverflowError):  # the record may have an impossible date
            when = calendar.timegm((*info.date_time, 0, 0, 0))
            os.utime(target, (when, when))
    for root, _, _ in os.walk(path):
        _sync(Path(root))


def _sync(folder: Path) -> None:
    """Sync the names in a folder to the disk, where the file system supports it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
