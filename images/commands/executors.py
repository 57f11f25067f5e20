"""`--on`: what runs the jobs of a verb, and what can't be asked for beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from images.apptainer.command import PROGRAM as APPTAINER
from images.commands import trials
from images.commands.common import say, talk
from images.engine import Engine, NoEngine
from images.engine import gpus as gpu_access
from images.errors import Problem, UserError
from images.fleet.config import Fleet
from images.fleet.executors.executor import Executor
from images.fleet.executors.local import LocalExecutor
from validate.claims import Tier

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

    @property
    def elsewhere(self) -> bool:
        """Workers do it. Raises UserError for an unknown executor, and for settings of workers without any."""
        if not _is_known(self.on):
            raise unknown(self.on)
        if self.on == LOCAL and (named := [name for name, value in self._of_workers.items() if value]):
            then = "add --on slurm or --on ray, or leave it out"
            raise UserError(
                [Problem(where=name, cause="is about workers, and none are asked", then=then) for name in named]
            )
        return self.on != LOCAL

    @property
    def _of_workers(self) -> Mapping[str, object]:
        return {"--fleet": self.file, "--through": self.through}


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


def require_none(given: Mapping[str, tuple[object, str]]) -> None:
    """Refuse options that workers can't follow: option -> its value and the next command. Raises UserError with all."""
    problems = [
        Problem(where=option, cause="can't be done by workers", then=then)
        for option, (value, then) in given.items()
        if value
    ]
    if problems:
        raise UserError(problems)


def on_gpus(tiers: Sequence[Tier], names: str, on: str) -> Mapping[str, tuple[object, str]]:
    """GPU tiers of a build, as `require_none` takes them: an image is judged on each GPU once it is there."""
    then = f"without --tier first; then `nox -s fleet -- run {names} --on {on} --tier gpu` on each kind of GPU"
    return {f"--tier {tier}": (tier in tiers, then) for tier in (Tier.GPU, Tier.MULTIGPU)}


def gpus_wanted(wanted: str, then: str) -> Mapping[str, tuple[object, str]]:
    """`--gpus` of a build, as `require_none` takes it: its workers use no GPU."""
    return {f"--gpus {wanted}": (wanted not in (gpu_access.AUTO, gpu_access.GpuMode.NONE), then)}


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
