"""A registry on this machine, for as long as something is pulled from it: Debian's docker-registry."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from images.debian import install
from images.errors import Problem, UserError

_PROGRAM = "docker-registry"
_PATIENCE = 20.0
"""Seconds for its start, and for its end."""


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """`HOST:PORT` of an empty one that keeps its data in a folder. Raises UserError where there is none to be had."""
    if not shutil.which(_PROGRAM):
        install(_PROGRAM)
    folder.mkdir(parents=True)
    host = f"127.0.0.1:{_free_port()}"
    config, log = folder / "config.yml", folder / "log"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {folder / 'data'}}}}}\n"
        f'http: {{addr: "{host}"}}\n'
    )
    with log.open("wb") as stream:
        process = subprocess.Popen([_PROGRAM, "serve", str(config)], stdout=stream, stderr=stream)
    try:
        _wait_for(host, process, log)
        yield host
    finally:
        process.terminate()
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(host: str, process: subprocess.Popen[bytes], log: Path) -> None:
    address, _, port = host.partition(":")
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex((address, int(port))) == 0:
                return
        time.sleep(0.05)
    cause = f"did not start: {log.read_text(errors='replace').strip()[-300:]}"
    raise UserError(Problem(where=_PROGRAM, cause=cause, then="`docker-registry serve FILE` shows why"), code=1)
