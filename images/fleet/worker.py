"""What runs on a machine of the cluster: the ordinary verb, `build` or `validate`, whose files are brought back."""

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
"""Seconds after which a worker looks whether its task was cancelled."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One image to build or to pull, and what to measure of it. Plain data: it is sent to another machine."""

    image: str = ""
    """The name whose claims hold."""
    reference: str = ""
    """`HOST/NAME@sha256:...` to pull; empty: the worker builds the image."""
    tiers: tuple[Tier, ...]
    only: tuple[str, ...] = ()
    """Texts of `--claim`; empty: every claim."""
    staging: str = ""
    """`REGISTRY/REPOSITORY` that a built image is pushed to; empty: it stays in the worker's engine."""
    matrix: str = ""
    """The matrix file; empty: that of the worker's checkout."""

    @property
    def key(self) -> str:
        """Name the task among those of a command, and its folder."""
        digest = self.reference.partition("@sha256:")[2]
        return f"{self.image}-{digest[:12]}" if digest else self.image

    def arguments(self, out: str) -> list[str]:
        """Return the verb that does the task, with its options."""
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
    """What a worker brings back: evidence, which the submitter judges."""

    machine: str
    reference: str
    """Where the image was pulled from or pushed to; empty: it stayed in the worker's engine."""
    labels: Mapping[str, str]
    steps: Sequence[str]
    """Its build steps, the first first."""
    evidence: str
    """evidence.json."""
    build: str
    """build.json of an image that was built, else empty."""


@dataclass(frozen=True, kw_only=True)
class Lost:
    """Why a task brought no evidence."""

    cause: str


Result = Measured | Lost


def perform(task: Task, machine: str) -> Result:
    """Do a task by this machine's engine. What a person can cause comes back as Lost."""
    try:
        with tempfile.TemporaryDirectory(prefix="truetag-task-") as scratch:
            if task.reference:
                pull(task.reference)
            log = run_verb(task.arguments(scratch), Path(scratch, "log"))
            # The verdict is the last file that a verb writes: without it, the evidence may be half.
            verdict = next(Path(scratch).rglob("verdict.json"), None)
            if verdict is None:
                return Lost(cause=f"on {machine}: {last_words(log)}")
            return bring_back(task, machine, verdict.parent)
    except UserError as error:
        return Lost(cause=f"on {machine}: {error.problems[0]}")


def pull(reference: str) -> None:
    """Pull an image by its digest, where the engine lacks it."""
    with connect() as engine:
        if engine.find(reference) is None:
            engine.pull(reference)


def run_verb(arguments: Sequence[str], log: Path) -> str:
    """Run a verb to its end, and return what it said. Where this task is cancelled, the verb tidies up first."""
    with log.open("w+") as stream:
        command = [sys.executable, "-m", "images", *arguments]
        verb = subprocess.Popen(
            command, cwd=paths.RESOURCES, stdout=stream, stderr=subprocess.STDOUT
        )
        try:
            # Ray's cancelling interrupts no call that blocks.
            while verb.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    verb.wait(LOOK_UP)
        except BaseException:
            verb.send_signal(signal.SIGTERM)
            verb.wait()
            raise
    return log.read_text(encoding="utf-8", errors="replace")


def last_words(log: str) -> str:
    """Return the errors that a verb ended with; without any, its last line: it was killed."""
    errors = re.search(r"^error .*", log, re.MULTILINE | re.DOTALL)
    if errors:
        return errors[0].strip()
    return f"it was killed; its last line was: {log.strip().rpartition(chr(10))[2]}"


def bring_back(task: Task, machine: str, folder: Path) -> Measured:
    """Return what a verb wrote, and push what it built."""
    evidence = (folder / "evidence.json").read_text(encoding="utf-8")
    build, reference = "", task.reference
    with connect() as engine:
        info = engine.inspect(Evidence.loads(evidence).digest)
        if not task.reference:
            build = (folder / "build.json").read_text(encoding="utf-8")
            reference = push_by_digest(engine, info, task.staging) if task.staging else ""
        steps = engine.steps(info.id)
    return Measured(
        machine=machine,
        reference=reference,
        labels=info.labels,
        steps=steps,
        evidence=evidence,
        build=build,
    )


def push_by_digest(engine: Engine, info: ImageInfo, staging: str) -> str:
    """Store an image in a registry without a tag, which only `publish` gives. Return its reference."""
    repository = Repository.parse(staging)
    with Registry(repository) as registry:
        manifest, _ = push(engine, info, registry, cache.folder() / "push")
    return f"{repository}@{manifest.digest}"


def node() -> str:
    """Return this machine's name, as Slurm has it where Slurm does."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()
