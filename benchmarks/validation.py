"""A validation run, from the command to its verdict, of an image that is built already."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.results import load_around
from benchmarks.session import SUBJECT, ProjectCopy, Session, project_copy
from images.planning.image import Image

_ASKED = {"static": ("static",), "cpu": ("cpu",), "static and cpu": ("static", "cpu")}
"""Row of the table -> tiers of one command: a build's tiers share cores, so both together take less than their sum."""


def measure(session: Session) -> dict[str, Any]:
    """Seconds from the command to its verdict, of each tier and of both."""
    with project_copy(session.engine) as (project, image):
        project.build(image)
        tiers = [_validated(session, project, image, tier) for _ in range(session.repeat) for tier in _ASKED]
    return {"image": SUBJECT, "tiers": tiers}


def _validated(session: Session, project: ProjectCopy, image: Image, tier: str) -> dict[str, Any]:
    file = project.root / "verdict.json"
    with load_around() as load:
        asked = [option for one in _ASKED[tier] for option in ("--tier", one)]
        usage = project.run("validate", str(image.name), *asked, "--json", str(file))
    claims = len(json.loads(file.read_text())["claims"])
    session.say(f"{tier}: {claims} claims in {usage.seconds:.1f} s")
    return {"tier": tier, "claims": claims, "seconds": round(usage.seconds, 2), "load": load}
