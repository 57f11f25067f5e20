"""C4: Triton compiles for the claimed archs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from validate.contracts.cpu import CompiledKernel, TritonEvidence, TritonExpect
from validate.judging import Finding, failed, passed, typed
from validate.judging.text import joined, root_cause

EM_CUDA = 190


@typed
def judge(_subject: str, expect: TritonExpect, evidence: TritonEvidence) -> Finding:
    """C4: a cubin that says it is for this arch, from each kernel; none for the bogus arch."""
    if "error" in evidence:
        return failed(f"Triton can't be imported: {root_cause(evidence['error'])}")
    if evidence["jit"] != "JITFunction":
        interpret = evidence["environment"].get("TRITON_INTERPRET")
        why = f" (TRITON_INTERPRET={interpret})" if interpret else ""
        return failed(f"kernels are {evidence['jit']} instead of JITFunction{why}: nothing is compiled")
    arch, kernels = expect["arch"], evidence["kernels"]
    problems = [problem for name in expect["kernels"] for problem in _kernel_problems(name, arch, kernels)]
    if not expect["kernels"]:
        problems.append("no kernel was asked for")
    if problems:
        return failed(joined(problems))
    if evidence["control"]["arch"] != expect["bogus"] or "error" not in evidence["control"]:
        return failed(f"control: sm_{expect['bogus']} does not exist, and compiled all the same")
    size = sum(kernels[name]["bytes"] for name in expect["kernels"])
    what = f"{' and '.join(expect['kernels'])} for sm_{arch} ({size} bytes)"
    return passed(f"Triton {evidence['triton']} compiled {what}, and refused sm_{expect['bogus']}")


def _kernel_problems(name: str, arch: int, kernels: Mapping[str, CompiledKernel]) -> Iterator[str]:
    facts = kernels.get(name)
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
