"""What tests of broken images share: how a fault is told, laid on the real parent, and judged."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

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
    """A thin layer that breaks the parent, and who must notice."""

    name: str
    layer: str
    claim: str
    subject: str
    culprit: str
    """What the reason must name."""
    last: str = ""
    """Instructions after the user is set back."""


SITE = "/opt/venv/lib/python3.11/site-packages"
INSTALL = (
    "RUN --mount=type=bind,source=host,target=/run/host . /run/host/env && unset PIP_CONSTRAINT PIP_BUILD_CONSTRAINT "
    "&& pip install -q --no-deps --no-cache-dir"
)
BREAKS = ROOT / "tests" / "integration" / "breaks"
"""Programs that faults run in their layers."""


@contextmanager
def broken(engine: Engine, parent: ImageInfo, name: str, faults: Sequence[Fault]) -> Iterator[str]:
    """The parent with its faults in thin layers on top, of plain commands several in one; removed afterwards."""
    layers, last = list[str](), "\n".join(one.last for one in faults)
    for layer in (one.layer for one in faults):
        plain = _PLAIN.fullmatch(layer)
        if plain and layers and _PLAIN.fullmatch(layers[-1]):
            layers[-1] += f" && ({plain[1]})"
        else:
            layers.append(f"RUN ({plain[1]})" if plain else layer)
    dockerfile = "\n".join([f"FROM {NAME}", "USER root", *layers, f"USER {parent.user}", last, ""])
    scripts = {
        f"breaks/{file.name}": file.read_bytes() for file in BREAKS.iterdir() if file.is_file()
    }
    of_suite = containers.suite_files(ClaimSet(image=NAME, claims=()))
    suite = {f"suite/{path}": content for path, content in of_suite.items()}
    with built(
        engine, f"truetag-test-{name}", dockerfile, {**host_settings().files(), **scripts, **suite}
    ) as tag:
        yield tag


def judged(engine: Engine, reference: str, claims: ClaimSet, *checks: str) -> Verdict:
    """Judge the claims of these checks (all, if none is named)."""
    chosen = tuple(claim for claim in claims.claims if not checks or claim.check in checks)
    assert chosen, "a check that looks at nothing finds nothing"
    asked = ClaimSet(image=claims.image, claims=chosen)
    return validating.measure_and_judge(
        engine, reference, asked, (Tier.STATIC, Tier.CPU), run_anyway=True
    )[1]
