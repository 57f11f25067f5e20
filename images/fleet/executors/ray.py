"""Ray: one task a job. The checkout travels with them; a task whose worker died is started anew by Ray."""

import logging
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

from images.config import paths
from images.config.paths import Workspace
from images.engine import Engine
from images.errors import UserError, failed, problem_of
from images.fleet import worker
from images.fleet.config import RaySettings, WorkerType
from images.fleet.executors import Ended, Placed, library
from images.fleet.model import JobResult
from images.fleet.worker import Task

_LOOK_UP = 1.0
"""Seconds after which a waiting thread looks whether it was interrupted."""
_PATIENCE = 120.0
"""Seconds for cancelled tasks to remove their containers."""
CODE = ("images", "validate", "templates", "examples")


def run_there(task: Task) -> JobResult | str:
    """The task on a node of Ray's. Returns what came of it, or what a person is told instead.

    The work is done in a thread: Ray cancels a task by an interrupt, which would wait for the engine's next words.
    """
    import ray

    engines: list[Engine] = []
    found = ray.get_runtime_context()
    machine, task_id = f"{worker.node()}/{found.get_node_id()[:6]}", found.get_task_id() or ""
    with ThreadPoolExecutor(max_workers=1) as pool:  # whose end waits for the work
        work = pool.submit(worker.perform, task, job_id=task_id, machine=machine, on_engine=engines.append)
        try:
            while not work.done():
                wait([work], _LOOK_UP)
        except BaseException:
            for engine in engines:
                engine.cancel()
            raise
    try:
        return work.result()
    except UserError as error:
        return " ".join(str(error.problems[0]).split())
    except OSError as error:
        return " ".join(str(problem_of(error, machine)).split())


class RayExecutor:
    """A cluster of Ray's: `ray://HEAD:10001` from elsewhere, `HEAD:6379` or `auto` from one of its machines."""

    name = "ray"

    def __init__(self, address: str, settings: RaySettings, workspace: Workspace) -> None:
        """Raises UserError where there is no ray, or the cluster does not answer."""
        self._ray = library("ray")
        self._settings = settings
        self._tasks: dict[Any, str] = {}
        with tempfile.TemporaryDirectory(prefix="truetag-checkout-") as folder:
            stage(Path(folder), workspace)
            environment = {"working_dir": folder, **({"pip": list(settings.pip)} if settings.pip else {})}
            try:
                self._ray.init(
                    address=address,
                    runtime_env=environment,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    configure_logging=False,
                )
            except (ConnectionError, ValueError, RuntimeError, OSError) as error:
                cause = f"no cluster answers: {' '.join(str(error).split())[:300]}"
                then = "`ray status` on a machine of the cluster; from elsewhere --on ray://HEAD:10001"
                raise failed(f"--on ray ({address})", cause, then) from None

    def start(self, jobs: Sequence[Placed]) -> Mapping[str, str]:
        remote = self._ray.remote(run_there)
        for job in jobs:  # there they see neither this checkout nor its folders: the one that travels has both
            wanted = options(job.on, job.gpus, self._settings)
            self._tasks[remote.options(name=job.key, **wanted).remote(replace(job.task, matrix="", folder=""))] = (
                job.key
            )
        return {}

    def ended(self) -> Iterator[Ended]:
        while self._tasks:
            ready, _ = self._ray.wait(list(self._tasks), num_returns=1, timeout=_LOOK_UP)
            for reference in ready:
                key = self._tasks.pop(reference)
                try:
                    found = self._ray.get(reference)
                except self._ray.exceptions.RayError as error:
                    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                    found = f"Ray's task ended without a result: {lines[0][:200]} {lines[-1][:200]}"
                if isinstance(found, str):
                    yield Ended(key=key, cause=found)
                else:
                    yield Ended(key=key, node=found.record.worker.node, result=found)

    def cancel(self) -> None:
        if not self._ray.is_initialized():
            return
        for reference in self._tasks:
            self._ray.cancel(reference, force=False)
        if self._tasks:
            self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=_PATIENCE)
        self._tasks.clear()
        self._ray.shutdown()


def options(on: WorkerType, gpus: int, settings: RaySettings) -> dict[str, Any]:
    """What Ray is asked for. Pure."""
    wanted = {
        "num_cpus": on.ray.cpus,
        "max_retries": settings.retries,
        "num_gpus": gpus,
        "accelerator_type": on.ray.accelerator_type if gpus else "",
        "resources": dict(on.ray.resources),
    }
    return {name: value for name, value in wanted.items() if value or name in ("num_cpus", "max_retries")}


def stage(folder: Path, workspace: Workspace) -> None:
    """Copy what a worker needs: the code, the matrix and its locks. A checkout's results and history stay here."""
    ignore = shutil.ignore_patterns("__pycache__")
    for name in CODE:
        if (paths.RESOURCES / name).is_dir():
            shutil.copytree(paths.RESOURCES / name, folder / name, ignore=ignore)
    if (sessions := paths.RESOURCES / "noxfile.py").is_file():  # workers spell our commands as this machine does
        shutil.copy(sessions, folder)
    shutil.copy(workspace.matrix, folder / paths.MATRIX_NAME)
    if workspace.locks.is_dir():
        shutil.copytree(workspace.locks, folder / "locks")
