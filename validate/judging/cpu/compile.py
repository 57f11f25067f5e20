"""C5: torch.compile on the CPU."""

from __future__ import annotations

from validate.contracts.cpu import CompileEvidence, NothingExpected
from validate.judging import Finding, failed, passed, typed
from validate.judging.numbers import is_beyond, is_within, scientific
from validate.judging.text import joined, root_cause
from validate.judging.tolerance import FORWARD_FACTOR, FORWARD_FLOOR


@typed
def judge(_subject: str, expect: NothingExpected, evidence: CompileEvidence) -> Finding:
    """C5: dynamo captured, inductor generated, the process mapped what the compiler made, the numbers are right."""
    if "error" in evidence:
        return failed(f"torch.compile: {root_cause(evidence['error'])}")
    problems = []
    switches = ", ".join(f"{name}={value}" for name, value in evidence["environment"].items())
    if not evidence["graphs"] or not evidence["captured"]:
        problems.append(f"torch.compile captured nothing{f' ({switches})' if switches else ''}: it is switched off")
    elif not evidence["generated"] or not evidence["libraries"]:
        problems.append("torch.compile generated no kernel")
    elif not evidence["mapped"]:
        problems.append(f"{evidence['libraries'][0]} was compiled and is not loaded")
    if evidence["breaks"]:
        problems.append(f"{evidence['breaks']} graph breaks")
    tolerance = FORWARD_FACTOR * float(evidence["plain_error"]) + FORWARD_FLOOR
    if not is_within(evidence["found_error"], tolerance):
        problems.append(
            f"its numbers are off by {scientific(evidence['found_error'])}, at most {scientific(tolerance)}"
        )
    if not is_beyond(evidence["control_error"], tolerance):
        problems.append(f"control: 1% more is off by {scientific(evidence['control_error'])}, within what is allowed")
    if problems:
        return failed(joined(problems))
    made = f"{evidence['generated']} generated, {len(evidence['mapped'])} compiled library loaded"
    return passed(f"torch {evidence['torch']}: {made}, off by {evidence['found_error']:.1e} (at most {tolerance:.1e})")
