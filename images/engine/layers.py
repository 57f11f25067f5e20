"""Compares the layers of an image with recorded ones, whichever engine and store has written them.

Engines write the files of a layer into its tar in different ways, so equal files may have different
diff IDs. Here they get equal ones, in two steps:

1. The canonical form removes what only the tars differ in: names, bits of modes, the order. Its
   diff ID is the one that is recorded.
2. Stores also differ in which files they write at all. The classic store has all that a step opened
   for writing, and marks new folders as opaque; the containerd image store compares with the layers
   below, and leaves both out. The change digest covers only what a layer changes. A layer with a
   recorded change digest gets the recorded diff ID.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from images.engine import classic_store, configuration, containerd_store
from images.engine.configuration import SUITE
from images.engine.layer_tree import tree
from images.engine.runtime import ImageInfo
from images.engine.stored_layer import (
    LayerTar,
    Member,
    StoredLayer,
    UnreadableLayersError,
    layer_errors,
)
from images.host import cache
from images.host.hashing import oci_digest

if TYPE_CHECKING:
    from images.engine.client import Engine

CANONICAL = "canonical-layers-1"
"""Folder of the cache with canonical diff IDs.

A change of the canonical form takes another number.
"""
_PATHS_OF_SUITE = (
    "opt/truetag/",
    "etc/profile.d/truetag_",
    "etc/apt/apt.conf.d/docker-clean",
    "usr/local/bin/validate",
    "usr/local/bin/doctor",
)
"""How the paths begin that templates/scripts/suite.sh writes."""


@dataclass(frozen=True, kw_only=True)
class LayerReading:
    """The layers and the settings of an image, for comparing them with recorded ones."""

    payload: Mapping[str, str]
    """Layer -> canonical diff ID, the lowest first, and the settings; see
    `configuration.payload`."""
    canonical: bool
    """The engine's store could be read.

    Else a layer that differs may hold the same files in another form.
    """
    why_unread: str = ""
    """Why the engine's store could not be read; empty if it could."""
    beside_suite: tuple[str, ...] = ()
    """Paths in the suite's layer that are not the suite's."""

    @property
    def compared(self) -> dict[str, str]:
        """Return the payload, without the suite's layer if that holds nothing but the suite."""
        is_only_suite = self.canonical and not self.beside_suite
        compared = dict(self.payload)
        if is_only_suite:
            compared.pop(SUITE, None)
        return compared


def find_layers(engine: Engine, info: ImageInfo) -> dict[str, StoredLayer]:
    """Return the layers of an image by diff ID; empty unless all can be read in the store here.

    `why_unreadable` says why they can't. Raises EngineError for a damaged store.
    """
    try:
        return require_layers(engine, info)
    except UnreadableLayersError:
        return {}


def why_unreadable(engine: Engine, info: ImageInfo) -> str:
    """Return why the layers of an image can't be read in the store here, and where they can.

    Empty if they can. Raises EngineError for a damaged store.
    """
    try:
        require_layers(engine, info)
    except UnreadableLayersError as error:
        return str(error)
    return ""


def require_layers(engine: Engine, info: ImageInfo) -> dict[str, StoredLayer]:
    """Return the layers of an image, from the engine's store on this machine: diff ID -> layer.

    A diff ID is the digest of a layer's tar. Raises UnreadableLayersError unless all can be read
    here, and EngineError for a damaged store.
    """
    facts = engine.facts
    if not facts.local:
        raise UnreadableLayersError(
            "the engine runs on another machine, or in a virtual one: run this there, as root"
        )
    if facts.containerd_images:
        with layer_errors(info.digest):
            return containerd_store.find_layers(facts, info.identity, info.layers)
    if facts.storage_driver != classic_store.DRIVER:
        raise UnreadableLayersError(
            f"the engine keeps layers by its storage driver {facts.storage_driver}: use an engine "
            f"with {classic_store.DRIVER} or containerd's image store"
        )
    return classic_store.find_layers(Path(facts.data_root), info.layers)


