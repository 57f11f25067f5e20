"""What an image promises, written from the resolved image alone. Pure: no container, no file, no network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from packaging.version import Version

from images.config.facts import Facts
from images.config.names import Arch
from images.context import labels as image_labels
from images.context.base_context import BaseContext, Origin
from images.hardware.inventory import Inventory
from images.planning import expectations
from images.planning.image import Image, Pin, Slicing
from images.validation.claims.gpu import gpu_claims
from images.validation.claims.multigpu import multigpu_claims
from images.validation.claims.profile import ENTRYPOINT, profile_claims
from validate.claims import HOST_PROBE, STRANGER, Claim, ClaimSet, Tier

_TRITON_FLOOR = Arch(7, 0)
"""torch.compile and Triton refuse older GPUs at run time (torch/utils/_triton.py, triton's README)."""
_TRITON_31_CEILING = Arch(9, 0)
_DOT_FLOOR = Arch(8, 0)
"""Triton 3.3.1 compiles no fp16 matrix product below sm_80."""
_OCI = "org.opencontainers.image"
_BOGUS_ARCH = 999
_C10_NEEDS = ("torch", "transformers", "bitsandbytes", "peft", "accelerate", "safetensors")
_NF4 = {"quant_type": "nf4", "block_size": 64, "mean_error": 0.072798, "mean_error_sigma": 7.4e-5}
"""bitsandbytes' own figures for NF4, block 64, on N(0,1) (its tests/test_functional.py)."""


def promises(
    image: Image,
    lock_pins: Mapping[str, Mapping[str, str]] | None,
    missing: Mapping[str, str],
    *,
    facts: Facts,
    inventory: Inventory | None = None,
    no_gpu: str = "",
    lent: Mapping[str, str] | None = None,
) -> ClaimSet:
    """Every claim of an image.

    `lock_pins` is layer -> distribution -> version of its lock; None: it stands on a base of one's own,
    whose packages beside the pins are nobody's promise; the claim about the closure is then there, and unproven.
    `missing` is optional pin -> why no wheel of it could be had: claims about it are not required, and unproven.
    `inventory` is of the host's GPUs where it could be read; `no_gpu` says why there is none: then the gpu tier is
    unproven. `lent` is what the trial adds to the image's environment where it attaches GPUs.
    """
    claims = [*_static(image, lock_pins, missing, facts), *_cpu(image, facts), *_gpu(image, inventory, no_gpu, missing)]
    claims += multigpu_claims(image, inventory, lent=lent, no_gpu=no_gpu)
    claims += profile_claims(image, no_gpu=no_gpu)
    possible = (_beyond_proof(claim, image) for claim in claims)
    return ClaimSet(image=str(image.name), claims=tuple(_without(claim, missing) for claim in possible))


def _gpu(image: Image, inventory: Inventory | None, no_gpu: str, missing: Mapping[str, str]) -> Iterator[Claim]:
    llama = _NF4 if all(image.pin(name) for name in _C10_NEEDS) else None
    yield from gpu_claims(image, inventory, missing, llama=llama, no_gpu=no_gpu)


def _beyond_proof(claim: Claim, image: Image) -> Claim:
    """A claim that the profile's own pins put out of reach: said, with the reason, and not held against the image."""
    reason = image.beyond_proof.get(f"{claim.id} {claim.subject}", image.beyond_proof.get(claim.id, ""))
    return replace(claim, required=False, unproven=reason) if reason else claim


def _without(claim: Claim, missing: Mapping[str, str]) -> Claim:
    if claim.subject not in missing:
        return claim
    return replace(claim, required=False, unproven=f"{claim.subject} is not in this image: {missing[claim.subject]}")


def _static(
    image: Image,
    lock_pins: Mapping[str, Mapping[str, str]] | None,
    missing: Mapping[str, str],
    facts: Facts,
) -> Iterator[Claim]:
    yield from (_pinned(image, pin) for pin in image.pins)
    yield _locked(image, lock_pins, missing)
    yield Claim(
        id="S2",
        subject="files",
        tier=Tier.STATIC,
        probe="static.files",
        promise="every installed file is the one its wheel brought, and has one owner",
        expect={"unowned": expectations.START_FILES},
    )
    yield from _linked(image)
    yield Claim(
        id="S4",
        subject="symbols",
        tier=Tier.STATIC,
        probe="static.symbols",
        promise="every symbol, and every version of one, that a library needs is exported by what it is linked with",
        expect={
            "host": list(expectations.HOST_LIBRARIES),
            "exceptions": [dict(row) for row in expectations.SYMBOL_EXCEPTIONS],
        },
    )
    yield from _device_code(image, facts, given=lock_pins is None)
    yield Claim(
        id="S6",
        subject="toolkit",
        tier=Tier.STATIC,
        probe="static.toolkit",
        promise=f"the CUDA {image.toolkit_cuda} toolkit is in {image.toolkit_home}, off the loader's path",
        expect={
            "home": image.toolkit_home,
            "version": str(image.toolkit_cuda),
            "parts": [*expectations.TOOLKIT_PARTS, *(expectations.DEVEL_TOOLKIT_PARTS if image.devel else ())],
        },
    )
    yield Claim(
        id="S7",
        subject="environment",
        tier=Tier.STATIC,
        probe="static.environment",
        promise="the variables are as promised, and nothing bends what users run",
        expect={
            "required": dict(image.environment),
            "denied": expectations.DENIED_VARIABLES,
            "start_files": expectations.START_FILES,
        },
    )
    yield from _hygiene(image, missing, given=lock_pins is None)


def _hygiene(image: Image, missing: Mapping[str, str], *, given: bool) -> Iterator[Claim]:
    """S8: what the engine's host measures (labels, size, settings, history), and what root finds in the files."""
    most = expectations.MOST_BYTES
    most += expectations.MORE_BYTES_DEVEL if image.devel else 0
    most += expectations.MORE_BYTES_PROFILE if image.profile else 0
    gigabytes = most // 1000**3
    leftovers = {"leftovers": dict(expectations.LEFTOVERS)}
    rows: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
        "labels": (HOST_PROBE, "the labels are true", {"labels": _labels(image, missing, given=given)}),
        "size": (HOST_PROBE, f"the image is at most {gigabytes} GB", {"bytes": most}),
        "settings": (
            HOST_PROBE,
            f"it runs as a user, with{'' if image.entrypoint else 'out an'} entrypoint, and asks for the driver",
            {
                "capabilities": list(expectations.DRIVER_CAPABILITIES),
                "entrypoint": [ENTRYPOINT] if image.entrypoint else [],
            },
        ),
        "history": (HOST_PROBE, "no credential in variables, labels and build steps", {}),
        "leftovers": ("static.hygiene", "no cache, package list or temporary file of the build is left", leftovers),
        "secrets": ("static.hygiene", "no file holds a credential", leftovers),
        "home": ("static.hygiene", "the home is for every user to write to", leftovers),
    }
    for subject, (probe, promise, expect) in rows.items():
        yield Claim(id="S8", subject=subject, tier=Tier.STATIC, probe=probe, promise=promise, expect=expect)


