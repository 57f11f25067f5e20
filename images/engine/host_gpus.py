"""Finds the GPUs and the driver of the host, and chooses how containers get access to them."""

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from images.engine.client import Engine
from images.engine.gpus import NO_GPU, Attachment
from images.errors import command, failed, wrong
from images.hardware.inventory import GpuMode, Inventory, inventory_from

DRIVER_FOLDERS = ("/usr/local/nvidia", "/home/kubernetes/bin/nvidia", "/opt/nvidia-driver")
"""Where container hosts keep the driver in one folder: NVIDIA's old convention, Google's, the
GPU operator's."""
_ALL_GPUS = {"Driver": "", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": {}}
"""The request of `docker run --gpus all`."""
_HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
_LIBRARY_FOLDERS = ("lib64", "lib")
INJECTED = ("NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS")
"""Variables of the host that are set in its containers, too: NVLink's multicast must stay off on
such a host."""


@dataclass(frozen=True, kw_only=True)
class HostState:
    """What the host has of GPUs, drivers and runtimes; the mode is chosen from it."""

    local: bool
    """The engine runs on this machine, so that what lies here is what a container can get."""
    inventory: Inventory | None = None
    runtime: bool = False
    """NVIDIA's container runtime or its hook is installed."""
    folder: str = ""
    """The folder that holds the driver; empty if there is none."""
    nodes: tuple[str, ...] = ()
    """Device nodes of the GPUs and of the driver: `/dev/nvidia0`, `/dev/nvidiactl` and the like."""


def attach(engine: Engine, mode: GpuMode, *, min_driver: str) -> Attachment:
    """Return how containers of an engine get the host's GPUs, in the mode that the user names.

    The result holds the options for the containers, and why they are these. With the mode AUTO it
    may be without GPUs. Raises UserError if the mode is not possible on this host, or if the driver
    is older than `min_driver`, such as `525.60.13`.
    """
    if mode is GpuMode.NONE:
        return NO_GPU
    attachment = choose(mode, look(engine))
    if not attachment.attached:
        return attachment
    if attachment.inventory is not None:
        require_driver(attachment.inventory, min_driver)
    # The variables of this machine say nothing about an engine on another one.
    injected = {}
    if engine.facts.local:
        injected = {name: os.environ[name] for name in INJECTED if name in os.environ}
    return replace(attachment, injected=injected)


def choose(mode: GpuMode, host: HostState) -> Attachment:
    """Return how containers get the GPUs of a host, in the mode that the user names. Pure.

    NVIDIA: the engine's NVIDIA runtime attaches them. HOST_DRIVER: the driver's folder and device
    nodes are mounted. AUTO: the first of these two that is possible, or else no GPU; the result
    says why. Raises UserError if a mode other than AUTO is not possible on this host.
    """
    # Why each mode is not possible; empty if it is.
    no_runtime = "" if host.runtime else "the engine has no NVIDIA container runtime"
    no_driver = ""
    if not host.local:
        no_driver = "the engine runs on another machine, whose driver folder can't be host"
    elif not host.nodes:
        no_driver = "there is no device node /dev/nvidia*"
    elif not host.folder:
        no_driver = f"no folder holds the whole driver (looked into {', '.join(DRIVER_FOLDERS)})"

    if mode is not GpuMode.AUTO:
        cause = no_runtime if mode is GpuMode.NVIDIA else no_driver
        if cause:
            then = "give --gpus auto, which takes the way that is possible, or --gpus none"
            raise wrong(f"--gpus {mode}", f"is not possible here: {cause}", then)
        return _attachment(mode, "asked for", host)
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
    """Return what a container must be started with so that it sees the host's GPUs.

    In the mode NVIDIA, it asks the engine's NVIDIA runtime for all GPUs. In the mode HOST_DRIVER,
    it gets the device nodes (/dev/nvidia0), and the folder of the driver's libraries is mounted and
    put on the library path. `reason` says why the mode was chosen.
    """
    attachment = Attachment(mode=mode, reason=reason, inventory=host.inventory)
    if mode is GpuMode.NVIDIA:
        return replace(attachment, device_requests=(_ALL_GPUS,))
    # Where libcuda.so.1 is in the driver's folder; empty if it is not there.
    subfolder = _libraries(host.folder) or _LIBRARY_FOLDERS[0]
    return replace(
        attachment,
        devices=host.nodes,
        binds={host.folder: host.folder},
        library_path=f"{host.folder}/{subfolder}",
    )


def _libraries(folder: str) -> str:
    """Return the subfolder of a driver's folder that has libcuda.so.1; empty if none has it."""
    for subfolder in _LIBRARY_FOLDERS:
        if Path(folder, subfolder, "libcuda.so.1").exists():
            return subfolder
    return ""


def require_driver(inventory: Inventory, minimum: str) -> None:
    """Raise UserError if the host's driver is older than an image's CUDA needs.

    `minimum` is the oldest version that will do. A driver without a version, or with one that can't
    be compared, is accepted.
    """
    try:
        is_old = bool(inventory.driver) and Version(inventory.driver) < Version(minimum)
    except InvalidVersion:
        return
    if is_old:
        cause = f"is older than {minimum}, the oldest that runs this image's CUDA"
        then = (
            "update the host's driver, or take an image of an older CUDA "
            f"(`{command('plan')}` lists them)"
        )
        raise failed(f"driver {inventory.driver}", cause, then)


def look(engine: Engine) -> HostState:
    """Return what an engine's host has of GPUs, drivers and runtimes.

    That is its GPUs, the folder and the device nodes of its driver, and whether it has NVIDIA's
    container runtime. Of an engine on another machine, only the last is known.
    """
    has_runtime = "nvidia" in engine.facts.runtimes
    if not engine.facts.local:
        return HostState(local=False, runtime=has_runtime)
    driver_folder = ""
    for folder in DRIVER_FOLDERS:
        # It has libcuda.so.1 in a subfolder.
        if _libraries(folder):
            driver_folder = folder
            break
    return HostState(
        local=True,
        inventory=inventory(driver_folder),
        runtime=has_runtime or any(shutil.which(name) for name in _HOOKS),
        folder=driver_folder,
        nodes=_device_nodes(),
    )


def _device_nodes() -> tuple[str, ...]:
    """Return the device nodes of this machine's GPUs and of their driver; empty without a GPU."""
    nodes = sorted(map(str, Path("/dev").glob("nvidia[0-9]*")))
    if not nodes:
        return ()
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"):
        if Path("/dev", name).exists():
            nodes.append(f"/dev/{name}")
    return tuple(nodes)


def inventory(folder: str = "") -> Inventory | None:
    """Return the GPUs of this machine, as NVML lists them; None if it has no driver or no GPU.

    NVML is the driver's library for such questions. `folder` is a driver's folder in which NVML's
    library is looked for after the system's folders.
    """
    from validate.environment import nvml  # here, because most builds look for no GPU

    places: list[Path | None] = [None]  # None: the system's folders
    if folder:
        places.extend(Path(folder, name) for name in _LIBRARY_FOLDERS)
    for place in places:
        try:
            gpus = inventory_from(nvml.read_by_nvml(place))
        except nvml.DriverError:
            continue
        if gpus is None:
            return None
        # If the driver does not tell the IDs of the GPUs, there are none.
        with suppress(nvml.DriverError):
            gpus = replace(gpus, uuids=tuple(filter(None, nvml.read_uuids(place))))
        return gpus
    return None


def of_host(host: Mapping[str, Any]) -> Attachment:
    """Return how containers of a validation run got GPUs, from what its evidence recorded.

    Evidence is the JSON record of a run; `host` is its part about the machine. If that is damaged,
    the attachment has no GPU, and says so. The devices and the folder of the driver that the run
    used are not restored.
    """
    try:
        recorded = host.get("attached") or {}
        gpus = inventory_from(host) if host.get("gpus") else None
        # If no mode is recorded, GPUs in the evidence mean NVIDIA's runtime.
        default_mode = GpuMode.NVIDIA if gpus else GpuMode.NONE
        return Attachment(
            mode=GpuMode(recorded.get("mode", default_mode)),
            reason=str(recorded.get("reason") or NO_GPU.reason),
            inventory=gpus,
            injected=dict(recorded.get("environment") or {}),
        )
    except (LookupError, TypeError, ValueError, AttributeError):
        return replace(NO_GPU, reason="the evidence does not say which GPUs the machine had")
