"""NVML's answers, from a library of the test's own: a GPU with memory of its own, and one that shares the machine's."""

import os
from pathlib import Path
from typing import Any, ClassVar

import pytest

from validate.environment import nvml

OWN, NOT_SUPPORTED, UNKNOWN = 80 << 30, 3, 999


class Library:
    """Answers as libnvidia-ml.so.1 of one GPU; `memory` is the status of the question for its memory."""

    def __init__(self, memory: int) -> None:
        self._memory = memory

    def __getattr__(self, name: str) -> Any:
        answer = getattr(type(self), f"_{name.removesuffix('_v2')}", None)
        return (lambda *arguments: answer(self, *arguments)) if answer else lambda *_: 0

    def _nvmlDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 1
        return 0

    def _nvmlDeviceGetMemoryInfo(self, _device: object, memory: Any) -> int:  # noqa: N802
        memory._obj.total = 0 if self._memory else OWN
        return self._memory

    def _nvmlDeviceGetName(self, _device: object, buffer: Any, _size: int) -> int:  # noqa: N802
        buffer.value = b"NVIDIA GB10"
        return 0

    def _nvmlDeviceGetCudaComputeCapability(self, _device: object, major: Any, minor: Any) -> int:  # noqa: N802
        major._obj.value, minor._obj.value = 12, 1
        return 0


def managed(monkeypatch: pytest.MonkeyPatch, memory: int) -> nvml.Gpu:
    monkeypatch.setattr(nvml, "_load", lambda *_: Library(memory))
    (found,) = nvml.read_by_nvml()["gpus"]
    return found


def test_a_gpu_tells_its_own_memory_or_shares_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GB10 answers with NVML_ERROR_NOT_SUPPORTED. Another error is one."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    own = {"name": "NVIDIA GB10", "capability": [12, 1], "memory": OWN}
    assert managed(monkeypatch, 0) == own
    assert managed(monkeypatch, NOT_SUPPORTED) == {**own, "memory": machine, "unified": True}
    with pytest.raises(nvml.DriverError, match="nvmlDeviceGetMemoryInfo answers 999"):
        managed(monkeypatch, UNKNOWN)


def test_libcuda_says_whether_a_gpu_is_integrated() -> None:
    class Cuda(Library):
        integrated = 1

        def _cuDeviceTotalMem(self, memory: Any, _device: object) -> int:  # noqa: N802
            memory._obj.value = OWN
            return 0

        def _cuDeviceGetAttribute(self, value: Any, attribute: int, _device: object) -> int:  # noqa: N802
            value._obj.value = {75: 12, 76: 1, 18: self.integrated}[attribute]
            return 0

    library = Cuda(0)
    plain = {"name": "", "capability": [12, 1], "memory": OWN}
    assert nvml._read_gpu_by_cuda(library, 0) == {**plain, "unified": True}  # type: ignore[arg-type]
    library.integrated = 0
    assert nvml._read_gpu_by_cuda(library, 0) == plain  # type: ignore[arg-type]


def test_a_gpu_is_watched_and_what_nvml_can_not_tell_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Watched(Library):
        asked: ClassVar[list[bytes]] = []

        def _nvmlDeviceGetHandleByUUID(self, uuid: bytes, _device: object) -> int:  # noqa: N802
            self.asked.append(uuid)
            return 0

        def _nvmlDeviceGetClockInfo(self, _device: object, kind: Any, value: Any) -> int:  # noqa: N802
            value._obj.value = 1980 if kind.value == 1 else 0
            return 0

        def _nvmlDeviceGetUtilizationRates(self, _device: object, value: Any) -> int:  # noqa: N802
            value._obj.value = 97 | 55 << 32  # of the GPU, of its memory
            return 0

        def _nvmlDeviceGetTemperature(self, *_: object) -> int:  # noqa: N802
            return NOT_SUPPORTED

    monkeypatch.setattr(nvml, "_load", lambda *_: Watched(0))
    with nvml.watch_gpu("GPU-1") as watch:
        found = watch()
    assert (found["clock"], found["busy"], "temperature" in found) == (1980, 97, False)
    assert Watched.asked == [b"GPU-1"]
    monkeypatch.undo()
    with nvml.watch_gpu("", Path("/nowhere")) as watch:
        assert watch() == {}