def _labels(image: Image, missing: Mapping[str, str], *, given: bool) -> dict[str, str]:
    """Labels that say what the image is. Where it was built from differs from build to build."""
    base_context = BaseContext(reference="", origin=Origin.CUSTOM if given else "")
    everything = image_labels.labels(image, base_context, missing)
    builds = {f"{image_labels.LABELS}.{key}" for key in ("matrix-revision", "missing")} | {f"{_OCI}.version"}
    return {name: value for name, value in everything.items() if name not in builds}


def _pinned(image: Image, pin: Pin) -> Claim:
    variant = f"cu{image.wheel_cuda.digits}"
    return Claim(
        id="S1",
        subject=pin.name,
        tier=Tier.STATIC,
        probe="static.pins",
        promise=f"`import {_modules(pin.name)[0]}` is {pin.name} {pin.version}"
        + (f" for CUDA {image.wheel_cuda}" if pin.name == "torch" else ""),
        expect={
            "version": pin.version,
            # PyTorch's index names the variant in the version, the default index does not: the same wheel.
            "locals": [pin.local] if pin.local else ["", variant],
            "modules": list(_modules(pin.name)),
            "python": str(image.python),
            "shares": list(expectations.NAMESPACES.get(pin.name, ())),
            **({"cuda": str(image.wheel_cuda)} if pin.name == "torch" else {}),
        },
    )


