"""What packages require of each other, and of torch, CUDA and Python."""

from __future__ import annotations

from collections.abc import Iterator

from images.config.facts import PackageFacts, within
from images.planning import profiles, requirements
from images.planning.candidate import Candidate
from images.planning.official import official_wheel
from images.planning.requirements import Unmet
from images.planning.rules.compiled import uncompilable
from images.planning.rules.python import python_fits
from images.planning.rules.rule import Finding, refuse, rule, warn


@rule
def requirements_agree(candidate: Candidate) -> Iterator[Finding]:
    """What contradicts is refused with both sides named; nothing is moved to make it fit."""
    if not candidate.known:
        return
    known = {(name, candidate.pins[name]): row for name, row in candidate.known.items()}
    for (name, version), row in known.items():
        yield from map(refuse, contradictions(candidate, name, version, row))
        if name not in candidate.optional:
            yield from map(refuse, _not_to_be_had(candidate, name, version, row))
    for found in requirements.clashing(known, frozenset(candidate.pins), candidate.base.python):
        yield refuse(f"{found.by} requires {found.requirement}, which excludes the {found.on} {found.found}")


@rule
def nothing_dead_is_pinned(candidate: Candidate) -> Iterator[Finding]:
    replaced = candidate.facts.replaced
    for name in candidate.pins:
        if name in replaced:
            yield refuse(f"{name} is no longer maintained: pin {replaced[name].by} instead")


@rule
def waivers_are_said(candidate: Candidate) -> Iterator[Finding]:
    waived = candidate.profile.waived if candidate.profile else {}
    for name, reason in waived.items():
        asking = [
            found for pin in candidate.pins for found in _unmet(candidate, pin) if found.on == name and not found.found
        ]
        by = ", ".join(f"{found.by} requires {found.requirement}" for found in asking) or f"nothing requires {name}"
        yield warn(f"{by}: waived, {reason}")


def unfit(candidate: Candidate, name: str, version: str, row: PackageFacts) -> Iterator[str]:
    """Why a package of known facts has no place in an image, in sentences."""
    yield from contradictions(candidate, name, version, row)
    yield from _not_to_be_had(candidate, name, version, row)


def contradictions(candidate: Candidate, name: str, version: str, row: PackageFacts) -> Iterator[str]:
    """What a package requires and this image contradicts."""
    waived = frozenset(candidate.profile.waived) if candidate.profile else frozenset()
    for found in requirements.unmet(name, version, row, candidate.pins, frozenset(), candidate.base.python):
        if found.on not in waived:
            owner = profiles.owner(found.on, candidate.profile, candidate.name.torch)
            yield f"{found.by} requires {found.requirement}, {owner} pins {found.on} {found.found}"
    if row.torch and not within(candidate.torch, row.torch):
        yield f"{name} {version} is compiled against torch {row.torch}, the stack pins {candidate.torch}"
    if row.cuda_majors and candidate.wheel_cuda.major not in row.cuda_majors:
        majors = ", ".join(map(str, row.cuda_majors))
        yield f"{name} {version} is built for CUDA {majors}, torch's wheel brings CUDA {candidate.wheel_cuda}"
    if row.python and not python_fits(candidate.base.python, row.python):
        yield f"{name} {version} needs Python {row.python}, the base has {candidate.base.python}"


def _not_to_be_had(candidate: Candidate, name: str, version: str, row: PackageFacts) -> Iterator[str]:
    if row.form == "cuda-source" and not official_wheel(candidate, name, version):
        yield from uncompilable(candidate, name, version)


def _unmet(candidate: Candidate, name: str) -> Iterator[Unmet]:
    row = candidate.known.get(name)
    if row and candidate.profile:
        waived = frozenset(candidate.profile.waived)
        yield from requirements.unmet(name, candidate.pins[name], row, candidate.pins, waived, candidate.base.python)
