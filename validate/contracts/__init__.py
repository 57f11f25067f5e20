"""What each claim expects and what its probe yields: a pair of TypedDicts a claim, for writer, probe and judge.

A module a tier. Keys that may be absent stand in a base class with `total=False`: Python 3.10, which a custom base may
bring, has no NotRequired. Floats that are not finite arrive as text (validate/suite.py `plain`), and satisfy no judge.
"""

from __future__ import annotations

from typing import TypedDict


class Raised(TypedDict):
    """An exception as evidence."""

    kind: str
    message: str


class Error(Raised, total=False):
    log: str
    """The tail of what the forked process printed."""


class Measured(TypedDict, total=False):
    """Base of evidence of a measurement that may raise: then there is `error` and nothing else to rely on."""

    error: Error


class NoEvidence(TypedDict):
    """Nothing was measured: there is nothing to measure it on, or the claim is not applicable to this host."""


class Exempt(TypedDict, total=False):
    """Base of what a claim expects that some hosts make not applicable."""

    not_applicable: str
    """Why."""
