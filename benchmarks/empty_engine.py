"""An empty Docker Engine beside the one that builds, for as long as it is used: what pulls in a benchmark.

It is this machine's own dockerd, in a network of its own (`network.py`), with neither bridge nor rules: containers
there run without a network.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import network
from images.engine import Engine, private_engine
from images.errors import Problem, UserError
from images.host import apt

_RETRY = "`python -m benchmarks --only delivery`"
_PATIENCE = 180.0
"""Seconds for its start, and for its end."""


@contextmanager
def empty_engine(home: Path) -> Iterator[Engine]:
    """An engine that keeps all it has in a new folder, which is gone afterwards.

    Inside, this thread is in the engine's network. Raises UserError where it does not start.
    """
    if not shutil.which("unpigz"):  # with it an engine unpacks gzip faster, and Docker's packages recommend it
        apt.install("pigz")
    home.mkdir(parents=True)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="truetag-") as short,  # sockets have short paths
            network.own_network(),
            _running(home, Path(short)) as engine,
        ):
            yield engine
    finally:
        try:
            private_engine.discard(home)
        finally:
            shutil.rmtree(home)


@contextmanager
def _running(home: Path, short: Path) -> Iterator[Engine]:
    apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command = ["dockerd", f"--data-root={home / 'data'}", f"--exec-root={short / 'exec'}", f"--pidfile={short / 'pid'}"]
    command += [f"--host=unix://{short / 'docker.sock'}", "--bridge=none", "--iptables=false"]
    command += ["--containerd-namespace=truetag-bench", "--containerd-plugins-namespace=truetag-bench-plugins"]
    log = home / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*apart, *command], stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, cwd="/", start_new_session=True
        )
    try:
        with _connected(process, short / "docker.sock", log) as engine:
            yield engine
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
