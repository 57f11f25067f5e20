"""Judges a new wheel beside torch before the wheel cache takes it: symbols, and device code for each architecture."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from io import BytesIO
from pathlib import Path
from typing import Any

from images.config.facts import Facts
from images.config.names import Arch
from images.engine import Engine
from images.errors import Problem, UserError
from images.planning.image import Image, Pin
from images.validation import run
from images.validation.claims.context import ClaimContext
from images.validation.claims.device_code import kernel_code_claim
from images.validation.claims.image import image_claims
from images.wheels.recipe import Recipe, beside
from validate.claims import Claim, ClaimSet, Tier
from validate.judge import Verdict, judge
from validate.judging import Status

_JUDGED = {("S3", "environment"), ("S4", "symbols")}


def judge_wheel(
    engine: Engine, tag: str, image: Image, wanted: Recipe, content: bytes, facts: Facts, log: Path
) -> Verdict:
    """Symbols and device code of the new wheel beside torch. Raises UserError unless every claim holds."""
    claims = ClaimSet(image=tag, claims=tuple(_claims(image, wanted, content, facts)))
    evidence = run.measure(engine, tag, claims, run.Options(tiers=[Tier.STATIC]))
    verdict = judge(claims, evidence, [Tier.STATIC])
    wrong = [one for one in verdict.claims if one.status is not Status.PASS]
    if wrong:
        where = f"{wanted.distribution} {wanted.version}"
        then = f"it is not kept; what did the compiler do? {log}"
        raise UserError(
            [
                Problem(where=where, cause=f"compiled, but {one.claim.id} is {one.status}: {one.reason}", then=then)
                for one in wrong
            ],
            code=1,
        )
    return verdict


def _claims(image: Image, wanted: Recipe, content: bytes, facts: Facts) -> Iterator[Claim]:
    new = Pin(name=wanted.distribution, version=wanted.version, layer="torch")
    beside_torch = replace(image, pins=(*beside(image), new), prebuilt=())
    for claim in image_claims(ClaimContext(image=beside_torch, facts=facts)).claims:
        if (claim.id, claim.subject) in {*_JUDGED, ("S1", wanted.distribution)}:
            yield claim
    if wanted.archs:
        archs = dict.fromkeys(map(Arch.parse, wanted.archs), "cubin")
        yield kernel_code_claim(image, wanted.distribution, [], archs, also=libraries(content))


def libraries(content: bytes) -> tuple[str, ...]:
    """The libraries in a wheel."""
    with zipfile.ZipFile(BytesIO(content)) as archive:
        return tuple(sorted(name for name in archive.namelist() if re.search(r"\.so(?:\.\d+)*$", name)))


def wheel_record(
    wanted: Recipe, done: Mapping[str, Any], verdict: Verdict, base: str, jobs: int, seconds: float
) -> dict[str, Any]:
    return {
        "key": wanted.key,
        "recipe": asdict(wanted),
        "compilers": done["compilers"],
        "base_digest": base,
        "objects": done["objects"],
        "shim": done["shim"],
        "jobs": jobs,
        "seconds": round(seconds, 1),
        "verdict": [
            {
                "id": one.claim.id,
                "subject": one.claim.subject,
                "verdict": str(one.status),
                "reason": one.reason,
            }
            for one in verdict.claims
        ],
    }
