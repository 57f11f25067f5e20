"""Break a real image on purpose: faults as layers on top of it, and verdicts about the result."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from images.building import validating
from images.context.hosting import host_settings
from images.engine import Engine, ImageInfo
from images.validation import containers
from tests.support.checkout import ROOT
from tests.support.engine_contents import built
from validate.claims import ClaimSet, Tier
from validate.judge import Verdict

NAME = "cu126-torch27"
_PLAIN = re.compile("RUN (?!--mount)(.*)")


@dataclass(frozen=True)
class Fault:
    """A thin layer that breaks the base image, and the claim that must notice it."""

    name: str
    layer: str
    """An instruction of a Dockerfile, run as root."""
    claim: str
    subject: str
    culprit: str
    """What the reason of the verdict must name."""
    last: str = ""
    """Instructions that come after the image's user is set again."""


SITE = "/opt/venv/lib/python3.11/site-packages"
INSTALL = (
    "RUN --mount=type=bind,source=host,target=/run/host . /run/host/env "
    "&& unset PIP_CONSTRAINT PIP_BUILD_CONSTRAINT "
    "&& pip install -q --no-deps --no-cache-dir"
)
"""Begins a step that installs any package, whatever the image's constraints say."""
BREAKS = ROOT / "tests" / "integration" / "breaks"
"""Programs that faults run in their layers."""


@contextmanager
def broken(
    engine: Engine, base_image: ImageInfo, name: str, faults: Sequence[Fault]
) -> Iterator[str]:
    """Yield the name of an image: the base image with these faults on top. It is removed later.

    Plain commands that follow one another are put into one layer, which is faster to build.
    """
    layers: list[str] = []
    for fault in faults:
        plain = _PLAIN.fullmatch(fault.layer)
        if plain and layers and _PLAIN.fullmatch(layers[-1]):
            layers[-1] += f" && ({plain[1]})"
        elif plain:
            layers.append(f"RUN ({plain[1]})")
        else:
            layers.append(fault.layer)
    last = "\n".join(fault.last for fault in faults)
    dockerfile = "\n".join(
        [f"FROM {NAME}", "USER root", *layers, f"USER {base_image.user}", last, ""]
    )

    files: dict[str, bytes | Path] = {**host_settings().files()}
    for file in BREAKS.iterdir():
        if file.is_file():
            files[f"breaks/{file.name}"] = file.read_bytes()
    suite = containers.suite_files(ClaimSet(image=NAME, claims=()))
    for path, content in suite.items():
        files[f"suite/{path}"] = content
    with built(engine, f"truetag-test-{name}", dockerfile, files) as tag:
        yield tag


def judged(engine: Engine, reference: str, claims: ClaimSet, *checks: str) -> Verdict:
    """Measure an image and judge the claims of these checks (of all, if none is named)."""
    chosen = tuple(claim for claim in claims.claims if not checks or claim.check in checks)
    assert chosen, "a check that looks at nothing finds nothing"
    claim_set = ClaimSet(image=claims.image, claims=chosen)
    _, verdict = validating.measure_and_judge(
        engine, reference, claim_set, (Tier.STATIC, Tier.CPU), run_anyway=True
    )
    return verdict
