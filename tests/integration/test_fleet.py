"""A fleet for real: Slurm with four nodes, Ray with three, one registry; workers and submitters that are killed."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from images.config import paths
from images.engine import RUN_LABEL, Engine, ImageInfo
from images.fleet import images
from images.fleet import worker as fleet_worker
from images.fleet.config import WorkerType
from images.fleet.executors import LocalExecutor, Placed
from images.fleet.executors import ray as ray_executor
from images.fleet.folder import JobFolder
from images.fleet.model import Job
from images.fleet.worker import Task
from images.host.hashing import sha256
from images.registry.reference import Repository
from images.validation import own_python, run
from images.validation.containers import suite_files
from tests.support import fleet_faults, fleet_images
from tests.support.broken_images import NAME
from tests.support.engine_contents import containers
from tests.support.fleet_faults import FleetCommand
from tests.support.ray_cluster import ray_cluster
from tests.support.rootless_podman import rootless_podman
from tests.support.slurm_cluster import Slurm, slurm_cluster
from validate.claims import ClaimSet, Tier

pytestmark = pytest.mark.engine
FLEET = """\
workers:
  cpu: {slurm: {partition: cpu, minutes: 10}, ray: {resources: {engine: 1}}}
  h100: {arch: "9.0", gpus: 2, slurm: {partition: gpu, gres: "gpu:h100", minutes: 10}}
"""


@pytest.fixture(scope="module")
def staging(registry: str) -> str:
    return f"{registry}/fleet"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    nodes = {"n1": "", "n2": "", "n3": "h100:2", "n4": "a100:1"}
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), nodes) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def thin(engine: Engine, parent: ImageInfo) -> Iterator[tuple[str, ...]]:
    """Two sound images and one that lacks a package."""
    with fleet_images.thin_images(engine, "truetag-test-fleet") as tags:
        yield tags


@pytest.fixture(scope="module")
def fleet_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("fleet") / "fleet.yaml"
    file.write_text(FLEET)
    return file


@pytest.fixture(scope="module")
def command(engine: Engine, staging: str, thin: Sequence[str], fleet_file: Path) -> FleetCommand:
    """`fleet` about the thin images, with the claims that they can keep."""
    return FleetCommand(
        images=tuple(thin),
        options=("--fleet", str(fleet_file), "--staging", staging, "--tier", "static"),
        environment={"DOCKER_HOST": engine.facts.url},
    )


@pytest.fixture(scope="module")
def local(command: FleetCommand, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """Digest -> verdict of each claim, as this machine alone gives them."""
    return judged_here(command, tmp_path_factory.mktemp("local"))


def judged_here(command: FleetCommand, folder: Path) -> Mapping[str, Any]:
    """What this machine alone gives for two sound images and a broken one."""
    done = command.run(folder)
    assert done.returncode == 1, done.stderr
    found = fleet_faults.verdicts(folder)
    assert sorted(overall for overall, _ in found.values()) == ["FAIL", "PASS", "PASS"], done.stdout
    return found


def test_slurm_gives_the_verdicts_of_one_machine(
    command: FleetCommand, local: Mapping[str, Any], slurm: Slurm, tmp_path: Path
) -> None:
    on_slurm = command.on("slurm", slurm.environment)
    done = on_slurm.run(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert fleet_faults.verdicts(tmp_path) == local
    who = {record.worker.node for record in JobFolder(tmp_path).records().values()}
    assert who and who <= {"n1", "n2"}, "the partition that fleet.yaml names"
    assert all(
        record.worker.executor == "slurm" and record.worker.id for record in JobFolder(tmp_path).records().values()
    )
    assert on_slurm.run(tmp_path, "plan").stdout.splitlines()[-1] == "3 matrix cells: 2 fresh, 1 due"


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
    assert slurm.queue() == []


@pytest.fixture(scope="module")
def ray() -> Iterator[Mapping[str, str]]:
    """What makes a command talk to a cluster with two engines."""
    with ray_cluster() as address:
        yield {"RAY_ADDRESS": address}


BUILT = ("cu128-torch210", "cu130-torch213", "cu132-torch215")
"""Images whose contexts need no wheel from elsewhere."""
SMALL = """\
FROM {{ base.reference }}
RUN --mount=type=bind,source=host,target=/run/host --mount=type=bind,source=scripts,target=/run/scripts \\
    sh /run/scripts/debian.sh {{ image.python }} python3
