"""Debian packages for the machine this runs on."""

from __future__ import annotations

import os
import subprocess
from contextlib import AbstractContextManager

from images.errors import Problem, UserError
from images.host import cache

_WAIT = "-oDPkg::Lock::Timeout=600"
"""Seconds to wait for another program that installs packages, such as unattended-upgrades."""


def install(*packages: str) -> None:
    """Install Debian packages on this machine, as root. Raises UserError with apt's last words."""
    then = f"make `apt-get update && apt-get install {' '.join(packages)}` work, then try again"
    with _alone():
        _run("apt-get", "-q", "update", then=then)
        _run("apt-get", "-q", _WAIT, "install", "-y", "--no-install-recommends", *packages, then=then)


def update() -> None:
    """Fetch the lists of packages. Raises UserError with apt's last words."""
    with _alone():
        _run("apt-get", "-q", "update", then="make `apt-get update` work, then try again")


def _alone() -> AbstractContextManager[None]:
    """One process of ours at a time: `apt-get update` does not wait for its locks, it fails."""
    return cache.alone(cache.folder() / "apt.lock")


def _run(*command: str, then: str) -> None:
    done = subprocess.run(
        command,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        cause = "; ".join(lines[-3:]) or f"ended with {done.returncode}"
        raise UserError(Problem(where=" ".join(command), cause=cause, then=then), code=1)
