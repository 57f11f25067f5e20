"""Push an image from an engine into a registry by ourselves: compressed on all cores, several layers under way at once.

Nothing here sets a tag: manifests are stored by their digest, after every blob that they name. So a push that ends
halfway, however it ends, is finished by the same command, and what arrived is not sent again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from images.engine import Engine, ImageInfo
from images.engine.buildkit import BuildEvent, StepFinished, StepProgress, StepStarted
from images.engine.failures import Cancelled
from images.engine.layers import ImagePart
from images.errors import Problem, UserError, problem_of
from images.host.hashing import oci_digest
from images.publish.chunked.tar_entries import UnknownTarError
from images.publish.compression import CompressedLayer, Compression, compress
from images.publish.known_blobs import KnownBlob, KnownBlobs
from images.publish.spooled_blob import SpooledBlob
from images.registry import retries
from images.registry.client import Registry
from images.registry.distribution import OCI_CONFIG, Descriptor, Manifest, image_manifest
from images.registry.errors import RegistryError
from images.registry.reference import Repository

_AT_ONCE = 4
"""Blobs that are sent at a time, and layers that lie compressed on the disk."""
_CHUNK = 1 << 18
_NO_ANSWER = retries.STATUSES
"""Statuses below 500 that do not say whether a mount is granted. 401 does: a login may write and not read the other."""
_Key = tuple[Compression, str]
"""A compression and a diff ID."""


@dataclass(frozen=True, kw_only=True)
class PushJob:
    """An image and where it goes. `siblings` are repositories of the same registry to mount layers from."""

    engine: Engine
    info: ImageInfo
    target: Registry
    wanted: Sequence[Compression]
    cache: Path
    """Records of layers, and room for those under way. On a disk: gigabytes pass through it."""
    siblings: Sequence[Repository] = ()
    at_hand: Mapping[_Key, KnownBlob] = field(default_factory=dict)
    """What layers came to on another machine, where a sibling has the result. Whoever gives it has read them."""

    @property
    def known(self) -> KnownBlobs:
        return known_blobs(self.cache)

    @property
    def diff_ids(self) -> tuple[str, ...]:
        """Each layer once: images repeat empty ones."""
        return tuple(dict.fromkeys(self.info.layers))

    def note(self, key: _Key, blob: KnownBlob) -> None:
        """Remember where a layer is, so that it need not be compressed again. A cache that can't be written is none."""
        with suppress(OSError):
            self.known.note(*key, blob, self.target.repository)


def known_blobs(cache: Path) -> KnownBlobs:
    return KnownBlobs(cache / "layers")


@dataclass(kw_only=True)
class Tally:
    """How far a push is, in bytes. Told as progress of one step; used from several threads."""

    where: str
    on_event: Callable[[BuildEvent], None]
    total: int = 0
    """What the engine notes of the layers that it is to give; 0 where it does not say that."""
    sent: int = 0
    read: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *, sent: int = 0, read: int = 0) -> None:
        with self._lock:
            self.sent += sent
            self.read += read
            what = f"sent {self.sent / 1e6:.0f} MB, compressed"
            self.on_event(
                StepProgress(step=self.where, name=self._name, what=what, current=self.read, total=self.total)
            )

    @contextmanager
    def layer(self, size: int) -> Iterator[Callable[[int], None]]:
        """Takes how much of a layer is read, which counts `size` in all: an engine notes its files, without headers."""
        left = size

        def read(count: int) -> None:
            nonlocal left
            counts = min(count, left)
            left -= counts
            self.add(read=counts)

        yield read
        self.add(read=left)

    def __enter__(self) -> Self:
        self._start = time.monotonic()
        self.on_event(StepStarted(step=self.where, name=self._name))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = time.monotonic() - self._start
        if kind is None:
            self.on_event(StepFinished(step=self.where, name=self._name, seconds=seconds, cached=False))

    @property
    def _name(self) -> str:
        return f"pushing {self.where}"


