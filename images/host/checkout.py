"""Asks git about a checkout of this project."""

import subprocess
from pathlib import Path


def git(root: Path, *arguments: str) -> str | None:
    """Return what `git ARGUMENTS` prints in the folder `root`, without white space at its ends.

    None if the command fails: there is no git, no checkout, or not what the arguments ask for.
    """
    try:
        result = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()


def commit(root: Path) -> str:
    """Return the commit of a checkout; empty if a file differs from it, or if git can't tell."""
    changed_files = git(root, "status", "--porcelain")
    if changed_files != "":
        return ""
    return git(root, "rev-parse", "HEAD") or ""
