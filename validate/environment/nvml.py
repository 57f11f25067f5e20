"""GPUs as the driver names them, through libnvidia-ml and libcuda by ctypes: no package needed, outside or inside."""

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_TEXT = 96
_P2P_READ, _P2P_NVLINK, _P2P_OK = 0, 2, 0
"""NVML_P2P_CAPS_INDEX_READ and _NVLINK, NVML_P2P_STATUS_OK (nvml.h)."""
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR (cuda.h)."""
_INTEGRATED = 18
"""CU_DEVICE_ATTRIBUTE_INTEGRATED (cuda.h)."""
_NOT_SUPPORTED = 3
"""NVML_ERROR_NOT_SUPPORTED (nvml.h)."""


class DriverError(RuntimeError):
    """The driver's library is not there, or a call of it answers with an error: `call` and `code` say which."""

    def __init__(self, message: str, *, call: str = "", code: int = 0) -> None:
        super().__init__(message)
        self.call = call
        self.code = code


Gpu = dict[str, Any]
"""name, capability: [major, minor], memory in bytes; perhaps unified: its memory is the machine's, shared
with the CPU (GB10, Jetson)."""


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def managed(folder: Path | None = None) -> dict[str, Any]:
    """What NVML says: {"driver", "gpus": [{"name", "capability", "memory"}], "links": [[0, 1, "nvlink"]]}.

    A link is nvlink, pcie or apart, and left out where NVML can't tell.
    `folder` holds libnvidia-ml.so.1 where the loader does not find it. Raises DriverError.
    """
    with _devices(folder) as (library, devices):
        driver = _text(library.nvmlSystemGetDriverVersion)
        gpus = [_managed_gpu(library, device) for device in devices]
        pairs = ((one, other) for other in range(len(devices)) for one in range(other))
        ways = ((one, other, _link(library, devices[one], devices[other])) for one, other in pairs)
        return {"driver": driver, "gpus": gpus, "links": [[*way] for way in ways if way[2]]}


@contextmanager
def _devices(folder: Path | None) -> Iterator[tuple[ctypes.CDLL, list[ctypes.c_void_p]]]:
    """NVML, and a handle of each GPU. Raises DriverError."""
    library, count = _load("libnvidia-ml.so.1", folder), ctypes.c_uint()
    _check("nvmlInit", library.nvmlInit_v2())
    try:
        _check("nvmlDeviceGetCount", library.nvmlDeviceGetCount_v2(ctypes.byref(count)))
        devices = [ctypes.c_void_p() for _ in range(count.value)]
        for index, device in enumerate(devices):
            _check(
                "nvmlDeviceGetHandleByIndex",
                library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)),
            )
        yield library, devices
    finally:
        library.nvmlShutdown()


def _managed_gpu(library: ctypes.CDLL, device: ctypes.c_void_p) -> Gpu:
    memory, major, minor = _Memory(), ctypes.c_int(), ctypes.c_int()
    told = library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
    if told != _NOT_SUPPORTED:
        _check("nvmlDeviceGetMemoryInfo", told)
    capability = library.nvmlDeviceGetCudaComputeCapability
    _check(
        "nvmlDeviceGetCudaComputeCapability",
        capability(device, ctypes.byref(major), ctypes.byref(minor)),
    )
    found: Gpu = {
        "name": _text(library.nvmlDeviceGetName, device),
        "capability": [major.value, minor.value],
        "memory": memory.total,
    }
    if told != _NOT_SUPPORTED:
        return found
    # It has the machine's. NVML tells none of a GPU that shares it: NVIDIA's "DGX Spark known issues", seen with
    # drivers 580.95 to 580.173 (XuehaiPan/nvitop#208, leptonai/gpud#1170).
    return {
        **found,
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "unified": True,
    }


def _link(library: ctypes.CDLL, *devices: ctypes.c_void_p) -> str:
    """How two GPUs reach each other; empty where NVML can't tell."""
    found = {}
    for way in (_P2P_READ, _P2P_NVLINK):
        status = ctypes.c_int()
        answer = library.nvmlDeviceGetP2PStatus(*devices, ctypes.c_int(way), ctypes.byref(status))
        found[way] = None if answer else status.value == _P2P_OK
    if found[_P2P_READ] is None:
        return ""
    if not found[_P2P_READ]:
        return "apart"
    return "nvlink" if found[_P2P_NVLINK] else "pcie"


_READINGS = (
    ("clock", "nvmlDeviceGetClockInfo", (1,)),
    ("highest_clock", "nvmlDeviceGetMaxClockInfo", (1,)),
    ("temperature", "nvmlDeviceGetTemperature", (0,)),
    ("power_limit", "nvmlDeviceGetEnforcedPowerLimit", ()),
    ("usual_power_limit", "nvmlDeviceGetPowerManagementDefaultLimit", ()),
    ("throttled", "nvmlDeviceGetCurrentClocksThrottleReasons", ()),
    ("busy", "nvmlDeviceGetUtilizationRates", ()),
)
"""Name, call, and what it is asked for (nvml.h): NVML_CLOCK_SM in MHz, NVML_TEMPERATURE_GPU; milliwatts; percent."""


