"""The toolkit: whether its parts are known, whether it can hold a compiler, and which gcc that accepts."""

from __future__ import annotations

from collections.abc import Iterator

from images.config.names import Minor
from images.planning.candidate import Candidate
from images.planning.rules.rule import Finding, refuse, rule


@rule
def toolkit_is_known(candidate: Candidate) -> Iterator[Finding]:
    if candidate.toolkit is None or candidate.toolkit_facts is None:
        known = ", ".join(map(str, sorted(map(Minor.parse, candidate.known_toolkits))))
        yield refuse(f"no parts for a CUDA {candidate.name.cuda} toolkit in matrix.yaml (`toolkits` has {known})")


@rule
def devel_has_a_provider(candidate: Candidate) -> Iterator[Finding]:
    """Wheels, or a Debian suite that the base's apt reaches. NVIDIA's devel image provides for `wheels` alone: it would
    make the image stand on a second one that not every machine can have."""
    toolkit = candidate.toolkit
    if not candidate.name.devel or toolkit is None or toolkit.devel:
        return
    cuda = candidate.name.cuda
    if not (toolkit.compiler and toolkit.compiler.debian):
        yield refuse(
            f"-devel needs a devel CUDA {cuda} toolkit, and its nvcc is published neither as wheels (from 13.0 on) nor "
            f"as packages of Debian (12.4): take {_with_nvcc(candidate)}, or this image without -devel on a base that "
            "has nvcc (--base REF)"
        )
    elif not candidate.base.suite:
        yield refuse(
            f"nvcc {cuda} comes from Debian's packages, which {candidate.base.key} does not reach: take the image of "
            "the default Python, or a base that has nvcc (--base REF)"
        )


def _with_nvcc(candidate: Candidate) -> str:
    """-devel images of the matrix that are nearest to what was asked for."""
    others = [name for name in candidate.devel_images if name != candidate.name and not name.profile]
    others.sort(key=lambda name: (abs(name.torch.minor - candidate.name.torch.minor), str(name)))
    return " or ".join(map(str, others[:2])) or "a -devel image of CUDA 12.4 or 13"


@rule
def devel_compiler_fits(candidate: Candidate) -> Iterator[Finding]:
    facts = candidate.toolkit_facts
    if candidate.name.devel and facts and candidate.gcc > facts.gcc_max:
        accepted = f"nvcc {candidate.name.cuda} accepts gcc up to {facts.gcc_max}"
        yield refuse(f"{accepted}, {candidate.base.key} has gcc {candidate.gcc}")
