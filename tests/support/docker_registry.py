"""A registry on this machine for as long as a test uses it: Debian's docker-registry."""

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_PATIENCE = 60.0
"""Seconds for its start, and for its end."""


@contextmanager
def serving(program: str, folder: Path, auth: Mapping[str, Any] | None = None) -> Iterator[str]:
    """Yield `HOST:PORT` of a registry that keeps its data in a folder.

    `auth`: the block of that name in its configuration; None: it asks for no login.
    """
    port = _free_port()
    host = f"127.0.0.1:{port}"
    config: dict[str, Any] = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {
            "filesystem": {"rootdirectory": str(folder / "data")},
            "delete": {"enabled": True},
        },
        "http": {"addr": host},
    }
    if auth:
        config["auth"] = dict(auth)
    config_file, log = folder / "config.yml", folder / "log"
    config_file.write_text(json.dumps(config))

    with log.open("wb") as stream:
        process = subprocess.Popen(
            [program, "serve", str(config_file)], stdout=stream, stderr=stream
        )
    try:
        _wait_for(port, process, log)
        yield host
    finally:
        process.terminate()
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    """Return a port that nobody takes between asking and listening.

    Linux gives ports from 32768 on to everybody who asks for any. The ports below are tried one
    after another, from one on that depends on this process.
    """
    for turn in range(20_000):
        with socket.socket() as probe, suppress(OSError):
            port = 10_000 + (os.getpid() + turn) % 20_000
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("every port that a registry could serve on is taken")


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the registry accepts connections. Raises AssertionError, with its log's end."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(
        f"docker-registry does not answer: {log.read_text(errors='replace')[-300:]}"
    )
