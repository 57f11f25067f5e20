"""`validate --nodes` of a real image on two machines: containers with addresses of their own.

Ranks run over gloo on the CPU, as in test_multigpu.py.
"""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from images.engine import Engine, ImageInfo
from images.hardware.inventory import Gpu, Inventory
from images.planning.image import Image
from images.validation.claims.context import ClaimContext
from images.validation.claims.multinode import multinode_claims
from tests.support.slurm_cluster import Slurm
from tests.support.sources import SOURCES
from validate.claims import ClaimSet

pytestmark = pytest.mark.engine

SHARED = "/shared"
SUITE = "/opt/truetag/validate"
CLAIMS = "/opt/truetag/claims.json"
CORE = Gpu(name="CPU", capability=(0, 0), memory=32 << 30)
LIST_PROCESSES = """
from pathlib import Path
for file in Path('/proc').glob('[0-9]*/cmdline'):
    print(file.parent.name, *file.read_text().split(chr(0)))
"""


@dataclass(frozen=True)
class Machines:
    """Two containers of an image on a network of their own. They share the folder SHARED."""

    prefix: str
    environment: Mapping[str, str]

    def docker(self, *arguments: str) -> str:
        """Return what a command of Docker prints."""
        return subprocess.run(
            ["docker", *arguments], env=self.environment, check=True, capture_output=True, text=True
        ).stdout.strip()

    def on_both(self, *command: str) -> None:
        """Run a command on both as root."""
        for node in range(2):
            self.docker("exec", "--user=0", f"{self.prefix}-{node}", *command)

    @property
    def hosts(self) -> str:
        """Return the addresses of both, with a comma between them."""
        form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        names = [f"{self.prefix}-{node}" for node in range(2)]
        return ",".join(self.docker("inspect", f"--format={form}", *names).split())

    def start(self, node: int, options: str) -> subprocess.Popen[str]:
        """Start `validate` on a machine with these options."""
        exec_ = ["docker", "exec", f"{self.prefix}-{node}", "validate", *options.split()]
        return subprocess.Popen(
            exec_,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *options: str) -> list[tuple[int, str]]:
        """Return the exit status and the output of `validate` on each machine, started at once."""
        processes = [self.start(node, text) for node, text in enumerate(options)]
        ends = []
        for process in processes:
            output, _ = process.communicate(timeout=300)
            assert "Traceback" not in output
            ends.append((process.returncode, output))
        return ends

    def processes(self, node: int) -> list[str]:
        """Return a line about each process of the suite on a machine, which begins with its ID."""
        lines = self.docker("exec", f"{self.prefix}-{node}", "python3", "-c", LIST_PROCESSES)
        return [line for line in lines.splitlines() if SUITE in line or "torch" in line]


@pytest.fixture(scope="module")
def machines(
    engine: Engine, image: Image, base_image: ImageInfo, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machines]:
    prefix = f"truetag-test-machine-{os.getpid()}"
    pair = Machines(prefix, {**os.environ, "DOCKER_HOST": engine.facts.url})
    context = ClaimContext(
        image=image,
        facts=SOURCES.facts,
        inventory=Inventory(driver="", gpus=(CORE, CORE), source="test"),
    )
    claims = list(multinode_claims(context, device="cpu"))
    claim_set = ClaimSet(image=str(image.name), claims=tuple(claims))
    claims_file = tmp_path_factory.mktemp("claims") / "claims.json"
    claims_file.write_text(claim_set.named_by(["rendezvous/torchrun", "collectives"]).dumps())

    pair.docker("network", "create", prefix)
    try:
        for node in range(2):
            volume = f"--volume={prefix}:{SHARED}"
            name = f"--name={prefix}-{node}"
            sleep = ("sleep", "3600")
            options = ("--detach", "--init", f"--network={prefix}", volume, name)
            pair.docker("run", *options, base_image.handle, *sleep)
            pair.docker("cp", str(claims_file), f"{prefix}-{node}:{CLAIMS}")
        pair.on_both("chmod", "a+rwx", SHARED)
        pair.on_both("chmod", "a+r", CLAIMS)
        yield pair
    finally:
        pair.docker("rm", "--force", f"{prefix}-0", f"{prefix}-1")
        pair.docker("volume", "rm", "--force", prefix)
        pair.docker("network", "rm", prefix)


def test_slurm_starts_both_and_the_first_prints_the_verdict(
    machines: Machines, slurm: Slurm
) -> None:
    srun = ("srun", "--partition=cpu", "--nodes=2", "--ntasks-per-node=1", "--label")
    exec_ = f"docker exec --env SLURM_NODEID {machines.prefix}-$SLURM_NODEID"
    validate = f"validate --nodes {machines.hosts} --shared {SHARED} --all"

    finished = subprocess.run(
        [*srun, "sh", "-c", f"{exec_} {validate}"],
        env={**machines.environment, **slurm.environment},
        capture_output=True,
        text=True,
    )

    assert finished.returncode == 0, finished.stdout + finished.stderr
    verdict = [line for line in finished.stdout.splitlines() if line]
    assert {line[:2] for line in verdict} == {"0:"}, "only the first node prints it"
    assert sum("PASS  two-nodes/collectives" in line for line in verdict) == 1
    assert machines.docker("exec", f"{machines.prefix}-0", "ls", SHARED) == ""


