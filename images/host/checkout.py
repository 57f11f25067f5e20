"""Asks git about a checkout of this project."""

import subprocess
from pathlib import Path


def git(root: Path, *arguments: str) -> str | None:
    """Return what a git command prints in the folder `root`.

    None if it fails: there is no git, or no checkout.
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
