"""The claims of the cpu tier: what the image's code does without a GPU.

Nothing here reads a file or asks an engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from images.config.names import Arch
from images.config.platforms import Platform
from images.planning import expectations, user_overlay
from images.planning.image import Image, Pin
from images.validation.claims.context import BOGUS_ARCH, ClaimContext, claim, silent_claims
from validate.claims import ARBITRARY_UID, Claim, Tier
from validate.harness import nf4

if TYPE_CHECKING:
    from validate.checks.cpu.additions import AdditionsExpect
    from validate.checks.cpu.home import HomeExpect
    from validate.checks.cpu.imports import ImportExpect
    from validate.checks.cpu.threads import ThreadsExpect

_TRITON_MINIMUM = Arch(7, 0)
"""torch.compile and Triton refuse older GPUs at run time (torch/utils/_triton.py, triton's
README)."""
_TRITON_31_MAXIMUM = Arch(9, 0)
"""The newest GPU that Triton before 3.2 compiles for."""
_MATMUL_MINIMUM = Arch(8, 0)
"""Triton 3.3.1 compiles no fp16 matrix product below sm_80."""

_FLASH_ATTN_4_FORWARD, _FLASH_ATTN_4_BACKWARD = Arch(8, 0), Arch(9, 0)
"""The oldest GPUs of its kernels: flash-attn-4 4.0.0b36, flash_attn/cute/interface.py: the
assertions of _flash_attn_fwd and _flash_attn_bwd."""

_QUANTISED_LLAMA_NEEDS = (
    "torch",
    "transformers",
    "bitsandbytes",
    "peft",
    "accelerate",
    "safetensors",
)
_QUANTISED_LLAMA = {
    "weights": (
        "loading in 4-bit stores every projection as NF4:"
        " uint8, a quarter of bfloat16, the right error"
    ),
    "logits": "the 4-bit model computes what its dequantised weights say",
    "lora-step": "one LoRA step on the 4-bit model moves B and leaves the base alone",
}
"""4bit-llama: subject -> statement."""


def cpu_claims(context: ClaimContext) -> Iterator[Claim]:
    """Yield all claims about an image that are measured by running it without a GPU (the cpu tier).

    They are measured in this order, several at a time. Those that take longest come first.
    """
    image = context.image
    yield from import_claims(image)
    yield from native_claims(context)
    yield from triton_claims(image)
    yield from flash_attn_4_claims(image)
    yield from operation_claims(context)
    yield from user_folder_claims(image)
    yield additions_claim(context)
    yield from quantised_llama_claims(
        context, "4bit-llama", "cpu.quantized_llama", _QUANTISED_LLAMA
    )
    if image.pin("transformers") and image.pin("accelerate"):
        statement = "transformers' Trainer saves a run, and resumes it to the same weights"
        yield claim("resume", "trainer", "cpu.resume", statement)
    yield from silent_claims(context, Tier.CPU)
    yield from allocator_claims(image)


def import_claims(image: Image) -> Iterator[Claim]:
    """Yield the claims `imports`: one for each pinned package, and one for all of them together.

    The package that is imported first decides which libraries a process holds. So each package is
    imported in two orders: before torch, in a new process, and after torch.
    """
    modules_by_subject: dict[str, list[str]] = {}
    for pin in image.pins:
        if pin.name not in expectations.NOT_IMPORTED:
            default = expectations.modules_of(pin.name)
            modules_by_subject[pin.name] = list(expectations.IMPORTED.get(pin.name, default))

    # `all`: in the reverse of the order in which the image installs them, so torch comes late.
    # Packages that the image may lack, or whose import is known to fail, are left out.
    imported_together = []
    for pin in reversed(image.pins):
        is_left_out = pin.optional or f"imports/{pin.name}" in image.unproven
        if pin.name in modules_by_subject and not is_left_out:
            imported_together += modules_by_subject[pin.name]
    modules_by_subject["all"] = imported_together

    for subject, modules in modules_by_subject.items():
        expect: ImportExpect = {
            "modules": modules,
            # Some packages begin with `import torch` themselves: both orders are the same to them.
            "first": subject not in expectations.IMPORT_TORCH_FIRST,
            "after": subject not in ("torch", "all"),
            "complaints": list(expectations.COMPLAINTS),
            "harmless": dict(expectations.HARMLESS),
        }
        statement = f"importing {subject} works in either order with torch, and nothing complains"
        yield claim("imports", subject, "cpu.imports", statement, expect)


def native_claims(context: ClaimContext) -> Iterator[Claim]:
    """Yield a claim for each package with compiled code that Python can load it, and for cuDNN."""
    image = context.image
    for pin in image.pins:
        if has_native_code(context, pin):
            # Only facts.yaml says which of its libraries bitsandbytes loads.
            unknown = context.reason_unknown(pin) if pin.name == "bitsandbytes" else ""
            yield native_claim(pin, native_expectation(context, pin), lacking=unknown)

    # The lock has some packages as pure Python, and their extensions are compiled here. If nobody
    # has compiled them for this image, the claim is unproven (`lacking`).
    for pin in image.pins:
        extensions = expectations.EXTENSIONS.get(pin.name)
        if pin.extension_source and extensions:
            expect = extension_expectation(image, extensions)
            yield native_claim(pin, expect, lacking=context.reason_without_extensions(pin))

    # The cuDNN that the lock installs with torch, in the layer `torch`.
    for distribution, version in context.locked.get("torch", {}).items():
        if distribution.startswith("nvidia-cudnn-cu"):
            statement = f"torch runs with {distribution} {version}"
            yield claim("native", "cudnn", "cpu.cudnn", statement, {"version": version})


def has_native_code(context: ClaimContext, pin: Pin) -> bool:
    """Return whether expectations.yaml lists libraries that this package loads."""
    if pin.name == "torchao":
        facts = context.facts.torchao.get(pin.version)
        # torchao's wheel for any machine is pure Python.
        if facts and facts.cuda_major is None:
            return False
    return pin.name in expectations.NATIVE


def native_expectation(context: ClaimContext, pin: Pin) -> dict[str, Any]:
    """Return what a package with native code must load, and how.

    The keys are those of NativeExpect (validate/checks/cpu/native.py). `pin`: one for
    which `has_native_code` is true.
    """
    image = context.image
    # The row of the package in expectations.yaml replaces defaults.
    expect: dict[str, Any] = {
        "modules": [pin.name],
        **native_defaults(image),
        **expectations.NATIVE[pin.name],
    }
    if pin.name == "bitsandbytes":
        # bitsandbytes has a library for each CUDA version, and chooses one by a rule of its own.
        facts = context.facts.bitsandbytes.get(pin.version)
        library = facts.file_for(image.wheel_cuda) if facts else "bitsandbytes/libbitsandbytes_*.so"
        expect["libraries"] = [library]
        expect["selection"] = {"cuda": str(image.wheel_cuda)}
    if pin.name in expectations.OPERATORS_BEFORE:
        # Older releases lack the operators of the row, and have these.
        first_version, older_operators = expectations.OPERATORS_BEFORE[pin.name]
        if Version(pin.version) < Version(first_version):
            expect["operators"] = list(older_operators)
    return expect


def extension_expectation(image: Image, extensions: Mapping[str, Any]) -> dict[str, Any]:
    """Return what must load of extensions that were compiled for the image.

    `extensions`: a row of expectations.yaml, with modules and libraries.
    """
    return {
        "modules": extensions["modules"],
        **native_defaults(image),
        "libraries": [*extensions["gpu"], *extensions["cpu"]],
    }


def native_defaults(image: Image) -> dict[str, Any]:
    """Return the part of the expectation that holds for most packages with native code."""
    return {
        "loading": "import",
        "cuda_major": image.wheel_cuda.major,
        "symbols": [],
        "operators": [],
    }


def native_claim(pin: Pin, expect: Mapping[str, Any], lacking: str = "") -> Claim:
    """Return the claim that a package loads its libraries.

    `lacking` says why the image goes without them, or why they are not known. With such a reason
    the claim is unproven and not required.
    """
    statement = f"{pin.name} {pin.version} loads {', '.join(expect['libraries'])}"
    return claim(
        "native",
        pin.name,
        "cpu.native",
        statement,
        expect,
        required=not lacking,
        unproven=lacking,
    )


def triton_claims(image: Image) -> Iterator[Claim]:
    """Yield the claims that Triton builds its launcher, and compiles for each GPU of the image."""
    triton = image.pin("triton")
    if triton is None:
        return
    statement = "Triton compiles its launcher with the image's compiler"
    yield claim("compiler", "triton-launcher", "cpu.compiler", statement)

    is_before_32 = Version(triton.version) < Version("3.2")
    for arch in image.archs:
        is_too_new = is_before_32 and arch > _TRITON_31_MAXIMUM
        if arch < _TRITON_MINIMUM or is_too_new:
            continue
        kernels = ["softmax", "matmul"] if arch >= _MATMUL_MINIMUM else ["softmax"]
        expect = compilation_expectation(arch, kernels)
        yield claim("triton", str(arch), "cpu.triton", f"Triton compiles for {arch}", expect)


def flash_attn_4_claims(image: Image) -> Iterator[Claim]:
    """Yield the claims that flash-attn-4 compiles its kernels for the GPUs that they support."""
    if not image.pin("flash-attn-4") or not image.pin("triton"):
        return
    for arch in image.archs:
        if arch < _FLASH_ATTN_4_FORWARD:
            continue
        kernels = ["flash_fwd"]
        if arch >= _FLASH_ATTN_4_BACKWARD:
            kernels.append("flash_bwd")
        expect = compilation_expectation(arch, kernels)
        statement = f"flash-attn-4's {' and '.join(kernels)} compile for {arch}"
        yield claim("flash-attn-4", str(arch), "cpu.flash_attn_4", statement, expect)


def compilation_expectation(arch: Arch, kernels: list[str]) -> dict[str, Any]:
    """Return what a compiler must do: compile these kernels for a GPU, and refuse BOGUS_ARCH."""
    return {"arch": arch.major * 10 + arch.minor, "bogus": BOGUS_ARCH, "kernels": kernels}


def operation_claims(context: ClaimContext) -> Iterator[Claim]:
    """Yield the claims that torch works on a CPU with other packages, and for every user.

    They are about torch.compile, threads, an unknown user and vector instructions.
    """
    image = context.image
    statement = "torch.compile generates a kernel for the CPU, and that kernel runs"
    yield claim("compile", "cpu", "cpu.compile", statement)

    statement = "torch computes with all cores, under one OpenMP runtime"
    threads: ThreadsExpect = {
        "modules": modules_beside_torch(image),
        # OpenMP runtimes of packages that torch never calls.
        "bundled": dict(expectations.BUNDLED_OPENMP),
    }
    yield claim("threads", "openmp", "cpu.threads", statement, threads)

    statement = "it works for a user whom it does not know, on a read-only root, without a network"
    yield claim("users", "arbitrary-uid", "cpu.arbitrary_uid", statement, {"uid": ARBITRARY_UID})

    # Instructions that some processors of the platform lack.
    if image.name.platform is Platform.AMD64:
        subject, instructions = "avx512", "AVX-512"
    else:
        subject, instructions = "sve", "SVE"
    statement = f"no native code needs {instructions} without asking for it"
    yield claim("instructions", subject, "cpu.instructions", statement)


def modules_beside_torch(image: Image) -> list[str]:
    """Return the main module of each package, in the image's order, to import them beside torch.

    Packages that the image may lack, and those whose import is known to fail, are left out.
    """
    # Keys are claims (`imports/unsloth`) or checks, each with the reason why it can't hold.
    failing = {key.removeprefix("imports/") for key in image.unproven}
    modules = []
    for pin in image.pins:
        is_left_out = pin.optional or pin.name in expectations.NOT_IMPORTED or pin.name in failing
        if not is_left_out:
            modules.append(expectations.modules_of(pin.name)[0])
    return modules


def user_folder_claims(image: Image) -> Iterator[Claim]:
    """Yield the claims that users can write to the cache folder, one for each way to mount it.

    expectations.yaml has a row for each way: which user and group run the container, what is
    mounted on the folder, and whether it must be writable.
    """
    # Variables that name folders below it, such as HF_HOME. They must have these values for every
    # user.
    caches = {}
    for name, value in user_overlay.variables(image).items():
        if value.startswith(user_overlay.CACHE):
            caches[name] = value
    # IDs of users and of their groups: the image's own user, one that the image does not know, and
    # root.
    ids = {"own": user_overlay.USER, "any": ARBITRARY_UID, "root": 0}
    for subject, home in expectations.HOMES.items():
        # User and group are keys of `ids`.
        user, group = home["who"]
        expect: HomeExpect = {
            "uid": ids[user],
            "gid": ids[group],
            "mount": home["mount"],
            "folder": user_overlay.CACHE,
            "caches": caches,
            "writable": home["writable"],
        }
        yield claim("users", subject, "cpu.home", home["statement"], expect)


def additions_claim(context: ClaimContext) -> Claim:
    """Return the claim that a user can add packages with pip, and that none of them moves torch.

    The check tries it as a user whom the image does not know.
    """
    image = context.image
    # The first layer is torch's.
    locked_with_torch = context.locked.get(image.layers[0], {})
    expect: AdditionsExpect = {
        "uid": ARBITRARY_UID,
        "gid": ARBITRARY_UID,
        "folder": user_overlay.CACHE,
        "mount": "volume",
        # The versions that pip is made to keep, by constraints that the image brings.
        "held": user_overlay.held_versions(image, locked_with_torch, context.missing),
    }
    statement = (
        "a user without root adds a package with pip, and none that wants another torch moves it"
    )
    return claim("additions", "pip", "cpu.additions", statement, expect)


def quantised_llama_claims(
    context: ClaimContext, check: str, probe: str, statements: Mapping[str, str], unproven: str = ""
) -> Iterator[Claim]:
    """Yield claims about training a tiny Llama in 4-bit, if all packages for it are pinned.

    `check`: `4bit-llama` on the CPU, `qlora` on a GPU. `statements`: the statement of each subject.
    `unproven`: why none of them can be measured; empty: they can.
    """
    if not all(context.image.pin(name) for name in _QUANTISED_LLAMA_NEEDS):
        return
    for subject, statement in statements.items():
        # Only the claim on weights expects figures: NF4's block size and its published error.
        expect = nf4.EXPECTED if subject == "weights" else None
        yield claim(check, subject, probe, statement, expect, unproven=unproven)


def allocator_claims(image: Image) -> Iterator[Claim]:
    """Yield the claim that torch reads the allocator settings that the image's variables hold."""
    for name, settings in image.environment.items():
        # PYTORCH_CUDA_ALLOC_CONF, or PYTORCH_ALLOC_CONF for newer releases of torch.
        if name.endswith("_ALLOC_CONF"):
            expect = {
                "settings": settings,
                "expandable_segments": "expandable_segments:True" in settings,
            }
            statement = "torch's CUDA allocator has these settings"
            yield claim("allocator", "settings", "cpu.allocator", statement, {"equal": expect})
