"""NVML and libcuda are asked as their headers say, with libraries of the test's own."""

import os
from pathlib import Path
from typing import Any, ClassVar

import pytest

from images.engine import host_gpus
from validate.environment import nvml

OWN_MEMORY = 80 << 30
SUCCESS, NOT_SUPPORTED, UNKNOWN_ERROR = 0, 3, 999
"""Codes that NVML's functions return (nvml.h)."""
CLOCK_OF_THE_CORES = 1
"""NVML_CLOCK_SM."""


class OneGpu:
    """Stands in for libnvidia-ml.so.1 of a machine with one GPU.

    A function is looked up by its name without `_v2`, with an underscore before it. Functions that
    are not there succeed, and write no answer. An argument is what ctypes.byref returned: `_obj` is
    the variable itself.
    """

    def __init__(self, memory_code: int = SUCCESS) -> None:
        """`memory_code`: what the function about the GPU's memory returns."""
        self._memory_code = memory_code

    def __getattr__(self, name: str) -> Any:
        function = getattr(type(self), f"_{name.removesuffix('_v2')}", None)
        if function is None:
            return lambda *_: SUCCESS
        return lambda *arguments: function(self, *arguments)

    def _nvmlDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 1
        return SUCCESS

    def _nvmlDeviceGetMemoryInfo(self, _device: object, memory: Any) -> int:  # noqa: N802
        memory._obj.total = OWN_MEMORY if self._memory_code == SUCCESS else 0
        return self._memory_code

    def _nvmlDeviceGetName(self, _device: object, buffer: Any, _size: int) -> int:  # noqa: N802
        buffer.value = b"NVIDIA GB10"
        return SUCCESS

    def _nvmlDeviceGetCudaComputeCapability(self, _device: object, major: Any, minor: Any) -> int:  # noqa: N802
        major._obj.value, minor._obj.value = 12, 1
        return SUCCESS


# ---- What NVML says of a GPU.


class WithUuid(OneGpu):
    """Knows what tells its GPU from others, or returns a code in place of that."""

    def __init__(self, uuid_code: int = SUCCESS) -> None:
        super().__init__()
        self._uuid_code = uuid_code

    def _nvmlDeviceGetUUID(self, _device: object, buffer: Any, _size: int) -> int:  # noqa: N802
        buffer.value = b"GPU-5d3c"
        return self._uuid_code


def test_each_gpu_has_a_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_load", lambda *_: WithUuid())

    assert nvml.read_uuids() == ["GPU-5d3c"]
    assert "GPU-5d3c" not in str(nvml.read_by_nvml()), "what containers report is published"


@pytest.mark.parametrize(("uuid_code", "uuids"), [(SUCCESS, ("GPU-5d3c",)), (UNKNOWN_ERROR, ())])
def test_a_gpu_is_found_whether_or_not_it_has_a_uuid(
    uuid_code: int, uuids: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "_load", lambda *_: WithUuid(uuid_code))

    inventory = host_gpus.inventory()

    assert inventory is not None
    assert (len(inventory.gpus), inventory.uuids) == (1, uuids)


def read_gpu(monkeypatch: pytest.MonkeyPatch, memory_code: int) -> nvml.Gpu:
    monkeypatch.setattr(nvml, "_load", lambda *_: OneGpu(memory_code))
    (gpu,) = nvml.read_by_nvml()["gpus"]
    return gpu


def test_a_gpu_with_memory_of_its_own_has_it_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = read_gpu(monkeypatch, SUCCESS)

    assert gpu == {"name": "NVIDIA GB10", "capability": [12, 1], "memory": OWN_MEMORY}


def test_a_gpu_of_whose_memory_nvml_knows_nothing_shares_the_machines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = read_gpu(monkeypatch, NOT_SUPPORTED)

    assert gpu["memory"] == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert gpu["unified"] is True


def test_another_error_of_nvml_is_raised_with_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(nvml.DriverError, match="nvmlDeviceGetMemoryInfo answers 999"):
        read_gpu(monkeypatch, UNKNOWN_ERROR)


# ---- What libcuda says of a GPU.


