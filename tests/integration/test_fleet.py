"""`fleet` on Debian's Slurm and on Ray: verdicts, builds, a worker that is killed, an interrupt."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import docker
import docker.errors
import pytest

from images.building import validating
from images.context.labels import BaseContext
from images.engine import RUN_LABEL, Engine
from images.errors import UserError
from images.fleet import worker
from images.hardware.inventory import GpuMode
from images.validation import containers as validation_containers
from images.validation import own_python
from images.validation.containers import suite_files
from tests.support.checkout import ROOT, copied
from tests.support.commands import call
from tests.support.engine_contents import containers
from tests.support.slurm_cluster import Slurm
from tests.support.small_base import python_base
from tests.support.sources import SOURCES, image
from tests.support.thin import EINOPS
from validate.claims import ClaimSet, Tier

pytestmark = pytest.mark.engine
NAME = "cu126-torch27"
CLAIMS = ("pins/einops", "files/recorded")
OPTIONS = ("--tier", "static", "--claim", CLAIMS[0], "--claim", CLAIMS[1])
BUILT = "cu132-torch215"
"""An image whose context needs no wheel from elsewhere."""
PATIENCE = 900.0


@dataclass(frozen=True)
class Small:
    """A small image that is in the registry."""

    tag: str
    id: str
    reference: str


@pytest.fixture(scope="module")
def with_python(engine: Engine, base: BaseContext) -> Iterator[str]:
    with python_base(engine, base) as tag:
        yield tag


@pytest.fixture(scope="module")
def images(engine: Engine, with_python: str, staging: str) -> Iterator[list[Small]]:
    """Yield a sound image, and one that lacks the package that it is held to."""
    tags = ["truetag-test-fleet-sound", "truetag-test-fleet-lacking"]
    site = "/usr/local/lib/python3.11/dist-packages"
    files = {f"site/{path}": content for path, content in EINOPS.items()}
    # The image has Python, and none of the usual programs.
    steps = [f"COPY site {site}", f"RUN python3 -c \"import os; os.makedirs('{site}')\""]
    smalls = []
    for tag, step in zip(tags, steps, strict=True):
        dockerfile = f"FROM {with_python}\n{step}\nLABEL dev.truetag.image={NAME}\nUSER 1001\n"
        engine.build({"Dockerfile": dockerfile.encode(), **files}, tag, network="none")
        info = engine.inspect(tag)
        smalls.append(Small(tag, info.digest, worker.push_by_digest(engine, info, staging)))
    yield smalls
    for small in smalls:
        for name in (small.tag, small.reference):
            engine.remove(name, force=True)


@pytest.fixture
def fleet_yaml(tmp_path: Path, staging: str) -> Path:
    file = tmp_path / "fleet.yaml"
    file.write_text(
        f"staging: {staging}\n"
        "workers:\n"
        "  cpu: {slurm: {partition: cpu, time: 10}, ray: {resources: {engine: 1}}}\n"
        '  h100: {gpus: 2, slurm: {partition: gpu, gres: "gpu:h100:2", time: 10}}\n'
    )
    return file


@dataclass(frozen=True)
class Fleet:
    """`fleet` with some options."""

    fleet_yaml: Path
    environment: Mapping[str, str]
    checkout: Path = ROOT

    @property
    def out(self) -> Path:
        return self.fleet_yaml.parent / "out"

    def start(self, on: str, *arguments: str, workers: str = "cpu") -> subprocess.Popen[str]:
        """Start the command on Slurm or Ray (`on`)."""
        fleet = [sys.executable, "-m", "images", "fleet"]
        command = [*fleet, "--on", on, "--workers", workers, *arguments]
        return subprocess.Popen(
            [*command, "--fleet", str(self.fleet_yaml), "--out", str(self.out)],
            cwd=self.checkout,
            env={**os.environ, **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, on: str, *arguments: str, workers: str = "cpu") -> tuple[int, str]:
        """Return the exit status, and all that was printed."""
        process = self.start(on, *arguments, workers=workers)
        stdout, stderr = process.communicate(timeout=PATIENCE)
        assert "Traceback" not in stderr, stderr
        return process.returncode, stdout + stderr


def references(images: list[Small]) -> list[str]:
    words = []
    for small in images:
        words += ["--image", f"{NAME}={small.reference}"]
    return words


def claims_in(file: Path) -> dict[str, Any]:
    """Return the image's digest, and the verdict and reason of each claim of a verdict.json."""
    verdict = json.loads(file.read_text())
    rows = [(row["subject"], row["verdict"], row["reason"]) for row in verdict["claims"]]
    return {"digest": verdict["digest"], "overall": verdict["overall"], "claims": rows}


