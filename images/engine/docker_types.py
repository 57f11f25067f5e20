"""Docker's JSON as its API has it: only the fields that are read or sent here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict


class ProgressDetail(TypedDict, total=False):
    """Bytes of a layer that were transferred, and of all."""

    current: int
    total: int


class Message(TypedDict, total=False):
    """One message of a JSON stream: of a build, a pull, a push, a load."""

    id: str
    status: str
    error: str
    errorDetail: Mapping[str, str]
    progressDetail: ProgressDetail
    aux: Any
    """A report of BuildKit in base64, or the ID of a built image."""


class DeviceRequest(TypedDict):
    """GPUs for a container."""

    Driver: str
    Count: int
    DeviceIDs: Sequence[str] | None
    Capabilities: Sequence[Sequence[str]] | None
    Options: Mapping[str, str]


class Component(TypedDict, total=False):
    """A program that the engine consists of."""

    Name: str


class VersionResponse(TypedDict, total=False):
    """`GET /version`."""

    Version: str
    ApiVersion: str
    Os: str
    Arch: str
    Components: Sequence[Component] | None


class DiscoveredDevice(TypedDict, total=False):
    """A device that the engine found a specification of."""

    Source: str
    ID: str


class InfoResponse(TypedDict, total=False):
    """`GET /info`."""

    Name: str
    DockerRootDir: str
    CgroupVersion: str
    NCPU: int
    MemTotal: int
    Driver: str
    DriverStatus: Sequence[tuple[str, str]] | None
    Runtimes: Mapping[str, object] | None
    DiscoveredDevices: Sequence[DiscoveredDevice] | None


class ImageConfig(TypedDict, total=False):
    """`Config` of an image."""

    Labels: Mapping[str, str] | None
    Env: Sequence[str] | None
    User: str
    WorkingDir: str
    Entrypoint: Sequence[str] | None
    Cmd: Sequence[str] | None


class RootFs(TypedDict, total=False):
    """Layers of an image by their diff IDs, bottom first."""

    Layers: Sequence[str] | None


class GraphDriver(TypedDict, total=False):
    """Where a storage driver keeps an image's layers."""

    Name: str
    Data: Mapping[str, str] | None


class ImageResponse(TypedDict, total=False):
    """`GET /images/{name}/json`."""

    Id: str
    RepoTags: Sequence[str] | None
    RepoDigests: Sequence[str] | None
    Size: int
    Created: str
    Architecture: str
    Config: ImageConfig | None
    RootFS: RootFs
    GraphDriver: GraphDriver | None
