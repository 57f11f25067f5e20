"""C12: bytecode against its source."""

from __future__ import annotations

from validate.contracts.cpu import BytecodeEvidence, BytecodeExpect
from validate.judging import Finding, failed, typed
from validate.judging.text import conclude


@typed
def judge(_subject: str, _expect: BytecodeExpect, evidence: BytecodeEvidence) -> Finding:
    """C12."""
    if not evidence["files"]:
        return failed("there is no bytecode: each process compiles what it imports")
    faults = [f"{path} is {state}" for path, state in evidence["wrong"].items()]
    if hidden := evidence["wrong_count"] - len(evidence["wrong"]):
        faults.append(f"{hidden} more files of bytecode are not their sources'")
    again = f"{evidence['compiled']} compiled again, all of {len(evidence['digests'])} distributions right"
    return conclude(faults, f"{evidence['files']} files of bytecode are what their sources compile to ({again})")
