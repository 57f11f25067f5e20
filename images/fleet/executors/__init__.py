"""Where jobs run: in this process, on Slurm through submitit, on Ray. Queues, retries and placement are theirs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from images.config.paths import Workspace
from images.errors import Problem, UserError
from images.fleet.config import Fleet

if TYPE_CHECKING:
    from images.fleet.executors.executor import Executor

NAMES = "local|slurm|ray|ray://HEAD:PORT"
LOCAL = "local"


def require_known(on: str) -> None:
    """Raises UserError where `--on` names no executor."""
    if on not in (LOCAL, "slurm", "ray") and not on.startswith("ray://"):
        raise UserError(Problem(where=f"--on {on}", cause="is nothing that runs jobs", then=f"say {NAMES}"))


def open_executor(on: str, folder: Path, fleet: Fleet, workspace: Workspace) -> Executor:
    """What `--on` names. `folder`: where Slurm's files lie, which the nodes see. Raises UserError: it can't be had."""
    if on == LOCAL:
        from images.fleet.executors.local import LocalExecutor

        return LocalExecutor()
    if on == "slurm":
        from images.fleet.executors.slurm import SlurmExecutor

        return SlurmExecutor(folder, fleet.slurm)
    from images.fleet.executors.ray import RayExecutor

    return RayExecutor("auto" if on == "ray" else on, fleet.ray, workspace)