def _modules(distribution: str) -> tuple[str, ...]:
    return expectations.IMPORT_NAMES.get(distribution, (distribution.replace("-", "_"),))


def _locked(image: Image, lock_pins: Mapping[str, Mapping[str, str]] | None, missing: Mapping[str, str]) -> Claim:
    """A base from a registry may hold more than the lock; ours may not."""
    versions = {pin.name: pin.version for pin in image.pins if pin.name not in missing}
    for layer in image.layers:
        versions.update((lock_pins or {}).get(layer, {}))
    return Claim(
        id="S1",
        subject="lock",
        tier=Tier.STATIC,
        probe="static.pins",
        promise=f"the {len(versions)} distributions of the lock are installed, and no others",
        expect={"versions": versions, "closed": image.base.suite is not None},
        required=lock_pins is not None,
        unproven=""
        if lock_pins is not None
        else "its base was given: what that holds beside the pins is not the lock's",
    )


def _linked(image: Image) -> Iterator[Claim]:
    common = {
        "home": image.toolkit_home,
        "cuda_libraries": expectations.cuda_libraries(image.wheel_cuda.major),
        "host": list(expectations.HOST_LIBRARIES),
        "other_platforms": list(expectations.OTHER_PLATFORMS),
    }
    exceptions = {
        "environment": expectations.LINK_EXCEPTIONS,
        "toolkit": (*expectations.LINK_EXCEPTIONS, *expectations.TOOLKIT_EXCEPTIONS),
    }
    texts = {
        "environment": f"every library finds what it needs, of CUDA {image.wheel_cuda.major} alone, from one owner",
        "toolkit": "the toolkit's own libraries and programs find what they need",
    }
    for subject, promise in texts.items():
        yield Claim(
            id="S3",
            subject=subject,
            tier=Tier.STATIC,
            probe="static.libraries",
            promise=promise,
            expect={"of": subject, **common, "exceptions": list(exceptions[subject])},
        )


def _device_code(image: Image, facts: Facts, *, given: bool) -> Iterator[Claim]:
    """S5 of each library with kernels: for which archs it has them is the facts' word, not the image's."""
    archs: dict[Arch, str] = dict.fromkeys(image.archs, "cubin")
    yield coded(image, "torch", [f"torch/lib/libtorch_{part}.so" for part in ("cuda", "cuda_linalg")], archs)
    if bitsandbytes := image.pin("bitsandbytes"):
        library = _bitsandbytes_library(image, bitsandbytes, facts)["libraries"]
        yield coded(image, "bitsandbytes", library, archs)
    if (xformers := image.pin("xformers")) and (row := facts.xformers.get(xformers.version)):
        covered: dict[Arch, str] = {arch: how for arch in archs if (how := row.covers(arch)) != "no"}
        yield coded(image, "xformers", ["xformers/_C.so"], covered, also=["xformers/**/_C*.so"])
    if image.pin("flash-attn"):
        low, high = expectations.FLASH_ATTN_ARCHS
        within = {arch: how for arch, how in archs.items() if low <= _number(arch) <= high}
        if within:
            yield coded(image, "flash-attn", ["flash_attn_2_cuda*.so"], within)
    if image.pin("torchao"):
        for name, served in expectations.TORCHAO_DEVICE_CODE.items():
            if within := {arch: how for arch, how in archs.items() if _number(arch) in served}:
                subject = f"torchao {name}"
                yield replace(coded(image, subject, [], within, also=[f"torchao/{name}.*so"]), required=False)
    for pin in image.pins:
        if pin.compiled and pin.floor and pin.name in expectations.NATIVE:
            within = {arch: how for arch, how in archs.items() if arch >= pin.floor}
            yield coded(image, pin.name, [], within, also=expectations.NATIVE[pin.name]["libraries"])
    patterns = [f"**/{stem}.so.*" for stem in _cuda_libraries(image)]
    yield coded(image, "cuda-libraries", patterns, archs, depth="file")
    if image.slicing:
        yield _sliced(image, image.slicing, given=given)


