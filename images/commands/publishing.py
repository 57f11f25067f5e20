"""`choose`: which image to pull for a machine."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from images.chooser import choose
from images.chooser import machine as choose_machine
from images.commands import common
from images.commands.options import (
    grouped,
)
from images.config import paths, platforms
from images.engine import gpus
from images.errors import Problem, UserError
from images.locking import lock_file
from images.planning import plan
from images.registry.client import Registry
from images.registry.reference import Repository
from images.site import published, records
from images.site.index import ImageRow
from validate.claims import Tier
from validate.judging import Status


@dataclass(frozen=True, kw_only=True)
class MachineArguments:
    """The machine to choose for."""

    gpu: Annotated[str, typer.Option("--gpu", metavar="MODEL", help="RTX 4090, say; default: this machine's.")] = ""
    arch: Annotated[str, typer.Option("--arch", metavar="SM", help="Its architecture, where no table has it.")] = ""
    driver: Annotated[str, typer.Option("--driver", metavar="VERSION", help="Its driver, as nvidia-smi says.")] = ""


@dataclass(frozen=True, kw_only=True)
class WishArguments:
    """What the image must have."""

    profile: Annotated[str, typer.Option("--profile", metavar="NAME", help="What to train with.")] = "none"
    torch: Annotated[str, typer.Option("--torch", metavar="RANGE", help="'>=2.7', say.")] = ""
    python: Annotated[str, typer.Option("--python", metavar="X.Y", help="Default: each image's own default.")] = ""
    devel: Annotated[bool, typer.Option("--devel", help="With the devel toolkit: nvcc and all headers.")] = False


@dataclass(frozen=True, kw_only=True)
class OfferArguments:
    """Where the images to choose from are listed."""

    source: Annotated[str, typer.Option("--from", metavar="REPOSITORY", help="Only what is published there.")] = ""
    index: Annotated[
        str, typer.Option("--published", metavar="URL|FILE", help="What a site's index.json says, and no matrix.")
    ] = ""


@grouped
def choose_verb(
    machine: MachineArguments,
    wish: WishArguments,
    offered: OfferArguments,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable, on stdout and nothing else.")] = False,
) -> None:
    """Which image to pull for a machine, why, and why not the nearest others."""
    if offered.index and offered.source:
        cause = "each says which images there are"
        raise UserError(Problem(where="--from and --published", cause=cause, then="give one of them"))
    found = _machine(machine)
    rows = published.read(offered.index).images if offered.index else []
    offers = [row.summary for row in rows] if offered.index else _planned(offered.source)
    choice = choose.rank(offers, found, _wish(wish, offers))
    if as_json:
        typer.echo(json.dumps(choice.as_json(), indent=1))
    else:
        said = {row.name: _of_site(row) for row in rows} if offered.index else _recorded(offers, offered.source)
        for line in choose.told(choice, found, said):
            typer.echo(line)
    raise typer.Exit(0 if choice.fitting else 1)


def _of_site(row: ImageRow) -> choose.Known:
    gpu = (one.verdict for one in row.runs if one.tier is Tier.GPU and one.current)
    return choose.Known(get=row.get, told=row.sentence, ran=Status.PASS in gpu)


def _recorded(offers: Sequence[choose.ImageSummary], source: str) -> dict[str, choose.Known]:
    """What results/runs.jsonl says of the gpu tiers of images that are built here, or pulled from `source`."""
    lines, known = records.read(paths.workspace().results), {}
    for one in offers:
        run = records.gpu_run(lines, one.name)
        known[one.name] = choose.Known(
            get=f"docker pull {source}:{one.name}" if source else paths.as_given(f"nox -s build -- {one.name}"),
            told=records.gpu_sentence(run),
            ran=run is not None and run.tiers[Tier.GPU].verdict is Status.PASS,
        )
    return known


def _wish(wish: WishArguments, offers: Sequence[choose.ImageSummary]) -> choose.Wish:
    """Raises UserError for a profile that no image has."""
    known = sorted({one.profile for one in offers if one.profile})
    if wish.profile != "none" and wish.profile not in known:
        then = f"there are none, {', '.join(known)}" if known else "there is only none"
        raise UserError(Problem(where=f"--profile {wish.profile}", cause="no image has this profile", then=then))
    return choose.Wish(
        profile=None if wish.profile == "none" else wish.profile,
        torch=choose.torch_range(wish.torch),
        python=wish.python,
        devel=wish.devel,
    )


def _planned(source: str) -> list[choose.ImageSummary]:
    """The plan's images; with a repository, those that are published there."""
    sources = common.sources()
    images = [planned.image for planned in plan.plan(sources) if planned.image]
    states = lock_file.states(images, sources.workspace.locks)
    offers = [
        choose.summary(image, sources.facts, locked=bool(source) or states[str(image.name)] is lock_file.Status.PRESENT)
        for image in images
    ]
    if not source:
        return offers
    with Registry(Repository.parse(source)) as registry:
        tags = set(registry.tags())
    return [one for one in offers if one.name in tags]


def _machine(wanted: MachineArguments) -> choose_machine.Machine:
    """The machine that is named, else this one. Raises UserError where that has no GPU."""
    if wanted.gpu or wanted.arch:
        return choose_machine.parse(wanted.gpu, wanted.arch, wanted.driver)
    found = next((seen for folder in ("", *gpus.DRIVER_FOLDERS) if (seen := gpus.inventory(folder))), None)
    if found is None:
        then = "say which one is meant: --gpu 'RTX 4090' --driver 550.90, or --arch sm89"
        raise UserError(Problem(where="choose", cause="no NVIDIA GPU can be read on this machine", then=then))
    machine = choose_machine.detected(found, platforms.of_machine(platform.machine()))
    return replace(machine, driver=choose_machine.parse_driver(wanted.driver)) if wanted.driver else machine
