"""The toolkit: whether its parts are known, whether it can hold a compiler, and which gcc that accepts."""

from __future__ import annotations

from collections.abc import Iterator

from images.planning.candidate import Candidate
from images.planning.rules.rule import Finding, refuse, rule


@rule
def toolkit_is_known(candidate: Candidate) -> Iterator[Finding]:
    if candidate.toolkit is None or candidate.toolkit_facts is None:
        known = ", ".join(map(str, candidate.known_toolkits))
        yield refuse(f"no parts for a CUDA {candidate.name.cuda} toolkit in matrix.yaml (`toolkits` has {known})")


@rule
def devel_has_a_provider(candidate: Candidate) -> Iterator[Finding]:
    if candidate.name.devel and candidate.toolkit and not candidate.toolkit.devel:
        yield refuse(
            f"-devel needs a devel CUDA {candidate.name.cuda} toolkit, and its nvcc is published as wheels only from "
            "13.0 on: use a -devel image of CUDA 13, or this image without -devel on a base that has nvcc (--base REF)"
        )


@rule
def devel_compiler_fits(candidate: Candidate) -> Iterator[Finding]:
    facts = candidate.toolkit_facts
    if candidate.name.devel and facts and candidate.gcc > facts.gcc_max:
        accepted = f"nvcc {candidate.name.cuda} accepts gcc up to {facts.gcc_max}"
        yield refuse(f"{accepted}, {candidate.base.key} has gcc {candidate.gcc}")
