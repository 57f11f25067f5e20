"""Push an image from an engine into a registry by ourselves: compressed on all cores, several layers under way at once.

Nothing here sets a tag: manifests are stored by their digest, after every blob that they name. So a push that ends
halfway, however it ends, is finished by the same command, and what arrived is not sent again.

What layers came to when they were compressed is kept in the cache, a small file for each: a layer that a registry has
is then neither read nor compressed again. Without the cache the same layers come to the same blobs, and those that are
there are not sent.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from images.engine import Engine, ImageInfo, ignore
from images.engine.buildkit import BuildEvent, StepFinished, StepProgress, StepStarted
from images.engine.failures import Cancelled
from images.engine.layers import ImagePart
from images.errors import Problem, UserError, problem_of
from images.host.hashing import oci_digest
from images.publish.compression import CompressedLayer, Compression, SpooledBlob, compress
from images.registry import retries
from images.registry.client import Registry
from images.registry.distribution import OCI_CONFIG, Descriptor, Manifest, image_manifest
from images.registry.errors import RegistryError
from images.registry.reference import Repository

_AT_ONCE = 4
"""Blobs that are sent at a time, and layers that lie compressed on the disk."""
_CHUNK = 1 << 18
_Key = tuple[Compression, str]
"""A compression and a diff ID."""


@dataclass(frozen=True, kw_only=True)
class PushJob:
    """An image and where it goes."""

    engine: Engine
    info: ImageInfo
    target: Registry
    wanted: Sequence[Compression]
    cache: Path
    """Records of layers, and room for those under way. On a disk: gigabytes pass through it."""
    source: Repository | None = None
    """Another repository of the same registry that has this very image: its blobs are mounted."""
    on_event: Callable[[BuildEvent], None] = ignore

    @property
    def diff_ids(self) -> tuple[str, ...]:
        """Each layer once: images repeat empty ones."""
        return tuple(dict.fromkeys(self.info.layers))


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """A manifest for each compression, stored by its digest, and how many bytes of layers were sent."""

    manifests: dict[Compression, Manifest]
    sent: int


def push(job: PushJob) -> Pushed:
    """Store the blobs and the manifest of each wanted compression, without a tag. Raises UserError."""
    job.cache.mkdir(parents=True, exist_ok=True)
    placed = _there(job)
    missing = [diff_id for diff_id in job.diff_ids if any((one, diff_id) not in placed for one in job.wanted)]
    config = b""
    with _told(job) as tally, _sending(job, tally) as sender:
        for part in _parts(job, missing):
            if part.digest == job.info.id:
                config, tally.total = b"".join(part.chunks), part.following
                continue
            left = part.size

            def on_read(count: int) -> None:
                """An engine notes the size of a layer's files, without headers: it counts as that in all."""
                nonlocal left
                tally.add(read=min(count, left))
                left -= min(count, left)
                sender.require_no_failure()

            layer = _compressed(job, part, placed, on_read)
            tally.add(read=left)
            new = {one: blob for one, blob in layer.blobs.items() if (one, layer.diff_id) not in placed}
            placed |= {(one, layer.diff_id): _descriptor(one, blob.digest, blob.size) for one, blob in new.items()}
            sender.send(layer, new)
    if oci_digest(config) != job.info.id:
        raise _changed(job, "its configuration")
    if lost := [diff_id for diff_id in missing if any((one, diff_id) not in placed for one in job.wanted)]:
        raise _changed(job, f"layer {lost[0]}, which the engine does not give,")
    job.target.put_blob(config)
    manifests = {}
    for one in job.wanted:
        layers = [placed[one, diff_id] for diff_id in job.info.layers]
        manifests[one] = image_manifest(Descriptor.of(OCI_CONFIG, config), layers)
        job.target.put(manifests[one])
    return Pushed(manifests=manifests, sent=tally.sent)


