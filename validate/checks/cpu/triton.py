"""triton: check that Triton compiles kernels for the image's GPUs, without having one.

It compiles without a GPU. A Triton that can't compile for a GPU fails a user's first kernel there.
"""

import contextlib
import importlib
import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypedDict

from validate.binaries.cubin import EM_CUDA, cubin_facts
from validate.claims import Claim
from validate.harness.forked import measure_in_fork
from validate.judging import PROVES_NOTHING, Finding, failed, joined, passed, root_cause
from validate.next_steps import if_image_sets, pin

_CONTROL_KERNEL = "add"
"""It is compiled for the architecture that does not exist. It has no reduction and no dot, so LLVM
accepts any architecture, and it is ptxas that must refuse."""
_WARP_SIZE = 32


class TritonExpect(TypedDict):
    """What is compiled for one architecture."""

    arch: int  # compute capability without the dot: 90 for sm_90
    bogus: int  # an architecture that does not exist
    kernels: Sequence[str]  # names of functions in _kernels.py


class CompiledKernel(TypedDict, total=False):
    """The compiled kernel. If it did not compile, only `error` is there."""

    arch: int | None  # that the binary is for
    machine: int | None  # of the ELF header: EM_CUDA
    bytes: int  # the size of the binary
    entry: bool  # the binary holds the kernel
    error: Mapping[str, Any]


class TritonEvidence(TypedDict):
    """What `measure` yields for an architecture."""

    triton: str  # its version
    jit: str  # the class of a kernel: JITFunction, unless TRITON_INTERPRET is set
    environment: Mapping[str, str]  # TRITON_* variables
    kernels: Mapping[str, CompiledKernel]
    control: CompiledKernel  # for the architecture that does not exist


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Compile kernels by Triton for the GPU architecture of each claim, without a GPU.

    Yields the subject of the claim and what was compiled, each kernel in a fork. The evidence also
    has a control: a kernel for an architecture that does not exist, which must fail to compile.
    """
    # Done once for all forks below: import Triton, and hash its libraries, which takes 0.3 s. An
    # error is ignored here: each fork does the same again and reports it.
    with contextlib.suppress(Exception):
        importlib.import_module("validate.checks.cpu._kernels")
        importlib.import_module("triton.compiler.compiler").triton_key()
    toolchain = measure_in_fork(describe_triton)
    bogus = claims[0].expect["bogus"]
    # The control has an `error` if Triton refuses to compile it, as it should.
    control = {"arch": bogus, **measure_in_fork(partial(compile_kernel, _CONTROL_KERNEL, bogus))}
    # Each claim's evidence repeats the control, so leave out its long log.
    control.get("error", {}).pop("log", None)

    for claim in claims:
        kernels = {}
        for name in claim.expect["kernels"]:
            kernels[name] = measure_in_fork(partial(compile_kernel, name, claim.expect["arch"]))
        yield claim.subject, {**toolchain, "kernels": kernels, "control": control}


def describe_triton() -> Mapping[str, Any]:
    """Return Triton's version, its environment variables, and the class of a kernel.

    The class is JITFunction, unless TRITON_INTERPRET makes Triton interpret kernels instead.
    """
    triton = importlib.import_module("triton")
    kernels = importlib.import_module("validate.checks.cpu._kernels")
    environment = {}
    for name, value in os.environ.items():
        if name.startswith("TRITON_"):
            environment[name] = value
    return {
        "triton": triton.__version__,
        "jit": type(kernels.softmax).__name__,
        "environment": environment,
    }


def compile_kernel(name: str, arch: int) -> Mapping[str, Any]:
    """Compile a kernel of _kernels.py for an architecture, and return it as CompiledKernel.

    `name` is such as `softmax`; `arch` is 90 for sm_90. Raises what Triton raises if it does not
    compile.
    """
    triton = importlib.import_module("triton")
    gpu_target = importlib.import_module("triton.backends.compiler").GPUTarget
    target = gpu_target("cuda", arch, _WARP_SIZE)
    ast_source = importlib.import_module("triton.compiler").ASTSource
    kernels = importlib.import_module("validate.checks.cpu._kernels")
    kernel, constants = getattr(kernels, name), kernels.CONSTANTS

    # Triton 3.0 and 3.1 leave constants out of the signature; from 3.2 on they are in it as
    # `constexpr`.
    if "constexprs" in inspect.signature(ast_source.__init__).parameters:
        signature = {**kernels.SIGNATURE, **dict.fromkeys(constants, "constexpr")}
        source = ast_source(kernel, signature, constexprs=constants)
    else:
        source = ast_source(kernel, dict(kernels.SIGNATURE), constants=constants)

    compiled = triton.compile(source, target=target)
    cubin = compiled.asm["cubin"]
    return {
        **cubin_facts(cubin),
        # The machine code of the kernel is in a section that is named after it: `.text._softmax`.
        "entry": f".text._{name}".encode() in cubin,
    }


def judge(_subject: str, expect: TritonExpect, evidence: TritonEvidence) -> Finding:
    """Pass if Triton compiled each expected kernel for a GPU architecture (90 stands for sm_90).

    No GPU is needed for that. The control is the same for an architecture that does not exist
    (`bogus`): if it compiles, too, nothing is proved, and the claim fails.
    """
    # If Triton interprets kernels, they work, but nothing was compiled.
    if evidence["jit"] != "JITFunction":
        interpret = evidence["environment"].get("TRITON_INTERPRET")
        reason = f" (TRITON_INTERPRET={interpret})" if interpret else ""
        return failed(
            f"Triton's kernels are {evidence['jit']} instead of JITFunction{reason}, so nothing is "
            "compiled"
        )

    arch, bogus, kernels = expect["arch"], expect["bogus"], evidence["kernels"]
    problems: list[str] = []
    for name in expect["kernels"]:
        problems += kernel_problems(name, arch, kernels.get(name))
    if not expect["kernels"]:
        problems.append("the claim names no kernel to compile")
    if problems:
        return failed(joined(problems))

    control = evidence["control"]
    if control["arch"] != bogus or "error" not in control:
        return failed(
            f"{PROVES_NOTHING}Triton compiled a kernel for sm_{bogus}, which does not exist, and "
            "should have refused it"
        )

    size = sum(kernels[name]["bytes"] for name in expect["kernels"])
    compiled = f"{' and '.join(expect['kernels'])} for sm_{arch} ({size} bytes)"
    return passed(f"Triton {evidence['triton']} compiled {compiled}, and refused sm_{bogus}")


def kernel_problems(name: str, arch: int, kernel: CompiledKernel | None) -> Iterator[str]:
    """Yield a sentence about the first thing that is wrong with a kernel that Triton compiled.

    `arch` is 90 for sm_90. `kernel` is None if it was not compiled.
    """
    if kernel is None:
        yield f"the kernel {name} was not compiled"
    elif "error" in kernel:
        yield f"the kernel {name} can't be compiled for sm_{arch}: {root_cause(kernel['error'])}"
    elif kernel["machine"] != EM_CUDA:
        yield f"of the kernel {name}, ptxas made {kernel['bytes']} bytes that are no CUDA binary"
    elif kernel["arch"] != arch:
        asked = f"the kernel {name} was to be compiled for sm_{arch}"
        yield f"{asked}, and the binary is for sm_{kernel['arch']}"
    elif not kernel["entry"]:
        yield f"the binary for sm_{arch} does not hold the kernel {name}"


CLAIMS = {"triton": judge}
NEXT_STEPS = {
    "triton": f"{if_image_sets('a TRITON_* variable')}; if not, "
    f"{pin('the triton release that was made for this torch and knows this GPU')}"
}
