"""Locks our own environments: requirements/*.txt from pyproject.toml, with hashes, for all platforms and Pythons.

`python -m tools.relock` keeps what is locked where pyproject.toml still allows it; with --upgrade the newest is taken.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from typing import Annotated

import typer
from uv import find_uv_bin

from images.config.paths import RESOURCES
from images.errors import Problem, UserError
from tools import run

LOCKS: Mapping[str, tuple[str, ...]] = {
    "run": (),
    "fleet": ("ray", "slurm"),
    "docs": ("docs",),
    "dev": ("lint", "test"),
}
"""File of requirements/ -> the extras that it has beside what runs."""


def main(
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="Take the newest of everything.")
    ] = False,
) -> None:
    """Lock what sessions and workflows install, from uv's default index, whatever this machine is told of others."""
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))
    }
    for name, extras in LOCKS.items():
        file = f"requirements/{name}.txt"
        command = [
            find_uv_bin(),
            "pip",
            "compile",
            "--no-config",
            "--quiet",
            "--universal",
            "--generate-hashes",
        ]
        command += ["--python-version", "3.11", "--no-emit-index-url", "--no-emit-find-links"]
        command += [
            "--no-annotate",
            "--custom-compile-command",
            "python -m tools.relock",
            "--output-file",
            file,
        ]
        command += [word for extra in extras for word in ("--extra", extra)]
        command += ["--upgrade"] if upgrade else []
        done = subprocess.run(
            [*command, "pyproject.toml"],
            cwd=RESOURCES,
            env=own,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            cause = " ".join(done.stderr.split())[-600:]
            raise UserError(
                Problem(where=file, cause=cause, then="mend pyproject.toml, or the network"), code=1
            )
        typer.echo(file)


if __name__ == "__main__":
    run(main)