def read_layers(engine: Engine, info: ImageInfo, known: Mapping[str, str]) -> LayerReading:
    """Return digests of an image's layers that can be compared with those of other engines.

    Engines write the same files into different tars, so the digests that they give (diff IDs)
    differ. The canonical diff ID is the digest of the files in one form, which is the same for all
    engines. To compute it, the layers are read from the engine's store. If that can't be read here,
    a layer that is not in `known` keeps the digest that the engine gave it. Raises EngineError if a
    layer is damaged.

    `known`: each digest that an engine gave a recorded layer -> the layer's canonical diff ID. A
    layer whose digest is among them is not read.
    """
    layers = find_layers(engine, info)
    canonical_ids = canonical_diff_ids(layers, known, info.digest)
    steps = engine.steps(info.handle)
    as_stored = configuration.payload(info, steps)

    canonical_layers = []
    for diff_id in info.layers:
        canonical_layers.append(canonical_ids.get(diff_id) or known.get(diff_id, diff_id))
    with_canonical_layers = replace(info, layers=tuple(canonical_layers))

    # Files in the layer of the suite, our validation programs, that are not the suite's. There is
    # no such layer if the image has no suite, or if the store can't be read here.
    strange_paths: tuple[str, ...] = ()
    suite_layer = layers.get(as_stored.get(SUITE, ""))
    if suite_layer:
        with layer_errors(info.digest):
            strange_paths = beside_suite(suite_layer)

    why_unread = "" if layers else why_unreadable(engine, info)
    return LayerReading(
        payload=configuration.payload(with_canonical_layers, steps),
        canonical=bool(layers),
        why_unread=why_unread,
        beside_suite=strange_paths,
    )


def beside_suite(suite: StoredLayer) -> tuple[str, ...]:
    """Return the paths in the suite's layer that are not the suite's own. Folders do not count."""
    strange_paths = []
    for entry in suite.entries():
        if entry.kind != "folder" and not entry.path.startswith(_PATHS_OF_SUITE):
            strange_paths.append(f"/{entry.path}")
    return tuple(strange_paths)


def canonical_diff_ids(
    layers: Mapping[str, StoredLayer], known: Mapping[str, str], where: str
) -> dict[str, str]:
    """Return the canonical diff ID of each layer of an image, by its diff ID.

    A diff ID is the digest of a layer's tar as the engine has it; the canonical one is the same
    whichever engine wrote the layer. `layers`: all layers of the image by diff ID, the lowest
    first. `known`: any digest of a recorded layer -> its canonical diff ID, see `read_layers`.
    `where` names the image, for messages. Raises EngineError if a layer is damaged.
    """

    def find_or_compute(layer: StoredLayer) -> str:
        """Return the canonical diff ID of a layer: the recorded one, or the digest of its tar."""
        return known.get(layer.diff_id) or canonical_diff_id(layer)

    with layer_errors(where):
        # First by the tars, as the engine's store has them.
        with ThreadPoolExecutor() as pool:
            ids = dict(zip(layers, pool.map(find_or_compute, layers.values()), strict=True))

        # Then by what layers change: a layer that is not recorded may be a recorded one, written by
        # another store. This takes longer, so it ends once no recorded layer is missing.
        missing_ids = set(known.values()) - set(ids.values())
        in_order = list(layers.values())
        for number, layer in enumerate(in_order):
            if missing_ids and ids[layer.diff_id] not in known:
                # None if no recorded layer makes the same change to the layers below.
                recorded_id = known.get(change_digest(layer, in_order[:number]))
                if recorded_id:
                    ids[layer.diff_id] = recorded_id
                    missing_ids.discard(recorded_id)
    return ids


