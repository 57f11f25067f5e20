"""Claims of the cpu tier: C1 to C10, C12; home.py has C11. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias, cast

from packaging.version import Version

from images.config.facts import Facts
from images.config.names import Arch
from images.config.platforms import Platform
from images.planning import expectations, extensions
from images.planning.image import Image, Pin
from images.validation.claims.context import ClaimContext
from images.validation.claims.home import home_claims
from validate.claims import ARBITRARY_UID, Claim, Tier
from validate.evidence import NothingExpected
from validate.harness import nf4

if TYPE_CHECKING:
    from validate.checks.cpu.arbitrary_uid import ArbitraryUidExpect
    from validate.checks.cpu.bytecode import BytecodeExpect
    from validate.checks.cpu.imports import ImportsExpect
    from validate.checks.cpu.instructions import InstructionsExpect
    from validate.checks.cpu.native import NativeExpect
    from validate.checks.cpu.threads import ThreadsExpect
    from validate.checks.cpu.triton import TritonExpect
    from validate.harness.nf4 import QuantiserExpect

_TRITON_MINIMUM = Arch(7, 0)
"""torch.compile and Triton refuse older GPUs at run time (torch/utils/_triton.py, triton's README)."""
_TRITON_31_MAXIMUM = Arch(9, 0)
_DOT_MINIMUM = Arch(8, 0)
"""Triton 3.3.1 compiles no fp16 matrix product below sm_80."""
_BOGUS_ARCH = 999
_Expect: TypeAlias = "NothingExpected | ThreadsExpect | ArbitraryUidExpect | InstructionsExpect"
QUANTISED_LLAMA_NEEDS = ("torch", "transformers", "bitsandbytes", "peft", "accelerate", "safetensors")


def cpu_claims(context: ClaimContext) -> Iterator[Claim]:
    image, facts = context.image, context.facts
    # The longest probes first: the suite starts them in this order, and waits for the last.
    yield _bytecode(context)
    yield from _imports(image)
    for pin in image.pins:
        if expect := _native(image, pin, facts):
            yield Claim(
                id="C2",
                subject=pin.name,
                tier=Tier.CPU,
                probe="cpu.native",
                statement=f"{pin.name} {pin.version} loads {', '.join(expect['libraries'])}",
                expect=expect,
            )
    yield from _extensions(context)
    yield from _compilers(image)
    yield from _at_work(image)
    yield from home_claims(context)
    if all(image.pin(name) for name in QUANTISED_LLAMA_NEEDS):
        yield from _tiny_llama()


def _imports(image: Image) -> Iterator[Claim]:
    """C1 of each pinned library, and of all together in the reverse of their order in the image."""
    modules = {
        pin.name: list(expectations.IMPORTED.get(pin.name, expectations.modules_of(pin.name)))
        for pin in image.pins
        if pin.name not in expectations.NOT_IMPORTED
    }
    required = [name for name in modules if not _is_optional(image, name) and f"C1 {name}" not in image.unproven]
    modules["all"] = [module for name in reversed(required) for module in modules[name]]
    for subject, names in modules.items():
        expect: ImportsExpect = {
            "modules": names,
            "first": subject not in expectations.IMPORT_TORCH_FIRST,
            "after": subject not in ("torch", "all"),
            "complaints": list(expectations.COMPLAINTS),
            "harmless": dict(expectations.HARMLESS),
        }
        yield Claim(
            id="C1",
            subject=subject,
            tier=Tier.CPU,
            probe="cpu.imports",
            statement=f"importing {subject} works in either order with torch, and nothing complains",
            expect=expect,
        )


def _is_optional(image: Image, name: str) -> bool:
    return any(pin.name == name and pin.optional for pin in image.pins)


def _at_work(image: Image) -> Iterator[Claim]:
    """C5 to C9: torch.compile, borders to other compiled code, threads, a user whom nobody knows, AVX-512."""
    left_out = {*expectations.NOT_IMPORTED, *(key.removeprefix("C1 ") for key in image.unproven)}
    modules = [expectations.modules_of(pin.name)[0] for pin in image.pins if pin.name not in left_out]
    optional = {expectations.modules_of(pin.name)[0] for pin in image.pins if pin.optional}
    rows: list[tuple[str, str, str, str, _Expect]] = [
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
            {
                "modules": [name for name in modules if name not in optional],
                "bundled": dict(expectations.BUNDLED_OPENMP),
            },
        ),
        (
            "C8",
            "arbitrary UID",
            "cpu.arbitrary_uid",
            "it works for a user whom it does not know, on a read-only root, without a network",
            {"uid": ARBITRARY_UID},
        ),
        _vector_code(image.platform),
    ]
    if image.pin("torchvision"):
        rows.append(("C6", "torchvision", "cpu.bridges", "torchvision's own operators work", {}))
    for id_, subject, probe, statement, expect in rows:
        yield Claim(id=id_, subject=subject, tier=Tier.CPU, probe=probe, statement=statement, expect=expect)


