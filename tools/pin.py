"""Records the digests of the base images in locks/bases.yaml: `python -m tools.pin`. Needs an engine and a registry."""

from __future__ import annotations

import typer

from images.config import matrix, paths
from images.context import base_images
from images.engine import private_engine
from images.planning import plan
from tools import run


def main(engine: str | None = None) -> None:
    """Record the digests of the base images."""
    with private_engine.open_engine(engine, on_progress=typer.echo) as docker_engine:
        for path, content in base_images.pin(docker_engine, plan.bases(matrix.load())).items():
            (paths.RESOURCES / path).write_bytes(content)
            typer.echo(f"wrote {path}")


if __name__ == "__main__":
    run(main)
