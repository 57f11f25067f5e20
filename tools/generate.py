"""Renews the files that are made from others: JSON Schemas, tables in the docs, golden Dockerfiles for the tests.

`python -m tools.generate [--check]`, or `nox -s generate`.
"""

from __future__ import annotations

import re
from typing import Annotated

import typer

from images.config import matrix, paths
from images.config.facts import Facts
from images.config.matrix import Sources
from images.config.schema import Matrix
from images.context import render
from images.context.labels import BaseContext
from images.errors import Problem, UserError
from images.fleet.config import Fleet
from images.locking import lock_file
from images.nightly import results
from images.planning import plan
from images.planning.plan import Planned
from images.site import index, records
from images.validation import rows
from tools import additions, baselines, gpu_runs, profile_docs, run, schemas, silent_faults

GOLDEN = ("cu126-torch25", "cu130-torch211-devel", "cu126-torch27-sm90")
"""Images whose Dockerfile is kept to be compared: a toolkit newer than the wheel, a -devel image, an arch image."""


def files(sources: Sources) -> dict[str, bytes]:
    """Path below the project's root -> content. Raises UserError when a document lost its markers."""
    profiles = profile_docs.tables(sources, profile_docs.pages(), profile_docs.recorded())
    documents = {
        "docs/images.md": _with_table("docs/images.md", "images", _table(sources)),
        "docs/profiles.md": _with_table("docs/profiles.md", "profiles", profiles),
        "docs/extending.md": _with_table(
            "docs/extending.md", "additions", additions.table(additions.read())
        ),
    }
    return {
        "docs/schema/matrix.schema.json": rows.schema(Matrix, "matrix.yaml: what we build"),
        "docs/schema/facts.schema.json": rows.schema(Facts, "facts.yaml: what the world ships"),
        "docs/schema/fleet.schema.json": rows.schema(Fleet, "fleet.yaml: the machines of a fleet"),
        **schemas.generated(),
        "docs/schema/nightly.schema.json": rows.schema(
            results.Line, "a line of results/nightly/*.jsonl"
        ),
        "docs/schema/index.schema.json": index.schema(),
        "docs/schema/runs.schema.json": rows.schema(
            records.RunLine, "a line of results/runs.jsonl"
        ),
        "images/data/baselines.json": baselines.generated(records.read()),
        **documents,
        "results/gpu.md": gpu_runs.page(records.read()),
        "results/silent-faults.md": silent_faults.table(plan.plan(sources)),
        **{f"tests/golden/{name}.Dockerfile": _golden(name, sources) for name in GOLDEN},
    }


def _golden(name: str, sources: Sources) -> bytes:
    (planned,) = plan.select([name], sources)
    if planned.image is None:
        raise UserError(
            Problem(
                where=name, cause="is refused", then="choose another image in tools/generate.py"
            )
        )
    base_context = BaseContext(reference=planned.image.base.reference, origin="tag")
    dockerfile = render.render(
        planned.image,
        lock_file.read(planned.image, paths.RESOURCES / "locks").files,
        base_context,
        suite={"claims.json": b"{}"},
    )["Dockerfile"]
    return render.content_of(dockerfile)


def _with_table(path: str, name: str, table: str) -> bytes:
    """A document with the part between its markers made anew."""
    text = (paths.RESOURCES / path).read_text(encoding="utf-8")
    place = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- /generated -->)", re.DOTALL)
    if not place.search(text):
        cause = f"has lost its markers <!-- generated: {name} --> ... <!-- /generated -->"
        raise UserError(Problem(where=path, cause=cause, then=f"`git checkout {path}`"))
    return place.sub(lambda match: match[1] + table + match[2], text).encode()


def _table(sources: Sources) -> str:
    planned = plan.plan(sources)
    accepted = [image.image for image in planned if image.image]
    states = lock_file.states(accepted, paths.RESOURCES / "locks")
    blocked = {
        str(image.name): lock_file.why_blocked(image, states[str(image.name)]) for image in accepted
    }
    unlocked = sum(map(bool, blocked.values()))
    lines = [
        f"There are {len(planned)} images. {len(accepted) - unlocked} can be built. {unlocked} have no lock yet: "
        "`nox -s lock -- NAME` makes one on a machine that reaches their package index. "
        f"{len(planned) - len(accepted)} are refused, for the reason in the last column.",
    ]
    for apart in (False, True):
        lines += ["", *(["These have no lock:", ""] if apart else [])]
        lines += [
            "| image | torch | Python | wheel | GPU architectures | driver | notes |",
            "|---|---|---|---|---|---|---|",
        ]
        lines += [_row(image) for image in planned if bool(blocked.get(image.name)) is apart]
    kept: dict[str, list[str]] = {}
    for torch, row in sources.matrix.nightly.kept.items():
        kept.setdefault(str(row), []).append(torch)
    lines += [f"\ntorch {', '.join(minors)}: {text}." for text, minors in kept.items()]
    return "\n".join(lines) + "\n"


def _row(image: Planned) -> str:
    """A line of the table; what is to be minded of a profile's packages stands in docs/profiles.md."""
    archs = " ".join(arch.capability for arch in image.archs) or "-"
    own = [
        re.split("(?<=packages require): | until `", one)[0]
        for one in image.warnings
        if not one.startswith("silently")
    ]
    warnings = ["see [profiles](profiles.md)"] if image.profile and own else own
    notes = [f"**refused**: {text}" for text in image.reasons] or warnings
    cells = [
        f"`{image.name}`",
        image.torch or "-",
        str(image.python or "-"),
        str(image.wheel_cuda or "-"),
        archs,
        f">= {image.min_driver}" if image.min_driver else "-",
        "; ".join(notes).replace("|", "\\|"),
    ]
    return f"| {' | '.join(cells)} |"


def main(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail if one is not current.")
    ] = False,
) -> None:
    """Renew the files that are made from others."""
    made = files(matrix.load())
    old = {
        path: (paths.RESOURCES / path).read_bytes()
        for path in made
        if (paths.RESOURCES / path).is_file()
    }
    stale = [path for path, content in made.items() if old.get(path) != content]
    if check and stale:
        then = "`nox -s generate`"
        raise UserError(
            [Problem(where=path, cause="is not current", then=then) for path in stale], code=1
        )
    for path in stale:
        (paths.RESOURCES / path).write_bytes(made[path])
        typer.echo(f"wrote {path}")
    typer.echo(f"{len(made)} files are current")


if __name__ == "__main__":
    run(main)