def _cuda_libraries(image: Image) -> Iterator[str]:
    torch = image.pin("torch")
    for stem in expectations.CUDA_DEVICE_LIBRARIES:
        gone_from = expectations.NO_CUDA_LIBRARY_FROM.get(stem)
        if not (torch and gone_from and Version(torch.version) >= Version(gone_from)):
            yield stem


def _sliced(image: Image, wanted: Slicing, *, given: bool) -> Claim:
    claim = coded(image, "sliced", [], {wanted.arch: "cubin"}, also=["**/*.so", "**/*.so.*"], depth="surplus")
    whose = "no package" if wanted.nvidia else "no package but NVIDIA's own"
    return replace(
        claim,
        promise=f"{whose} holds device code that {wanted.arch} has no use for",
        expect={**claim.expect, "nvidia": wanted.nvidia, "by_design_of": _kernels_by_design()},
        required=not given,
        unproven="a base of one's own keeps what it brought: only what the build installs is sliced" if given else "",
    )


def _kernels_by_design() -> dict[str, list[dict[str, Any]]]:
    """By distribution, as the slicer's order has them."""
    return {name: [dict(row) for row in rows] for name, rows in expectations.KERNELS_BY_DESIGN.items()}


def coded(
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
    rows = expectations.DEVICE_CODE_HOLES.get(subject, ())
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
            "by_design": [dict(row) for row in expectations.KERNELS_BY_DESIGN.get(subject, ())],
            "holes": [dict(row) for row in rows if row["cuda"] == image.wheel_cuda.major],
            "depth": depth,
        },
    )


def _number(arch: Arch) -> int:
    return arch.major * 10 + arch.minor


def _cpu(image: Image, facts: Facts) -> Iterator[Claim]:
    # The longest probes first: the suite starts them in this order, and waits for the last.
    yield from _imports(image)
    for pin in image.pins:
        if expect := _native(image, pin, facts):
            yield Claim(
                id="C2",
                subject=pin.name,
                tier=Tier.CPU,
                probe="cpu.native",
                promise=f"{pin.name} {pin.version} loads {', '.join(expect['libraries'])}",
                expect=expect,
            )
    yield from _compilers(image)
    yield from _at_work(image)
    if all(image.pin(name) for name in _C10_NEEDS):
        yield from _tiny_llama()


def _imports(image: Image) -> Iterator[Claim]:
    """C1 of each pinned library, and of all together in the reverse of their order in the image."""
    modules = {
        pin.name: list(expectations.IMPORTED.get(pin.name, _modules(pin.name)))
        for pin in image.pins
        if pin.name not in expectations.NOT_IMPORTED
    }
    required = [name for name in modules if not _is_optional(image, name) and f"C1 {name}" not in image.beyond_proof]
    modules["all"] = [module for name in reversed(required) for module in modules[name]]
    for subject, names in modules.items():
        yield Claim(
            id="C1",
            subject=subject,
            tier=Tier.CPU,
            probe="cpu.imports",
            promise=f"importing {subject} works in either order with torch, and nothing complains",
            expect={
                "modules": names,
                "first": subject not in expectations.IMPORT_TORCH_FIRST,
                "after": subject not in ("torch", "all"),
                "complaints": list(expectations.COMPLAINTS),
                "harmless": dict(expectations.HARMLESS),
            },
        )


def _is_optional(image: Image, name: str) -> bool:
    return any(pin.name == name and pin.optional for pin in image.pins)


