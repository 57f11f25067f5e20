"""Contracts of profiles' claims: P1 on a CPU, P2 on a GPU, P3 on several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict


class ExampleExpect(TypedDict):
    """An example to run (validate/examples/)."""

    folder: str
    """Below examples/: where its commands run."""
    commands: Sequence[str]
    config: str
    """The file that says what it trains, in `folder`."""
    adapter: str
    """The module in validate/examples/adapters/ that reads what it left."""
    seconds: float
    """For all of its commands."""


class BehaviourExpect(TypedDict, total=False):
    """What must hold of the evidence, by its key."""

    program: str
    """What the probe runs."""
    example: ExampleExpect
    equal: Mapping[str, object]
    holds: Mapping[str, Sequence[str]]
    """Items that must be among what was found."""
    at_most: Mapping[str, float]
    at_least: Mapping[str, float]
    """Of controls, too: what a broken image would make small."""


BehaviourEvidence = Mapping[str, object]
"""Facts by name, each of which a row of BehaviourExpect may name; or `error`."""
