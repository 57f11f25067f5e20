"""A fleet for real: a GPU tier on Slurm, verdicts of Ray and Podman; a container that is killed."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from images.engine import RUN_LABEL, Engine, ImageInfo
from images.fleet import images
from images.fleet import worker as fleet_worker
from images.fleet.config import WorkerType
from images.fleet.executors import LocalExecutor, Placed
from images.fleet.folder import JobFolder
from images.fleet.model import Job
from images.fleet.worker import Task
from images.registry.reference import Repository
from images.validation import containers as validation_containers
from images.validation import own_python
from images.validation.containers import suite_files
from tests.support import fleet_faults, fleet_images
from tests.support.broken_images import NAME
from tests.support.engine_contents import containers
from tests.support.fleet_faults import FleetCommand
from tests.support.rootless_podman import rootless_podman
from tests.support.slurm_cluster import Slurm
from validate.claims import ClaimSet

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def command(
    engine: Engine, parent: ImageInfo, staging: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FleetCommand]:
    """`fleet` about two sound images and one that lacks a package."""
    with fleet_images.thin_images(engine, "truetag-test-fleet") as tags:
        yield fleet_faults.about(tags, engine, staging, tmp_path_factory.mktemp("fleet"))


def test_a_gpu_tier_goes_to_the_node_that_has_the_gpu_and_claims_nothing_without_one(
    command: FleetCommand, slurm: Slurm, tmp_path: Path
) -> None:
    """The GPUs of these nodes are files: placement is real, and a worker that finds no GPU gives no verdict."""
    image = f"{NAME}={command.images[0]}"
    options = [one for one in command.options if one not in ("--tier", "static")]
    arguments = ["run", "--on", "slurm", "--tier", "gpu", "--image", image, "--out", str(tmp_path), *options]
    done = fleet_faults.call(arguments, {**command.environment, **slurm.environment})
    assert done.returncode == 1 and "the machine has 0 of none" in done.stderr, done.stderr
    folder = JobFolder(tmp_path)
    (key,) = folder.job_keys()
    failure = folder.failure(key)
    assert failure and failure.node == "n3" and folder.record(key) is None
    assert slurm.is_emptied()


def test_ray_gives_the_verdicts_of_one_machine(
    command: FleetCommand, local: Mapping[str, Any], ray: Mapping[str, str], tmp_path: Path
) -> None:
    done = command.on("ray", ray).run(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert fleet_faults.verdicts(tmp_path) == local
    assert all(
        record.worker.executor == "ray" and record.worker.id for record in JobFolder(tmp_path).records().values()
    )


def test_rootless_podman_gives_the_verdicts_of_docker(
    engine: Engine, command: FleetCommand, staging: str, local: Mapping[str, Any], tmp_path: Path
) -> None:
    """A node without Docker: a user's own Podman pulls by digest, and its containers give the same evidence."""
    sent = [
        images.send(engine, engine.inspect(image), Repository.parse(staging), tmp_path / "push")
        for image in command.images
    ]
    with rootless_podman(staging.partition("/")[0]) as url:
        on_podman = FleetCommand(images=tuple(sent), options=(*command.options, "--engine", url))
        done = on_podman.run(tmp_path / "fleet")
    assert done.returncode == 1 and "next:" not in done.stderr, done.stderr
    assert fleet_faults.verdicts(tmp_path / "fleet") == local
    assert {record.worker.engine[:7] for record in JobFolder(tmp_path / "fleet").records().values()} == {"podman "}


WAITS = b"""\
import threading

def measure(claims):
    threading.Event().wait()
    return ()
"""
"""In place of a probe: nobody ever sets it. A pipe would not do: the Python that reads files opens none."""


@pytest.mark.parametrize(
    ("reads", "comes", "waits"),
    [(own_python, "static.files", "static.owners"), (validation_containers, "cpu.compiler", "cpu.triton")],
    ids=["our Python outside", "the image's own"],
)
def test_a_container_that_is_killed_in_the_middle_of_its_run_gives_no_verdict(
    engine: Engine,
    claims: ClaimSet,
    command: FleetCommand,
    monkeypatch: pytest.MonkeyPatch,
    reads: ModuleType,
    comes: str,
    waits: str,
) -> None:
    """A part of a container's records is no evidence: the rest would read as what the image lacks.

    One of two probes can't end, so the container still runs when the record of the other comes, and it is killed.
    """
    asked, suite, killed = replace(claims.only([comes, waits]), admission=()), suite_files, list[bool]()

    def waiting(held_to: ClaimSet) -> Mapping[str, bytes]:
        return {**suite(held_to), f"validate/checks/{waits.replace('.', '/')}.py": WAITS}

    def running() -> list[str]:
        ours = (command.images[0], engine.inspect(command.images[0]).id)
        return [one.id for one in containers(engine, RUN_LABEL) if one.image in ours]

    def kill(told: str) -> None:
        if told.startswith("measured "):
            (container,) = running()
            killed.append(told.startswith(f"measured {comes} ") and fleet_faults.kill_container(engine, container))

    monkeypatch.setattr(reads, "suite_files", waiting)
    monkeypatch.setattr(fleet_worker, "_say", kill)
    job = Job(
        image=NAME,
        digest=engine.inspect(command.images[0]).id,
        reference=command.images[0],
        tiers=(asked.claims[0].tier,),
        claims=json.loads(asked.dumps()),
    )
    task = Task(job=job.model_dump_json(), executor="local", matrix="", engine=engine.facts.url)
    executor = LocalExecutor()
    executor.start([Placed(key=job.key, task=task, gpus=0, machines="cpu", on=WorkerType())])
    (ended,) = executor.ended()
    assert killed[-1:] == [True] and ended.result is None and "no kill for memory" in ended.cause, ended
    assert running() == []