def _descriptor(compression: Compression, digest: str, size: int) -> Descriptor:
    return Descriptor(media_type=compression.media_type, digest=digest, size=size)


def _parts(job: PushJob, missing: Sequence[str]) -> Iterator[ImagePart]:
    """What the engine must give: nothing where the registry has all of it, as an export would be of everything."""
    here = not missing and (job.target.has_blob(job.info.id) or _mounts(job, job.info.id))
    size = job.target.blob_size(job.info.id) if here else None
    if size is None:
        yield from job.engine.parts(job.info, missing)
    else:
        content = job.target.blob(Descriptor(media_type=OCI_CONFIG, digest=job.info.id, size=size))
        yield ImagePart(digest=job.info.id, size=size, chunks=iter([content]))


def _compressed(
    job: PushJob, part: ImagePart, placed: dict[_Key, Descriptor], on_read: Callable[[int], None]
) -> CompressedLayer:
    """A layer in the compressions that the registry lacks, its tar checked against the image."""
    wanted = [one for one in job.wanted if (one, part.digest) not in placed]
    try:
        layer = compress(part.chunks, wanted, job.cache, on_read=on_read)
    except OSError as error:
        raise UserError(problem_of(error, str(job.cache)), code=1) from None
    if layer.diff_id not in job.diff_ids or part.digest not in ("", layer.diff_id):
        layer.close()
        raise _changed(job, f"layer {part.digest or layer.diff_id}")
    return layer


def _changed(job: PushJob, what: str) -> UserError:
    cause = f"{what} is not what the image ID stands for: the engine's store was changed or is damaged"
    return UserError(Problem(where=job.info.id, cause=cause, then="build the image anew"), code=1)


# --- what is there already ------------------------------------------------------------------------------------------


def _there(job: PushJob) -> dict[_Key, Descriptor]:
    """Layers that were compressed before, and that the registry has or mounts."""

    def placed(key: _Key) -> Descriptor | None:
        known = _known(job.cache, key)
        if known and (job.target.blob_size(known.digest) == known.size or _mounts(job, known.digest, known.size)):
            return known
        return None

    keys = [(one, diff_id) for one in job.wanted for diff_id in job.diff_ids]
    with ThreadPoolExecutor(max_workers=_AT_ONCE * 2) as pool:
        asking = {key: pool.submit(placed, key) for key in keys}
        try:
            wait(asking.values(), return_when=FIRST_EXCEPTION)
            _require_no_failure(asking.values())
        except BaseException:
            job.target.stop()  # nobody waits for pauses of the others
            pool.shutdown(cancel_futures=True)
            raise
    return {key: blob for key, one in asking.items() if (blob := one.result())}


def _mounts(job: PushJob, digest: str, size: int | None = None) -> bool:
    """Mount a blob of the source. Where a registry refuses that, in whatever words, the blob can be sent.

    A refusal is 401, too: a login may write here and not read the other. Raises RegistryError.
    """
    if job.source is None:
        return False
    try:
        return job.target.mount(digest, job.source, size)
    except RegistryError as error:
        final = HTTPStatus.BAD_REQUEST <= error.status < HTTPStatus.INTERNAL_SERVER_ERROR
        if final and error.status not in retries.STATUSES:
            return False
        raise


def _record(cache: Path, key: _Key) -> Path:
    return cache / "layers" / key[0].recipe / f"{key[1].removeprefix('sha256:')}.json"


def _known(cache: Path, key: _Key) -> Descriptor | None:
    """What a layer came to; None where there is no record, or none that can be read."""
    try:
        data = json.loads(_record(cache, key).read_bytes())
        return Descriptor(media_type=key[0].media_type, digest=str(data["digest"]), size=int(data["size"]))
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _note(cache: Path, key: _Key, blob: Descriptor) -> None:
    """A cache that can't be written is none."""
    path = _record(cache, key)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, half = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w") as stream:
            json.dump({"digest": blob.digest, "size": blob.size}, stream)
        Path(half).replace(path)


