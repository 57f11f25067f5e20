"""Run one task of `fleet` on a machine of the cluster, and return what it measured.

A worker runs the ordinary verb, `build` or `validate`, and reads the files that it wrote.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from images.config import paths
from images.engine import Engine, ImageInfo, connect
from images.errors import UserError
from images.host import cache
from images.publish.push import push
from images.registry.client import Registry
from images.registry.reference import Repository
from validate.claims import Tier
from validate.evidence import Evidence

LOOK_UP = 1.0
"""Seconds between two looks whether the task was cancelled."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One image to build or to pull, and what to measure of it.

    It is sent to another machine, so it has plain data only.
    """

    image: str = ""
    """The image name by whose claims it is judged."""
    reference: str = ""
    """`HOST/NAME@sha256:...` to pull; empty: the worker builds the image."""
    tiers: tuple[Tier, ...]
    only: tuple[str, ...] = ()
    """Texts of `--claim`; empty: every claim."""
    staging: str = ""
    """`REGISTRY/REPOSITORY` to push a built image to; empty: it stays in the worker's engine."""
    matrix: str = ""
    """The matrix file; empty: that of the worker's checkout."""

    @property
    def key(self) -> str:
        """Return the name of the task and of its folder, which no other task of a command has."""
        digest = self.reference.partition("@sha256:")[2]
        return f"{self.image}-{digest[:12]}" if digest else self.image

    def arguments(self, out: str) -> list[str]:
        """Return the words of the command line that does this task: `build` or `validate`.

        An image that is given by its reference in a registry is validated, any other one built.
        `out` is the folder for the results.
        """
        words = ["build", self.image]
        if self.reference:
            words = ["validate", self.image, "--image", self.reference]
        for tier in self.tiers:
            words += ["--tier", tier]
        for text in self.only:
            words += ["--claim", text]
        if self.matrix:
            words += ["--matrix", self.matrix]
        return [*words, "--out", out]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The result of a task that was done. The machine that submitted it judges the evidence."""

    machine: str
    reference: str
    """Where the image was pulled from or pushed to; empty if it stayed in the worker's engine."""
    labels: Mapping[str, str]
    steps: Sequence[str]
    """The image's build steps, from the first to the last."""
    evidence: str
    """The content of evidence.json."""
    build: str
    """The content of build.json; empty for an image that was pulled."""


@dataclass(frozen=True, kw_only=True)
class Lost:
    """The result of a task without evidence."""

    cause: str
    """Why there is none."""


Result = Measured | Lost


def perform(task: Task, machine: str) -> Result:
    """Build or pull the image of a task on this machine, validate it, and return the result.

    `machine` is the name of this machine. The work is done by a verb of the command line, in a
    process of its own. Returns Lost, with the error, if the verb wrote no verdict or for any
    UserError.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="truetag-task-") as scratch:
            if task.reference:
                pull(task.reference)
            # Run `build`, or for a pulled image `validate`, with the scratch folder for its files.
            ended = run_verb(task.arguments(scratch), Path(scratch, "log"))
            # The verdict is the last file that a verb writes. Without it, others may be incomplete.
            verdict = next(Path(scratch).rglob("verdict.json"), None)
            if verdict is None:
                return Lost(cause=f"on {machine}: {last_words(ended)}")
            return bring_back(task, machine, verdict.parent)
    except UserError as error:
        return Lost(cause=f"on {machine}: {error.problems[0]}")


def pull(reference: str) -> None:
    """Pull an image, named by its digest, unless the engine has it. Raises UserError."""
    with connect() as engine:
        if engine.find(reference) is None:
            engine.pull(reference)


class EndedVerb(NamedTuple):
    """How a verb ended."""

    status: int
    """Its exit status; negative: the number of the signal that killed it."""
    log: str
    """What it wrote, on both outputs."""


def run_verb(arguments: Sequence[str], log: Path) -> EndedVerb:
    """Run `truetag ARGUMENTS` to its end. Its output goes to the file `log`, and is returned.

    If the task is cancelled meanwhile (an exception in this process), the verb is told to end, and
    first removes its containers.
    """
    with log.open("w+") as stream:
        command = [sys.executable, "-m", "images", *arguments]
        verb = subprocess.Popen(
            command, cwd=paths.RESOURCES, stdout=stream, stderr=subprocess.STDOUT
        )
        try:
            # Wait in short steps: Ray can't interrupt a call that blocks.
            while verb.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    verb.wait(LOOK_UP)
        except BaseException:
            verb.send_signal(signal.SIGTERM)
            verb.wait()
            raise
    return EndedVerb(verb.returncode, log.read_text(encoding="utf-8", errors="replace"))


def last_words(ended: EndedVerb) -> str:
    """Return why a verb of this program, such as `build`, ended without a verdict.

    These are its log's error messages to the end. Without any, the result is how the process ended
    and its last line: `the task was killed by signal 9 (Killed); its last line was: ...`.
    """
    # From the first line that begins with `error ` to the end of the log.
    errors = re.search(r"^error .*", ended.log, re.MULTILINE | re.DOTALL)
    if errors:
        return errors[0].strip()

    if ended.status < 0:
        signal_name = signal.strsignal(-ended.status) or "unknown"
        end = f"the task was killed by signal {-ended.status} ({signal_name})"
    else:
        end = f"the task ended with exit status {ended.status} and without a verdict"
    last_line = ended.log.strip().rpartition("\n")[2]
    if not last_line:
        return f"{end}; it wrote nothing"
    return f"{end}; its last line was: {last_line}"


def bring_back(task: Task, machine: str, folder: Path) -> Measured:
    """Return what a verb measured: the files that it wrote to `folder`, and facts of the image.

    An image that was built here is first pushed, if the task names a staging repository. Raises
    UserError if the engine no longer has the image, or if the push fails.
    """
    evidence = (folder / "evidence.json").read_text(encoding="utf-8")
    with connect() as engine:
        # Find the image by its digest, because another image may have got its tag since.
        info = engine.inspect(Evidence.loads(evidence).digest)
        if task.reference:
            # A pulled image has its reference already, and no build.json.
            reference, build = task.reference, ""
        else:
            reference = push_by_digest(engine, info, task.staging) if task.staging else ""
            build = (folder / "build.json").read_text(encoding="utf-8")
        return Measured(
            machine=machine,
            reference=reference,
            labels=info.labels,
            steps=engine.steps(info.handle),
            evidence=evidence,
            build=build,
        )


def push_by_digest(engine: Engine, info: ImageInfo, staging: str) -> str:
    """Push an image to a repository without a tag, and return `REPOSITORY@sha256:...` of it.

    Tags are only given by `publish`. Raises UserError.
    """
    repository = Repository.parse(staging)
    with Registry(repository) as registry:
        manifest, _ = push(engine, info, registry, cache.folder() / "push")
    return f"{repository}@{manifest.digest}"


def node_name() -> str:
    """Return the name of this machine: that of Slurm on a node of Slurm, else its host name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()
