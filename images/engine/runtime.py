"""The data that go to and come from a Docker Engine: container specs, image and engine facts."""

import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from images.engine.failures import Cancelled
from images.engine.identity import ImageIdentity
from images.errors import UserError, failed

PLATFORM = "linux/amd64"
"""The platform that is built and pulled by default. Engines on other processors emulate it."""
KILLED = 128 + signal.SIGKILL
"""Exit status of a container that was killed: by a person, the engine, or the kernel for memory."""


@dataclass(frozen=True)
class ContainerSpec:
    """A container to create. The image's entrypoint and health check are never used in it.

    Unless a field says otherwise, it has no network, and its root is read-only. Sizes are in bytes.
    """

    image: str
    """A name, or the engine's ID of the image."""
    cmd: Sequence[str]
    _: KW_ONLY
    name: str = ""
    """What messages call it; empty: like the image."""
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    """None: the image's user."""
    volumes: Sequence[str] = ()
    """Paths that get a new, empty volume, which only root may write to. `Container.put` works
    there."""
    copied_volumes: Sequence[str] = ()
    """Paths that get a new volume with what the image has there: content, owner and mode."""
    tmpfs: Mapping[str, str] = field(default_factory=dict)
    """Path -> mount options. Without `exec` among them, no code can be loaded from there."""
    volumes_from: str = ""
    """ID of a container whose volumes this one has as well, at the same paths; empty: none."""
    binds: Mapping[str, str] = field(default_factory=dict)
    """Folder of the engine's machine -> path in the container, read-only."""
    init: bool = True
    """Whether the engine's init starts the command. `env` is that of the init, too."""
    stdin: bool = False
    """Whether `Container.start` gives it bytes for its standard input."""
    network: str = "none"
    """Or `container:ID`: the network, and with it the host name, of a container that runs."""
    read_only: bool = True
    devices: Sequence[str] = ()
    device_requests: Sequence[Mapping[str, Any]] = ()
    memory: int | None = None
    """The most that it may use; it has no swap."""
    processes: int | None = None
    """The most that may run at once; threads count."""
    capabilities: Sequence[str] | None = None
    """The only ones that it has, and no program gains others. None: the engine's defaults."""
    shm_size: int | None = None
    ulimits: Mapping[str, int] = field(default_factory=dict)
    """Such as `memlock`; -1 stands for no limit."""


@dataclass(frozen=True, kw_only=True)
class ImageInfo:
    """An image as the engine has it."""

    handle: str
    """The engine's own ID of it, by which it is asked for: see ImageIdentity. Only this engine
    knows it."""
    identity: ImageIdentity
    tags: tuple[str, ...]
    digests: tuple[str, ...]
    """`name@sha256:...` for each registry that it came from or went to."""
    size: int
    """Bytes of its unpacked layers."""
    created: str
    architecture: str
    layers: tuple[str, ...]
    """Diff IDs, the lowest layer first."""
    labels: Mapping[str, str]
    env: Mapping[str, str]
    user: str
    workdir: str
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    further: Mapping[str, Any] = field(default_factory=dict)
    """Which settings of FURTHER it has, by the names in its configuration."""

    @property
    def digest(self) -> str:
        """Return the digest that names it everywhere: that of its configuration."""
        return self.identity.configuration


FURTHER = ("ExposedPorts", "Volumes", "StopSignal", "OnBuild", "Healthcheck", "Shell")
"""Settings of a configuration that none of our images has (OCI image specification, config.md;
Docker's own)."""


def image_info(data: Mapping[str, Any], identity: ImageIdentity) -> ImageInfo:
    """Return the facts about an image in `data`, the engine's answer to `GET /images/NAME/json`.

    `identity` has the image's digests, which depend on the engine's store and are worked out by the
    caller. Where nothing is set, the answer lacks the key or has null, whichever engine gives it:
    then a field is empty. Every engine gives an ID and a size; without, KeyError is raised. Pure.
    """
    config = data.get("Config") or {}
    env = {}
    for line in config.get("Env") or ():
        name, _, value = line.partition("=")
        env[name] = value
    return ImageInfo(
        handle=data["Id"],
        identity=identity,
        tags=tuple(data.get("RepoTags") or ()),
        digests=tuple(data.get("RepoDigests") or ()),
        size=data["Size"],
        created=data.get("Created") or "",
        architecture=data.get("Architecture") or "",
        layers=tuple((data.get("RootFS") or {}).get("Layers") or ()),
        labels=config.get("Labels") or {},
        env=env,
        user=config.get("User") or "",
        workdir=config.get("WorkingDir") or "",
        entrypoint=tuple(config.get("Entrypoint") or ()),
        command=tuple(config.get("Cmd") or ()),
        # Settings that none of our own images has, such as a health check.
        further={name: config[name] for name in FURTHER if config.get(name)},
    )


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How a container ended."""

    code: int
    oom: bool
    """Whether the engine noticed that something was killed for memory. With cgroup v1 it may miss
    the kill that ends the container: containerd drops the notice of a group that has gone."""
    error: str
    """Why the engine could not start it; empty if it could."""
    stdout: str = ""
    """What it printed; filled only by `Container.run`, like `stderr`."""
    stderr: str = ""


class Stopped(UserError):  # noqa: N818  # said as an event
    """A container was killed because it took too long or printed too much."""


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """What an engine says about itself."""

    url: str
    version: str
    data_root: str
    local: bool
    """Whether it runs on this machine and sees the same files."""
    cpus: int
    memory: int
    """Bytes."""
    runtimes: tuple[str, ...]
    architecture: str = "amd64"
    """Of its processor, as Docker names it. Images of another architecture are emulated."""
    rootless: bool = False
    """Whether it runs as an ordinary user, in a network of its own that has no way to this
    machine's loopback."""
    storage_driver: str = ""
    """By which it keeps layers: `overlay2` and others in the classic store, `overlayfs` and others
    in containerd's."""
    containerd_images: bool = False
    """Whether it keeps images in containerd's store. There, its IDs of images are digests of
    manifests; in the classic store, they are digests of configurations."""
    further: str = ""
    """All else that a measurement may depend on, as JSON: the engine's own ID, the kernel, the
    versions of its components. Two engines never have the same."""


