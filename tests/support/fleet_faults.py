"""Kills workers and submitters of a fleet, and holds what is left to what was promised."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import docker
import docker.errors

from images.engine import RUN_LABEL, Engine
from images.fleet.folder import JobFolder
from tests.support import fleet_images
from tests.support.broken_images import NAME
from tests.support.checkout import ROOT
from tests.support.engine_contents import containers
from tests.support.slurm_cluster import Slurm
from validate.judge import judge

WORKER, SUBMITTER = "worker", "submitter"
_PATIENCE = 300.0


Verdict = tuple[str, list[tuple[str, str, str]]]
"""Overall, and each claim's verdict with its reason."""


@dataclass(frozen=True)
class FleetCommand:
    """`fleet run` about some images."""

    images: tuple[str, ...]
    options: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    executor: str = "local"
    claims: tuple[str, ...] = fleet_images.CLAIMS
    """What the images are held to; none: all claims of NAME."""
    checkout: Path = ROOT

    def on(self, executor: str, environment: Mapping[str, str]) -> Self:
        """The same on another executor."""
        return replace(self, executor=executor, environment={**self.environment, **environment})

    def arguments(self, folder: Path, *action: str) -> list[str]:
        wanted = [word for image in self.images for word in ("--image", f"{NAME}={image}")]
        claims = [word for claim in self.claims for word in ("--claim", claim)]
        return [*(action or ("run",)), "--on", self.executor, "--out", str(folder), *self.options, *wanted, *claims]

    def run(self, folder: Path, *action: str) -> subprocess.CompletedProcess[str]:
        """To its end."""
        return call(self.arguments(folder, *action), self.environment, self.checkout)

    def start(self, folder: Path, *action: str) -> subprocess.Popen[str]:
        """And go on."""
        environment = {**os.environ, **self.environment}
        command = [sys.executable, "-m", "images", "fleet", *self.arguments(folder, *action)]
        return subprocess.Popen(
            command, cwd=self.checkout, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def judged_here(self, folder: Path) -> dict[str, Verdict]:
        """What this machine alone gives for two sound images and a broken one."""
        done = self.run(folder)
        assert done.returncode == 1, done.stderr
        found = verdicts(folder)
        assert sorted(overall for overall, _ in found.values()) == ["FAIL", "PASS", "PASS"], done.stdout
        return found


def about(images: Sequence[str], engine: Engine, staging: str, folder: Path) -> FleetCommand:
    """`fleet` about some thin images, with the claims that they can keep, and with a fleet.yaml in a folder."""
    (folder / "fleet.yaml").write_text(fleet_images.FLEET)
    options = ("--fleet", str(folder / "fleet.yaml"), "--staging", staging, "--tier", "static")
    return FleetCommand(images=tuple(images), options=options, environment={"DOCKER_HOST": engine.facts.url})


def call(
    arguments: Sequence[str], environment: Mapping[str, str], checkout: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """`fleet` with these arguments, to its end."""
    command = [sys.executable, "-m", "images", "fleet", *arguments]
    return subprocess.run(
        command, cwd=checkout, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def verdicts(path: Path) -> dict[str, Verdict]:
    """Digest -> verdict, of what a fleet's folder holds."""
    folder = JobFolder(path)
    found = {}
    for record in folder.records().values():
        evidence = folder.evidence(record)
        verdict = judge(evidence.claim_set, evidence)
        rows = [(f"{one.claim.id} {one.claim.subject}", str(one.status), one.reason) for one in verdict.claims]
        found[verdict.digest] = (str(verdict.overall), rows)
    return found


@dataclass(kw_only=True)
class Killing:
    """A fleet whose processes are killed."""

    command: FleetCommand
    engine: Engine
    folder: Path
    expected: Mapping[str, Any]
    """What one machine alone gives, as `verdicts` does, where nobody is killed."""
    slurm: Slurm

    def round(self, victim: str) -> bool:
        """Judge all images in a new folder while one of these is killed. Returns whether it was.

        The command is given again until all is judged, as a person would.
        """
        folder, killed = self.folder / victim, False
        while True:
            process = self.command.start(folder)
            while not killed and process.poll() is None:
                killed = self._kill(victim, process)
            _, told = process.communicate(timeout=_PATIENCE)
            assert "Traceback" not in told, told
            if process.returncode != -signal.SIGKILL and "give the same command again" not in told:
                break
        self.check(folder, told)
        return killed

    def interrupted(self) -> None:
        """Ctrl-C in the middle: the cluster's jobs are cancelled, their containers removed, and nothing is leased."""
        folder = self.folder / "interrupted"
        process = self.command.start(folder)
        self._until(lambda: bool(self._containers()), process)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=_PATIENCE)
        assert process.returncode == 130 and "stopped" in told, told
        self._until(lambda: not self._queue())
        self._until(lambda: not self._containers())
        jobs = JobFolder(folder)
        assert not [key for key in jobs.job_keys() if jobs.lease(key)]

    def check(self, folder: Path, told: str) -> None:
        """Every job has one record, by its own evidence, as one machine alone gives it; nothing is left running."""
        found = verdicts(folder)
        assert len(found) == len(self.command.images) == len(self.expected), told
        assert found == self.expected
        done_again = [json.loads((one / "verdict.json").read_text()) for one in folder.rglob("earlier/*")]
        assert all(one["overall"] == "FAIL" for one in done_again), "a job that had passed was done twice"
        jobs = JobFolder(folder)
        assert not [key for key in jobs.job_keys() if jobs.lease(key)]
        self._until(lambda: not self._queue())
        self.engine.sweep()
        assert not self._containers()

    def names(self) -> tuple[str, ...]:
        """Every name that these images have in the engine."""
        return tuple(name for image in self.command.images for name in self.engine.inspect(image).tags)

    def _kill(self, victim: str, submitter: subprocess.Popen[str]) -> bool:
        """In the middle of a validation run. Whether there was one to kill."""
        self._until(lambda: bool(self._containers("running")), submitter)
        if victim == SUBMITTER:
            submitter.kill()
            submitter.wait()
            return True
        with suppress(ProcessLookupError):
            for worker in self._workers()[:1]:
                os.kill(worker, signal.SIGKILL)
                return True
        return False

    def _queue(self) -> list[str]:
        return self.slurm.queue()

    def _workers(self) -> list[int]:
        """Python processes of jobs on Slurm's nodes."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                mine = str(self.slurm.folder).encode() in (folder / "environ").read_bytes()
                if mine and b"submitit.core._submit" in words and b"srun" not in words[0]:
                    found.append(int(folder.name))
        return found

    def _containers(self, *states: str) -> list[str]:
        """Of trials of these images, those that ended and were not removed among them; or those in some states."""
        ours = {*self.command.images, *(self.engine.inspect(image).id for image in self.command.images)}
        found = [container for container in containers(self.engine, RUN_LABEL) if container.image in ours]
        return [container.id for container in found if not states or container.state in states]

    def _until(self, holds: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not holds():
            if process is not None and process.poll() is not None:
                return
            assert time.monotonic() < deadline, self._queue()
            time.sleep(0.1)


def kill_container(engine: Engine, container: str) -> bool:
    """Whether it was there to be killed."""
    client = docker.DockerClient(base_url=engine.facts.url)
    try:
        client.api.kill(container)
    except docker.errors.APIError:  # it has ended by itself
        return False
    finally:
        client.close()
    return True
