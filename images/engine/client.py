"""The Docker Engine through the docker SDK's HTTP session: a local socket, TCP with TLS and SSH work alike."""

from __future__ import annotations

import base64
import binascii
import json
import os
import shutil
import socket
import tarfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self, cast

import docker
import docker.errors
import requests
from docker import auth
from docker.types import LogConfig, Mount, Ulimit
from docker.utils import parse_repository_tag

from images.engine.answers import (
    UNREACHABLE,
    CacheRecord,
    ContainerInfo,
    HistoryEntry,
    ImageInfo,
    NoSuchImage,
    SavedFile,
    asking,
    image_info,
    saved_files,
)
from images.engine.archive import ChunkReader, Files, pack
from images.engine.buildkit import (
    BuildEvent,
    BuildResult,
    LayerPulled,
    LogLine,
    Retrying,
    StepFinished,
    StepProgress,
    StepStarted,
    Trace,
)
from images.engine.container import Container
from images.engine.failures import BuildFailed, Cancelled
from images.errors import Problem, UserError

RUN_LABEL = "dev.truetag.run"
OWNER_LABEL = "dev.truetag.owner"
PLATFORM = "linux/amd64"
"""What the CUDA wheels are made for; an engine on another processor emulates it."""

_BUILDKIT_SINCE = (1, 39)  # the API version (engine 18.09) that serves BuildKit at /build?version=2
_TIMEOUT = 120.0  # seconds of silence on a request that has nothing long to do
_PULL_HINT = "check the name and that its registry can be reached; `docker login` where it asks for a password"
_PUSH_HINT = "does the registry run, and may you write there? `docker login HOST`, then give the command again"
_BACKOFF = 5.0  # seconds before the second attempt of a build or a push; doubled before each further one


def ignore(_: BuildEvent) -> None:
    """Takes events that nobody wants."""


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """What the engine says about itself. `memory` in bytes."""

    url: str
    version: str
    api: str
    data_root: str
    local: bool
    """It runs on this machine, on this file system."""
    cgroup: str
    cpus: int
    memory: int
    storage: str
    """Driver of its layers, and the file system below: `overlay2 on extfs`."""
    runtimes: tuple[str, ...]
    cdi_devices: tuple[str, ...] = ()
    """Devices that the engine found specifications of (28.2 and later), `nvidia.com/gpu=0`."""


