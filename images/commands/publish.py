"""The verb `publish`: push validated images into a registry, with statements and tags."""

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
from images.errors import Problem, UserError, problem_of, wrong
from images.host import cache
from images.planning.image import Image
from images.publish import publish as release
from images.publish import signing
from images.publish.publish import PublishOptions
from images.publish.release import PublishResult
from images.registry.reference import Reference, Repository
from validate.claims import ClaimSet
from validate.evidence import Evidence


def publish(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Image names, as `plan` prints them.")
    ],
    to: ToRepository,
    image: Annotated[
        str,
        typer.Option(
            "--image",
            metavar="REF",
            help="The image to push, from the engine or a registry; default: NAME itself.",
        ),
    ] = "",
    attestation: Annotated[
        Path | None,
        typer.Option("--attestation", metavar="FOLDER", help="Of its evidence; default: out/NAME."),
    ] = None,
    key: Annotated[
        str, typer.Option("--key", metavar="KEY", help="Sign with cosign: a private key.")
    ] = "",
    drop_platforms: Annotated[
        bool,
        typer.Option(
            "--drop-platforms", help="Let NAME lose a platform that it has an image for there."
        ),
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

    Several NAMEs are published one by one. What `fleet` has pushed by digest is published from
    there: --image.
    """
    if origin_exception and not origin_exception.strip():
        then = "say why the image is published all the same, or leave --origin-exception out"
        raise wrong("--origin-exception", "the reason is only white space", then)
    sources = common.sources(matrix)
    names = list(dict.fromkeys(names))
    if (image or attestation) and len(names) > 1:
        then = "publish each image by a command of its own"
        cause = f"--image and --attestation are for one image, and {len(names)} are named"
        raise wrong(" ".join(names), cause, then)
    planned: list[Image] = []
    for name in names:
        planned += common.select_accepted([name], sources, exactly_one=True)
    if key:
        signing.require_key(key)
        signing.require_password(key)
    policy = releases.policy(gate, sources, partial(_claims_of, planned, sources))
    options = PublishOptions(
        repository=Repository.parse(to),
        policy=replace(policy, origin_exception=origin_exception),
        cache=cache.folder() / "push",
        key=key,
        drop_platforms=drop_platforms,
    )
    problems: list[Problem] = []
    code = 1
    with private_engine.open_engine(engine, on_progress=common.say, install=False) as docker_engine:
        for planned_image in planned:
            name = str(planned_image.name)
            folder = attestation or sources.workspace.out / name
            # An image that fails does not stop the others.
            try:
                result = publish_image(docker_engine, planned_image, image, folder, options)
                releases.print_result(result)
            except UserError as error:
                problems += error.problems
                # The exit status for several images is 1, whatever is wrong with some of them.
                if len(planned) == 1:
                    code = error.code
            except OSError as error:
                problems.append(problem_of(error, name))
    if problems:
        raise UserError(problems, code=code)


def _claims_of(
    images: Sequence[Image], sources: Sources, labels: Mapping[str, str], run: Evidence
) -> ClaimSet | None:
    """Return today's claims for an image with these labels, whose validation run is `run`.

    Claims are statements about the image that a validation tests. The image is one of the `images`
    to publish, or one that is published already. None if the matrix no longer makes that.
    """
    name = labels.get(f"{LABELS}.image", "")
    for image in images:
        if str(image.name) == name:
            return releases.claims_of(image, labels, run, sources)
    return releases.claims_of_published(labels, run, sources)


def publish_image(
    engine: Engine, image: Image, reference: str, folder: Path, options: PublishOptions
) -> PublishResult:
    """Publish one image, and show the progress on the terminal. Return what was published.

    `reference` is the option --image, the image to push; empty: it has its usual name in the
    engine. `folder` has the files of its validation run. Raises UserError if the image is not
    there or fails the gate of the matrix, or if a registry does not take it.
    """
    name = str(image.name)
    with Progress() as progress:
        if reference:
            pull_if_missing(engine, reference, image.name.platform)
        local = release.read_local_image(engine, reference or image.local_name, image.name, folder)
        return release.publish(
            engine,
            local,
            options,
            say=partial(progress.say, name, style="dim"),
            on_event=progress.job(name),
        )


def pull_if_missing(engine: Engine, reference: str, platform: Platform) -> None:
    """Pull an image that the engine lacks, if the reference names a place in a registry.

    A name in the engine names no such place. Raises UserError if the image can't be pulled.
    """
    try:
        Reference.parse(reference)
    except UserError:
        # It is a name in the engine: there is nothing to pull it from.
        return
    if engine.find(reference) is None:
        engine.pull(reference, platform=platform)
