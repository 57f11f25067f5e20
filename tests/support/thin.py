"""Validate small images that bear the labels of big ones, for tests that publish them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from images.building import run_files, validating
from images.engine import Engine, ImageInfo
from images.registry.reference import Repository
from validate.claims import Claim, ClaimSet, Tier
from validate.judging import Status

EINOPS = {
    "einops/__init__.py": b"",
    "einops-0.8.2.dist-info/METADATA": b"Metadata-Version: 2.1\nName: einops\nVersion: 0.8.2\n",
    "einops-0.8.2.dist-info/WHEEL": (
        b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    ),
    "einops-0.8.2.dist-info/RECORD": (
        b"einops/__init__.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\n"
        b"einops-0.8.2.dist-info/METADATA,,\n"
        b"einops-0.8.2.dist-info/WHEEL,,\n"
        b"einops-0.8.2.dist-info/RECORD,,\n"
    ),
}
"""An installed distribution of one empty module."""
EINOPS_CLAIM = Claim(
    check="pins",
    subject="einops",
    tier=Tier.STATIC,
    probe="static.pins",
    statement="`import einops` is einops 0.8.2",
    expect={
        "version": "0.8.2",
        "locals": [""],
        "modules": ["einops"],
        "python": "3.11",
        "shares": [],
    },
)


@dataclass(frozen=True)
class Thin:
    """A small image, and the folder of its attestation."""

    info: ImageInfo
    folder: Path


def validated(
    engine: Engine,
    tag: str,
    folder: Path,
    claims: ClaimSet,
    tiers: Sequence[Tier],
    base: Mapping[str, str],
) -> Thin:
    """Judge an image that was built, and leave in the folder what a build leaves."""
    thin = judged(engine, engine.inspect(tag), folder, claims, tiers)
    record = {"digest": thin.info.digest, "base": base, "engine": {"version": engine.facts.version}}
    (folder / "build.json").write_text(json.dumps(record))
    return thin


def judged(
    engine: Engine, info: ImageInfo, folder: Path, claims: ClaimSet, tiers: Sequence[Tier]
) -> Thin:
    """Judge an image, and leave only evidence and verdict in the folder."""
    evidence, verdict = validating.measure_and_judge(engine, info.handle, claims, tiers)
    run_files.record_validation(folder, evidence, verdict)
    return Thin(info, folder)


def verdict_of(thin: Thin) -> Status:
    """Return the verdict that was left in the folder."""
    return Status(json.loads((thin.folder / "verdict.json").read_text())["overall"])


def production(staging: Repository) -> Repository:
    """Return the repository to which images of a staging repository are promoted."""
    return replace(staging, name=staging.name.replace("staging", "production"))
