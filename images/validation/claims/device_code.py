"""The claims `device-code`: libraries hold GPU code for the GPUs that the image is for.

Which GPUs a library has code for comes from facts.yaml and device_code.yaml, never from the image.
Nothing here reads a file or asks an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from packaging.version import Version

from images.config.names import Arch
from images.config.platforms import Platform
from images.planning import expectations
from images.planning.image import Image, Pin, Pruning
from images.validation.claims.context import ClaimContext, claim
from validate.claims import Claim
from validate.compute_capability import Fit

if TYPE_CHECKING:
    from validate.checks.static.devicecode import CodeExpect, PrunedExpect

CodeForms = Mapping[Arch, Fit]
"""GPU architecture -> the form in which a library has code for it: `cubin` (machine code) or
`ptx`, which the driver compiles for the GPU at run time."""


def device_code_claims(context: ClaimContext) -> Iterator[Claim]:
    """Yield a claim for each package of the image that must hold GPU code.

    A claim is a statement that a check tests: here, which libraries of the package have code for
    which GPUs. Nothing is yielded for a package that the image does not pin. The last claims are
    about CUDA's own libraries and, in an image for one GPU, about code for others that was to be
    removed.
    """
    yield from torch_claims(context)
    yield from bitsandbytes_claims(context)
    yield from xformers_claims(context)
    yield from torchao_claims(context)
    yield from claims_about_wheels_of_no_index(context)
    yield from claims_about_compiled_extensions(context)
    yield from claims_about_packages_of_facts(context)
    yield from claims_about_unknown_releases(context)
    yield cuda_libraries_claim(context)
    if context.image.pruning:
        yield pruned_claim(context, context.image.pruning)


def torch_claims(context: ClaimContext) -> Iterator[Claim]:
    """Yield the claim that torch's CUDA libraries have machine code for each GPU of the image."""
    image = context.image
    torch = image.pin("torch")
    # torch's wheels for aarch64 have libraries without kernels (`hollow` in facts.yaml): those may
    # have code, but need not.
    without_kernels: Sequence[str] = ()
    if torch and image.name.platform is Platform.ARM64:
        facts = context.facts.arm64.torch.get(torch.version)
        without_kernels = facts.hollow if facts else ()

    libraries = ["torch/lib/libtorch_cuda.so", "torch/lib/libtorch_cuda_linalg.so"]
    with_kernels = [path for path in libraries if path not in without_kernels]
    yield kernel_code_claim(
        image, "torch", with_kernels, machine_code(image.archs), also=without_kernels
    )


def bitsandbytes_claims(context: ClaimContext) -> Iterator[Claim]:
    """Yield the claim about the one library that bitsandbytes loads with the image's CUDA.

    Nothing is claimed of a release that the facts do not know.
    """
    image = context.image
    bitsandbytes = image.pin("bitsandbytes")
    facts = context.facts.bitsandbytes.get(bitsandbytes.version) if bitsandbytes else None
    if facts:
        library = facts.file_for(image.wheel_cuda)
        yield kernel_code_claim(image, "bitsandbytes", [library], machine_code(image.archs))


def xformers_claims(context: ClaimContext) -> Iterator[Claim]:
    """Yield the claim about xformers' libraries, if the facts know its release."""
    image = context.image
    xformers = image.pin("xformers")
    facts = context.facts.xformers.get(xformers.version) if xformers else None
    if facts:
        archs = served_archs(image, facts.covers)
        yield kernel_code_claim(
            image, "xformers", ["xformers/_C.so"], archs, also=["xformers/**/_C*.so"]
        )


def torchao_claims(context: ClaimContext) -> Iterator[Claim]:
    """Yield a claim, not required, for each library of torchao that serves a GPU of the image.

    Releases of torchao differ in which libraries they have. So an image may lack any of them. But a
    library that it has must hold code for the GPUs that the library is made for.
    """
    image = context.image
    torchao = image.pin("torchao")
    facts = context.facts.torchao.get(torchao.version) if torchao else None
    # A release without a CUDA major, as for aarch64, is pure Python.
    if not facts or not facts.cuda_major:
        return
    # TORCHAO_DEVICE_CODE: name of a library -> the architectures that it is made for (90: sm_90).
    for library, made_for in expectations.TORCHAO_DEVICE_CODE.items():
        served = [arch for arch in image.archs if number_of(arch) in made_for]
        if served:
            yield kernel_code_claim(
                image,
                f"torchao.{library}",
                files=[],
                archs=machine_code(served),
                also=[f"torchao/{library}.*so"],
                required=False,
            )


