"""Record the digests of base images in locks/bases.yaml: `python -m tools.pin`.

Only of bases that can't be made of locked Debian packages, because a build takes a recorded digest
before it takes these. Needs an engine and a registry.
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
    """Return the file that pins bases to what their registries serve now.

    Raises UserError if a registry doesn't answer.
    """
    digests = {reference: engine.registry_digest(reference) for reference in references}
    problems = []
    for reference, digest in digests.items():
        if digest is None:
            then = "give the command on a machine whose engine reaches that registry"
            problems.append(Problem(where=reference, cause="no registry answers for it", then=then))
    if problems:
        raise UserError(problems, code=1)
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
