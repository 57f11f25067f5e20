"""The Python of an image: whether a base brings it, and whether torch has a wheel for it."""

from __future__ import annotations

from collections.abc import Iterator

from images.config.facts import within
from images.config.names import Minor
from images.planning.candidate import Candidate
from images.planning.rules.rule import Finding, refuse, rule


def python_fits(python: Minor, wanted: str) -> bool:
    """Whether a package's Requires-Python allows the base's Python."""
    return within(f"{python}.0", wanted)


@rule
def default_python_is_not_spelled_out(candidate: Candidate) -> Iterator[Finding]:
    if candidate.name.python is None:
        return
    if candidate.base.python != candidate.name.python:
        yield refuse(f"no base in matrix.yaml has Python {candidate.name.python}")


@rule
def torch_supports_python(candidate: Candidate) -> Iterator[Finding]:
    if str(candidate.base.python) not in candidate.torch_facts.pythons:
        has = ", ".join(candidate.torch_facts.pythons)
        yield refuse(f"torch {candidate.torch} has no wheel for Python {candidate.base.python} (it has {has})")
