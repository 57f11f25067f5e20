"""Builds an image without any cache, and compares its layers with another build of it, file by file where they differ.

`python -m tools.reproduce NAME` builds twice. `--once` builds once; `--beside FILE` does that beside what another
engine gave, `--beside RUN` beside what a recorded run measured (results/runs.jsonl), and `--beside REF` beside an image
of this engine. `--record` writes what two builds agree on into locks/layers.json, by which images are judged:
docs/reproducible.md tells how.
"""

from __future__ import annotations

import gzip
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from images.building import contexts
from images.building.contexts import BuildOptions
from images.config import matrix
from images.context import base_images
from images.context.hosting import host_settings
from images.context.labels import LABELS, BaseContext
from images.context.render import Context
from images.engine import Engine, ImageInfo, configuration, exported, layers, private_engine
from images.engine.configuration import SUITE
from images.engine.layer_tree import LayerEntry
from images.engine.progress import Progress
from images.errors import Problem, UserError, failed
from images.host import checkout
from images.locking import layer_record, lock_file
from images.locking.layer_record import Measured
from images.planning import plan
from images.planning.image import Image
from images.site import records
from images.validation.claims.context import ClaimContext
from images.validation.origin import with_one_base
from images.wheels import prebuilt
from tools import run
from tools.cold_builds import nothing_new_kept, on_own_layer, with_own_wheels

