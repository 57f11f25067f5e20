"""Builds an image twice, the second time without any cache, and compares layers: same digest, or what differs first."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from typing import IO, Any

from images.building import uncached
from images.context.render import Context
from images.engine import Engine, HistoryEntry, ImageInfo
from images.engine import layers as stored_layers
from images.engine.progress import Progress

_CHUNK = 1 << 16
_NO_LAYER = ("CMD", "ENTRYPOINT", "ENV", "EXPOSE", "LABEL", "USER", "VOLUME")
"""Instructions that change the configuration alone."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One file in a layer."""

    kind: str
    mode: int
    owner: tuple[int, int]
    modified: int
    size: int
    target: str
    """Of a link."""
    device: tuple[int, int]
    attributes: Mapping[str, str]
    chunks: tuple[bytes, ...]
    """A hash for each 64 KiB of its content."""


Listing = Mapping[str, Member]
"""Path to file, in the order of the layer's tar."""


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
    first_created: str
    second_created: str
    seconds: tuple[float, float]
    layers: tuple[Layer, ...]

    @property
    def equal(self) -> bool:
        return bool(self.layers) and all(layer.first == layer.second for layer in self.layers)

    def dumps(self) -> str:
        return json.dumps({**asdict(self), "equal": self.equal}, indent=1)


def reproduce(engine: Engine, name: str, context: Context, progress: Progress, network: str | None) -> Reproduction:
    """Build a context twice: from the build cache where that has it, then uncached. Neither gets a name that lasts.

    The second has a wheel cache of its own: else it would take wheels that the first built from source. It also stands
    on a layer of its own, which is left out of the comparison. Raises UserError: a failed step.
    """
    run = uuid.uuid4().hex[:8]
    two = f"truetag-reproduce:{run}-2"
    with _temporary(engine, f"truetag-reproduce:{run}-1") as one:
        first = engine.build(context, one, network=network, on_event=progress.job(f"{name} (first)"))
        with uncached.nothing_new_kept(engine, two):
            second = engine.build(
                uncached.on_own_layer(uncached.with_own_wheels(context, run), run),
                two,
                network=network,
                no_cache=True,
                on_event=progress.job(f"{name} (uncached)"),
            )
            infos = engine.inspect(one), engine.inspect(two)
            own = uncached.shared(infos[0].layers, infos[1].layers)
            layers = pair(infos[0].layers, uncached.without(infos[1].layers, own), steps(engine.history(one)))
            if any(layer.first != layer.second for layer in layers):
                progress.say(name, "the layers differ: reading them", "yellow")
                layers = explained(layers, listings(engine, one), uncached.without(listings(engine, two), own))
            created = [_created(info) for info in infos]
    return Reproduction(
        image=name,
        engine=engine.facts.version,
        first_created=created[0],
        second_created=created[1],
        seconds=(round(first.seconds, 1), round(second.seconds, 1)),
        layers=layers,
    )


@contextmanager
def _temporary(engine: Engine, tag: str) -> Iterator[str]:
    try:
        yield tag
    finally:
        engine.untag(tag)


def _created(info: ImageInfo) -> str:
    """To the second, in UTC."""
    return datetime.fromisoformat(info.created[:19]).replace(tzinfo=UTC).isoformat()


def steps(history: Sequence[HistoryEntry]) -> list[str]:
    """What made each layer, bottom first, in a few words."""
    made = [re.sub(r"^/bin/sh -c #\(nop\) +", "", entry.created_by) for entry in reversed(history)]
    return [_short(text) for text in made if not text.startswith(_NO_LAYER)]


def _short(made_by: str) -> str:
    """`torch` for the step that installs torch's lock, else the wheel, the script or the command itself."""
    script = r"/run/scripts/(?!record_change_times\.)(\w+)\.sh"
    for pattern in (r"/run/locks/([\w-]+)\.txt", r"/run/wheels/(\w+)-", r"/run/(toolkit)", script):
        if found := re.search(pattern, made_by):
            return found[1]
    return made_by.removesuffix(" # buildkit")[:60]


