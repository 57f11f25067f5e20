"""triton: a Triton that can't compile for the image's GPUs fails a user's first kernel. It compiles for each arch
without a GPU, and refuses one that does not exist."""

import importlib
import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypedDict

from validate.binaries.cubin import EM_CUDA, cubin_facts
from validate.claims import Claim
from validate.harness.forked import measure_in_fork
from validate.judging import Finding, failed, joined, passed, root_cause

_CONTROL_KERNEL = "add"
"""It has no reduction and no dot, so that LLVM accepts any arch and ptxas must refuse the bogus one."""


class TritonExpect(TypedDict):
    """The architecture, one that does not exist, and the kernels that this Triton can compile for the first."""

    arch: int
    bogus: int
    kernels: Sequence[str]


class CompiledKernel(TypedDict, total=False):
    """What a kernel was compiled to, or `error`."""

    arch: int | None
    machine: int | None
    bytes: int
    entry: bool
    ptx_target: str
    error: Mapping[str, Any]


class TritonEvidence(TypedDict):
    """`jit` is the kernels' type, `control` what became of the architecture that does not exist."""

    triton: str
    jit: str
    environment: Mapping[str, str]
    kernels: Mapping[str, CompiledKernel]
    control: CompiledKernel


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the evidence of each arch: the facts of each kernel's cubin, and the error of the control."""
    toolchain = measure_in_fork(_toolchain)
    bogus = claims[0].expect["bogus"]
    control = {"arch": bogus, **measure_in_fork(partial(_compiled, _CONTROL_KERNEL, bogus))}
    # Without the log: the control's error is in the evidence of every arch, and its message is enough.
    control.get("error", {}).pop("log", None)
    for claim in claims:
        arch, names = claim.expect["arch"], claim.expect["kernels"]
        kernels = {name: measure_in_fork(partial(_compiled, name, arch)) for name in names}
        yield claim.subject, {**toolchain, "kernels": kernels, "control": control}


def _toolchain() -> Mapping[str, Any]:
    """Return Triton's version and variables, and the type of a kernel."""
    triton = importlib.import_module("triton")
    kernels = importlib.import_module("validate.checks.cpu._kernels")
    return {
        "triton": triton.__version__,
        "jit": type(kernels.softmax).__name__,
        "environment": {
            name: value for name, value in os.environ.items() if name.startswith("TRITON_")
        },
    }


def _compiled(kernel: str, arch: int) -> Mapping[str, Any]:
    """Compile a kernel for an architecture."""
    triton = importlib.import_module("triton")
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", arch, 32)
    kernels = importlib.import_module("validate.checks.cpu._kernels")
    source, constants = importlib.import_module("triton.compiler").ASTSource, kernels.CONSTANTS
    # Triton 3.0 and 3.1 leave constants out of the signature; from 3.2 on they are in it as `constexpr`.
    if "constexprs" in inspect.signature(source.__init__).parameters:
        signature = {**kernels.SIGNATURE, **dict.fromkeys(constants, "constexpr")}
        asked = source(getattr(kernels, kernel), signature, constexprs=constants)
    else:
        asked = source(getattr(kernels, kernel), dict(kernels.SIGNATURE), constants=constants)
    built = triton.compile(asked, target=target)
    cubin = built.asm["cubin"]
    return {
        **cubin_facts(cubin),
        "entry": f".text._{kernel}".encode() in cubin,
        "ptx_target": next(
            (
                line.split()[1].rstrip(",")
                for line in built.asm["ptx"].splitlines()
                if line.startswith(".target")
            ),
            "",
        ),
    }


def judge(_subject: str, expect: TritonExpect, evidence: TritonEvidence) -> Finding:
    """Judge that each kernel became a cubin for this architecture, and none for the one that does not exist."""
    if evidence["jit"] != "JITFunction":
        interpret = evidence["environment"].get("TRITON_INTERPRET")
        why = f" (TRITON_INTERPRET={interpret})" if interpret else ""
        return failed(
            f"kernels are {evidence['jit']} instead of JITFunction{why}: nothing is compiled"
        )
    arch, kernels = expect["arch"], evidence["kernels"]
    problems: list[str] = []
    for name in expect["kernels"]:
        problems.extend(_kernel_problems(name, arch, kernels.get(name)))
    if not expect["kernels"]:
        problems.append("no kernel was asked for")
    if problems:
        return failed(joined(problems))
    if evidence["control"]["arch"] != expect["bogus"] or "error" not in evidence["control"]:
        return failed(f"control: sm_{expect['bogus']} does not exist, and compiled all the same")
    size = sum(kernels[name]["bytes"] for name in expect["kernels"])
    what = f"{' and '.join(expect['kernels'])} for sm_{arch} ({size} bytes)"
    return passed(f"Triton {evidence['triton']} compiled {what}, and refused sm_{expect['bogus']}")


def _kernel_problems(name: str, arch: int, facts: CompiledKernel | None) -> Iterator[str]:
    """Yield why a kernel is not the one that was asked for."""
    if facts is None:
        yield f"{name} was not compiled"
    elif "error" in facts:
        yield f"{name} for sm_{arch}: {root_cause(facts['error'])}"
    elif facts["machine"] != EM_CUDA:
        yield f"{name}: ptxas made {facts['bytes']} bytes that are no CUDA binary"
    elif facts["arch"] != arch:
        yield f"{name}: asked for sm_{arch}, the binary is for sm_{facts['arch']}"
    elif not facts["entry"]:
        yield f"{name}: the binary for sm_{arch} does not hold the kernel"


CLAIMS = {"triton": judge}
