"""What git knows of the checkout that this runs from, where there is git."""

import subprocess
from pathlib import Path


def git(root: Path, *arguments: str) -> str | None:
    """What a git command prints there; None where it fails, or there is no git."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def commit(root: Path) -> str:
    """The commit of a checkout as it lies there; empty where something was changed in it, or there is no git."""
    return "" if git(root, "status", "--porcelain") != "" else git(root, "rev-parse", "HEAD") or ""
