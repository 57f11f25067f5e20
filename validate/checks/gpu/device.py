"""device: a container that sees other GPUs than its host computes somewhere else, or not at all.

NVML, libcuda and torch are each asked; the host's inventory is in the claim.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

from validate.claims import Claim
from validate.environment import nvml
from validate.environment.nvml import Gpu
from validate.harness.forked import attempt, list_mapped_files
from validate.judging import Finding, cause, failed, joined, listed, passed, suspects
from validate.kernels.judge import dotted
from validate.kernels.runner import environment


class Inventory(TypedDict):
    """The host's GPUs."""

    driver: str
    gpus: Sequence[Gpu]


class DeviceExpect(TypedDict):
    """`inventory` is None where the host could not tell; `archs` are those of the image, for people."""

    inventory: Inventory | None
    archs: Sequence[str]


class DeviceEvidence(TypedDict):
    """GPUs as NVML, libcuda and torch see them, or `error`; the driver's libraries that are mapped."""

    nvml: Mapping[str, Any]
    cuda: Mapping[str, Any]
    torch: Mapping[str, Any]
    libcuda: list[str]
    environment: Mapping[str, str]


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, DeviceEvidence]]:
    """Yield the evidence of each claim."""
    # torch itself sets variables once it is imported.
    before = environment()
    for claim in claims:
        evidence: DeviceEvidence = {
            "nvml": attempt(nvml.read_by_nvml),
            "cuda": attempt(nvml.read_by_cuda),
            "torch": attempt(_torch),
            "libcuda": list_mapped_files(r"/libcuda\.so"),
            "environment": before,
        }
        yield claim.subject, evidence


def _torch() -> dict[str, Any]:
    """Ask torch for its GPUs."""
    torch = importlib.import_module("torch")
    torch.cuda.init()
    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "archs": torch.cuda.get_arch_list(),
        "gpus": [
            {"name": one.name, "capability": [one.major, one.minor], "memory": one.total_memory}
            for one in gpus
        ],
    }


_MIG = " MIG "
"""Between the GPU's name and the slice's, in what libcuda says: `NVIDIA A100-SXM4-40GB MIG 1g.5gb`."""


def judge(_subject: str, expect: DeviceExpect, evidence: DeviceEvidence) -> Finding:
    """Judge that libcuda and torch see the GPUs that the host has, through one driver library."""
    for view, seen in (("cuda", evidence["cuda"]), ("torch", evidence["torch"])):
        if "error" in seen:
            return failed(f"{view}: {cause(seen['error'])}{suspects(evidence)}")
    problems = [*_inventory_problems(expect.get("inventory"), evidence), *_views_differ(evidence)]
    if len(evidence["libcuda"]) != 1:
        problems.append(
            f"{len(evidence['libcuda'])} driver libraries are loaded: {listed(list(evidence['libcuda']))}"
        )
    if problems:
        return failed(f"{joined(problems)}{suspects(evidence)}")
    gpus = evidence["cuda"]["gpus"]
    names = listed([f"{one['name']} ({dotted(one['capability'])})" for one in gpus])
    driver = evidence["nvml"].get("driver", "?")
    as_host = "as the host says" if expect.get("inventory") else "as libcuda and torch both say"
    return passed(
        f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''}, {names}, driver {driver}, {as_host}"
    )


def _inventory_problems(inventory: Inventory | None, evidence: DeviceEvidence) -> Iterator[str]:
    """Yield GPUs that are not the host's."""
    if inventory is None:
        return
    wanted, found = inventory["gpus"], evidence["cuda"]["gpus"]
    if any(_MIG in one["name"] for one in found):
        # libcuda names the slice and counts one, NVML names and counts the GPUs that are cut up.
        for seen in found:
            card = {**seen, "name": seen["name"].partition(_MIG)[0]}
            if not any(
                (host["name"], host["capability"]) == (card["name"], card["capability"])
                for host in wanted
            ):
                yield f"{seen['name']} ({dotted(seen['capability'])}) is a slice of no GPU of the host"
    elif len(wanted) != len(found):
        yield f"the host injected {len(wanted)} GPUs, {len(found)} are seen"
        return
    else:
        for index, (host, seen) in enumerate(zip(_sorted(wanted), _sorted(found), strict=True)):
            if (host["name"], host["capability"]) != (seen["name"], seen["capability"]):
                host_is, seen_is = (
                    f"{one['name']} ({dotted(one['capability'])})" for one in (host, seen)
                )
                yield f"GPU {index} is {seen_is}, the host says {host_is}"
    inside = evidence["nvml"].get("driver")
    if inside and inventory["driver"] and inside != inventory["driver"]:
        yield f"the driver's library is {inside}, the host's driver is {inventory['driver']}"


def _views_differ(evidence: DeviceEvidence) -> Iterator[str]:
    """What libcuda counts, torch must see as well."""
    cuda, torch = (_sorted(evidence[view]["gpus"]) for view in ("cuda", "torch"))
    if not cuda:
        yield "libcuda counts no GPU"
    if [one["capability"] for one in cuda] != [one["capability"] for one in torch]:
        cuda_sees, torch_sees = (
            listed([one["name"] for one in view]) or "nothing" for view in (cuda, torch)
        )
        yield f"libcuda sees {cuda_sees}, torch sees {torch_sees}"


def _sorted(gpus: Sequence[Gpu]) -> list[Gpu]:
    """NVML counts by bus, CUDA by speed: the order says nothing."""
    return sorted(gpus, key=lambda one: (one["name"], one["capability"]))


CLAIMS = {"device": judge}
