"""What is asked of the engine: one build, one container. The fields are named as in Docker's API where it has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

from images.engine.docker_types import DeviceRequest

PLATFORM = "linux/amd64"
"""What is built and pulled unless something else is said; an engine on another processor emulates it."""


@dataclass(frozen=True, kw_only=True)
class BuildSpec:
    """How a context is built."""

    network_mode: str | None = None
    target: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    no_cache: bool = False
    platform: str = PLATFORM
    attempts: int = 3
    """A build that failed for the network is repeated until it was tried so often."""


@dataclass(frozen=True)
class ContainerSpec:
    """A container without entrypoint; unless asked for, without network, and its root read-only. Sizes in bytes."""

    image: str
    cmd: Sequence[str]
    _: KW_ONLY
    name: str = ""
    """For messages; the image where it is empty."""
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    """None: the image's own."""
    volumes: Sequence[str] = ()
    """Paths that get a fresh volume, writable by root, where `put` works although the root is read-only."""
    copied_volumes: Sequence[str] = ()
    """Paths that get a fresh volume as users' volumes are: with the image's content, owner and mode of that folder."""
    tmpfs: Mapping[str, str] = field(default_factory=dict)
    """Path to mount options; "" alone means noexec, so say `exec` where code is compiled and loaded."""
    binds: Mapping[str, str] = field(default_factory=dict)
    """Folder of the engine's machine to path in the container, read-only."""
    network: str = "none"
    read_only: bool = True
    """Of the root."""
    devices: Sequence[str] = ()
    device_requests: Sequence[DeviceRequest] = ()
    memory: int | None = None
    """Without swap."""
    processes: int | None = None
    """The most at once, threads counted."""
    capabilities: Sequence[str] | None = None
    """Those that remain, and no program gains others. None: the engine's defaults."""
    shm_size: int | None = None
    ulimits: Mapping[str, int] = field(default_factory=dict)
    """`memlock` and the like, -1 for no limit."""
