"""Push an image from a local engine into a registry, without tags and without `docker push`.

Layers are compressed on all cores, and several are sent at the same time. Manifests are stored by
their digest, after every blob that they name, so the same command finishes an interrupted push. The
cache remembers which blob each layer was compressed to, in a small file for each: a layer that the
registry has is then neither read nor compressed again.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from images.engine import Engine, ImageInfo, ignore
from images.engine.buildkit import BuildEvent, StepFinished, StepProgress, StepStarted
from images.engine.exported import ImagePart
from images.errors import UserError, failed, problem_of
from images.host.cache import write_whole
from images.host.hashing import oci_digest
from images.publish.compression import MEDIA_TYPE, RECIPE, SpooledBlob, compress
from images.registry.client import Registry
from images.registry.distribution import OCI_CONFIG, Descriptor, Manifest, image_manifest
from images.registry.errors import Stopped

_AT_ONCE = 4
"""How many blobs are sent at the same time. As many compressed layers lie on the disk."""
_LOOKUPS_AT_ONCE = 8
"""How many blobs the registry is asked for at the same time."""
_CHUNK = 1 << 18
"""Bytes of an upload that are read at a time, and reported as sent."""


class PushProgress:
    """Counts the bytes of a push and reports them as the progress of one build step.

    Several threads may use it.
    """

    def __init__(self, target: Registry, on_event: Callable[[BuildEvent], None]) -> None:
        """Report a push to `target` as a step of a build: `on_event` gets its start at once."""
        self._step = str(target.repository)
        self._name = f"pushing {target.repository}"
        self._on_event = on_event
        self._start = time.monotonic()
        self._lock = threading.Lock()
        self.sent = 0
        """Bytes of compressed layers that were sent."""
        self.read = 0
        """Bytes of layers that were read from the engine."""
        on_event(StepStarted(step=self._step, name=self._name))

    def add(self, *, sent: int = 0, read: int = 0) -> None:
        """Add to the bytes that were sent and read, and report how far the push is.

        `sent` are compressed bytes that the registry got, `read` bytes that the engine gave.
        """
        with self._lock:
            self.sent += sent
            self.read += read
            event = StepProgress(
                step=self._step,
                name=self._name,
                what=f"sent {self.sent / 1e6:.0f} MB, compressed, and read",
                current=self.read,
                total=0,
            )
            self._on_event(event)

    def finish(self) -> None:
        """Report that the push has ended, with the seconds that it took."""
        seconds = time.monotonic() - self._start
        self._on_event(
            StepFinished(step=self._step, name=self._name, seconds=seconds, cached=False)
        )


def push(
    engine: Engine,
    info: ImageInfo,
    target: Registry,
    cache: Path,
    *,
    created: str = "",
    on_event: Callable[[BuildEvent], None] = ignore,
) -> tuple[Manifest, int]:
    """Store an image in a registry without a tag. Return its manifest and the bytes that were sent.

    Only bytes of compressed layers are counted. `cache` is a folder on a disk with room for
    gigabytes: it has the records of layers (which blob each was compressed to), and layers under
    way. `created` is the date to write into the manifest; empty: none. Raises UserError if the
    registry or the engine fails, and if the engine's store does not match the image ID.
    """
    cache.mkdir(parents=True, exist_ok=True)
    # Layers are known by their diff ID: the digest of the uncompressed tar. An image may repeat
    # one, such as the empty layer: it is looked up and sent once.
    diff_ids = tuple(dict.fromkeys(info.layers))
    blobs = find_pushed_layers(target, cache, diff_ids)
    missing = [diff_id for diff_id in diff_ids if diff_id not in blobs]
    progress = PushProgress(target, on_event)

    # If the registry has everything, nothing is read from the engine: some engines export all
    # layers even for the configuration alone, whose digest is the image ID (`info.digest`).
    config = None if missing else fetch_config(target, info.digest)
    if config is None:
        parts = engine.parts(info, missing)
        config, sent_blobs = send_parts(parts, info, target, cache, blobs, progress)
        blobs |= sent_blobs
    progress.finish()

    # A store that was changed or is damaged may give other bytes than the image ID stands for, or
    # lack a layer.
    if oci_digest(config) != info.digest:
        raise changed_in_store(info, "its configuration")
    for diff_id in missing:
        if diff_id not in blobs:
            raise changed_in_store(info, f"layer {diff_id}, which the engine does not give,")

    # The manifest comes last: a registry takes none that names a missing blob.
    target.put_blob(config)
    layers = [blobs[diff_id] for diff_id in info.layers]
    manifest = image_manifest(Descriptor.of(OCI_CONFIG, config), layers, created)
    target.put(manifest)
    return manifest, progress.sent


def fetch_config(target: Registry, image_id: str) -> bytes | None:
    """Return an image's configuration from the registry; None where it has none of known size."""
    stored = target.stat_blob(image_id)
    if stored.size is None:
        return None
    return target.blob(Descriptor(media_type=OCI_CONFIG, digest=image_id, size=stored.size))


