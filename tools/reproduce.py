"""Builds an image twice, the second time without any cache, and compares layers: same digest, or what differs first.

`python -m tools.reproduce NAME` prints a table, and writes out/NAME/reproduce.json; docs/reproducible.md tells of it.
`--beside FILE` compares with what it wrote of another engine.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import IO, Annotated, Any, cast

import typer
from rich.console import Console
from rich.table import Table

from images.building import contexts
from images.building.contexts import BuildOptions
from images.config import matrix, paths
from images.context import base_images
from images.context.hosting import host_settings
from images.context.render import Context
from images.engine import Engine, private_engine
from images.engine.archive import ChunkReader
from images.engine.progress import Progress
from images.errors import Problem, UserError
from images.locking import lock_file
from images.planning import plan
from images.wheels import prebuilt
from tools import run
from tools.cold_builds import nothing_new_kept, on_own_layer, with_own_wheels

_NO_LAYER = ("CMD", "ENTRYPOINT", "ENV", "EXPOSE", "LABEL", "USER", "VOLUME")
"""Instructions that change the configuration alone."""
_STEP = (
    r"/run/locks/([\w-]+)\.txt",
    r"/run/wheels/(\w+)-",
    r"/run/(toolkit)",
    r"/run/scripts/(?!record_change_times\.)(\w+)\.sh",
)
"""Where the command of a step has its name."""
Listing = Mapping[str, Mapping[str, Any]]
"""Path to the fields of a file, in the order of the layer's tar."""


@dataclass(frozen=True, kw_only=True)
class SavedFile:
    """One file of an exported image: in a layer, or (`layer` empty) its configuration and manifests."""

    layer: str
    member: tarfile.TarInfo
    data: IO[bytes]
    """Readable until the next file is asked for; empty for links and folders."""


def saved(engine: Engine, ref: str) -> Iterator[SavedFile]:
    """Every file of every layer of an image, and its configuration, in one streaming pass. Raises NoSuchImage."""
    for member, data in engine.exported(ref):
        head = data.read(512)
        whole = cast("IO[bytes]", ChunkReader(_chunks(head, data)))
        is_gzip = head[:2] == b"\x1f\x8b"
        if head[:4] == b"\x28\xb5\x2f\xfd":
            cause = "a layer compressed with zstd can't be read here"
            raise UserError(Problem(where=member.name, cause=cause), code=1)
        if head[257:262] != b"ustar" and not is_gzip:
            yield SavedFile(layer="", member=member, data=whole)
            continue
        with tarfile.open(fileobj=whole, mode="r|gz" if is_gzip else "r|", bufsize=1 << 20) as layer:
            for entry in layer:
                content = layer.extractfile(entry) if entry.isfile() else None
                empty = cast("IO[bytes]", ChunkReader(iter(())))
                yield SavedFile(layer=member.name, member=entry, data=content or empty)


