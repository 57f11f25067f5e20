"""Installs Debian packages on the machine that this runs on."""

import os
import subprocess

from images.errors import failed
from images.host import cache

_WAIT_FOR_LOCK = "-oDPkg::Lock::Timeout=600"
"""Seconds to wait for another program that installs packages, such as unattended-upgrades."""


def install(*packages: str) -> None:
    """Install Debian packages on this machine, as root, after an update of the package lists.

    Raises UserError, with the last lines that apt-get printed, if one of the two commands fails.
    Only one of our processes does this at a time: `apt-get update` does not wait for its locks, it
    fails.
    """
    update = ["apt-get", "-q", "update"]
    install = [
        "apt-get",
        "-q",
        _WAIT_FOR_LOCK,
        "install",
        "-y",
        "--no-install-recommends",
        *packages,
    ]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with cache.hold_lock(cache.folder() / "apt.lock"):
        for command in (update, install):
            result = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
            if result.returncode == 0:
                continue
            lines = (result.stderr or result.stdout).strip().splitlines()
            cause = "; ".join(lines[-3:]) or f"ended with {result.returncode}"
            names = " ".join(packages)
            then = f"make `apt-get update && apt-get install {names}` work, then try again"
            raise failed(" ".join(command), cause, then)
