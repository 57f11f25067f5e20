"""`choose`: which image to pull for a machine."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from images.commands import common
from images.commands.options import Json, MatrixFile
from images.config import platforms
from images.config.matrix import Sources
from images.engine import gpus
from images.errors import Problem, UserError, command
from images.locking import lock_file
from images.planning import chooser, plan
from images.planning.chooser import ImageSummary, Known, Machine
from images.registry.client import Registry
from images.registry.reference import Repository
from images.site import index, records
from validate.claims import Tier
from validate.judging import Status


def choose(
    gpu: Annotated[str, typer.Option("--gpu", metavar="MODEL", help="RTX 4090, say; default: this machine's.")] = "",
    arch: Annotated[str, typer.Option("--arch", metavar="SM", help="Its architecture, where no table has it.")] = "",
    driver: Annotated[str, typer.Option("--driver", metavar="VERSION", help="Its driver, as nvidia-smi says.")] = "",
    profile: Annotated[str, typer.Option("--profile", metavar="NAME", help="What to train with.")] = "none",
    torch: Annotated[str, typer.Option("--torch", metavar="RANGE", help="'>=2.7', say.")] = "",
    python: Annotated[str, typer.Option("--python", metavar="X.Y", help="Default: each image's own default.")] = "",
    devel: Annotated[bool, typer.Option("--devel", help="With the devel toolkit: nvcc and all headers.")] = False,
    source: Annotated[str, typer.Option("--from", metavar="REPOSITORY", help="Only what is published there.")] = "",
    site: Annotated[
        str, typer.Option("--published", metavar="URL|FILE", help="What a site's index.json says, and no matrix.")
    ] = "",
    as_json: Json = False,
    matrix: MatrixFile = None,
) -> None:
    """Which image to pull for a machine, and why.

    Also tells why not the nearest others. Exits with 1 if none fits.
    """
    if site and source:
        cause = "each says which images there are"
        raise UserError(Problem(where="--from and --published", cause=cause, then="give one of them"))
    machine = chooser.described(gpu, arch, driver) if gpu or arch else _this_machine(driver)
    rows = index.read(site).images if site else []
    sources = None if site else common.sources(matrix)
    offers = _planned(sources, source) if sources else rows
    known_profiles = sorted({one.profile for one in offers if one.profile})
    if profile not in ("none", *known_profiles):
        then = f"there are none, {', '.join(known_profiles)}" if known_profiles else "there is only none"
        raise UserError(Problem(where=f"--profile {profile}", cause="no image has this profile", then=then))
    options = chooser.Options(
        profile=None if profile == "none" else profile, torch=chooser.torch_range(torch), python=python, devel=devel
    )
    choice = chooser.rank(offers, machine, options)
    if as_json:
        typer.echo(json.dumps(choice.as_json(), indent=1))
    else:
        said = _recorded(sources, offers, source, machine) if sources else {row.name: row.known for row in rows}
        common.show(chooser.sentences(choice, machine, said))
    raise typer.Exit(0 if choice.fitting else 1)


def _recorded(sources: Sources, offers: Sequence[ImageSummary], source: str, machine: Machine) -> dict[str, Known]:
    """What results/runs.jsonl says of the gpu tiers of images that are built here, or pulled from `source`.

    Of runs on this machine's GPU if there are some.
    """
    lines, known, own = records.read(sources.workspace.results), {}, set(map(chooser.model_of, machine.gpus))
    for one in offers:
        runs = records.gpu_runs(lines, one.name)
        runs.sort(key=lambda run: own <= set(map(chooser.model_of, run.gpus)), reverse=True)
        known[one.name] = Known(
            get=f"docker pull {source}:{one.name}" if source else command("build", one.name),
            sentence=records.gpu_sentence(runs),
            ran=bool(runs) and runs[0].tiers[Tier.GPU].verdict is Status.PASS,
        )
    return known


def _planned(sources: Sources, source: str) -> list[ImageSummary]:
    """The plan's images; with a repository, those that are published there."""
    images = [planned.image for planned in plan.plan(sources) if planned.image]
    states = {} if source else lock_file.states(images, sources.workspace.locks)
    missing = {name: lock_file.NO_LOCK for name, state in states.items() if state is not lock_file.Status.PRESENT}
    lines = records.read(sources.workspace.results)
    passed = {str(image.name): records.passed_on(records.gpu_runs(lines, str(image.name))) for image in images}
    offers = [
        chooser.summary(image, sources.facts, missing.get(name := str(image.name), ""), passed[name])
        for image in images
    ]
    if not source:
        return offers
    with Registry(Repository.parse(source)) as registry:
        tags = set(registry.tags())
    return [one for one in offers if one.name in tags]


def _this_machine(driver: str) -> Machine:
    """Raises UserError where it has no GPU."""
    found = next((seen for folder in ("", *gpus.DRIVER_FOLDERS) if (seen := gpus.inventory(folder))), None)
    if found is None:
        then = "say which one is meant: --gpu 'RTX 4090' --driver 550.90, or --arch sm89"
        raise UserError(Problem(where="choose", cause="no NVIDIA GPU can be read on this machine", then=then))
    machine = chooser.detected(found, platforms.of_machine(platform.machine()))
    return replace(machine, driver=chooser.parse_driver(driver)) if driver else machine
