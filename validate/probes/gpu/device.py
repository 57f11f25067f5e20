"""G0: the GPUs inside the container, as NVML, libcuda and torch each see them. The host's inventory is in the claim."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from validate.claims import Claim
from validate.contracts.gpu import DeviceEvidence, GpuView
from validate.environment import nvml
from validate.harness.forked import attempt
from validate.kernels import runner


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, DeviceEvidence]]:
    before = runner.environment()
    for claim in claims:
        yield (
            claim.subject,
            {
                "nvml": attempt(_nvml),
                "cuda": attempt(_cuda),
                "torch": attempt(_torch),
                "libcuda": _libcuda(),
                "environment": before,
            },
        )


def _nvml() -> GpuView:
    found = nvml.managed()
    return {"driver": found["driver"], "gpus": found["gpus"], "links": found["links"]}


def _cuda() -> GpuView:
    found = nvml.computing()
    return {"cuda": found["cuda"], "gpus": found["gpus"]}


def _torch() -> GpuView:
    torch = importlib.import_module("torch")
    torch.cuda.init()
    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "archs": torch.cuda.get_arch_list(),
        "gpus": [{"name": one.name, "capability": [one.major, one.minor], "memory": one.total_memory} for one in gpus],
    }


def _libcuda() -> list[str]:
    """The driver's library that this process has mapped: the host's, or one that the image brings."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    return sorted({line.split(None, 5)[5] for line in lines if "/libcuda.so" in line})
