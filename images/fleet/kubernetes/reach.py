"""Which due pairs a Job would leave as they are. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from images.fleet.gather import Located
from images.fleet.planning import PlannedPair, State
from images.validation import limits


def out_of_reach(planned: Iterable[PlannedPair], located: Sequence[Located]) -> tuple[PlannedPair, ...]:
    """The due pairs whose records lack only what a pod can't give, or what no engine here can be asked about."""
    never = {(one.planned.name, one.planned.digest): _never_given(one) for one in located}
    return tuple(
        one
        for one in planned
        if one.state is State.DUE and one.lacks and one.lacks <= never[one.pair.image, one.pair.digest]
    )


def _never_given(one: Located) -> frozenset[str]:
    is_here = one.found is not None and one.found.local is not None
    return frozenset(limits.of_kubernetes(one.planned.claims, has_image=is_here))
