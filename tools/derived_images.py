"""Build forty derived images, and compare the verdict of each with the one that a person gave it.

    python -m tools.derived_images cu126-torch25 --tier static --tier cpu
    python -m tools.derived_images cu126-torch25 --tier cpu --only uv --only autoawq --claim added

derived_images.yaml has their Dockerfiles, which have the shapes of public ones: twenty that are
healthy, and twenty that break by accident. The base image must be there (`build NAME`); packages
come from this machine's indexes. A validation of all forty takes an hour on two cores.
Each image is judged twice: on the host, and by its own `validate`. Exit status 1: a healthy image
failed, a fault was not named, or the two came to different verdicts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NamedTuple

import typer
import yaml

from images.building import validating
from images.commands import common
from images.config import matrix
from images.config.matrix import Sources
from images.context.hosting import MOUNT, host_settings
from images.engine import ContainerSpec, Engine, private_engine
from images.hardware.inventory import GpuMode
from images.planning.image import Image
from tools import run
from validate import report
from validate.claims import ClaimSet, Tier
from validate.derived import DECLARATION, LOCK_CLAIM
from validate.judging import Status

FILE = Path(__file__).with_suffix(".yaml")
_HOST = f"RUN --mount=type=bind,source=host,target={MOUNT} . {MOUNT}/env && "
"""Begins a step that has this machine's settings for indexes and proxies."""
CLAIMS = PurePosixPath("/opt/truetag/claims.json")
"""The file of an image with its claims."""
_SECONDS = 3600
"""How long the image's own `validate` may take."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A derived image of derived_images.yaml."""

    name: str
    source: str
    """Where such a Dockerfile, or such a fault, was seen."""
    steps: str
    """The lines of its Dockerfile after FROM."""
    fault: str = ""
    """What the reason of a failed claim must name; empty: the image is healthy."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Path in the context -> content."""
    declared: str = ""
    """The content of its derived.toml."""


def read_rows() -> list[Row]:
    """Return the rows of derived_images.yaml."""
    return [Row(**row) for row in yaml.safe_load(FILE.read_text(encoding="utf-8"))]


def main(
    name: str,
    tier: Annotated[list[Tier], typer.Option()] = [Tier.STATIC],  # noqa: B006  typer's
    only: Annotated[list[str], typer.Option()] = [],  # noqa: B006
    claim: Annotated[list[str], typer.Option()] = [],  # noqa: B006
) -> None:
    """Build and judge the images, and print each that got another verdict than it should.

    `only`: names of rows; empty: all. `claim`: as that of `validate`; empty: all claims.
    """
    sources = matrix.load()
    (image,) = common.select_accepted([name], sources, exactly_one=True)
    rows = [row for row in read_rows() if not only or row.name in only]
    wrong_count = 0
    with private_engine.open_engine(None, on_progress=common.say) as engine:
        for number, row in enumerate(rows):
            tag = f"truetag-derived:{os.getpid()}-{number}"
            build(engine, image.local_name, row, tag)
            try:
                on_host = judge_on_host(engine, image, sources, tag, tier, claim)
                inside = judge_inside(engine, tag, tier, claim)
            finally:
                engine.remove(tag, force=True)
            problem = compare(row, on_host, inside)
            typer.echo(f"{row.name}: {problem or 'as it should be'}")
            typer.echo(f"    host {on_host.describe()}, container {inside.describe()}")
            if row.fault:
                typer.echo(f"    {row.fault!r} is named by {', '.join(on_host.naming(row.fault))}")
            wrong_count += bool(problem)
    typer.echo(f"{len(rows) - wrong_count} of {len(rows)} images are as they should be")
    raise typer.Exit(1 if wrong_count else 0)


def build(engine: Engine, base: str, row: Row, tag: str) -> None:
    """Build the derived image of a row on a base image, with this machine's index settings."""
    steps = re.sub("^RUN ", _HOST, row.steps, flags=re.MULTILINE)
    host = host_settings()
    files = {**host.files(), **{path: text.encode() for path, text in row.files.items()}}
    if row.declared:
        files["derived.toml"] = row.declared.encode()
        steps = f"COPY derived.toml {DECLARATION}\n{steps}"
    files["Dockerfile"] = f"FROM {base}\n{steps}".encode()
    engine.build(files, tag, network=host.network(local=engine.facts.local))


