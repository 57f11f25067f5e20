"""Builds by workers that wait for a file in place of building: their submitter is killed meanwhile.

python -m tests.support.held_builds FOLDER slurm|ray [--resume]
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

from images.commands import executors
from images.fleet import booking, config
from images.fleet.builds import running, submitting
from images.fleet.builds.ledger import BuildLedger
from images.fleet.builds.model import BuildJob, BuildResult
from images.fleet.builds.running import BuildEnd, BuildRun
from images.fleet.builds.worker import BuildAssignment
from images.fleet.submission import Submission
from images.fleet.task import TaskContext
from images.fleet.worker import worker_info
from tests.support import held_builds
from tests.support.broken_images import NAME
from tests.support.checkout import ROOT
from validate.claims import Tier

LABELS = ("a", "b", "c")
JOBS = {label: BuildJob(image=NAME, context="c" * 64, tiers=(Tier.STATIC,), label=label) for label in LABELS}
SECONDS = 3600.0
"""What earlier records say of the image."""


@dataclass(frozen=True)
class HeldBuilds:
    """The folder of a run, which its workers see, too; and what runs its jobs."""

    folder: Path
    executor: str

    @property
    def ledger(self) -> BuildLedger:
        return BuildLedger(self.folder / "builds")

    def start(self, environment: Mapping[str, str], *options: str) -> subprocess.Popen[str]:
        """A submitter, which goes on."""
        command = [sys.executable, "-m", "tests.support.held_builds", str(self.folder), self.executor, *options]
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def began(self) -> list[str]:
        """Label of each build that a worker began, sorted."""
        return sorted(label for label, _ in self._began())

    def workers(self) -> set[int]:
        """Processes of workers that began a build and live."""
        return {int(process) for _, process in self._began() if Path(f"/proc/{process}").exists()}

    def _began(self) -> list[list[str]]:
        file = self.folder / "began"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    def let_end(self, label: str) -> None:
        (self.folder / f"end-{label}").touch()

    def wait(self, label: str) -> None:
        """What a worker does in place of a build."""
        with (self.folder / "began").open("a") as file:
            file.write(f"{label} {os.getpid()}\n")
        while not (self.folder / f"end-{label}").exists():
            time.sleep(0.1)


@dataclass(frozen=True, kw_only=True)
class HeldBuild(BuildAssignment):
    """A build that ends when it is let."""

    folder: str = ""
    """Of the run, where the worker is not told the ledger."""

    def elsewhere(self) -> Self:
        return replace(self, matrix="", ledger="", folder=str(Path(self.ledger).parent))

    def perform(self, context: TaskContext) -> BuildResult:
        job, started = BuildJob.model_validate_json(self.job), datetime.now(UTC)
        HeldBuilds(Path(self.folder or Path(self.ledger).parent), self.executor).wait(job.label)
        return BuildResult(
            key=job.key,
            run=self.run,
            worker=worker_info(context, self.executor, "none"),
            started=started,
            ended=datetime.now(UTC),
            digest="sha256:" + "ab" * 32,
        )


def main(folder: Path, on: str, *, resume: bool) -> None:
    """Submit the jobs and tell what came of them, as JSON; lines of progress go to stderr."""
    fleet, jobs, ledger = config.read(folder / "fleet.yaml"), list(JOBS.values()), HeldBuilds(folder, on).ledger
    keys = [job.key for job in jobs]
    if resume:
        running.left_run(ledger, keys, on)
    if on == "ray":
        _let_travel()
    executor, run_of = executors.executor(on, folder, fleet), booking.new_run(on, keys)

    def say(key: str, text: str) -> None:
        known = "its start is known" if key in executor.running() else "its start is not known"
        sys.stderr.write(f"{key.split('-')[-2]}: {text} ({known})\n")

    submission = Submission(fleet=fleet, executor=executor, run=run_of.id, say=say)
    outdated = {} if resume else ledger.records_of(keys)
    run = BuildRun(
        run_of=run_of,
        ledger=ledger,
        submission=submission,
        took={NAME: SECONDS},
        outdated=outdated,
        resumes=resume,
    )
    held = held_builds.HeldBuild  # not that of __main__: a node imports it
    with patch.object(submitting, "BuildAssignment", held):
        ends = [end for end in run.outcomes(jobs, lambda end: end) if isinstance(end, BuildEnd)]
    found = {end.job.label: end.result for end in ends}
    digests = {label: one.digest if isinstance(one, BuildResult) else str(one) for label, one in found.items()}
    sys.stdout.write(json.dumps(digests))


def _let_travel() -> None:
    """Ray's workers get no tests with the checkout: what is defined here goes with the task."""
    import ray

    pickler: Any = ray.cloudpickle
    pickler.register_pickle_by_value(held_builds)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], resume="--resume" in sys.argv)
