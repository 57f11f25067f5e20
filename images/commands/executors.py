"""`--on`: what runs the jobs of a verb, and what can't be asked for beside it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from images.apptainer import PROGRAM as APPTAINER
from images.commands import trials
from images.commands.common import say, talk
from images.engine import Engine, NoEngine
from images.errors import Problem, UserError
from images.fleet.config import Fleet
from images.fleet.executors.executor import Executor
from images.fleet.executors.local import LocalExecutor

EXECUTORS = "local|slurm|ray|ray://HEAD:PORT"
LOCAL = "local"


@dataclass(frozen=True, kw_only=True)
class ExecutorArguments:
    """Which machines do the work."""

    on: Annotated[str, typer.Option("--on", metavar=EXECUTORS, help="What runs the jobs.")] = LOCAL
    file: Annotated[
        Path | None,
        typer.Option("--fleet", metavar="FILE", help="The machines; default: ./fleet.yaml."),
    ] = None
    through: Annotated[
        str, typer.Option("--through", metavar="REGISTRY/REPOSITORY", help="Images travel through it, by digest.")
    ] = ""


def executor(on: str, folder: Path, fleet: Fleet, key: str = "") -> Executor:
    """What `--on` names. `folder`: where Slurm's files lie, which the nodes see. `key`: `--key`. Raises UserError."""
    if on == LOCAL:
        return LocalExecutor()
    if on == "slurm":
        from images.fleet.executors.slurm import SlurmExecutor

        return SlurmExecutor(folder, fleet.slurm, key)
    if on == "ray" or on.startswith("ray://"):
        from images.fleet.executors.ray import RayExecutor

        return RayExecutor("auto" if on == "ray" else on, fleet.ray)
    raise unknown(on)


def require_known(on: str) -> None:
    """Raises UserError."""
    if not _is_known(on):
        raise unknown(on)


def unknown(on: str) -> UserError:
    return UserError(Problem(where=f"--on {on}", cause="is nothing that runs jobs", then=f"say {EXECUTORS}"))


def _is_known(on: str) -> bool:
    return on in (LOCAL, "slurm", "ray") or on.startswith("ray://")


def no_engine_of(url: str, on: str) -> UserError:
    then = "leave --engine out: DOCKER_HOST says where this machine's is, and each worker finds its own"
    return UserError(Problem(where=f"--engine {url}", cause=f"does not reach workers of {on}", then=then))


def local_engine(url: str | None) -> Engine | nullcontext[None]:
    """This machine's engine; a login node has none, and Apptainer keeps no images: then they come from the registry."""
    if url == APPTAINER:
        return nullcontext(None)
    try:
        return trials.open_engine(url, install=False, builds=False)
    except NoEngine:
        say("no Docker Engine answers here: images are looked for in the registry alone")
        return nullcontext(None)


def tell(key: str, text: str) -> None:
    """A line of progress about a job."""
    talk.print(f"[cyan]{key}[/]  {text}", highlight=False, soft_wrap=True)
