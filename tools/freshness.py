"""Every pin beside the newest release on the index, and why it is not that one: `python -m tools.freshness [REV]`.

REV is the commit whose matrix.yaml is "was". The reasons are a nightly run's (images/nightly/sets.py), asked for one
image of each stack and profile that has a lock. Nothing is built.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
import yaml
from packaging.version import Version

from images.config import matrix
from images.config.matrix import Sources
from images.errors import wrong
from images.locking import lock_file, uv
from images.nightly import sets
from images.planning import plan
from images.planning.image import Image
from tools import run


def rows(image: Image, sources: Sources, was: Mapping[str, str], runner: uv.Runner = uv.run) -> Iterator[list[str]]:
    """[package, was, is, newest, reason] of each pin, part of the toolkit and override. Raises UserError: no answer."""
    control = sets.Locked(image=image, lock=lock_file.read(image, sources.workspace.locks))
    refused = sets.refused_by_facts(image, sources)
    wanted = sets.requirements(control, sources.matrix.nightly, refused)
    chosen = uv.versions(wanted, control.lock.inputs, preferred={}, run=runner, where=str(image.name))
    canary = sets.relocked(control, chosen, runner)
    pythons = sorted({str(base.python) for base in sources.matrix.bases.values()}, key=Version)
    gaps = {gap.name: gap.reason for gap in sets.gaps(control, canary, wanted, refused, pythons, runner)}
    stays = sources.matrix.nightly.why_kept(str(image.name.torch), datetime.now(UTC).date())
    gaps |= {one.name: f"one release of CUDA {image.toolkit_cuda}" for one in image.toolkit}
    pins = [(pin.name, pin.version, pin.layer) for pin in (*image.pins, *image.toolkit)]
    for name, version, layer in [*pins, *((*one.split("=="), "override") for one in image.overrides)]:
        released = [sets.released(name, python, control.lock.inputs, runner) for python in pythons]
        newest, reason = max(filter(None, released), key=Version, default=""), ""
        if not newest:
            reason = "the index has its source alone"
        elif Version(newest) > Version(version):
            held = {"torch": "a newer torch is another stack", "override": "of the release that the override is for"}
            moves = stays or f"not moved yet: a canary takes {canary.versions.get(name)}"
            reason = gaps.get(name) or held.get(layer, moves)
        yield [name, was.get(name, "-"), version, newest or "-", " ".join(reason.partition(" uv says")[0].split())]


def main(revision: Annotated[str, typer.Argument(metavar="REV")] = "HEAD") -> None:
    sources, seen = matrix.load(), set[tuple[str, str]]()
    before = subprocess.run(["git", "show", f"{revision}:matrix.yaml"], capture_output=True, text=True, check=False)
    if before.returncode:
        raise wrong(revision, "git has no matrix.yaml of it", "name a commit: `git log -- matrix.yaml` lists them")
    old: dict[str, Any] = yaml.load(before.stdout, yaml.BaseLoader)
    for image in (one.image for one in plan.plan(sources) if one.image):
        key = torch, profile = str(image.name.torch), image.name.profile or ""
        if key in seen or not lock_file.is_present(image, sources.workspace.locks):
            continue
        seen.add(key)
        was = {**old["common"], **old["stacks"].get(torch, {})}
        for one in sources.matrix.line(profile) if profile else ():
            name = next(name for name, row in sources.matrix.profiles.items() if row is one)
            was |= old["profiles"].get(name, {}).get("stacks", {}).get(torch, {})
        toolkit = old["toolkits"].get(str(image.toolkit_cuda), {})
        exact = [*toolkit.get("parts", ()), *toolkit.get("devel", ()), *old.get("overrides", {}).get(torch, ())]
        was |= dict(one.split("==") for one in exact)
        typer.echo(f"\n## {image.name}\n\n| package | was | is | newest | why not the newest |\n|---|---|---|---|---|")
        for row in rows(image, sources, was):
            typer.echo(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    run(main)