RUN echo NONCE && sleep 4
"""
"""In place of their Dockerfile: Debian's Python, and a step that the engine has not cached."""


@dataclass(frozen=True)
class Building:
    """`fleet run` about images that staging lacks, in a checkout whose images are small and take some seconds.

    They lack nearly all that they are held to: what counts is that the verdict is the same everywhere. The matrix gives
    their names a prefix of the test's own: an image that has one of BUILT's names in this engine would be taken.
    """

    folder: Path
    staging: str
    environment: Mapping[str, str]

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
            ray_executor.stage(checkout, paths.CHECKOUT)
            (checkout / "fleet.yaml").write_text(FLEET)
            matrix = checkout / "matrix.yaml"
            matrix.write_text(f'{matrix.read_text()}\nprefix: "{self.prefix}"\n')
            (checkout / "templates" / "Dockerfile.j2").write_text(SMALL.replace("NONCE", str(self.folder)))
        command = [sys.executable, "-m", "images", "fleet", *words, "--staging", self.staging]
        return subprocess.Popen(
            [*command, "--out", str(self.folder / "out")],
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

    def verdicts(self) -> dict[str, dict[str, str]]:
        """Image -> claim -> verdict; a reason may name a temporary folder.

        Raises AssertionError for what was built or judged twice, or is in no registry.
        """
        found = fleet_faults.verdicts(self.jobs.path)
        assert not list(self.jobs.path.rglob("earlier")), "a job was done twice"
        assert not [key for key in self.jobs.job_keys() if self.jobs.lease(key)]
        by_image = {}
        for key, record in self.jobs.records().items():
            job = self.jobs.job(key)
            assert job and job.digest == record.digest and record.reference.startswith(f"{self.staging}@sha256:")
            by_image[job.image] = {claim: verdict for claim, verdict, _ in found[record.digest][1]}
        assert sorted(by_image) == sorted(BUILT)
        return by_image


def until(holds: Callable[[], object], told: Callable[[], object]) -> None:
    """Wait. `told`: what is said where it takes too long."""
    deadline = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < deadline, told()
        time.sleep(0.1)


@pytest.fixture(scope="module")
def built_here(
    engine: Engine, staging: str, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Mapping[str, str]]:
    """What one machine gives for images that it builds."""
    here = Building(tmp_path_factory.mktemp("built"), f"{staging}-here", {"DOCKER_HOST": engine.facts.url})
    told = here.start("run", *BUILT).communicate()[1]
    found = here.verdicts()
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
    ray: Mapping[str, str],
    staging: str,
    tmp_path: Path,
    on: str,
) -> None:
    """Slurm's jobs go on, and are watched; Ray ends the tasks of a killed submitter, and what came back stays."""
    environment = {"DOCKER_HOST": engine.facts.url, **slurm.environment, **ray}
    building = Building(tmp_path, f"{staging}-{on}", environment)
    building.killed_with_one_built(on)
    submitted = jobs_of(slurm)
    failed = [key for key in building.jobs.job_keys() if building.jobs.done(key)]
    stdout, stderr = building.start("run", *BUILT, "--on", on, "--tier", "static", "--tier", "cpu").communicate()
    assert "Traceback" not in stderr, stdout + stderr
    assert building.verdicts() == built_here
    assert on == "ray" or failed or jobs_of(slurm) == submitted, stdout + stderr
    until(lambda: not slurm.queue(), slurm.queue)
    assert not building.names(engine)


def jobs_of(slurm: Slurm) -> set[str]:
    """Every job that Slurm remembers."""
    return set(slurm.ask("squeue", "--array", "--states=all", "--noheader", "--format=%i").split())


def test_a_build_on_slurm_tells_why_its_worker_could_not_build(
    engine: Engine, slurm: Slurm, staging: str, tmp_path: Path
) -> None:
    building = Building(tmp_path, f"{staging}-none", {"DOCKER_HOST": engine.facts.url, **slurm.environment})
    submitter = building.start("plan", BUILT[0])
    submitter.communicate()
    (tmp_path / "checkout" / "templates" / "Dockerfile.j2").write_text("FROM {{ base.reference }}\nRUN exit 3\n")
    stdout, stderr = building.start("run", BUILT[0], "--on", "slurm").communicate()
    assert "Traceback" not in stderr and "exit 3" in stderr and "next:" in stderr, stdout + stderr
    assert slurm.queue() == [] and not building.jobs.records()


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


