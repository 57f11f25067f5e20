"""Which CUDA build of torch stands beside a toolkit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from images.config.facts import Facts, TorchFacts
from images.config.names import Minor
from images.planning.candidate import Candidate
from images.planning.rules.rule import Finding, rule, warn


def choose_variant(torch: TorchFacts, toolkit: Minor) -> Minor | None:
    """The CUDA build of torch to put beside a toolkit: its own, else the nearest lower minor of the same major.

    CUDA's minor version compatibility allows the difference; torch's extension builder only warns about it.
    """
    return _nearest(tuple(torch.variants), toolkit)


@cache
def _nearest(variants: tuple[str, ...], toolkit: Minor) -> Minor | None:
    same_major = [minor for minor in map(Minor.parse, variants) if minor.major == toolkit.major]
    return max((minor for minor in same_major if minor <= toolkit), default=None)


def no_variant(torch_version: str, torch: TorchFacts, toolkit: Minor) -> str:
    """Why `choose_variant` found nothing."""
    has = ", ".join(f"cu{minor.digits}" for minor in sorted(map(Minor.parse, torch.variants)))
    if any(Minor.parse(text).major == toolkit.major for text in torch.variants):
        why = f"the oldest for CUDA {toolkit.major} is newer than toolkit {toolkit}"
    else:
        why = f"none for CUDA {toolkit.major}"
    return f"torch {torch_version} has wheels for {has}: {why}"


def min_driver(facts: Facts, wheel_cuda: Minor) -> str:
    """The oldest driver that runs this CUDA major (minor version compatibility)."""
    return facts.minimum_drivers[str(wheel_cuda.major)].driver


@rule
def wheel_is_older_than_toolkit(candidate: Candidate) -> Iterator[Finding]:
    toolkit, wheel = candidate.name.cuda, candidate.wheel_cuda
    if wheel != toolkit:
        yield warn(
            f"torch {candidate.torch} has no cu{toolkit.digits} wheel: toolkit {toolkit} beside its "
            f"cu{wheel.digits} wheel (CUDA minor version compatibility)"
        )


@rule
def variant_is_verified(candidate: Candidate) -> Iterator[Finding]:
    if unverified := candidate.variant.unverified:
        build = f"torch {candidate.torch} cu{candidate.wheel_cuda.digits}"
        yield warn(f"archs of {build} are not measured ({unverified})")
