"""Platforms: packages that no index has for a processor."""

from __future__ import annotations

from collections.abc import Iterator

from images.config.platforms import Platform
from images.planning.candidate import Candidate
from images.planning.rules.rule import Finding, refuse, rule


@rule
def packages_exist_on_arm64(candidate: Candidate) -> Iterator[Finding]:
    """What may be missing (`optional`) the plan has left out already."""
    if candidate.name.platform is not Platform.ARM64:
        return
    for name, reason in candidate.facts.arm64.lacking.items():
        if name in candidate.pins:
            said = f"{name} {candidate.pins[name]} has no wheel for aarch64 ({reason})"
            yield refuse(f"{said}: leave it out (`without: [{name}]`)")


@rule
def tried_on_amd64_alone(candidate: Candidate) -> Iterator[Finding]:
    """nvcc would run emulated, or on a machine that nobody has tried (docs/arm64.md)."""
    if candidate.name.platform is Platform.ARM64 and candidate.profile:
        yield refuse(f"the profile {candidate.name.profile} was resolved and tried on linux/amd64 alone")
    if candidate.name.platform is Platform.ARM64 and candidate.name.devel:
        yield refuse("-devel was tried on linux/amd64 alone")
