"""Runs of parts of an image's claims (`validate --claim`, a tier at a time), as the one run that they are. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from images.errors import Problem, UserError
from images.validation.run import merged
from validate.evidence import Evidence

_MACHINE = ("gpus", "driver", "engine", "cpus")
"""What must be the same. A part whose tiers take no GPU knows of none."""


def joined(parts: Sequence[tuple[str, Evidence]]) -> Evidence:
    """One evidence of parts, each with the place that it came from.

    Raises UserError: parts of other images or machines, or a claim that two parts measured, as one of them would hide
    what the other found.
    """
    (_, first), *others = parts
    if not others:
        return first
    problems = [problem for place, part in others for problem in _misfits(place, part, first, _machine(parts))]
    measured: dict[tuple[str, str], str] = {}
    for place, part in parts:
        for claim in part.claims:
            key = (claim.id, claim.subject)
            if key in measured:
                problems.append(_twice(place, " ".join(key), measured[key]))
            measured[key] = place
    if problems:
        raise UserError(problems)
    return Evidence(
        image=first.image,
        digest=first.digest,
        records=merged([record for _, part in parts for record in part.records]),
        host=_host(parts),
        claims=tuple(claim for _, part in parts for claim in part.claims),
    )


def _machine(parts: Sequence[tuple[str, Evidence]]) -> Mapping[str, Any]:
    """The host as the first part with GPUs saw it; as the first part, where none had any."""
    return next((part.host for _, part in parts if part.host.get("gpus")), parts[0][1].host)


def _host(parts: Sequence[tuple[str, Evidence]]) -> dict[str, Any]:
    dates = [part.host["date"] for _, part in parts if part.host.get("date")]
    ran_out = any(part.host.get("out_of_memory") for _, part in parts)
    return {**_machine(parts), **({"date": min(dates)} if dates else {}), "out_of_memory": ran_out}


def _misfits(place: str, part: Evidence, first: Evidence, machine: Mapping[str, Any]) -> list[Problem]:
    then = "record it alone, with another word"
    if (part.image, part.digest) != (first.image, first.digest):
        cause = f"is of {part.image} {part.digest[:19]}, the first part of {first.image} {first.digest[:19]}"
        return [Problem(where=place, cause=cause, then=then)]
    keys = [key for key in _MACHINE if part.host.get("gpus") or key not in ("gpus", "driver")]
    differing = [key for key in keys if part.host.get(key) != machine.get(key)]
    return (
        [Problem(where=place, cause=f"is of another machine: {', '.join(differing)}", then=then)] if differing else []
    )


def _twice(place: str, claim: str, before: str) -> Problem:
    cause = f"{claim} was measured in {before} already: one of both would hide the other"
    return Problem(where=place, cause=cause, then="record one of them, and the other with another word")