_FURTHER_FACTS = (
    *("ID", "KernelVersion", "OperatingSystem", "OSVersion"),
    *("DefaultRuntime", "Runtimes", "InitBinary", "CgroupDriver", "CgroupVersion"),
    *("Driver", "SecurityOptions"),
)
"""Keys of the answer to `GET /info` whose values stay the same while the engine does."""


def engine_facts(url: str, version: Mapping[str, Any], info: Mapping[str, Any]) -> EngineFacts:
    """Return the facts in an engine's answers to `GET /version` and `GET /info`.

    `url` is the address of the engine, `version` and `info` are the two answers. Raises UserError
    for Podman, whose Docker interface has no BuildKit, and for an engine of Windows containers.
    """
    data_root = info.get("DockerRootDir") or ""
    # Pairs of a name and a value, such as the type of the store.
    status = dict(info.get("DriverStatus") or ())
    # A socket alone proves nothing: it can be a tunnel, or lead into Docker Desktop's virtual
    # machine.
    is_local = (
        url.startswith("unix://")
        and info.get("Name") == socket.gethostname()
        and Path(data_root).is_dir()
    )

    then = "name a Docker Engine (20.10 or newer) with --engine URL"
    for component in version.get("Components") or ():
        if "podman" in component.get("Name", "").lower():
            cause = (
                "this is Podman, which runs images but can't build or judge them "
                "(docs/podman-apptainer.md)"
            )
            raise failed(url, cause, then)
    system = version.get("Os", "linux")
    if system != "linux":
        cause = f"this engine makes {system} images, and ours are for Linux"
        raise failed(url, cause, then)

    further = {name: info.get(name) for name in _FURTHER_FACTS}
    return EngineFacts(
        url=url,
        version=version.get("Version", "?"),
        data_root=data_root,
        local=is_local,
        cpus=info.get("NCPU", 1),
        memory=info.get("MemTotal", 0),
        runtimes=tuple(sorted(info.get("Runtimes") or ())),
        architecture=version.get("Arch", "amd64"),
        rootless="name=rootless" in (info.get("SecurityOptions") or ()),
        storage_driver=info.get("Driver") or "",
        containerd_images=status.get("driver-type", "").startswith("io.containerd."),
        further=json.dumps([further, version.get("Components")]),
    )


class Work:
    """The builds and containers that run on an engine, so that any thread can stop them all."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self._lock = threading.Lock()
        self._ends: dict[object, Callable[[], object]] = {}

    def cancel(self) -> None:
        """Stop everything that runs or is started later: whoever waits for it gets Cancelled."""
        with self._lock:
            self.cancelled.set()
            ends = tuple(self._ends.values())
        for end in ends:
            end()

    @contextmanager
    def registered(self, end: Callable[[], object], *, always: bool) -> Iterator[None]:
        """Register a build or container for the time of a `with` block, so that `cancel` stops it.

        `end` stops it. `cancel` calls it from another thread, and this function calls it if the
        block fails. `always`: call it also after a block that succeeds, as for a container, which
        must be removed in any case. Raises Cancelled if `cancel` was called before the block ended,
        also in place of the block's own error.
        """
        key = object()  # not `end`: two blocks may have equal ones
        # True until the block has ended without an error, so also after a KeyboardInterrupt.
        has_failed = True
        with self._lock:
            self._ends[key] = end
        try:
            # A `cancel` before the block was registered could not stop it: so it must not begin.
            if self.cancelled.is_set():
                raise Cancelled
            yield
            if self.cancelled.is_set():
                raise Cancelled
            has_failed = False
        except Exception as error:
            # Whatever the block raised, it failed because its work was stopped.
            if self.cancelled.is_set() and not isinstance(error, Cancelled):
                raise Cancelled from error
            raise
        finally:
            if has_failed or always:
                end()
            with self._lock:
                del self._ends[key]
