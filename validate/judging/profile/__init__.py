"""Judges of profiles' claims: P1 on a CPU, P2 on a GPU, P3 on several."""

from __future__ import annotations

from collections.abc import Mapping

from validate.judging import Judging
from validate.judging.profile import behaviour

JUDGES: Mapping[str, Judging] = dict.fromkeys(("P1", "P2", "P3"), behaviour.judge)
"""P1 to P3: what a framework did, against what the claim expects of it."""
