"""Builds of a fleet for real, by Slurm and Ray: killed submitters, workers that cannot build, names left behind."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from images.context.labels import BaseContext
from images.engine import Engine
from images.fleet import worker as fleet_worker
from images.fleet.folder import JobFolder
from images.host.hashing import sha256
from tests.support import fleet_faults
from tests.support.checkout import copied
from tests.support.fleet_images import CLAIMS, FLEET
from tests.support.slurm_cluster import Slurm
from tests.support.small_base import python_base

pytestmark = pytest.mark.engine
BUILT = ("cu128-torch210", "cu130-torch213", "cu132-torch215")
"""Images whose contexts need no wheel from elsewhere."""
SMALL = """\
FROM BASE
RUN echo NONCE {{ image.name }} && \\
    python3 -c "import os, time; os.makedirs('/usr/lib/python3/dist-packages'); time.sleep(4)"
"""
"""In place of their Dockerfile: Debian's Python with its empty folder of packages, and a step that the engine has not
cached and that no two share."""


@dataclass(frozen=True)
class Building:
    """`fleet run` about images that staging lacks, in a checkout whose images are small and take some seconds.

    They lack most of what they are held to: what counts is that the verdict is the same everywhere. Their names have
    a prefix of the test's own: an image that has one of BUILT's names in this engine would be taken.
    """

    folder: Path
    staging: str
    environment: Mapping[str, str]
    python: str
    """An image with Debian's Python."""

    @property
    def jobs(self) -> JobFolder:
        return JobFolder(self.folder / "out")

    @property
    def prefix(self) -> str:
        return f"test-{sha256(str(self.folder).encode())[:8]}-"

    def names(self, engine: Engine) -> list[str]:
        """What its images are called in an engine while they are built."""
        there = engine.sdk.images(filters={"label": "dev.truetag.image"})
        return [tag for one in there for tag in one["RepoTags"] or () if tag.startswith(self.prefix)]

    def start(self, *words: str) -> subprocess.Popen[str]:
        checkout = self.folder / "checkout"
        if not checkout.exists():
            copied(checkout)
            (checkout / "fleet.yaml").write_text(FLEET)
            matrix = checkout / "matrix.yaml"
            matrix.write_text(f'{matrix.read_text()}\nprefix: "{self.prefix}"\n')
            (checkout / "templates" / "Dockerfile.j2").write_text(
                SMALL.replace("BASE", self.python).replace("NONCE", str(self.folder))
            )
        claims = [word for claim in CLAIMS for word in ("--claim", claim)]
        command = [sys.executable, "-m", "images", "fleet", *words, "--staging", self.staging, "--tier", "static"]
        return subprocess.Popen(
            [*command, *claims, "--out", str(self.folder / "out")],
            cwd=checkout,
            env={**os.environ, **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def killed_with_one_built(self, on: str) -> None:
        """Kill the submitter once one image has a record and the others are being built."""
        submitter = self.start("run", *BUILT, "--on", on)
        until(lambda: self.jobs.records() or submitter.poll() is not None, lambda: submitter.args)
        assert submitter.poll() is None, submitter.communicate()
        submitter.kill()
        submitter.communicate()

    def verdicts(self, on: str) -> dict[str, dict[str, str]]:
        """Image -> claim -> verdict; a reason may name a temporary folder.

        Raises AssertionError for what was built or judged twice, by another executor, or is in no registry.
        """
        found = fleet_faults.verdicts(self.jobs.path)
        assert not list(self.jobs.path.rglob("earlier")), "a job was done twice"
        assert not [key for key in self.jobs.job_keys() if self.jobs.lease(key)]
        by_image = {}
        for key, record in self.jobs.records().items():
            job = self.jobs.job(key)
            assert job and job.digest == record.digest and record.reference.startswith(f"{self.staging}@sha256:")
            assert record.worker.executor == on and (record.worker.id or on == "local")
            by_image[job.image] = {claim: verdict for claim, verdict, _ in found[record.digest][1]}
        assert sorted(by_image) == sorted(BUILT)
        return by_image


def until(holds: Callable[[], object], told: Callable[[], object]) -> None:
    """Wait. `told`: what is said where it takes too long."""
    deadline = time.monotonic() + 1200
    while not holds():
        assert time.monotonic() < deadline, told()
        time.sleep(0.1)


@pytest.fixture(scope="module")
def python(engine: Engine, base: BaseContext) -> Iterator[str]:
    with python_base(engine, base) as found:
        yield found


@pytest.fixture(scope="module")
def built_here(
    engine: Engine, staging: str, python: str, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Mapping[str, str]]:
    """What one machine gives for images that it builds."""
    here = Building(tmp_path_factory.mktemp("built"), f"{staging}-here", {"DOCKER_HOST": engine.facts.url}, python)
    told = here.start("run", *BUILT).communicate()[1]
    found = here.verdicts("local")
    assert {"PASS", "FAIL"} <= {verdict for of in found.values() for verdict in of.values()}
    assert all(record.build["digest"] == record.digest for record in here.jobs.records().values()), told
    assert not here.names(engine), "what is built has no name before its verdict"
    planned = [line.split() for line in here.start("plan", *BUILT).communicate()[0].splitlines()]
    digests = {one.removeprefix("sha256:")[:12] for one in fleet_faults.verdicts(here.jobs.path)}
    assert {words[1] for words in planned if words[:1] and words[0] in BUILT} == digests, "found by their contexts"
    return found


@pytest.mark.parametrize("on", ["slurm", "ray"])
def test_builds_of_a_killed_submitter_are_taken_over_and_none_is_built_twice(
    engine: Engine,
    built_here: Mapping[str, Mapping[str, str]],
    slurm: Slurm,
    request: pytest.FixtureRequest,
    staging: str,
    python: str,
    tmp_path: Path,
    on: str,
) -> None:
    """Slurm's jobs go on, and are watched; Ray ends the tasks of a killed submitter, and what came back stays."""
    ray = request.getfixturevalue("ray") if on == "ray" else {}
    environment = {"DOCKER_HOST": engine.facts.url, **slurm.environment, **ray}
    building = Building(tmp_path, f"{staging}-{on}", environment, python)
    building.killed_with_one_built(on)
    submitted = jobs_of(slurm)
    failed = [key for key in building.jobs.job_keys() if building.jobs.done(key)]
    stdout, stderr = building.start("run", *BUILT, "--on", on).communicate()
    assert "Traceback" not in stderr, stdout + stderr
    assert building.verdicts(on) == built_here
    assert on == "ray" or failed or jobs_of(slurm) == submitted, stdout + stderr
    assert slurm.is_emptied()
    assert not building.names(engine)


def jobs_of(slurm: Slurm) -> set[str]:
    """Every job that Slurm remembers."""
    return set(slurm.ask("squeue", "--array", "--states=all", "--noheader", "--format=%i").split())


def test_a_build_on_slurm_tells_why_its_worker_could_not_build(
    engine: Engine, slurm: Slurm, staging: str, python: str, tmp_path: Path
) -> None:
    building = Building(tmp_path, f"{staging}-none", {"DOCKER_HOST": engine.facts.url, **slurm.environment}, python)
    submitter = building.start("plan", BUILT[0])
    submitter.communicate()
    (tmp_path / "checkout" / "templates" / "Dockerfile.j2").write_text("FROM {{ base.reference }}\nRUN exit 3\n")
    stdout, stderr = building.start("run", BUILT[0], "--on", "slurm").communicate()
    assert "Traceback" not in stderr and "exit 3" in stderr and "next:" in stderr, stdout + stderr
    assert slurm.is_emptied() and not building.jobs.records()


def test_names_that_killed_workers_left_are_taken_away_and_no_others(engine: Engine) -> None:
    own = f"-fleet-u{os.getuid()}"
    left, built = (f"truetag-test-left-{word}{own}" for word in "ab")
    others = f"truetag-test-left-c-fleet-u9{os.getuid()}"
    labelled = b"FROM scratch\nLABEL dev.truetag.image=test\n"
    try:
        for tag in (f"{left}-candidate", built, others):
            engine.build({"Dockerfile": labelled}, tag, network="none")
        with engine.alone(f"job {built}", waiting=lambda: pytest.fail("nobody has this name")):
            fleet_worker.untag_left(engine)
            assert [engine.find(tag) is None for tag in (f"{left}-candidate", built, others)] == [True, False, False]
        fleet_worker.untag_left(engine)
        assert engine.find(built) is None, "its worker has ended"
    finally:
        engine.untag(others)
