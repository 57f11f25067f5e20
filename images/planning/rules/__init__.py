"""Why a combination can't exist, or what to warn about. Pure: one small function a rule, all of them run.

To add a rule: write a function from Candidate to findings in the file of its subject and put `@rule` above it. A new
subject is a new file and an entry in SUBJECTS, which gives the order of the findings.
"""

from __future__ import annotations

from images.planning.candidate import Candidate
from images.planning.rules import (
    archs,
    compiled,
    extensions,
    optional,
    platforms,
    profile_pins,
    python,
    required,
    toolkit,
    torch_build,
)
from images.planning.rules.rule import Finding, Rule, registered

SUBJECTS = (torch_build, platforms, toolkit, python, extensions, archs, profile_pins, required, optional, compiled)
RULES: tuple[Rule, ...] = tuple(rule for subject in SUBJECTS for rule in registered(subject.__name__))


def apply(candidate: Candidate) -> tuple[Finding, ...]:
    """Every finding of every rule, in the rules' order."""
    found: list[Finding] = []
    for rule in RULES:
        found += rule(candidate)
    return tuple(found)