RESULT, FILES = "reproduce.json", "reproduce-files.json.gz"
Files = Mapping[str, Sequence[LayerEntry]]
"""Layer -> what its tar has, in its order."""
_FILES_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class LayerBuilt:
    """A layer of a build, or its settings."""

    layer: str
    diff_id: str
    """In canonical form."""
    written_as: str
    """As the engine keeps it."""


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """One build without a cache."""

    id: str
    image: str
    on: str
    """The engine."""
    date: str
    recipe: Mapping[str, str]
    """Layer -> its recipe; empty where that can't be known."""
    unknown: str
    """Why not."""
    layers: Sequence[LayerBuilt]
    seconds: float

    @property
    def counts_as_build(self) -> bool:
        """Whether it was a build of its own: an image of the engine may come from the cache of another."""
        return bool(self.id)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A layer that is another in two builds."""

    layer: str
    first: str
    second: str
    """Diff IDs; empty: it has no such layer."""
    files: Sequence[str] = ()
    """The first files that differ, and how."""


class Reproduction:
    """Builds one image on one engine, each time from nothing."""

    def __init__(
        self,
        engine: Engine,
        image: Image,
        base: BaseContext,
        options: BuildOptions,
        network: str | None,
    ):
        self.engine, self.base, self.network = engine, base, network
        self.name = str(image.name)
        locked = lock_file.read(image, options.sources.workspace.locks)
        self.claimed: ClaimContext
        self.context: Context
        _, self.claimed, self.context = contexts.prepare(image, locked, base, options)

    def build(self, progress: Progress) -> tuple[BuildResult, Files]:
        """Build without any cache, and keep nothing of it. Raises UserError: a failed step."""
        word = uuid.uuid4().hex[:8]
        reference = f"truetag-reproduce:{word}"
        # Wheels that another build compiled or fetched count as a cache, too.
        context = on_own_layer(with_own_wheels(self.context, word), word)
        below = len(self.engine.inspect(self.base.reference).layers)
        with nothing_new_kept(self.engine, reference):
            job = progress.job(f"{self.name} (without cache)")
            built = self.engine.build(
                context, reference, network=self.network, no_cache=True, on_event=job
            )
            info = self.engine.inspect(reference)
            made, files = read_image(self.engine, info, marker=below)
        origin = self.claimed.origin
        recipe = origin.recipe if origin else None
        result = BuildResult(
            id=word,
            image=self.name,
            on=f"Docker {self.engine.facts.version}",
            date=f"{datetime.now(UTC):%Y-%m-%d}",
            recipe={row.layer: row.digest for row in recipe.layers} if recipe else {},
            unknown=origin.unknown if origin else "",
            layers=made,
            seconds=round(built.seconds, 1),
        )
        return result, files


def read_image(
    engine: Engine, info: ImageInfo, marker: int | None = None
) -> tuple[list[LayerBuilt], Files]:
    """Read the layers of an image, without the suite's.

    `marker`: the place of a layer that only keeps the build apart from others (tools/cold_builds.py), left out.
    Where the engine's store can't be read, layers are taken as it names them: engines from 26.1 on write canonical
    ones. Then no files are known.
    """
    stored = layers.find_layers(engine, info)
    canonical = {diff_id: diff_id for diff_id in info.layers} | layers.canonical_diff_ids(
        stored, {}, info.id
    )
    listings = exported.entries(engine, info) or [[] for _ in info.layers]
    history = [text for text in engine.steps(info.id) if configuration.has_layer(text)]
    # Names are given without the marker's step, which is none of ours.
    kept = [index for index in range(len(info.layers)) if index != marker]
    names = configuration.layer_names([history[index] for index in kept])

    as_stored = {
        name: info.layers[index] for name, index in zip(names, kept, strict=True) if name != SUITE
    }
    in_canonical_form = with_one_base(
        {name: canonical[diff_id] for name, diff_id in as_stored.items()}
    )
    one_base = with_one_base(as_stored)
    made = [
        LayerBuilt(layer=name, diff_id=diff_id, written_as=one_base[name])
        for name, diff_id in in_canonical_form.items()
    ]
    steps = engine.steps(info.id)
    settings = configuration.payload(info, steps)[configuration.SETTINGS]
    made.append(LayerBuilt(layer=configuration.SETTINGS, diff_id=settings, written_as=settings))
    return made, {
        name: listings[index] for name, index in zip(names, kept, strict=True) if name in as_stored
    }


def compare(first: Sequence[LayerBuilt], second: Sequence[LayerBuilt]) -> list[Difference]:
    """Return the layers that differ, by their names."""
    ours = {row.layer: row.diff_id for row in first}
    theirs = {row.layer: row.diff_id for row in second}
    differing = [layer for layer in {**ours, **theirs} if ours.get(layer) != theirs.get(layer)]
    return [
        Difference(layer=layer, first=ours.get(layer, ""), second=theirs.get(layer, ""))
        for layer in differing
    ]


def describe_files(first: Sequence[LayerEntry], second: Sequence[LayerEntry]) -> list[str]:
    """Return the first files that differ, and how, and how many more there are."""
    ours, theirs = {entry.path: entry for entry in first}, {entry.path: entry for entry in second}
    differing = [path for path in sorted({**ours, **theirs}) if ours.get(path) != theirs.get(path)]
    if not differing:
        return [
            "the same files in another order"
            if list(ours) != list(theirs)
            else "in how the tar is written"
        ]
    rows = []
    for path in islice(differing, _FILES_NAMED):
        one, other = ours.get(path), theirs.get(path)
        if one is None or other is None:
            rows.append(f"/{path} is only in the {'second' if one is None else 'first'}")
            continue
        fields = [
            f"{field} {before} and {after}"
            for field, before, after in zip(LayerEntry._fields, one, other, strict=True)
            if before != after
        ]
        rows.append(f"/{path}: {', '.join(fields)}")
    more = len(differing) - len(rows)
    return [*rows, f"{more} more files differ"] if more else rows


def with_files(differences: Sequence[Difference], first: Files, second: Files) -> list[Difference]:
    """Return the same differences with the files of each layer."""
    explained = []
    for row in differences:
        ours, theirs = first.get(row.layer, ()), second.get(row.layer, ())
        files = (
            describe_files(ours, theirs) if ours and theirs else ["its files can't be read here"]
        )
        explained.append(
            Difference(layer=row.layer, first=row.first, second=row.second, files=tuple(files))
        )
    return explained


def write_result(folder: Path, result: BuildResult, files: Files) -> None:
    """Write what a build gave, for a comparison on another engine or machine."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESULT).write_text(json.dumps(asdict(result), indent=1) + "\n")
    (folder / FILES).write_bytes(gzip.compress(json.dumps({**files}).encode()))