def push(job: PushJob, tally: Tally) -> tuple[tuple[Compression, Manifest], ...]:
    """Store the blobs and the manifest of each wanted compression, without a tag. Raises UserError."""
    job.cache.mkdir(parents=True, exist_ok=True)
    placed = _there(job)
    missing = [diff_id for diff_id in job.diff_ids if any((one, diff_id) not in placed for one in job.wanted)]
    config = b""
    with _Sender(job, tally) as sender:
        for part in _parts(job, missing):
            if part.digest == job.info.id:
                config, tally.total = b"".join(part.chunks), part.following
                continue
            with tally.layer(part.size) as on_read:
                layer, lacking = _compressed(job, part, placed, _until(sender, on_read))
            placed.update({key: _descriptor(key[0], blob) for key, blob in lacking.items()})
            sender.send(layer, lacking)
    if oci_digest(config) != job.info.id:
        raise _changed(job, "its configuration")
    if lost := [diff_id for diff_id in missing if any((one, diff_id) not in placed for one in job.wanted)]:
        raise _changed(job, f"layer {lost[0]}, which the engine does not give,")
    job.target.put_blob(config)
    return tuple((one, _store_manifest(job, one, config, placed)) for one in job.wanted)


def _until(sender: _Sender, on_read: Callable[[int], None]) -> Callable[[int], None]:
    def read(count: int) -> None:
        on_read(count)
        sender.require_no_failure()

    return read


def _store_manifest(job: PushJob, compression: Compression, config: bytes, placed: dict[_Key, Descriptor]) -> Manifest:
    layers = [placed[compression, diff_id] for diff_id in job.info.layers]
    manifest = image_manifest(Descriptor.of(OCI_CONFIG, config), layers)
    job.target.put(manifest)
    return manifest


def _descriptor(compression: Compression, blob: SpooledBlob | KnownBlob) -> Descriptor:
    return Descriptor(
        media_type=compression.media_type, digest=blob.digest, size=blob.size, annotations=blob.annotations
    )


def _there(job: PushJob) -> dict[_Key, Descriptor]:
    """Layers that were compressed before, and that the registry has or mounts from a sibling."""

    def placed(key: _Key) -> Descriptor | None:
        own, other = job.known.find(*key), job.at_hand.get(key)
        if own and _is_there(job, own):
            job.note(key, own)
            return _descriptor(key[0], own)
        if other and _is_there(job, other):  # not noted: its bytes need not be those that this machine would make
            return _descriptor(key[0], other)
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


def _require_no_failure(threads: Iterable[Future[Any]]) -> None:
    """Raises what one of those that are done raised."""
    for done in [one for one in threads if one.done()]:
        done.result()


def _is_there(job: PushJob, known: KnownBlob) -> bool:
    if job.target.blob_size(known.digest) == known.size:
        return True
    places = [one for one in job.siblings if str(one) in known.repositories]
    return any(_mounts(job, one, known.digest, known.size) for one in places)


def _mounts(job: PushJob, place: Repository, digest: str, size: int | None = None) -> bool:
    """Mount a blob. Where a registry refuses that, in whatever words, the blob can be sent. Raises RegistryError."""
    try:
        return job.target.mount(digest, place, size)
    except RegistryError as error:
        if HTTPStatus.BAD_REQUEST <= error.status < HTTPStatus.INTERNAL_SERVER_ERROR and error.status not in _NO_ANSWER:
            return False
        raise


def _parts(job: PushJob, missing: Sequence[str]) -> Iterator[ImagePart]:
    """What the engine must give: nothing where the registry has all of it, as an export would be of everything."""
    here = not missing and (
        job.target.has_blob(job.info.id) or any(_mounts(job, one, job.info.id) for one in job.siblings)
    )
    size = job.target.blob_size(job.info.id) if here else None
    if size is None:
        yield from job.engine.parts(job.info, missing)
    else:
        content = job.target.blob(Descriptor(media_type=OCI_CONFIG, digest=job.info.id, size=size))
        yield ImagePart(digest=job.info.id, size=size, chunks=iter([content]))


