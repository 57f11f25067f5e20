"""What a worker does with a build: the same pipeline as on one machine, then a push by digest. Knows no scheduler."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from images.building import pipeline
from images.building.pipeline import BuildOptions
from images.config import matrix, paths
from images.config.matrix import Sources
from images.config.paths import Workspace
from images.context.hosting import host_settings
from images.context.labels import LABELS
from images.engine import Engine, connect
from images.engine.progress import Progress
from images.errors import UserError
from images.fleet import travel
from images.fleet.builds.description import context_digest, image_of, require_same_context
from images.fleet.builds.ledger import BuildLedger
from images.fleet.builds.model import BuildJob, BuildResult
from images.fleet.results import ToldProblem, told
from images.fleet.task import TaskContext
from images.fleet.worker import pulled, worker_info
from images.host.file_lock import nothing
from images.locking import lock_file
from images.nightly import judge, overlay
from images.nightly.canary import Locked
from images.planning.image import Image
from images.registry.reference import Repository
from images.wheels import cache as wheel_cache

Made = Mapping[str, Any]
"""Fields of a BuildResult."""


@dataclass(frozen=True, kw_only=True)
class BuildAssignment:
    """A job, and what the worker must know beside it. Plain data: it is sent to another machine."""

    job: str
    """A BuildJob as JSON."""
    run: str
    executor: str
    matrix: str
    """The matrix file; empty: the checkout's."""
    ledger: str = ""
    """The folder of a BuildLedger, where this machine sees it: what was built is kept there, and not built twice."""
    wheel_mirror: str = ""
    """The URL that the job knows by its digest."""

    def elsewhere(self) -> Self:
        """The checkout that travels has the matrix; the ledger is the submitter's."""
        return replace(self, matrix="", ledger="")

    def perform(self, context: TaskContext) -> BuildResult:
        return build(self, context)

    def perform_and_keep(self, context: TaskContext) -> BuildResult:
        if not self.ledger:
            return self.perform(context)
        key = BuildJob.model_validate_json(self.job).key
        return BuildLedger(Path(self.ledger)).kept(key, lambda: self.perform(context))


def build(given: BuildAssignment, context: TaskContext) -> BuildResult:
    """Build an image on this machine, validate it, and push it by its digest. No name is left behind.

    A build that fails is told in the result. Raises UserError: another checkout, no engine that builds.
    """
    job = BuildJob.model_validate_json(given.job)
    paths.use(Workspace(Path(given.matrix)) if given.matrix else paths.workspace())
    started = datetime.now(UTC)
    with (
        tempfile.TemporaryDirectory(prefix="truetag-build-") as scratch,
        connect(None) as engine,
        Progress(plain=True) as progress,
    ):
        context.on_engine(engine)
        engine.sweep()
        work = _Work(job=job, given=given, folder=Path(scratch), engine=engine, progress=progress)
        with engine.alone(_lock(work.name), waiting=nothing):
            untag_left(engine)
            made = _made(work)
        version = engine.facts.version
    return BuildResult(
        key=job.key,
        run=given.run,
        worker=worker_info(context, given.executor, version),
        started=started,
        ended=datetime.now(UTC),
        **made,
    )


@dataclass(frozen=True, kw_only=True)
class _Work:
    """One job on this machine's engine."""

    job: BuildJob
    given: BuildAssignment
    folder: Path
    engine: Engine
    progress: Progress

    @property
    def locks(self) -> Path:
        return self.folder / "locks" if self.job.lock else paths.workspace().locks

    @property
    def suffix(self) -> str:
        """Ends as `untag_left` reads it."""
        return f"{self.job.suffix(self.given.run)}-u{os.getuid()}"

    @property
    def name(self) -> str:
        return f"{self.job.image}{self.suffix}"

    def options(self, sources: Sources) -> BuildOptions:
        cache = wheel_cache.default()
        return BuildOptions(
            out=self.folder,
            cache=Path(cache.folder).parent,
            facts=sources.facts,
            base=self.job.base,
            wheel_mirror=self.given.wheel_mirror,
            strict=self.job.strict,
            no_cache=self.job.no_cache,
            tiers=self.job.tiers,
            pinned_bases=self.job.bases,
            compiled=wheel_cache.wheel_finder(sources.matrix, cache),
            locks=self.locks,
            suffix=self.suffix,
        )


