"""C4: Triton compiles ahead of time for each arch of the image, with no GPU, and refuses one that does not exist."""

from __future__ import annotations

import importlib
import inspect
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

from validate.claims import Claim
from validate.contracts.cpu import CompiledKernel, Toolchain, TritonEvidence, TritonExpect
from validate.environment import emulation
from validate.harness.forked import attempt, in_fork
from validate.probes.cpu._cubin import cubin_facts

CONTROL_KERNEL = "add"
"""It has no reduction and no dot, so that LLVM accepts any arch and ptxas must refuse the bogus one."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, TritonEvidence]]:
    """Yield the evidence of each arch: the facts of each kernel's cubin, and the error of the control.

    Emulated, a first kernel is compiled before: each fork has the import of Triton then, and what the emulator has
    translated of LLVM. What that kernel raises, the forks raise again.
    """
    with tempfile.TemporaryDirectory(prefix="triton-") as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        if emulation.is_emulated():
            attempt(partial(_compiled, CONTROL_KERNEL, cast(TritonExpect, claims[0].expect)["arch"]))
        toolchain = in_fork(_toolchain)
        controls: dict[int, CompiledKernel] = {}
        for claim in claims:
            expect = cast(TritonExpect, claim.expect)
            arch, bogus = expect["arch"], expect["bogus"]
            if bogus not in controls:
                controls[bogus] = {"arch": bogus, **_briefly(in_fork(partial(_compiled, CONTROL_KERNEL, bogus)))}
            kernels = {name: in_fork(partial(_compiled, name, arch)) for name in expect["kernels"]}
            yield claim.subject, {**toolchain, "kernels": kernels, "control": controls[bogus]}


def _briefly(evidence: CompiledKernel) -> CompiledKernel:
    """Without the log: the control's error is in the evidence of every arch, and its message is enough."""
    if "error" in evidence:
        evidence["error"].pop("log", None)
    return evidence


def _toolchain() -> Toolchain:
    triton = importlib.import_module("triton")
    kernels = importlib.import_module("validate.probes.cpu._kernels")
    return {
        "triton": triton.__version__,
        "jit": type(kernels.softmax).__name__,
        "environment": {name: value for name, value in os.environ.items() if name.startswith("TRITON_")},
        "ptxas": attempt(_ptxas),
    }


def _ptxas() -> dict[str, object]:
    """Triton 3.4 and later have one getter, by arch; before there was a path finder."""
    compiler = importlib.import_module("triton.backends.nvidia.compiler")
    if hasattr(compiler, "get_ptxas"):
        tools = [compiler.get_ptxas(arch) for arch in (80, 100)]
        return {str(tool.path): str(tool.version) for tool in tools}
    path, version = compiler._path_to_binary("ptxas")
    return {str(path): str(version)}


def _compiled(kernel: str, arch: int) -> CompiledKernel:
    triton = importlib.import_module("triton")
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", arch, 32)
    started = time.monotonic()
    built = triton.compile(_source(kernel), target=target)
    cubin = built.asm["cubin"]
    return {
        **cubin_facts(cubin),
        "entry": f".text._{kernel}".encode() in cubin,
        "ptx_target": _ptx_target(built.asm["ptx"]),
        "compile_seconds": round(time.monotonic() - started, 3),
    }


def _source(kernel: str) -> Any:
    """Triton 3.0 and 3.1 leave constants out of the signature; from 3.2 on they are in it as `constexpr`."""
    kernels = importlib.import_module("validate.probes.cpu._kernels")
    source = importlib.import_module("triton.compiler").ASTSource
    signature: Mapping[str, str] = kernels.SIGNATURE
    function = getattr(kernels, kernel)
    if "constexprs" in inspect.signature(source.__init__).parameters:
        constexpr = dict.fromkeys(kernels.CONSTANTS, "constexpr")
        return source(function, {**signature, **constexpr}, constexprs=kernels.CONSTANTS)
    return source(function, dict(signature), constants=kernels.CONSTANTS)


def _ptx_target(ptx: str) -> str:
    return next((line.split()[1].rstrip(",") for line in ptx.splitlines() if line.startswith(".target")), "")
