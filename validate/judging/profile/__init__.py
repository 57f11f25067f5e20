"""Judges of profiles' claims: P1 on a CPU, P2 on a GPU."""

from __future__ import annotations

from collections.abc import Mapping

from validate.judging import Judging
from validate.judging.profile import behaviour

JUDGES: Mapping[str, Judging] = {"P1": behaviour.judge, "P2": behaviour.judge}
