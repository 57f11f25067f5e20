"""From the command to its verdict, of an image that is built already."""

from __future__ import annotations

import json

from images.bench.data import TOGETHER, TierRun, TrialData
from images.bench.parts.session import SUBJECT, BenchmarkRun, load_around
from images.bench.project_copy import ProjectCopy, project_copy
from images.planning.image import Image

_ASKED = {"static": ("static",), "cpu": ("cpu",), TOGETHER: ("static", "cpu")}
"""Row of the table -> tiers of one command: a build's tiers share cores, so both together take less than their sum."""


def trial(bench: BenchmarkRun) -> TrialData:
    """Seconds from the command to its verdict, of each tier and of both."""
    with project_copy(bench.engine, SUBJECT) as (project, image):
        project.build(image)
        tiers = [_judged(bench, project, image, tier) for _ in range(bench.repeat) for tier in _ASKED]
    return {"image": SUBJECT, "tiers": tiers}


def _judged(bench: BenchmarkRun, project: ProjectCopy, image: Image, tier: str) -> TierRun:
    file = project.root / "verdict.json"
    with load_around() as load:
        asked = [option for one in _ASKED[tier] for option in ("--tier", one)]
        usage = project.run("validate", str(image.name), *asked, "--json", str(file))
    claims = json.loads(file.read_text())["claims"]
    bench.say(f"{tier}: {len(claims)} claims in {usage.seconds:.1f} s")
    return {
        "tier": tier,
        "claims": len(claims),
        "seconds": round(usage.seconds, 2),
        "peak": usage.peak,
        "load": load,
    }
