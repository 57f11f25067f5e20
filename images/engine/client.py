"""The Docker Engine: one class with all that we ask of it. The modules beside this one do the work."""

from __future__ import annotations

import shutil
import socket
import tarfile
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Self

from docker.tls import TLSConfig

from images.engine import containers, image_store, registries
from images.engine.active import ActiveWork
from images.engine.archive import Files
from images.engine.building import build_once, transient
from images.engine.buildkit import BuildEvent, BuildResult, Trace
from images.engine.container import Container
from images.engine.containers import RUN_LABEL
from images.engine.docker_api import DockerApi
from images.engine.facts import engine_facts
from images.engine.failures import EngineError
from images.engine.image_store import ImagePart
from images.engine.responses import CacheRecord, ContainerInfo, HistoryEntry, ImageInfo, SavedFile, saved_files
from images.engine.retrying import Retries
from images.engine.specs import PLATFORM, BuildSpec, ContainerSpec
from images.host import cache, file_lock
from images.host.hashing import sha256

_PUSH_ATTEMPTS = 4


def ignore(_: BuildEvent) -> None:
    """Takes events that nobody wants."""


class Engine:
    """A connection to one Docker Engine. Thread safe; use as a context manager, or call `close`."""

    def __init__(self, base_url: str, tls: TLSConfig | bool = False, *, builds: bool = True) -> None:
        """Connect. `builds`: it must have BuildKit; Podman has not, and runs containers.

        Raises UserError when it has none, the SDK's and OS errors when it doesn't answer.
        """
        self._api = DockerApi(base_url, tls)
        self._active = ActiveWork(self._api)
        self.run_id = uuid.uuid4().hex[:12]
        self.facts = engine_facts(base_url, self._api.sdk.version(), self._api.sdk.info(), builds=builds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._api.close()

    def cancel(self) -> None:
        """Stop all builds and containers of this connection, from any thread: their callers get Cancelled."""
        self._active.cancel()

    @contextmanager
    def alone(self, work: str, waiting: Callable[[], None]) -> Iterator[None]:
        """Keep this user's other processes on this machine from the same work on this engine: an image of one name.

        `waiting` is called once if another is at it. Raises Cancelled after `cancel`, UserError where no lock can be
        written.
        """
        where = self.facts.data_root if self.facts.local else self.facts.url
        known = f"{socket.gethostname()}\n{where}\n{work}"
        file = cache.folder() / "locks" / f"{sha256(known.encode())[:16]}.lock"
        with file_lock.alone(file, waiting=waiting, pause=self._active.pause):
            yield

    # --- builds and containers --------------------------------------------------------------------------------------

    def build(
        self,
        files: Files,
        tag: str | None,
        spec: BuildSpec | None = None,
        *,
        on_event: Callable[[BuildEvent], None] = ignore,
        redact: Callable[[str], str] = str,
        sleep: Callable[[float], object] | None = None,
    ) -> BuildResult:
        """Build a context with BuildKit and tag the result.

        A failure of the network is retried, up to `spec.attempts` times with doubled pauses (`sleep` gets seconds). The
        tag is set after the end, so that an interrupted build can't leave one. What steps print goes through `redact`
        before anybody sees it. Raises BuildFailed, Cancelled (see `cancel`), UserError when the engine refuses or goes
        away. Any exception cancels the build in the engine.
        """
        wanted = spec or BuildSpec()

        def attempt() -> tuple[str, Trace]:
            build_id, trace = uuid.uuid4().hex, Trace(redact)
            with self._active.build(build_id):
                return build_once(self._api, files, wanted, build_id, trace, on_event), trace

        start = time.monotonic()
        retries = Retries(attempts=wanted.attempts, sleep=sleep or self._active.sleep, on_event=on_event)
        image_id, trace = retries.run(attempt, transient)
        if tag:
            self.tag(image_id, tag)
        return BuildResult(image_id=image_id, steps=trace.steps(), seconds=time.monotonic() - start)

    @contextmanager
    def container(self, spec: ContainerSpec) -> Iterator[Container]:
        """A container that is created but not started, and removed with its volumes on every way out.

        Raises NoSuchImage, UserError, Cancelled.
        """
        container_id = containers.create(self._api, spec, containers.labels_of(self.run_id))
        with self._active.container(container_id):
            yield Container(self._api, container_id, spec.name or spec.image)

    def containers(self, label: str = RUN_LABEL) -> tuple[ContainerInfo, ...]:
        """Containers that bear a label, ended ones included."""
        return containers.listed(self._api, label)

    def volumes(self, label: str = RUN_LABEL) -> tuple[str, ...]:
        """Names of the volumes that bear a label."""
        return tuple(containers.volumes(self._api, label))

    def sweep(self) -> tuple[str, ...]:
        """Remove containers and volumes that killed runs of this machine left behind. Returns their names."""
        return containers.sweep(self._api)

    # --- images -----------------------------------------------------------------------------------------------------

    def inspect(self, ref: str) -> ImageInfo:
        """What the engine knows of an image (name, ID or name@digest). Raises NoSuchImage."""
        return image_store.inspect(self._api, ref)

    def find(self, ref: str) -> ImageInfo | None:
        """The image, or None where the engine lacks it."""
        return image_store.find(self._api, ref)

    def history(self, ref: str) -> tuple[HistoryEntry, ...]:
        """How the image came to be, newest step first. Raises NoSuchImage."""
        return image_store.history(self._api, ref)

    def images(self, label: str) -> tuple[ImageInfo, ...]:
        """Images that bear a label (`key` or `key=value`)."""
        return image_store.labelled(self._api, label)

    def tag(self, source: str, name: str) -> None:
        """Give an image one more name (`repository:tag`), taking it from whatever bore it. Raises NoSuchImage."""
        image_store.tag(self._api, source, name)

    def untag(self, name: str) -> None:
        """Take a name away; an image that has no other goes with it. One that isn't there is no error."""
        image_store.remove(self._api, name)

    def remove(self, ref: str, *, force: bool = False) -> None:
        """Remove an image and the parents nothing else needs. One that isn't there is no error."""
        image_store.remove(self._api, ref, force=force)

    def saved(self, ref: str) -> Iterator[SavedFile]:
        """Every file of every layer of an image, and its configuration, in one streaming pass. Raises NoSuchImage."""
        for member, data in self.exported(ref):
            yield from saved_files(member, data)

    def exported(self, ref: str) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
        """Each blob of an exported image, layers too, readable until the next is asked for. Raises NoSuchImage."""
        return image_store.exported(self._api, ref)

    def layer_folders(self, ref: str) -> tuple[Path, ...]:
        """Where the layers lie on this machine, bottom first; nothing for an engine elsewhere, or another driver."""
        return image_store.layer_folders(self._api, ref) if self.facts.local else ()

    def parts(self, info: ImageInfo, wanted: Collection[str]) -> Iterator[ImagePart]:
        """The configuration of an image and its wanted layers (by diff ID), as they came; readers check each digest.

        An export of an older engine gives all layers, unnamed. Raises NoSuchImage, EngineError.
        """
        if self.facts.containerd_images:
            raise image_store.no_configuration(info.id)
        store = Path(self.facts.data_root) if self.facts.local else None
        return image_store.parts(self._api, info, wanted, store)

    def load(self, files: Files, name: str) -> ImageInfo:
        """An image in the form that `docker save` writes (manifest.json, its config, layers), which gives it `name`.

        Its ID follows from these bytes alone, where an imported one bears the time of its import. Raises UserError.
        """
        image_store.load(self._api, files, name)
        return self.inspect(name)

    # --- registries -------------------------------------------------------------------------------------------------

    def registry_digest(self, ref: str, timeout: float = 20) -> str | None:
        """The digest (`sha256:...`) a registry has for `ref` now; None when no registry answered within `timeout` s.

        Raises EngineError when the registry answered that there is no such image, or that we may not have it.
        """
        return registries.digest(self._api, ref, timeout)

    def pull(self, ref: str, *, platform: str = PLATFORM, on_event: Callable[[BuildEvent], None] = ignore) -> ImageInfo:
        """Fetch an image (`name:tag`, `name@digest`) from its registry. Raises UserError with the registry's words."""
        registries.pull(self._api, ref, on_event, platform)
        return self.inspect(ref)

    def push(self, ref: str, *, on_event: Callable[[BuildEvent], None] = ignore) -> None:
        """Send an image (`host/name:tag`) to its registry; layers that are there are not sent again.

        A transient error is retried with doubled pauses. Raises NoSuchImage, EngineError with the registry's words.
        """
        retries = Retries(attempts=_PUSH_ATTEMPTS, sleep=self._active.sleep, on_event=on_event)
        retries.run(lambda: registries.push(self._api, ref, on_event), _transient_push)

    # --- housekeeping -----------------------------------------------------------------------------------------------

    def free_bytes(self) -> int | None:
        """Free space where the engine keeps its data; None for an engine on another machine."""
        return shutil.disk_usage(self.facts.data_root).free if self.facts.local else None

    def build_cache(self) -> tuple[CacheRecord, ...]:
        """What the engine keeps of builds: snapshots of steps, and cache mounts."""
        return image_store.build_cache(self._api)

    def forget(self, record: CacheRecord) -> None:
        """Remove a record of the build cache. One that something else still needs stays."""
        image_store.forget(self._api, record)


def _transient_push(error: Exception) -> str:
    if isinstance(error, EngineError) and registries.is_transient(error):
        return error.problems[0].cause
    return ""