@contextmanager
def watched(uuid: str, folder: Path | None = None) -> Iterator[Callable[[], Mapping[str, int]]]:
    """A function that reads clocks, limits and use of the GPU with this UUID (`GPU-...`; empty: the first one).

    What NVML can't tell is left out: all, where there is none.
    """
    device = ctypes.c_void_p()

    def read() -> Mapping[str, int]:
        found = {}
        for name, call, asked in _READINGS:
            value = (
                ctypes.c_ulonglong()
            )  # wide enough for all; of utilization, the lower half is the GPU's
            function = getattr(library, call, None)
            if function and function(device, *map(ctypes.c_uint, asked), ctypes.byref(value)) == 0:
                found[name] = value.value if name == "throttled" else value.value & 0xFFFFFFFF
        return found

    try:
        library = _load("libnvidia-ml.so.1", folder)
        _check("nvmlInit", library.nvmlInit_v2())
        if not uuid or library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(device)):
            _check(
                "nvmlDeviceGetHandleByIndex",
                library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)),
            )
    except DriverError:
        yield dict
        return
    try:
        yield read
    finally:
        library.nvmlShutdown()


_HEALTH = (
    ("ecc", "nvmlDeviceGetTotalEccErrors", (1, 0), 1),
    ("remapped", "nvmlDeviceGetRemappedRows", (), 4),
    ("mig", "nvmlDeviceGetMigMode", (), 2),
    ("mode", "nvmlDeviceGetComputeMode", (), 1),
)
"""Name, call, what it is asked for (uncorrected, since the driver's start), and how many numbers it answers."""
_FABRIC_STATE = 24
"""Offset in nvmlGpuFabricInfo_t: 16 bytes of a UUID, a status, a clique."""


def health(folder: Path | None = None) -> list[dict[str, Any]]:
    """Of each GPU: memory [used, total], ecc, remapped [corrected, uncorrected, pending, failed], mig [now, next],
    instances, mode, processes, fabric. What NVML can't tell is left out. Raises DriverError."""
    with _devices(folder) as (library, devices):
        return [_health(library, device) for device in devices]


def _health(library: ctypes.CDLL, device: ctypes.c_void_p) -> dict[str, Any]:
    memory, slot, running, fabric = (
        _Memory(),
        ctypes.c_void_p(),
        ctypes.c_uint(0),
        (ctypes.c_ubyte * 64)(),
    )

    def ask(call: str, *arguments: Any) -> int:
        function = getattr(library, call, None)
        return int(function(device, *arguments)) if function else _NOT_SUPPORTED

    found: dict[str, Any] = {}
    for name, call, asked, answers in _HEALTH:
        values = [ctypes.c_ulonglong() for _ in range(answers)]  # wide enough for all
        if ask(call, *map(ctypes.c_uint, asked), *map(ctypes.byref, values)) == 0:
            found[name] = [value.value for value in values]
    if ask("nvmlDeviceGetMemoryInfo", ctypes.byref(memory)) == 0:
        found["memory"] = [memory.used, memory.total]
    if ask("nvmlDeviceGetGpuFabricInfo", ctypes.byref(fabric)) == 0:
        found["fabric"] = fabric[_FABRIC_STATE]
    found["instances"] = (
        ask("nvmlDeviceGetMigDeviceHandleByIndex", ctypes.c_uint(0), ctypes.byref(slot)) == 0
    )
    # With no room for the list it says NVML_ERROR_INSUFFICIENT_SIZE, and how many there are.
    ask("nvmlDeviceGetComputeRunningProcesses", ctypes.byref(running), None)
    return {**found, "processes": running.value}


def absent() -> str:
    """What the loader says where it finds no libcuda; empty where it finds one."""
    try:
        _load("libcuda.so.1", None)
    except DriverError as error:
        return str(error)
    return ""


def computing() -> dict[str, Any]:
    """What libcuda says once cuInit has succeeded: {"cuda": 13000, "gpus": [{"name", "capability", "memory"}]}.

    Raises DriverError with cuInit's own code: 100 no device, 803 and 804 a forward-compatibility driver that can't run.
    """
    library = _load("libcuda.so.1", None)
    _check("cuInit", library.cuInit(0))
    version, count = ctypes.c_int(), ctypes.c_int()
    _check("cuDriverGetVersion", library.cuDriverGetVersion(ctypes.byref(version)))
    _check("cuDeviceGetCount", library.cuDeviceGetCount(ctypes.byref(count)))
    return {
        "cuda": version.value,
        "gpus": [_computing_gpu(library, index) for index in range(count.value)],
    }


def _computing_gpu(library: ctypes.CDLL, index: int) -> Gpu:
    device, memory = ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(_TEXT)
    _check("cuDeviceGet", library.cuDeviceGet(ctypes.byref(device), index))
    _check("cuDeviceGetName", library.cuDeviceGetName(name, _TEXT, device))
    _check("cuDeviceTotalMem", library.cuDeviceTotalMem_v2(ctypes.byref(memory), device))
    capability = []
    for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
        value = ctypes.c_int()
        _check(
            "cuDeviceGetAttribute",
            library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device),
        )
        capability.append(value.value)
    found: Gpu = {"name": name.value.decode(), "capability": capability, "memory": memory.value}
    integrated = ctypes.c_int()
    answer = library.cuDeviceGetAttribute(ctypes.byref(integrated), _INTEGRATED, device)
    return {**found, "unified": True} if answer == 0 and integrated.value else found


def _load(name: str, folder: Path | None) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(folder / name) if folder else name)
    except OSError as error:
        raise DriverError(str(error)) from error


def _check(call: str, code: int) -> None:
    if code:
        raise DriverError(f"{call} answers {code}", call=call, code=code)


def _text(call: Any, *arguments: Any) -> str:
    buffer = ctypes.create_string_buffer(_TEXT)
    _check(getattr(call, "__name__", "nvml"), call(*arguments, buffer, _TEXT))
    return buffer.value.decode()
