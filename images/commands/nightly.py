"""The verb `nightly`: build tracked images as locked and at the newest versions, and compare them.

The image as it is locked is the control, the one with the newest versions the canary.
"""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from images.building.contexts import BuildOptions
from images.commands import common
from images.commands.options import (
    BaseImage,
    EngineUrl,
    Gpus,
    Json,
    MatrixFile,
    OutFolder,
    Selectors,
    Tiers,
    WheelFolder,
    require_writable,
)
from images.config.matrix import Sources
from images.context.hosting import host_settings
from images.engine import private_engine
from images.engine.progress import Progress
from images.errors import Problem, UserError, problem_of, wrong
from images.hardware.inventory import GpuMode
from images.nightly import proposal, results, sets
from images.nightly import run as one_image
from images.nightly.run import ImageResult
from images.nightly.sets import NightlyOptions
from images.planning import plan
from images.planning.plan import Planned
from images.wheels import prebuilt


def nightly(
    selectors: Selectors = None,
    lines: Annotated[
        Path | None,
        typer.Option(
            "--results",
            metavar="FOLDER",
            help="Where lines are appended; default: results/nightly.",
        ),
    ] = None,
    tier: Tiers = None,
    gpus: Gpus = GpuMode.AUTO,
    base: BaseImage = "auto",
    wheelhouse: WheelFolder = None,
    as_json: Json = False,
    engine: EngineUrl = None,
    out: OutFolder = None,
    matrix: MatrixFile = None,
) -> None:
    """Build and validate images as they are locked and at the newest versions; bisect what breaks.

    The control is built without a cache. OUT (out/nightly) gets evidence, reports (texts of issues)
    and update proposals. Exits with 1 if a control or a canary is broken.
    """
    sources = common.sources(matrix)
    folder = require_writable(out or sources.workspace.out / "nightly")
    tracked = _select_tracked(selectors or [], sources)
    now = datetime.now(UTC).replace(microsecond=0)
    image_results: list[ImageResult] = []
    problems: list[Problem] = []
    with (
        private_engine.open_engine(engine, on_progress=common.say) as docker_engine,
        Progress() as progress,
    ):
        build = BuildOptions(
            sources=sources,
            host=host_settings(),
            out=folder,
            base=base,
            wheelhouse=wheelhouse,
            tiers=tier or (),
            gpus=gpus,
            compiled=prebuilt.wheel_finder(sources.matrix),
        )
        options = NightlyOptions(
            sources=sources,
            validate=sets.build_with(docker_engine, build, progress),
            now=lambda: datetime.now(UTC).replace(microsecond=0),
            results=lines or sources.workspace.results / "nightly",
            tiers=tier or (),
            progress=progress.say,
        )
        for planned in tracked:
            # An image that can't be built does not stop the others.
            try:
                if planned.image:
                    image_results.append(one_image.run(planned, planned.image, options))
            except UserError as error:
                problems += error.problems
            except OSError as error:
                problems.append(problem_of(error, planned.name))

    entries = []
    for result in image_results:
        entries.append(_write_files(result, sources, folder, has_wheelhouse=wheelhouse is not None))
    if as_json:
        typer.echo(json.dumps({"date": now.isoformat(), "images": entries}, indent=1))
    else:
        for result, entry in zip(image_results, entries, strict=True):
            for text in _sentences(result, entry["proposal"]):
                typer.echo(f"{result.image}  {text}")
    if problems:
        raise UserError(problems, code=1)
    raise typer.Exit(1 if any(result.broken for result in image_results) else 0)


def _select_tracked(selectors: Sequence[str], sources: Sources) -> list[Planned]:
    """Return the images that selectors mean; without selectors, those that the matrix tracks.

    Refused ones are left out. Raises UserError if no image is named, or a refused one by its name.
    """
    selected = list(selectors or sources.matrix.nightly.track)
    if not selected:
        then = "name images in the command, or list some under `nightly: track` in matrix.yaml"
        raise wrong("nightly", "no image is named, and matrix.yaml tracks none", then)
    accepted = {str(image.name) for image in common.select_accepted(selected, sources)}
    return [planned for planned in plan.select(selected, sources) if planned.name in accepted]


def _write_files(
    result: ImageResult, sources: Sources, folder: Path, *, has_wheelhouse: bool
) -> dict[str, Any]:
    """Write the files of a nightly run of an image, and return the run's results as JSON.

    `folder` gets `reports/KEY.md` for each set of new versions that breaks something. If the newest
    versions (`canary`) are as good as the locked ones (`control`), it also gets a patch that moves
    the image to them, in `proposals/IMAGE/`. `has_wheelhouse`: whether --wheelhouse was given.
    """
    for breakage in result.breakages:
        report = folder / "reports" / f"{breakage.key}.md"
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(results.write_issue(breakage))

    place = folder / "proposals" / result.image
    proposal_entry = proposal.write(result, sources, place, has_wheelhouse=has_wheelhouse)
    return {
        "image": result.image,
        "control": result.control.model_dump(mode="json"),
        "canary": result.canary.model_dump(mode="json"),
        "breakages": [line.model_dump(mode="json") for line in result.breakages],
        "proposal": proposal_entry,
    }


def _sentences(result: ImageResult, proposed: str) -> Iterator[str]:
    """Yield a sentence for each result of an image. `proposed` is the update proposal's folder."""
    yield results.summarize(result.control)
    yield results.summarize(result.canary)
    for breakage in result.breakages:
        yield breakage.sentence
    if proposed:
        yield f"update proposal: {proposed}"
