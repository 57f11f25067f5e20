"""Claims S5: device code for the archs of the image, by kernel, by file, or for one arch alone. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.version import Version

from images.config.facts import Facts
from images.config.names import Arch
from images.config.platforms import Platform
from images.planning import device_code, expectations, extensions
from images.planning.image import Image, Pin, Pruning
from images.validation.claims.context import ClaimContext
from validate.claims import Claim, Tier

if TYPE_CHECKING:
    from validate.checks.static.devicecode import (
        CodeGap,
        DeviceCodeExpect,
        KernelCodeExpect,
        LibraryCodeExpect,
        PrunedCodeExpect,
    )


def device_code_claims(context: ClaimContext) -> Iterator[Claim]:
    """S5 of each library with kernels: for which archs it has them is the facts' word, not the image's."""
    image, facts = context.image, context.facts
    archs: dict[Arch, str] = dict.fromkeys(image.archs, "cubin")
    hollow = _hollow(image, facts)
    libraries = [f"torch/lib/libtorch_{part}.so" for part in ("cuda", "cuda_linalg")]
    solid = [library for library in libraries if library not in hollow]
    yield kernel_code_claim(image, "torch", solid, archs, also=hollow)
    if bitsandbytes := image.pin("bitsandbytes"):
        library = [facts.bitsandbytes[bitsandbytes.version].file_for(image.wheel_cuda)]
        yield kernel_code_claim(image, "bitsandbytes", library, archs)
    if (xformers := image.pin("xformers")) and (row := facts.xformers.get(xformers.version)):
        covered: dict[Arch, str] = {arch: how for arch in archs if (how := row.covers(arch)) != "no"}
        yield kernel_code_claim(image, "xformers", ["xformers/_C.so"], covered, also=["xformers/**/_C*.so"])
    torchao = image.pin("torchao")
    # A release without a CUDA major has no library: pure Python, as on aarch64.
    if torchao and (of_torchao := facts.torchao.get(torchao.version)) and of_torchao.cuda_major:
        for name, served in device_code.TORCHAO_DEVICE_CODE.items():
            if within := {arch: how for arch, how in archs.items() if _number(arch) in served}:
                subject = f"torchao {name}"
                yield replace(
                    kernel_code_claim(image, subject, [], within, also=[f"torchao/{name}.*so"]), required=False
                )
    for pin in image.pins:
        if pin.name in expectations.NATIVE and (within := _of_no_index(image, pin)):
            yield kernel_code_claim(image, pin.name, expectations.NATIVE[pin.name]["libraries"], within)
    yield from _of_extensions(context)
    yield from _by_facts(image, context.facts)
    patterns = [f"**/{stem}.so.*" for stem in _cuda_libraries(image)]
    yield _library_code_claim(image, "cuda-libraries", patterns, archs)
    if image.pruning:
        yield _pruned(image.pruning, custom_base=context.custom_base)


def _hollow(image: Image, facts: Facts) -> list[str]:
    torch = image.pin("torch")
    row = facts.arm64.torch.get(torch.version) if torch and image.platform is Platform.ARM64 else None
    return list(row.hollow) if row else []


def _of_extensions(context: ClaimContext) -> Iterator[Claim]:
    """Extensions that were compiled for the image, from the oldest arch on that their code is written for."""
    for pin in context.image.pins:
        if pin.extensions and pin.minimum_arch and (row := extensions.EXTENSIONS.get(pin.name)):
            archs = dict.fromkeys((arch for arch in context.image.archs if arch >= pin.minimum_arch), "cubin")
            claim = kernel_code_claim(context.image, pin.name, row["gpu"], archs, also=row["also"])
            lacking = context.without_extensions(pin)
            yield replace(claim, required=not lacking, unproven=lacking)


def _by_facts(image: Image, facts: Facts) -> Iterator[Claim]:
    """Packages of which the facts tell the archs."""
    for pin in image.pins:
        row = facts.packages.get(pin.name, {}).get(pin.version)
        if row and row.archs and pin.name in expectations.NATIVE:
            covered: dict[Arch, str] = {arch: how for arch in image.archs if (how := row.covers(arch)) != "no"}
            first, *others = expectations.NATIVE[pin.name]["libraries"]
            yield kernel_code_claim(image, pin.name, [first], covered, also=others)


def _cuda_libraries(image: Image) -> Iterator[str]:
    torch = image.pin("torch")
    for stem in device_code.CUDA_DEVICE_LIBRARIES:
        gone_from = device_code.NO_CUDA_LIBRARY_FROM.get(stem)
        if not (torch and gone_from and Version(torch.version) >= Version(gone_from)):
            yield stem


def _of_no_index(image: Image, pin: Pin) -> dict[Arch, str]:
    """Arch -> how a wheel that no index has serves it: as the facts say of the official one, else as it is compiled."""
    official = next((wheel for wheel in image.prebuilt if wheel.name == pin.name), None)
    if official:
        return {arch: how for arch in image.archs if (how := official.covers(arch)) != "no"}
    if pin.compiled and pin.minimum_arch:
        return {arch: "cubin" for arch in image.archs if arch >= pin.minimum_arch}
    return {}


def _pruned(wanted: Pruning, *, custom_base: bool) -> Claim:
    whose = "no package" if wanted.nvidia else "no package but NVIDIA's own"
    expect: PrunedCodeExpect = {
        "kind": "pruned",
        "files": ["**/*.so", "**/*.so.*"],
        "archs": _ways({wanted.arch: "cubin"}),
        "nvidia": wanted.nvidia,
        "by_design_of": {name: list(rows) for name, rows in device_code.KERNELS_BY_DESIGN.items()},
    }
    claim = _claim("pruned", f"{whose} holds device code that {wanted.arch} has no use for", expect)
    if not custom_base:
        return claim
    reason = "a custom base keeps what it brought: only what the build installs is pruned"
    return replace(claim, required=False, unproven=reason)


def kernel_code_claim(
    image: Image, subject: str, files: Sequence[str], archs: Mapping[Arch, str], *, also: Sequence[str] = ()
) -> Claim:
    """Every kernel of a library has code for these archs. `files` must hold some, `also` may."""
    expect: KernelCodeExpect = {
        "kind": "kernels",
        "files": list(files),
        "also": list(also),
        "archs": _ways(archs),
        "known_gaps": _known_gaps(image, subject),
        "by_design": list(device_code.KERNELS_BY_DESIGN.get(subject, ())),
    }
    return _claim(subject, f"every kernel of {subject} has code for {_named(archs)}", expect)


def _library_code_claim(image: Image, subject: str, files: Sequence[str], archs: Mapping[Arch, str]) -> Claim:
    """Every library has code for these archs. NVIDIA's have kernels for one arch alone, so none is looked at."""
    expect: LibraryCodeExpect = {
        "kind": "files",
        "files": list(files),
        "also": [],
        "archs": _ways(archs),
        "known_gaps": _known_gaps(image, subject),
    }
    return _claim(subject, f"every library of {subject} has code for {_named(archs)}", expect)


def _claim(subject: str, statement: str, expect: DeviceCodeExpect) -> Claim:
    return Claim(
        id="S5", subject=subject, tier=Tier.STATIC, probe="static.devicecode", statement=statement, expect=expect
    )


def _known_gaps(image: Image, subject: str) -> list[CodeGap]:
    rows = device_code.KNOWN_GAPS.get(subject, ())
    return [row for row in rows if row["cuda"] == image.wheel_cuda.major]


def _ways(archs: Mapping[Arch, str]) -> dict[str, str]:
    """Arch -> machine code, or PTX that the driver compiles."""
    return {str(_number(arch)): "jit" if way == "ptx" else "cubin" for arch, way in archs.items()}


def _named(archs: Mapping[Arch, str]) -> str:
    return ", ".join(f"{arch}{' (PTX)' if way == 'ptx' else ''}" for arch, way in archs.items())


def _number(arch: Arch) -> int:
    return arch.major * 10 + arch.minor
