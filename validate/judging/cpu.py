"""Judges of the cpu tier."""

from __future__ import annotations

from collections.abc import Mapping

from validate.judging import Judging

JUDGES: Mapping[str, Judging] = {}
