"""toolkit: an assembler (ptxas) that does not know a GPU fails whoever compiles for it: what nvcc builds, what is
written in Triton. It assembles for each GPU that its release is said to know, also where torch has no code of its own
for it."""

import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from validate.binaries.cubin import cubin_facts
from validate.claims import Claim
from validate.environment import installed
from validate.judging import Finding, conclude, listed, telling_line

_SECONDS = 60
_BLACKWELL = 100
_PTX = b".version 6.4\n.target sm_30\n.address_size 64\n.visible .entry kernel() { ret; }\n"
"""PTX runs on its target and every later one: CUDA 11.8 to 13.5 assemble this for all that they know."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    triton = next((one.location for one in installed.of_user()[2] if one.name == "triton"), "/")
    with tempfile.TemporaryDirectory(prefix="ptxas-") as scratch:
        source = Path(scratch, "kernel.ptx")
        source.write_bytes(_PTX)
        for claim in claims:
            folder = Path(triton, claim.expect["folder"])  # the toolkit's is absolute
            archs = (*claim.expect["archs"], claim.expect["bogus"])
            yield claim.subject, {"made": {str(arch): _assembled(folder, arch, source) for arch in archs}}


def _assembled(folder: Path, arch: int, source: Path) -> Mapping[str, Any]:
    """Triton has one of its own for Blackwell and later in 3.3, and from 3.6 on."""
    own = folder / "ptxas-blackwell"
    program = own if arch >= _BLACKWELL and own.is_file() else folder / "ptxas"
    made = source.with_suffix(f".{arch}")
    command = [str(program), f"-arch=sm_{arch}", str(source), "-o", str(made)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"program": str(program), "error": str(error)}
    if done.returncode:
        return {"program": str(program), "error": telling_line(done.stderr or done.stdout) or "it ended without a word"}
    return {"program": str(program), **cubin_facts(made.read_bytes() if made.is_file() else b"")}


def judge(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """toolkit. expect: {folder, archs: [90 for sm_90], bogus: one that no assembler knows}.

    evidence: {made: {arch: {program, and cubin_facts, or `error`: what it said, or why it did not run}}}.
    """
    made, bogus = evidence["made"], str(expect["bogus"])
    faults = dict[str, list[str]]()
    for arch in map(str, expect["archs"]):
        one = made[arch]
        if one.get("arch") != int(arch):
            why = one.get("error") or f"it made a binary for sm_{one['arch']}"
            faults.setdefault(f"{one['program']} does not assemble for", []).append(f"sm_{arch} ({why})")
    if "error" not in made[bogus]:
        faults[f"control: sm_{bogus} does not exist, and {made[bogus]['program']} assembled for"] = ["it"]
    programs = listed(sorted({one["program"] for one in made.values()}))
    known = ", ".join(f"sm_{arch}" for arch in expect["archs"])
    return conclude((f"{what} {listed(which)}" for what, which in faults.items()), f"{programs}: {known}")


CLAIMS = {"toolkit/ptxas": judge, "toolkit/triton-ptxas": judge}