def claims_about_wheels_of_no_index(context: ClaimContext) -> Iterator[Claim]:
    """Yield claims about packages whose wheel no index has: it is official, or compiled here."""
    image = context.image
    for pin in image.pins:
        archs = archs_of_wheel(image, pin)
        if archs and pin.name in expectations.NATIVE:
            libraries = expectations.NATIVE[pin.name]["libraries"]
            yield kernel_code_claim(image, pin.name, libraries, archs)


def archs_of_wheel(image: Image, pin: Pin) -> CodeForms:
    """Return what a wheel that no index has holds code for; empty if the pin has no such wheel."""
    for wheel in image.prebuilt:
        if wheel.name == pin.name:
            return served_archs(image, wheel.covers)
    if pin.compiled and pin.minimum_arch:
        return machine_code(archs_from(image, pin.minimum_arch))
    return {}


def claims_about_compiled_extensions(context: ClaimContext) -> Iterator[Claim]:
    """Yield the claims that extensions hold code for the image's GPUs.

    Extensions are CUDA code of a package that we compile, because indexes have the package without
    it. The image may go without them, if their wheel could not be had: then the claim is unproven
    and not required.
    """
    image = context.image
    for pin in image.pins:
        # Patterns of the extensions' files: `gpu` of those that must hold GPU code, `also` of those
        # that may.
        libraries = expectations.EXTENSIONS.get(pin.name)
        if not pin.extension_source or not libraries:
            continue
        # `minimum_arch` is the oldest GPU that they are compiled for, if they have GPU code.
        if not pin.minimum_arch:
            continue
        reason_lacking = context.reason_without_extensions(pin)
        yield kernel_code_claim(
            image,
            pin.name,
            libraries["gpu"],
            machine_code(archs_from(image, pin.minimum_arch)),
            also=libraries["also"],
            required=not reason_lacking,
            unproven=reason_lacking,
        )


def claims_about_packages_of_facts(context: ClaimContext) -> Iterator[Claim]:
    """Yield claims about packages from an index whose GPU code facts.yaml lists."""
    image = context.image
    for pin in image.pins:
        facts = context.facts.packages.get(pin.name, {}).get(pin.version)
        if facts and facts.archs and pin.name in expectations.NATIVE:
            # The first library of a row is the one with the kernels.
            library, *others = expectations.NATIVE[pin.name]["libraries"]
            archs = served_archs(image, facts.covers)
            yield kernel_code_claim(image, pin.name, [library], archs, also=others)


def claims_about_unknown_releases(context: ClaimContext) -> Iterator[Claim]:
    """Yield a claim, unproven and not required, about each release that the facts do not know.

    A package of which the facts know no release at all gets no such claim.
    """
    image, facts = context.image, context.facts
    for pin in image.pins:
        releases = facts.releases_of(pin.name)
        if pin.name not in expectations.NATIVE or not releases or pin.version in releases:
            continue
        # claims_about_wheels_of_no_index are about official and compiled wheels.
        if archs_of_wheel(image, pin):
            continue
        yield claim(
            "device-code",
            pin.name,
            "static.devicecode",
            f"{pin.name} has code for the GPUs of the image",
            required=False,
            unproven=context.reason_unknown(pin),
        )


def cuda_libraries_claim(context: ClaimContext) -> Claim:
    """Return the claim about NVIDIA's own libraries.

    Many of their kernels are made for one architecture only. So it is not asked of each kernel, but
    of each file whether it has code for a GPU.
    """
    image = context.image
    torch = image.pin("torch")
    files = []
    for stem in expectations.CUDA_DEVICE_LIBRARIES:
        # From this torch release on, nothing requires the library, so it is not installed.
        first_torch_without = expectations.NO_CUDA_LIBRARY_FROM.get(stem)
        if torch and first_torch_without and Version(torch.version) >= Version(first_torch_without):
            continue
        files.append(f"**/{stem}.so.*")
    return kernel_code_claim(
        image, "cuda-libraries", files, machine_code(image.archs), kind="files"
    )