class Engine:
    """A connection to one Docker Engine. Thread safe; use as a context manager, or call `close`."""

    def __init__(self, base_url: str, tls: Any = False) -> None:
        """Connect. Raises UserError when the engine has no BuildKit, the SDK's and OS errors when it doesn't answer."""
        self._api: Any = docker.APIClient(  # Any: the parts of the SDK used below that matter most are not typed
            base_url=base_url, tls=tls, version="auto", timeout=cast(int, _TIMEOUT), max_pool_size=64
        )
        self.run = uuid.uuid4().hex[:12]
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._builds: set[str] = set()
        self._containers: set[str] = set()
        self.facts = _facts(base_url, self._api.version(), self._api.info())
        _require_buildkit(self.facts, self._api.version())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._api.close()

    # --- building ---------------------------------------------------------------------------------------------------

    def build(
        self,
        files: Files,
        tag: str | None,
        *,
        dockerfile: str = "Dockerfile",
        labels: Mapping[str, str] | None = None,
        buildargs: Mapping[str, str] | None = None,
        network: str | None = None,
        target: str | None = None,
        no_cache: bool = False,
        attempts: int = 3,
        sleep: Callable[[float], object] | None = None,
        on_event: Callable[[BuildEvent], None] = ignore,
        redact: Callable[[str], str] = str,
    ) -> BuildResult:
        """Build a context with BuildKit and tag the result.

        Trouble with the network is tried again, up to `attempts` times with doubled pauses (`sleep` gets seconds). The
        tag is set by us after the end, so that an interrupted build can't leave one. What steps print goes through
        `redact` before anybody sees it. Raises BuildFailed, Cancelled (see
        `cancel`), UserError when the engine refuses or goes away. Any exception cancels the build in the engine.
        """
        parameters = {
            "version": "2",
            "dockerfile": dockerfile,
            "labels": json.dumps(dict(labels or {})),
            "buildargs": json.dumps(dict(buildargs or {})),
            "platform": PLATFORM,
            **({"networkmode": network} if network else {}),
            **({"target": target} if target else {}),
            **({"nocache": "1"} if no_cache else {}),
        }
        start = time.monotonic()
        for attempt in range(1, attempts + 1):
            try:
                image_id, trace = self._build_once(files, parameters, on_event, Trace(redact))
                break
            except BuildFailed as failed:
                if attempt == attempts or not failed.failure.retryable:
                    raise
                delay = _BACKOFF * 2 ** (attempt - 1)
                cause = failed.failure.line or failed.failure.cause
                on_event(Retrying(attempt=attempt + 1, of=attempts, delay=delay, cause=cause))
                (sleep or self._cancelled.wait)(delay)
        if tag:
            self.tag(image_id, tag)
        return BuildResult(image_id=image_id, steps=trace.steps(), seconds=time.monotonic() - start)

    def _build_once(
        self, files: Files, parameters: Mapping[str, str], on_event: Callable[[BuildEvent], None], trace: Trace
    ) -> tuple[str, Trace]:
        build_id = uuid.uuid4().hex
        with self._cancellable_build(build_id), asking("build"):
            response = self._api._post(
                self._api._url("/build"),
                params={**parameters, "buildid": build_id},
                data=pack(files),
                headers={"Content-Type": "application/x-tar", **_registry_credentials(self._api)},
                stream=True,
                timeout=None,  # a step may be silent for as long as it likes
            )
            try:
                self._api._raise_for_status(response)
                return _read_build(self._api._stream_helper(response, decode=True), trace, on_event), trace
            finally:
                response.close()

    @contextmanager
    def _cancellable_build(self, build_id: str) -> Iterator[None]:
        with self._lock:
            if self._cancelled.is_set():
                raise Cancelled
            self._builds.add(build_id)
        try:
            yield
        except BaseException as error:
            self._cancel_build(build_id)
            if self._cancelled.is_set() and isinstance(error, Exception):
                raise Cancelled from error
            raise
        finally:
            with self._lock:
                self._builds.discard(build_id)

    def _cancel_build(self, build_id: str) -> None:
        try:
            self._api._post(self._api._url("/build/cancel"), params={"id": build_id}, timeout=10)
        except UNREACHABLE:
            return  # closing the connection, which has happened, cancels it as well

    def cancel(self) -> None:
        """Stop all builds and containers of this connection, from any thread: their callers get Cancelled."""
        with self._lock:
            self._cancelled.set()
            builds, containers = tuple(self._builds), tuple(self._containers)
        for build_id in builds:
            self._cancel_build(build_id)
        for container_id in containers:
            self._remove_container(container_id)

    # --- containers -------------------------------------------------------------------------------------------------

    @contextmanager
    def container(
        self,
        image: str,
        command: Sequence[str],
        *,
        entrypoint: Sequence[str] | None = (),
        network: str = "none",
        read_only: bool = True,
        tmpfs: Mapping[str, str] | None = None,
        scratch: Sequence[str] = (),
        binds: Mapping[str, str] | None = None,
        devices: Sequence[str] = (),
        device_requests: Sequence[Mapping[str, Any]] = (),
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        workdir: str | None = None,
        memory: int | None = None,
        cpus: float | None = None,
        shm_size: int | None = None,
        ulimits: Mapping[str, int] | None = None,
        name: str = "",
    ) -> Iterator[Container]:
        """A container that is created but not started, and removed with its volumes on every way out.

        `tmpfs`: path to mount options; "" alone means noexec, so say `exec` where code is compiled and loaded.
        `scratch`: paths that get a fresh volume, writable by root, where `put` works although the root is read-only.
        `binds`: folder of the engine's machine to path in the container, read-only. `device_requests`: as the engine's
        API has them. `entrypoint`: empty for none, None for the image's. `memory` and `shm_size` in bytes, `memory`
        without swap. `ulimits`: `memlock` and the like, -1 for no limit. `name` is for messages.
        Raises NoSuchImage, UserError, Cancelled.
        """
        mounts = [
            *(Mount(target=path, source=None, type="volume", no_copy=True, labels=self._labels()) for path in scratch),
            *(Mount(target=inside, source=path, type="bind", read_only=True) for path, inside in (binds or {}).items()),
        ]
        limits = {"mem_limit": memory, "memswap_limit": memory} if memory else {}
        host = self._api.create_host_config(
            network_mode=network,
            read_only=read_only,
            tmpfs=dict(tmpfs or {}),
            mounts=mounts,
            devices=list(devices),
            **({"device_requests": [dict(one) for one in device_requests]} if device_requests else {}),
            shm_size=shm_size,
            ulimits=[Ulimit(name=one, soft=most, hard=most) for one, most in (ulimits or {}).items()],
            nano_cpus=int(cpus * 1e9) if cpus else None,
            init=True,  # reaps what the command leaves behind, and passes signals on
            log_config=LogConfig(type=LogConfig.types.JSON, config={"max-size": "64m", "max-file": "1"}),
            **limits,
        )
        with asking(name or image, image=image):
            created = self._api.create_container(
                image,
                list(command),
                entrypoint=None if entrypoint is None else (list(entrypoint) or [""]),
                environment=dict(env or {}),
                user=user,
                working_dir=workdir,
                labels=self._labels(),
                host_config=host,
                use_config_proxy=False,
            )
        with self._cancellable_container(created["Id"]):
            yield Container(self._api, created["Id"], name or image)

    @contextmanager
    def _cancellable_container(self, container_id: str) -> Iterator[None]:
        with self._lock:
            self._containers.add(container_id)
        try:
            if self._cancelled.is_set():
                raise Cancelled
            yield
            if self._cancelled.is_set():
                raise Cancelled
        except Exception as error:
            if self._cancelled.is_set() and not isinstance(error, Cancelled):
                raise Cancelled from error
            raise
        finally:
            self._remove_container(container_id)
            with self._lock:
                self._containers.discard(container_id)

    def _remove_container(self, container_id: str) -> None:
        try:
            self._api.remove_container(container_id, v=True, force=True)
        except docker.errors.NotFound:
            return
        except docker.errors.APIError as error:
            if error.status_code != requests.codes.conflict:  # 409: somebody is removing it already
                raise

    def _labels(self) -> dict[str, str]:
        return {RUN_LABEL: self.run, OWNER_LABEL: _owner(os.getpid())}

    # --- images -----------------------------------------------------------------------------------------------------

    def inspect(self, ref: str) -> ImageInfo:
        """What the engine knows of an image (name, ID or name@digest). Raises NoSuchImage."""
        with asking(ref, image=ref):
            return image_info(self._api.inspect_image(ref))

    def find(self, ref: str) -> ImageInfo | None:
        """The image, or None where the engine lacks it."""
        try:
            return self.inspect(ref)
        except NoSuchImage:
            return None

    def history(self, ref: str) -> tuple[HistoryEntry, ...]:
        """How the image came to be, newest step first. Raises NoSuchImage."""
        with asking(ref, image=ref):
            entries = self._api.history(ref)
        return tuple(
            HistoryEntry(created_by=entry["CreatedBy"], size=entry["Size"], comment=entry["Comment"])
            for entry in entries
        )

    def tag(self, source: str, name: str) -> None:
        """Give an image one more name (`repository:tag`), taking it from whatever bore it. Raises NoSuchImage."""
        repository, tag = parse_repository_tag(name)
        with asking(source, image=source):
            self._api.tag(source, repository, tag or "latest", force=True)

    def untag(self, name: str) -> None:
        """Take a name away; an image that has no other goes with it. One that isn't there is no error."""
        self._remove(name)

    def remove(self, ref: str, *, force: bool = False) -> None:
        """Remove an image and the parents nothing else needs. One that isn't there is no error."""
        self._remove(ref, force=force)

    def _remove(self, ref: str, *, force: bool = False) -> None:
        try:
            with asking(ref, image=ref):
                self._api.remove_image(ref, force=force)
        except NoSuchImage:
            return

    def images(self, label: str) -> tuple[ImageInfo, ...]:
        """Images that carry a label (`key` or `key=value`)."""
        with asking("list of images"):
            found = self._api.images(filters={"label": label})
        return tuple(info for image in found if (info := self.find(image["Id"])))

    def containers(self, label: str = RUN_LABEL) -> tuple[ContainerInfo, ...]:
        """Containers that carry a label, ended ones included."""
        with asking("list of containers"):
            found = self._api.containers(all=True, filters={"label": label})
        return tuple(
            ContainerInfo(
                id=one["Id"],
                name=one["Names"][0].lstrip("/") if one["Names"] else one["Id"][:12],
                image=one["Image"],
                state=one["State"],
                labels=one["Labels"] or {},
            )
            for one in found
        )

    def saved(self, ref: str) -> Iterator[SavedFile]:
        """Every file of every layer of an image, and its configuration, in one streaming pass. Raises NoSuchImage."""
        for member, data in self.exported(ref):
            yield from saved_files(member, data)

    def exported(self, ref: str) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
        """Each blob of an exported image, layers too, readable until the next is asked for. Raises NoSuchImage."""
        with asking(ref, image=ref):
            chunks = self._api.get_image(ref)
            with tarfile.open(
                fileobj=cast("IO[bytes]", ChunkReader(iter(chunks))), mode="r|", bufsize=1 << 20
            ) as outer:
                for member in outer:
                    if data := outer.extractfile(member) if member.isfile() else None:
                        yield member, data

    def layer_folders(self, ref: str) -> tuple[Path, ...]:
        """Where the layers lie on this machine, bottom first; nothing for an engine elsewhere, or another driver."""
        with asking(ref, image=ref):
            found = self._api.inspect_image(ref)
        driver = found.get("GraphDriver") or {}
        data = driver.get("Data") or {}
        if not self.facts.local or driver.get("Name") != "overlay2" or "UpperDir" not in data:
            return ()
        lower = [folder for folder in data.get("LowerDir", "").split(":") if folder]
        folders = tuple(Path(folder) for folder in (*reversed(lower), data["UpperDir"]))
        readable = all(os.access(folder, os.R_OK) for folder in folders)
        return folders if readable and len(folders) == len(found["RootFS"]["Layers"]) else ()

    def load(self, files: Files, name: str) -> ImageInfo:
        """An image in the form that `docker save` writes (manifest.json, its config, layers), which gives it `name`.

        Its ID follows from these bytes alone, where an imported one bears the time of its import. Raises UserError.
        """
        with asking(name):
            response = self._api._post(
                self._api._url("/images/load"),
                params={"quiet": "1"},
                data=pack(files),
                headers={"Content-Type": "application/x-tar"},
                stream=True,
                timeout=None,
            )
            self._api._raise_for_status(response)
            for message in self._api._stream_helper(response, decode=True):
                if "error" in message:
                    raise UserError(Problem(where=name, cause=f"can't be loaded: {message['error']}"), code=1)
        return self.inspect(name)

    # --- registries -------------------------------------------------------------------------------------------------

    def registry_digest(self, ref: str, timeout: float = 20) -> str | None:
        """The digest (`sha256:...`) a registry has for `ref` now; None when no registry answered within `timeout` s.

        Raises UserError when the registry answered that there is no such image, or that we may not have it.
        """
        try:
            answer = self._api._get(
                self._api._url("/distribution/{0}/json", ref),
                headers=_registry_credentials(self._api, ref),
                timeout=timeout,
            )
            self._api._raise_for_status(answer)
        except docker.errors.APIError as error:
            reason = str(error.explanation or error)
            if not _is_refusal(reason):
                return None
            raise UserError(
                Problem(
                    where=ref, cause=f"the registry refuses it: {reason}", then="check the name, or `docker login`"
                ),
                code=1,
            ) from None
        except UNREACHABLE:
            return None
        return str(answer.json()["Descriptor"]["digest"])

    def pull(self, ref: str, *, on_event: Callable[[BuildEvent], None] = ignore) -> ImageInfo:
        """Fetch an image (`name:tag`, `name@digest`) from its registry. Raises UserError with the registry's words."""
        repository, tag = parse_repository_tag(ref)
        start, name = time.monotonic(), f"pulling {ref}"
        on_event(StepStarted(step=ref, name=name))
        with asking(ref, then=_PULL_HINT):
            for message in self._api.pull(repository, tag or "latest", stream=True, decode=True, platform=PLATFORM):
                if "error" in message:
                    raise UserError(
                        Problem(where=ref, cause=f"can't be pulled: {message['error']}", then=_PULL_HINT), code=1
                    )
                if event := _pull_event(ref, name, message):
                    on_event(event)
        on_event(StepFinished(step=ref, name=name, seconds=time.monotonic() - start, cached=False))
        return self.inspect(ref)

    def push(
        self,
        ref: str,
        *,
        attempts: int = 4,
        sleep: Callable[[float], object] | None = None,
        on_event: Callable[[BuildEvent], None] = ignore,
    ) -> None:
        """Send an image (`host/name:tag`) to its registry; layers that are there are not sent again.

        Trouble that may pass is tried again, up to `attempts` times with doubled pauses (`sleep` gets seconds). Raises
        NoSuchImage, UserError with the registry's words.
        """
        start, name = time.monotonic(), f"pushing {ref}"
        on_event(StepStarted(step=ref, name=name))
        for attempt in range(1, attempts + 1):
            try:
                self._push_once(ref, name, on_event)
                break
            except UserError as error:
                cause = error.problems[0].cause
                if attempt == attempts or isinstance(error, NoSuchImage) or _is_refusal(cause):
                    raise
                delay = _BACKOFF * 2 ** (attempt - 1)
                on_event(Retrying(attempt=attempt + 1, of=attempts, delay=delay, cause=cause))
                (sleep or self._cancelled.wait)(delay)
        on_event(StepFinished(step=ref, name=name, seconds=time.monotonic() - start, cached=False))

    def _push_once(self, ref: str, name: str, on_event: Callable[[BuildEvent], None]) -> None:
        repository, tag = parse_repository_tag(ref)
        headers = _registry_credentials(self._api, ref) or {"X-Registry-Auth": auth.encode_header({}).decode()}
        with asking(ref, image=ref, then=_PUSH_HINT):
            response = self._api._post(
                self._api._url("/images/{0}/push", repository),
                params={"tag": tag or "latest"},
                headers=headers,
                stream=True,
                timeout=None,  # a registry may be silent while it checks a layer of gigabytes
            )
            try:
                self._api._raise_for_status(response)
                for message in self._api._stream_helper(response, decode=True):
                    if "error" in message:
                        cause = f"can't be pushed: {message['error']}"
                        raise UserError(Problem(where=ref, cause=cause, then=_PUSH_HINT), code=1)
                    if event := _pull_event(ref, name, message):
                        on_event(event)
            finally:
                response.close()

    # --- housekeeping -----------------------------------------------------------------------------------------------

    def free_bytes(self) -> int | None:
        """Free space where the engine keeps its data; None for an engine on another machine."""
        return shutil.disk_usage(self.facts.data_root).free if self.facts.local else None

    def build_cache(self) -> tuple[CacheRecord, ...]:
        """What the engine keeps of builds: snapshots of steps, and cache mounts."""
        with asking("build cache"):
            found = self._api.df()["BuildCache"] or ()
        return tuple(
            CacheRecord(
                id=one["ID"],
                # Newer engines say `Parents`; a step's snapshot has one.
                parents=tuple(one.get("Parents") or ([one["Parent"]] if one.get("Parent") else ())),
                made_by=one.get("Description") or "",
                size=one["Size"],
            )
            for one in found
        )

    def forget(self, record: CacheRecord) -> None:
        """Remove a record of the build cache. One that something else still needs stays."""
        with asking("build cache"):
            self._api.prune_builds(filters={"id": [record.id]}, all=True)

    def sweep(self) -> tuple[str, ...]:
        """Remove containers and volumes that killed runs of this machine left behind. Returns their names."""
        gone = []
        for container in self.containers(RUN_LABEL):
            if _is_orphan(container.labels):
                self._remove_container(container.id)
                gone.append(container.name)
        with asking("list of volumes"):
            volumes = self._api.volumes(filters={"label": RUN_LABEL})["Volumes"] or []
        for volume in volumes:
            if _is_orphan(volume["Labels"] or {}):
                self._api.remove_volume(volume["Name"], force=True)
                gone.append(volume["Name"])
        return tuple(gone)


