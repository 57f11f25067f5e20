"""Ask NVIDIA's driver for its GPUs, through libnvidia-ml (NVML) and libcuda by ctypes.

Needs no package, and works on a host and in a container.
"""

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, cast

_TEXT_BYTES = 96
_P2P_READ, _P2P_NVLINK, _P2P_OK = 0, 2, 0
"""NVML_P2P_CAPS_INDEX_READ and _NVLINK, NVML_P2P_STATUS_OK (nvml.h)."""
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR (cuda.h)."""
_INTEGRATED = 18
"""CU_DEVICE_ATTRIBUTE_INTEGRATED (cuda.h)."""
_NOT_SUPPORTED = 3
"""NVML_ERROR_NOT_SUPPORTED (nvml.h)."""


class DriverError(RuntimeError):
    """The driver's library can't be loaded (`call` is then empty), or a call of it failed."""

    def __init__(self, message: str, *, call: str = "", code: int = 0) -> None:
        super().__init__(message)
        self.call = call
        self.code = code


class _Gpu(TypedDict):
    name: str
    capability: list[int]
    """[major, minor]."""
    memory: int
    """Bytes."""


class Gpu(_Gpu, total=False):
    """A GPU as the driver describes it."""

    unified: bool
    """True if its memory is the machine's, shared with the CPU (GB10, Jetson); else left out."""


class NvmlInventory(TypedDict):
    """What NVML says of a machine."""

    driver: str
    """The driver's version: `580.95.05`."""
    gpus: list[Gpu]
    links: list[list[Any]]
    """[0, 1, "nvlink"]: how two GPUs, by index, reach each other: `nvlink`, `pcie` or `apart`."""


class CudaInventory(TypedDict):
    """What libcuda says of a machine."""

    cuda: int
    """The highest CUDA version that the driver supports: 13000 for 13.0."""
    gpus: list[Gpu]


