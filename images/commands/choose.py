"""`choose`: which image to pull for a machine.

It catches an image that can't run there before anybody pulls 7 GB: no code for the GPU
(Dao-AILab/flash-attention#1638, axolotl-ai-cloud/axolotl#2525, facebookresearch/xformers#1329), a driver that is
too old for its CUDA (https://docs.nvidia.com/deploy/cuda-compatibility/) or for the GPU
(NVIDIA/open-gpu-kernel-modules#872), and a Triton that can't assemble for it (triton-lang/triton#8539).
"""

import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from images.commands import common
from images.commands.options import Json, MatrixFile
from images.config import platforms
from images.config.matrix import Sources
from images.engine import host_gpus
from images.errors import command, wrong
from images.locking import lock_file
from images.planning import chooser, plan
from images.planning.chooser import ImageSummary, Known, Machine
from images.planning.image import Image
from images.registry.client import Registry
from images.registry.reference import Repository
from images.site import records


@dataclass(frozen=True)
class RecordedImage:
    """An image of the plan, and the recorded runs of its gpu tier."""

    image: Image
    runs: list[records.RunLine]
    drifts: dict[str, str]
    """Run ID -> what that run had that today's pins contradict; empty: nothing."""

    @property
    def name(self) -> str:
        return str(self.image.name)


def choose(
    # The machine. Without --gpu and --arch it is this one. --arch is for a GPU that is newer than the table of models.
    gpu: Annotated[
        str, typer.Option("--gpu", metavar="MODEL", help="RTX 4090, say; default: this machine's.")
    ] = "",
    arch: Annotated[
        str, typer.Option("--arch", metavar="SM", help="Its architecture, where no table has it.")
    ] = "",
    driver: Annotated[
        str, typer.Option("--driver", metavar="VERSION", help="Its driver, as nvidia-smi says.")
    ] = "",
    # The image. Each option names a part of an image's name.
    profile: Annotated[
        str, typer.Option("--profile", metavar="NAME", help="What to train with.")
    ] = "none",
    torch: Annotated[str, typer.Option("--torch", metavar="RANGE", help="'>=2.7', say.")] = "",
    python: Annotated[
        str, typer.Option("--python", metavar="X.Y", help="Default: each image's own default.")
    ] = "",
    devel: Annotated[
        bool, typer.Option("--devel", help="With the devel toolkit: nvcc and all headers.")
    ] = False,
    # Who can't build wants an image that is there to be pulled.
    source: Annotated[
        str, typer.Option("--from", metavar="REPOSITORY", help="Only what is published there.")
    ] = "",
    as_json: Json = False,
    matrix: MatrixFile = None,
) -> None:
    """Which image to pull for a machine, and why.

    Also tells why not the nearest others. Exits with 1 if none fits.
    """
    machine = chooser.described(gpu, arch, driver) if gpu or arch else _this_machine(driver)
    sources = common.sources(matrix)
    recorded = _recorded_images(sources)
    summaries = _summaries(recorded, sources, source)

    profiles = sorted({summary.profile for summary in summaries if summary.profile})
    if profile not in ("none", *profiles):
        then = f"there are none, {', '.join(profiles)}" if profiles else "there is only none"
        raise wrong(f"--profile {profile}", "no image has this profile", then)
    options = chooser.Options(
        profile=None if profile == "none" else profile,
        torch=chooser.torch_range(torch),
        python=chooser.python_minor(python) if python else "",
        devel=devel,
    )

    choice = chooser.rank(summaries, machine, options)
    if as_json:
        typer.echo(json.dumps(choice.as_json(), indent=1))
    else:
        common.show(chooser.sentences(choice, machine, _known(recorded, source, machine)))
    raise typer.Exit(0 if choice.fitting else 1)


def _this_machine(driver: str) -> Machine:
    """Return the machine as its driver describes it. `driver` replaces the version that is installed."""
    for folder in ("", *host_gpus.DRIVER_FOLDERS):
        inventory = host_gpus.inventory(folder)
        if inventory is not None:
            machine = chooser.detected(inventory, platforms.of_machine(platform.machine()))
            return replace(machine, driver=chooser.parse_driver(driver)) if driver else machine
    then = "say which one is meant: --gpu 'RTX 4090' --driver 550.90, or --arch sm89"
    raise wrong("choose", "no NVIDIA GPU can be read on this machine", then)


def _recorded_images(sources: Sources) -> list[RecordedImage]:
    """Return the plan's images with what results/runs.jsonl has of their gpu tier."""
    lines = records.read(sources.workspace.results)
    recorded = []
    for planned in plan.plan(sources):
        image = planned.image
        if image:
            runs = records.gpu_runs(lines, str(image.name))
            pins = {pin.name: pin.version for pin in image.pins}
            recorded.append(RecordedImage(image, runs, records.drifts(runs, pins)))
    return recorded


def _summaries(
    recorded: Sequence[RecordedImage], sources: Sources, source: str
) -> list[ImageSummary]:
    """Return what the choice must know of each image: of those that are published, or else of all."""
    if source:
        with Registry(Repository.parse(source)) as registry:
            published = set(registry.tags())
        recorded = [row for row in recorded if row.name in published]
        states = {}
    else:
        # What is built here needs a lock.
        states = lock_file.states([row.image for row in recorded], sources.workspace.locks)

    summaries = []
    for row in recorded:
        is_locked = states.get(row.name, lock_file.Status.PRESENT) is lock_file.Status.PRESENT
        # A run with other packages says nothing about today's image.
        passed_on = records.passed_on(run for run in row.runs if not row.drifts[run.id])
        summaries.append(
            chooser.summary(
                row.image, sources.facts, "" if is_locked else lock_file.NO_LOCK, passed_on
            )
        )
    return summaries


def _known(recorded: Sequence[RecordedImage], source: str, machine: Machine) -> dict[str, Known]:
    """Return what runs say of each image, runs on this machine's GPU first, and the command that gets the image."""
    models = {chooser.model_of(name) for name in machine.gpus}
    known = {}
    for row in recorded:
        runs = sorted(
            row.runs,
            key=lambda run: models <= {chooser.model_of(name) for name in run.gpus},
            reverse=True,
        )
        known[row.name] = Known(
            get=f"docker pull {source}:{row.name}" if source else command("build", row.name),
            sentence=records.gpu_sentence(runs, row.drifts),
        )
    return known
