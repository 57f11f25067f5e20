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
from dataclasses import replace
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
from images.site.recorded import RecordedRuns


def choose(
    # The machine. Without --gpu and --arch it is this one. --arch is for a GPU that is newer than
    # the table of models.
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu", metavar="MODEL", help="RTX 4090, say (repeat it); default: this machine's."
        ),
    ] = None,
    arch: Annotated[
        list[str] | None,
        typer.Option("--arch", metavar="SM", help="Its architecture, where no table has it."),
    ] = None,
    driver: Annotated[
        str,
        typer.Option("--driver", metavar="VERSION", help="Its driver, 570.86.16, or branch, 570."),
    ] = "",
    wsl: Annotated[
        bool, typer.Option("--wsl", help="It is Windows with WSL 2, so --driver is Windows'.")
    ] = False,
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
        machine = chooser.machine_from_options(gpu or [], arch or [], driver, wsl=wsl)
    else:
        machine = _detect_machine(driver)
        machine = replace(machine, wsl=wsl or machine.wsl)

    # What there is to choose from: the images of the matrix that no rule refuses.
    sources = common.sources(matrix)
    recorded = RecordedRuns.read(sources)
    images = {}
    for planned in plan.plan(sources):
        if planned.image:
            images[planned.name] = planned.image
    summaries = _summarize_images([*images.values()], recorded, sources, source)

    # What the person wants.
    _require_known_profile(profile, summaries)
    options = chooser.Options(
        profile=None if profile == "none" else profile,
        torch=chooser.torch_range(torch),
        python=chooser.python_minor(python) if python else "",
        devel=devel,
    )

    choice = chooser.choose(summaries, machine, options)
    next_step = ""
    if not choice.fitting:
        next_step = chooser.find_next_step(summaries, machine, options)
    if as_json:
        typer.echo(json.dumps({**choice.as_json(), "next": next_step}, indent=1))
    else:
        # How to get the best image, and what was proved of it.
        best_known = None
        if choice.fitting:
            best_image = images[choice.fitting[0].name]
            best_known = _describe(best_image, recorded, source, machine)
        common.show(chooser.sentences(choice, machine, best_known, next_step))
    raise typer.Exit(0 if choice.fitting else 1)


def _require_known_profile(profile: str, summaries: Sequence[ImageSummary]) -> None:
    """Raise UserError if no image has the profile of the option --profile (`none`: without one)."""
    profiles = sorted({summary.profile for summary in summaries if summary.profile})
    if profile not in ("none", *profiles):
        then = f"give --profile one of {', '.join(('none', *profiles))}"
        raise wrong(f"--profile {profile}", "no image has this profile", then)


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
        # WSL 2's kernel is named `5.15.167.4-microsoft-standard-WSL2`.
        machine = replace(machine, wsl="microsoft" in platform.release().lower())
        if driver:
            machine = replace(machine, driver=chooser.parse_driver(driver))
        return machine
    then = (
        "name the GPU that the image shall run on: --gpu 'RTX 4090' --driver 550.90, or --arch sm89"
    )
    if driver:
        # What an old driver runs is known without the GPU.
        described = Machine(gpus=(), archs=(), driver=chooser.parse_driver(driver))
        advice = chooser.advice_for_old_driver(described)
        then = "; ".join(filter(None, (then, advice)))
    raise wrong("choose", "this machine has no NVIDIA GPU whose driver answers", then)


def _summarize_images(
    images: Sequence[Image], recorded: RecordedRuns, sources: Sources, source: str
) -> list[ImageSummary]:
    """Return the facts about each image by which one is chosen.

    `recorded` has the recorded runs of all images. `source` is the repository from which images are
    pulled: only those that are published there are returned. Empty: they are built here, and those
    without a lock are marked as blocked.
    """
    if source:
        with Registry(Repository.parse(source)) as registry:
            published = set(registry.tags())
        images = [image for image in images if str(image.name) in published]

    summaries = []
    for image in images:
        is_blocked = not source and not lock_file.is_present(image, sources.workspace.locks)
        obstacle = lock_file.NO_LOCK if is_blocked else ""
        passed_on = recorded.status(image, with_claims=False).passed_on
        summaries.append(chooser.summarize(image, sources.facts, obstacle, passed_on))
    return summaries


def _describe(image: Image, recorded: RecordedRuns, source: str, machine: Machine) -> Known:
    """Return how to get an image, and a sentence about its recorded runs on GPUs.

    `source` is the repository from which images are pulled; empty: they are built here. Runs on the
    models of GPU that the machine has count first.
    """
    name = str(image.name)
    get = f"docker pull {source}:{name}" if source else command("build", name)
    models = [chooser.model_of(gpu) for gpu in machine.gpus]
    archs = ", ".join(str(arch) for arch in machine.archs)
    sentence = recorded.status(image).gpu_sentence(models, archs)
    if "known silent fault" in sentence:
        sentence += f" `{command('plan', name)}` lists the issues of these faults."
    return Known(get=get, sentence=sentence)
