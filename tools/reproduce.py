"""Build an image without any cache, and compare its layers with those of another build.

`python -m tools.reproduce NAME` builds twice. `--once` builds once. `--beside` builds once and
compares with what another engine gave (FILE), what a recorded run measured (RUN, an id in
results/runs.jsonl), or an image of this engine (REF). Where layers differ, it names the files.

`--record` writes what two builds agree on into locks/layers.json, by which images are judged
(docs/reproducible.md).
"""

from __future__ import annotations

import gzip
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
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
from images.errors import failed, wrong
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
_MOST_NAMED = 5
"""Files of a layer that are named, before the others are counted."""
_DIGEST_SHOWN = slice(7, 19)
"""The first digits of `sha256:...`."""


@dataclass(frozen=True, kw_only=True)
class LayerBuilt:
    """A layer of a build, or its settings."""

    layer: str
    diff_id: str
    """Of the layer in canonical form, which is the same for all engines."""
    written_as: str
    """The diff ID of the layer as the engine wrote it."""
    change: str = ""
    """Its change digest (images/engine/layers.py); empty if the engine's store can't be read."""


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """What one build gave, or what is known of another image of that name."""

    id: str
    """Empty if it is an image of the engine, which may come from the cache of another build."""
    image: str
    on: str
    """The engine, or the machine of a recorded run."""
    date: str
    recipe: Mapping[str, str]
    """Layer -> its recipe; empty if that is not known."""
    unknown: str
    """Why the recipe is not known."""
    layers: Sequence[LayerBuilt]
    seconds: float
    """How long the build took; 0 if that is not known."""

    @property
    def counts_as_build(self) -> bool:
        """Whether nothing of another build went into it."""
        return bool(self.id)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A layer that is not the same in two builds."""

    layer: str
    first: str
    second: str
    """Diff IDs; empty for a build without such a layer."""
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
        self.engine = engine
        self.base = base
        self.network = network
        self.name = str(image.name)
        self.locks = options.sources.workspace.locks
        lock = lock_file.read(image, self.locks)
        self.claim_context: ClaimContext
        self.context: Context
        _, self.claim_context, self.context = contexts.prepare(image, lock, base, options)

    def build(self, progress: Progress) -> tuple[BuildResult, Files]:
        """Build without any cache, and leave nothing of it in the engine.

        Raises UserError if a step fails.
        """
        build_id = uuid.uuid4().hex[:8]
        reference = f"truetag-reproduce:{build_id}"
        # Wheels that another build compiled or fetched count as a cache, too.
        context = on_own_layer(with_own_wheels(self.context, build_id), build_id)
        # The layer that `on_own_layer` adds comes directly above those of the base.
        marker = len(self.engine.inspect(self.base.reference).layers)
        with nothing_new_kept(self.engine, reference):
            job = progress.job(f"{self.name} (without cache)")
            built = self.engine.build(
                context,
                reference,
                network=self.network,
                no_cache=True,
                unpack=False,
                on_event=job,
            )
            info = self.engine.inspect(reference)
            layers_built, files = read_image(self.engine, info, self.locks, marker=marker)

        origin = self.claim_context.origin
        recipe = origin.recipe if origin else None
        result = BuildResult(
            id=build_id,
            image=self.name,
            on=f"Docker {self.engine.facts.version}",
            date=f"{datetime.now(UTC):%Y-%m-%d}",
            recipe={row.layer: row.digest for row in recipe.layers} if recipe else {},
            unknown=origin.unknown if origin else "",
            layers=layers_built,
            seconds=round(built.seconds, 1),
        )
        return result, files


def read_image(
    engine: Engine, info: ImageInfo, locks: Path, marker: int | None = None
) -> tuple[list[LayerBuilt], Files]:
    """Read the layers of an image, without the suite's.

    `locks` has the record, from which layers that another store wrote get their diff IDs.
    `marker`: the index of a layer to leave out, which only keeps a build apart from others
    (tools/cold_builds.py). If the engine's store can't be read, the layers' diff IDs are taken as
    canonical, as they are from engine 26.1 on. Then there are no files.
    """
    stored = layers.find_layers(engine, info)
    canonical = {diff_id: diff_id for diff_id in info.layers}
    known = layer_record.known_forms(layer_record.read(locks))
    canonical |= layers.canonical_diff_ids(stored, known, info.digest)
    changes = layers.change_digests(stored, info.digest)
    listings = exported.entries(engine, info) or [[] for _ in info.layers]

    # The marker's step is left out first: names of layers count the steps of an image.
    steps = engine.steps(info.handle)
    steps_with_layer = [text for text in steps if configuration.has_layer(text)]
    indexes = [index for index in range(len(info.layers)) if index != marker]
    names = configuration.layer_names([steps_with_layer[index] for index in indexes])

    written_as: dict[str, str] = {}
    files: dict[str, Sequence[LayerEntry]] = {}
    for name, index in zip(names, indexes, strict=True):
        if name != SUITE:
            written_as[name] = info.layers[index]
            files[name] = listings[index]
    diff_ids = {name: canonical[diff_id] for name, diff_id in written_as.items()}

    # A base of several layers counts as one.
    written_with_one_base = with_one_base(written_as)
    layers_built = []
    for name, diff_id in with_one_base(diff_ids).items():
        written = written_with_one_base[name]
        # A base of several layers has no change digest.
        change = changes.get(written, "")
        layers_built.append(
            LayerBuilt(layer=name, diff_id=diff_id, written_as=written, change=change)
        )
    settings = configuration.payload(info, steps)[configuration.SETTINGS]
    layers_built.append(
        LayerBuilt(layer=configuration.SETTINGS, diff_id=settings, written_as=settings)
    )
    return layers_built, files


def compare(first: Sequence[LayerBuilt], second: Sequence[LayerBuilt]) -> list[Difference]:
    """Return the layers that differ, without their files. Layers are compared by their names."""
    rows = {row.layer: row for row in first}
    other_rows = {row.layer: row for row in second}
    differences = []
    for layer in {**rows, **other_rows}:
        row, other = rows.get(layer), other_rows.get(layer)
        if row is None or other is None or not is_same_layer(row, other):
            first_id = row.diff_id if row else ""
            second_id = other.diff_id if other else ""
            differences.append(Difference(layer=layer, first=first_id, second=second_id))
    return differences


def is_same_layer(first: LayerBuilt, second: LayerBuilt) -> bool:
    """Return whether two builds of a layer gave the same files, whichever stores wrote them."""
    has_same_change = bool(first.change) and first.change == second.change
    return first.diff_id == second.diff_id or has_same_change


def describe_files(first: Sequence[LayerEntry], second: Sequence[LayerEntry]) -> list[str]:
    """Return sentences on how two listings of a layer differ.

    The first files are named, with what differs: `/etc/x: mode 420 and 493`. Others are counted.
    """
    first_by_path = {entry.path: entry for entry in first}
    second_by_path = {entry.path: entry for entry in second}
    paths = sorted({**first_by_path, **second_by_path})
    differing = [path for path in paths if first_by_path.get(path) != second_by_path.get(path)]
    if not differing:
        is_same_order = list(first_by_path) == list(second_by_path)
        return ["in how the tar is written" if is_same_order else "the same files in another order"]

    sentences = []
    for path in differing[:_MOST_NAMED]:
        before, after = first_by_path.get(path), second_by_path.get(path)
        if before is None or after is None:
            sentences.append(f"/{path} is only in the {'second' if before is None else 'first'}")
            continue
        fields = []
        for field, old, new in zip(LayerEntry._fields, before, after, strict=True):
            if old != new:
                fields.append(f"{field} {old} and {new}")
        sentences.append(f"/{path}: {', '.join(fields)}")
    more = len(differing) - len(sentences)
    if more:
        sentences.append(f"{more} more files differ")
    return sentences


def with_files(differences: Sequence[Difference], first: Files, second: Files) -> list[Difference]:
    """Return the same differences with sentences on the files of each layer."""
    explained = []
    for row in differences:
        entries, other_entries = first.get(row.layer, ()), second.get(row.layer, ())
        sentences = ["its files can't be read here"]
        if entries and other_entries:
            sentences = describe_files(entries, other_entries)
        explained.append(replace(row, files=tuple(sentences)))
    return explained


def write_result(folder: Path, result: BuildResult, files: Files) -> None:
    """Write what a build gave into a folder, for a comparison on another engine or machine."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESULT).write_text(json.dumps(asdict(result), indent=1) + "\n")
    (folder / FILES).write_bytes(gzip.compress(json.dumps({**files}).encode()))


