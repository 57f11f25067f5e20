"""What a profile pins over the stack, and whether anything is known of it."""

from __future__ import annotations

from collections.abc import Iterator

from images.planning.candidate import Candidate
from images.planning.rules.rule import Finding, refuse, rule, warn


@rule
def profile_overrides_are_said(candidate: Candidate) -> Iterator[Finding]:
    for name, version in candidate.profile.pins.items() if candidate.profile else ():
        own = candidate.stack.get(name, version)
        if own != version:
            yield warn(f"the profile {candidate.name.profile} pins {name} {version} over the stack's {own}")


@rule
def profile_packages_are_known(candidate: Candidate) -> Iterator[Finding]:
    for name, version in candidate.profile.pins.items() if candidate.profile else ():
        if name not in candidate.stack and version not in candidate.facts.packages.get(name, {}):
            row = f"`python -m images facts {name}=={version}` prints its row for images/data/facts.yaml"
            yield refuse(f"nothing is known of {name} {version}: {row}")
