"""toolkit: an assembler (ptxas) that does not know a GPU fails whoever compiles for it: what nvcc builds, what is
written in Triton. It lists each GPU that its release is said to know, also where torch has no code of its own for it.

That it assembles is `triton`'s to see, for the GPUs of the image.
"""

import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypedDict

from validate.claims import Claim
from validate.environment import installed
from validate.judging import Finding, conclude, listed, telling_line

_SECONDS = 60
_BLACKWELL = 100
_TARGET = re.compile(r"'sm_(\d+)'")


class AssemblersExpect(TypedDict):
    """Which ptxas knows which GPUs."""

    folder: str
    """Of the toolkit, or below the folder of packages that holds Triton."""
    archs: list[int]
    """90 for sm_90."""


class Assembler(TypedDict):
    """A ptxas, and what its `--help` lists."""

    asked: list[int]
    """The GPUs that it is the one to assemble for."""
    archs: list[int]
    error: str
    """What it said, or why it did not run; empty: it answered."""


class AssemblersEvidence(TypedDict):
    """Each ptxas that is asked for, by its path."""

    programs: dict[str, Assembler]


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, AssemblersEvidence]]:
    """Ask each assembler for the GPUs that it knows."""
    _, _, distributions = installed.of_user()
    triton = next((one.location for one in distributions if one.name == "triton"), "/")
    for claim in claims:
        folder = Path(triton, claim.expect["folder"])
        asked: dict[str, list[int]] = {}
        for arch in claim.expect["archs"]:
            asked.setdefault(assembler_for(arch, folder), []).append(arch)
        yield (
            claim.subject,
            {"programs": {program: ask(program, archs) for program, archs in asked.items()}},
        )


def assembler_for(arch: int, folder: Path) -> str:
    """Return the program for a GPU. Triton has one of its own for Blackwell and later in 3.3, and from 3.6 on."""
    own = folder / "ptxas-blackwell"
    return str(own if arch >= _BLACKWELL and own.is_file() else folder / "ptxas")


def ask(program: str, asked: list[int]) -> Assembler:
    """Return the GPUs that an assembler lists."""
    try:
        done = subprocess.run(
            [program, "--help"], capture_output=True, text=True, timeout=_SECONDS, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"asked": asked, "archs": [], "error": str(error)}
    archs = sorted({int(number) for number in _TARGET.findall(done.stdout)})
    answer = telling_line(done.stderr or done.stdout) or "it lists no GPU"
    return {"asked": asked, "archs": archs, "error": "" if archs else answer}


def judge(_subject: str, expect: AssemblersExpect, evidence: AssemblersEvidence) -> Finding:
    """Name each GPU that its assembler does not list."""
    faults = []
    for program, answer in evidence["programs"].items():
        unknown = [f"sm_{arch}" for arch in answer["asked"] if arch not in answer["archs"]]
        if answer["error"]:
            faults.append(f"{program}: {answer['error']}")
        elif unknown:
            faults.append(f"{program} does not know {listed(unknown)}")
    known = ", ".join(f"sm_{arch}" for arch in expect["archs"])
    return conclude(faults, f"{listed(list(evidence['programs']))}: {known}")


CLAIMS = {"toolkit/ptxas": judge, "toolkit/triton-ptxas": judge}