@pytest.mark.parametrize(
    ("first", "second", "words", "words_of_second"),
    [
        pytest.param(
            "--node 0 --shared /tmp",
            "--node 1 --shared /tmp",
            ") reports: /tmp is not shared: node 0 (",
            "can't write to it; mount the same folder on both",
            id="the folder is not shared",
        ),
        pytest.param(
            "--node 0 --shared /missing",
            f"--node 1 --shared {SHARED}",
            "nothing can be written to /missing (No such file or directory): mount a folder there",
            ") reports: nothing can be written to /missing",
            id="a folder that is not there",
        ),
        pytest.param(
            "--node 0",
            "--node 0",
            "did not come to port 29411 of this machine within 3 s (timed out): start one task",
            "and has no address",
            id="both have number 0",
        ),
        pytest.param(
            "--node 1",
            "--node 1",
            "and has no address",
            "did not answer at port 29411 within 3 s ([Errno 111] Connection refused): see what",
            id="both have number 1",
        ),
        pytest.param(
            "--node 0 --nodes gpu-1,gpu-2",
            "--node 1 --nodes gpu-1,gpu-2",
            "does not know the host gpu-1 of --nodes",
            "`getent hosts gpu-1`",
            id="a host that is not known",
        ),
        pytest.param(
            "--node 0",
            "--node 2",
            "did not come to port 29411 of this machine within 3 s (timed out): start one task",
            "Add --node 0 on the first host",
            id="a task too many",
        ),
    ],
)
def test_what_keeps_two_machines_apart_is_said_on_both(
    machines: Machines, first: str, second: str, words: str, words_of_second: str
) -> None:
    wait_for_other_node(machines, 3)
    nodes = f"--nodes {machines.hosts}"

    ends = machines.run(f"{nodes} {first}", f"{nodes} {second}")

    for (code, output), expected in zip(ends, (words, words_of_second), strict=True):
        assert code == 2, output
        assert expected in output
    assert machines.processes(0) == machines.processes(1) == []


def wait_for_other_node(machines: Machines, seconds: int) -> None:
    """Change how long `validate` waits for the other node in the images of both."""
    pattern = f"s/^WAIT_SECONDS = .*/WAIT_SECONDS = {seconds}.0/"
    machines.on_both("sed", "-i", pattern, f"{SUITE}/two_machines.py")


def test_another_image_on_the_second_machine_is_named(machines: Machines) -> None:
    wait_for_other_node(machines, 60)
    file = f"{SUITE}/judge.py"
    options = f"--nodes {machines.hosts} --shared {SHARED} --node"
    root = ("exec", "--user=0", f"{machines.prefix}-1")
    machines.docker(*root, "sed", "-i", "$ a # another version", file)
    try:
        ends = machines.run(f"{options} 0", f"{options} 1")
    finally:
        machines.docker(*root, "sed", "-i", "$ d", file)

    for code, output in ends:
        assert code == 2
        assert "has another image: its claims and checks have the digest" in output


@pytest.mark.parametrize("stopped", [0, 1])
def test_if_one_is_stopped_both_end_and_nothing_is_left_running(
    machines: Machines, stopped: int
) -> None:
    wait_for_other_node(machines, 60)
    options = f"--nodes {machines.hosts} --shared {SHARED} --node"
    both = [machines.start(node, f"{options} {node}") for node in range(2)]
    while not any("torch.distributed.run" in line for line in machines.processes(stopped)):
        assert both[stopped].poll() is None, both[stopped].communicate()

    (validate,) = [line for line in machines.processes(stopped) if "--nodes" in line]
    machines.docker("exec", f"{machines.prefix}-{stopped}", "kill", validate.split()[0])

    outputs = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [2, 2], outputs
    assert "validate: stopped" in outputs[stopped]
    assert f"node {stopped} (" in outputs[1 - stopped]
    assert "ended before there was a verdict" in outputs[1 - stopped]
    # Killed processes are there until the kernel has taken their memory back.
    until = time.monotonic() + 60
    while machines.processes(0) + machines.processes(1) and time.monotonic() < until:
        time.sleep(0.5)
    assert machines.processes(0) == machines.processes(1) == []


FAILS_LATE = """
_measure = measure


def measure(claims):
    yield from _measure(claims)
    if os.environ["VALIDATE_NODE"] == "1":
        raise RuntimeError("disk full")
"""
"""Is added to a check: on the second node only, it does not come to its end."""


def test_a_check_that_fails_on_the_second_machine_only_is_no_verdict(machines: Machines) -> None:
    file = f"{SUITE}/checks/multinode/collectives.py"
    options = f"--nodes {machines.hosts} --shared {SHARED} --node"
    machines.on_both("cp", file, f"{file}.whole")
    machines.on_both("sh", "-c", f"echo '{FAILS_LATE}' >> {file}")
    try:
        (code, output), (code_of_second, _) = machines.run(f"{options} 0", f"{options} 1")
    finally:
        machines.on_both("mv", f"{file}.whole", file)

    assert (code, code_of_second) == (2, 2), output
    assert "reports: measured multinode.collectives in " in output
    assert "(crashed: RuntimeError: disk full)" in output
