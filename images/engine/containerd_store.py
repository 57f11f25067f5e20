"""Reads images in containerd's image store: their manifests, configurations and layers.

New installations of Docker 29 keep images there (docs.docker.com/engine/storage/containerd). The
store has the blobs of an image as a registry has them, by their digests: a manifest, the
configuration, and each layer's tar, compressed. Only root on the engine's machine may read it. From
elsewhere, an export (`docker save`) gives the same blobs.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from zlib_ng import gzip_ng

from images.engine.archive import ChunkReader
from images.engine.failures import EngineError
from images.engine.identity import ImageIdentity, choose_manifest, platform_of_image
from images.engine.layer_tree import LayerEntry
from images.engine.runtime import EngineFacts
from images.engine.stored_layer import (
    CHUNK,
    LayerTar,
    Member,
    ReadContent,
    StoredLayer,
    UnknownCompressionError,
    UnreadableLayersError,
    layer_errors,
    padding,
    read_all,
)
from images.errors import Problem
from images.host import cache
from images.host.hashing import oci_digest
from images.registry.distribution import DOCKER_MANIFEST, OCI_MANIFEST, Manifest

if TYPE_CHECKING:
    from images.engine.client import Engine

IMAGE_TYPES = (OCI_MANIFEST, DOCKER_MANIFEST)
"""Media types of the manifest of one image; that of an index is another."""
_BLOBS = "io.containerd.content.v1.content/blobs/sha256"
_SYSTEM_CONTAINERD = Path("/var/lib/containerd")
"""The data of the machine's own containerd, which Docker uses if it runs. Else dockerd starts one,
whose data are in the engine's folder."""
_MANIFESTS = "manifests"
"""Folder of the cache with manifests that came from exports."""
_ENTRIES = "layer-entries-1"
"""Folder of the cache with the entries of layers. A change of LayerEntry takes another number."""
_OWNER = LayerEntry._fields.index("owner")
"""The place of the owner in the row of an entry."""
DAMAGED_HINT = (
    "remove the image (`docker image rm`), then pull it again, or build it again with --no-cache; "
    "if its export lacks a part then too, the engine's disk may be damaged"
)
"""What to do about an image whose export lacks a part."""
INCOMPLETE = (
    "the engine did not fetch all layers of this image, as it had some from another image "
    "(moby#49784, until Docker 29.9)"
)
"""Why the store lacks layers of a pulled image: see `add_missing_configuration`."""
_LARGEST_MANIFEST = 4 << 20
"""Bytes; registries accept no larger one (OCI distribution specification)."""
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
"""How compressed files begin (RFC 1952, RFC 8878)."""
_LONGEST_MAGIC = 4
_FURTHER_HEADERS = b"xgLK"
"""Types of members that only describe the next one: PAX records, and GNU's long names."""
_TYPE_FIELD = slice(156, 157)
_SIZE_FIELD = slice(124, 135)
"""Where fields lie in a member's header (POSIX pax, "ustar Interchange Format")."""


class ContentStore:
    """The blobs of a containerd image store, as far as they can be read here."""

    def __init__(self, facts: EngineFacts) -> None:
        roots = [Path(facts.data_root) / "containerd/daemon", _SYSTEM_CONTAINERD]
        self._folders = [root / _BLOBS for root in roots] if facts.local else []

    def find(self, digest: str) -> Path | None:
        """Return the file with a blob; None if it is not here or can't be read."""
        for folder in self._folders:
            path = folder / digest.removeprefix("sha256:")
            if os.access(path, os.R_OK):
                return path
        return None

    def read(self, digest: str) -> bytes | None:
        """Return the content of a small blob, such as a manifest, by its digest (`sha256:...`).

        None if it is not here or can't be read. Raises ValueError if the content has another
        digest, because the file is damaged.
        """
        path = self.find(digest)
        if path is None:
            return None
        content = path.read_bytes()
        if oci_digest(content) != digest:
            raise ValueError(f"the blob {digest} is damaged")
        return content


# --- what an image is -----------------------------------------------------------------------------


def identify(engine: Engine, inspected: Mapping[str, Any]) -> ImageIdentity:
    """Return the digests that name an image: of its manifest, and of its configuration.

    `inspected` is the engine's answer about the image. Both digests are taken from the manifest
    (the list of the image's blobs) if the store or the cache has it. Else an image that BuildKit
    made has them in `inspected`, and of any other image the manifest is read from an export
    (`docker save`), which takes long. Raises EngineError if no manifest can be read.
    """
    platform = platform_of_image(inspected)
    manifest = _find_manifest(engine, inspected)
    if manifest is None:
        # BuildKit writes the configuration's digest into an annotation.
        descriptor = inspected.get("Descriptor") or {}
        configuration = (descriptor.get("annotations") or {}).get("config.digest")
        # The descriptor must be that of one image's manifest, not of an index of several.
        if configuration and descriptor["mediaType"] in IMAGE_TYPES:
            return ImageIdentity(
                configuration=configuration, manifest=descriptor["digest"], platform=platform
            )
        manifest = _export_manifest(engine, inspected)
    return ImageIdentity(
        configuration=manifest.config.digest, manifest=manifest.digest, platform=platform
    )


