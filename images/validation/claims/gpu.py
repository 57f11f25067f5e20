"""The claims of the gpu and multigpu tiers, from the image, the table of kernels, images/data/multigpu_claims.yaml, and
what the host's GPUs allow. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from packaging.version import Version

from images.config import yamlfile
from images.hardware.inventory import Inventory, Link
from images.validation.claims.context import ClaimContext, claim, silent_claims
from images.validation.claims.cpu import quantised_llama
from validate.claims import Claim
from validate.kernels import Capability, Kernel, dtype_of, expected_path, table

MOST_RANKS = 8
_NVLINK_BYTES = 25e9
"""A link's bytes a second in one direction: NVLink 2, 3 and 4 (NVIDIA's data sheets of V100, A100 and H100); NVLink 5
has twice that. The minimum is a fraction of it, as what a program gets is less."""
_NVLINK_SHARE = 0.3
_PCIE_MINIMUM = 5e9
"""A third of what 16 lanes of PCIe 4 carry (31.5 GB/s of which 16 reach a program), half of what 8 do."""
_SHM_MINIMUM = 1e9
ROWS: Mapping[str, Mapping[str, Any]] = yamlfile.table("multigpu_claims.yaml")
"""Subject -> what is claimed, in the order that reports show."""


def gpu_claims(context: ClaimContext) -> Iterator[Claim]:
    """G0 to G10. Where there is no GPU every claim exists, and is unproven."""
    image, inventory, no_gpu = context.image, context.inventory, context.no_gpu
    capabilities = sorted({gpu.capability for gpu in inventory.gpus}) if inventory else []
    versions = {pin.name: pin.version for pin in image.pins} | {"cuda": str(image.wheel_cuda)}
    sees = {"inventory": inventory.as_json() if inventory else None, "archs": [str(arch) for arch in image.archs]}
    statement = "the container sees the host's GPUs, all of them and no others"
    yield claim("G0", "device", "gpu.device", statement, sees, unproven=no_gpu)
    statement = "the cuDNN that runs is compatible with the one torch was compiled for"
    yield claim("G1", "cudnn", "gpu.numerics", statement, unproven=no_gpu)
    for subject, row in sorted(table().items(), key=lambda item: (item[1].claim, item[0])):
        if row.package not in versions or not all(name in versions for name in row.needs):
            continue
        expect = _expect(row, capabilities, versions)
        missing = context.missing.get(row.package)
        unproven = no_gpu if missing is None else f"{row.package} is not in this image: {missing}"
        # What this GPU or this version can't do is not held against the image.
        required = missing is None and "not_applicable" not in expect
        yield claim(row.claim, subject, row.probe, row.statement, expect, required=required, unproven=unproven)
    yield from quantised_llama(context, "G10", "gpu.llama", no_gpu)
    yield from silent_claims(context, "G12", capabilities)


def _expect(row: Kernel, capabilities: Sequence[Capability], versions: Mapping[str, str]) -> dict[str, Any]:
    """By the least capable GPU: which of several different ones a process takes first is CUDA's affair."""
    least = capabilities[0] if capabilities else None
    gate = row.excludes(versions) or (row.supports(least, versions) if least else None)
    gated = row.gated(least) if least else {}
    left_out = {**row.leaves_out(versions), **gated}
    return {
        "cases": [case for case in row.cases if case not in left_out],
        "tolerance": {dtype: rule for dtype, rule in row.tolerance.items() if dtype not in map(dtype_of, gated)},
        "figures": {name: list(bounds) for name, bounds in row.figures.items()},
        "facts": dict(row.facts),
        **expected_path(row, versions),
        "libraries": list(row.libraries),
        "package": row.package,
        **({"left_out": left_out} if left_out else {}),
        **({"capability": list(least)} if least else {}),
        **({"capabilities": [list(one) for one in capabilities]} if len(capabilities) > 1 else {}),
        **({"not_applicable": gate} if gate else {}),
    }


def multigpu_claims(context: ClaimContext, *, device: str = "cuda") -> Iterator[Claim]:
    """M1 to M8. Without a GPU, or with one alone, every claim exists and is unproven.

    `device` "cpu" is a rehearsal: the same probes over gloo. It has no minimum bandwidth, because other load on
    the machine decides what cores can carry.
    """
    image, inventory = context.image, context.inventory
    count = len(inventory.gpus) if inventory else 0
    # As the launcher in the container has it: meshes and shards are even then.
    ranks = 1 << (min(count, MOST_RANKS).bit_length() - 1) if count else None
    torch = Version(next(pin.version for pin in image.pins if pin.name == "torch"))
    link = link_of(inventory)
    minimum = _minimum(link, inventory) if device == "cuda" else 0.0
    of_host: Mapping[str, Mapping[str, Any]] = {
        "nccl": {"cuda": str(image.wheel_cuda)},
        "settings": {"injected": dict(context.injected)},
        "transport": {"link": link, "injected": dict(context.injected)},
        "bandwidth": {"link": link, "minimum": minimum},
    }
    for subject, row in ROWS.items():
        if not all(image.pin(name) for name in row.get("needs", ())):
            continue
        gate = _gate(row, torch, inventory)
        expect = {**row.get("expect", {}), "device": device, "ranks": ranks, **of_host.get(subject, {})}
        expect |= {"not_applicable": gate} if gate else {}
        # What these GPUs or this torch can't do is not held against the image.
        required = row.get("required", True) and not gate
        unproven = context.no_ranks if device == "cuda" else context.no_gpu
        yield claim(row["id"], subject, row["probe"], row["statement"], expect, required=required, unproven=unproven)


def link_of(inventory: Inventory | None) -> str:
    """How the host's GPUs reach each other, the weakest pair's way; empty where the host could not tell."""
    links = {link for _, _, link in inventory.links} if inventory else set()
    return str(max(links, key=list(Link).index)) if links else ""


def _gate(row: Mapping[str, Any], torch: Version, inventory: Inventory | None) -> str:
    if torch < Version(row.get("torch", "0")):
        return f"takes torch {row['torch']}, this is {torch}"
    least = tuple(row.get("capability", (0, 0)))
    for gpu in inventory.gpus if inventory else ():
        if gpu.capability < least:
            wanted, has = (".".join(map(str, one)) for one in (least, gpu.capability))
            return f"takes compute capability {wanted}, {gpu.name} has {has}"
    return ""


def _minimum(link: str, inventory: Inventory | None) -> float:
    """Bytes a second that the link should give at least."""
    if link == Link.NVLINK:
        links = min((gpu.nvlinks for gpu in inventory.gpus), default=0) if inventory else 0
        return max(_PCIE_MINIMUM, links * _NVLINK_BYTES * _NVLINK_SHARE)
    return _PCIE_MINIMUM if link == Link.PCIE else _SHM_MINIMUM