def read_result(file: Path) -> tuple[BuildResult, Files]:
    """Read what `write_result` wrote. Raises UserError."""
    try:
        data: dict[str, Any] = json.loads(file.read_bytes())
        rows = [LayerBuilt(**row) for row in data.pop("layers")]
        listings = json.loads(gzip.decompress((file.parent / FILES).read_bytes()))
    except (OSError, ValueError, LookupError, TypeError) as error:
        then = f"name the {RESULT} that this tool wrote on the other engine, with {FILES} beside it"
        raise failed(str(file), f"is no result of this tool: {error}", then) from None
    files = {layer: [entry_of(row) for row in entries] for layer, entries in listings.items()}
    return BuildResult(layers=rows, **data), files


def entry_of(row: Sequence[Any]) -> LayerEntry:
    """Return an entry as it was before it was written as JSON."""
    path, kind, mode, owner, time, link, content = row
    return LayerEntry(path, kind, mode, (owner[0], owner[1]), time, link, content)


def record_builds(locks: Path, builds: Sequence[BuildResult]) -> str:
    """Add builds that agree to the record. The last was made from this checkout.

    Returns a sentence about it. Raises UserError: too few builds, another recipe, none at all.
    """
    last = builds[-1]
    if len(builds) < layer_record.BUILDS_NEEDED:
        raise failed(
            "--record", "one build proves nothing", "leave --once out, or add --beside FILE"
        )
    if not last.recipe:
        raise failed(last.image, f"has no recipe: {last.unknown}", "only then --record")
    record = layer_record.read(locks)
    for built in builds:
        # A recorded run names no recipe: that its layers are those of this build, all of them, was compared.
        if not built.counts_as_build or built.recipe not in ({}, last.recipe):
            then = "build both from the same commit, or leave --beside out"
            raise failed(
                "--record", f"{built.on} is not known to be a build of the same recipe", then
            )
        measured = [
            Measured(
                layer=row.layer,
                recipe=last.recipe[row.layer],
                diff_id=row.diff_id,
                written_as=row.written_as,
            )
            for row in built.layers
        ]
        build = layer_record.Build(id=built.id, image=built.image, on=built.on, date=built.date)
        record = layer_record.add(record, measured, build)
    layer_record.write(record, locks)
    return f"{locks / layer_record.FILE}: {last.image}, {len(last.layers)} rows"


def require_clean(root: Path) -> None:
    """Raise UserError where the checkout is not as it was committed: nobody could build that recipe again."""
    if not checkout.commit(root):
        then = "commit or stash the changes, then record"
        raise failed(
            "--record",
            "this checkout has changes that are in no commit, or git does not know it",
            then,
        )


