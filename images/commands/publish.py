"""`publish`: validated images into a registry, with all that belongs to them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from images.commands import common, releases
from images.commands.options import EngineUrl, GateTiers, MatrixFile, ToRepository
from images.config.matrix import Sources
from images.config.platforms import Platform
from images.context.labels import LABELS
from images.engine import Engine, private_engine
from images.engine.progress import Progress
from images.errors import UserError, problem_of, wrong
from images.host import cache
from images.planning.image import Image
from images.publish import publish as release
from images.publish import signing
from images.publish.publish import PublishOptions
from images.registry.reference import Reference, Repository
from validate.claims import ClaimSet
from validate.evidence import Evidence


def publish(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Image names, as `plan` prints them.")],
    to: ToRepository,
    image: Annotated[
        str,
        typer.Option(
            "--image", metavar="REF", help="The image to push, from the engine or a registry; default: NAME itself."
        ),
    ] = "",
    attestation: Annotated[
        Path | None,
        typer.Option("--attestation", metavar="FOLDER", help="Of its evidence; default: out/NAME."),
    ] = None,
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="Sign with cosign: a private key.")] = "",
    all_platforms: Annotated[
        bool,
        typer.Option("--all-platforms", help="NAME and the images of its row for other platforms, under one tag."),
    ] = False,
    drop_platforms: Annotated[
        bool, typer.Option("--drop-platforms", help="Let NAME lose a platform that it has an image for there.")
    ] = False,
    gate: GateTiers = "",
    origin_exception: Annotated[
        str,
        typer.Option(
            "--origin-exception",
            metavar="WHY",
            help="Publish although the origin of its layers is UNPROVEN; the attestation says WHY.",
        ),
    ] = "",
    engine: EngineUrl = None,
    matrix: MatrixFile = None,
) -> None:
    """Push a validated image, attach attestation, SBOM and provenance, and move its tags last.

    Several NAMEs are published one by one. What `fleet` has pushed by digest is published from there: --image.
    """
    sources = common.sources(matrix)
    names = list(dict.fromkeys(names))
    if (image or attestation) and (len(names) > 1 or all_platforms):
        then = "publish each image by a command of its own: the last one of a row makes the index"
        raise wrong(" ".join(names), "--image and --attestation mean one image", then)
    rows = _rows(names, sources, whole=all_platforms)
    if key:
        signing.require(key)
        signing.require_password(key)
    published = {str(one.name): one for row in rows for one in row}

    def claims_of(labels: Mapping[str, str], run: Evidence) -> ClaimSet | None:
        """Of what is published by today's matrix; of what is there already only where it was built from it."""
        one = published.get(labels.get(f"{LABELS}.image", ""))
        if one:
            return releases.claims_of(one, labels, run, sources)
        return releases.claims_of_published(labels, run, sources)

    options = PublishOptions(
        repository=Repository.parse(to),
        policy=replace(releases.policy(gate, sources, claims_of), origin_exception=origin_exception),
        cache=cache.folder() / "push",
        key=key,
        drop_platforms=drop_platforms,
    )
    failed: list[UserError] = []
    with private_engine.open_engine(engine, on_progress=common.say, install=False) as docker_engine:
        for row in rows:
            name = str(row[0].name)
            try:
                with Progress() as progress:
                    say = partial(progress.say, name, style="dim")
                    staged = _pulled(docker_engine, image, row[0].name.platform) if image else None
                    local = []
                    for one in row:
                        folder = attestation or sources.workspace.out / str(one.name)
                        reference = image or one.local_name
                        local.append(release.read(docker_engine, reference, one.name, folder))
                    done = release.publish(
                        docker_engine, local, options, staged=staged, say=say, on_event=progress.job(name)
                    )
                releases.tell(done)
            except UserError as error:  # one that fails stops no other
                failed.append(error)
            except OSError as error:
                failed.append(UserError(problem_of(error, name), code=1))
    if failed:
        code = failed[0].code if len(rows) == 1 else 1
        raise UserError([problem for error in failed for problem in error.problems], code=code)


def _pulled(engine: Engine, reference: str, platform: Platform) -> Repository | None:
    """The repository of a registry that an image is named by, pulled where the engine lacks it. Raises UserError."""
    try:
        place = Reference.parse(reference).repository
    except UserError:
        return None
    if engine.find(reference) is None:
        engine.pull(reference, platform=platform)
    return place


def _rows(names: Sequence[str], sources: Sources, *, whole: bool) -> list[list[Image]]:
    """What is published together: each image alone, or its whole row, linux/amd64 first."""
    wanted = [str(image.name) for name in names for image in common.accepted([name], sources, exactly_one=True)]
    rows = dict.fromkeys(releases.row_of(name, sources) if whole else (name,) for name in wanted)
    return [[image for name in row for image in common.accepted([name], sources, exactly_one=True)] for row in rows]