class _Memory(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def read_by_nvml(folder: Path | None = None) -> NvmlInventory:
    """Return the driver's version, the GPUs and the links between them, as NVML reports them.

    A link is [first, second, kind], with the numbers of two GPUs. Links that NVML can't describe
    are left out. `folder` holds libnvidia-ml.so.1, if the loader does not find it. Raises
    DriverError.
    """
    with _nvml_devices(folder) as (library, devices):
        driver = _call_for_text(library, "nvmlSystemGetDriverVersion")
        gpus = [_read_gpu_by_nvml(library, device) for device in devices]
        links = []
        for second in range(len(devices)):
            for first in range(second):
                link = _read_link(library, devices[first], devices[second])
                if link:
                    links.append([first, second, link])
        return {"driver": driver, "gpus": gpus, "links": links}


def read_uuids(folder: Path | None = None) -> list[str]:
    """Return what tells each GPU from all others (`GPU-...`), as NVML reports it.

    `folder` holds libnvidia-ml.so.1, if the loader does not find it. Raises DriverError.
    """
    with _nvml_devices(folder) as (library, devices):
        return [_call_for_text(library, "nvmlDeviceGetUUID", device) for device in devices]


@contextmanager
def _nvml_devices(folder: Path | None) -> Iterator[tuple[ctypes.CDLL, list[ctypes.c_void_p]]]:
    """Start NVML for a `with` block: yield the library and a handle of each GPU.

    NVML is shut down when the block ends. `folder` holds the library, if the loader does not find
    it. Raises DriverError if there is no such library, or if a call fails.
    """
    library = _load("libnvidia-ml.so.1", folder)
    _call(library, "nvmlInit_v2")
    try:
        count = ctypes.c_uint()
        _call(library, "nvmlDeviceGetCount_v2", ctypes.byref(count))
        devices = [ctypes.c_void_p() for _ in range(count.value)]
        for index, device in enumerate(devices):
            _call(library, "nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device))
        yield library, devices
    finally:
        library.nvmlShutdown()


def _read_gpu_by_nvml(library: ctypes.CDLL, device: ctypes.c_void_p) -> Gpu:
    """Return name, compute capability and memory of a GPU, by NVML. Raises DriverError.

    Memory is in bytes. `device` is NVML's handle of the GPU. The result has the key `unified` if
    the GPU shares the machine's memory.
    """
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call(
        library,
        "nvmlDeviceGetCudaComputeCapability",
        device,
        ctypes.byref(major),
        ctypes.byref(minor),
    )
    gpu: Gpu = {
        "name": _call_for_text(library, "nvmlDeviceGetName", device),
        "capability": [major.value, minor.value],
        "memory": 0,
    }

    memory = _Memory()
    try:
        _call(library, "nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
        gpu["memory"] = memory.total
    except DriverError as error:
        if error.code != _NOT_SUPPORTED:
            raise
        # NVML reports no memory of a GPU that shares the machine's: NVIDIA's "DGX Spark known
        # issues", seen with drivers 580.95 to 580.173 (XuehaiPan/nvitop#208, leptonai/gpud#1170).
        gpu["memory"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        gpu["unified"] = True
    return gpu


def _read_link(library: ctypes.CDLL, first: ctypes.c_void_p, second: ctypes.c_void_p) -> str:
    """Return how two GPUs reach each other: by `nvlink`, by `pcie`, or only through the host's
    memory (`apart`). Empty if NVML can't tell.
    """
    can_read = _has_peer_access(library, first, second, _P2P_READ)
    if can_read is None:
        return ""
    if not can_read:
        return "apart"
    return "nvlink" if _has_peer_access(library, first, second, _P2P_NVLINK) else "pcie"


def _has_peer_access(
    library: ctypes.CDLL, first: ctypes.c_void_p, second: ctypes.c_void_p, way: int
) -> bool | None:
    """Return whether a GPU can reach another's memory: at all (_P2P_READ), or by _P2P_NVLINK.

    `way` is one of these two. None if NVML can't tell.
    """
    status = ctypes.c_int()
    code = library.nvmlDeviceGetP2PStatus(first, second, ctypes.c_int(way), ctypes.byref(status))
    return status.value == _P2P_OK if code == 0 else None


class _Reading(NamedTuple):
    """A call of NVML that gives one number of a GPU."""

    name: str
    call: str
    arguments: tuple[int, ...] = ()


_READINGS = (
    # 1 is NVML_CLOCK_SM (nvml.h). In MHz.
    _Reading("clock", "nvmlDeviceGetClockInfo", (1,)),
    _Reading("highest_clock", "nvmlDeviceGetMaxClockInfo", (1,)),
    # 0 is NVML_TEMPERATURE_GPU. In degrees Celsius.
    _Reading("temperature", "nvmlDeviceGetTemperature", (0,)),
    # In milliwatts.
    _Reading("power_limit", "nvmlDeviceGetEnforcedPowerLimit"),
    _Reading("usual_power_limit", "nvmlDeviceGetPowerManagementDefaultLimit"),
    # Bits, each a reason (nvmlClocksThrottleReasons).
    _Reading("throttled", "nvmlDeviceGetCurrentClocksThrottleReasons"),
    # In percent.
    _Reading("busy", "nvmlDeviceGetUtilizationRates"),
)


@contextmanager
def open_gpu_reader(
    uuid: str, folder: Path | None = None
) -> Iterator[Callable[[], Mapping[str, int]]]:
    """Yield a function that reads the clocks, limits and use of a GPU each time it is called.

    The function returns name -> value for each of _READINGS that NVML can tell; an empty dict if
    NVML can't be loaded or knows no GPU. `uuid` is that of the GPU (`GPU-...`); if it is empty or
    unknown, the first GPU is read. `folder` holds libnvidia-ml.so.1, if the loader does not find
    it.
    """
    with ExitStack() as at_exit:
        try:
            library = _load("libnvidia-ml.so.1", folder)
            _call(library, "nvmlInit_v2")
            at_exit.callback(library.nvmlShutdown)
            device = _find_gpu(library, uuid)
        except DriverError:
            # `dict()` is a reading without any value.
            yield dict
        else:
            yield lambda: _take_readings(library, device)


def _find_gpu(library: ctypes.CDLL, uuid: str) -> ctypes.c_void_p:
    """Return NVML's handle of the GPU with this UUID, else of the first GPU. Raises DriverError."""
    device = ctypes.c_void_p()
    if uuid:
        code = library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(device))
        if code == 0:
            return device
    _call(library, "nvmlDeviceGetHandleByIndex_v2", 0, ctypes.byref(device))
    return device


def _take_readings(library: ctypes.CDLL, device: ctypes.c_void_p) -> dict[str, int]:
    """Return clocks, temperature, limits and use of a GPU, by the names in _READINGS.

    `device` is NVML's handle of the GPU. What NVML can't tell is left out.
    """
    numbers = {}
    for reading in _READINGS:
        # 64 bits are wide enough for every answer.
        value = ctypes.c_ulonglong()
        code = _try_call(library, reading.call, device, reading.arguments, [value])
        if code != 0:
            continue
        if reading.name == "throttled":
            # The only answer that is a mask of 64 bits.
            numbers[reading.name] = value.value
        else:
            # All other answers have 32 bits. nvmlDeviceGetUtilizationRates gives two such numbers:
            # the GPU's utilization, and above it the memory's, which is cut off here.
            numbers[reading.name] = value.value & 0xFFFFFFFF
    return numbers


class _HealthReading(NamedTuple):
    """A call of NVML about the health of a GPU."""

    name: str
    call: str
    arguments: tuple[int, ...]
    answers: int
    """How many numbers it gives."""


_HEALTH_READINGS = (
    # Uncorrected errors (1) since the driver's start (0).
    _HealthReading("ecc", "nvmlDeviceGetTotalEccErrors", (1, 0), 1),
    _HealthReading("remapped", "nvmlDeviceGetRemappedRows", (), 4),
    _HealthReading("mig", "nvmlDeviceGetMigMode", (), 2),
    _HealthReading("mode", "nvmlDeviceGetComputeMode", (), 1),
)
_FABRIC_BYTES = 64
_FABRIC_STATE = 24
"""Offset in nvmlGpuFabricInfo_t: 16 bytes of a UUID, a status, a clique."""


class _GpuHealth(TypedDict):
    instances: bool
    """Whether MIG has an instance on it."""
    processes: int
    """How many processes compute on it."""


class GpuHealth(_GpuHealth, total=False):
    """The health of a GPU. What NVML can't tell is left out."""

    ecc: list[int]
    """[uncorrected errors since the driver's start]."""
    remapped: list[int]
    """Rows of memory: [corrected, uncorrected, pending, failed]."""
    mig: list[int]
    """Whether MIG is on: [now, after the next reset]."""
    mode: list[int]
    """[compute mode (nvmlComputeMode_t)]."""
    memory: list[int]
    """Bytes: [used, total]."""
    fabric: int
    """The state of the NVLink fabric (nvmlGpuFabricState_t)."""


def read_health(folder: Path | None = None) -> list[GpuHealth]:
    """Return the health of each GPU, such as its error counters. Raises DriverError.

    `folder` holds libnvidia-ml.so.1, if the loader does not find it.
    """
    with _nvml_devices(folder) as (library, devices):
        return [_read_health_of(library, device) for device in devices]


def _read_health_of(library: ctypes.CDLL, device: ctypes.c_void_p) -> GpuHealth:
    """Return the health of a GPU, such as its error counters. Calls that fail leave their key out.

    `device` is NVML's handle of the GPU.
    """
    health: dict[str, Any] = {}
    for reading in _HEALTH_READINGS:
        # 64 bits each are wide enough for every answer.
        numbers = [ctypes.c_ulonglong() for _ in range(reading.answers)]
        if _try_call(library, reading.call, device, reading.arguments, numbers) == 0:
            health[reading.name] = [number.value for number in numbers]

    memory = _Memory()
    if _try_call(library, "nvmlDeviceGetMemoryInfo", device, (), [memory]) == 0:
        health["memory"] = [memory.used, memory.total]

    fabric = (ctypes.c_ubyte * _FABRIC_BYTES)()
    if _try_call(library, "nvmlDeviceGetGpuFabricInfo", device, (), [fabric]) == 0:
        health["fabric"] = fabric[_FABRIC_STATE]

    # The handle is not used: the call succeeds if MIG has an instance number 0 on the GPU.
    instance = ctypes.c_void_p()
    code = _try_call(library, "nvmlDeviceGetMigDeviceHandleByIndex", device, (0,), [instance])
    health["instances"] = code == 0

    # The call fills a list of processes. Without room for it (a size of 0, and no list), the call
    # sets the size to how many there are, and fails with NVML_ERROR_INSUFFICIENT_SIZE.
    size = ctypes.c_uint(0)
    _try_call(library, "nvmlDeviceGetComputeRunningProcesses", device, (), [size, None])
    health["processes"] = size.value
    return cast("GpuHealth", health)


def libcuda_error() -> str:
    """Return the loader's error if it can't load libcuda; empty if it can."""
    try:
        _load("libcuda.so.1", None)
    except DriverError as error:
        return str(error)
    return ""


def read_by_cuda() -> CudaInventory:
    """Return the driver's CUDA version and the GPUs, as libcuda reports them after cuInit.

    Raises DriverError with cuInit's own code: 100 for no device, 803 and 804 for a
    forward-compatibility driver that can't run.
    """
    library = _load("libcuda.so.1", None)
    _call(library, "cuInit", 0)
    version, count = ctypes.c_int(), ctypes.c_int()
    _call(library, "cuDriverGetVersion", ctypes.byref(version))
    _call(library, "cuDeviceGetCount", ctypes.byref(count))
    gpus = [_read_gpu_by_cuda(library, index) for index in range(count.value)]
    return {"cuda": version.value, "gpus": gpus}


def _read_gpu_by_cuda(library: ctypes.CDLL, index: int) -> Gpu:
    """Return name, compute capability and memory of a GPU, by libcuda. Raises DriverError.

    `index` is its number among the GPUs that this process may use. Memory is in bytes. The result
    has the key `unified` if the GPU shares the machine's memory.
    """
    device, memory = ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(_TEXT_BYTES)
    _call(library, "cuDeviceGet", ctypes.byref(device), index)
    _call(library, "cuDeviceGetName", name, _TEXT_BYTES, device)
    _call(library, "cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call(library, "cuDeviceGetAttribute", ctypes.byref(major), _CAPABILITY_MAJOR, device)
    _call(library, "cuDeviceGetAttribute", ctypes.byref(minor), _CAPABILITY_MINOR, device)
    gpu: Gpu = {
        "name": name.value.decode(errors="replace"),
        "capability": [major.value, minor.value],
        "memory": memory.value,
    }

    # The key is left out for a GPU with memory of its own, and if the driver can't tell.
    integrated = ctypes.c_int()
    code = library.cuDeviceGetAttribute(ctypes.byref(integrated), _INTEGRATED, device)
    if code == 0 and integrated.value:
        gpu["unified"] = True
    return gpu


def _load(name: str, folder: Path | None) -> ctypes.CDLL:
    """Load a library from a folder, or where the loader finds it.

    Raises DriverError if that fails.
    """
    try:
        return ctypes.CDLL(str(folder / name) if folder else name)
    except OSError as error:
        raise DriverError(str(error)) from error


def _call(library: ctypes.CDLL, function: str, *arguments: Any) -> None:
    """Call a function of the driver. Raises DriverError unless it returns 0, for success."""
    code = getattr(library, function)(*arguments)
    if code:
        # `nvmlInit` is the documented name of `nvmlInit_v2`.
        name = function.removesuffix("_v2")
        raise DriverError(f"{name} answers {code}", call=name, code=code)


def _call_for_text(library: ctypes.CDLL, function: str, *arguments: Any) -> str:
    """Call a function of NVML that fills a buffer with text, and return the text.

    Raises DriverError.
    """
    buffer = ctypes.create_string_buffer(_TEXT_BYTES)
    _call(library, function, *arguments, buffer, _TEXT_BYTES)
    return buffer.value.decode(errors="replace")


def _try_call(
    library: ctypes.CDLL,
    function: str,
    device: ctypes.c_void_p,
    arguments: tuple[int, ...],
    outputs: list[Any],
) -> int:
    """Call a function of NVML about a GPU, and return its code: 0 for success.

    `arguments` are the numbers that the function takes after the GPU. `outputs` are the variables
    of ctypes into which it writes its answers; None stands for a null pointer. If this driver is
    too old to have the function, the code is NVML_ERROR_NOT_SUPPORTED.
    """
    if not hasattr(library, function):
        return _NOT_SUPPORTED
    numbers = [ctypes.c_uint(argument) for argument in arguments]
    pointers = [None if output is None else ctypes.byref(output) for output in outputs]
    return int(getattr(library, function)(device, *numbers, *pointers))
