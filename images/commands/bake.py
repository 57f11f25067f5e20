"""Builds beyond one machine: a docker-bake.json for buildx."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from images.building import bake, contexts, records, validating
from images.building.bake import BakeOptions, Provenance, Rendered
from images.commands import common, tables, trials
from images.commands.options import EngineUrl, ImageInputArguments, OneName, Out, Selectors, grouped
from images.commands.trials import TrialArguments
from images.context import labels as image_labels
from images.context.hosting import host_settings
from images.errors import Problem, UserError
from images.locking import lock_file
from images.planning.image import Image
from images.registry.reference import Repository
from images.wheels import cache as wheel_cache


@dataclass(frozen=True, kw_only=True)
class BakeArguments:
    """Where buildx takes caches from, and where it puts results."""

    to: Annotated[
        str, Option("--to", metavar="REGISTRY/REPOSITORY", help="Push there; default: load into buildx's engine.")
    ] = ""
    cache_from: Annotated[
        list[str] | None, Option("--cache-from", metavar="SPEC", help="As buildx has it; {target} is replaced.")
    ] = None
    cache_to: Annotated[
        list[str] | None, Option("--cache-to", metavar="SPEC", help="As buildx has it; {target} is replaced.")
    ] = None
    provenance: Annotated[
        Provenance, Option("--provenance", help="BuildKit's own attestation: makes an index of the image.")
    ] = Provenance.OFF


@grouped
def bake_verb(
    inputs: ImageInputArguments,
    how: BakeArguments,
    selectors: Selectors = None,
    out: Out = Path("out/bake"),
) -> None:
    """Write contexts and a docker-bake.json, for `docker buildx bake` on any builder. Validates and names nothing."""
    sources = common.sources()
    images = common.accepted(selectors or [], sources, default_index_only=not selectors)
    context_options = contexts.ContextOptions(
        facts=sources.facts,
        host=host_settings(),
        cache=common.cache(),
        compiled=wheel_cache.wheel_finder(sources.matrix, wheel_cache.default()),
        wheelhouse=inputs.wheelhouse,
        wheel_mirror=inputs.wheel_mirror,
    )
    options = BakeOptions(
        repository=str(Repository.parse(how.to)) if how.to else "",
        cache_from=how.cache_from or (),
        cache_to=how.cache_to or (),
        provenance=how.provenance,
    )
    pinned = trials.pinned_bases()
    rendered = [_written(image, inputs.base, pinned, context_options, out) for image in images]
    content = bake.bake(rendered, options)
    (out / bake.FILE).write_text(json.dumps(content, indent=1) + "\n")
    shared = len(content["target"]) - len(images)
    common.talk.print(
        f"{out / bake.FILE}: {common.counted(len(images), 'image')}, {common.counted(shared, 'shared stage')}"
    )
    common.talk.print(
        f"next: (cd {out} && docker buildx bake); then `nox -s adopt -- NAME` validates it", highlight=False
    )


def _written(image: Image, base: str, pinned: dict[str, str], options: contexts.ContextOptions, out: Path) -> Rendered:
    base_context = contexts.base_context(image.base, base, pinned)
    prepared = contexts.prepare(image, lock_file.read(image), base_context, options)
    files, folder = prepared.files, out / str(image.name)
    for reason in prepared.gathered.missing.values():
        common.say(f"{image.name} lacks {reason}")
    records.write_context(files, folder / "context")
    dockerfile = files["Dockerfile"]
    rendered = Rendered(
        name=str(image.name),
        profile=image.profile,
        dockerfile=dockerfile.decode() if isinstance(dockerfile, bytes) else dockerfile.read_text(),
        digests=contexts.digests(files),
        revision=image.revision,
        platform=image.platform,
        base={"reference": base_context.reference, "origin": base_context.origin, "digest": base_context.digest},
    )
    (folder / bake.INPUTS).write_text(json.dumps(bake.inputs(rendered), indent=1) + "\n")
    return rendered


@grouped
def adopt_verb(
    name: OneName,
    trial: TrialArguments,
    image: Annotated[str, Option("--image", metavar="REF", help="The baked image; default: NAME-candidate.")] = "",
    engine: EngineUrl = None,
    out: Out = Path("out/bake"),
) -> None:
    """Validate a baked image, record it like a build, and name it: what `build` does after the engine is done."""
    sources = common.sources()
    (wanted,) = common.accepted([name], sources, exactly_one=True)
    folder = out / str(wanted.name)
    inputs = _inputs(folder / bake.INPUTS)
    reference = image or f"{wanted.name}-candidate"
    with trials.open_engine(engine, install=False) as docker_engine:
        info = docker_engine.inspect(reference)
        record = bake.adopted(inputs, info, image_labels.declared_missing(wanted, info.labels))
        tried = trials.tried(docker_engine, wanted, info.id, sources, trial)
        withheld = validating.why_withheld(tried.verdict, tried.evidence, tried.tiers)
        if tried.changes:  # it was held to what an image on top of the baked one may change
            withheld = "it has steps above the image that was baked"
        if not withheld:
            validating.give_name(docker_engine, info.id, str(wanted.name))
    (folder / "build.json").write_text(json.dumps(record, indent=1) + "\n")
    records.record_trial(folder, tried.evidence, tried.verdict)
    common.results().print(tables.verdict(tried.verdict))
    if withheld:
        then = f"read {folder}/report.md"
        raise UserError(Problem(where=reference, cause=f"{withheld}: it gets no name", then=then), code=1)


def _inputs(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        cause = f"is not what `nox -s bake` wrote: {error}"
        then = "`nox -s bake` writes it beside the context; give the same folder with --out"
        raise UserError(Problem(where=str(file), cause=cause, then=then)) from None
