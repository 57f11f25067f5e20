"""The verb `choose`: name the images that run on a machine, best first, and why others do not.

It catches an image that can't run there before anybody pulls 7 GB: no code for the GPU
(Dao-AILab/flash-attention#1638, axolotl-ai-cloud/axolotl#2525, facebookresearch/xformers#1329), a
driver that is too old for its CUDA (https://docs.nvidia.com/deploy/cuda-compatibility/) or for the
GPU (NVIDIA/open-gpu-kernel-modules#872), and a Triton that can't assemble for it
(triton-lang/triton#8539).
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
    """An image of the plan with the recorded validation runs of its gpu tier."""

    image: Image
    runs: list[records.RunLine]
    drifts: dict[str, str]
    """ID of each run -> the packages that it had in other versions than the image has today.

    Empty text: none, so that what the run proved holds for today's image."""

    @property
    def name(self) -> str:
        return str(self.image.name)


def choose(
    # The machine. Without --gpu and --arch it is this one. --arch is for a GPU that is newer than
    # the table of models.
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
    """Name the image to pull for a machine, and say why.

    Also says why not the nearest others. Exits with 1 if none fits.
    """
    if gpu or arch:
        machine = chooser.machine_from_options(gpu, arch, driver)
    else:
        machine = _detect_machine(driver)
    sources = common.sources(matrix)
    recorded = _recorded_images(sources)
    summaries = _summarize_images(recorded, sources, source)

    profiles = sorted({summary.profile for summary in summaries if summary.profile})
    if profile not in ("none", *profiles):
        then = f"give --profile one of {', '.join(('none', *profiles))}"
        raise wrong(f"--profile {profile}", "no image has this profile", then)
    options = chooser.Options(
        profile=None if profile == "none" else profile,
        torch=chooser.torch_range(torch),
        python=chooser.python_minor(python) if python else "",
        devel=devel,
    )

    choice = chooser.choose(summaries, machine, options)
    if as_json:
        typer.echo(json.dumps(choice.as_json(), indent=1))
    else:
        common.show(chooser.sentences(choice, machine, _describe_images(recorded, source, machine)))
    raise typer.Exit(0 if choice.fitting else 1)


def _detect_machine(driver: str) -> Machine:
    """Return this machine's GPUs and driver, as the NVIDIA driver reports them.

    `driver` replaces the version of the driver; empty: the installed one. Raises UserError if no
    GPU can be read.
    """
    # Where the driver's libraries may lie. Empty: wherever the loader finds them.
    for folder in ("", *host_gpus.DRIVER_FOLDERS):
        inventory = host_gpus.inventory(folder)
        if inventory is None:
            continue
        processor = platforms.of_machine(platform.machine())
        machine = chooser.machine_from_inventory(inventory, processor)
        if driver:
            machine = replace(machine, driver=chooser.parse_driver(driver))
        return machine
    then = (
        "name the GPU that the image shall run on: --gpu 'RTX 4090' --driver 550.90, or --arch sm89"
    )
    raise wrong("choose", "this machine has no NVIDIA GPU whose driver answers", then)


def _recorded_images(sources: Sources) -> list[RecordedImage]:
    """Return every accepted image with the runs of its gpu tier in results/runs.jsonl."""
    lines = records.read(sources.workspace.results)
    recorded = []
    for planned in plan.plan(sources):
        image = planned.image
        if image:
            runs = records.gpu_runs(lines, str(image.name))
            pins = {pin.name: pin.version for pin in image.pins}
            recorded.append(RecordedImage(image, runs, records.drift_by_run(runs, pins)))
    return recorded


def _summarize_images(
    recorded: Sequence[RecordedImage], sources: Sources, source: str
) -> list[ImageSummary]:
    """Return the facts about each image by which one is chosen.

    `recorded` has each image with the recorded runs of its GPU tests. `source` is the repository
    from which images are pulled: only those that are published there are returned. Empty: they are
    built here, and those without a lock are marked as blocked.
    """
    if source:
        with Registry(Repository.parse(source)) as registry:
            published = set(registry.tags())
        recorded = [image for image in recorded if image.name in published]

    summaries = []
    for image in recorded:
        is_blocked = not source and not lock_file.is_present(image.image, sources.workspace.locks)
        obstacle = lock_file.NO_LOCK if is_blocked else ""
        # `drifts`: ID of a run -> the packages that it had in other versions than today's image;
        # empty if none. Such a run proves nothing about today's image.
        runs_of_today = [run for run in image.runs if not image.drifts[run.id]]
        passed_on = records.passed_on(runs_of_today)
        summaries.append(chooser.summarize(image.image, sources.facts, obstacle, passed_on))
    return summaries


def _describe_images(
    recorded: Sequence[RecordedImage], source: str, machine: Machine
) -> dict[str, Known]:
    """Return how to get each image, and a sentence about its recorded runs, by the image's name.

    Runs are those of an image's GPU tests. `source` is the repository from which images are pulled;
    empty: they are built here. Runs on the models of GPU that the machine has are named first.
    """
    models_here = {chooser.model_of(name) for name in machine.gpus}

    def has_other_gpus(run: records.RunLine) -> bool:
        return not models_here <= {chooser.model_of(name) for name in run.gpus}

    known = {}
    for image in recorded:
        get = f"docker pull {source}:{image.name}" if source else command("build", image.name)
        # False sorts before true.
        runs = sorted(image.runs, key=has_other_gpus)
        sentence = records.gpu_sentence(runs, image.drifts)
        known[image.name] = Known(get=get, sentence=sentence)
    return known