class Judged(NamedTuple):
    """The verdict on an image, as far as its required claims are concerned."""

    failing: Mapping[str, str]
    """Claim that failed -> the reason."""
    holding: Collection[str]
    """Claims that hold."""
    overall: str = ""
    """`PASS`, `FAIL` or `UNPROVEN`."""

    def naming(self, fault: str) -> list[str]:
        """Return the failed claims whose reason names a fault."""
        return [claim for claim, reason in self.failing.items() if fault in reason]

    def describe(self) -> str:
        """Return `FAIL (added/imports, pins/torch)`, or `PASS`."""
        return f"{self.overall} ({', '.join(self.failing)})" if self.failing else self.overall


def compare(row: Row, on_host: Judged, inside: Judged) -> str:
    """Return how the verdicts on a derived image differ from what they should be; empty: not.

    `inside`: by its own `validate`, which leaves claims out that need the host or root
    (validate/inside.py). If its files are broken, the host starts nothing of it, and inside more
    claims are measured.
    """
    if not row.fault:
        failing = {**inside.failing, **on_host.failing}
        faults = [f"{claim}: {reason}" for claim, reason in failing.items()]
        return f"it is healthy, but: {'; '.join(faults)}" if faults else ""

    naming = on_host.naming(row.fault)
    if not naming:
        reasons = "; ".join(on_host.failing.values()) or "all of them hold"
        return f"no failed claim names {row.fault}: {reasons}"

    contradictions = [claim for claim in on_host.failing if claim in inside.holding]
    contradictions += [claim for claim in inside.failing if claim in on_host.holding]
    if contradictions:
        return f"host and container contradict each other: {', '.join(contradictions)}"
    return ""


def judge_on_host(
    engine: Engine,
    image: Image,
    sources: Sources,
    tag: str,
    tiers: Sequence[Tier],
    only: Sequence[str] = (),
) -> Judged:
    """Return the verdict of `validate` on the host. `only`: texts of --claim; empty: all claims."""
    measured = validating.validate_image(
        engine,
        image,
        tag,
        sources,
        tiers=tiers,
        only=only,
        gpus=GpuMode.NONE,
        say=lambda _text: None,
    )
    return read_verdict(report.json_data(measured.verdict))


def judge_inside(
    engine: Engine, tag: str, tiers: Sequence[Tier], only: Sequence[str] = ()
) -> Judged:
    """Return the verdict of the image's own `validate`. `only`: see `judge_on_host`.

    An image's `validate` has no option --claim, so its file of claims gets only these. Claims about
    additions do not stand in that file, and are judged in any case.
    """
    command = ["validate", "--json"]
    for tier in tiers:
        command += ["--tier", tier]
    # As `docker run` starts it, but without a network.
    spec = ContainerSpec(tag, command, read_only=False)
    with engine.container(spec) as container:
        if only:
            of_image = ClaimSet.loads(container.get_file(str(CLAIMS), most=1 << 24).decode())
            chosen = of_image.named_by([*only, LOCK_CLAIM])
            container.put({CLAIMS.name: chosen.dumps().encode()}, str(CLAIMS.parent))
        done = container.run(timeout=_SECONDS)
    return read_verdict(json.loads(done.stdout))


def read_verdict(verdict: Mapping[str, Any]) -> Judged:
    """Return the required claims of a verdict.json that failed, and those that hold."""
    failing = {}
    holding = []
    for claim in verdict["claims"]:
        key = f"{claim['check']}/{claim['subject']}"
        if claim["verdict"] == Status.PASS:
            holding.append(key)
        elif claim["required"] and claim["verdict"] == Status.FAIL:
            failing[key] = claim["reason"]
    return Judged(failing, holding, verdict["overall"])


if __name__ == "__main__":
    run(main)