def _compressed(
    job: PushJob, part: ImagePart, placed: dict[_Key, Descriptor], on_read: Callable[[int], None]
) -> tuple[CompressedLayer, dict[_Key, SpooledBlob]]:
    """A layer in the compressions that the registry lacks, its tar checked against the image."""
    wanted = [one for one in job.wanted if (one, part.digest) not in placed]
    try:
        layer = compress(part.chunks, wanted, job.cache, on_read=on_read)
    except OSError as error:
        raise UserError(problem_of(error, str(job.cache)), code=1) from None
    except UnknownTarError as error:
        raise _not_chunked(job, part, str(error)) from None
    if layer.diff_id not in job.diff_ids or part.digest not in ("", layer.diff_id):
        layer.close()
        raise _changed(job, f"layer {part.digest or layer.diff_id}")
    blobs = {(one, layer.diff_id): blob for one, blob in layer.blobs.items()}
    return layer, {key: blob for key, blob in blobs.items() if key not in placed}


def _not_chunked(job: PushJob, part: ImagePart, why: str) -> UserError:
    where = f"layer {part.digest or 'of an export'} of {job.info.id}"
    cause = f"{Compression.ZSTD_CHUNKED} can't describe its tar: {why}"
    return UserError(Problem(where=where, cause=cause, then="publish it with --compression both"), code=1)


def _changed(job: PushJob, what: str) -> UserError:
    cause = f"{what} is not what the image ID stands for: the engine's store was changed or is damaged"
    return UserError(Problem(where=job.info.id, cause=cause, then="build the image anew"), code=1)


@dataclass(frozen=True, kw_only=True)
class _Outgoing:
    """A compressed layer as an upload reads it, from any place on; stops when it is told to."""

    spooled: SpooledBlob
    digest: str
    size: int
    stop: threading.Event
    tally: Tally

    def chunks(self, offset: int) -> Iterator[bytes]:
        for start in range(offset, self.size, _CHUNK):
            if self.stop.is_set():
                raise Cancelled
            content = self.spooled.read(start, min(_CHUNK, self.size - start))
            yield content
            self.tally.add(sent=len(content))


class _Sender:
    """Sends layers while the next ones are compressed. Leaving it waits for all; an error on either side ends both."""

    def __init__(self, job: PushJob, tally: Tally) -> None:
        self._job = job
        self._tally = tally
        self._pool = ThreadPoolExecutor(max_workers=_AT_ONCE)
        self._room = threading.BoundedSemaphore(_AT_ONCE)
        self._stop = threading.Event()
        self._sending: list[Future[None]] = []

    def send(self, layer: CompressedLayer, lacking: dict[_Key, SpooledBlob]) -> None:
        """Take a layer over, and wait while too many lie on the disk. Raises what an earlier upload raised."""
        self._room.acquire()
        self._sending.append(self._pool.submit(self._send, layer, lacking))
        self.require_no_failure()

    def require_no_failure(self) -> None:
        """Raises what an upload raised."""
        _require_no_failure(self._sending)

    def _send(self, layer: CompressedLayer, lacking: dict[_Key, SpooledBlob]) -> None:
        try:
            for key, spooled in lacking.items():
                blob = _Outgoing(
                    spooled=spooled,
                    digest=spooled.digest,
                    size=spooled.size,
                    stop=self._stop,
                    tally=self._tally,
                )
                self._job.target.put_stream(blob)
                noted = KnownBlob(digest=blob.digest, size=blob.size, annotations=spooled.annotations)
                self._job.note(key, noted)
        finally:
            layer.close()
            self._room.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                wait(self._sending, return_when=FIRST_EXCEPTION)
                self.require_no_failure()
            else:
                self._end()
        except BaseException:
            self._end()
            raise
        finally:
            self._pool.shutdown(cancel_futures=True)

    def _end(self) -> None:
        """Of uploads under way: with the piece that is being sent, without another attempt."""
        self._stop.set()
        self._job.target.stop()
