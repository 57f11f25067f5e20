"""Renew the files that are made from others.

These are JSON Schemas, tables in the docs, and golden Dockerfiles for the tests.
`python -m tools.generate [--check]`, or `nox -s generate`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated

import typer

from images.config import matrix, paths
from images.config.facts import Facts
from images.config.matrix import Sources
from images.config.schema import Matrix
from images.context import render
from images.context.labels import BaseContext
from images.context.prose import to_markdown
from images.errors import Problem, UserError, wrong
from images.fleet.config import Fleet
from images.locking import lock_file
from images.nightly import results
from images.planning import plan
from images.planning.plan import Planned
from images.site import index, records
from images.site.recorded import RecordedRuns
from images.validation import rows
from tools import additions, baselines, gpu_runs, profile_docs, run, schemas, silent_faults
from validate.claims import Tier
from validate.judging import plural

GOLDEN = ("cu126-torch25", "cu130-torch211-devel", "cu126-torch27-sm90")
"""Images whose Dockerfile is kept for comparison.

One has a toolkit newer than its wheel, one is a -devel image, one is for one architecture."""


def files(sources: Sources) -> dict[str, bytes]:
    """Return the files: path below the project's root -> content.

    Raises UserError if a document has lost the markers of its generated part.
    """
    profiles = profile_docs.tables(sources, profile_docs.pages(), profile_docs.recorded())
    measured_additions = additions.table(additions.read())
    contents = {
        **_schemas(),
        "images/data/baselines.json": baselines.generated(records.read()),
        "docs/images.md": _with_table("docs/images.md", "images", _images_table(sources)),
        "docs/profiles.md": _with_table("docs/profiles.md", "profiles", profiles),
        "docs/extending.md": _with_table("docs/extending.md", "additions", measured_additions),
        "results/gpu.md": gpu_runs.page(records.read(), sources),
        "results/silent-faults.md": silent_faults.table(plan.plan(sources)),
    }
    for name in GOLDEN:
        contents[f"tests/golden/{name}.Dockerfile"] = _golden(name, sources)
    return contents


def _schemas() -> dict[str, bytes]:
    """Return the JSON Schemas of what the verbs read and write."""
    nightly_line = rows.schema(results.Line, "a line of results/nightly/*.jsonl")
    run_line = rows.schema(records.RunLine, "a line of results/runs.jsonl")
    return {
        "docs/schema/matrix.schema.json": rows.schema(Matrix, "matrix.yaml: what we build"),
        "docs/schema/facts.schema.json": rows.schema(Facts, "facts.yaml: what the world ships"),
        "docs/schema/fleet.schema.json": rows.schema(Fleet, "fleet.yaml: the machines of a fleet"),
        **schemas.generated(),
        "docs/schema/nightly.schema.json": nightly_line,
        "docs/schema/index.schema.json": index.schema(),
        "docs/schema/runs.schema.json": run_line,
    }


def _golden(name: str, sources: Sources) -> bytes:
    """Return the Dockerfile of an image, as it is rendered today."""
    (planned,) = plan.select([name], sources)
    image = planned.image
    if image is None:
        cause = f"the plan refuses this image: {'; '.join(planned.reasons)}"
        raise wrong(name, cause, "name another image for tests/golden in tools/generate.py")
    lock = lock_file.read(image, paths.RESOURCES / "locks")
    base_context = BaseContext(reference=image.base.reference, origin="tag")
    context = render.render(image, lock.files, base_context, suite={"claims.json": b"{}"})
    return render.content_of(context["Dockerfile"])


def _with_table(path: str, name: str, table: str) -> bytes:
    """Return a document with `table` between the markers of this name.

    Raises UserError if it has no such markers.
    """
    text = (paths.RESOURCES / path).read_text(encoding="utf-8")
    place = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- /generated -->)", re.DOTALL)
    if not place.search(text):
        cause = f"the page has lost its markers <!-- generated: {name} --> ... <!-- /generated -->"
        then = f"write them back where the table shall stand, or `git checkout {path}`"
        raise wrong(path, cause, then)
    return place.sub(lambda match: match[1] + table + match[2], text).encode()


def _images_table(sources: Sources) -> str:
    """Return the generated part of docs/images.md: a table of images, and one of those not locked.

    Refused images are in the first one. Below stand releases of torch that the nightly keeps.
    """
    planned = plan.plan(sources)
    accepted = [row.image for row in planned if row.image]
    states = lock_file.states(accepted, paths.RESOURCES / "locks")
    unlocked = set()
    for image in accepted:
        if lock_file.why_blocked(image, states[str(image.name)]):
            unlocked.add(str(image.name))

    recorded = RecordedRuns.read(sources)
    with_lock = [row for row in planned if str(row.name) not in unlocked]
    without_lock = [row for row in planned if str(row.name) in unlocked]
    lines = [
        f"There are {len(planned)} images. {len(accepted) - len(unlocked)} can be built. "
        f"{len(unlocked)} have no lock yet: "
        "`nox -s lock -- NAME` makes one on a machine that reaches their package index. "
        f"{len(planned) - len(accepted)} are refused, for the reason in the last column.",
        "",
        *_table(with_lock, recorded),
        "",
        "These have no lock:",
        "",
        *_table(without_lock, recorded),
    ]

    minors_by_reason: dict[str, list[str]] = {}
    for torch, reason in sources.matrix.nightly.kept.items():
        minors_by_reason.setdefault(str(reason), []).append(torch)
    for reason_text, minors in minors_by_reason.items():
        lines.append(f"\ntorch {', '.join(minors)}: {reason_text}.")
    return "\n".join(lines) + "\n"


def _table(images: Iterable[Planned], recorded: RecordedRuns) -> list[str]:
    """Return the lines of a table of images."""
    return [
        "| image | torch | Python | wheel | GPU architectures | driver | gpu tier | notes |",
        "|---|---|---|---|---|---|---|---|",
        *(_row(image, recorded) for image in images),
    ]


def _row(image: Planned, recorded: RecordedRuns) -> str:
    """Return an image's line of the table.

    Warnings about a profile's packages are not here, but in docs/profiles.md.
    """
    warnings = []
    for warning in image.warnings:
        # The table of silent faults has those. Of other warnings, only their beginning is shown.
        if not warning.startswith("silently"):
            warnings.append(re.split("(?<=packages require): | until `", warning)[0])
    if image.reasons:
        notes = [f"**refused**: {reason}" for reason in image.reasons]
    elif image.profile and warnings:
        notes = ["see [profiles](profiles.md)"]
    else:
        notes = warnings

    archs = " ".join(arch.capability for arch in image.archs)
    cells = [
        f"`{image.name}`",
        image.torch or "-",
        str(image.python or "-"),
        str(image.wheel_cuda or "-"),
        archs or "-",
        f">= {image.min_driver}" if image.min_driver else "-",
        _gpu_runs(image, recorded),
        to_markdown("; ".join(notes)).replace("|", "\\|"),
    ]
    return f"| {' | '.join(cells)} |"


def _gpu_runs(planned: Planned, recorded: RecordedRuns) -> str:
    """Return the cell about an image's gpu tier: the verdict on each GPU, and the day."""
    if planned.image is None:
        return "-"
    verdicts = []
    for tier_run in recorded.status(planned.image, with_claims=False).deciding:
        if tier_run.tier is Tier.GPU:
            words = [f"{tier_run.verdict} on {tier_run.gpus}", str(tier_run.date)]
            if tier_run.known:
                words.append(plural(tier_run.known, "known fault"))
            if tier_run.moved:
                words.append("stale")
            verdicts.append(", ".join(words))
    return "; ".join(verdicts) or "not run"


def main(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail if one is not current.")
    ] = False,
) -> None:
    """Renew the files that are made from others."""
    contents = files(matrix.load())
    stale = []
    for path, content in contents.items():
        file = paths.RESOURCES / path
        if not file.is_file() or file.read_bytes() != content:
            stale.append(path)

    if check and stale:
        cause = "this generated file is not current"
        then = "`nox -s generate` writes it anew; commit it"
        problems = [Problem(where=path, cause=cause, then=then) for path in stale]
        raise UserError(problems, code=1)
    for path in stale:
        (paths.RESOURCES / path).write_bytes(contents[path])
        typer.echo(f"wrote {path}")
    typer.echo(f"{len(contents)} files are current")


if __name__ == "__main__":
    run(main)