def _facts(url: str, version: Mapping[str, Any], info: Mapping[str, Any]) -> EngineFacts:
    data_root = info.get("DockerRootDir") or ""
    return EngineFacts(
        url=url,
        version=version.get("Version", "?"),
        api=version["ApiVersion"],
        data_root=data_root,
        # A socket can be a tunnel, or lead into Docker Desktop's virtual machine.
        local=url.startswith("unix://") and info.get("Name") == socket.gethostname() and Path(data_root).is_dir(),
        cgroup=info.get("CgroupVersion", "1"),
        cpus=info.get("NCPU", 1),
        memory=info.get("MemTotal", 0),
        storage=_storage(info),
        runtimes=tuple(sorted(info.get("Runtimes") or ())),
        cdi_devices=tuple(
            str(one.get("ID", "")) for one in info.get("DiscoveredDevices") or () if one.get("Source") == "cdi"
        ),
    )


def _storage(info: Mapping[str, Any]) -> str:
    below = dict(info.get("DriverStatus") or ()).get("Backing Filesystem", "")
    return f"{info.get('Driver', '')} on {below}" if below else str(info.get("Driver", ""))


def _require_buildkit(facts: EngineFacts, version: Mapping[str, Any]) -> None:
    components = [component.get("Name", "") for component in version.get("Components") or ()]
    api = tuple(int(part) for part in facts.api.split("."))
    cause = ""
    if any("podman" in name.lower() for name in components):
        cause = "this is Podman, whose Docker interface has no BuildKit"
    elif version.get("Os", "linux") != "linux":
        cause = f"this engine makes {version['Os']} images"
    elif api < _BUILDKIT_SINCE:
        cause = f"engine {facts.version} is too old to have BuildKit (18.09 is the first)"
    if cause:
        raise UserError(
            Problem(where=facts.url, cause=cause, then="name a Docker Engine (20.10 or newer) with --engine URL"),
            code=1,
        )


