"""C9: no AVX-512, and no SVE, without asking."""

from __future__ import annotations

import re

from validate.contracts.cpu import InstructionsEvidence, InstructionsExpect
from validate.judging import Finding, failed, listed, passed, typed
from validate.judging.text import joined


@typed
def judge(_subject: str, expect: InstructionsExpect, evidence: InstructionsEvidence) -> Finding:
    """C9. expect: {most, per_bytes, extension}."""
    extension = expect.get("extension", "avx512")
    name = {"avx512": "AVX-512", "sve": "SVE"}[extension]
    if not evidence["files"]:
        return failed("there is no native code to read")
    found = evidence["not_asking"]
    problems = [
        f"{_shortened(one['path'])} of {listed(one['owners']) or 'no distribution'} holds {one.get(extension)} {name} "
        "instructions and never asks whether the processor has them"
        for one in found
    ]
    if problems:
        return failed(joined(problems))
    return passed(f"{evidence['files']} files of native code; the {evidence['asking']} that use AVX-512 ask first")


def _shortened(path: str) -> str:
    return re.sub(r"^/\S*/site-packages/", "", path)
