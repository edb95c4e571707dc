"""A SLURM cluster of one node in a temporary folder: the real daemons, as root, without systemd, on 127.0.0.1 only."""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

#: Debian's packages slurm-wlm and munge.
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "srun")

# Daemons are installed in sbin, which is not in the search path of every user.
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])

_CONF = """
ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket,cred_expire=5
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
ReturnToService=2
MinJobAge=3600
KillWait=5
UnkillableStepTimeout=15
MessageTimeout=30
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
MaxArraySize={max_array_size}
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes={host} MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""

# Any character devices are sufficient: SLURM counts the files and sets CUDA_VISIBLE_DEVICES to their numbers.
_GRES = "Name=gpu File=/dev/tty[1-2]\n"


# States of jobs that have ended. Running jobs have other states (SIGNALING, STAGE_OUT, COMPLETING ...).
ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT",
}  # fmt: skip


def missing() -> str | None:
    """Return the reason why no local SLURM can be started on this machine, or None."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (Debian: slurm-wlm, munge)"
    if os.geteuid() != 0:
        return "a local SLURM is started as root"
    if not all(Path(f"/dev/tty{number}").exists() for number in (1, 2)):
        return "there are no /dev/tty1 and /dev/tty2 to stand for GPUs"
    return None


@dataclass
class LocalSlurm:
    """A running SLURM with two processors or more and two simulated GPUs.

    Attributes:
        root: folder of all its files.
        environment: environment in which SLURM's commands use this cluster.
    """

    root: Path
    environment: dict[str, str]
    _daemons: list[subprocess.Popen] = field(default_factory=list)

    def run(self, *command: str, check: bool = True, timeout: float = 60, **environment: str) -> str:
        """Run a command of this SLURM, and return its standard output."""
        done = subprocess.run(
            command, env=self.environment | environment, capture_output=True, text=True, timeout=timeout, check=False
        )  # fmt: skip
        if check and done.returncode != 0:
            raise AssertionError(
                f"{' '.join(command)}: exit code {done.returncode}: {done.stdout}{done.stderr}"
            )
        return done.stdout

    def sbatch(self, *arguments: str, **environment: str) -> str:
        """Submit a job, and return its number."""
        return self.run("sbatch", "--parsable", *arguments, **environment).strip()

    def states(self, job: str) -> dict[str, str]:
        """Return the states of all tasks of a job, also of ended ones, by task (``"12_0"``; ``"12"`` without array)."""
        text = self.run("squeue", "--noheader", "--array", "--states=all", f"--jobs={job}", "--format=%i %T")
        return dict(line.split() for line in text.splitlines())

    def show(self, job: str) -> dict[str, str]:
        """Return the fields of ``scontrol show job`` for one job or task."""
        words = self.run("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, *jobs: str, timeout: float = 60) -> dict[str, str]:
        """Wait until all tasks of ``jobs`` have ended, and return their states."""
        deadline = time.monotonic() + timeout
        while True:
            states = {task: state for job in jobs for task, state in self.states(job).items()}
            if ENDED.issuperset(states.values()):
                return states
            if time.monotonic() > deadline:
                raise AssertionError(f"after {timeout} s: {states}\n{self.logs()}")
            time.sleep(0.1)

    def wait_for(self, task: str, state: str, timeout: float = 60) -> None:
        """Wait until one task is in a state."""
        deadline = time.monotonic() + timeout
        job = task.split("_")[0]
        while (now := self.states(job).get(task)) != state:
            if time.monotonic() > deadline:
                raise AssertionError(f"after {timeout} s {task} is {now}, not {state}\n{self.logs()}")
            time.sleep(0.05)

    def cancel_all(self) -> None:
        """Cancel all jobs and wait until they have ended."""
        self.run("scancel", "--user", getpass.getuser(), check=False)
        deadline = time.monotonic() + 30
        while self.run("squeue", "--noheader").strip() and time.monotonic() < deadline:
            time.sleep(0.1)

    def logs(self) -> str:
        """Return the ends of the daemons' logs."""
        ends = []
        for name in ("slurmctld.log", "slurmd.log"):
            with contextlib.suppress(OSError):
                ends.append(f"--- {name}\n" + "\n".join((self.root / name).read_text().splitlines()[-25:]))
        return "\n".join(ends)

    def start(self, *command: str) -> None:
        """Start a daemon in its own session, and keep its process for :meth:`stop`."""
        name = Path(command[0]).name
        with open(self.root / f"{name}.out", "wb") as output:
            process = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        self._daemons.append(process)

    def require_alive(self) -> None:
        """Raise an error if a daemon has ended."""
        for process in self._daemons:
            if process.poll() is not None:
                name = Path(str(process.args[0])).name  # type: ignore[index]
                output = (self.root / f"{name}.out").read_text(errors="replace")
                raise AssertionError(f"{name} ended with {process.returncode}: {output}\n{self.logs()}")

    def stop(self) -> None:
        """Stop the daemons that :meth:`start` started."""
        if len(self._daemons) == 3 and all(process.poll() is None for process in self._daemons):
            with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
                self.cancel_all()
        for process in reversed(self._daemons):
            process.terminate()
        for process in reversed(self._daemons):
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._daemons.clear()


@contextlib.contextmanager
def local_slurm(root: Path, *, cpus: int = 4, max_array_size: int = 1001) -> Iterator[LocalSlurm]:
    """Start a SLURM in an empty folder, and stop it at the end in all cases.

    Args:
        root: the folder; its path must be short, because paths of sockets have at most 107 characters.
        cpus: number of processors in the configuration of the node.
        max_array_size: SLURM's MaxArraySize.
    """
    host = socket.gethostname().split(".")[0]
    _require_resolvable(host)
    for name in ("munge", "state", "spool"):
        (root / name).mkdir()
    root.chmod(0o755)  # munge refuses a socket that not all users can access
    key = root / "munge" / "key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(1024))
    ports = _free_ports(2)
    (root / "slurm.conf").write_text(
        _CONF.format(
            host=host, root=root, controller_port=ports[0], node_port=ports[1], cpus=cpus, memory=_memory(),
            max_array_size=max_array_size,
        )
    )  # fmt: skip
    (root / "gres.conf").write_text(_GRES)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH"))}
    environment |= {"SLURM_CONF": str(root / "slurm.conf"), "PATH": _PATH}
    slurm = LocalSlurm(root, environment)
    try:
        slurm.start(
            _program("munged"), "--foreground", "--force", f"--key-file={key}", f"--socket={root}/munge/socket",
            f"--log-file={root}/munge/log", f"--pid-file={root}/munge/pid", f"--seed-file={root}/munge/seed",
            "--num-threads=2",
        )  # fmt: skip
        _until(slurm, (root / "munge" / "socket").exists)
        slurm.start(_program("slurmctld"), "-D", "-c", "-f", str(root / "slurm.conf"))
        slurm.start(_program("slurmd"), "-D", "-N", host, "-f", str(root / "slurm.conf"))
        _until(slurm, lambda: "idle" in slurm.run("sinfo", "--noheader", "--format=%T", check=False))
        first = slurm.sbatch("--output=/dev/null", "--wrap=true")
        assert slurm.wait(first, timeout=30) == {first: "COMPLETED"}, slurm.logs()
        yield slurm
    finally:
        slurm.stop()


def _program(name: str) -> str:
    program = shutil.which(name, path=_PATH)
    assert program is not None
    return program


def _until(slurm: LocalSlurm, ready, timeout: float = 30) -> None:
    deadline = time.monotonic() + timeout
    while not ready():
        slurm.require_alive()
        assert time.monotonic() < deadline, slurm.logs()
        time.sleep(0.05)


def _free_ports(n: int) -> list[int]:
    """Return unused ports; all sockets stay open until all ports are known, so that the ports differ."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _memory() -> int:
    """Return 90 % of the machine's memory in MiB; the kernel uses a part of the rest."""
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 20) * 0.9)


def _require_resolvable(host: str) -> None:
    try:
        socket.gethostbyname(host)
    except OSError:
        with open("/etc/hosts", "a", encoding="utf-8") as hosts:
            hosts.write(f"127.0.0.1 {host}\n")