def read_result(file: Path) -> tuple[BuildResult, Files]:
    """Read what `write_result` wrote: `file` is its RESULT. Raises UserError if it is none."""
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
    """Return an entry as it was before it was written as JSON, which has no tuples."""
    path, kind, mode, owner, time, link, content, attributes = row
    return LayerEntry(path, kind, mode, (owner[0], owner[1]), time, link, content, attributes)


def record_builds(locks: Path, builds: Sequence[BuildResult]) -> str:
    """Add builds that agree to the record in the folder `locks`, and return a sentence about it.

    The last build was made from this checkout. Raises UserError if there are too few builds, the
    recipe is not known, or one of them has another recipe or is no build of its own.
    """
    last = builds[-1]
    if len(builds) < layer_record.BUILDS_NEEDED:
        then = "leave --once out, or add --beside FILE"
        raise failed("--record", "two builds are needed, and there is only one", then)
    if not last.recipe:
        cause = f"the image has no recipe to record its layers by: {last.unknown}"
        raise failed(last.image, cause, "do what the reason says, then give --record again")

    record = layer_record.read(locks)
    for built in builds:
        # A recorded run names no recipe. But all its layers were found to be those of this build.
        has_same_recipe = built.recipe in ({}, last.recipe)
        if not built.counts_as_build or not has_same_recipe:
            cause = f"the build on {built.on} is not known to be one of the same recipe"
            then = "build both from the same commit, or leave --beside out"
            raise failed("--record", cause, then)
        rows = []
        for layer in built.layers:
            rows.append(
                Measured(
                    layer=layer.layer,
                    recipe=last.recipe[layer.layer],
                    diff_id=layer.diff_id,
                    written_as=layer.written_as,
                    change=layer.change,
                )
            )
        build = layer_record.Build(id=built.id, image=built.image, on=built.on, date=built.date)
        record = layer_record.add(record, rows, build)
    layer_record.write(record, locks)
    return f"{locks / layer_record.FILE}: {last.image}, {len(last.layers)} rows"


