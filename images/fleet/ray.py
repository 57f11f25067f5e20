"""Run the tasks of `fleet` on a Ray cluster: one task for each image.

The code, the matrix and its locks are sent to the workers. Ray starts a task again if its worker
died.
"""

import logging
import shutil
import tempfile
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from images.config import paths
from images.errors import failed
from images.fleet import worker
from images.fleet.config import Fleet, Machines, RaySettings
from images.fleet.worker import Lost, Result, Task

PATIENCE = 120.0
"""Seconds for cancelled tasks to remove their containers."""
CODE = ("images", "validate", "templates", "examples")
"""Folders that a worker needs of the checkout, or of the installed package."""


def run_tasks(
    tasks: Sequence[Task],
    machines: Machines,
    fleet: Fleet,
    address: str,
    locks: Path,
    say: Callable[[Task, str], None],
) -> Generator[tuple[Task, Result], None, None]:
    """Run the tasks on a cluster, and yield each with its result as soon as it ends.

    There must be at least one task; all have the same matrix. `machines` and `fleet` are from
    fleet.yaml: what machines a task gets, and the settings of the cluster. Closing the generator
    early cancels the tasks. `address` is `ray://HEAD:10001`; or `auto` on a machine of the cluster,
    or if RAY_ADDRESS is set. `locks` is the folder of lock files to send. `say` gets messages about
    a task. Raises UserError if no cluster answers.
    """
    connect(address, fleet.ray, Path(tasks[0].matrix), locks)
    run_remotely = ray.remote(run_there).options(**ray_options(machines, fleet.ray))
    # Ray's reference to the result -> the task.
    running: dict[Any, Task] = {}
    try:
        for task in tasks:
            # A worker uses the matrix that was sent with the code.
            running[run_remotely.remote(replace(task, matrix=""))] = task
            say(task, "was handed to Ray")
        while running:
            ready, _ = ray.wait(list(running), num_returns=1, timeout=worker.LOOK_UP)
            for reference in ready:
                yield running.pop(reference), result_of(reference)
    finally:
        # Cancel without force, so that a task can remove its containers.
        for reference in running:
            ray.cancel(reference, force=False)
        # Wait for the cancelled tasks, but not for ever.
        if running:
            ray.wait(list(running), num_returns=len(running), timeout=PATIENCE)
        ray.shutdown()


def connect(address: str, settings: RaySettings, matrix: Path, locks: Path) -> None:
    """Connect this process to a Ray cluster, and send it the code, the matrix and its locks.

    `address` is `ray://HEAD:10001`, or `auto` for the cluster of this machine. `settings` may name
    Python packages (`pip`) that workers need. `matrix` is a file, `locks` a folder. Raises
    UserError if no cluster answers at this address.
    """
    with tempfile.TemporaryDirectory(prefix="truetag-checkout-") as folder:
        stage(Path(folder), matrix, locks)
        environment: dict[str, Any] = {"working_dir": folder}
        if settings.pip:
            environment["pip"] = list(settings.pip)
        try:
            ray.init(
                address=address,
                runtime_env=environment,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
            )
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            cause = f"no cluster answers: {' '.join(str(error).split())[:300]}"
            then = (
                "see whether the cluster runs (`ray status` on one of its machines); from "
                "another machine, give --on ray://HEAD:10001"
            )
            raise failed(f"--on ray ({address})", cause, then) from None


def stage(folder: Path, matrix: Path, locks: Path) -> None:
    """Copy what a worker needs to a folder: the code, the matrix and its locks."""
    ignore = shutil.ignore_patterns("__pycache__")
    for name in CODE:
        if (paths.RESOURCES / name).is_dir():
            shutil.copytree(paths.RESOURCES / name, folder / name, ignore=ignore)
    shutil.copy(matrix, folder / paths.MATRIX_NAME)
    if locks.is_dir():
        shutil.copytree(locks, folder / "locks")


def ray_options(machines: Machines, settings: RaySettings) -> dict[str, Any]:
    """Return the options with which Ray runs a task on such machines."""
    options: dict[str, Any] = machines.ray.model_dump()
    # Ray refuses an empty type.
    if not machines.ray.accelerator_type:
        del options["accelerator_type"]
    return {**options, "num_gpus": machines.gpus, "max_retries": settings.retries}


def run_there(task: Task) -> Result:
    """Do a task on the machine where Ray calls this function, and return its result."""
    node_id = ray.get_runtime_context().get_node_id()
    return worker.perform(task, f"{worker.node_name()}/{node_id[:6]}")


def result_of(reference: Any) -> Result:
    """Return the result of a task that has ended, or Lost with the reason if Ray has none.

    `reference` is what Ray gave for the task when it was started.
    """
    try:
        result: Result = ray.get(reference)
    except ray.exceptions.RayError as error:
        # The first line has the kind of the error, the last one its message.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        summary = f"{lines[0][:200]} {lines[-1][:200]}"
        return Lost(cause=f"Ray's task ended without a result: {summary}")
    return result