def canonical_diff_id(layer: StoredLayer) -> str:
    """Return the digest (`sha256:...`) of a layer's tar in canonical form.

    That is the form in which Docker 26 and 28 write a layer that a step made. Tars of the same
    files differ from it in two ways, which `in_canonical_form` removes:

    - Headers: Docker 20.10 also writes the names of owner and group, and the kind of the file as
      bits of its mode.
    - Order: it is usually that of a walk through the folders (`cuda`, `cuda/lib`, `cuda.h`). If a
      step was built again, and gave a layer that the store had already, whole paths are sorted as
      texts (`cuda`, `cuda.h`, `cuda/lib`). (moby, builder-next/adapters/snapshot/layer.go: a parent
      with another cache ID.)

    The result is cached for each layer. Raises what reading a damaged store does (StoredLayer).
    """
    cached = cache.folder() / CANONICAL / layer.diff_id.removeprefix("sha256:")
    if cached.is_file():
        return cached.read_text(encoding="ascii")
    tar = layer.read_tar()
    canonical = in_canonical_form(tar)
    # A tar that has the canonical form already keeps its digest, so nothing need be hashed.
    diff_id = layer.diff_id
    if canonical != tar:
        digest = hashlib.sha256()
        for chunk in layer.tar_of(canonical):
            digest.update(chunk)
        diff_id = f"sha256:{digest.hexdigest()}"
    # If the cache can't be written, the next run computes it again.
    with suppress(OSError):
        cache.write_whole(cached, diff_id.encode())
    return diff_id


def change_digests(layers: Mapping[str, StoredLayer], where: str) -> dict[str, str]:
    """Return the change digest of each layer of an image, by its diff ID.

    It covers what the layer changes of the layers below, so it is the same whichever engine wrote
    the layer (see `change_digest`). `layers`: all layers of the image by diff ID, the lowest first.
    `where` names the image, for messages. Raises EngineError if a layer can't be read, or is
    damaged.
    """
    in_order = list(layers.values())
    digests = {}
    with layer_errors(where):
        for number, layer in enumerate(in_order):
            digests[layer.diff_id] = change_digest(layer, in_order[:number])
    return digests


def change_digest(layer: StoredLayer, below: Sequence[StoredLayer]) -> str:
    """Return a digest of what a layer changes of the layers below it (`below`, the lowest first).

    It is the same whichever engine wrote the layer, unlike a digest of the tar. What it changes is
    each path that it adds or changes, with type, mode, owner, time, target and content, and each
    path that it removes. What leaves everything as it was does not count: a file that was copied up
    unchanged, or a whiteout where nothing is below. A hard link counts as the file that it names.
    Raises what reading a damaged store does (StoredLayer).
    """
    # Path -> entry, as a container sees it without and with this layer.
    before = tree([lower.entries() for lower in below])
    after = tree([layer.entries()], before)
    hashes = layer.hash_contents()  # `entry.content` -> SHA-256 of the file
    lines = []
    for path, entry in after.items():
        # Within one store, files of equal content have equal `entry.content`, in whatever layer.
        if before.get(path) != entry:
            # The hash is the same in every store.
            content = hashes[entry.content] if entry.kind == "file" else ""
            lines.append(json.dumps(["is", *entry._replace(content=content)]))
    for path in before.keys() - after.keys():
        lines.append(json.dumps(["removed", path]))
    return oci_digest("\n".join(sorted(lines)).encode())


def in_canonical_form(tar: LayerTar) -> LayerTar:
    """Return a layer's tar in canonical form (see `canonical_diff_id`)."""
    members = [member._replace(header=without_names(member.header)) for member in tar.members]
    # Docker sorts whole paths if a step gave a layer that the store had already (see
    # `canonical_diff_id`). Any other order stays.
    if _paths(members) == sorted(_paths(members)):
        # The order of a walk: a folder's entries come directly after it.
        members.sort(key=lambda member: member.path.rstrip(b"/").split(b"/"))
    return LayerTar(members, tar.end)


def _paths(members: list[Member]) -> list[bytes]:
    """Return the paths of members, without a slash at the end."""
    return [member.path.rstrip(b"/") for member in members]


def without_names(header: bytes) -> bytes:
    """Return the header of a file in a tar, without what engines write in different ways.

    That is the names of its user and group, and the bits of its mode that tell what kind of file it
    is. `header` may be several blocks of 512 bytes. Only the last one is changed, which is the
    ustar header (POSIX pax, "ustar Interchange Format"): mode at 100, checksum at 148, names at
    265.
    """
    block = bytearray(header[-tarfile.BLOCKSIZE :])
    mode = int(block[100:107].rstrip(b"\0 ") or b"0", 8)
    block[100:108] = b"%07o\0" % (mode & 0o7777)
    # Two names of 32 bytes each.
    block[265:329] = bytes(64)
    # The checksum is that of the block with blanks in its place.
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return header[: -tarfile.BLOCKSIZE] + bytes(block)