def require_clean(root: Path) -> None:
    """Raise UserError unless the checkout is as committed: else nobody could build its recipe."""
    if not checkout.commit(root):
        cause = "this checkout has changes that are in no commit, or git does not know it"
        raise failed("--record", cause, "commit or stash the changes, then record")


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
            help="The reproduce.json of another engine, a recorded run, or an image of this "
            "engine.",
        ),
    ] = "",
    record: Annotated[
        bool,
        typer.Option("--record", help="Write what two builds agree on into locks/layers.json."),
    ] = False,
) -> None:
    """Build an image without any cache, and compare its layers with those of another build."""
    sources = matrix.load()
    host = host_settings()
    if record:
        require_clean(sources.workspace.root)
    (planned,) = plan.select([name], sources)
    image = planned.image
    if not image:
        cause = f"the plan refuses this image: {'; '.join(planned.reasons)}"
        raise wrong(name, cause, "choose another image: `nox -s plan` shows all")

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
            workspace = sources.workspace
            builds.append(read_other(docker_engine, other, workspace.results, workspace.locks))
        base_image = base_images.acquire(
            docker_engine,
            image.base,
            base,
            root=sources.workspace.root,
            host=host,
            on_progress=typer.echo,
        )
        build_network = network or host.network(local=docker_engine.facts.local)
        reproduction = Reproduction(docker_engine, image, base_image, options, build_network)
        for _ in range(1 if once or other else 2):
            builds.append(reproduction.build(progress))

    result, result_files = builds[-1]
    write_result(out / name, result, result_files)
    typer.echo(f"{out / name / RESULT}: {name} on {result.on}, in {result.seconds:.0f} s")
    if len(builds) == 2:
        first, first_files = builds[0]
        differences = with_files(compare(first.layers, result.layers), first_files, result_files)
        show(first, result, differences)
        require_equal(name, differences)
    if record:
        typer.echo(record_builds(sources.workspace.locks, [built for built, _ in builds]))


def read_other(engine: Engine, other: str, results: Path, locks: Path) -> tuple[BuildResult, Files]:
    """Read the build beside which another is compared.

    `other`: a file that this tool wrote (it ends in .json), the id of a recorded run, or an image.
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
        then = "read in the table above which files differ, and find the step that wrote them"
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
    """Print a table with a row for each layer of two builds."""
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
    # Those that are left are layers that only the first build has.
    for missing in difference_by_layer.values():
        table.add_row(missing.layer, missing.first[_DIGEST_SHOWN], "", "[red]missing[/]")
    Console(width=150, highlight=False).print(table)


if __name__ == "__main__":
    run(main)
