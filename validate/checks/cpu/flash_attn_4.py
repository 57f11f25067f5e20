"""flash-attn-4: check that flash-attn-4 compiles for the image's GPUs, without having one.

It has no compiled code: nvidia-cutlass-dsl compiles it at a user's first step, and where it can't,
that step fails. Forward and backward compile for each architecture without a GPU.
"""

import importlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, cast

from validate.binaries.cubin import EM_CUDA, cubin_facts
from validate.checks import Settings
from validate.claims import Claim
from validate.harness.forked import half_of_the_cores, measure_in_forks
from validate.judging import PROVES_NOTHING, Finding, failed, joined, passed, root_cause
from validate.next_steps import CHECK_FAILED, pin

SETTINGS = Settings(begins_with_torch=True)

_SHAPE = {"query": (2, 256, 4, 64), "key": (2, 256, 2, 64), "value": (2, 256, 2, 64)}
"""(batch, length, heads, dimensions of a head). Two query heads share a key head, as in most
models."""
_CONTROL_KERNEL = 90
"""The kernel of the control: Hopper's, so that only the architecture to compile for is wrong."""


class FlashAttn4Expect(TypedDict):
    """What is compiled for one architecture."""

    arch: int  # compute capability without the dot: 90 for sm_90
    bogus: int  # an architecture that does not exist
    kernels: Sequence[str]  # parts of the names of the files that must be compiled


class Cubin(TypedDict):
    """A compiled kernel."""

    bytes: int  # its size
    machine: int | None  # of the ELF header: EM_CUDA
    arch: int | None  # that it is for


class Compiled(TypedDict, total=False):
    """What was compiled for an architecture. If that failed, only `error` is there."""

    cubins: Mapping[str, Cubin]  # by file name
    compile_seconds: float
    error: dict[str, Any]


class FlashAttn4Evidence(TypedDict):
    """What `measure` yields for an architecture."""

    compiled: Compiled
    control: Compiled  # for the architecture that does not exist


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, FlashAttn4Evidence]]:
    """Compile flash-attn-4's kernels for the GPU architecture of each claim, without a GPU.

    Yields the subject of the claim and what was compiled. Each is compiled in a fork that has
    imported torch, because the compiler reads its architecture when it is imported. The evidence
    also has a control: kernels for an architecture that does not exist, which must fail to compile.
    """
    importlib.import_module("torch")
    # The control comes first, at index 0, and the claims follow from index 1 on.
    bogus = claims[0].expect["bogus"]
    compilations = [
        partial(compile_kernels, kernel_arch=_CONTROL_KERNEL, target=bogus, backward=False)
    ]
    for claim in claims:
        arch = claim.expect["arch"]
        has_backward = "flash_bwd" in claim.expect["kernels"]
        compilations.append(
            partial(compile_kernels, kernel_arch=arch, target=arch, backward=has_backward)
        )

    # Forks end in any order. Each result comes with the index of its compilation in the list.
    evidence_by_number = dict(measure_in_forks(compilations, half_of_the_cores()))
    control = evidence_by_number[0]
    # The evidence of every architecture repeats the control, so leave out its long log.
    control.get("error", {}).pop("log", None)
    for number, claim in enumerate(claims, start=1):
        yield claim.subject, {"compiled": evidence_by_number[number], "control": control}


