"""Start Docker Engines of other Debian suites: trixie has 26.1, sid 28.5. That needs root.

A privileged container would do, but not every machine may create one. So each engine gets a root
file system by mmdebstrap, and namespaces of its own for mounts, processes and network. Its data is
removed when it ends.
"""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pytest
from docker import APIClient

from images.engine import Engine, connect
from tests.support.debian_tools import bootstrapped

PACKAGES = "ca-certificates,docker.io,iproute2,iptables,procps,rootlesskit,slirp4netns,uidmap"
_SCRIPT = Path(__file__).with_name("other_engine.sh")
_CLONE_NEWNET = 0x40000000
"""sched.h"""
_LONG = 3600
"""Seconds. An engine sends nothing until it has written the whole of an export to its disk."""


class Kind(StrEnum):
    """How an engine runs, and where it keeps images."""

    CLASSIC = "classic"
    """As root, with the classic store."""
    CONTAINERD = "containerd"
    """As root, with the containerd image store."""
    ROOTLESS = "rootless"
    """As a user of its own, with the classic store."""


@dataclass(frozen=True)
class Other:
    """A running engine: its address for DOCKER_HOST, a process in its network, and its kind."""

    url: str
    pid: int
    kind: Kind

    def take(self, image: str, engine: Engine) -> None:
        """Load an image of another engine into this one."""
        with (
            closing(APIClient(engine.facts.url, timeout=_LONG)) as theirs,
            closing(APIClient(self.url, timeout=_LONG)) as ours,
        ):
            ours.load_image(theirs.get_image(image))  # type: ignore[no-untyped-call]

    @contextmanager
    def lend(self, port: int) -> Iterator[None]:
        """Let the other engine reach a port of this machine's loopback on its own loopback."""
        listener = _listen_in(self.pid, port)
        threading.Thread(target=_serve, args=(listener, port), daemon=True).start()
        try:
            yield
        finally:
            # A socket that is closed while a thread accepts on it would go on listening.
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()


@contextmanager
def other_engine(suite: str, kind: Kind = Kind.CLASSIC) -> Iterator[Other]:
    """Start an empty engine of a Debian suite, and remove it with its data afterwards.

    The data of an engine that is not CLASSIC lie at a path that is the same for the engine and for
    this process, so that root can read its store.
    """
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("an engine beside this machine's own needs root")
    home = Path(tempfile.mkdtemp(prefix=f"truetag-{suite}-"))
    try:
        for name in ("root", "upper", "work", "data", "sockets"):
            (home / name).mkdir()
        files = bootstrapped(suite, PACKAGES)
        unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        command = [*unshare, "sh", str(_SCRIPT), str(files), str(home), kind]
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            url = f"unix://{home}/sockets/docker.sock"
            with _connected(url, process, home / "log"):
                yield Other(url=url, pid=_dockerd(process.pid), kind=kind)
        finally:
            _end(process)
    finally:
        shutil.rmtree(home)


def _connected(url: str, process: subprocess.Popen[bytes], log: Path) -> Engine:
    """Wait until the engine answers. Raises AssertionError, with its log's end, if it does not."""
    deadline = time.monotonic() + 180
    while True:
        try:
            return connect(url)
        except Exception:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text(
                errors="replace"
            )[-2000:]
            time.sleep(0.2)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End an engine: let dockerd stop its containers, then end its process namespace."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for child in children:
        os.kill(int(child), signal.SIGTERM)
    try:
        process.wait(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _dockerd(ancestor: int) -> int:
    """Return the engine's process, a descendant of the one that we started."""
    pids = [ancestor]
    while pids:
        pid = pids.pop()
        if Path(f"/proc/{pid}/comm").read_text().strip() == "dockerd":
            return pid
        for task in Path(f"/proc/{pid}/task").iterdir():
            pids += [int(child) for child in (task / "children").read_text().split()]
    raise AssertionError("dockerd does not run")


def _listen_in(pid: int, port: int) -> socket.socket:
    """Return a socket that listens on loopback in the network of another process.

    This thread enters that network to make it. The socket stays there when the thread comes back.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    there_path = Path(f"/proc/{pid}/ns/net")
    here_path = Path(f"/proc/{threading.get_native_id()}/ns/net")
    with there_path.open() as there, here_path.open() as here:
        if libc.setns(there.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        try:
            return socket.create_server(("127.0.0.1", port))
        finally:
            if libc.setns(here.fileno(), _CLONE_NEWNET):
                # This process would go on in the wrong network.
                os.abort()


def _serve(listener: socket.socket, port: int) -> None:
    """Connect each client of `listener` to a port of this machine, until it is shut down."""
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        onward = socket.create_connection(("127.0.0.1", port))
        for source, target in ((client, onward), (onward, client)):
            threading.Thread(target=_pass_on, args=(source, target), daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    """Send everything that comes from one socket to another."""
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        source.close()
        target.close()
