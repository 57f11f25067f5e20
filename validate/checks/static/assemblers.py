"""toolkit: check that the assemblers (ptxas) of the toolkit and of Triton know the expected GPUs.

For a GPU that ptxas does not know, nothing can be compiled: neither by nvcc nor by Triton. It must
list each GPU that its release is said to know, also those for which torch has no code. Whether it
assembles is left to the check `triton`.
"""

import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypedDict

from validate.claims import Claim
from validate.environment import installed
from validate.judging import Finding, conclude, listed, telling_line
from validate.next_steps import BUILD_ANEW, if_image_sets, pin

_SECONDS = 60
_BLACKWELL = 100
_TARGET = re.compile(r"'sm_(\d+)'")


class AssemblersExpect(TypedDict):
    """What a claim about assemblers says."""

    folder: str
    """The folder of ptxas: absolute, or below the folder of packages that holds Triton."""
    archs: list[int]
    """90 for sm_90."""


class Assembler(TypedDict):
    """A ptxas, and the GPUs that its `--help` lists (90 for sm_90)."""

    asked: list[int]
    """The GPUs that it has to know."""
    archs: list[int]
    """The GPUs that it lists."""
    error: str
    """What it printed in place of a list, or why it did not run; else empty."""


class AssemblersEvidence(TypedDict):
    """The assemblers of a claim."""

    programs: dict[str, Assembler]
    """By path."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, AssemblersEvidence]]:
    """Ask ptxas, CUDA's assembler, which GPUs it knows, and yield the answer for each claim.

    A claim says that the ptxas in a folder knows some GPUs (`90` for sm_90). Triton may have two of
    them in its folder, for different GPUs: then each is asked. The answer is the path of a ptxas ->
    what `run_assembler` returns.
    """
    for claim in claims:
        folder = assembler_folder(claim.expect["folder"])
        # Path of a ptxas -> the GPUs that it has to know.
        archs_of: dict[str, list[int]] = {}
        for arch in claim.expect["archs"]:
            archs_of.setdefault(assembler_for(arch, folder), []).append(arch)
        programs = {program: run_assembler(program, archs) for program, archs in archs_of.items()}
        yield claim.subject, {"programs": programs}


def assembler_folder(folder: str) -> Path:
    """Return the folder of ptxas that a claim names.

    The toolkit's folder is absolute: `/usr/local/cuda-12.6/bin`. Triton's lies below the folder of
    packages that holds Triton: `triton/backends/nvidia/bin`. Without Triton, the result is a folder
    that does not exist.
    """
    if folder.startswith("/"):
        return Path(folder)
    # The installed packages of the image's Python.
    _, _, distributions = installed.read_user_python()
    for distribution in distributions:
        if distribution.name == "triton":
            return Path(distribution.location, folder)
    return Path("/", folder)


def assembler_for(arch: int, folder: Path) -> str:
    """Return the path of the ptxas that assembles for a GPU (90 for sm_90).

    Triton has another one for Blackwell and later in 3.3, and from 3.6 on.
    """
    for_blackwell = folder / "ptxas-blackwell"
    if arch >= _BLACKWELL and for_blackwell.is_file():
        return str(for_blackwell)
    return str(folder / "ptxas")


def run_assembler(program: str, expected_archs: list[int]) -> Assembler:
    """Return the GPUs that `ptxas --help` lists, such as 90 for sm_90, or an error.

    `program` is the path of the ptxas. `expected_archs` are the GPUs that it has to know. They are
    not compared here, but repeated in the result (`asked`), for the judge.
    """
    try:
        done = subprocess.run(
            [program, "--help"], capture_output=True, text=True, timeout=_SECONDS, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as exception:
        return {"asked": expected_archs, "archs": [], "error": str(exception)}
    archs = sorted({int(number) for number in _TARGET.findall(done.stdout)})
    error = ""
    if not archs:
        error = telling_line(done.stderr or done.stdout) or "it lists no GPU"
    elif done.returncode != 0:
        error = f"`ptxas --help` ended with status {done.returncode}"
    return {"asked": expected_archs, "archs": archs, "error": error}


def judge(_subject: str, expect: AssemblersExpect, evidence: AssemblersEvidence) -> Finding:
    """Pass if each ptxas (CUDA's assembler) runs, and lists every GPU that it has to know.

    The evidence has the path of each ptxas, with the GPUs it has to know (`asked`) and those that
    its `--help` lists (`archs`).
    """
    programs = evidence["programs"]
    faults = []
    for path, assembler in programs.items():
        if assembler["error"]:
            faults.append(f"{path} does not say which GPUs it knows: {assembler['error']}")
            continue
        unknown = [f"sm_{arch}" for arch in assembler["asked"] if arch not in assembler["archs"]]
        if unknown:
            faults.append(f"{path} does not know {listed(unknown)}, for which it has to compile")

    known = ", ".join(f"sm_{arch}" for arch in expect["archs"])
    return conclude(faults, f"{listed(list(programs))}: {known}")


CLAIMS = {"toolkit/ptxas": judge, "toolkit/triton-ptxas": judge}
NEXT_STEPS = {
    "toolkit/ptxas": "if a step of your Dockerfile installs or changes a CUDA toolkit, take that "
    "step out and build the image again; if none does, "
    f"{BUILD_ANEW}",
    "toolkit/triton-ptxas": f"{if_image_sets('TRITON_PTXAS_PATH')}; if not, "
    f"{pin('the triton release that was made for this torch')}",
}