def _at_work(image: Image) -> Iterator[Claim]:
    """C5 to C9: torch.compile, borders to other compiled code, threads, a user whom nobody knows, AVX-512."""
    left_out = {*expectations.NOT_IMPORTED, *(key.removeprefix("C1 ") for key in image.beyond_proof)}
    modules = [_modules(pin.name)[0] for pin in image.pins if pin.name not in left_out]
    optional = {_modules(pin.name)[0] for pin in image.pins if pin.optional}
    rows: list[tuple[str, str, str, str, Mapping[str, Any]]] = [
        (
            "C5",
            "torch.compile",
            "cpu.compile",
            "torch.compile generates a kernel for the CPU, and that kernel runs",
            {},
        ),
        ("C6", "numpy", "cpu.bridges", "torch and numpy share memory both ways", {}),
        (
            "C7",
            "threads",
            "cpu.threads",
            "torch computes with all cores, under one OpenMP runtime",
            {"modules": [name for name in modules if name not in optional], "apart": dict(expectations.OWN_OPENMP)},
        ),
        (
            "C8",
            "unknown user",
            "cpu.stranger",
            "it works for a user whom it does not know, on a read-only root, without a network",
            {"uid": STRANGER},
        ),
        (
            "C9",
            "avx512",
            "cpu.instructions",
            "no native code needs AVX-512 without asking for it",
            expectations.AVX512_NOISE,
        ),
    ]
    if image.pin("torchvision"):
        rows.append(("C6", "torchvision", "cpu.bridges", "torchvision's own operators work", {}))
    for id_, subject, probe, promise, expect in rows:
        yield Claim(id=id_, subject=subject, tier=Tier.CPU, probe=probe, promise=promise, expect=expect)


def _native(image: Image, pin: Pin, facts: Facts) -> dict[str, Any] | None:
    """What validate/probes/cpu/native.py loads of a distribution with compiled CUDA code; None: it has none."""
    if pin.name not in expectations.NATIVE:
        return None
    common = {"modules": [pin.name], "loading": "import", "cuda_major": image.wheel_cuda.major, "symbols": []}
    own = _bitsandbytes_library(image, pin, facts) if pin.name == "bitsandbytes" else {}
    return {**common, "operators": [], **expectations.NATIVE[pin.name], **own, **_older_operators(pin)}


def _older_operators(pin: Pin) -> dict[str, list[str]]:
    since, operators = expectations.OPERATORS_BEFORE.get(pin.name, ("", ()))
    return {"operators": [*operators]} if since and Version(pin.version) < Version(since) else {}


def _bitsandbytes_library(image: Image, pin: Pin, facts: Facts) -> dict[str, Any]:
    """The library that this release's own lookup rule takes."""
    return {
        "libraries": [facts.bitsandbytes[pin.version].file_for(image.wheel_cuda)],
        "selection": {"cuda": str(image.wheel_cuda)},
    }


def _compilers(image: Image) -> Iterator[Claim]:
    yield Claim(
        id="C3",
        subject="c-extension",
        tier=Tier.CPU,
        probe="cpu.compiler",
        promise="a C extension compiles against Python.h and imports",
    )
    triton = image.pin("triton")
    if triton is None:
        return
    yield Claim(
        id="C3",
        subject="triton-launcher",
        tier=Tier.CPU,
        probe="cpu.compiler",
        promise="Triton compiles its launcher with the image's compiler",
    )
    for arch in _triton_archs(image, triton):
        yield Claim(
            id="C4",
            subject=str(arch),
            tier=Tier.CPU,
            probe="cpu.triton",
            promise=f"Triton compiles for {arch}",
            expect={
                "arch": arch.major * 10 + arch.minor,
                "bogus": _BOGUS_ARCH,
                "kernels": ["softmax", "matmul"] if arch >= _DOT_FLOOR else ["softmax"],
            },
        )


def _triton_archs(image: Image, triton: Pin) -> Iterator[Arch]:
    old = Version(triton.version) < Version("3.2")
    for arch in image.archs:
        if arch >= _TRITON_FLOOR and not (old and arch > _TRITON_31_CEILING):
            yield arch


def _tiny_llama() -> Iterator[Claim]:
    texts = {
        "fp32": "a tiny Llama in float32 computes what plain float64 arithmetic does",
        "nf4-weights": "loading in 4-bit stores every projection as NF4: uint8, a quarter of bfloat16, the right error",
        "nf4-logits": "the 4-bit model computes what its dequantised weights say",
        "lora-step": "one LoRA step on the 4-bit model moves B and leaves the base alone",
    }
    for subject, promise in texts.items():
        yield Claim(
            id="C10",
            subject=subject,
            tier=Tier.CPU,
            probe="cpu.quantized_llama",
            promise=promise,
            expect=_NF4 if subject == "nf4-weights" else {},
        )