def add_missing_configuration(
    facts: EngineFacts, inspected: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the engine's answer to `docker image inspect`, with the fields that it left out.

    Docker before 29.9 may answer without the image's architecture, date, settings and layers: it
    does so if its store lacks the blob of one layer. A pull causes that, because it does not fetch
    a layer that the engine has unpacked already for another image (moby/moby#49784). The fields are
    then read from the image's configuration in the store. Raises EngineError if that can't be read.
    """
    # An answer has all of the fields, or none.
    is_complete = bool(inspected.get("Architecture"))
    if is_complete:
        return inspected

    image_id = inspected["Id"]
    with layer_errors(image_id):
        configuration = _read_configuration(facts, image_id)
        if configuration:
            return {
                **inspected,
                "Architecture": configuration["architecture"],
                "Os": configuration["os"],
                "Created": configuration.get("created") or "",
                "Config": configuration.get("config") or {},
                "RootFS": {"Layers": configuration["rootfs"]["diff_ids"]},
            }
    tags = inspected.get("RepoTags") or [image_id]
    raise lacks_layers(tags[0])


def _read_configuration(facts: EngineFacts, image_id: str) -> dict[str, Any] | None:
    """Return the content of an image's configuration from the store; None if it can't be read.

    Raises the errors that `layer_errors` turns into EngineError, if the store is damaged.
    """
    store = ContentStore(facts)
    manifest = choose_manifest(store.read, image_id, f"linux/{facts.architecture}")
    if manifest is None:
        return None
    content = store.read(manifest.config.digest)
    if content is None:
        return None
    return dict(json.loads(content))


def lacks_layers(name: str) -> EngineError:
    """Return the error that the engine did not fetch all layers of an image when it pulled it.

    `add_missing_configuration` says why engines do that.
    """
    then = (
        "use the engine that built it (--engine URL), or update the engine to Docker 29.9 and pull "
        "the image again; or remove this image and the images and cache that share layers with it "
        "(`docker image rm`, `docker builder prune --all`), and pull it again"
    )
    return EngineError(Problem(where=name, cause=INCOMPLETE, then=then))


def read_manifest(engine: Engine, inspected: Mapping[str, Any]) -> Manifest:
    """Return the manifest of an image. Raises NoSuchImage, EngineError."""
    return _find_manifest(engine, inspected) or _export_manifest(engine, inspected)


def _find_manifest(engine: Engine, inspected: Mapping[str, Any]) -> Manifest | None:
    """Return the manifest of an image from the store or the cache; None if it is in neither."""
    image_id, platform = inspected["Id"], platform_of_image(inspected)
    with layer_errors(image_id):
        manifest = choose_manifest(ContentStore(engine.facts).read, image_id, platform)
    if manifest:
        return manifest
    with suppress(OSError, ValueError, LookupError):
        content = _cached_manifest(image_id, platform).read_bytes()
        return choose_manifest({image_id: content}.get, image_id, platform)
    return None


def _cached_manifest(image_id: str, platform: str) -> Path:
    """Return the file of the cache for the manifest of an image that can't be read in the store."""
    name = f"{image_id.removeprefix('sha256:')}-{platform.replace('/', '-')}.json"
    return cache.folder() / _MANIFESTS / name


def _export_manifest(engine: Engine, inspected: Mapping[str, Any]) -> Manifest:
    """Return the manifest of an image from an export, which ends as soon as it is found.

    An export (`docker save`) is a stream of the image's blobs: manifests, configuration, layers. It
    has them in the order of their digests, so this may take as long as reading the whole image. The
    manifest is cached. Raises NoSuchImage, and EngineError if the export has none.
    """
    image_id, platform = inspected["Id"], platform_of_image(inspected)
    blobs: dict[str, bytes] = {}
    for member, stream in engine.exported(image_id):
        # Empty for a file that is no blob. No manifest is larger than _LARGEST_MANIFEST.
        digest = digest_of_member(member.name)
        if not digest or member.size > _LARGEST_MANIFEST:
            continue
        # The image's digest may be that of an index, which names the manifest. So look with each
        # new blob whether all that is needed has come.
        blobs[digest] = stream.read()
        with layer_errors(image_id):
            manifest = choose_manifest(blobs.get, image_id, platform)
        if manifest:
            with suppress(OSError):
                cache.write_whole(_cached_manifest(image_id, platform), manifest.content)
            return manifest
    cause = "the engine exported it without its manifest, the list of its layers"
    then = DAMAGED_HINT
    raise EngineError(Problem(where=image_id, cause=cause, then=then))


def digest_of_member(name: str) -> str:
    """Return the digest of a blob from its name in an export; empty for another file."""
    return f"sha256:{name.removeprefix('blobs/sha256/')}" if name.startswith("blobs/") else ""


# --- layers ---------------------------------------------------------------------------------------


def find_layers(
    facts: EngineFacts, identity: ImageIdentity, diff_ids: Sequence[str]
) -> dict[str, StoredLayer]:
    """Return the layers of an image in the containerd store: diff ID -> layer.

    A diff ID is the digest of a layer's uncompressed tar; the store has the tar, mostly compressed,
    as a blob that the manifest names. `diff_ids`: those of all layers, the lowest first, in which
    order the manifest has the blobs, too. `identity` has the manifest's digest. Raises
    UnreadableLayersError unless each of them can be read here, and ValueError, LookupError or
    TypeError for a damaged manifest, or one with another number of layers.
    """
    store = ContentStore(facts)
    manifest = None
    if identity.manifest:
        manifest = choose_manifest(store.read, identity.manifest, identity.platform)
    if manifest is None:
        raise UnreadableLayersError(
            "this user can't read the engine's image store: give the command as root on the "
            "engine's own machine"
        )
    layers: dict[str, StoredLayer] = {}
    for diff_id, blob in zip(diff_ids, manifest.layers, strict=True):
        path = store.find(blob.digest)
        if path is None:
            raise UnreadableLayersError(
                f"{INCOMPLETE}: pull the image into an engine without other images"
            )
        try:
            # Only to raise the error, if the compression is none that can be read.
            with path.open("rb") as stream:
                is_gzip_blob(stream.read(_LONGEST_MAGIC))
        except UnknownCompressionError as error:
            raise UnreadableLayersError(f"{error}: use an engine with the classic store") from None
        layers[diff_id] = ContainerdLayer(diff_id=diff_id, blob=path)
    return layers


@dataclass(frozen=True, kw_only=True)
class ContainerdLayer(StoredLayer):
    """A layer in the containerd image store."""

    blob: Path
    """The file with its compressed tar."""

    def read_tar(self) -> LayerTar:
        """Return the files, folders and links of the layer's tar, and the bytes that end the tar.

        The whole blob is unpacked and read for this. A member has its header, its path as bytes,
        the size of its content, the SHA-256 of it, and where it begins in the unpacked tar. Raises
        EOFError, tarfile.ReadError and others for a damaged blob; see `layer_errors`.
        """
        members = []
        position = 0  # in the tar, not in the compressed blob
        with open_blob(self.blob) as stream:
            while True:
                header, info = read_header(stream)
                if info is None:
                    # No member follows: `header` is the first of the zeros that end the tar.
                    end = header + stream.read()
                    break
                position += len(header)

                content_hash = hashlib.sha256()
                for chunk in read_exactly(stream, info.size):
                    content_hash.update(chunk)
                path = os.fsencode(info.name).lstrip(b"/")
                content = content_hash.hexdigest()
                members.append(Member(header, path, info.size, content, offset=position))

                # Zeros up to a whole block follow the content.
                stream.read(padding(info.size))
                position += info.size + padding(info.size)
        return LayerTar(members, end)

    def entries(self) -> Sequence[LayerEntry]:
        """Return the layer's files, folders and links, in the order of its tar.

        Reading a layer of a gigabyte takes seconds, so its entries are cached in a file. A cache
        that is missing or damaged is written anew.
        """
        cached = cache.folder() / _ENTRIES / f"{self.diff_id.removeprefix('sha256:')}.json.gz"
        with suppress(OSError, ValueError, TypeError, EOFError):
            rows = json.loads(gzip.decompress(cached.read_bytes()))
            # JSON has turned the pair of owner and group into a list.
            return [LayerEntry(*row)._replace(owner=tuple(row[_OWNER])) for row in rows]

        # If the cache can't be written either, each call reads the layer.
        entries = StoredLayer.entries(self)
        with suppress(OSError):
            cache.write_whole(cached, gzip.compress(json.dumps(entries).encode(), 1))
        return entries

    @contextmanager
    def contents(self) -> Iterator[ReadContent]:
        """Give a function that yields a member's content in chunks, for members in any order.

        A compressed tar can only be read from its beginning, so a copy of it is unpacked first. It
        is deleted when the `with` block ends.
        """
        with tempfile.TemporaryFile() as unpacked:
            for chunk in self.tar():
                unpacked.write(chunk)

            def read(member: Member) -> Iterator[bytes]:
                unpacked.seek(member.offset)
                return read_exactly(unpacked, member.size)

            yield read

    def tar(self) -> Iterator[bytes]:
        """Yield its tar as it came, in chunks."""
        with open_blob(self.blob) as stream:
            yield from read_all(stream)

    def read_files(self, paths: Collection[str], most: int) -> Iterator[tuple[str, bytes]]:
        """Yield path and content of these files of the layer; at most `most` bytes of each.

        Paths have no slash at either end. The files come in the order of the layer's tar; paths
        that it does not have are left out.
        """
        paths = set(paths)
        with (
            open_blob(self.blob) as stream,
            tarfile.open(fileobj=stream, mode="r|", errors="surrogateescape") as tar,
        ):
            for member in tar:
                path = member.name.strip("/")
                if path not in paths:
                    continue
                # None for a folder.
                content = tar.extractfile(member)
                if content:
                    yield path, content.read(most)

    def hash_contents(self) -> dict[str, str]:
        """Return the SHA-256 of the files' contents, by `Member.content`.

        Here that text is the hash itself (`read_tar`), so nothing need be read.
        """
        contents = {entry.content for entry in self.entries() if entry.kind == "file"}
        return {content: content for content in contents}


def open_blob(path: Path) -> IO[bytes]:
    """Open the blob of a layer, compressed or not, and return a stream of its tar.

    Raises OSError, and UnknownCompressionError.
    """
    with path.open("rb") as stream:
        is_gzip = is_gzip_blob(stream.read(_LONGEST_MAGIC))
    if is_gzip:
        return cast("IO[bytes]", gzip_ng.open(path, "rb"))  # type: ignore[no-untyped-call]
    return path.open("rb")


def read_blob(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the tar of a layer in chunks, from the chunks of its blob, gzip or a plain tar.

    Raises UnknownCompressionError if the blob is compressed in another way that is known (zstd).
    """
    stream = io.BufferedReader(ChunkReader(chunks), CHUNK)
    start = stream.peek(_LONGEST_MAGIC)[:_LONGEST_MAGIC]  # stays in the stream
    if is_gzip_blob(start):
        unpacked = gzip_ng.GzipNGFile(fileobj=stream, mode="rb")  # type: ignore[no-untyped-call]
        yield from read_all(cast("IO[bytes]", unpacked))
    else:
        yield from read_all(stream)


def is_gzip_blob(start: bytes) -> bool:
    """Return whether a blob is compressed with gzip, from its first bytes; else it is a plain tar.

    Media types are not asked: engines write wrong ones. Raises UnknownCompressionError for zstd,
    the third form that registries have.
    """
    if start.startswith(_ZSTD):
        raise UnknownCompressionError("a layer is compressed with zstd, which can't be read here")
    return start.startswith(_GZIP)


def read_header(stream: IO[bytes]) -> tuple[bytes, tarfile.TarInfo | None]:
    """Read a tar up to the content of its next member (a file, folder or link).

    Returns all bytes read, and the member that they describe. At the end of the tar there is no
    member: then it is None, and the bytes are the first of the blocks of zeros that end a tar.
    Raises EOFError for a tar that ends early, and tarfile.ReadError for a damaged one.
    """
    header = b""
    while True:
        block = b"".join(read_exactly(stream, tarfile.BLOCKSIZE))
        header += block
        if not block.strip(b"\0"):
            return header, None
        kind = block[_TYPE_FIELD]
        if kind not in _FURTHER_HEADERS:
            break
        # A header of one of these types only announces the member's long name or attributes. Its
        # content describes the member that follows (POSIX pax, "pax Header Block").
        try:
            size = int(block[_SIZE_FIELD].rstrip(b"\0 ") or b"0", 8)
        except ValueError as error:
            raise tarfile.ReadError(f"a header has no size: {error}") from None
        header += b"".join(read_exactly(stream, size + padding(size)))
    # tarfile puts the member together from all of these headers.
    with tarfile.open(fileobj=io.BytesIO(header), mode="r:", errors="surrogateescape") as tar:
        return header, tar.next()


def read_exactly(stream: IO[bytes], size: int) -> Iterator[bytes]:
    """Yield the next `size` bytes of a stream in chunks. Raises EOFError if it has fewer."""
    remaining = size
    while remaining:
        chunk = stream.read(min(CHUNK, remaining))
        if not chunk:
            raise EOFError(f"{remaining} bytes are missing at the end of a layer")
        remaining -= len(chunk)
        yield chunk
