"""Debian packages for the machine this runs on."""

import os
import subprocess

from images.errors import failed
from images.host import cache

_WAIT = "-oDPkg::Lock::Timeout=600"
"""Seconds to wait for another program that installs packages, such as unattended-upgrades."""


def install(*packages: str) -> None:
    """Fetch the lists of packages and install these on this machine, as root. Raises UserError with apt's last words.

    One process of ours at a time: `apt-get update` does not wait for its locks, it fails.
    """
    install = ["apt-get", "-q", _WAIT, "install", "-y", "--no-install-recommends", *packages]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with cache.alone(cache.folder() / "apt.lock"):
        for command in (["apt-get", "-q", "update"], install):
            done = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
            if done.returncode != 0:
                lines = (done.stderr or done.stdout).strip().splitlines()
                then = f"make `apt-get update && apt-get install {' '.join(packages)}` work, then try again"
                raise failed(
                    " ".join(command),
                    "; ".join(lines[-3:]) or f"ended with {done.returncode}",
                    then,
                )