def main(
    name: str,
    base: Annotated[
        str, typer.Option(metavar="REF", help="The base image; default: as a build takes it.")
    ] = "auto",
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where NAME/reproduce.json goes.")
    ] = Path("out"),
    engine: Annotated[str | None, typer.Option(metavar="URL", help="The Docker Engine.")] = None,
    network: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The network of build steps: `host`, for an engine without a bridge.",
        ),
    ] = "",
    once: Annotated[bool, typer.Option("--once", help="Build once.")] = False,
    other: Annotated[
        str,
        typer.Option(
            "--beside",
            metavar="FILE|RUN|REF",
            help="The reproduce.json of another engine, a recorded run, or an image of this engine.",
        ),
    ] = "",
    record: Annotated[
        bool,
        typer.Option("--record", help="Write what two builds agree on into locks/layers.json."),
    ] = False,
) -> None:
    """Build an image without any cache, and compare its layers with those of another build."""
    sources, host = matrix.load(), host_settings()
    if record:
        require_clean(sources.workspace.root)
    (planned,) = plan.select([name], sources)
    if not (image := planned.image):
        raise UserError(
            Problem(
                where=name, cause="; ".join(planned.reasons), then="`nox -s plan` shows all images"
            )
        )
    options = BuildOptions(
        sources=sources,
        host=host,
        out=out,
        base=base,
        compiled=prebuilt.wheel_finder(sources.matrix),
    )
    builds: list[tuple[BuildResult, Files]] = []
    with (
        private_engine.open_engine(engine, on_progress=typer.echo) as docker_engine,
        Progress() as progress,
    ):
        if other:
            builds.append(read_other(docker_engine, other, sources.workspace.results))
        found = base_images.acquire(
            docker_engine,
            image.base,
            base,
            root=sources.workspace.root,
            host=host,
            on_progress=typer.echo,
        )
        base_images.require_no_contradiction(image, found)
        how = network or host.network(local=docker_engine.facts.local)
        reproduction = Reproduction(docker_engine, image, found, options, how)
        for _ in range(1 if once or other else 2):
            builds.append(reproduction.build(progress))
    result, result_files = builds[-1]
    write_result(out / name, result, result_files)
    typer.echo(f"{out / name / RESULT}: {name} on {result.on}, in {result.seconds:.0f} s")
    if len(builds) == 2:
        before, files_before = builds[0]
        differences = with_files(compare(before.layers, result.layers), files_before, result_files)
        show(before, result, differences)
        require_equal(name, differences)
    if record:
        typer.echo(record_builds(sources.workspace.locks, [built for built, _ in builds]))


def read_other(engine: Engine, other: str, results: Path) -> tuple[BuildResult, Files]:
    """Read the build beside which another is compared: a file of this tool, a recorded run, or an image."""
    if other.endswith(".json"):
        return read_result(Path(other))
    for line in records.read(results):
        if line.id == other:
            return result_of_run(line), {}
    info = engine.inspect(other)
    made, files = read_image(engine, info)
    return result_of_image(info.labels.get(f"{LABELS}.image", ""), other, made), files


def require_equal(name: str, differences: Sequence[Difference]) -> None:
    """Raise UserError where layers differ."""
    if not differences:
        return
    cause = f"the builds differ in {', '.join(row.layer for row in differences)}"
    raise UserError(Problem(where=name, cause=cause, then="the table names the files"), code=1)


def result_of_image(image: str, reference: str, made: Sequence[LayerBuilt]) -> BuildResult:
    """Return the layers of an image that lies in the engine, beside which a build is compared."""
    return BuildResult(
        id="", image=image, on=reference, date="", recipe={}, unknown="", layers=made, seconds=0
    )


def result_of_run(line: records.RunLine) -> BuildResult:
    """Return the layers that a recorded run measured. They were built on another machine; how is not recorded."""
    payload = {
        name: diff_id for name, diff_id in with_one_base(line.payload).items() if name != SUITE
    }
    return BuildResult(
        id=line.id,
        image=line.image,
        on=f"the machine of the recorded run {line.id}",
        date=f"{line.date:%Y-%m-%d}" if line.date else "",
        recipe={},
        unknown="",
        layers=[
            LayerBuilt(layer=name, diff_id=diff_id, written_as=diff_id)
            for name, diff_id in payload.items()
        ],
        seconds=0,
    )


def show(first: BuildResult, second: BuildResult, differences: Sequence[Difference]) -> None:
    """Print a row a layer."""
    by_layer = {row.layer: row for row in differences}
    table = Table("layer", first.on, second.on, "", title=f"{second.image}, layer by layer")
    digests = {row.layer: row.diff_id for row in first.layers}
    for row in second.layers:
        differs = by_layer.pop(row.layer, None)
        said = f"[red]differs[/]: {'; '.join(differs.files)}" if differs else "[green]equal[/]"
        table.add_row(row.layer, digests.get(row.layer, "")[7:19], row.diff_id[7:19], said)
    for missing in by_layer.values():
        table.add_row(missing.layer, missing.first[7:19], "", "[red]missing[/]")
    Console(width=150, highlight=False).print(table)


if __name__ == "__main__":
    run(main)
