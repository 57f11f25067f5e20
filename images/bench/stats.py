"""Several values of one thing: its median, and how far they lie apart. Pure."""

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
    """How far the extremes lie apart, as a part of the median: 0.1 is 10 %. 0 for one value."""
    centre = middle(values)
    return (max(values) - min(values)) / centre if centre else 0.0


def grows_linearly(counts: Sequence[int], costs: Sequence[float], tolerance: float = 1.5) -> bool:
    """Whether each further item costs at most `tolerance` times what one cost between the two counts before.

    Steps are compared, not totals: a fixed cost at the start would hide a curve. Raises ValueError below three counts.
    """
    if len(counts) < 3:
        raise ValueError("a line through two points is always straight")
    pairs = list(zip(counts, costs, strict=True))
    slopes = [(y - x) / (b - a) for (a, x), (b, y) in pairwise(pairs)]
    return all(later <= earlier * tolerance for earlier, later in pairwise(slopes))


def turns(sides: Sequence[str], repeat: int) -> list[list[str]]:
    """The order of each round: every side goes first in turn, so that none is always helped by what ran before it."""
    return [[*sides[shift:], *sides[:shift]] for shift in (number % len(sides) for number in range(repeat))]
