"""Records the digests of the base images in locks/bases.yaml: `python -m tools.pin`. Needs an engine and a registry.

Of those that can't be made of locked Debian packages: a digest would be taken in place of these.
"""

from __future__ import annotations

from collections.abc import Iterable

import typer
import yaml

from images.config import matrix, paths
from images.context.base_images import PINS_FILE
from images.engine import Engine, private_engine
from images.errors import Problem, UserError
from tools import run


def pins(engine: Engine, references: Iterable[str]) -> str:
    """The file that pins these bases to what their registries serve now. Raises UserError when one doesn't answer."""
    digests = {reference: engine.registry_digest(reference) for reference in references}
    silent = [reference for reference, digest in digests.items() if digest is None]
    if silent:
        cause, then = "no registry answers", "pin elsewhere"
        raise UserError([Problem(where=one, cause=cause, then=then) for one in silent], code=1)
    head = "# What the base images' tags meant when `python -m tools.pin` last ran. Generated.\n"
    return head + yaml.safe_dump(digests)


def main(engine: str | None = None) -> None:
    """Record the digests of the base images that no locked packages make."""
    with private_engine.open_engine(engine, on_progress=typer.echo) as docker_engine:
        bases = matrix.load().matrix.bases.values()
        text = pins(docker_engine, (row.reference for row in bases if not row.suite))
    (paths.RESOURCES / PINS_FILE).write_text(text, encoding="utf-8")
    typer.echo(f"wrote {PINS_FILE}")


if __name__ == "__main__":
    run(main)
