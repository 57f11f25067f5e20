"""Which of many changes break something: the smallest set that still does. Pure: trying a set is injected.

Two steps. Prefixes are halved, as `git bisect` does with commits, until one change is found without which its prefix
does not fail; with it fixed the search goes on below it, as more than one change may be needed. What is left is then
shrunk until no single change can be taken out (ddmin: Zeller and Hildebrandt, "Simplifying and Isolating
Failure-Inducing Input", 2002), from where the third outcome comes, too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar


class Outcome(StrEnum):
    """What trying a set of changes showed."""

    PASS = "pass"
    FAIL = "fail"
    UNRESOLVED = "unresolved"
    """Undecided: these changes don't fit together, or something else broke first."""


Change = TypeVar("Change", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Culprits(Generic[Change]):
    """The set that fails, in the order of the changes, and the cost of the search."""

    changes: tuple[Change, ...]
    asked: int
    """Sets that were tried."""
    unresolved: int
    """Those of them that were undecided."""


class _Asked(Generic[Change]):
    """Answers to sets, each tried once. That nothing passes and everything fails is given."""

    def __init__(self, changes: Sequence[Change], attempt: Callable[[frozenset[Change]], Outcome]) -> None:
        self._attempt = attempt
        self._answers = {frozenset[Change](): Outcome.PASS, frozenset(changes): Outcome.FAIL}
        self.outcomes: list[Outcome] = []

    def fails(self, changes: Sequence[Change]) -> bool:
        return self(changes) is Outcome.FAIL

    def __call__(self, changes: Sequence[Change]) -> Outcome:
        wanted = frozenset(changes)
        if wanted not in self._answers:
            self._answers[wanted] = self._attempt(wanted)
            self.outcomes.append(self._answers[wanted])
        return self._answers[wanted]


def smallest(changes: Sequence[Change], attempt: Callable[[frozenset[Change]], Outcome]) -> Culprits[Change]:
    """A smallest failing set: it fails, and without any one of its changes it does not.

    Given are that without any change all is well, and that all changes together fail. Likely culprits come first in
    `changes`: what stands behind the last culprit is never looked at alone. `attempt` gets each set at most once; what
    it raises ends the search, and a second one with its answers remembered asks the same sets in the same order.

    One culprit among n changes, with every set decided, takes at most ceil(log2(n)) + 1 attempts; k of them that are
    needed together at most k * (ceil(log2(n)) + k + 2).
    """
    asked = _Asked(changes, attempt)
    fixed: tuple[Change, ...] = ()
    rest = tuple(changes)
    while rest and not asked.fails(fixed):
        last = _edge(fixed, rest, asked)
        fixed, rest = (rest[last], *fixed), rest[:last]
    found = _shrunk(fixed, asked)
    unresolved = asked.outcomes.count(Outcome.UNRESOLVED)
    return Culprits(changes=found, asked=len(asked.outcomes), unresolved=unresolved)


def _edge(fixed: tuple[Change, ...], rest: tuple[Change, ...], asked: _Asked[Change]) -> int:
    """The change with which prefixes of `rest`, together with `fixed`, begin to fail.

    An undecided prefix counts as one that does not fail. The change found is then one that decides the prefix, and
    is removed later if it is not needed.
    """
    low, high = 0, len(rest)
    while high - low > 1:
        middle = (low + high) // 2
        if asked.fails(fixed + rest[:middle]):
            high = middle
        else:
            low = middle
    return low


def _shrunk(failing: tuple[Change, ...], asked: _Asked[Change]) -> tuple[Change, ...]:
    """The same failure with less: parts of half the size are taken out, then smaller ones, at last single changes."""
    size = len(failing) // 2
    while size:
        less = next((smaller for smaller in _less(failing, size) if asked.fails(smaller)), None)
        if less is not None:
            failing, size = less, min(size, len(less) // 2)
        else:
            size //= 2
    return failing


def _less(changes: tuple[Change, ...], size: int) -> Iterator[tuple[Change, ...]]:
    for start in range(0, len(changes), size):
        yield changes[:start] + changes[start + size :]