def _chunks(head: bytes, rest: IO[bytes]) -> Iterator[bytes]:
    yield head
    while chunk := rest.read(1 << 20):
        yield chunk


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer of the same step in both images. Digests are of the uncompressed tar (diff IDs); empty: it has none."""

    step: str
    first: str
    second: str
    difference: str = ""
    """The first file that differs, and how; empty: both are equal."""


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """Two builds of one image, side by side. Times in seconds."""

    image: str
    engine: str
    id: str
    """The image ID that `build` gives the first."""
    seconds: tuple[float, float]
    layers: tuple[Layer, ...]

    @property
    def equal(self) -> bool:
        return bool(self.layers) and all(layer.first == layer.second for layer in self.layers)


def reproduce(engine: Engine, name: str, context: Context, progress: Progress, network: str | None) -> Reproduction:
    """Build a context twice: from the build cache where that has it, then uncached. Neither gets a name that lasts.

    The second has a wheel cache of its own: else it would take wheels that the first built from source. It also stands
    on a layer of its own, which is left out of the comparison. Raises UserError: a failed step.
    """
    word = uuid.uuid4().hex[:8]
    one, two = (f"truetag-reproduce:{word}-{number}" for number in (1, 2))
    try:
        first = engine.build(context, one, network=network, on_event=progress.job(f"{name} (first)"))
        with nothing_new_kept(engine, two):
            files, on_event = on_own_layer(with_own_wheels(context, word), word), progress.job(f"{name} (uncached)")
            second = engine.build(files, two, network=network, no_cache=True, on_event=on_event)
            fixed = engine.fix_id(first.image_id, one)
            digests = fixed.layers, engine.inspect(two).layers
            base = next((at for at, (a, b) in enumerate(zip(*digests, strict=False)) if a != b), len(digests[0]))
            theirs = [*digests[1][:base], *digests[1][base + 1 :]]
            layers = pair(digests[0], theirs, steps(engine.history(one)))
            if any(layer.first != layer.second for layer in layers):
                progress.say(name, "the layers differ: reading them", "yellow")
                listed = listings(engine, two)
                both = listings(engine, one), [*listed[:base], *listed[base + 1 :]]
                layers = explained(layers, *both)
                at = next(index for index, layer in enumerate(layers) if layer.first != layer.second)
                if path := changed_file(*(each[at] if at < len(each) else {} for each in both)):
                    contents = (
                        content(engine, ref, path, each[at]) for ref, each in zip((one, two), both, strict=True)
                    )
                    told = f"{layers[at].difference}; {path} differs from byte {first_byte(*contents)} on"
                    layers = (*layers[:at], replace(layers[at], difference=told), *layers[at + 1 :])
    finally:
        engine.untag(one)
    seconds = (round(first.seconds, 1), round(second.seconds, 1))
    return Reproduction(image=name, engine=engine.facts.version, id=fixed.id, seconds=seconds, layers=layers)


def steps(history: Sequence[tuple[str, int]]) -> list[str]:
    """What made each layer, bottom first: `torch` for the step that installs torch's lock, else what tells most."""
    made = [re.sub(r"^/bin/sh -c #\(nop\) +", "", text) for text, _ in reversed(history)]
    names = []
    for text in made:
        if not text.startswith(_NO_LAYER):
            found = next((match[1] for pattern in _STEP if (match := re.search(pattern, text))), "")
            names.append(found or text.removesuffix(" # buildkit")[:60])
    return names


def pair(first: Sequence[str], second: Sequence[str], made_by: Sequence[str]) -> tuple[Layer, ...]:
    """Layers side by side, bottom first."""
    names = made_by if len(made_by) == len(first) else [f"layer {index}" for index in range(len(first))]
    rows = zip_longest(names, first, second, fillvalue="")
    return tuple(Layer(step=step, first=one, second=other) for step, one, other in rows)


def explained(layers: Sequence[Layer], first: Sequence[Listing], second: Sequence[Listing]) -> tuple[Layer, ...]:
    """The same, with the first difference of each that has one."""
    told = []
    for number, layer in enumerate(layers):
        one, other = (listed[number] if number < len(listed) else {} for listed in (first, second))
        told.append(replace(layer, difference=difference(one, other)) if layer.first != layer.second else layer)
    return tuple(told)


def difference(first: Listing, second: Listing) -> str:
    """The first file, by its path, that differs, and how; how many more there are."""
    paths_that_differ = [path for path in sorted({*first, *second}) if first.get(path) != second.get(path)]
    if not paths_that_differ:
        return "the same files in another order" if list(first) != list(second) else "in how the tar is written"
    path, more = paths_that_differ[0], len(paths_that_differ) - 1
    one, other = first.get(path), second.get(path)
    if one is None or other is None:
        told = f"{path} is in the {'second' if one is None else 'first'} alone"
    else:
        told = f"{path}: " + ", ".join(f"{key} {one[key]} and {other[key]}" for key in one if one[key] != other[key])
    return f"{told}; {more} more files differ" if more else told


def changed_file(first: Listing, second: Listing) -> str:
    """The first file, by its path, that has other bytes in both; empty: there is none."""
    both = (path for path in sorted(first.keys() & second.keys()) if first[path]["sha256"] != second[path]["sha256"])
    return next(both, "")


def content(engine: Engine, ref: str, path: str, listing: Listing) -> bytes:
    """A file of the layer with this listing, from an image."""
    for file in saved(engine, ref):
        if file.layer and file.member.name == path:
            data = file.data.read()
            if hashlib.sha256(data).hexdigest().startswith(listing[path]["sha256"]):
                return data
    raise LookupError(path)


