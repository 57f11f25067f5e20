"""The search for culprits: the set it finds fails, is smallest, and took few attempts.

The sets of changes that fail are drawn at random (hypothesis).
"""

from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from math import ceil, log2

from hypothesis import given
from hypothesis import strategies as st

from images.nightly.bisection import find_smallest_failing


@st.composite
def counts_and_culprits(draw: st.DrawFn, most_culprits: int = 3) -> tuple[int, frozenset[int]]:
    """How many changes there are, and which of them break it together."""
    count = draw(st.integers(1, 60))
    changes = st.integers(0, count - 1)
    return count, draw(st.frozensets(changes, min_size=1, max_size=most_culprits))


@given(counts_and_culprits())
def test_culprits_that_are_needed_together_are_found_in_few_attempts(
    case: tuple[int, frozenset[int]],
) -> None:
    count, culprits = case
    attempts = Counter[frozenset[int]]()

    def attempt(changes: frozenset[int]) -> bool:
        attempts[changes] += 1
        return culprits <= changes

    found = find_smallest_failing(range(count), attempt)

    assert found == tuple(sorted(culprits))
    assert len(attempts) == attempts.total(), "no set is tried twice"
    halvings = ceil(log2(count))
    assert len(attempts) <= len(culprits) * (halvings + len(culprits) + 2)
    if len(culprits) == 1:
        assert len(attempts) <= halvings + 1


@given(counts_and_culprits(most_culprits=2), st.data())
def test_a_change_that_needs_others_is_found_with_all_that_it_needs(
    case: tuple[int, frozenset[int]], data: st.DataObject
) -> None:
    """A set that lacks something needed cannot be decided, and so counts as passed."""
    count, culprits = case
    needs = data.draw(needs_without_circles(count))

    def attempt(changes: frozenset[int]) -> bool:
        is_decided = all(needs.get(change, frozenset()) <= changes for change in changes)
        return is_decided and culprits <= changes

    found = find_smallest_failing(range(count), attempt)

    assert frozenset(found) == with_needs(culprits, needs)


@st.composite
def needs_without_circles(draw: st.DrawFn, count: int) -> Mapping[int, frozenset[int]]:
    """Change -> the other changes that it needs. None needs itself, not even through others."""
    rank = draw(st.permutations(range(count)))
    change = st.integers(0, count - 1)
    pairs = draw(st.lists(st.tuples(change, change), max_size=12))
    needs: dict[int, frozenset[int]] = {}
    for needing, needed in pairs:
        # A change may only need one of a lower rank.
        if rank[needed] < rank[needing]:
            needs[needing] = needs.get(needing, frozenset()) | {needed}
    return needs


def with_needs(changes: frozenset[int], needs: Mapping[int, frozenset[int]]) -> frozenset[int]:
    """These changes, all that they need, and all that those need."""
    more = changes.union(*(needs.get(change, frozenset()) for change in changes))
    return changes if more == changes else with_needs(more, needs)


@given(st.integers(1, 12), st.integers(0))
def test_whatever_fails_the_set_found_fails_and_no_change_can_be_taken_out(
    count: int, seed: int
) -> None:
    """Failures that come and go with unrelated changes, too: no order is assumed among sets."""
    no_change = frozenset[int]()
    all_changes = frozenset(range(count))
    answers = {no_change: False, all_changes: True}

    def attempt(changes: frozenset[int]) -> bool:
        assert changes not in answers, "it was tried before, or is assumed"
        answers[changes] = hash((seed, tuple(sorted(changes)))) % 3 == 0
        return answers[changes]

    found = find_smallest_failing(range(count), attempt)

    assert answers[frozenset(found)]
    smaller_sets = combinations(found, len(found) - 1)
    assert not any(answers[frozenset(smaller)] for smaller in smaller_sets)
