"""Start a Slurm cluster on this machine: munged, slurmctld and several slurmd. That needs root.

Debian's packages are installed as the product installs others, but none of their services is used.
Everything lies in one folder, and is gone with it. The nodes' GPUs are only for placement: each is
an empty file, because slurmd wants one that exists.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from images.host import apt

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
PROGRAMS = ("slurmctld", "slurmd", "squeue", "munged")
_PATIENCE = 60.0


@dataclass(frozen=True)
class Slurm:
    """A running cluster. `environment` makes Slurm's commands talk to it."""

    folder: Path
    environment: Mapping[str, str]
    daemons: Mapping[str, int]
    """Name -> process."""

    def ask(self, *command: str) -> str:
        """Return what a command of Slurm prints."""
        environment = {**os.environ, **self.environment}
        return subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True
        ).stdout

    def queue(self) -> list[str]:
        """Return a line about each job that waits or runs."""
        return self.ask("squeue", "--noheader", "--format=%i %T %N").splitlines()

    def is_emptied(self) -> bool:
        """Wait for the queue to become empty, and return whether it did.

        A job writes its record a moment before it ends.
        """
        deadline = time.monotonic() + 300
        while self.queue() and time.monotonic() < deadline:
            time.sleep(0.1)
        return not self.queue()


@contextmanager
def slurm_cluster(folder: Path, gpus: Mapping[str, str]) -> Iterator[Slurm]:
    """Yield a running cluster. Nodes with GPUs are in the partition `gpu`, the others in `cpu`.

    `gpus`: name of each node -> its GPUs, as `h100:2`; empty for none.
    """
    if os.geteuid() != 0:
        pytest.skip("Slurm's daemons need root")
    if not all(map(shutil.which, PROGRAMS)):
        apt.install(*PACKAGES)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    _configure(folder, gpus)
    environment = {"SLURM_CONF": str(folder / "slurm.conf")}
    daemons: dict[str, int] = {}
    with ExitStack() as stack:

        def start(name: str, *command: str) -> None:
            daemons[name] = stack.enter_context(
                _daemon(folder / f"{name}.out", command, environment)
            )

        start("munged", *_munged(folder))
        _wait_for(lambda: (folder / "munge.sock").exists(), folder)
        start("slurmctld", "slurmctld", "-D", "-i")
        for node in gpus:
            start(node, "slurmd", "-D", "-N", node)
        cluster = Slurm(folder=folder, environment=environment, daemons=daemons)
        _wait_for(lambda: _idle(cluster) == len(gpus), folder)
        yield cluster
        with suppress(subprocess.CalledProcessError):
            cluster.ask("scancel", "--full", "--user=root")
            _wait_for(lambda: not cluster.queue(), folder)


def _configure(folder: Path, gpus: Mapping[str, str]) -> None:
    """Write the cluster's configuration, and the files that stand for GPUs."""
    host = socket.gethostname().partition(".")[0]
    base = _free_ports(len(gpus) + 1)
    lines = [
        "ClusterName=truetag",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={base}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder}/munge.sock",
        "CredType=cred/munge",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool-%n",
        f"SlurmctldPidFile={folder}/slurmctld.pid",
        f"SlurmdPidFile={folder}/slurmd-%n.pid",
        f"SlurmctldLogFile={folder}/slurmctld.log",
        f"SlurmdLogFile={folder}/slurmd-%n.log",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "SlurmdParameters=config_overrides",
        "SchedulerParameters=sched_interval=2,batch_sched_delay=1,bf_interval=2",
        "ReturnToService=2",
        "MpiDefault=none",
        "KillWait=300",
        "GresTypes=gpu",
    ]
    gres = []
    for number, (node, gpus_of_node) in enumerate(gpus.items(), 1):
        (folder / f"spool-{node}").mkdir()
        resources = f" Gres=gpu:{gpus_of_node}" if gpus_of_node else ""
        address = f"NodeHostname={host} NodeAddr=127.0.0.1 Port={base + number}"
        lines.append(f"NodeName={node} {address} CPUs=1{resources}")
        kind, _, count = gpus_of_node.partition(":")
        for index in range(int(count or 0)):
            (folder / f"{node}-gpu{index}").touch()
            gres.append(f"NodeName={node} Name=gpu Type={kind} File={folder}/{node}-gpu{index}")
    partitions = {
        "cpu": [node for node, gpus_of_node in gpus.items() if not gpus_of_node],
        "gpu": [node for node, gpus_of_node in gpus.items() if gpus_of_node],
    }
    for partition, nodes in partitions.items():
        if nodes:
            lines.append(
                f"PartitionName={partition} Nodes={','.join(nodes)} MaxTime=INFINITE State=UP"
            )
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
    (folder / "gres.conf").write_text("\n".join(gres) + "\n")
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")


def _munged(folder: Path) -> tuple[str, ...]:
    """Make a key, and return the command that starts munge, by which nodes trust each other."""
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    files = [
        f"--{name}={folder}/munge.{end}"
        for name, end in (("socket", "sock"), ("pid-file", "pid"), ("seed-file", "seed"))
    ]
    return (
        "munged",
        "--foreground",
        "--force",
        f"--key-file={key}",
        f"--log-file={folder}/munge.log",
        *files,
    )


@contextmanager
def _daemon(log: Path, command: tuple[str, ...], environment: Mapping[str, str]) -> Iterator[int]:
    """Start a daemon, yield its process, and end it."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment, "PATH": f"{os.environ['PATH']}:/usr/sbin"},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    try:
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _idle(cluster: Slurm) -> int:
    """Return how many nodes are ready; 0 while the cluster does not answer."""
    try:
        return cluster.ask("sinfo", "--noheader", "--Node", "--format=%N %t").count(" idle")
    except subprocess.CalledProcessError:
        return 0


def _wait_for(holds: Callable[[], bool], folder: Path) -> None:
    """Wait until `holds` returns true. Raises AssertionError, with the ends of all logs."""
    deadline = time.monotonic() + _PATIENCE
    while not holds():
        logs = [path.read_text(errors="replace")[-800:] for path in sorted(folder.glob("*.out"))]
        assert time.monotonic() < deadline, "\n".join(logs)
        time.sleep(0.1)


def _free_ports(count: int) -> int:
    """Return the first of so many free ports in a row.

    They lie below those that Linux gives to everybody who asks for any.
    """
    for turn in range(2000):
        base = 12_000 + (os.getpid() * 16 + turn * 32) % 18_000
        sockets = [socket.socket() for _ in range(count)]
        try:
            for number, probe in enumerate(sockets):
                probe.bind(("127.0.0.1", base + number))
            return base
        except OSError:
            continue
        finally:
            for probe in sockets:
                probe.close()
    raise AssertionError("no ports are free")
