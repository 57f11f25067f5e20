"""Get programs that Debian has from trixie on, on any machine with mmdebstrap.

They are unpacked into folders of their own, and installed nowhere.
"""

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from images.context.bootstrap import require_mmdebstrap
from images.context.hosting import host_settings
from images.engine.client import private_home
from images.locking import debian
from tests.support import docker_registry

HOME = private_home().parent / "tests"
"""Kept from run to run, like the engine: about 1.5 GB."""
BUILDX = "usr/libexec/docker/cli-plugins/docker-buildx"


def bootstrap(suite: str, folder: Path, *options: str) -> None:
    """Unpack Debian packages of a suite into a folder, from the mirror that this machine uses."""
    if not shutil.which("mmdebstrap") and (os.geteuid() != 0 or not shutil.which("apt-get")):
        pytest.skip("needs mmdebstrap, or root on Debian to install it")
    require_mmdebstrap(print)
    host = host_settings()
    apt = [f"--aptopt={name} {json.dumps(value)}" for name, value in sorted(host.apt.items())]
    command = [
        "mmdebstrap",
        *apt,
        *options,
        suite,
        str(folder),
        *debian.source_lines(suite, debian.mirrors()),
    ]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, host.redact(done.stderr[-2000:])


def unpacked(*packages: str, suite: str = "trixie", architecture: str = "") -> Path:
    """Return a folder with the files of these packages, without what they depend on.

    That is enough for Go programs, which need glibc only. `architecture`: Debian's word for it, if
    it is not this machine's.
    """
    name = "-".join([suite, *packages])
    options = ["--variant=extract", f"--include={','.join(packages)}"]
    if architecture:
        name = f"{name}-{architecture}"
        options.append(f"--architectures={architecture}")
    return _make_once(name, suite, *options)


@contextmanager
def registry(folder: Path, auth: Mapping[str, Any] | None = None) -> Iterator[str]:
    """Yield `HOST:PORT` of Debian's docker-registry on loopback, with its data in a new folder.

    `auth`: the block of that name in its configuration; None: it asks for no login.
    """
    folder.mkdir(parents=True)
    with docker_registry.serving(registry_program(), folder, auth) as host:
        yield host


def registry_program() -> str:
    """Return Debian's docker-registry, unpacked once for all tests."""
    return str(unpacked("docker-registry") / "usr" / "bin" / "docker-registry")


def bootstrapped(suite: str, packages: str) -> Path:
    """Return a root file system with these packages, to be copied.

    It is made anew each week, because sid moves. Older ones are removed.
    """
    week = f"{datetime.now(UTC):%G-%V}"
    root = _make_once(f"{suite}-root-{week}", suite, "--variant=minbase", f"--include={packages}")
    for old in HOME.glob(f"{suite}-root-*"):
        if old != root and old.is_dir():
            shutil.rmtree(old, ignore_errors=True)
    return root


def _make_once(name: str, suite: str, *options: str) -> Path:
    """Return the folder HOME/NAME. The first caller of all runs makes it by `bootstrap`."""
    HOME.mkdir(parents=True, exist_ok=True)
    target = HOME / name
    with (HOME / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            half = target.with_suffix(".half")
            shutil.rmtree(half, ignore_errors=True)
            bootstrap(suite, half, *options)
            half.rename(target)
    return target
