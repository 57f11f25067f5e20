"""Looks at the host's GPUs, outside of any container, and chooses how containers get them."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from images.engine.client import Engine
from images.engine.gpus import NO_GPU, Attachment
from images.errors import command, failed, wrong
from images.hardware.inventory import GpuMode, Inventory, inventory_from

DRIVER_FOLDERS = ("/usr/local/nvidia", "/home/kubernetes/bin/nvidia", "/opt/nvidia-driver")
"""Where container hosts keep the driver in one folder: NVIDIA's old convention, Google's, the GPU operator's."""
_ALL_GPUS = {"Driver": "", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": {}}
"""The request of `docker run --gpus all`."""
_HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
_LIBRARY_FOLDERS = ("lib64", "lib")
INJECTED = ("NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS")
"""Variables of the host that are set in its containers, too: NVLink's multicast must stay off on such a host."""


@dataclass(frozen=True, kw_only=True)
class HostState:
    """What was found on the host: all that the choice of a mode depends on."""

    local: bool
    """The engine runs on this machine, so that what lies here is what a container can get."""
    inventory: Inventory | None = None
    runtime: bool = False
    """NVIDIA's container runtime or its hook is installed."""
    folder: str = ""
    nodes: tuple[str, ...] = ()


def attach(engine: Engine, wanted: GpuMode, *, min_driver: str) -> Attachment:
    """Look at the host and choose. Raises UserError for a mode that can't be had, or a driver below the minimum."""
    if wanted is GpuMode.NONE:
        return NO_GPU
    chosen = choose(wanted, look(engine))
    if not chosen.attached:
        return chosen
    if chosen.inventory is not None:
        require_driver(chosen.inventory, min_driver)
    host = os.environ if engine.facts.local else {}
    return replace(chosen, injected={name: host[name] for name in INJECTED if name in host})


def choose(wanted: GpuMode, host: HostState) -> Attachment:
    """Return how containers get GPUs on this host. Pure. What AUTO came to bears its reason.

    Raises UserError where a mode is asked for by name and can't be had.
    """
    no_runtime = "" if host.runtime else "the engine has no NVIDIA container runtime"
    no_driver = ""
    if not host.local:
        no_driver = "the engine runs on another machine, whose driver folder can't be host"
    elif not host.nodes:
        no_driver = "there is no device node /dev/nvidia*"
    elif not host.folder:
        no_driver = f"no folder holds the whole driver (looked into {', '.join(DRIVER_FOLDERS)})"

    if wanted is not GpuMode.AUTO:
        cause = no_runtime if wanted is GpuMode.NVIDIA else no_driver
        if cause:
            raise wrong(f"--gpus {wanted}", cause, "`--gpus auto` takes what there is")
        return _attachment(wanted, "asked for", host)
    if not no_runtime:
        return _attachment(GpuMode.NVIDIA, "chosen by auto", host)
    if not no_driver:
        return _attachment(GpuMode.HOST_DRIVER, f"chosen by auto; not nvidia: {no_runtime}", host)
    if host.inventory is None:
        return replace(NO_GPU, reason="no GPU was found on the engine's host")
    causes = f"nvidia: {no_runtime}; host-driver: {no_driver}"
    return replace(
        NO_GPU, reason=f"the host's GPUs can't be attached ({causes})", inventory=host.inventory
    )


def _attachment(mode: GpuMode, reason: str, host: HostState) -> Attachment:
    found = Attachment(mode=mode, reason=reason, inventory=host.inventory)
    if mode is GpuMode.NVIDIA:
        return replace(found, device_requests=(_ALL_GPUS,))
    libraries = f"{host.folder}/{_libraries(host.folder) or _LIBRARY_FOLDERS[0]}"
    return replace(
        found, devices=host.nodes, binds={host.folder: host.folder}, library_path=libraries
    )


def _libraries(folder: str) -> str:
    """Which folder below holds the driver's library; empty: none."""
    return next(
        (name for name in _LIBRARY_FOLDERS if Path(folder, name, "libcuda.so.1").exists()), ""
    )


def require_driver(inventory: Inventory, minimum: str) -> None:
    """Refuse a driver that is older than the image's CUDA needs, before any container starts. Raises UserError."""
    try:
        old = bool(inventory.driver) and Version(inventory.driver) < Version(minimum)
    except InvalidVersion:
        return
    if old:
        then = f"update the host's driver, or take an image of an older CUDA (`{command('plan')}` lists them)"
        raise failed(
            f"driver {inventory.driver}",
            f"is older than {minimum}, which this image's CUDA needs",
            then,
        )


def look(engine: Engine) -> HostState:
    """Return what the engine's host has; of another machine only what the engine says."""
    runtime = "nvidia" in engine.facts.runtimes
    if not engine.facts.local:
        return HostState(local=False, runtime=runtime)
    folder = next(filter(_libraries, DRIVER_FOLDERS), "")
    nodes = sorted(map(str, Path("/dev").glob("nvidia[0-9]*")))
    control = [
        f"/dev/{name}" for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
    ]
    return HostState(
        local=True,
        inventory=inventory(folder),
        runtime=runtime or any(shutil.which(name) for name in _HOOKS),
        folder=folder,
        nodes=(*nodes, *(node for node in control if Path(node).exists())) if nodes else (),
    )


def inventory(folder: str = "") -> Inventory | None:
    """The GPUs of this machine, by NVML; the driver's own folder is looked into as well."""
    from validate.environment import nvml  # most builds look for no GPU

    for place in (None, *(Path(folder, name) for name in _LIBRARY_FOLDERS if folder)):
        try:
            return inventory_from(nvml.read_by_nvml(place))
        except nvml.DriverError:
            continue
    return None


def of_host(host: Mapping[str, Any]) -> Attachment:
    """How the containers of a validation run had GPUs, as claims see it: from the `host` of its evidence."""
    try:
        found = host.get("attached") or {}
        gpus = inventory_from(host) if host.get("gpus") else None
        mode = GpuMode(found.get("mode", GpuMode.NVIDIA if gpus else GpuMode.NONE))
        reason = str(found.get("reason") or NO_GPU.reason)
        return Attachment(
            mode=mode, reason=reason, inventory=gpus, injected=dict(found.get("environment") or {})
        )
    except (LookupError, TypeError, ValueError, AttributeError):
        return replace(NO_GPU, reason="the evidence does not say which GPUs the machine had")
