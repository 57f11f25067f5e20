"""The verb `fleet`: build or validate images on a cluster, with a task for each image."""

import shlex
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from images.building import validating
from images.commands import common
from images.commands.common import talk
from images.commands.options import MatrixFile, OutFolder, Selectors, Tiers, require_writable
from images.config.matrix import Sources
from images.errors import Problem, UserError, command, failed, wrong
from images.fleet import config, results
from images.fleet.config import Fleet, Machines
from images.fleet.results import Outcome
from images.fleet.worker import Result, Task
from images.locking import lock_file
from validate.claims import ON_REQUEST, Tier
from validate.judging import plural
from validate.terminal import aligned

ON = "slurm|ray|ray://HEAD:PORT"
REFERENCE = "NAME=HOST/NAME@sha256:..."


def fleet(
    selectors: Selectors = None,
    on: Annotated[str, typer.Option("--on", metavar=ON, help="What runs the tasks.")] = "",
    image: Annotated[
        list[str] | None,
        typer.Option(
            "--image",
            metavar=REFERENCE,
            help="An image to pull and to hold to NAME's claims (repeat it).",
        ),
    ] = None,
    workers: Annotated[
        str,
        typer.Option(
            "--workers",
            metavar="NAME",
            help="Which machines of fleet.yaml; default: its only ones.",
        ),
    ] = "",
    file: Annotated[
        Path | None,
        typer.Option(
            "--fleet", metavar="FILE", help="The machines; default: fleet.yaml beside the matrix."
        ),
    ] = None,
    claim: Annotated[
        list[str] | None,
        typer.Option(
            "--claim",
            metavar="NAME",
            help="Only these claims of --image, as `validate` has it (repeat it).",
        ),
    ] = None,
    tier: Tiers = None,
    out: OutFolder = None,
    matrix: MatrixFile = None,
) -> None:
    """Build images on a cluster, or pull them there, validate each, and judge what comes back.

    OUT/WORKERS/TASK gets an image's evidence, verdict and reports. On Slurm, OUT lies where the
    nodes see it. Exits with 0 only if everything asked for was judged and nothing failed.
    """
    if not on:
        # Such as `torch>=2.7`, of which a shell would make a file.
        quoted = [shlex.quote(selector) for selector in selectors or ["NAME"]]
        here = command("build", *quoted)
        then = f"give --on {ON}; `{here}` builds on this machine, without a cluster"
        raise wrong("--on", "this option is missing: it names the cluster", then)
    if on not in ("slurm", "ray") and not on.startswith("ray://"):
        cause = "truetag can run tasks on Slurm and on Ray only"
        here = command("build", "NAME")
        then = f"give --on {ON}; on this machine, `{here}` does the same without a cluster"
        raise wrong(f"--on {on}", cause, then)
    sources = common.sources(matrix)
    cluster = config.read(file, sources.workspace.root)
    name, machines = config.choose_machines(cluster, workers)
    template = Task(
        tiers=choose_tiers(name, machines, tier or ()),
        only=tuple(claim or ()),
        staging=cluster.staging,
        matrix=str(sources.workspace.matrix.absolute()),
    )
    tasks = [
        *make_build_tasks(template, selectors or [], sources),
        *make_pull_tasks(template, image or [], sources),
    ]
    if not tasks:
        then = (
            f"name images to build (`{command('plan')}` lists them), or images of a registry to "
            f"validate, with --image {REFERENCE}"
        )
        raise wrong("fleet", "no image is named", then)

    folder = require_writable(out or sources.workspace.out / "fleet") / name
    for task in tasks:
        results.clear(folder / task.key)
    outcomes: list[Outcome] = []
    with closing(
        start_tasks(on, tasks, machines, cluster, folder, sources.workspace.locks)
    ) as ended:
        for task, result in ended:
            outcome = results.finish(task, result, sources, folder / task.key)
            outcomes.append(outcome)
            remaining = plural(len(tasks) - len(outcomes), "task")
            tell(task, f"{outcome.verdict_word}; {remaining} left")

    rows = [("image", "verdict", "machine", "reference")]
    for outcome in outcomes:
        rows.append((outcome.task.key, outcome.verdict_word, outcome.machine, outcome.reference))
    common.show(aligned(rows))
    problems = [describe_failure(outcome, folder) for outcome in outcomes if outcome.cause]
    if problems:
        raise UserError(problems, code=1)