def key_of(small: Small) -> str:
    return f"{NAME}-{small.reference.partition('@sha256:')[2][:12]}"


@pytest.fixture(scope="module")
def here(
    engine: Engine, images: list[Small], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Return the verdicts of `validate` on this machine, by task."""
    verdicts = {}
    for small in images:
        out = tmp_path_factory.mktemp("here")
        address = ("--engine", engine.facts.url)
        call("validate", NAME, "--image", small.tag, *OPTIONS, *address, "--out", str(out))
        (file,) = out.rglob("verdict.json")
        verdicts[key_of(small)] = claims_in(file)
    assert [verdict["overall"] for verdict in verdicts.values()] == ["PASS", "FAIL"]
    return verdicts


def check_verdicts(fleet: Fleet, on: str, engine: Engine, images: list[Small], here: Any) -> None:
    """Judge a sound and a lacking image on Slurm or Ray (`on`), and compare with this machine."""
    # The workers pull by digest.
    for small in images:
        engine.remove(small.reference, force=True)

    code, output = fleet.run(on, *references(images), *OPTIONS)

    assert code == 1, output
    assert "claims failed (" in output and "einops" in output
    verdicts = {}
    for folder in (fleet.out / "cpu").iterdir():
        verdicts[folder.name] = claims_in(folder / "verdict.json")
    assert verdicts == here
    for small in images:
        report = json.loads((fleet.out / "cpu" / key_of(small) / "worker.json").read_text())
        assert report["reference"] == small.reference
        assert on == "ray" or report["machine"] in ("n1", "n2")


def test_slurm_gives_the_verdicts_of_one_machine(
    engine: Engine, images: list[Small], here: dict[str, Any], fleet_yaml: Path, slurm: Slurm
) -> None:
    fleet = Fleet(fleet_yaml, {"DOCKER_HOST": engine.facts.url, **slurm.environment})

    check_verdicts(fleet, "slurm", engine, images, here)
    code, output = fleet.run("slurm", *references(images[:1]), *OPTIONS)

    assert code == 0, output


def test_a_gpu_tier_goes_to_the_node_that_has_the_gpu_and_claims_nothing_without_one(
    engine: Engine, images: list[Small], fleet_yaml: Path, slurm: Slurm
) -> None:
    """The GPUs of these nodes are files: placement is real, but no kernel can be measured."""
    fleet = Fleet(fleet_yaml, {"DOCKER_HOST": engine.facts.url, **slurm.environment})

    code, output = fleet.run("slurm", *references(images[:1]), "--tier", "gpu", workers="h100")

    assert code == 1, output
    assert "UNPROVEN: " in output
    folder = fleet.out / "h100" / key_of(images[0])
    assert json.loads((folder / "worker.json").read_text())["machine"] == "n3"
    assert claims_in(folder / "verdict.json")["overall"] == "UNPROVEN"


SLOW = """

_at_once = measure


def measure(claims):
    import time

    time.sleep(6)
    return _at_once(claims)
"""
"""Is added to a probe, so that it takes long enough to be killed in the middle."""


@pytest.fixture
def slow(fleet_yaml: Path, engine: Engine, slurm: Slurm, tmp_path: Path) -> Fleet:
    """Start `fleet` of a checkout whose validation takes some seconds, beside an older verdict."""
    checkout = copied(tmp_path / "checkout")
    with (checkout / "validate/checks/static/files.py").open("a") as probe:
        probe.write(SLOW)
    return Fleet(fleet_yaml, {"DOCKER_HOST": engine.facts.url, **slurm.environment}, checkout)


def test_a_worker_that_is_killed_leaves_no_evidence_and_no_older_verdict(
    engine: Engine, images: list[Small], slow: Fleet, slurm: Slurm
) -> None:
    folder = slow.out / "cpu" / key_of(images[0])
    folder.mkdir(parents=True)
    for name in ("evidence.json", "verdict.json", "report.md"):
        (folder / name).write_text("{}")
    process = slow.start("slurm", *references(images[:1]), *OPTIONS)
    until(lambda: bool(containers_of(engine, images)), process)
    for pid in workers_of(slurm):
        os.kill(pid, signal.SIGKILL)

    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1 and "ended without a result" in stderr, stderr
    assert list(folder.iterdir()) == []
    until(lambda: not slurm.queue())
    engine.sweep()
    until(lambda: not containers_of(engine, images))


def test_an_interrupt_cancels_the_jobs_which_remove_their_containers(
    engine: Engine, images: list[Small], slow: Fleet, slurm: Slurm
) -> None:
    process = slow.start("slurm", *references(images), *OPTIONS)
    until(lambda: bool(containers_of(engine, images)), process)

    process.send_signal(signal.SIGINT)

    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130 and "stopped" in stderr, stderr
    until(lambda: not slurm.queue())
    until(lambda: not containers_of(engine, images))
    assert not list(slow.out.rglob("verdict.json")) and not list(slow.out.glob("*/slurm-*"))


SMALL = """\
FROM BASE
LABEL dev.truetag.matrix-revision={{ image.revision }}
RUN echo {{ image.name }} >/etc/of-the-test && \\
    python3 -c "import os; os.makedirs('/usr/lib/python3/dist-packages', exist_ok=True)"
"""
"""In place of an image's Dockerfile: Debian's Python with an empty folder of packages."""


def test_a_worker_builds_and_pushes_by_digest_or_tells_the_step_that_failed(
    engine: Engine, with_python: str, fleet_yaml: Path, slurm: Slurm, staging: str, tmp_path: Path
) -> None:
    """The image lacks most of what it is held to: it is pushed without a tag, and gets no name."""
    checkout = copied(tmp_path / "checkout")
    matrix = checkout / "matrix.yaml"
    matrix.write_text(f'{matrix.read_text()}\nprefix: "test-fleet-"\n')
    dockerfile = checkout / "templates" / "Dockerfile.j2"
    dockerfile.write_text(SMALL.replace("BASE", with_python))
    fleet = Fleet(fleet_yaml, {"DOCKER_HOST": engine.facts.url, **slurm.environment}, checkout)
    folder = fleet.out / "cpu" / BUILT

    code, output = fleet.run("slurm", BUILT, "--tier", "static")

    try:
        assert code == 1 and "claims failed" in output, output
        build = json.loads((folder / "build.json").read_text())
        reference = json.loads((folder / "worker.json").read_text())["reference"]
        assert reference.startswith(f"{staging}@sha256:")
        assert claims_in(folder / "verdict.json")["digest"] == build["digest"]
        assert engine.pull(reference).digest == build["digest"]
        assert engine.find(f"test-fleet-{BUILT}") is None
        engine.remove(reference, force=True)
    finally:
        engine.remove(f"test-fleet-{BUILT}-candidate", force=True)

    dockerfile.write_text("FROM {{ base.reference }}\nRUN exit 3\n")
    code, output = fleet.run("slurm", BUILT, "--tier", "static")

    assert code == 1, output
    assert "exit 3" in output and "next:" in output
    assert not (folder / "verdict.json").exists() and not (folder / "build.json").exists()


WAITS = b"""\
import threading

def measure(claims):
    threading.Event().wait()
    return ()
"""
"""Code in place of a probe: nobody ever sets the event. A pipe would not do, because the Python
that reads files opens none."""


@pytest.mark.parametrize(
    ("reads", "comes", "waits"),
    [
        (own_python, "static.files", "static.records"),
        (validation_containers, "cpu.compiler", "cpu.triton"),
    ],
    ids=["our Python outside", "the image's own"],
)
def test_a_container_that_is_killed_in_the_middle_of_its_run_gives_no_verdict(
    engine: Engine,
    images: list[Small],
    monkeypatch: pytest.MonkeyPatch,
    reads: ModuleType,
    comes: str,
    waits: str,
) -> None:
    """A part of a container's records is no evidence: the rest would read as what the image lacks.

    One of two probes can't end. So the container still runs, and is killed, when the record of the
    other one comes.
    """
    killed = []

    def waiting(held_to: ClaimSet) -> Mapping[str, bytes]:
        return {**suite_files(held_to), f"validate/checks/{waits.replace('.', '/')}.py": WAITS}

    def kill(told: str) -> None:
        if told.startswith("measured "):
            (container,) = containers_of(engine, images)
            killed.append(
                told.startswith(f"measured {comes} ") and kill_container(engine, container)
            )

    monkeypatch.setattr(reads, "suite_files", waiting)
    claims = validating.claims_of(image(NAME), SOURCES, {}, (), tuple(Tier))
    # None of the claims that would keep the image from being run.
    asked = replace(claims.measured_by([comes, waits]), admission=())
    assert {claim.probe for claim in asked.claims} == {comes, waits}
    monkeypatch.setattr(validating, "claims_of", lambda *_, **__: asked)
    options: Any = {"tiers": (Tier.STATIC, Tier.CPU), "gpus": GpuMode.NONE, "say": kill}
    with pytest.raises(UserError, match="reports no lack of memory"):
        validating.validate_image(engine, image(NAME), images[0].tag, SOURCES, **options)
    assert killed[-1:] == [True]
    assert containers_of(engine, images) == []


# ---- on Ray: last, because its cluster, which takes a part of a core, ends with this file's tests


def test_ray_gives_the_verdicts_of_one_machine(
    engine: Engine,
    images: list[Small],
    here: dict[str, Any],
    fleet_yaml: Path,
    ray: Mapping[str, str],
) -> None:
    fleet = Fleet(fleet_yaml, {"DOCKER_HOST": engine.facts.url, **ray})

    check_verdicts(fleet, "ray", engine, images, here)


def test_ray_cancels_its_tasks_which_remove_their_containers(
    engine: Engine, images: list[Small], slow: Fleet, ray: Mapping[str, str]
) -> None:
    slow = replace(slow, environment={**slow.environment, **ray})
    process = slow.start("ray", *references(images), *OPTIONS)
    until(lambda: bool(containers_of(engine, images)), process)

    process.send_signal(signal.SIGINT)

    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130 and "stopped" in stderr, stderr
    until(lambda: not containers_of(engine, images))


def containers_of(engine: Engine, images: list[Small]) -> list[str]:
    """Return the containers of our runs that were made of these images, ended ones included."""
    names = {name for small in images for name in (small.tag, small.id, small.reference)}
    return [container.id for container in containers(engine, RUN_LABEL) if container.image in names]


def workers_of(slurm: Slurm) -> list[int]:
    """Return the Python processes that Slurm's nodes started for tasks."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        is_worker = b"submitit.core._submit" in command and b"srun" not in command[0]
        if is_worker and str(slurm.folder).encode() in environment:
            pids.append(int(folder.name))
    return pids


def kill_container(engine: Engine, container: str) -> bool:
    """Kill a container, and return whether it still ran."""
    client = docker.DockerClient(base_url=engine.facts.url)
    try:
        client.api.kill(container)
    except docker.errors.APIError:  # it has ended by itself
        return False
    finally:
        client.close()
    return True


def until(holds: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    """Wait for something, while a process runs."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.1)
