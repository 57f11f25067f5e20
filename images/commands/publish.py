"""`publish`: validated images into a registry, with all that belongs to them."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from images.commands import common, releases
from images.commands.options import EngineUrl, GateTiers, MatrixFile, ToRepository
from images.config.platforms import Platform
from images.context.labels import LABELS
from images.engine import Engine, private_engine
from images.engine.progress import Progress
from images.errors import UserError, problem_of, wrong
from images.host import cache
from images.publish import publish as release
from images.publish import signing
from images.publish.publish import PublishOptions
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

    Several NAMEs are published one by one. What `fleet` has pushed by digest is published from there: --image.
    """
    sources = common.sources(matrix)
    names = list(dict.fromkeys(names))
    if (image or attestation) and len(names) > 1:
        then = "publish each image by a command of its own"
        raise wrong(" ".join(names), "--image and --attestation mean one image", then)
    planned = [
        found for name in names for found in common.accepted([name], sources, exactly_one=True)
    ]
    if key:
        signing.require(key)
        signing.require_password(key)
    published = {str(found.name): found for found in planned}

    def claims_of(labels: Mapping[str, str], run: Evidence) -> ClaimSet | None:
        """Of what is published by today's matrix; of what is there already only where it was built from it."""
        one = published.get(labels.get(f"{LABELS}.image", ""))
        if one:
            return releases.claims_of(one, labels, run, sources)
        return releases.claims_of_published(labels, run, sources)

    options = PublishOptions(
        repository=Repository.parse(to),
        policy=replace(
            releases.policy(gate, sources, claims_of), origin_exception=origin_exception
        ),
        cache=cache.folder() / "push",
        key=key,
        drop_platforms=drop_platforms,
    )
    failed: list[UserError] = []
    with private_engine.open_engine(engine, on_progress=common.say, install=False) as docker_engine:
        for found in planned:
            name = str(found.name)
            try:
                with Progress() as progress:
                    if image:
                        _pull_if_missing(docker_engine, image, found.name.platform)
                    local = release.read_local_image(
                        docker_engine,
                        image or found.local_name,
                        found.name,
                        attestation or sources.workspace.out / name,
                    )
                    done = release.publish(
                        docker_engine,
                        local,
                        options,
                        say=partial(progress.say, name, style="dim"),
                        on_event=progress.job(name),
                    )
                releases.tell(done)
            except UserError as error:  # one that fails stops no other
                failed.append(error)
            except OSError as error:
                failed.append(UserError(problem_of(error, name), code=1))
    if failed:
        code = failed[0].code if len(planned) == 1 else 1
        raise UserError([problem for error in failed for problem in error.problems], code=code)


def _pull_if_missing(engine: Engine, reference: str, platform: Platform) -> None:
    """Pull an image that is named by its place in a registry, where the engine lacks it. Raises UserError."""
    try:
        Reference.parse(reference)
    except UserError:  # a name of the engine's own
        return
    if engine.find(reference) is None:
        engine.pull(reference, platform=platform)