# --- sending --------------------------------------------------------------------------------------------------------


class _Tally:
    """How far a push is, in bytes. Told as progress of one step; used from several threads."""

    def __init__(self, job: PushJob) -> None:
        self._job = job
        self._lock = threading.Lock()
        self.total = self.sent = self.read = 0
        """`total`: what the engine notes of the layers that it is to give; 0 where it does not say that."""

    def add(self, *, sent: int = 0, read: int = 0) -> None:
        with self._lock:
            self.sent += sent
            self.read += read
            where = str(self._job.target.repository)
            what = f"sent {self.sent / 1e6:.0f} MB, compressed"
            event = StepProgress(step=where, name=f"pushing {where}", what=what, current=self.read, total=self.total)
            self._job.on_event(event)


@contextmanager
def _told(job: PushJob) -> Iterator[_Tally]:
    where, start = str(job.target.repository), time.monotonic()
    job.on_event(StepStarted(step=where, name=f"pushing {where}"))
    yield _Tally(job)
    seconds = time.monotonic() - start
    job.on_event(StepFinished(step=where, name=f"pushing {where}", seconds=seconds, cached=False))


@dataclass(frozen=True, kw_only=True)
class _Outgoing:
    """A compressed layer as an upload reads it, from any place on; stops when it is told to."""

    spooled: SpooledBlob
    digest: str
    size: int
    stop: threading.Event
    tally: _Tally

    def chunks(self, offset: int) -> Iterator[bytes]:
        while offset < self.size:
            if self.stop.is_set():
                raise Cancelled
            chunk = self.spooled.read(offset, _CHUNK)
            yield chunk
            offset += len(chunk)
            self.tally.add(sent=len(chunk))


class _Sender:
    """Sends layers on threads, each with all its compressions, while the next one is compressed."""

    def __init__(self, job: PushJob, tally: _Tally) -> None:
        self._job = job
        self._tally = tally
        self._pool = ThreadPoolExecutor(max_workers=_AT_ONCE)
        self._room = threading.Semaphore(_AT_ONCE)
        self._stop = threading.Event()
        self._sending: list[Future[None]] = []

    def send(self, layer: CompressedLayer, blobs: dict[Compression, SpooledBlob]) -> None:
        """Take a layer over, and wait while too many lie on the disk. Raises what an earlier upload raised."""
        self._room.acquire()
        self._sending.append(self._pool.submit(self._send, layer, blobs))
        self.require_no_failure()

    def require_no_failure(self) -> None:
        """Raises what an upload raised."""
        _require_no_failure(self._sending)

    def finish(self) -> None:
        """Wait for all. Raises what an upload raised."""
        wait(self._sending, return_when=FIRST_EXCEPTION)
        self.require_no_failure()

    def stop(self) -> None:
        """End uploads with the piece that is being sent, without another attempt."""
        self._stop.set()
        self._job.target.stop()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _send(self, layer: CompressedLayer, blobs: dict[Compression, SpooledBlob]) -> None:
        job = self._job
        try:
            for compression, spooled in blobs.items():
                digest, size = spooled.digest, spooled.size
                if not _mounts(job, digest, size):
                    outgoing = _Outgoing(spooled=spooled, digest=digest, size=size, stop=self._stop, tally=self._tally)
                    job.target.put_stream(outgoing)
                _note(job.cache, (compression, layer.diff_id), _descriptor(compression, digest, size))
        finally:
            layer.close()
            self._room.release()


@contextmanager
def _sending(job: PushJob, tally: _Tally) -> Iterator[_Sender]:
    sender = _Sender(job, tally)
    try:
        yield sender
        sender.finish()
    except BaseException:
        sender.stop()
        raise
    finally:
        sender.close()


def _require_no_failure(threads: Iterable[Future[Any]]) -> None:
    """Raises what one of those that are done raised."""
    for done in [one for one in threads if one.done()]:
        done.result()
