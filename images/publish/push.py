"""Push an image from an engine into a registry by ourselves: compressed on all cores, several layers under way at once.

Nothing here sets a tag: manifests are stored by their digest, after every blob that they name. So the same command
finishes a push that ended halfway. What layers came to when they were compressed is kept in the cache, a small file for
each: a layer that a registry has is then neither read nor compressed again.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

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
"""Blobs that are sent at a time, and layers that lie compressed on the disk."""
_CHUNK = 1 << 18


def push(
    engine: Engine,
    info: ImageInfo,
    target: Registry,
    cache: Path,
    *,
    created: str = "",
    on_event: Callable[[BuildEvent], None] = ignore,
) -> tuple[Manifest, int]:
    """Store an image's blobs and its manifest, without a tag.

    `cache`: records of layers, and room for those under way, on a disk: gigabytes pass through it. `created`: its date.
    Returns the manifest, and how many bytes of layers were sent. Raises UserError.
    """
    cache.mkdir(parents=True, exist_ok=True)
    diff_ids = tuple(dict.fromkeys(info.layers))  # images repeat empty layers
    placed = _there(target, cache, diff_ids)
    missing = [diff_id for diff_id in diff_ids if diff_id not in placed]
    config = b""
    tally = _Tally(target, on_event)
    room, sending = threading.Semaphore(_AT_ONCE), list[Future[None]]()

    def send(diff_id: str, spooled: SpooledBlob, blob: Descriptor) -> None:
        try:
            target.put_stream(blob.digest, blob.size, partial(_outgoing, spooled, target, tally))
            _note(cache, diff_id, blob)
        finally:
            spooled.close()
            room.release()

    # What the engine must give: nothing where the registry has all of it, as an export would be of everything.
    _, size = target.held(info.id) if not missing else (False, None)
    parts: Iterable[ImagePart] = [] if size is not None else engine.parts(info, missing)
    if size is not None:
        config = target.blob(Descriptor(media_type=OCI_CONFIG, digest=info.id, size=size))
    with _threads(target, _AT_ONCE) as pool:
        for part in parts:
            if part.digest == info.id:
                config, tally.total = b"".join(part.chunks), part.following
                continue
            diff_id, spooled = _compressed(part, info, cache, lambda count: tally.add(read=count))
            if diff_id in placed:  # an engine that gives all layers
                spooled.close()
                continue
            placed[diff_id] = Descriptor(
                media_type=MEDIA_TYPE, digest=spooled.digest, size=spooled.size
            )
            room.acquire()
            for one in [one for one in sending if one.done()]:
                one.result()
            sending.append(pool.submit(send, diff_id, spooled, placed[diff_id]))
        for done in as_completed(sending):
            done.result()
    tally.finish()
    if oci_digest(config) != info.id:
        raise _changed(info, "its configuration")
    if lost := [diff_id for diff_id in missing if diff_id not in placed]:
        raise _changed(info, f"layer {lost[0]}, which the engine does not give,")
    target.put_blob(config)
    manifest = image_manifest(
        Descriptor.of(OCI_CONFIG, config), [placed[one] for one in info.layers], created
    )
    target.put(manifest)
    return manifest, tally.sent


def _compressed(
    part: ImagePart, info: ImageInfo, cache: Path, on_read: Callable[[int], None]
) -> tuple[str, SpooledBlob]:
    """A layer's diff ID and its file, its tar checked against the image. Raises UserError."""
    try:
        diff_id, spooled = compress(part.chunks, cache, on_read=on_read)
    except OSError as error:
        raise UserError(problem_of(error, str(cache)), code=1) from None
    if diff_id not in info.layers or part.digest not in ("", diff_id):
        spooled.close()
        raise _changed(info, f"layer {part.digest or diff_id}")
    return diff_id, spooled


def _changed(info: ImageInfo, what: str) -> UserError:
    cause = (
        f"{what} is not what the image ID stands for: the engine's store was changed or is damaged"
    )
    return failed(info.id, cause, "build the image anew")


def _there(target: Registry, cache: Path, diff_ids: Sequence[str]) -> dict[str, Descriptor]:
    """Layers that were compressed before, and that the registry has."""

    def placed(diff_id: str) -> Descriptor | None:
        known = _known(cache, diff_id)
        if known and target.has_blob(known.digest, known.size):
            return known
        return None

    with _threads(target, _AT_ONCE * 2) as pool:
        return {
            one: found
            for one, found in zip(diff_ids, pool.map(placed, diff_ids), strict=True)
            if found
        }


def _record(cache: Path, diff_id: str) -> Path:
    return cache / "layers" / RECIPE / f"{diff_id.removeprefix('sha256:')}.json"


def _known(cache: Path, diff_id: str) -> Descriptor | None:
    """What a layer came to; None where there is no record, or none that can be read."""
    try:
        data = json.loads(_record(cache, diff_id).read_bytes())
        return Descriptor(media_type=MEDIA_TYPE, digest=str(data["digest"]), size=int(data["size"]))
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _note(cache: Path, diff_id: str, blob: Descriptor) -> None:
    """A cache that can't be written is none."""
    with suppress(OSError):
        write_whole(
            _record(cache, diff_id), json.dumps({"digest": blob.digest, "size": blob.size}).encode()
        )


class _Tally:
    """How far a push is, in bytes. Told as progress of one step; used from several threads."""

    def __init__(self, target: Registry, on_event: Callable[[BuildEvent], None]) -> None:
        self._step, self._on_event = str(target.repository), on_event
        self._name, self._start = f"pushing {target.repository}", time.monotonic()
        self._lock = threading.Lock()
        self.total = self.sent = self.read = 0
        """`total`: sizes of files, without headers, of the layers that the engine gives; 0 where it doesn't say."""
        on_event(StepStarted(step=self._step, name=self._name))

    def add(self, *, sent: int = 0, read: int = 0) -> None:
        with self._lock:
            self.sent += sent
            self.read += read
            current = min(self.read, self.total) if self.total else self.read
            what = f"sent {self.sent / 1e6:.0f} MB, compressed"
            self._on_event(
                StepProgress(
                    step=self._step, name=self._name, what=what, current=current, total=self.total
                )
            )

    def finish(self) -> None:
        seconds = time.monotonic() - self._start
        self._on_event(
            StepFinished(step=self._step, name=self._name, seconds=seconds, cached=False)
        )


@contextmanager
def _threads(target: Registry, count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that ask or send. When the block ends with an error, theirs too, none makes another attempt."""
    with ThreadPoolExecutor(max_workers=count) as pool:
        try:
            yield pool
        except BaseException:
            target.stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _outgoing(spooled: SpooledBlob, target: Registry, tally: _Tally) -> Iterator[bytes]:
    """A compressed layer, for an upload; ends with the piece that is being sent when all is to end."""
    for offset in range(0, spooled.size, _CHUNK):
        if target.stopping.is_set():
            raise Stopped
        chunk = spooled.read(offset, _CHUNK)
        yield chunk
        tally.add(sent=len(chunk))
