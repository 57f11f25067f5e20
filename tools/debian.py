"""Keeps what validated images showed of Debian's packages, so that origin/packages holds the next image's to it.

`python -m tools.debian out/NAME/evidence.json...` writes images/data/debian.json: a suite's packages by version, each
with digests of its scripts, checksums and modes, and the files that their installation writes. Only of images that this
machine has built: there apt has checked each package against its archive's signature.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from images.config import matrix, paths
from images.errors import Problem, UserError
from images.planning import plan
from images.validation.rows import read_evidence
from tools import run


def added(table: dict[str, Any], suite: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """The table with what an image showed: versions beside those that are there, of written files every digest."""
    before = table.get(suite, {"packages": {}, "generated": {}})
    packages, generated = dict(before["packages"]), dict(before["generated"])
    for name, (version, *digests) in found["unknown"].items():
        packages[name] = {**packages.get(name, {}), version: digests}
    for path, digest in found["generated"].items():
        generated[path] = sorted({*generated.get(path, ()), digest})
    both = {"packages": dict(sorted(packages.items())), "generated": dict(sorted(generated.items()))}
    return dict(sorted({**table, suite: both}.items()))


def written(table: dict[str, Any]) -> str:
    """As JSON, a line a package."""
    rows = (
        f"{json.dumps(suite)}: {{\n"
        + ",\n".join(
            f"{json.dumps(kind)}: {{\n"
            + ",\n".join(f"{json.dumps(key)}: {json.dumps(row)}" for key, row in part.items())
            + "}"
            for kind, part in parts.items()
        )
        + "}"
        for suite, parts in table.items()
    )
    return "{" + ",\n".join(rows) + "}\n"


def main(evidence: list[Path]) -> None:
    """Keep what each evidence.json shows of Debian's packages."""
    sources, file = matrix.load(), paths.DATA / "debian.json"
    for one in evidence:
        recorded = read_evidence(one)
        (planned,) = plan.select([recorded.image], sources)
        record = recorded.of("static.packages")
        measured = record.of("packages") if record else None
        if planned.image is None or measured is None or recorded.host.get("steps_above"):
            then = "`nox -s validate -- NAME --tier static` of an image of ours"
            raise UserError(Problem(where=str(one), cause="origin/packages was not measured in it", then=then), code=1)
        suite = f"{planned.image.base.suite}/{planned.image.name.platform.architecture}"
        table = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(written(added(table, suite, measured.evidence)), encoding="utf-8")
    typer.echo(f"wrote {file.name}")


if __name__ == "__main__":
    run(main)
