"""Builds beyond one machine: a docker-bake.json for buildx."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from typer import Option

from images import bake, build, contexts, source_wheels, wheelhouse
from images.bake import Options, Provenance, Rendered
from images.commands import common
from images.commands.options import Out, Selectors
from images.hosting import host_settings
from images.image import Image
from images.registry import Repository


def bake_verb(
    selectors: Selectors = None,
    to: Annotated[
        str, Option("--to", metavar="REGISTRY/REPOSITORY", help="Push there; default: load into buildx's engine.")
    ] = "",
    base: Annotated[str, Option("--base", metavar="REF", help="What FROM names; default: the base's own name.")] = "",
    wheels: Annotated[
        Path | None, Option("--wheelhouse", metavar="FOLDER", help="Folder of wheels that no index has.")
    ] = None,
    cache_from: Annotated[
        list[str] | None, Option("--cache-from", metavar="SPEC", help="As buildx has it; {target} is replaced.")
    ] = None,
    cache_to: Annotated[
        list[str] | None, Option("--cache-to", metavar="SPEC", help="As buildx has it; {target} is replaced.")
    ] = None,
    provenance: Annotated[
        Provenance, Option("--provenance", help="BuildKit's own attestation: makes an index of the image.")
    ] = Provenance.OFF,
    out: Out = Path("out/bake"),
) -> None:
    """Write contexts and a docker-bake.json, for `docker buildx bake` on any builder. Proves and names nothing."""
    sources = common.sources()
    images = common.accepted(selectors or [], sources, default_index_only=not selectors)
    order = contexts.Order(
        facts=sources.facts,
        host=host_settings(),
        cache=common.cache(),
        compiled=source_wheels.keeper(sources.matrix, wheelhouse.default()),
        wheelhouse=wheels,
    )
    options = Options(
        repository=str(Repository.parse(to)) if to else "",
        cache_from=cache_from or (),
        cache_to=cache_to or (),
        provenance=provenance,
    )
    pinned = common.pinned_bases()
    rendered = [_written(image, base, pinned, order, out) for image in images]
    content = bake.bake(rendered, options)
    (out / bake.FILE).write_text(json.dumps(content, indent=1) + "\n")
    shared = len(content["target"]) - len(images)
    common.talk.print(f"{out / bake.FILE}: {len(images)} images, {shared} shared stages")
    common.talk.print(f"next: cd {out} && docker buildx bake", highlight=False)


def _written(image: Image, base: str, pinned: dict[str, str], order: contexts.Order, out: Path) -> Rendered:
    files = contexts.context(image, contexts.ground(image.base, base, pinned), order)
    build.write(files, out / str(image.name) / "context")
    dockerfile = files["Dockerfile"]
    text = dockerfile.decode() if isinstance(dockerfile, bytes) else dockerfile.read_text()
    return Rendered(name=str(image.name), profile=image.profile, dockerfile=text, digests=contexts.digests(files))
