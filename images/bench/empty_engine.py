"""An empty Docker Engine beside the one that builds, for as long as it is used: what pulls in a benchmark.

It has a network of its own (`network.py`), neither bridge nor rules: containers there run without a network.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from images.bench import network
from images.config.paths import TEMPLATES
from images.context.bootstrap import mirrors, require_mmdebstrap
from images.context.hosting import HostSettings
from images.engine import Engine, private_engine
from images.errors import Problem, UserError
from images.host import apt

SUITES: Mapping[str, str] = {"26.1": "trixie", "28.5": "sid"}
"""Version of an engine -> the Debian suite that has it."""
OWN = "this machine's"
_UNPACKER = "pigz"
"""With it an engine unpacks gzip faster (dockerd looks for `unpigz`); Docker's own packages recommend it."""
_PACKAGES = f"ca-certificates,docker.io,procps,{_UNPACKER}"
_APART = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
"""Mounts and processes end with the engine, however it ends."""
_RETRY = "`nox -s bench -- --only delivery`"
_PATIENCE = 180.0
"""Seconds for its start, and for its end."""


@dataclass(frozen=True)
class EmptyEngine:
    """An engine, and the process that it descends from."""

    engine: Engine
    pid: int

    def processor_seconds(self) -> float:
        """What the engine, its children and those that have ended used until now (proc(5), fields 14 to 17 of stat)."""
        ticks, wanted = 0, [self.pid]
        while wanted:
            process = Path("/proc", str(wanted.pop()))
            with suppress(OSError):
                ticks += sum(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:15]))
                for task in (process / "task").iterdir():
                    wanted += [int(child) for child in (task / "children").read_text().split()]
        return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def empty_engine(version: str, home: Path, host: HostSettings, say: Callable[[str], None]) -> Iterator[EmptyEngine]:
    """An engine of a version, or this machine's `OWN`, that keeps all it has in a new folder, which is gone afterwards.

    Inside, this thread is in the engine's network. Raises UserError where it does not start.
    """
    home.mkdir(parents=True)
    try:
        with tempfile.TemporaryDirectory(prefix="truetag-") as short:  # sockets have short paths
            command = _own(home, Path(short)) if version == OWN else _of_suite(SUITES[version], home, host, say)
            socket = Path(short) / "docker.sock" if version == OWN else home / "docker.sock"
            path = _with_unpacker(home) if version == OWN else os.environ["PATH"]
            with network.own_network(), _running(command, socket, home / "log", path) as found:
                yield found
    finally:
        try:
            private_engine.discard(home)
        finally:
            shutil.rmtree(home)


def _own(home: Path, short: Path) -> list[str]:
    return [
        *_APART,
        "--mount-proc",
        "dockerd",
        f"--data-root={home / 'data'}",
        f"--exec-root={short / 'exec'}",
        f"--pidfile={short / 'pid'}",
        f"--host=unix://{short / 'docker.sock'}",
        "--bridge=none",
        "--iptables=false",
        "--containerd-namespace=truetag-bench",
        "--containerd-plugins-namespace=truetag-bench-plugins",
    ]


def _with_unpacker(home: Path) -> str:
    """A PATH on which `unpigz` is, from a package that is unpacked here where this machine has none."""
    if shutil.which(f"un{_UNPACKER}"):
        return os.environ["PATH"]
    return f"{apt.unpack(_UNPACKER, home) / 'usr' / 'bin'}:{os.environ['PATH']}"


def _of_suite(suite: str, home: Path, host: HostSettings, say: Callable[[str], None]) -> list[str]:
    """The command of an engine in a root file system that is made here from a Debian mirror."""
    require_mmdebstrap(say)
    say(f"fetching the Docker Engine of Debian {suite}: it is unpacked in {home} for now, and nothing is installed")
    apt = [f"--aptopt={name} {json.dumps(value)}" for name, value in sorted(host.apt.items())]
    make = ["mmdebstrap", "--variant=minbase", f"--include={_PACKAGES}", *apt, suite, str(home / "root")]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run([*make, *mirrors(suite)], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        cause = host.redact(" ".join(done.stderr.strip().splitlines()[-2:]))
        then = f"does `apt-get update` work here, has its mirror that suite? then {_RETRY}"
        raise UserError(Problem(where=f"mmdebstrap {suite}", cause=cause, then=then), code=1)
    script = str(TEMPLATES / "bench" / "engine.sh")
    return [*_APART, "sh", script, str(home / "root"), str(home)]


@contextmanager
def _running(command: Sequence[str], socket: Path, log: Path, path: str) -> Iterator[EmptyEngine]:
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            cwd="/",
            env={**os.environ, "PATH": path},
            start_new_session=True,
        )
    try:
        with _connected(process, socket, log) as engine:
            yield EmptyEngine(engine, process.pid)
    finally:
        _end(process)


def _connected(process: subprocess.Popen[bytes], socket: Path, log: Path) -> Engine:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        try:
            return Engine(f"unix://{socket}")
        except Exception as error:  # it is not there yet: each stage of the start fails in a way of its own
            if isinstance(error, UserError):
                raise
            time.sleep(0.2)
    said = " ".join(log.read_text(errors="replace").split())[-300:]
    cause = f"did not start beside the machine's own: {said or 'it said nothing'}"
    raise UserError(Problem(where="dockerd", cause=cause, then=f"as root: {_RETRY}"), code=1)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let dockerd stop what it runs: it is the one child of `unshare`, which would not pass the signal on."""
    if process.poll() is None:
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGTERM)
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