def untag_left(engine: Engine) -> None:
    """Take away the names that killed workers of this user and machine left: whoever is at work holds a lock."""
    for tag in [tag for info in engine.images(f"{LABELS}.image") for tag in info.tags if engine.facts.local]:
        if found := re.fullmatch(_LEFT.format(os.getuid()), tag):
            with suppress(_AtWorkError), engine.alone(_lock(found["name"]), waiting=_raise):
                engine.untag(tag)


_LEFT = r"(?P<name>.+-[0-9a-f]{{10}}-u{})(-candidate)?(:latest)?"


class _AtWorkError(Exception):
    """Another process has this name."""


def _raise() -> None:
    raise _AtWorkError


def _lock(name: str) -> str:
    return f"job {name}"


def _made(work: _Work) -> Made:
    sources = matrix.load()
    lock_file.write({path: text.encode() for path, text in work.job.lock.items()}, work.folder / "locks")
    image = image_of(work.job, sources)
    locked = Locked(image=image, lock=lock_file.read(image, work.locks))
    require_same_context(work.job, context_digest(locked, sources, work.job.bases))
    try:
        return _laid_over(work, locked, sources) if work.job.over else _built(work, image, sources)
    except UserError as error:
        return _failed(error)


def _built(work: _Work, image: Image, sources: Sources) -> Made:
    """As `build` does it. Raises UserError."""
    engine = work.engine
    try:
        (result,) = pipeline.build_all(engine, [image], work.options(sources), host_settings(), work.progress, jobs=1)
        if isinstance(result, UserError):
            raise result
        reference = ""
        if work.job.through:
            through, cache = Repository.parse(work.job.through), work.options(sources).cache / "push"
            reference = travel.send(engine, result.info, through, cache, work.progress.job(work.name))
    finally:
        for tag in (work.name, f"{work.name}-candidate"):
            engine.untag(tag)
    folder = work.folder / work.name
    return {
        "digest": result.info.id,
        "bytes": result.info.size,
        "reference": reference,
        "labels": dict(result.info.labels),
        "build": json.loads((folder / "build.json").read_text(encoding="utf-8")),
        "evidence": (folder / "evidence.json").read_text(encoding="utf-8"),
    }


def _laid_over(work: _Work, locked: Locked, sources: Sources) -> Made:
    """The lock's versions over an image that is there. Raises UserError."""
    job, engine, name = work.job, work.engine, str(locked.image.name)
    if engine.find(job.over) is None:  # FROM knows it by this name alone; layers that are here are not fetched
        engine.pull(job.over, platform=str(job.platform))
    parent = pulled(engine, job.over, job.over_digest, str(job.platform))
    control = image_of(job.model_copy(update={"pins": {}}), sources)
    controls = {name: Locked(image=control, lock=lock_file.read(control))}
    lay = overlay.over(engine, controls, work.options(sources), host_settings(), work.progress, {name: job.over})
    trial = lay(locked, job.tiers, work.suffix.removeprefix("-"))
    if trial.cause:
        return {"cause": trial.cause, "problems": [ToldProblem(where=name, cause=trial.cause, then="")]}
    return {
        "digest": trial.digest,
        "bytes": trial.bytes,
        "labels": dict(parent.labels),
        "evidence": (work.folder / work.name / "evidence.json").read_text(encoding="utf-8"),
    }


def _failed(error: UserError) -> Made:
    try:
        return {"problems": told(error), "cause": judge.cause_of(error)}
    except UserError:
        return {"problems": told(error)}
