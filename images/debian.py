"""Debian packages for the machine this runs on."""

from __future__ import annotations

import os
import subprocess

from images.errors import Problem, UserError


def install(*packages: str) -> None:
    """Install Debian packages on this machine, as root. Raises UserError with apt's last words."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        done = subprocess.run(
            ["apt-get", "-q", *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines()
            raise UserError(
                Problem(
                    where=f"apt-get {' '.join(command)}",
                    cause="; ".join(lines[-3:]) or f"ended with {done.returncode}",
                    then=f"make `apt-get update && apt-get install {' '.join(packages)}` work, then try again",
                ),
                code=1,
            )