class SentParts(NamedTuple):
    """What `send_parts` read from the engine."""

    config: bytes
    """The image's configuration, which is not sent; empty if the engine gave none."""
    blobs: dict[str, Descriptor]
    """Diff ID -> compressed layer, of the layers that were sent."""


def send_parts(
    parts: Iterable[ImagePart],
    info: ImageInfo,
    target: Registry,
    cache: Path,
    stored_blobs: Mapping[str, Descriptor],
    progress: PushProgress,
) -> SentParts:
    """Compress and send the layers of an image as the engine gives them.

    `parts` are the layers and the configuration, in any order. `stored_blobs` has the layers that
    the registry has already: diff ID (digest of the uncompressed layer) -> compressed layer. They
    are not sent. Each other layer is sent by a thread while the next one is read and compressed
    here. Raises UserError if the registry or the engine fails, or the disk is full.
    """
    config = b""
    sent_blobs: dict[str, Descriptor] = {}
    sending: list[Future[None]] = []
    # Counts how many more compressed layers may lie on the disk.
    room = threading.Semaphore(_AT_ONCE)

    def send(diff_id: str, spooled: SpooledBlob, blob: Descriptor) -> None:
        """Send a layer, record its blob, and make room for the next layer. Runs in a thread."""
        try:
            chunks = partial(read_chunks, spooled, target, progress)
            target.put_stream(blob.digest, blob.size, chunks)
            write_record(cache, diff_id, blob)
        finally:
            spooled.close()
            room.release()

    with sending_threads(target, _AT_ONCE) as pool:
        for part in parts:
            # This is the configuration: an image is named by its digest. The caller stores it,
            # after the layers.
            if part.digest == info.digest:
                config = b"".join(part.chunks)
                continue

            # Engines before 25 export all layers, also those that the registry has.
            diff_id, spooled = compress_layer(part, info, cache, progress)
            if diff_id in stored_blobs or diff_id in sent_blobs:
                spooled.close()
                continue
            blob = Descriptor(media_type=MEDIA_TYPE, digest=spooled.digest, size=spooled.size)
            sent_blobs[diff_id] = blob

            # Wait until the disk has room for one more layer. `result` raises the error of a layer
            # that could not be sent, so that no more are read.
            room.acquire()
            for future in sending:
                if future.done():
                    future.result()
            sending.append(pool.submit(send, diff_id, spooled, blob))
        for future in as_completed(sending):
            future.result()
    return SentParts(config, sent_blobs)


