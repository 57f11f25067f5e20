"""`choose`: which image to pull for a machine."""

import json
import platform
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from images.commands import common
from images.commands.options import Json, MatrixFile
from images.config import platforms
from images.engine import host_gpus
from images.errors import command, wrong
from images.locking import lock_file
from images.planning import chooser, plan
from images.planning.chooser import Known, Machine
from images.planning.image import Image
from images.registry.client import Registry
from images.registry.reference import Repository
from images.site import records
from validate.claims import Tier
from validate.judging import Status

_Recorded = tuple[Image, list[records.RunLine], dict[str, str]]


def choose(
    gpu: Annotated[str, typer.Option("--gpu", metavar="MODEL", help="RTX 4090, say; default: this machine's.")] = "",
    arch: Annotated[str, typer.Option("--arch", metavar="SM", help="Its architecture, where no table has it.")] = "",
    driver: Annotated[str, typer.Option("--driver", metavar="VERSION", help="Its driver, as nvidia-smi says.")] = "",
    profile: Annotated[str, typer.Option("--profile", metavar="NAME", help="What to train with.")] = "none",
    torch: Annotated[str, typer.Option("--torch", metavar="RANGE", help="'>=2.7', say.")] = "",
    python: Annotated[str, typer.Option("--python", metavar="X.Y", help="Default: each image's own default.")] = "",
    devel: Annotated[bool, typer.Option("--devel", help="With the devel toolkit: nvcc and all headers.")] = False,
    source: Annotated[str, typer.Option("--from", metavar="REPOSITORY", help="Only what is published there.")] = "",
    as_json: Json = False,
    matrix: MatrixFile = None,
) -> None:
    """Which image to pull for a machine, and why.

    Also tells why not the nearest others. Exits with 1 if none fits.
    """
    if gpu or arch:
        machine = chooser.described(gpu, arch, driver)
    else:
        folders = ("", *host_gpus.DRIVER_FOLDERS)
        if (found := next((seen for folder in folders if (seen := host_gpus.inventory(folder))), None)) is None:
            then = "say which one is meant: --gpu 'RTX 4090' --driver 550.90, or --arch sm89"
            raise wrong("choose", "no NVIDIA GPU can be read on this machine", then)
        machine = chooser.detected(found, platforms.of_machine(platform.machine()))
        machine = replace(machine, driver=chooser.parse_driver(driver)) if driver else machine
    sources = common.sources(matrix)
    # The plan's images, each with the runs of its gpu tier in results/runs.jsonl and their drift from its pins.
    lines, recorded = records.read(sources.workspace.results), []
    for image in (planned.image for planned in plan.plan(sources) if planned.image):
        runs = records.gpu_runs(lines, str(image.name))
        recorded.append((image, runs, records.drifts(runs, {pin.name: pin.version for pin in image.pins})))
    states = {} if source else lock_file.states([image for image, *_ in recorded], sources.workspace.locks)
    missing = {name: lock_file.NO_LOCK for name, state in states.items() if state is not lock_file.Status.PRESENT}
    offers = []
    for image, runs, drifts in recorded:
        passed_on = records.passed_on(run for run in runs if not drifts[run.id])
        offers.append(chooser.summary(image, sources.facts, missing.get(str(image.name), ""), passed_on))
    if source:
        with Registry(Repository.parse(source)) as registry:
            tags = set(registry.tags())
        offers = [one for one in offers if one.name in tags]
    known_profiles = sorted({one.profile for one in offers if one.profile})
    if profile not in ("none", *known_profiles):
        then = f"there are none, {', '.join(known_profiles)}" if known_profiles else "there is only none"
        raise wrong(f"--profile {profile}", "no image has this profile", then)
    options = chooser.Options(
        profile=None if profile == "none" else profile,
        torch=chooser.torch_range(torch),
        python=chooser.python_minor(python) if python else "",
        devel=devel,
    )
    choice = chooser.rank(offers, machine, options)
    if as_json:
        typer.echo(json.dumps(choice.as_json(), indent=1))
    else:
        common.show(chooser.sentences(choice, machine, _known(recorded, source, machine)))
    raise typer.Exit(0 if choice.fitting else 1)


def _known(recorded: Sequence[_Recorded], source: str, machine: Machine) -> dict[str, Known]:
    """What runs say of images that are built here, or pulled from `source`: on this machine's GPU if there are some."""
    known, own = {}, set(map(chooser.model_of, machine.gpus))
    for image, runs, drifts in recorded:
        first = sorted(runs, key=lambda run: own <= set(map(chooser.model_of, run.gpus)), reverse=True)
        known[str(image.name)] = Known(
            get=f"docker pull {source}:{image.name}" if source else command("build", str(image.name)),
            sentence=records.gpu_sentence(first, drifts),
            ran=bool(first) and first[0].tiers[Tier.GPU].verdict is Status.PASS,
        )
    return known
