"""The claims of the gpu tier, from the resolved image, the table of kernels and the host's inventory. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from images.validation.claims.context import ClaimContext, claim
from images.validation.claims.cpu import quantised_llama
from validate.claims import Claim
from validate.kernels import Capability, Kernel, dtype_of, expected_path, table


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