def compress_layer(
    part: ImagePart, info: ImageInfo, cache: Path, progress: PushProgress
) -> tuple[str, SpooledBlob]:
    """Compress a layer into a temporary file in the cache. Return its diff ID and the file.

    The diff ID is the digest of the uncompressed tar. The caller must close the file. Raises
    UserError for a full disk, and if the tar is no layer of the image or not the one that the
    engine says it is.
    """
    try:
        diff_id, spooled = compress(
            part.chunks, cache, on_read=lambda count: progress.add(read=count)
        )
    except OSError as error:
        raise UserError(problem_of(error, str(cache)), code=1) from None
    # Some engines do not say which layer a part is.
    is_expected = part.digest in ("", diff_id)
    if diff_id not in info.layers or not is_expected:
        spooled.close()
        raise changed_in_store(info, f"layer {part.digest or diff_id}")
    return diff_id, spooled


def changed_in_store(info: ImageInfo, what: str) -> UserError:
    """Return the error for a part of an image that does not match its digest; `what` names it."""
    cause = (
        f"the {what} in Docker's store does not have the digest that the image names, so the store "
        "was changed or is damaged"
    )
    then = (
        "remove the image (`docker image rm`), build it again with --no-cache, and publish it; if "
        "that gives the same error, the engine's disk may be damaged: use another engine"
    )
    return failed(next(iter(info.tags), info.digest), cause, then)


def read_chunks(spooled: SpooledBlob, target: Registry, progress: PushProgress) -> Iterator[bytes]:
    """Yield a compressed layer in chunks for its upload. Raises Stopped once `stopping` is set."""
    for offset in range(0, spooled.size, _CHUNK):
        if target.stopping.is_set():
            raise Stopped
        chunk = spooled.read(offset, _CHUNK)
        yield chunk
        progress.add(sent=len(chunk))


@contextmanager
def sending_threads(target: Registry, count: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of threads for requests to a registry.

    It has `count` threads. If the `with` block ends with an error or an interrupt, they stop soon:
    the registry's `stopping` is set, so a request that fails is not tried again, and work that has
    not begun is dropped.
    """
    with ThreadPoolExecutor(max_workers=count) as pool:
        try:
            yield pool
        except BaseException:
            target.stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


# --- records of compressed layers -----------------------------------------------------------------


def find_pushed_layers(
    target: Registry, cache: Path, diff_ids: Sequence[str]
) -> dict[str, Descriptor]:
    """Return the layers that were compressed here before and that the registry has.

    The result maps the diff ID of a layer (the digest of its uncompressed tar) to its blob (the
    compressed one). `diff_ids` are those to look for, `cache` has the records of what was
    compressed here. Raises UserError where the registry fails.
    """

    def find(diff_id: str) -> Descriptor | None:
        """Return the blob of a layer; None if it is not known here or not in the registry."""
        blob = read_record(cache, diff_id)
        if blob and target.has_blob(blob.digest, blob.size):
            return blob
        return None

    with sending_threads(target, _LOOKUPS_AT_ONCE) as pool:
        results = list(pool.map(find, diff_ids))
    blobs = {}
    for diff_id, blob in zip(diff_ids, results, strict=True):
        if blob:
            blobs[diff_id] = blob
    return blobs


def record_path(cache: Path, diff_id: str) -> Path:
    """Return the file in the cache that says which blob a layer was compressed to."""
    return cache / "layers" / RECIPE / f"{diff_id.removeprefix('sha256:')}.json"


def read_record(cache: Path, diff_id: str) -> Descriptor | None:
    """Return the blob that a layer was compressed to; None without a readable record."""
    try:
        data = json.loads(record_path(cache, diff_id).read_bytes())
        return Descriptor(media_type=MEDIA_TYPE, digest=str(data["digest"]), size=int(data["size"]))
    except (OSError, ValueError, LookupError, TypeError):
        return None


def write_record(cache: Path, diff_id: str, blob: Descriptor) -> None:
    """Record which blob a layer was compressed to. Does nothing if the cache cannot be written."""
    content = json.dumps({"digest": blob.digest, "size": blob.size}).encode()
    with suppress(OSError):
        write_whole(record_path(cache, diff_id), content)
