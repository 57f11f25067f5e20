"""Judges of the static tier: S1 to S10, one module a subject."""

from __future__ import annotations

from collections.abc import Mapping

from validate.judging import Judging, by_subject
from validate.judging.static import (
    devicecode,
    environment,
    files,
    host_image,
    hygiene,
    libraries,
    owners,
    pins,
    symbols,
    system,
    toolkit,
    wheels,
)

JUDGES: Mapping[str, Judging] = {
    "S1": pins.judge,
    "S2": files.judge,
    "S3": libraries.judge,
    "S4": symbols.judge,
    "S5": devicecode.judge,
    "S6": toolkit.judge,
    "S7": environment.judge,
    "S8": by_subject({**host_image.JUDGES, **hygiene.JUDGES}),
    "S9": by_subject(system.JUDGES),
    "S10": by_subject({**owners.JUDGES, "": wheels.judge}),
}
