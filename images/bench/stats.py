"""Several measurements of one thing: median, spread, growth. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median


def middle(values: Sequence[float]) -> float:
    """The median. Raises ValueError for no values: a median of nothing would be made up."""
    if not values:
        raise ValueError("nothing was measured")
    return median(values)


def spread(values: Sequence[float]) -> float:
    """Distance of the extremes, as a part of the median: 0.1 is 10 %. 0 for one value."""
    centre = middle(values)
    return (max(values) - min(values)) / centre if centre else 0.0


def steps(counts: Sequence[int], runs: Sequence[Sequence[float]]) -> list[float]:
    """What a further item costs between each two counts, by the least that each took: noise only ever adds."""
    least = [min(values) for values in runs]
    return [(y - x) / (b - a) for (a, x), (b, y) in pairwise(zip(counts, least, strict=True))]


def grows_linearly(counts: Sequence[int], runs: Sequence[Sequence[float]], tolerance: float = 1.5) -> bool | None:
    """Whether each further item costs at most `tolerance` times what one cost between the two counts before.

    Steps are compared, not totals: a fixed cost at the start would hide a curve. None: a step is smaller than the
    range of the runs at one of its ends, so it says nothing; nor does a single run.
    Raises ValueError below three counts.
    """
    if len(counts) < 3:
        raise ValueError("a line through two points is always straight")
    if min(map(len, runs)) < 2:
        return None
    ranges = [max(values) - min(values) for values in runs]
    slopes = steps(counts, runs)
    for slope, (a, b), ends in zip(slopes, pairwise(counts), pairwise(ranges), strict=True):
        if max(ends) >= slope * (b - a):
            return None
    return all(later <= earlier * tolerance for earlier, later in pairwise(slopes))


def there_and_back(sides: Sequence[str], repeat: int) -> list[list[str]]:
    """The order of each round, every second one backwards: what runs early in one runs late in the next."""
    return [[*reversed(sides)] if number % 2 else [*sides] for number in range(repeat)]


def turns(sides: Sequence[str], repeat: int) -> list[list[str]]:
    """The order of each round: every side goes first in turn, so that none is always helped by what ran before it."""
    return [[*sides[shift:], *sides[:shift]] for shift in (number % len(sides) for number in range(repeat))]
