"""A fleet on Slurm whose workers and submitters are killed, and one that two people share."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from images.engine import Engine, ImageInfo
from images.fleet.folder import JobFolder
from tests.support import checkout, fleet_faults, fleet_images
from tests.support.fleet_faults import FleetCommand
from tests.support.slurm_cluster import Slurm

pytestmark = pytest.mark.engine
SLOW = """

_at_once = measure


def measure(claims):
    import time

    time.sleep(4)
    return _at_once(claims)
"""
"""Behind a probe: there is a middle to be killed in."""


@pytest.fixture(scope="module")
def command(
    engine: Engine, parent: ImageInfo, staging: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FleetCommand]:
    """`fleet` of a checkout whose validation run takes some seconds."""
    slow = checkout.copied(tmp_path_factory.mktemp("checkout"))
    with (slow / "validate/checks/static/files.py").open("a") as probe:
        probe.write(SLOW)
    with fleet_images.thin_images(engine, "truetag-test-slow") as tags:
        yield replace(fleet_faults.about(tags, engine, staging, tmp_path_factory.mktemp("fleet")), checkout=slow)


def test_every_job_is_done_once_whoever_is_killed(
    engine: Engine, command: FleetCommand, local: Mapping[str, Any], slurm: Slurm, tmp_path: Path
) -> None:
    """A worker, then the submitter, then an interrupt. Verdicts are those of one machine."""
    killing = fleet_faults.Killing(
        command=command.on("slurm", slurm.environment), slurm=slurm, engine=engine, folder=tmp_path, expected=local
    )
    named = killing.names()
    assert killing.round(fleet_faults.WORKER)
    workers = [record.worker for record in JobFolder(tmp_path / fleet_faults.WORKER).records().values()]
    assert {one.node for one in workers} <= {"n1", "n2"}, "the partition that fleet.yaml names"
    assert all(one.executor == "slurm" and one.id for one in workers)
    planned = killing.command.run(tmp_path / fleet_faults.WORKER, "plan").stdout
    assert planned.splitlines()[-1] == "3 matrix cells: 2 fresh, 1 due"
    assert killing.round(fleet_faults.SUBMITTER)
    killing.interrupted()
    assert killing.names() == named, "nothing gets a name"


def test_two_people_on_one_fleet_do_no_job_twice(command: FleetCommand, tmp_path: Path) -> None:
    """Both plan all as due; who comes second leaves what the other has leased."""
    processes = [command.start(tmp_path) for _ in range(2)]
    told = [process.communicate()[1] for process in processes]
    assert len(fleet_faults.verdicts(tmp_path)) == 3, told
    judged = sum(text.count("PASS on") + text.count("FAIL on") for text in told)
    assert judged == 3, told
