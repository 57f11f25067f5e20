"""Looks at the host's GPUs, outside of any container, and chooses how containers get them."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from images.engine.client import Engine
from images.engine.gpus import AUTO, NO_GPU, Attachment, GpuMode, parse
from images.errors import command, failed, wrong
from images.hardware.inventory import Inventory, of_nvml

DRIVER_FOLDERS = ("/usr/local/nvidia", "/home/kubernetes/bin/nvidia", "/opt/nvidia-driver")
"""Where container hosts keep the driver in one folder: NVIDIA's old convention, Google's, the GPU operator's."""
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
_CDI_SINCE = (1, 44)
"""The API version (engine 25) that takes CDI device names."""
_CDI_ALL = "nvidia.com/gpu=all"
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
    cdi: tuple[str, ...] = ()
    folder: str = ""
    nodes: tuple[str, ...] = ()


def attach(engine: Engine, wanted: str, *, min_driver: str) -> Attachment:
    """Look at the host and choose. Raises UserError for a mode that can't be had, or a driver below the minimum."""
    if parse(wanted) == GpuMode.NONE:
        return NO_GPU
    chosen = choose(wanted, look(engine, wanted.partition(":")[2]))
    if not chosen.attached:
        return chosen
    if chosen.inventory is not None:
        require_driver(chosen.inventory, min_driver)
    host = os.environ if engine.facts.local else {}
    return replace(chosen, injected={name: host[name] for name in INJECTED if name in host})


def choose(wanted: str, host: HostState) -> Attachment:
    """The mode of attaching GPUs. Pure. `auto` tries nvidia, cdi, host-driver, and says why it took one, or none.

    Raises UserError where a mode is asked for by name and can't be had.
    """
    mode = parse(wanted)
    of_driver = ""
    if not host.local:
        of_driver = "the engine runs on another machine, whose driver folder can't be host"
    elif not host.nodes:
        of_driver = "there is no device node /dev/nvidia*"
    elif not host.folder:
        of_driver = f"no folder holds the whole driver (looked into {', '.join(DRIVER_FOLDERS)})"
    lacking = {
        GpuMode.NVIDIA: "" if host.runtime else "the engine has no NVIDIA container runtime",
        GpuMode.CDI: "" if host.cdi else "the engine knows no CDI device of NVIDIA's",
        GpuMode.HOST_DRIVER: of_driver,
    }
    if mode != AUTO:
        if cause := lacking[GpuMode(mode)]:
            raise wrong(f"--gpus {wanted}", cause, "`--gpus auto` takes what there is")
        return _attachment(GpuMode(mode), "asked for", host)
    if host.inventory is None and not host.runtime and not host.cdi:
        return replace(NO_GPU, reason="no GPU was found on the engine's host")
    refused: list[str] = []
    for one, cause in lacking.items():
        if not cause:
            return _attachment(one, "; ".join(["chosen by auto", *(f"not {text}" for text in refused)]), host)
        refused.append(f"{one}: {cause}")
    reason = f"the host's GPUs can't be attached ({'; '.join(refused)})"
    return replace(NO_GPU, reason=reason, inventory=host.inventory)


def _attachment(mode: GpuMode, reason: str, host: HostState) -> Attachment:
    found = Attachment(mode=mode, reason=reason, inventory=host.inventory)
    if mode is GpuMode.NVIDIA:
        return replace(found, device_requests=(_ALL_GPUS,))
    if mode is GpuMode.CDI:
        devices = [_CDI_ALL] if _CDI_ALL in host.cdi else list(host.cdi)
        request = {"Driver": "cdi", "Count": 0, "DeviceIDs": devices, "Capabilities": None, "Options": {}}
        return replace(found, device_requests=(request,))
    libraries = f"{host.folder}/{_libraries(host.folder) or _LIBRARY_FOLDERS[0]}"
    return replace(found, devices=host.nodes, binds={host.folder: host.folder}, library_path=libraries)


def _libraries(folder: str) -> str:
    """Which folder below holds the driver's library; empty: none."""
    return next((name for name in _LIBRARY_FOLDERS if Path(folder, name, "libcuda.so.1").exists()), "")


def require_driver(inventory: Inventory, minimum: str) -> None:
    """Refuse a driver that is older than the image's CUDA needs, before any container starts. Raises UserError."""
    try:
        old = bool(inventory.driver) and Version(inventory.driver) < Version(minimum)
    except InvalidVersion:
        return
    if old:
        then = f"update the host's driver, or take an image of an older CUDA (`{command('plan')}` lists them)"
        raise failed(f"driver {inventory.driver}", f"is older than {minimum}, which this image's CUDA needs", then)


def look(engine: Engine, folder: str = "") -> HostState:
    """What the engine's host has. Of another machine only what the engine says. Raises UserError for a wrong folder."""
    runtime = "nvidia" in engine.facts.runtimes
    cdi = tuple(name for name in engine.facts.cdi_devices if name.startswith("nvidia.com/gpu="))
    if not engine.facts.local:
        return HostState(local=False, runtime=runtime, cdi=cdi)
    if folder and not _libraries(folder):
        cause = f"{folder} has no lib64/libcuda.so.1"
        raise wrong("--gpus host-driver", cause, "name the folder that holds the driver")
    found = folder or next(filter(_libraries, DRIVER_FOLDERS), "")
    # Engines from 25 on take CDI names where it is switched on; NVIDIA's specifications tell that it was set up.
    if not cdi and tuple(map(int, engine.facts.api.split("."))) >= _CDI_SINCE:
        files = (file for folder in CDI_FOLDERS for file in sorted(Path(folder).glob("*")) if file.is_file())
        if any("nvidia.com/gpu" in file.read_text(errors="replace") for file in files):
            cdi = (_CDI_ALL,)
    nodes = sorted(map(str, Path("/dev").glob("nvidia[0-9]*")))
    control = [f"/dev/{name}" for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")]
    return HostState(
        local=True,
        inventory=inventory(found),
        runtime=runtime or any(shutil.which(name) for name in _HOOKS),
        cdi=cdi,
        folder=found,
        nodes=(*nodes, *(node for node in control if Path(node).exists())) if nodes else (),
    )


def inventory(folder: str = "") -> Inventory | None:
    """The GPUs of this machine, by NVML; the driver's own folder is looked into as well."""
    from validate.environment import nvml  # most builds look for no GPU

    for place in (None, *(Path(folder, name) for name in _LIBRARY_FOLDERS if folder)):
        try:
            return of_nvml(nvml.managed(place))
        except nvml.DriverError:
            continue
    return None


def of_host(host: Mapping[str, Any]) -> Attachment:
    """How the containers of a validation run had GPUs, as claims see it: from the `host` of its evidence."""
    try:
        found = host.get("attached") or {}
        gpus = of_nvml(host) if host.get("gpus") else None
        mode = GpuMode(found.get("mode", GpuMode.NVIDIA if gpus else GpuMode.NONE))
        reason = str(found.get("reason") or NO_GPU.reason)
        return Attachment(mode=mode, reason=reason, inventory=gpus, injected=dict(found.get("environment") or {}))
    except (LookupError, TypeError, ValueError, AttributeError):
        return replace(NO_GPU, reason="the evidence does not say which GPUs the machine had")
