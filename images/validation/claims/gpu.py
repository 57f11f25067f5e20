"""The claims of the gpu tier, from the resolved image, the table of kernels and the host's inventory. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from images.validation.claims.context import ClaimContext
from images.validation.claims.cpu import QUANTISED_LLAMA_NEEDS
from validate.claims import Claim, Tier
from validate.harness import nf4
from validate.kernels import Capability, Kernel, dtype_of, expected_path, table

if TYPE_CHECKING:
    from validate.kernels.evidence import KernelExpect

_LLAMA = {
    "nf4-weights": "on the GPU, loading in 4-bit stores every projection as NF4, and its memory shows it",
    "nf4-logits": "on the GPU, the 4-bit model computes what its dequantised weights say",
    "qlora": "QLoRA with gradient checkpointing learns, leaves the base alone, and gives the same bits twice",
}


def gpu_claims(
    context: ClaimContext,
) -> Iterator[Claim]:
    """G0 to G10. Where there is no GPU every claim exists, and is unproven."""
    image, inventory, no_gpu = context.image, context.inventory, context.no_gpu
    capabilities = sorted({gpu.capability for gpu in inventory.gpus}) if inventory else []
    versions = {pin.name: pin.version for pin in image.pins} | {"cuda": str(image.wheel_cuda)}
    yield Claim(
        id="G0",
        subject="device",
        tier=Tier.GPU,
        probe="gpu.device",
        statement="the container sees the host's GPUs, all of them and no others",
        expect={"inventory": inventory.as_json() if inventory else None, "archs": [str(arch) for arch in image.archs]},
        unproven=no_gpu,
    )
    yield Claim(
        id="G1",
        subject="cudnn",
        tier=Tier.GPU,
        probe="gpu.numerics",
        statement="the cuDNN that runs is compatible with the one torch was compiled for",
        unproven=no_gpu,
    )
    for subject, row in sorted(table().items(), key=lambda item: (item[1].claim, item[0])):
        if row.package in versions and all(name in versions for name in row.needs):
            claim = _kernel(subject, row, capabilities, versions, no_gpu)
            yield _without(claim, row.package, context.missing) if row.package in context.missing else claim
    has_llama = all(image.pin(name) for name in QUANTISED_LLAMA_NEEDS)
    for subject, statement in _LLAMA.items() if has_llama else ():
        yield Claim(
            id="G10",
            subject=subject,
            tier=Tier.GPU,
            probe="gpu.llama",
            statement=statement,
            expect=nf4.EXPECTED if subject == "nf4-weights" else {},
            unproven=no_gpu,
        )


def _without(claim: Claim, package: str, missing: Mapping[str, str]) -> Claim:
    return replace(claim, required=False, unproven=f"{package} is not in this image: {missing[package]}")


def _kernel(
    subject: str, row: Kernel, capabilities: Sequence[Capability], versions: Mapping[str, str], no_gpu: str
) -> Claim:
    """By the least capable GPU: which of several different ones a process takes first is CUDA's affair."""
    least = capabilities[0] if capabilities else None
    gate = row.excludes(versions) or (row.supports(least, versions) if least else None)
    gated = row.gated(least) if least else {}
    names, left_out = expected_path(row, versions), {**row.leaves_out(versions), **gated}
    expect: KernelExpect = {
        "cases": [case for case in row.cases if case not in left_out],
        "tolerance": {dtype: rule for dtype, rule in row.tolerance.items() if dtype not in map(dtype_of, gated)},
        "figures": {name: list(bounds) for name, bounds in row.figures.items()},
        "facts": dict(row.facts),
        "expected_kernels": names["expected_kernels"],
        "other_kernels": names["other_kernels"],
        "aside_kernels": names["aside_kernels"],
        "libraries": list(row.libraries),
        "package": row.package,
    }
    if left_out:
        expect["left_out"] = left_out
    if "names_of" in names:
        expect["names_of"] = names["names_of"]
    if least:
        expect["capability"] = list(least)
    if len(capabilities) > 1:
        expect["capabilities"] = [list(one) for one in capabilities]
    if gate:
        expect["not_applicable"] = gate
    return Claim(
        id=row.claim,
        subject=subject,
        tier=Tier.GPU,
        probe=row.probe,
        statement=row.statement,
        # What this GPU or this version can't do is not held against the image.
        required=gate is None,
        expect=expect,
        unproven=no_gpu,
    )
