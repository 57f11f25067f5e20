"""What an engine says about itself, and whether it can build."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from images.engine.docker_types import InfoResponse, VersionResponse
from images.errors import Problem, UserError

CLASSIC_STORE = (
    'set `{"features": {"containerd-snapshotter": false}}` in /etc/docker/daemon.json and restart the engine'
)
"""For engines that keep images in containerd's store, as new installations of 29 and later do
(docs.docker.com/engine/storage/containerd)."""
_BUILDKIT_SINCE = (1, 39)  # the API version (engine 18.09) that serves BuildKit at /build?version=2


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
    architecture: str = "amd64"
    """Of its processor, in Docker's words. Images of another run emulated."""
    os: str = "linux"
    podman: bool = False
    """It is Podman, by its Docker interface: it runs containers and has no BuildKit."""
    apptainer: bool = False
    """It is Apptainer: containers of the user who starts them, of unpacked images."""
    containerd_images: bool = False
    """It keeps images in containerd's store: their IDs are those of manifests, not of configurations."""


def engine_facts(url: str, version: VersionResponse, info: InfoResponse, *, builds: bool = True) -> EngineFacts:
    """The facts in the answers of `GET /version` and `GET /info`.

    Raises UserError for an engine without BuildKit, unless nothing is to be built with it (`builds`).
    """
    data_root = info.get("DockerRootDir") or ""
    facts = EngineFacts(
        url=url,
        version=f"{'podman ' if _is_podman(version) else ''}{version.get('Version', '?')}",
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
        architecture=version.get("Arch", "amd64"),
        os=version.get("Os", "linux"),
        podman=_is_podman(version),
        containerd_images=dict(info.get("DriverStatus") or ()).get("driver-type", "").startswith("io.containerd."),
    )
    if builds:
        _require_buildkit(facts)
    return facts


def _storage(info: InfoResponse) -> str:
    below = dict(info.get("DriverStatus") or ()).get("Backing Filesystem", "")
    return f"{info.get('Driver', '')} on {below}" if below else str(info.get("Driver", ""))


def _is_podman(version: VersionResponse) -> bool:
    return any("podman" in component.get("Name", "").lower() for component in version.get("Components") or ())


def _require_buildkit(facts: EngineFacts) -> None:
    api = tuple(int(part) for part in facts.api.split("."))
    cause = ""
    if facts.podman:
        cause = "this is Podman, whose Docker interface has no BuildKit"
    elif facts.os != "linux":
        cause = f"this engine makes {facts.os} images"
    elif api < _BUILDKIT_SINCE:
        cause = f"engine {facts.version} is too old to have BuildKit (18.09 is the first)"
    if cause:
        raise UserError(
            Problem(where=facts.url, cause=cause, then="name a Docker Engine (20.10 or newer) with --engine URL"),
            code=1,
        )
