"""GPUs as the driver names them, through libnvidia-ml and libcuda by ctypes: no package needed, outside or inside."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

_TEXT = 96
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR (cuda.h)."""


class DriverError(RuntimeError):
    """The driver's library is not there, or answers with an error."""


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def managed(folder: Path | None = None) -> dict[str, Any]:
    """What NVML says: {"driver", "gpus": [{"name", "capability", "memory"}]}. Memory in bytes.

    `folder` holds libnvidia-ml.so.1 where the loader does not find it. Raises DriverError.
    """
    library = _load("libnvidia-ml.so.1", folder)
    _check("nvmlInit", library.nvmlInit_v2())
    try:
        driver = _text(library.nvmlSystemGetDriverVersion)
        count = ctypes.c_uint()
        _check("nvmlDeviceGetCount", library.nvmlDeviceGetCount_v2(ctypes.byref(count)))
        return {"driver": driver, "gpus": [_managed_gpu(library, index) for index in range(count.value)]}
    finally:
        library.nvmlShutdown()


def _managed_gpu(library: ctypes.CDLL, index: int) -> dict[str, Any]:
    device, memory = ctypes.c_void_p(), _Memory()
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check("nvmlDeviceGetHandleByIndex", library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)))
    _check("nvmlDeviceGetMemoryInfo", library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)))
    capability = library.nvmlDeviceGetCudaComputeCapability
    _check("nvmlDeviceGetCudaComputeCapability", capability(device, ctypes.byref(major), ctypes.byref(minor)))
    return {
        "name": _text(library.nvmlDeviceGetName, device),
        "capability": [major.value, minor.value],
        "memory": memory.total,
    }


def computing() -> dict[str, Any]:
    """What libcuda says once cuInit has succeeded: {"cuda": 13000, "gpus": [{"name", "capability", "memory"}]}.

    Raises DriverError with cuInit's own code: 100 no device, 803 and 804 a forward-compatibility driver that can't run.
    """
    library = _load("libcuda.so.1", None)
    _check("cuInit", library.cuInit(0))
    version, count = ctypes.c_int(), ctypes.c_int()
    _check("cuDriverGetVersion", library.cuDriverGetVersion(ctypes.byref(version)))
    _check("cuDeviceGetCount", library.cuDeviceGetCount(ctypes.byref(count)))
    return {"cuda": version.value, "gpus": [_computing_gpu(library, index) for index in range(count.value)]}


def _computing_gpu(library: ctypes.CDLL, index: int) -> dict[str, Any]:
    device, memory = ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(_TEXT)
    _check("cuDeviceGet", library.cuDeviceGet(ctypes.byref(device), index))
    _check("cuDeviceGetName", library.cuDeviceGetName(name, _TEXT, device))
    _check("cuDeviceTotalMem", library.cuDeviceTotalMem_v2(ctypes.byref(memory), device))
    capability = []
    for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
        value = ctypes.c_int()
        _check("cuDeviceGetAttribute", library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device))
        capability.append(value.value)
    return {"name": name.value.decode(), "capability": capability, "memory": memory.value}


def _load(name: str, folder: Path | None) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(folder / name) if folder else name)
    except OSError as error:
        raise DriverError(str(error)) from error


def _check(call: str, code: int) -> None:
    if code:
        raise DriverError(f"{call} answers {code}")


def _text(call: Any, *arguments: Any) -> str:
    buffer = ctypes.create_string_buffer(_TEXT)
    _check(getattr(call, "__name__", "nvml"), call(*arguments, buffer, _TEXT))
    return buffer.value.decode()
