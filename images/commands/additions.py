"""What people add to an image, measured."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from images.commands import common, trials
from images.commands.options import EngineUrl, OneName
from images.config import paths
from images.config.additions import PACKAGES, packages
from images.context.hosting import host_settings
from images.errors import Problem, UserError
from images.maintenance import additions


def additions_verb(
    name: OneName,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="PACKAGE", help="Of additions.yaml (repeat it).")
    ] = None,
    engine: EngineUrl = None,
) -> None:
    """Install what people add in containers of a built image, one each, and see that torch stays as it was."""
    paths.require_checkout("additions")
    chosen = [package for package in packages() if not only or package in only]
    if not chosen:
        then = f"{paths.shown(PACKAGES)} lists them"
        raise UserError(Problem(where=" ".join(only or ()), cause="is no package that is measured", then=then))
    date = datetime.now(UTC).date().isoformat()
    file = paths.RESOURCES / additions.FILE
    host, moved = host_settings(), []
    with trials.open_engine(engine) as docker_engine:
        for package in chosen:
            row = additions.measure(docker_engine, name, package, host)
            common.say(f"{package}: {row['verdict']} in {row['seconds']} s {row['reason']}")
            file.write_bytes(additions.written(name, date, [row]))
            moved += [package] if row["verdict"] == additions.MOVED else []
    if moved:
        then = "see what the constraints in the image lack: /opt/truetag/constraints.txt"
        raise UserError(Problem(where=", ".join(moved), cause="moved torch", then=then), code=1)
