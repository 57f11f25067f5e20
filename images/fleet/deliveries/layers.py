"""Layers of an image that a repository has: taken for the image's only where this machine knows that they are."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from images.engine import ImageInfo
from images.engine.failures import Cancelled
from images.errors import Problem, UserError
from images.fleet.deliveries.model import DeliveryJob
from images.publish import stored_layers
from images.publish.chunked.contents import TOC_DIGEST
from images.publish.compression import Compression
from images.publish.known_blobs import KnownBlob, KnownBlobs
from images.publish.stored_layers import LayerDigests
from images.registry.client import Registry
from images.registry.distribution import Manifest
from images.registry.reference import Reference, Repository

Layers = Mapping[tuple[Compression, str], KnownBlob]
"""A compression and a diff ID -> what the layer came to."""
_AT_ONCE = 4


def at_hand(source: Reference, info: ImageInfo, job: DeliveryJob, known: KnownBlobs) -> Layers:
    """What a repository has of an image. Raises UserError for a layer that is another's.

    A manifest with the right configuration can name any layers: whoever may write there can store one. So a layer that
    this machine has not compressed itself is read once.
    """
    with Registry(source.repository) as registry:
        named = layers_in(registry.get(source.identifier), info, source.repository)
        found = {key: blob for key, blob in named.items() if key[0] in job.compressions}
        unread = {key: blob for key, blob in found.items() if not _is_own(known, key, blob)}
        _require_own(registry, unread, job.image)
    return found


def layers_in(manifest: Manifest, info: ImageInfo, repository: Repository) -> Layers:
    """What the layers of an image came to, as its manifest in a repository has them, which proves nothing. Pure.

    Nothing of another image's manifest, and no layer of a media type that `publish` does not write. No zstd:chunked one
    either: that it unpacks to the layer says nothing of its table of contents, which podman reads.
    """
    if manifest.is_index or manifest.config.digest != info.id or len(manifest.layers) != len(info.layers):
        return {}
    by_type = {one.media_type: one for one in (Compression.GZIP, Compression.ZSTD)}
    return {
        (by_type[layer.media_type], diff_id): KnownBlob(
            digest=layer.digest, size=layer.size, repositories=(str(repository),)
        )
        for layer, diff_id in zip(manifest.layers, info.layers, strict=True)
        if layer.media_type in by_type and TOC_DIGEST not in layer.annotations
    }


def _is_own(known: KnownBlobs, key: tuple[Compression, str], blob: KnownBlob) -> bool:
    """Whether this machine compressed the layer to this very blob."""
    own = known.find(*key)
    return own is not None and own.digest == blob.digest


def _require_own(registry: Registry, found: Layers, image: str) -> None:
    """Read layers, several at once, and compare them with their diff IDs. Raises UserError."""
    stop = threading.Event()

    def read(compression: Compression, digest: str) -> LayerDigests:
        return registry.read_blob(digest, lambda chunks: stored_layers.digests(_until(stop, chunks), compression))

    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        reading = {key: pool.submit(read, key[0], blob.digest) for key, blob in found.items()}
        try:
            for (compression, diff_id), blob in found.items():
                if reading[compression, diff_id].result() != LayerDigests(blob=blob.digest, diff_id=diff_id):
                    raise _foreign(registry.repository, blob.digest, diff_id, image)
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def _until(stop: threading.Event, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """No interrupt waits for gigabytes."""
    for chunk in chunks:
        if stop.is_set():
            raise Cancelled
        yield chunk


def _foreign(repository: Repository, digest: str, diff_id: str, image: str) -> UserError:
    cause = f"does not unpack to layer {diff_id[:19]} of the image, though a manifest there says so: nothing was named"
    then = f"see who may write to {repository}; then `nox -s build -- {image}` with the same --on and another --through"
    return UserError(Problem(where=f"{repository}@{digest}", cause=cause, then=then), code=1)
