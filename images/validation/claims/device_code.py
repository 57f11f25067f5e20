"""Claims `device-code`: device code for the archs of the image, by kernel, by file, or for one arch alone. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from packaging.version import Version

from images.config.names import Arch
from images.config.platforms import Platform
from images.planning import expectations
from images.planning.image import Image, Pin, Pruning
from images.validation.claims.context import ClaimContext, claim
from validate.claims import Claim


def device_code_claims(context: ClaimContext) -> Iterator[Claim]:
    """device-code of each library with kernels: for which archs it has them is the facts' word, not the image's."""
    image, facts = context.image, context.facts
    pins = {pin.name: pin for pin in image.pins}
    archs: dict[Arch, str] = dict.fromkeys(image.archs, "cubin")
    native = expectations.NATIVE

    # Wheels for aarch64 have libraries without code of their own.
    torch = pins.get("torch")
    row = (
        facts.arm64.torch.get(torch.version)
        if torch and image.name.platform is Platform.ARM64
        else None
    )
    hollow = row.hollow if row else ()
    of_torch = (f"torch/lib/libtorch_cuda{part}.so" for part in ("", "_linalg"))
    yield kernel_code_claim(
        image, "torch", [one for one in of_torch if one not in hollow], archs, also=hollow
    )
    if pin := pins.get("bitsandbytes"):
        library = facts.bitsandbytes[pin.version].file_for(image.wheel_cuda)
        yield kernel_code_claim(image, "bitsandbytes", [library], archs)
    if (pin := pins.get("xformers")) and (of_xformers := facts.xformers.get(pin.version)):
        covered = _covered(image, of_xformers.covers)
        yield kernel_code_claim(
            image, "xformers", ["xformers/_C.so"], covered, also=["xformers/**/_C*.so"]
        )
    of_torchao = facts.torchao.get(pins["torchao"].version) if "torchao" in pins else None
    # A release without a CUDA major has no library: pure Python, as on aarch64.
    for name, served in (
        expectations.TORCHAO_DEVICE_CODE.items() if of_torchao and of_torchao.cuda_major else ()
    ):
        if within := {
            arch: how for arch, how in archs.items() if arch.major * 10 + arch.minor in served
        }:
            found = kernel_code_claim(
                image, f"torchao.{name}", [], within, also=[f"torchao/{name}.*so"]
            )
            yield replace(found, required=False)
    for pin in image.pins:
        if pin.name in native and (within := _of_no_index(image, pin)):
            yield kernel_code_claim(image, pin.name, native[pin.name]["libraries"], within)
    for pin in (
        image.pins
    ):  # extensions that were compiled, from the oldest arch on that their code is written for
        if (
            pin.extensions
            and pin.minimum_arch
            and (compiled := expectations.EXTENSIONS.get(pin.name))
        ):
            newer: dict[Arch, str] = dict.fromkeys(
                (arch for arch in image.archs if arch >= pin.minimum_arch), "cubin"
            )
            lacking = context.without_extensions(pin)
            found = kernel_code_claim(
                image, pin.name, compiled["gpu"], newer, also=compiled["also"]
            )
            yield replace(found, required=not lacking, unproven=lacking)
    for pin in image.pins:
        package = facts.packages.get(pin.name, {}).get(pin.version)
        if package and package.archs and pin.name in native:
            first, *others = native[pin.name]["libraries"]
            yield kernel_code_claim(
                image, pin.name, [first], _covered(image, package.covers), also=others
            )
    # NVIDIA's libraries have kernels for one arch alone, so whole files are looked at.
    until = (
        {stem: Version(text) for stem, text in expectations.NO_CUDA_LIBRARY_FROM.items()}
        if torch
        else {}
    )
    has = Version(torch.version if torch else "0")
    stems = [
        stem
        for stem in expectations.CUDA_DEVICE_LIBRARIES
        if stem not in until or has < until[stem]
    ]
    yield kernel_code_claim(
        image, "cuda-libraries", [f"**/{stem}.so.*" for stem in stems], archs, kind="files"
    )
    if image.pruning:
        yield _pruned(context, image.pruning)


def kernel_code_claim(
    image: Image,
    subject: str,
    files: Sequence[str],
    archs: Mapping[Arch, str],
    *,
    also: Sequence[str] = (),
    kind: str = "kernels",
) -> Claim:
    """Every kernel of a library has code for these archs; of kind `files`, every file. `files` must hold some, `also`
    may."""
    known_gaps = [
        row
        for row in expectations.KNOWN_GAPS.get(subject, ())
        if row["cuda"] == image.wheel_cuda.major
    ]
    named = ", ".join(f"{arch}{' (PTX)' if way == 'ptx' else ''}" for arch, way in archs.items())
    expect: dict[str, object] = {
        "kind": kind,
        "files": [*files],
        "archs": _ways(archs),
        "known_gaps": known_gaps,
    }
    expect["also"] = list(also)
    if kind == "kernels":
        expect["by_design"] = list(expectations.KERNELS_BY_DESIGN.get(subject, ()))
    what = {"kernels": "kernel", "files": "library"}[kind]
    return claim(
        "device-code",
        subject,
        "static.devicecode",
        f"every {what} of {subject} has code for {named}",
        expect,
    )


def _pruned(context: ClaimContext, wanted: Pruning) -> Claim:
    whose = "no package" if wanted.nvidia else "no package but NVIDIA's own"
    expect = {
        "kind": "pruned",
        "files": ["**/*.so", "**/*.so.*"],
        "archs": _ways({wanted.arch: "cubin"}),
        "nvidia": wanted.nvidia,
        "by_design_of": {name: list(rows) for name, rows in expectations.KERNELS_BY_DESIGN.items()},
    }
    statement = f"{whose} holds device code that {wanted.arch} has no use for"
    custom = context.unless_custom(
        "a custom base keeps what it brought: only what the build installs is pruned"
    )
    return claim("device-code", "pruned", "static.devicecode", statement, expect, **custom)


def _of_no_index(image: Image, pin: Pin) -> dict[Arch, str]:
    """Arch -> how a wheel that no index has serves it: as the facts say of the official one, else as it is compiled."""
    official = next((wheel for wheel in image.prebuilt if wheel.name == pin.name), None)
    if official:
        return _covered(image, official.covers)
    if pin.compiled and pin.minimum_arch:
        return {arch: "cubin" for arch in image.archs if arch >= pin.minimum_arch}
    return {}


def _covered(image: Image, covers: Callable[[Arch], str]) -> dict[Arch, str]:
    return {arch: how for arch in image.archs if (how := covers(arch)) != "no"}


def _ways(archs: Mapping[Arch, str]) -> dict[str, str]:
    """Arch -> machine code, or PTX that the driver compiles."""
    return {
        f"{arch.major}{arch.minor}": "jit" if way == "ptx" else "cubin"
        for arch, way in archs.items()
    }