def pair(first: Sequence[str], second: Sequence[str], made_by: Sequence[str]) -> tuple[Layer, ...]:
    """Layers side by side, bottom first."""
    names = made_by if len(made_by) == len(first) else [f"layer {index}" for index in range(len(first))]
    rows = zip_longest(names, first, second, fillvalue="")
    return tuple(Layer(step=step, first=one, second=other) for step, one, other in rows)


def explained(layers: Sequence[Layer], first: Sequence[Listing], second: Sequence[Listing]) -> tuple[Layer, ...]:
    """The same, with the first difference of each that has one."""
    rows = zip_longest(layers, first, second, fillvalue=None)
    return tuple(
        Layer(
            step=layer.step,
            first=layer.first,
            second=layer.second,
            difference=difference(one or {}, other or {}) if layer.first != layer.second else "",
        )
        for layer, one, other in rows
        if layer
    )


def difference(first: Listing, second: Listing) -> str:
    """The first file, by its path, that differs, and how; how many more there are."""
    found = [text for path in sorted({*first, *second}) if (text := _of_one(path, first.get(path), second.get(path)))]
    if not found:
        return "the same files in another order" if list(first) != list(second) else "in how the tar is written"
    return found[0] if len(found) == 1 else f"{found[0]}; {len(found) - 1} more files differ"


def _of_one(path: str, one: Member | None, other: Member | None) -> str:
    if one is None or other is None:
        return f"{path} is in the {'second' if one is None else 'first'} alone"
    changes = [
        f"{what} {before} and {after}"
        for what, before, after in (
            ("kind", one.kind, other.kind),
            ("mode", f"{one.mode:o}", f"{other.mode:o}"),
            ("owner", _colons(one.owner), _colons(other.owner)),
            ("time", _time(one.modified), _time(other.modified)),
            ("size", one.size, other.size),
            ("link to", one.target, other.target),
            ("device", _colons(one.device), _colons(other.device)),
            ("attributes", dict(one.attributes), dict(other.attributes)),
        )
        if before != after
    ]
    if one.chunks != other.chunks:
        begin = next(index for index, (a, b) in enumerate(zip_longest(one.chunks, other.chunks)) if a != b)
        changes.append(f"content from the 64 KiB at byte {begin * _CHUNK} on")
    return f"{path}: {', '.join(changes)}" if changes else ""


def _colons(pair_of: tuple[int, int]) -> str:
    return f"{pair_of[0]}:{pair_of[1]}"


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def listings(engine: Engine, ref: str) -> list[Listing]:
    """Every file of every layer, bottom first, read from the image as the engine exports it."""
    by_blob: dict[str, dict[str, Member]] = {}
    order: list[str] = []
    for file in stored_layers.saved(engine, ref):
        if file.layer:
            by_blob.setdefault(file.layer, {})[file.member.name] = _member(file.member, file.data)
        elif file.member.name == "manifest.json":
            order = json.loads(file.data.read())[0]["Layers"]
    return [by_blob.get(blob, {}) for blob in order]


def _member(info: tarfile.TarInfo, data: IO[bytes]) -> Member:
    chunks = []
    while chunk := data.read(_CHUNK):
        chunks.append(hashlib.blake2b(chunk, digest_size=8).digest())
    attributes: dict[str, Any] = {
        key: value for key, value in info.pax_headers.items() if key.startswith("SCHILY.xattr")
    }
    return Member(
        kind=_KINDS.get(info.type, repr(info.type)),
        mode=info.mode,
        owner=(info.uid, info.gid),
        modified=int(info.mtime),
        size=info.size,
        target=info.linkname,
        device=(info.devmajor, info.devminor),
        attributes=attributes,
        chunks=tuple(chunks),
    )


_KINDS = {
    tarfile.REGTYPE: "file",
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "link",
    tarfile.LNKTYPE: "hard link",
    tarfile.CHRTYPE: "character device",
    tarfile.BLKTYPE: "block device",
    tarfile.FIFOTYPE: "pipe",
}
