"""A registry on this machine, for as long as it is used: Debian's docker-registry."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.running import stop
from images.errors import Problem, UserError
from images.host import apt

_PROGRAM = "docker-registry"
_PATIENCE = 60.0
"""Seconds for its start."""


@contextmanager
def registry(
    folder: Path, *, auth: Mapping[str, Any] | None = None, say: Callable[[str], object] = lambda _text: None
) -> Iterator[str]:
    """`HOST:PORT` of an empty one that keeps all it has in a folder, which is gone afterwards.

    `auth`: its block of that name in docker-registry's configuration. `say` gets a sentence where its program is
    fetched. Raises UserError where there is none to be had, OSError where the folder can't be written.
    """
    folder.mkdir(parents=True)
    try:
        with serving(program(folder, say), folder, auth) as host:
            yield host
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def program(folder: Path, say: Callable[[str], object]) -> str:
    """This machine's registry, or one that is unpacked in the folder. Raises UserError where there is none to be had.

    It is not installed: Debian's package would go on to serve everybody at port 5000, at each start of the machine.
    """
    if found := shutil.which(_PROGRAM):
        return found
    if not shutil.which("apt-get"):
        then = f"put a program {_PROGRAM} on the PATH (CNCF Distribution 2 calls it `registry`), and try again"
        raise UserError(Problem(where=_PROGRAM, cause="is not here, and no apt-get to fetch it", then=then), code=1)
    say(f"fetching {_PROGRAM} with apt-get: it is unpacked in {folder} for now, and nothing is installed")
    apt.install()  # the lists of packages alone
    unpacking = f"apt-get -q download {_PROGRAM} && dpkg-deb --extract {_PROGRAM}_*.deb unpacked"
    done = subprocess.run(["sh", "-c", unpacking], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        then = f"make `apt-get download {_PROGRAM}` work, then try again"
        raise UserError(Problem(where=_PROGRAM, cause=done.stderr.strip()[-600:], then=then), code=1)
    return str(folder / "unpacked" / "usr" / "bin" / _PROGRAM)


@contextmanager
def serving(program: str, folder: Path, auth: Mapping[str, Any] | None = None) -> Iterator[str]:
    """`HOST:PORT` of a registry of what a folder has, which stays, in the network of this thread. Raises UserError."""
    port = _free_port()
    host, log = f"127.0.0.1:{port}", folder / "log"
    storage = {"filesystem": {"rootdirectory": str(folder / "data")}, "delete": {"enabled": True}}
    config: dict[str, Any] = {"version": 0.1, "log": {"level": "error"}, "storage": storage, "http": {"addr": host}}
    (folder / "config.yml").write_text(json.dumps({**config, **({"auth": dict(auth)} if auth else {})}))
    with log.open("wb") as stream:
        process = subprocess.Popen([program, "serve", str(folder / "config.yml")], stdout=stream, stderr=stream)
    try:
        _wait_for(port, process, log)
        yield host
    finally:
        stop(process)


def _free_port() -> int:
    """Below those that Linux gives to who asks for any (from 32768), and from a place of this process's own on: none
    is taken between asking and listening.
    """
    for turn in range(20_000):
        with socket.socket() as probe, suppress(OSError):
            port = 10_000 + (os.getpid() + turn) % 20_000
            probe.bind(("127.0.0.1", port))
            return port
    cause = "every port that it could serve on is taken"
    raise UserError(Problem(where=_PROGRAM, cause=cause, then="end what holds them, and try again"), code=1)


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    how = f"ended with {process.returncode}" if process.returncode is not None else f"ran for {_PATIENCE:.0f} s"
    cause = f"{how} before it answered: {log.read_text(errors='replace').strip()[-300:] or 'it said nothing'}"
    raise UserError(Problem(where=f"{_PROGRAM} serve", cause=cause, then="fix what it names, and try again"), code=1)
