"""Builds on Slurm whose workers wait for a file in place of building: their submitter is killed meanwhile.

python -m tests.support.held_builds FOLDER [--resume]
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
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
    """The folder of a run. Its workers see it, too."""

    folder: Path

    @property
    def ledger(self) -> BuildLedger:
        return BuildLedger(self.folder / "builds")

    def start(self, environment: dict[str, str], *options: str) -> subprocess.Popen[str]:
        """A submitter, which goes on."""
        command = [sys.executable, "-m", "tests.support.held_builds", str(self.folder), *options]
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def began(self) -> list[str]:
        """Label of each build that a worker began, in this order."""
        return sorted((self.folder / "began").read_text().split()) if (self.folder / "began").exists() else []

    def let_end(self, label: str) -> None:
        (self.folder / f"end-{label}").touch()

    def wait(self, label: str) -> None:
        """What a worker does in place of a build."""
        with (self.folder / "began").open("a") as file:
            file.write(f"{label}\n")
        while not (self.folder / f"end-{label}").exists():
            time.sleep(0.1)


class HeldBuild(BuildAssignment):
    """A build that ends when it is let."""

    def perform(self, context: TaskContext) -> BuildResult:
        job, started = BuildJob.model_validate_json(self.job), datetime.now(UTC)
        HeldBuilds(Path(self.ledger).parent).wait(job.label)
        return BuildResult(
            key=job.key,
            run=self.run,
            worker=worker_info(context, self.executor, "none"),
            started=started,
            ended=datetime.now(UTC),
            digest="sha256:" + "ab" * 32,
        )


def main(folder: Path, *, resume: bool) -> None:
    """Submit the jobs and tell what came of them, as JSON; lines of progress go to stderr."""
    fleet, jobs, ledger = config.read(folder / "fleet.yaml"), list(JOBS.values()), HeldBuilds(folder).ledger
    executor = executors.executor("slurm", folder, fleet)
    keys = [job.key for job in jobs]
    if resume:
        running.left_run(ledger, keys, "slurm")
    run_of = booking.new_run("slurm", keys)

    def say(key: str, text: str) -> None:
        known = "its start is known" if key in executor.running() else "its start is not known"
        sys.stderr.write(f"{key.split('-')[-2]}: {text} ({known})\n")

    submission = Submission(fleet=fleet, executor=executor, run=run_of.id, say=say)
    outdated = {} if resume else ledger.records_of(keys)
    run = BuildRun(run_of=run_of, ledger=ledger, submission=submission, took={NAME: SECONDS}, outdated=outdated)
    held = held_builds.HeldBuild  # not that of __main__: a node imports it
    with patch.object(submitting, "BuildAssignment", held):
        ends = [end for end in run.outcomes(jobs, lambda end: end) if isinstance(end, BuildEnd)]
    found = {end.job.label: end.result for end in ends}
    digests = {label: one.digest if isinstance(one, BuildResult) else str(one) for label, one in found.items()}
    sys.stdout.write(json.dumps(digests))


if __name__ == "__main__":
    main(Path(sys.argv[1]), resume="--resume" in sys.argv)
