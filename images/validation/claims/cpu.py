"""Claims of the cpu tier. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from packaging.version import Version

from images.config.names import Arch
from images.config.platforms import Platform
from images.planning import expectations, user_overlay
from images.planning.image import Image, Pin
from images.planning.user_overlay import USER
from images.validation.claims.context import BOGUS_ARCH, ClaimContext, claim, silent_claims
from validate.claims import ARBITRARY_UID, Claim, Tier
from validate.harness import nf4

_TRITON_MINIMUM = Arch(7, 0)
"""torch.compile and Triton refuse older GPUs at run time (torch/utils/_triton.py, triton's README)."""
_TRITON_31_MAXIMUM = Arch(9, 0)
_DOT_MINIMUM = Arch(8, 0)
"""Triton 3.3.1 compiles no fp16 matrix product below sm_80."""

_FLASH_ATTN_4_FORWARD, _FLASH_ATTN_4_BACKWARD = Arch(8, 0), Arch(9, 0)
"""flash-attn-4 4.0.0b36, flash_attn/cute/interface.py: the assertions of _flash_attn_fwd and _flash_attn_bwd."""

_QUANTISED_LLAMA_NEEDS = (
    "torch",
    "transformers",
    "bitsandbytes",
    "peft",
    "accelerate",
    "safetensors",
)
_QUANTISED_LLAMA = {
    "weights": "loading in 4-bit stores every projection as NF4: uint8, a quarter of bfloat16, the right error",
    "logits": "the 4-bit model computes what its dequantised weights say",
    "lora-step": "one LoRA step on the 4-bit model moves B and leaves the base alone",
}
"""4bit-llama: subject -> statement."""


def cpu_claims(context: ClaimContext) -> Iterator[Claim]:
    # The longest probes first: the suite starts them in this order, and waits for the last.
    image = context.image
    yield from _imports(image)
    yield from _native(context)
    yield from _compilers(image)
    yield from _at_work(context)
    yield from quantised_llama(context, "4bit-llama", "cpu.quantized_llama", _QUANTISED_LLAMA)
    if image.pin("transformers") and image.pin("accelerate"):
        resumes = "transformers' Trainer saves a run, and resumes it to the same weights"
        yield claim("resume", "trainer", "cpu.resume", resumes)
    yield from silent_claims(context, Tier.CPU)
    reads = "torch's CUDA allocator has these settings"
    for name, text in image.environment.items():
        if name.endswith("_ALLOC_CONF"):
            has = {"settings": text, "expandable_segments": "expandable_segments:True" in text}
            yield claim("allocator", "settings", "cpu.allocator", reads, {"equal": has})


def _imports(image: Image) -> Iterator[Claim]:
    """imports of each pinned library, and of all together in the reverse of their order in the image."""
    modules = {
        pin.name: list(expectations.IMPORTED.get(pin.name, expectations.modules_of(pin.name)))
        for pin in image.pins
        if pin.name not in expectations.NOT_IMPORTED
    }
    left_out = {
        pin.name for pin in image.pins if pin.optional or f"imports/{pin.name}" in image.unproven
    }
    modules["all"] = [
        module for name in reversed(modules) if name not in left_out for module in modules[name]
    ]
    for subject, names in modules.items():
        expect = {
            "modules": names,
            "first": subject not in expectations.IMPORT_TORCH_FIRST,
            "after": subject not in ("torch", "all"),
            "complaints": list(expectations.COMPLAINTS),
            "harmless": dict(expectations.HARMLESS),
        }
        statement = f"importing {subject} works in either order with torch, and nothing complains"
        yield claim("imports", subject, "cpu.imports", statement, expect)


def _native(context: ClaimContext) -> Iterator[Claim]:
    """native: compiled CUDA code loads, of distributions, and of extensions that were compiled for the image."""
    image, facts = context.image, context.facts
    common: dict[str, Any] = {
        "loading": "import",
        "cuda_major": image.wheel_cuda.major,
        "symbols": [],
        "operators": [],
    }
    loads: list[tuple[Pin, dict[str, Any], str]] = []
    for pin in image.pins:
        torchao = facts.torchao.get(pin.version) if pin.name == "torchao" else None
        # torchao's wheel for any machine is pure Python.
        if pin.name not in expectations.NATIVE or (torchao and torchao.cuda_major is None):
            continue
        row: Mapping[str, Any] = expectations.NATIVE[pin.name]
        expect = {"modules": [pin.name], **common, **row}
        if pin.name == "bitsandbytes":  # the library that this release's own lookup rule takes
            expect["libraries"] = [facts.bitsandbytes[pin.version].file_for(image.wheel_cuda)]
            expect["selection"] = {"cuda": str(image.wheel_cuda)}
        since, older = expectations.OPERATORS_BEFORE.get(pin.name, ("", ()))
        if since and Version(pin.version) < Version(since):
            expect["operators"] = [*older]
        loads.append((pin, expect, ""))
    for pin in image.pins:
        if pin.extensions and (compiled := expectations.EXTENSIONS.get(pin.name)):
            libraries = [*compiled["gpu"], *compiled["cpu"]]
            expect = {"modules": compiled["modules"], **common, "libraries": libraries}
            loads.append((pin, expect, context.without_extensions(pin)))
    for pin, expect, lacking in loads:
        statement = f"{pin.name} {pin.version} loads {', '.join(expect['libraries'])}"
        yield claim(
            "native",
            pin.name,
            "cpu.native",
            statement,
            expect,
            required=not lacking,
            unproven=lacking,
        )
    for name, version in context.locked.get("torch", {}).items():
        if name.startswith("nvidia-cudnn-cu"):
            yield claim(
                "native",
                "cudnn",
                "cpu.cudnn",
                f"torch runs with {name} {version}",
                {"version": version},
            )


def _compilers(image: Image) -> Iterator[Claim]:
    """compiler, triton and flash-attn-4."""
    triton = image.pin("triton")
    if triton is None:
        return
    yield claim(
        "compiler",
        "triton-launcher",
        "cpu.compiler",
        "Triton compiles its launcher with the image's compiler",
    )
    old = Version(triton.version) < Version("3.2")
    for arch in image.archs:
        if arch < _TRITON_MINIMUM or (old and arch > _TRITON_31_MAXIMUM):
            continue
        kernels = ["softmax", "matmul"] if arch >= _DOT_MINIMUM else ["softmax"]
        expect = {"arch": arch.major * 10 + arch.minor, "bogus": BOGUS_ARCH, "kernels": kernels}
        yield claim("triton", str(arch), "cpu.triton", f"Triton compiles for {arch}", expect)
    for arch in image.archs if image.pin("flash-attn-4") else ():
        if arch >= _FLASH_ATTN_4_FORWARD:
            kernels = (
                ["flash_fwd", "flash_bwd"] if arch >= _FLASH_ATTN_4_BACKWARD else ["flash_fwd"]
            )
            expect = {"arch": arch.major * 10 + arch.minor, "bogus": BOGUS_ARCH, "kernels": kernels}
            statement = f"flash-attn-4's {' and '.join(kernels)} compile for {arch}"
            yield claim("flash-attn-4", str(arch), "cpu.flash_attn_4", statement, expect)


def _at_work(context: ClaimContext) -> Iterator[Claim]:
    """compile, bridges, threads, users, instructions: torch.compile, borders to other compiled code, threads, a user
    whom nobody knows, AVX-512.

    Of that user also each kind of mount on the caches' folder, and `additions` for packages that are added there.
    """
    image, folder = context.image, user_overlay.CACHE
    left_out = {
        *expectations.NOT_IMPORTED,
        *(key.removeprefix("imports/") for key in image.unproven),
    }
    modules = [
        expectations.modules_of(pin.name)[0] for pin in image.pins if pin.name not in left_out
    ]
    optional = {expectations.modules_of(pin.name)[0] for pin in image.pins if pin.optional}
    compiles = "torch.compile generates a kernel for the CPU, and that kernel runs"
    yield claim("compile", "cpu", "cpu.compile", compiles)
    yield claim("bridges", "numpy", "cpu.bridges", "torch and numpy share memory both ways")
    together = [name for name in modules if name not in optional]
    threads = {"modules": together, "bundled": dict(expectations.BUNDLED_OPENMP)}
    yield claim(
        "threads",
        "openmp",
        "cpu.threads",
        "torch computes with all cores, under one OpenMP runtime",
        threads,
    )
    unknown = "it works for a user whom it does not know, on a read-only root, without a network"
    yield claim("users", "arbitrary-uid", "cpu.arbitrary_uid", unknown, {"uid": ARBITRARY_UID})
    if image.name.platform is Platform.AMD64:
        subject, name = "avx512", "AVX-512"
    else:
        subject, name = "sve", "SVE"
    yield claim(
        "instructions",
        subject,
        "cpu.instructions",
        f"no native code needs {name} without asking for it",
    )
    if image.pin("torchvision"):
        yield claim("bridges", "torchvision", "cpu.bridges", "torchvision's own operators work")

    caches = {
        name: value
        for name, value in user_overlay.variables(image).items()
        if value.startswith(folder)
    }
    ids = {"own": USER, "any": ARBITRARY_UID, "root": 0}
    for subject, row in expectations.HOMES.items():
        uid, gid = (ids[who] for who in row["who"])
        mounted = {
            "mount": row["mount"],
            "folder": folder,
            "caches": caches,
            "writable": row["writable"],
        }
        yield claim(
            "users", subject, "cpu.home", row["statement"], {"uid": uid, "gid": gid, **mounted}
        )
    held = user_overlay.held(image, context.locked.get(image.layers[0], {}), context.missing)
    added = {
        "uid": ARBITRARY_UID,
        "gid": ARBITRARY_UID,
        "folder": folder,
        "mount": "volume",
        "held": held,
    }
    statement = (
        "a user without root adds a package with pip, and none that wants another torch moves it"
    )
    yield claim("additions", "pip", "cpu.additions", statement, added)


def quantised_llama(
    context: ClaimContext, check: str, probe: str, statements: Mapping[str, str], unproven: str = ""
) -> Iterator[Claim]:
    """Write `4bit-llama` or `qlora`, a tiny Llama in 4-bit, where everything for it is pinned."""
    if not all(context.image.pin(name) for name in _QUANTISED_LLAMA_NEEDS):
        return
    for subject, statement in statements.items():
        expect = nf4.EXPECTED if subject == "weights" else None
        yield claim(check, subject, probe, statement, expect, unproven=unproven)