def _vector_code(platform: Platform) -> tuple[str, str, str, str, _Expect]:
    if platform is Platform.AMD64:
        subject, name, noise = "avx512", "AVX-512", expectations.AVX512_NOISE
    else:
        subject, name, noise = "sve", "SVE", expectations.SVE_NOISE
    return "C9", subject, "cpu.instructions", f"no native code needs {name} without asking for it", noise


def _native(image: Image, pin: Pin, facts: Facts) -> NativeExpect | None:
    """What validate/checks/cpu/native.py loads of a distribution with compiled CUDA code; None: it has none."""
    if pin.name not in expectations.NATIVE or _has_no_library(pin, facts):
        return None
    common = {"modules": [pin.name], "loading": "import", "cuda_major": image.wheel_cuda.major, "symbols": []}
    own = _bitsandbytes_library(image, pin, facts) if pin.name == "bitsandbytes" else {}
    expect = {**common, "operators": [], **expectations.NATIVE[pin.name], **own, **_older_operators(pin)}
    return cast("NativeExpect", expect)


def _has_no_library(pin: Pin, facts: Facts) -> bool:
    """torchao's wheel for any machine is pure Python."""
    row = facts.torchao.get(pin.version) if pin.name == "torchao" else None
    return row is not None and row.cuda_major is None


def _bytecode(context: ClaimContext) -> Claim:
    """C12. What was found right once needs no second look: the same bytecode, of sources that the same lock has."""
    lock = context.lock
    expect: BytecodeExpect = {
        "known": {
            package.name: sorted(digests)
            for package in (lock.packages() if lock else ())
            if (digests := {one for file in package.hashes for one in lock.bytecode(file)} if lock else set())
        }
    }
    return Claim(
        id="C12",
        subject="bytecode",
        tier=Tier.CPU,
        probe="cpu.bytecode",
        statement="every file of bytecode is what its source compiles to",
        expect=expect,
    )


def _extensions(context: ClaimContext) -> Iterator[Claim]:
    """C2 of extensions that were compiled for the image."""
    for pin in context.image.pins:
        if not (pin.extensions and (row := extensions.EXTENSIONS.get(pin.name))):
            continue
        lacking = context.without_extensions(pin)
        expect: NativeExpect = {
            "modules": row["modules"],
            "loading": "import",
            "cuda_major": context.image.wheel_cuda.major,
            "symbols": [],
            "operators": [],
            "libraries": [*row["gpu"], *row["cpu"]],
        }
        yield Claim(
            id="C2",
            subject=pin.name,
            tier=Tier.CPU,
            probe="cpu.native",
            statement=f"{pin.name} {pin.version} loads {', '.join(expect['libraries'])}",
            expect=expect,
            required=not lacking,
            unproven=lacking,
        )


def _older_operators(pin: Pin) -> dict[str, list[str]]:
    since, operators = expectations.OPERATORS_BEFORE.get(pin.name, ("", ()))
    return {"operators": [*operators]} if since and Version(pin.version) < Version(since) else {}


def _bitsandbytes_library(image: Image, pin: Pin, facts: Facts) -> dict[str, object]:
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
        statement="a C extension compiles against Python.h and imports",
    )
    triton = image.pin("triton")
    if triton is None:
        return
    yield Claim(
        id="C3",
        subject="triton-launcher",
        tier=Tier.CPU,
        probe="cpu.compiler",
        statement="Triton compiles its launcher with the image's compiler",
    )
    for arch in _triton_archs(image, triton):
        expect: TritonExpect = {
            "arch": arch.major * 10 + arch.minor,
            "bogus": _BOGUS_ARCH,
            "kernels": ["softmax", "matmul"] if arch >= _DOT_MINIMUM else ["softmax"],
        }
        yield Claim(
            id="C4",
            subject=str(arch),
            tier=Tier.CPU,
            probe="cpu.triton",
            statement=f"Triton compiles for {arch}",
            expect=expect,
        )


def _triton_archs(image: Image, triton: Pin) -> Iterator[Arch]:
    old = Version(triton.version) < Version("3.2")
    for arch in image.archs:
        if arch >= _TRITON_MINIMUM and not (old and arch > _TRITON_31_MAXIMUM):
            yield arch


def _tiny_llama() -> Iterator[Claim]:
    texts = {
        "fp32": "a tiny Llama in float32 computes what plain float64 arithmetic does",
        "nf4-weights": "loading in 4-bit stores every projection as NF4: uint8, a quarter of bfloat16, the right error",
        "nf4-logits": "the 4-bit model computes what its dequantised weights say",
        "lora-step": "one LoRA step on the 4-bit model moves B and leaves the base alone",
    }
    for subject, statement in texts.items():
        expect: QuantiserExpect | NothingExpected = nf4.EXPECTED if subject == "nf4-weights" else {}
        yield Claim(
            id="C10",
            subject=subject,
            tier=Tier.CPU,
            probe="cpu.quantized_llama",
            statement=statement,
            expect=expect,
        )
