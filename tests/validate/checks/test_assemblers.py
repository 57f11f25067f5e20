"""toolkit/ptxas, toolkit/triton-ptxas: an assembler lists the GPUs that it has to know."""

import pytest

from tests.support.judging import fails, says
from tests.support.site_packages import Site, measure_and_judge, static_claim
from validate.checks.static import assemblers
from validate.judging import Finding

TURING, BLACKWELL = 75, 107
"""GPUs before and after the one from which on Triton may have an assembler of its own."""


@pytest.fixture(autouse=True)
def triton(site: Site) -> None:
    """Triton, in whose folder of packages a claim may look for the assembler."""
    site.install("triton", "3.9.0")


def write_assembler(site: Site, name: str, script: str) -> None:
    """Write a program in place of an assembler into the folder nv/bin."""
    site.write(f"nv/bin/{name}", f"#!/bin/sh\n{script}\n".encode()).chmod(0o755)


def judged(folder: str, archs: list[int]) -> Finding:
    claim = static_claim("toolkit", "ptxas", "assemblers", folder=folder, archs=archs)
    return measure_and_judge(assemblers, claim)


@pytest.mark.parametrize("of_triton", [True, False], ids=["triton", "toolkit"])
@pytest.mark.parametrize(
    ("known", "words"),
    [
        pytest.param({"ptxas": [TURING, BLACKWELL]}, "", id="one-knows-all"),
        pytest.param(
            {"ptxas": [TURING], "ptxas-blackwell": [TURING, BLACKWELL]},
            "",
            id="each-knows-its-own",
        ),
        pytest.param(
            {"ptxas": [TURING, BLACKWELL], "ptxas-blackwell": [103]},
            "bin/ptxas-blackwell does not know sm_107",
            id="that-for-blackwell-does-not",
        ),
        pytest.param(
            {"ptxas": [TURING]}, "bin/ptxas does not know sm_107", id="the-only-one-does-not"
        ),
        pytest.param({"ptxas": []}, "which GPUs it knows: it lists no GPU", id="lists-none"),
        pytest.param({}, "No such file", id="missing"),
    ],
)
def test_an_assembler_must_know_each_gpu_that_it_assembles_for(
    site: Site, known: dict[str, list[int]], words: str, of_triton: bool
) -> None:
    for name, archs in known.items():
        targets = ",".join(f"'sm_{arch}','sm_{arch}a'" for arch in archs)
        write_assembler(site, name, f'echo "{targets}"')

    # Triton's folder is below its packages, a toolkit's is absolute.
    folder = "nv/bin" if of_triton else f"{site.root}/nv/bin"
    says(judged(folder, [TURING, BLACKWELL]), words)


def test_an_assembler_that_crashes_after_its_list_fails(site: Site) -> None:
    write_assembler(site, "ptxas", "echo \"'sm_75'\"\nkill -SEGV $$")

    fails(judged("nv/bin", [TURING]), "`ptxas --help` ended with status -11")