def compile_kernels(*, kernel_arch: int, target: int, backward: bool) -> Compiled:
    """Compile flash-attn-4's forward kernel, and the backward one if `backward`, without a GPU.

    flash-attn-4 has a kernel for each generation of GPUs: `kernel_arch` (90 for sm_90) chooses it.
    `target` is the architecture that it is compiled for. Raises what flash-attn-4 or its compiler
    raises if it does not compile.
    """
    torch: Any = importlib.import_module("torch")
    fake_tensor_mode: Any = importlib.import_module("torch._subclasses.fake_tensor").FakeTensorMode
    # From Hopper on, kernels need the instructions of exactly their architecture.
    suffix = "a" if target >= 90 else ""
    with tempfile.TemporaryDirectory(prefix="flash-attn-4-") as folder:
        # The variables of flash-attn-4 for machines without a GPU (flash_attn/cute/interface.py,
        # `_get_device_arch`). The number of SMs decides only how work is spread.
        os.environ.update(
            FLASH_ATTENTION_ARCH=f"sm_{kernel_arch}",
            FLASH_ATTENTION_NUM_SMS="132",
            CUTE_DSL_ARCH=f"sm_{target}{suffix}",
            CUTE_DSL_KEEP="cubin",
            CUTE_DSL_DUMP_DIR=folder,
        )
        flash: Any = importlib.import_module("flash_attn.cute.interface")
        start = time.monotonic()
        # Tensors have a shape and no memory in this mode, so `cuda` needs no GPU.
        with fake_tensor_mode():
            query, key, value = (
                torch.empty(*shape, dtype=torch.bfloat16, device="cuda")
                for shape in _SHAPE.values()
            )
            result = flash._flash_attn_fwd(query, key, value, causal=True, return_lse=True)
            out, lse = result[:2]
            if backward:
                out_gradient = torch.empty_like(out)
                flash._flash_attn_bwd(query, key, value, out, out_gradient, lse, causal=True)

        cubins = {}
        for path in sorted(Path(folder).rglob("*")):
            if path.suffix == ".cubin":
                cubins[path.name] = cast("Cubin", cubin_facts(path.read_bytes()))
        return {"cubins": cubins, "compile_seconds": round(time.monotonic() - start, 3)}


def judge(_subject: str, expect: FlashAttn4Expect, evidence: FlashAttn4Evidence) -> Finding:
    """Pass if flash-attn-4 compiled the expected kernels for a GPU architecture (90 for sm_90).

    As a control, they were also compiled for an architecture that does not exist (`bogus`). If that
    works, nothing is proved, and the claim fails.
    """
    arch, bogus, compiled = expect["arch"], expect["bogus"], evidence["compiled"]
    if "error" in compiled:
        cause = root_cause(compiled["error"])
        return failed(f"flash-attn 4 can't be compiled for sm_{arch}: {cause}")

    cubins = compiled["cubins"]
    problems = []
    # A file's name holds that of its kernel: `cutlass_..._flash_fwd_sm90.sm_90a.cubin`.
    for part in expect["kernels"]:
        if not any(part in name for name in cubins):
            problems.append(f"the kernel {part} was not compiled")
    for name, cubin in cubins.items():
        if cubin["machine"] != EM_CUDA or cubin["arch"] != arch:
            result = f"{cubin['bytes']} bytes for sm_{cubin['arch']}"
            problems.append(f"{name} was to be compiled for sm_{arch}, and is {result}")
    if problems:
        return failed(joined(problems))
    if not expect["kernels"]:
        return failed("the claim names no kernel to compile", CHECK_FAILED)
    if "error" not in evidence["control"]:
        return failed(
            f"{PROVES_NOTHING}flash-attn 4 compiled a kernel for sm_{bogus}, which does not exist, "
            "and should have refused it",
            "the compiler of flash-attn 4 ignores the GPU that it is asked for: "
            f"{pin('another release of flash-attn-4 or nvidia-cutlass-dsl')}",
        )

    size = sum(cubin["bytes"] for cubin in cubins.values())
    cost = f"{size} bytes, {compiled['compile_seconds']:.1f} s"
    kernels = " and ".join(expect["kernels"])
    return passed(f"compiled {kernels} for sm_{arch} ({cost}), and refused sm_{bogus}")


CLAIMS = {"flash-attn-4": judge}
NEXT_STEPS = {
    "flash-attn-4": pin(
        "a release of flash-attn-4 and of nvidia-cutlass-dsl, its compiler, that knows this GPU "
        "architecture"
    )
}
