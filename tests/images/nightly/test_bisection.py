"""The search for culprits, over any hidden set: what it finds fails, is smallest, and took few attempts."""

from collections import Counter
from collections.abc import Callable
from itertools import combinations
from math import ceil, log2

from hypothesis import given
from hypothesis import strategies as st

from images.nightly.bisection import find_smallest_failing

Attempt = Callable[[frozenset[int]], bool]


@st.composite
def hidden(draw: st.DrawFn, most: int = 3) -> tuple[int, frozenset[int]]:
    """How many changes there are, and which of them break it together."""
    count = draw(st.integers(1, 60))
    return count, draw(st.frozensets(st.integers(0, count - 1), min_size=1, max_size=most))


def breaking(culprits: frozenset[int]) -> Attempt:
    return lambda changes: culprits <= changes


@given(hidden())
def test_culprits_that_are_needed_together_are_found_in_few_attempts(
    case: tuple[int, frozenset[int]],
) -> None:
    count, culprits = case
    asked = Counter[frozenset[int]]()

    def attempt(changes: frozenset[int]) -> bool:
        asked[changes] += 1
        return breaking(culprits)(changes)

    assert find_smallest_failing(range(count), attempt) == tuple(sorted(culprits))
    assert len(asked) == asked.total() <= len(culprits) * (ceil(log2(count)) + len(culprits) + 2)
    assert len(culprits) > 1 or len(asked) <= ceil(log2(count)) + 1


@given(hidden(most=2), st.data())
def test_sets_that_do_not_go_together_are_worked_around(
    case: tuple[int, frozenset[int]], data: st.DataObject
) -> None:
    """Changes that need others, never in a circle: a set that lacks them can't be told."""
    count, culprits = case
    rank = data.draw(st.permutations(range(count)))
    pairs = data.draw(
        st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=12)
    )
    needs = {
        one: frozenset(two for other, two in pairs if other == one and rank[two] < rank[one])
        for one, _ in pairs
    }

    def attempt(changes: frozenset[int]) -> bool:
        together = all(needed <= changes for change, needed in needs.items() if change in changes)
        return together and breaking(culprits)(changes)

    assert frozenset(find_smallest_failing(range(count), attempt)) == closed(culprits, needs)


def closed(changes: frozenset[int], needs: dict[int, frozenset[int]]) -> frozenset[int]:
    more = changes.union(*(needs.get(change, frozenset()) for change in changes))
    return changes if more == changes else closed(more, needs)


@given(st.integers(1, 12), st.integers(0))
def test_whatever_the_answers_the_found_set_fails_and_no_single_change_can_be_taken_out(
    count: int, seed: int
) -> None:
    """Failures that come and go with unrelated changes, too: no order is assumed among sets."""
    everything = frozenset(range(count))
    answers: dict[frozenset[int], bool] = {frozenset(): False, everything: True}

    def attempt(changes: frozenset[int]) -> bool:
        assert changes not in answers, "asked twice, or for what was given"
        answers[changes] = hash((seed, tuple(sorted(changes)))) % 3 == 0
        return answers[changes]

    found = find_smallest_failing(range(count), attempt)
    assert answers[frozenset(found)]
    assert not any(answers[frozenset(less)] for less in combinations(found, len(found) - 1))