def pruned_claim(context: ClaimContext, pruning: Pruning) -> Claim:
    """Return the claim that an image for one architecture holds no code for other GPUs.

    `pruning`: what the build takes out. Its field `nvidia` says whether NVIDIA's own libraries are
    pruned, too.
    """
    packages = "no package" if pruning.nvidia else "no package but NVIDIA's own"
    # Kernels that the original libraries leave empty on purpose: the pruner did not empty them.
    by_design = expectations.KERNELS_BY_DESIGN
    expect: PrunedExpect = {
        "kind": "pruned",
        "files": ["**/*.so", "**/*.so.*"],
        "archs": archs_as_json(machine_code([pruning.arch])),
        "nvidia": pruning.nvidia,
        "by_design_of": {name: list(kernels) for name, kernels in by_design.items()},
    }
    return claim(
        "device-code",
        "pruned",
        "static.devicecode",
        f"{packages} holds device code that {pruning.arch} has no use for",
        expect,
    )


def kernel_code_claim(
    image: Image,
    subject: str,
    files: Sequence[str],
    archs: CodeForms,
    *,
    also: Sequence[str] = (),
    kind: Literal["kernels", "files"] = "kernels",
    required: bool = True,
    unproven: str = "",
) -> Claim:
    """Return the claim that libraries have GPU code for each of these architectures.

    subject: the package or group of libraries.
    files: patterns of libraries that must be there and have code: `torchao/_C.*so`.
    also: patterns of libraries that may be there, and are checked if they have code.
    kind: `kernels` if each kernel must have code for each architecture, `files` if each file must.
    required, unproven: see `claim`.
    """
    # Releases of some packages lack code for a GPU that they are made for: the table says which. It
    # is reported, and no fault.
    known_gaps = []
    for gap in expectations.KNOWN_GAPS.get(subject, ()):
        if gap["cuda"] == image.wheel_cuda.major:
            known_gaps.append(gap)
    expect: CodeExpect = {
        "kind": kind,
        "files": list(files),
        "also": list(also),
        "archs": archs_as_json(archs),
        "known_gaps": known_gaps,
    }
    # Kernels that their library leaves empty on purpose, for GPUs on which it never calls them.
    if kind == "kernels":
        expect["by_design"] = list(expectations.KERNELS_BY_DESIGN.get(subject, ()))

    unit = "kernel" if kind == "kernels" else "library"
    listed_archs = ", ".join(
        f"{arch} (PTX)" if form == "ptx" else str(arch) for arch, form in archs.items()
    )
    return claim(
        "device-code",
        subject,
        "static.devicecode",
        f"every {unit} of {subject} has code for {listed_archs}",
        expect,
        required=required,
        unproven=unproven,
    )


def served_archs(image: Image, covers: Callable[[Arch], Fit]) -> CodeForms:
    """Return the image's architectures that a binary has code for, each with the form of the code.

    `covers`: tells the form of the binary's code for an architecture; `no` if it has none.
    """
    forms = {arch: covers(arch) for arch in image.archs}
    return {arch: form for arch, form in forms.items() if form != "no"}


def archs_from(image: Image, minimum: Arch) -> list[Arch]:
    """Return the image's architectures from `minimum` on."""
    return [arch for arch in image.archs if arch >= minimum]


def machine_code(archs: Sequence[Arch]) -> CodeForms:
    """Return these architectures, each with machine code as the form."""
    return dict.fromkeys(archs, "cubin")


def archs_as_json(archs: CodeForms) -> dict[str, str]:
    """Return architectures as the claim `device-code` stores them: `{"90": "cubin", "120": "jit"}`.

    `jit` is PTX, which the driver compiles at run time.
    """
    return {
        str(number_of(arch)): "jit" if form == "ptx" else "cubin" for arch, form in archs.items()
    }


def number_of(arch: Arch) -> int:
    """Return an architecture as one number: 90 for sm_90."""
    return arch.major * 10 + arch.minor
