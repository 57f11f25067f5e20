"""The verb `reproduce`: build an image twice without any cache, compare, and record the layers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from images.building.contexts import BuildOptions
from images.commands import common
from images.commands.options import (
    BaseImage,
    EngineUrl,
    MatrixFile,
    OneName,
    OutFolder,
    WheelFolder,
    require_writable,
)
from images.config import paths
from images.config.paths import Workspace
from images.context import base_images
from images.context.hosting import host_settings
from images.context.labels import LABELS
from images.engine import Engine, private_engine
from images.engine.configuration import SUITE
from images.engine.progress import Progress
from images.errors import command, failed, wrong
from images.host import checkout
from images.locking import layer_record
from images.reproduction.builds import (
    RESULT,
    BuildResult,
    Files,
    LayerBuilt,
    Reproduction,
    read_image,
    read_result,
    write_result,
)
from images.reproduction.comparison import Difference, compare, with_files
from images.reproduction.recording import record_builds
from images.site import records
from images.validation.origin import with_one_base
from images.wheels import prebuilt
from validate import installation

_DIGEST_SHOWN = slice(7, 19)
"""The first digits of `sha256:...`."""


def reproduce(
    name: OneName,
    once: Annotated[bool, typer.Option("--once", help="Build once, not twice.")] = False,
    beside: Annotated[
        str,
        typer.Option(
            "--beside",
            metavar="FILE|RUN|REF",
            help="Build once, and compare with the reproduce.json of another engine, a recorded "
            "run, or an image of this engine.",
        ),
    ] = "",
    record: Annotated[
        bool,
        typer.Option("--record", help="Write what two builds agree on into locks/layers.json."),
    ] = False,
    base: BaseImage = "auto",
    wheelhouse: WheelFolder = None,
    engine: EngineUrl = None,
    out: OutFolder = None,
    matrix: MatrixFile = None,
) -> None:
    """Build an image twice without any cache, and compare the layers of both builds.

    Where layers differ, names the files, and exits with 1. Keeps no image. OUT/NAME gets
    reproduce.json, for `--beside` on another engine.
    """
    sources = common.sources(matrix)
    workspace = sources.workspace
    folder = require_writable(out or workspace.out)
    if record:
        require_second_build(once, beside)
        require_committed(workspace)
    (image,) = common.select_accepted([name], sources, exactly_one=True)

    host = host_settings()
    options = BuildOptions(
        sources=sources,
        host=host,
        out=folder,
        base=base,
        wheelhouse=wheelhouse,
        compiled=prebuilt.wheel_finder(sources.matrix),
    )
    builds: list[tuple[BuildResult, Files]] = []
    with (
        private_engine.open_engine(engine, on_progress=common.tell) as docker_engine,
        Progress() as progress,
    ):
        if beside:
            builds.append(read_other(docker_engine, beside, workspace.results, workspace.locks))
        base_image = base_images.acquire(
            docker_engine,
            image.base,
            base,
            root=workspace.root,
            host=host,
            on_progress=common.tell,
        )
        network = host.network(local=docker_engine.facts.local)
        reproduction = Reproduction(docker_engine, image, base_image, options, network)
        for _ in range(1 if once or beside else 2):
            builds.append(reproduction.build(progress))

    result, result_files = builds[-1]
    result_folder = folder / str(image.name)
    write_result(result_folder, result, result_files)
    seconds = round(result.seconds)
    common.tell(f"{image.name} was built on {result.on} in {seconds} s: {result_folder / RESULT}")
    if len(builds) == 2:
        first, first_files = builds[0]
        differences = with_files(compare(first.layers, result.layers), first_files, result_files)
        show(first, result, differences)
        require_equal(str(image.name), differences)
    if record:
        typer.echo(record_builds(workspace.locks, [built for built, _ in builds]))
        common.say(describe_next_steps(str(image.name)))


def describe_next_steps(name: str) -> str:
    """Return what to do after an image was recorded: earlier evidence knows nothing of it."""
    return (
        f"next: commit locks/{layer_record.FILE}; `{command('validate', name)}` judges the image "
        f"by it, and `{command('publish', name, '--to', 'REPOSITORY')}` needs no exception"
    )


def require_second_build(once: bool, beside: str) -> None:
    """Raise UserError if `--once` is given and there is no other build to compare with."""
    if once and not beside:
        cause = "what two builds agree on is recorded, and --once makes only one build"
        then = (
            "give the command without --once, or add --beside FILE, with the reproduce.json of a "
            "build on another machine"
        )
        raise wrong("--record", cause, then)


def require_committed(workspace: Workspace) -> None:
    """Raise UserError if what decides the layers of an image differs from the last commit.

    Nobody else could build the image again from a matrix, lock or template that is in no commit.
    """
    matrix, locks = workspace.matrix.name, workspace.locks.name
    known = checkout.git(workspace.root, "ls-files", "--error-unmatch", "--", matrix, locks)
    if known is None:
        cause = f"{matrix} and {locks}/ in {workspace.root} are in no commit of a git repository"
        then = (
            f"commit {matrix} and {locks}/ in {workspace.root} (`git init` makes a repository), "
            "then give the command again"
        )
        raise failed("--record", cause, then)
    # The record itself may have grown by another image. A file that git ignores is in no commit.
    record = f":(exclude){locks}/{layer_record.FILE}"
    _require_unchanged(workspace.root, "--ignored", "--", matrix, locks, record)
    # A checkout of truetag has the templates, and they may have been edited.
    if installation.IS_CHECKOUT:
        _require_unchanged(paths.RESOURCES, "--", "images", "templates", "validate")


def _require_unchanged(root: Path, *arguments: str) -> None:
    """Raise UserError if `git status ARGUMENTS` lists a file in the folder `root`."""
    changed = checkout.git(root, "status", "--porcelain", *arguments)
    if changed:
        # Git prints a status of two letters and a space before each path.
        first_path = changed.splitlines()[0].split(maxsplit=1)[1]
        cause = f"{root / first_path} is in no commit as it is now"
        raise failed("--record", cause, "commit this file, then give the command again")


def read_other(engine: Engine, other: str, results: Path, locks: Path) -> tuple[BuildResult, Files]:
    """Return the layers of the build that another one is compared with, and the files in them.

    `other` is a file that `reproduce` wrote (it ends in .json), the ID of a recorded run, whose
    files are not known, or an image of the engine. Raises UserError if it is none of these, or
    can't be read.
    """
    if other.endswith(".json"):
        return read_result(Path(other))
    for line in records.read(results):
        if line.id == other:
            return result_of_run(line), {}
    info = engine.inspect(other)
    layers_built, files = read_image(engine, info, locks)
    name = info.labels.get(f"{LABELS}.image", "")
    return result_of_image(name, other, layers_built), files


def require_equal(name: str, differences: Sequence[Difference]) -> None:
    """Raise UserError if layers differ."""
    if differences:
        cause = f"the builds differ in {', '.join(row.layer for row in differences)}"
        then = (
            "read in the table above which files differ, find the step that wrote them, let it "
            "write the same bytes each time, and give the command again"
        )
        raise failed(name, cause, then)


def result_of_image(image: str, reference: str, layers_built: Sequence[LayerBuilt]) -> BuildResult:
    """Return the layers of an image of the engine. It does not count as a build."""
    return BuildResult(
        id="",
        image=image,
        on=reference,
        date="",
        recipe={},
        unknown="",
        layers=layers_built,
        seconds=0,
    )


def result_of_run(line: records.RunLine) -> BuildResult:
    """Return the layers that a recorded run measured. Their recipe was not recorded."""
    layers_built = []
    for name, diff_id in with_one_base(line.payload).items():
        if name != SUITE:
            layers_built.append(LayerBuilt(layer=name, diff_id=diff_id, written_as=diff_id))
    return BuildResult(
        id=line.id,
        image=line.image,
        on=f"the machine of the recorded run {line.id}",
        date=f"{line.date:%Y-%m-%d}" if line.date else "",
        recipe={},
        unknown="",
        layers=layers_built,
        seconds=0,
    )


def show(first: BuildResult, second: BuildResult, differences: Sequence[Difference]) -> None:
    """Print a table of two builds: each layer, its digests, and whether they are equal.

    `differences` are the layers that differ, with sentences about their files.
    """
    difference_by_layer = {row.layer: row for row in differences}
    first_ids = {row.layer: row.diff_id for row in first.layers}
    table = Table("layer", first.on, second.on, "", title=f"{second.image}, layer by layer")
    for row in second.layers:
        difference = difference_by_layer.pop(row.layer, None)
        comparison = "[green]equal[/]"
        if difference:
            comparison = f"[red]differs[/]: {'; '.join(difference.files)}"
        first_id = first_ids.get(row.layer, "")
        table.add_row(row.layer, first_id[_DIGEST_SHOWN], row.diff_id[_DIGEST_SHOWN], comparison)
    # What was not popped above are layers that the second build lacks.
    for missing in difference_by_layer.values():
        table.add_row(missing.layer, missing.first[_DIGEST_SHOWN], "", "[red]missing[/]")
    Console(width=150, highlight=False).print(table)
