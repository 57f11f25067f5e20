"""Claims S5: device code for the archs of the image, by kernel, by file, or for one arch alone. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from packaging.version import Version

from images.config.names import Arch
from images.planning import device_code, expectations
from images.planning.image import Image, Pruning
from images.validation.claims.context import ClaimContext
from validate.claims import Claim, Tier


def device_code_claims(context: ClaimContext) -> Iterator[Claim]:
    """S5 of each library with kernels: for which archs it has them is the facts' word, not the image's."""
    image, facts = context.image, context.facts
    archs: dict[Arch, str] = dict.fromkeys(image.archs, "cubin")
    yield code_claim(image, "torch", [f"torch/lib/libtorch_{part}.so" for part in ("cuda", "cuda_linalg")], archs)
    if bitsandbytes := image.pin("bitsandbytes"):
        library = [facts.bitsandbytes[bitsandbytes.version].file_for(image.wheel_cuda)]
        yield code_claim(image, "bitsandbytes", library, archs)
    if (xformers := image.pin("xformers")) and (row := facts.xformers.get(xformers.version)):
        covered: dict[Arch, str] = {arch: how for arch in archs if (how := row.covers(arch)) != "no"}
        yield code_claim(image, "xformers", ["xformers/_C.so"], covered, also=["xformers/**/_C*.so"])
    if image.pin("flash-attn"):
        low, high = device_code.FLASH_ATTN_ARCHS
        within = {arch: how for arch, how in archs.items() if low <= _number(arch) <= high}
        if within:
            yield code_claim(image, "flash-attn", ["flash_attn_2_cuda*.so"], within)
    if image.pin("torchao"):
        for name, served in device_code.TORCHAO_DEVICE_CODE.items():
            if within := {arch: how for arch, how in archs.items() if _number(arch) in served}:
                subject = f"torchao {name}"
                yield replace(code_claim(image, subject, [], within, also=[f"torchao/{name}.*so"]), required=False)
    for pin in image.pins:
        if pin.compiled and pin.minimum_arch and pin.name in expectations.NATIVE:
            within = {arch: how for arch, how in archs.items() if arch >= pin.minimum_arch}
            yield code_claim(image, pin.name, [], within, also=expectations.NATIVE[pin.name]["libraries"])
    patterns = [f"**/{stem}.so.*" for stem in _cuda_libraries(image)]
    yield code_claim(image, "cuda-libraries", patterns, archs, depth="file")
    if image.pruning:
        yield _pruned(image, image.pruning, custom_base=context.custom_base)


def _cuda_libraries(image: Image) -> Iterator[str]:
    torch = image.pin("torch")
    for stem in device_code.CUDA_DEVICE_LIBRARIES:
        gone_from = device_code.NO_CUDA_LIBRARY_FROM.get(stem)
        if not (torch and gone_from and Version(torch.version) >= Version(gone_from)):
            yield stem


def _pruned(image: Image, wanted: Pruning, *, custom_base: bool) -> Claim:
    claim = code_claim(image, "sliced", [], {wanted.arch: "cubin"}, also=["**/*.so", "**/*.so.*"], depth="surplus")
    whose = "no package" if wanted.nvidia else "no package but NVIDIA's own"
    return replace(
        claim,
        promise=f"{whose} holds device code that {wanted.arch} has no use for",
        expect={**claim.expect, "nvidia": wanted.nvidia, "by_design_of": _kernels_by_design()},
        required=not custom_base,
        unproven="a custom base keeps what it brought: only what the build installs is pruned" if custom_base else "",
    )


def _kernels_by_design() -> dict[str, list[dict[str, Any]]]:
    """By distribution, as the slicer's order has them."""
    return {name: [dict(row) for row in rows] for name, rows in device_code.KERNELS_BY_DESIGN.items()}


def code_claim(
    image: Image,
    subject: str,
    files: Sequence[str],
    archs: Mapping[Arch, str],
    *,
    also: Sequence[str] = (),
    depth: str = "kernel",
) -> Claim:
    how = {"cubin": "cubin", "ptx": "jit"}
    named = ", ".join(f"{arch}{' (PTX)' if way == 'ptx' else ''}" for arch, way in archs.items())
    rows = device_code.DEVICE_CODE_HOLES.get(subject, ())
    return Claim(
        id="S5",
        subject=subject,
        tier=Tier.STATIC,
        probe="static.devicecode",
        promise=f"every {'kernel' if depth == 'kernel' else 'library'} of {subject} has code for {named}",
        expect={
            "files": list(files),
            "also": list(also),
            "archs": {str(_number(arch)): how[way] for arch, way in archs.items()},
            "by_design": [dict(row) for row in device_code.KERNELS_BY_DESIGN.get(subject, ())],
            "holes": [dict(row) for row in rows if row["cuda"] == image.wheel_cuda.major],
            "depth": depth,
        },
    )


def _number(arch: Arch) -> int:
    return arch.major * 10 + arch.minor