class Cuda(OneGpu):
    """Stands in for libcuda.so.1."""

    def __init__(self, *, integrated: bool) -> None:
        super().__init__()
        # Attributes of the GPU by their numbers in cuda.h: its capability, and whether it is
        # integrated.
        self._attributes = {75: 12, 76: 1, 18: int(integrated)}

    def _cuDeviceTotalMem(self, memory: Any, _device: object) -> int:  # noqa: N802
        memory._obj.value = OWN_MEMORY
        return SUCCESS

    def _cuDeviceGetAttribute(self, value: Any, attribute: int, _device: object) -> int:  # noqa: N802
        value._obj.value = self._attributes[attribute]
        return SUCCESS


def test_an_integrated_gpu_shares_the_machines_memory() -> None:
    library: Any = Cuda(integrated=True)

    assert nvml._read_gpu_by_cuda(library, 0) == {
        "name": "",
        "capability": [12, 1],
        "memory": OWN_MEMORY,
        "unified": True,
    }


def test_another_gpu_does_not() -> None:
    library: Any = Cuda(integrated=False)

    gpu = nvml._read_gpu_by_cuda(library, 0)

    assert gpu == {"name": "", "capability": [12, 1], "memory": OWN_MEMORY}


class WithStrangeName(Cuda):
    """Knows a name for its GPU that is no UTF-8."""

    def _cuDeviceGetName(self, buffer: Any, _size: int, _device: object) -> int:  # noqa: N802
        buffer.value = b"GPU \xff"
        return SUCCESS

    def _nvmlDeviceGetName(self, _device: object, buffer: Any, size: int) -> int:  # noqa: N802
        return self._cuDeviceGetName(buffer, size, _device)


def test_a_name_that_is_no_text_does_not_keep_a_gpu_from_being_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library: Any = WithStrangeName(integrated=False)
    monkeypatch.setattr(nvml, "_load", lambda *_: library)

    assert nvml._read_gpu_by_cuda(library, 0)["name"] == "GPU \ufffd"
    assert nvml.read_by_nvml()["gpus"][0]["name"] == "GPU \ufffd"


# ---- Watching a GPU.


class Watched(OneGpu):
    """A GPU that runs at 1980 MHz, is busy for 97 % of the time, and tells no temperature."""

    uuids: ClassVar[list[bytes]] = []
    """Those that were asked for."""
    shutdowns: ClassVar[list[str]] = []

    def _nvmlDeviceGetHandleByUUID(self, uuid: bytes, _device: object) -> int:  # noqa: N802
        self.uuids.append(uuid)
        return SUCCESS

    def _nvmlDeviceGetClockInfo(self, _device: object, kind: Any, value: Any) -> int:  # noqa: N802
        value._obj.value = 1980 if kind.value == CLOCK_OF_THE_CORES else 0
        return SUCCESS

    def _nvmlDeviceGetUtilizationRates(self, _device: object, value: Any) -> int:  # noqa: N802
        busy, busy_memory = 97, 55
        value._obj.value = busy | busy_memory << 32
        return SUCCESS

    def _nvmlDeviceGetTemperature(self, *_: object) -> int:  # noqa: N802
        return NOT_SUPPORTED

    def _nvmlShutdown(self) -> int:  # noqa: N802
        self.shutdowns.append("shutdown")
        return SUCCESS


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    """NVML of a machine with a watched GPU. Nothing was asked of it yet."""
    monkeypatch.setattr(nvml, "_load", lambda *_: Watched())
    monkeypatch.setattr(Watched, "uuids", [])
    monkeypatch.setattr(Watched, "shutdowns", [])
    return Watched


def test_a_gpu_is_watched_and_what_nvml_can_not_tell_is_left_out(watched: type[Watched]) -> None:
    with nvml.open_gpu_reader("GPU-1") as read:
        reading = read()

    assert (reading["clock"], reading["busy"]) == (1980, 97)
    assert "temperature" not in reading
    assert watched.uuids == [b"GPU-1"]
    assert len(watched.shutdowns) == 1


def test_nvml_is_shut_down_even_if_it_finds_no_gpu(
    watched: type[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        watched, "_nvmlDeviceGetHandleByIndex", lambda *_: UNKNOWN_ERROR, raising=False
    )

    with nvml.open_gpu_reader("") as read:
        assert read() == {}

    assert len(watched.shutdowns) == 1


def test_without_nvml_there_are_no_readings() -> None:
    with nvml.open_gpu_reader("", Path("/nowhere")) as read:
        assert read() == {}