def first_byte(one: bytes, other: bytes) -> int:
    """Where two files first differ, from 0; the length of the shorter where that is all of the other's beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:  # equal before `low`
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def beside(found: Reproduction, other: Mapping[str, Any]) -> list[str]:
    """What differs from what another engine gave: steps, and the image ID. `other`: its reproduce.json."""
    theirs = {layer["step"]: layer["first"] for layer in other["layers"]}
    ours = {layer.step: layer.first for layer in found.layers}
    steps_that_differ = [step for step in {**ours, **theirs} if ours.get(step) != theirs.get(step)]
    return [*steps_that_differ, *(["image ID"] if found.id != other["id"] else [])]


def listings(engine: Engine, ref: str) -> list[Listing]:
    """Every file of every layer, bottom first, read from the image as the engine exports it."""
    by_blob: dict[str, dict[str, Mapping[str, Any]]] = {}
    order: list[str] = []
    for file in saved(engine, ref):
        if file.layer:
            by_blob.setdefault(file.layer, {})[file.member.name] = fields(file.member, file.data)
        elif file.member.name == "manifest.json":
            order = json.loads(file.data.read())[0]["Layers"]
    return [by_blob.get(blob, {}) for blob in order]


def fields(member: tarfile.TarInfo, data: IO[bytes]) -> Mapping[str, Any]:
    """What of a file of a tar can differ."""
    headers = member.pax_headers.items()
    return {
        "kind": member.type.decode(),
        "mode": f"{member.mode:o}",
        "owner": f"{member.uid}:{member.gid}",
        "time": int(member.mtime),
        "size": member.size,
        "link to": member.linkname,
        "device": f"{member.devmajor}:{member.devminor}",
        "attributes": {key: value for key, value in headers if key.startswith("SCHILY.xattr")},
        "sha256": hashlib.file_digest(data, "sha256").hexdigest()[:16],  # type: ignore[arg-type]
    }


def main(
    name: str,
    base: Annotated[str, typer.Option(metavar="REF", help="The base image; default: as a build takes it.")] = "auto",
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where NAME/reproduce.json goes.")] = Path("out"),
    engine: Annotated[str | None, typer.Option(metavar="URL", help="The Docker Engine.")] = None,
    other: Annotated[
        Path | None, typer.Option("--beside", metavar="FILE", help="The reproduce.json of another engine.")
    ] = None,
) -> None:
    """Build an image twice, the second time without any cache, and compare the digests of its layers."""
    sources, host = matrix.load(), host_settings()
    (planned,) = plan.select([name], sources)
    if not (image := planned.image):
        raise UserError(Problem(where=name, cause="; ".join(planned.reasons), then="`nox -s plan` shows all images"))
    compiled = prebuilt.wheel_finder(sources.matrix)
    options = BuildOptions(sources=sources, host=host, out=out, compiled=compiled)
    with private_engine.open_engine(engine, on_progress=typer.echo) as docker_engine, Progress() as progress:
        found = base_images.acquire(
            docker_engine, image.base, base, root=paths.RESOURCES, host=host, on_progress=typer.echo
        )
        base_images.require_no_contradiction(image, found)
        locked = lock_file.read(image, paths.RESOURCES / "locks")
        _, _, context = contexts.prepare(image, locked, found, options)
        network = host.network(local=docker_engine.facts.local)
        result = reproduce(docker_engine, name, context, progress, network)
    file = out / name / "reproduce.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**asdict(result), "equal": result.equal}, indent=1) + "\n")
    table = Table("layer", "first", "second", "", title=f"{name}: built twice, uncached in {result.seconds[1]:.0f} s")
    for layer in result.layers:
        told = f"[red]differs[/]: {layer.difference}" if layer.first != layer.second else "[green]equal[/]"
        table.add_row(layer.step, layer.first[7:19], layer.second[7:19], told)
    Console(width=150, highlight=False).print(table)
    if not result.equal:
        cause = f"{sum(layer.first != layer.second for layer in result.layers)} of {len(result.layers)} layers differ"
        raise UserError(Problem(where=name, cause=cause, then=f"{file} has the first differing file of each"), code=1)
    typer.echo(f"{name}: {result.id} on engine {result.engine}")
    if other:
        theirs = json.loads(other.read_bytes())
        if differing := beside(result, theirs):
            cause = f"engine {theirs['engine']} gives another {', '.join(differing)}"
            raise UserError(Problem(where=name, cause=cause, then=f"compare {file} with {other}"), code=1)
        typer.echo(f"{name}: the same on engine {theirs['engine']}")


if __name__ == "__main__":
    run(main)