def choose_tiers(name: str, machines: Machines, requested: Sequence[Tier]) -> tuple[Tier, ...]:
    """Return the tiers to measure: the requested ones or, without any, all that are possible.

    `machines.gpus` is how many GPUs a task gets: the gpu tier needs one, multigpu two, and so does
    multinode, which is only measured on request. `name` is
    the name of these machines in fleet.yaml. Raises UserError for a tier that needs more.
    """
    possible = list(validating.ANYWHERE)
    if machines.gpus:
        possible.append(Tier.GPU)
    if machines.gpus > 1:
        possible.append(Tier.MULTIGPU)
    on_request = ON_REQUEST if machines.gpus > 1 else ()
    for tier in requested:
        if tier not in (*possible, *on_request):
            gpus = plural(machines.gpus, "GPU")
            cause = (
                f"this tier needs {'several GPUs' if machines.gpus else 'a GPU'}, and a task on "
                f"machines of the kind `{name}` (fleet.yaml) gets {gpus}"
            )
            then = (
                "name another kind of machine of fleet.yaml with --workers, or leave this --tier "
                f"out; if a task gets more GPUs there, correct `gpus` of `{name}` in fleet.yaml"
            )
            raise wrong(f"--tier {tier}", cause, then)
    return tuple(requested or possible)


def make_build_tasks(template: Task, selectors: list[str], sources: Sources) -> list[Task]:
    """Return a task for each selected image, made from a template without an image.

    Without selectors, there are none. Raises UserError for selectors that mean no image or a
    refused one, for an image without a usable lock, and if the template has claims (--claim).
    """
    if not selectors:
        return []
    if template.only:
        then = "leave --claim out: all checks of an image that is built are run"
        raise wrong("--claim", "is only for images that are pulled, with --image", then)
    tasks = []
    for image in common.select_accepted(selectors, sources):
        # Report a missing or broken lock here, once, and not on each worker.
        lock_file.read(image, sources.workspace.locks)
        tasks.append(replace(template, image=str(image.name)))
    return tasks


def make_pull_tasks(template: Task, references: Sequence[str], sources: Sources) -> list[Task]:
    """Return a task for each `NAME=HOST/NAME@DIGEST`, made from a template without an image.

    The first NAME is the image name by which it is judged, the rest where it is pulled from. Raises
    UserError for an unknown name, or a reference without a registry or digest.
    """
    tasks = []
    for text in references:
        name, _, reference = text.partition("=")
        if "/" not in reference or "@sha256:" not in reference:
            then = f"push the image to a registry, and give --image {REFERENCE}"
            cause = "does not say which image of which registry a worker shall pull"
            raise wrong(f"--image {text}", cause, then)
        (image,) = common.select_accepted([name], sources, exactly_one=True)
        tasks.append(replace(template, image=str(image.name), reference=reference))
    return tasks


def start_tasks(
    on: str, tasks: Sequence[Task], machines: Machines, cluster: Fleet, folder: Path, locks: Path
) -> Generator[tuple[Task, Result], None, None]:
    """Return a generator that runs the tasks on Slurm or Ray, as `on` says (`--on`).

    `on` is `slurm`, `ray` or the address of a Ray cluster. The generator yields each task with its
    result as soon as it ends. `cluster` is the content of fleet.yaml, `machines` its entry for the
    chosen kind. `folder` gets the files of Slurm, the folder `locks` is sent to workers of Ray.
    Raises UserError where the Python package for the cluster is missing.
    """
    try:
        if on == "slurm":
            from images.fleet import slurm

            return slurm.run_tasks(tasks, machines, cluster, folder, tell)
        from images.fleet import ray

        address = "auto" if on == "ray" else on
        return ray.run_tasks(tasks, machines, cluster, address, locks, tell)
    except ImportError as error:
        extra = "slurm" if on == "slurm" else "ray"
        then = f"`pip install 'truetag[{extra}]'`"
        cause = f"a Python package is missing that --on {on} needs: {error}"
        raise failed(f"--on {on}", cause, then) from None


def tell(task: Task, text: str) -> None:
    """Print a line of progress about a task."""
    talk.print(f"[cyan]{task.key}[/]  {escape(text)}", highlight=False, soft_wrap=True)


def describe_failure(outcome: Outcome, folder: Path) -> Problem:
    """Return the error message for a task that failed or whose image did not pass.

    `folder` has the folders of all tasks. An outcome without a verdict has only a cause.
    """
    if outcome.verdict:
        then = (
            f"read the reasons in {folder / outcome.task.key}/report.md, mend what they name, and "
            "give the command again, with this image only"
        )
    elif "next: " in outcome.cause:
        # The worker's own message says already what to do.
        then = ""
    else:
        then = "give the command again, with this image only"
    return Problem(where=outcome.task.key, cause=outcome.cause, then=then)