@pytest.fixture(scope="module")
def slow(engine: Engine, parent: ImageInfo) -> Iterator[tuple[str, ...]]:
    """Images whose validation run takes some seconds."""
    with fleet_images.thin_images(engine, "truetag-test-slow", fleet_images.SLOW) as tags:
        yield tags


@pytest.fixture(scope="module")
def of_slow(command: FleetCommand, slow: Sequence[str]) -> FleetCommand:
    """`fleet` about those."""
    return FleetCommand(images=tuple(slow), options=command.options, environment=command.environment)


@pytest.fixture(scope="module")
def slow_local(of_slow: FleetCommand, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """As `local`, of the images whose processes are killed elsewhere."""
    return judged_here(of_slow, tmp_path_factory.mktemp("slow-local"))


def test_every_job_is_done_once_whoever_is_killed(
    engine: Engine, of_slow: FleetCommand, slow_local: Mapping[str, Any], slurm: Slurm, tmp_path: Path
) -> None:
    """A worker, then the submitter, then an interrupt."""
    killing = fleet_faults.Killing(
        command=of_slow.on("slurm", slurm.environment), slurm=slurm, engine=engine, folder=tmp_path, expected=slow_local
    )
    named = killing.names()
    assert killing.round(fleet_faults.WORKER)
    assert killing.round(fleet_faults.SUBMITTER)
    killing.interrupted()
    assert killing.names() == named, "nothing gets a name"


WAITS = b"""\
import os, tempfile

def measure(claims):
    fifo = os.path.join(tempfile.mkdtemp(), "fifo")
    os.mkfifo(fifo)
    open(fifo).close()
    return ()
"""
"""In place of a probe: nobody ever writes there."""


@pytest.mark.parametrize(
    ("reads", "comes", "waits"),
    [(own_python, "static.files", "static.owners"), (run, "static.pins", "static.environment")],
    ids=["our Python outside", "the image's own"],
)
def test_a_container_that_is_killed_in_the_middle_of_its_run_gives_no_verdict(
    engine: Engine,
    claims: ClaimSet,
    thin: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
    reads: ModuleType,
    comes: str,
    waits: str,
) -> None:
    """A part of a container's records is no evidence: the rest would read as what the image lacks.

    One of two probes can't end, so the container still runs when the record of the other comes, and it is killed.
    """
    asked, suite, killed = claims.only([comes, waits]), suite_files, list[bool]()

    def waiting(held_to: ClaimSet) -> Mapping[str, bytes]:
        return {**suite(held_to), f"validate/checks/{waits.replace('.', '/')}.py": WAITS}

    def running() -> list[str]:
        ours = (thin[0], engine.inspect(thin[0]).id)
        return [one.id for one in containers(engine, RUN_LABEL) if one.image in ours]

    def kill(told: str) -> None:
        if told.startswith("measured "):
            (container,) = running()
            killed.append(told.startswith(f"measured {comes} ") and fleet_faults.kill_container(engine, container))

    monkeypatch.setattr(reads, "suite_files", waiting)
    monkeypatch.setattr(fleet_worker, "_say", kill)
    job = Job(
        image=NAME,
        digest=engine.inspect(thin[0]).id,
        reference=thin[0],
        tiers=(Tier.STATIC,),
        claims=json.loads(asked.dumps()),
    )
    task = Task(job=job.model_dump_json(), executor="local", matrix="", engine=engine.facts.url)
    executor = LocalExecutor()
    executor.start([Placed(key=job.key, task=task, gpus=0, machines="cpu", on=WorkerType())])
    (ended,) = executor.ended()
    assert killed == [True] and ended.result is None and "was killed from outside" in ended.cause, ended
    assert running() == []


def test_two_people_on_one_fleet_do_no_job_twice(of_slow: FleetCommand, tmp_path: Path) -> None:
    """Both plan all as due; who comes second leaves what the other has leased."""
    processes = [of_slow.start(tmp_path) for _ in range(2)]
    told = [process.communicate()[1] for process in processes]
    assert len(fleet_faults.verdicts(tmp_path)) == 3
    judged = sum(text.count("PASS on") + text.count("FAIL on") for text in told)
    assert judged == 3, told
