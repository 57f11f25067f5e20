"""Which of many changes break something: the smallest set that still does. Pure: trying sets is injected.

Two steps. Prefixes are halved, as `git bisect` does with commits, until one change is found without which its prefix
does not fail; with it fixed the search goes on below it, as more than one change may be needed. What is left is then
shrunk until no single change can be taken out (ddmin: Zeller and Hildebrandt, "Simplifying and Isolating
Failure-Inducing Input", 2002), from where the third outcome comes, too.

With several workers the search is the same, step by step. A round tries the set that it asks for next, and beside it
those that it may ask for afterwards, whatever the answers are. So the culprits are those of a search one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
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
    rounds: int
    """How often sets were tried together; one by one, as often as there were sets."""


Answers = Mapping[frozenset[Change], Outcome]
Fails = Callable[[Sequence[Change]], bool]
AttemptTogether = Callable[[Sequence[frozenset[Change]]], Sequence[Outcome]]


class _Unanswered(Exception, Generic[Change]):  # noqa: N818  # said as an event
    """The search asks for a set without an answer."""

    def __init__(self, wanted: frozenset[Change]) -> None:
        self.wanted = wanted


def smallest(changes: Sequence[Change], attempt: Callable[[frozenset[Change]], Outcome]) -> Culprits[Change]:
    """A smallest failing set: it fails, and without any one of its changes it does not.

    Given are that without any change all is well, and that all changes together fail. Likely culprits come first in
    `changes`: what stands behind the last culprit is never looked at alone. `attempt` gets each set at most once; what
    it raises ends the search, and a second one with its answers remembered asks the same sets in the same order.

    One culprit among n changes, with every set decided, takes at most ceil(log2(n)) + 1 attempts; k of them that are
    needed together at most k * (ceil(log2(n)) + k + 2).
    """
    return smallest_together(changes, lambda sets: [attempt(one) for one in sets], at_once=1)


def smallest_together(changes: Sequence[Change], attempt: AttemptTogether[Change], at_once: int) -> Culprits[Change]:
    """The same set, found with at most `at_once` sets tried in a round.

    2**k - 1 at once take at most a k-th of the rounds of a search one by one: every answer to k questions is prepared.
    """
    answers = {frozenset[Change](): Outcome.PASS, frozenset(changes): Outcome.FAIL}
    outcomes: list[Outcome] = []
    rounds = 0
    while True:
        sets = _next(changes, answers, at_once)
        if not sets:
            break
        found = attempt(sets)
        answers.update(zip(sets, found, strict=True))
        outcomes += found
        rounds += 1
    return Culprits(
        changes=_search(changes, answers),
        asked=len(outcomes),
        unresolved=outcomes.count(Outcome.UNRESOLVED),
        rounds=rounds,
    )


def _next(changes: Sequence[Change], answers: Answers[Change], most: int) -> list[frozenset[Change]]:
    """The sets that the search asks for next, nearest first; none: it is at its end.

    To the search an answer is FAIL or not, so each question is followed by at most two others.
    """
    found: list[frozenset[Change]] = []
    supposed = deque([answers])
    looks = 0
    while supposed and len(found) < most and looks < most * most:
        looks += 1
        known = supposed.popleft()
        try:
            _search(changes, known)
        except _Unanswered as unanswered:
            wanted = unanswered.wanted
            found += [wanted] if wanted not in found else []
            supposed += [{**known, wanted: outcome} for outcome in (Outcome.PASS, Outcome.FAIL)]
    return found


def _search(changes: Sequence[Change], answers: Answers[Change]) -> tuple[Change, ...]:
    """The search with these answers, from its beginning. Raises _Unanswered for the first set that has none."""

    def fails(wanted: Sequence[Change]) -> bool:
        key = frozenset(wanted)
        if key not in answers:
            raise _Unanswered(key)
        return answers[key] is Outcome.FAIL

    fixed: tuple[Change, ...] = ()
    rest = tuple(changes)
    while rest and not fails(fixed):
        last = _edge(fixed, rest, fails)
        fixed, rest = (rest[last], *fixed), rest[:last]
    return _shrunk(fixed, fails)


def _edge(fixed: tuple[Change, ...], rest: tuple[Change, ...], fails: Fails[Change]) -> int:
    """The change with which prefixes of `rest`, together with `fixed`, begin to fail.

    An undecided prefix counts as one that does not fail. The change found is then one that decides the prefix, and
    is removed later if it is not needed.
    """
    low, high = 0, len(rest)
    while high - low > 1:
        middle = (low + high) // 2
        if fails(fixed + rest[:middle]):
            high = middle
        else:
            low = middle
    return low


def _shrunk(failing: tuple[Change, ...], fails: Fails[Change]) -> tuple[Change, ...]:
    """The same failure with less: parts of half the size are taken out, then smaller ones, at last single changes."""
    size = len(failing) // 2
    while size:
        less = next((smaller for smaller in _less(failing, size) if fails(smaller)), None)
        if less is not None:
            failing, size = less, min(size, len(less) // 2)
        else:
            size //= 2
    return failing


def _less(changes: tuple[Change, ...], size: int) -> Iterator[tuple[Change, ...]]:
    for start in range(0, len(changes), size):
        yield changes[:start] + changes[start + size :]