def _read_build(messages: Iterator[Any], trace: Trace, on_event: Callable[[BuildEvent], None]) -> str:
    """The image ID at the end of the stream. Raises BuildFailed, or UserError when the stream breaks off."""
    image_id = ""
    for message in messages:
        if "errorDetail" in message or "error" in message:
            error = str(message.get("errorDetail", {}).get("message") or message.get("error"))
            step, cause, log = trace.failed() or ("build", error, ())
            raise BuildFailed(step=step, error=f"{error}\n{cause}", log=log)
        if message.get("id") == "moby.buildkit.trace":
            for event in trace.feed(_decoded(message["aux"])):
                on_event(event)
        elif message.get("id") == "moby.image.id":
            image_id = message["aux"]["ID"]
    if not image_id:
        raise UserError(
            Problem(
                where="build",
                cause="the engine ended the build without an image and without an error",
                then="is the engine still running (`docker info`)? its log tells more",
            ),
            code=1,
        )
    return image_id


def _decoded(aux: str) -> bytes:
    try:
        return base64.b64decode(aux, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not a BuildKit report: {error}") from error


def _registry_credentials(api: Any, ref: str | None = None) -> dict[str, str]:
    """What `docker login` stored, in the header the engine expects: of one registry, or of all for a build."""
    if ref is None:
        known = api._auth_configs.get_all_credentials()
        return {"X-Registry-Config": auth.encode_header(known).decode()} if known else {}
    registry, _ = auth.resolve_repository_name(ref.split("@")[0])
    header = auth.get_config_header(api, registry)
    return {"X-Registry-Auth": header.decode()} if header else {}


def _is_refusal(reason: str) -> bool:
    """Whether a registry answered at all; else the engine reports its own trouble in reaching one."""
    words = ("manifest unknown", "not found", "denied", "unauthorized", "authentication required", "invalid reference")
    return any(word in reason.lower() for word in words)


def _pull_event(ref: str, name: str, message: Mapping[str, Any]) -> BuildEvent | None:
    detail = message.get("progressDetail") or {}
    status = message.get("status", "")
    if "current" in detail:
        what = f"{status} {message.get('id', '')}".strip()
        return StepProgress(step=ref, name=name, what=what, current=detail["current"], total=detail.get("total", 0))
    if status == "Pull complete":  # the last word on a layer; the engine may leave out those before it
        return LayerPulled(step=ref, layer=message["id"])
    return LogLine(step=ref, name=name, text=status) if status.startswith(("Status:", "Digest:")) else None


def _owner(pid: int) -> str:
    """A process, told from a later one with the same number by the time it started (jiffies since boot)."""
    try:
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        started = ""
    return f"{socket.gethostname()}:{pid}:{started}"


def _is_orphan(labels: Mapping[str, str]) -> bool:
    """Whether the process that made it ran on this machine and has ended."""
    owner = labels.get(OWNER_LABEL, "")
    host, _, rest = owner.partition(":")
    pid = rest.partition(":")[0]
    return host == socket.gethostname() and pid.isdigit() and _owner(int(pid)) != owner
