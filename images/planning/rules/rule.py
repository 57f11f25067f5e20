"""What a rule is: a function from a candidate to findings, registered by `@rule`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from images.planning.candidate import Candidate


class Weight(StrEnum):
    """What a finding does to an image."""

    REFUSE = "refuse"
    WARN = "warn"


@dataclass(frozen=True)
class Finding:
    """One thing a rule has to say about a combination."""

    weight: Weight
    text: str


Rule = Callable[[Candidate], Iterator[Finding]]

_RULES: dict[str, list[Rule]] = {}


def rule(function: Rule) -> Rule:
    """Register a rule under its module. Rules of a module run in the order in which they stand there."""
    _RULES.setdefault(function.__module__, []).append(function)
    return function


def registered(module: str) -> tuple[Rule, ...]:
    """The rules of a module, which must have been imported."""
    return tuple(_RULES.get(module, ()))


def refuse(text: str) -> Finding:
    return Finding(Weight.REFUSE, text)


def warn(text: str) -> Finding:
    return Finding(Weight.WARN, text)
