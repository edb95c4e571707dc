"""A SLURM cluster of one node in a temporary folder: the real daemons, as root, on 127.0.0.1 only."""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
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
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
ReturnToService=2
MinJobAge=3600
KillWait=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
MaxArraySize=1001
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes={host} MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""

# Any character devices are sufficient: SLURM counts the files and sets CUDA_VISIBLE_DEVICES to their numbers.
_GRES = "Name=gpu File=/dev/tty[1-2]\n"


# States of jobs that have ended. Running jobs have other states (SIGNALING, STAGE_OUT, COMPLETING ...).
ENDED = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"}
ENDED |= {"PREEMPTED", "TIMEOUT"}


def missing() -> str | None:
    """Return the reason why no local SLURM can be started on this machine, or None."""
    if absent := [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]:
        return f"not installed: {', '.join(absent)} (Debian: slurm-wlm, munge)"
    if os.geteuid() != 0 or not all(Path(f"/dev/tty{number}").exists() for number in (1, 2)):
        return "a local SLURM is started as root, and /dev/tty1 and /dev/tty2 stand for its GPUs"
    return None


@dataclass
class LocalSlurm:
    """A running SLURM with two processors or more and two simulated GPUs, in the folder ``root``.

    Its commands use this cluster in the environment ``environment``.
    """

    root: Path
    environment: dict[str, str]
    _daemons: list[subprocess.Popen] = field(default_factory=list)

    def run(self, *command: str, check: bool = True, timeout: float = 60) -> str:
        """Run a command of this SLURM, and return its standard output."""
        how = {"env": self.environment, "capture_output": True, "text": True, "timeout": timeout}
        done = subprocess.run(command, check=False, **how)
        assert not check or done.returncode == 0, f"{command}: {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def states(self, job: str) -> dict[str, str]:
        """Return the states of all tasks of a job, also of ended ones, by task (``"12_0"``, or ``"12"``)."""
        words = ("--noheader", "--array", "--states=all", f"--jobs={job}", "--format=%i %T")
        return dict(line.split() for line in self.run("squeue", *words).splitlines())

    def wait(self, *jobs: str, timeout: float = 60) -> dict[str, str]:
        """Wait until all tasks of ``jobs`` have ended, and return their states."""
        deadline = time.monotonic() + timeout
        while True:
            states = {task: state for job in jobs for task, state in self.states(job).items()}
            if ENDED.issuperset(states.values()):
                return states
            assert time.monotonic() < deadline, f"after {timeout} s: {states}\n{self.logs()}"
            time.sleep(0.5)

    def cancel_all(self) -> None:
        """Cancel all jobs and wait until they have ended."""
        self.run("scancel", "--user", "root", check=False)
        self.until(lambda: not self.run("squeue", "--noheader").strip())

    def logs(self) -> str:
        """Return the ends of the daemons' logs."""
        logs = [self.root / name for name in ("slurmctld.log", "slurmd.log")]
        return "\n".join(log.read_text()[-3000:] for log in logs if log.is_file())

    def start(self, *command: str) -> None:
        """Start a daemon in its own session, and keep its process for :meth:`stop`."""
        program = shutil.which(command[0], path=_PATH)
        with open(self.root / f"{command[0]}.out", "wb") as output:
            how = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
            words = [program, *command[1:]]
            self._daemons.append(subprocess.Popen(words, env=self.environment, start_new_session=True, **how))

    def until(self, ready: Callable[[], bool], timeout: float = 30) -> None:
        """Wait until the daemons are ready."""
        deadline = time.monotonic() + timeout
        while not ready():
            ended = [process.args for process in self._daemons if process.poll() is not None]
            assert not ended and time.monotonic() < deadline, f"{ended}\n{self.logs()}"
            time.sleep(0.2)

    def stop(self) -> None:
        """Stop the daemons that :meth:`start` started."""
        for process in reversed(self._daemons):
            process.kill()
            process.wait()


@contextlib.contextmanager
def local_slurm(root: Path, *, cpus: int = 4) -> Iterator[LocalSlurm]:
    """Start a SLURM in an empty folder, and stop it at the end in all cases.

    The path of the folder must be short, because paths of sockets have at most 107 characters.
    """
    host = socket.gethostname().split(".")[0]
    try:
        socket.gethostbyname(host)
    except OSError:
        with open("/etc/hosts", "a", encoding="utf-8") as hosts:
            hosts.write(f"127.0.0.1 {host}\n")
    for name in ("munge", "state", "spool"):
        (root / name).mkdir()
    root.chmod(0o755)  # munge refuses a socket that not all users can access
    key = root / "munge" / "key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(1024))
    with socket.socket() as one, socket.socket() as other:  # both open, so that the ports differ
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        ports = [each.getsockname()[1] for each in (one, other)]
    memory = int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 20) * 0.9)  # MiB
    facts = {"host": host, "root": root, "controller_port": ports[0], "node_port": ports[1]}
    conf = root / "slurm.conf"
    conf.write_text(_CONF.format(**facts, cpus=cpus, memory=memory))
    (root / "gres.conf").write_text(_GRES)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH"))}
    slurm = LocalSlurm(root, environment | {"SLURM_CONF": str(conf), "PATH": _PATH})
    try:
        places = [f"--{name}-file={root}/munge/{name}" for name in ("log", "pid", "seed", "key")]
        socket_flag = f"--socket={root}/munge/socket"
        slurm.start("munged", "--foreground", "--force", socket_flag, *places, "--num-threads=2")
        slurm.until((root / "munge" / "socket").exists)
        slurm.start("slurmctld", "-D", "-c", "-f", str(conf))
        slurm.start("slurmd", "-D", "-N", host, "-f", str(conf))
        slurm.until(lambda: "idle" in slurm.run("sinfo", "--noheader", "--format=%T", check=False))
        yield slurm
    finally:
        slurm.stop()
