"""A Slurm cluster on this machine: munged, slurmctld and several slurmd, with GPUs that are files. It needs root.

Debian's packages are installed as the product installs others; no service of theirs is used. Everything is in one
folder and gone with it. GPUs are for placement alone: a gres of a type is a file, as slurmd wants one that exists.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
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
        """What a command of Slurm's prints."""
        environment = {**os.environ, **self.environment}
        return subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True
        ).stdout

    def queue(self) -> list[str]:
        """Jobs that wait or run."""
        return self.ask("squeue", "--noheader", "--format=%i %T %N").splitlines()

    def is_emptied(self) -> bool:
        """Wait: a job writes its record a moment before it ends."""
        deadline = time.monotonic() + 300
        while self.queue() and time.monotonic() < deadline:
            time.sleep(0.1)
        return not self.queue()


@contextmanager
def slurm_cluster(folder: Path, gpus: Mapping[str, str]) -> Iterator[Slurm]:
    """A cluster whose nodes are named by `gpus`: node -> `type:count` of its GPUs, or nothing.

    Nodes with GPUs are in the partition `gpu`, the others in `cpu`.
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
    for number, (node, has) in enumerate(gpus.items(), 1):
        (folder / f"spool-{node}").mkdir()
        asked = f" Gres=gpu:{has}" if has else ""
        lines.append(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={base + number} CPUs=1{asked}"
        )
        kind, _, count = has.partition(":")
        for index in range(int(count or 0)):
            (folder / f"{node}-gpu{index}").touch()
            gres.append(f"NodeName={node} Name=gpu Type={kind} File={folder}/{node}-gpu{index}")
    for partition, nodes in (
        ("cpu", [node for node, has in gpus.items() if not has]),
        ("gpu", [node for node, has in gpus.items() if has]),
    ):
        if nodes:
            lines.append(
                f"PartitionName={partition} Nodes={','.join(nodes)} MaxTime=INFINITE State=UP"
            )
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
    (folder / "gres.conf").write_text("\n".join(gres) + "\n")
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")


def _munged(folder: Path) -> tuple[str, ...]:
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
    try:
        return cluster.ask("sinfo", "--noheader", "--Node", "--format=%N %t").count(" idle")
    except subprocess.CalledProcessError:
        return 0


def _wait_for(holds, folder: Path) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + _PATIENCE
    while not holds():
        logs = [path.read_text(errors="replace")[-800:] for path in sorted(folder.glob("*.out"))]
        assert time.monotonic() < deadline, "\n".join(logs)
        time.sleep(0.1)


def _free_ports(count: int) -> int:
    """The first of so many ports in a row, below those that Linux gives to who asks for any."""
    for turn in range(2000):
        base = 12_000 + (os.getpid() * 16 + turn * 32) % 18_000
        sockets = [socket.socket() for _ in range(count)]
        try:
            for number, one in enumerate(sockets):
                one.bind(("127.0.0.1", base + number))
            return base
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
    raise AssertionError("no ports are free")
