"""Lock our own environments: requirements/*.txt from pyproject.toml, with hashes.

The locks are for all platforms and Pythons. `python -m tools.relock` keeps what is locked where
pyproject.toml still allows it; with --upgrade, it takes the newest.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from typing import Annotated

import typer
from uv import find_uv_bin

from images.config.paths import RESOURCES
from images.errors import failed
from tools import run

LOCKS: Mapping[str, tuple[str, ...]] = {
    "run": (),
    "fleet": ("ray", "slurm"),
    "docs": ("docs",),
    "dev": ("lint", "test"),
}
"""File of requirements/ -> the extras of pyproject.toml in it, beside what every run needs."""
_COMPILE = (
    *("pip", "compile", "--no-config", "--quiet", "--universal", "--generate-hashes"),
    *("--python-version", "3.11", "--no-emit-index-url", "--no-emit-find-links", "--no-annotate"),
    *("--custom-compile-command", "python -m tools.relock"),
)


def main(
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="Take the newest of everything.")
    ] = False,
) -> None:
    """Lock what sessions and workflows install, from uv's default index.

    Settings of this machine, which may name another index, are left out.
    """
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))
    }
    for name, extras in LOCKS.items():
        file = f"requirements/{name}.txt"
        command = [find_uv_bin(), *_COMPILE, "--output-file", file]
        for extra in extras:
            command += ["--extra", extra]
        if upgrade:
            command.append("--upgrade")
        process = subprocess.run(
            [*command, "pyproject.toml"],
            cwd=RESOURCES,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode:
            cause = " ".join(process.stderr.split())[-600:]
            then = (
                "if uv names a requirement, correct it in pyproject.toml; if the index can't be "
                "reached, give the command where it can"
            )
            raise failed(file, cause, then)
        typer.echo(file)


if __name__ == "__main__":
    run(main)
