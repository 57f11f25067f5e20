"""`publish --on slurm|ray`: workers push the layers; signatures, attachments and tags are made here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from images.apptainer import published
from images.commands import executors
from images.commands.executors import ExecutorArguments
from images.config import paths
from images.config.platforms import Platform
from images.engine import Engine
from images.engine.progress import Progress
from images.errors import Problem, UserError, problem_of
from images.fleet import config, gather, travel
from images.fleet.config import Fleet
from images.fleet.deliveries import submitting
from images.fleet.deliveries.model import DeliveryJob, DeliveryResult
from images.fleet.deliveries.submitting import PushedContent
from images.fleet.gather import Places
from images.fleet.submission import Submission, machines
from images.fleet.travel import Found
from images.publish import attestation, publication, signing
from images.publish.local_image import LocalImage, PublishOptions
from images.publish.publication import PublishResult
from images.registry.reference import Reference, Repository

Answers = Mapping[str, DeliveryResult | UserError]
"""Key of a job -> its end."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """An image to publish. `reference`: `--image`; empty: it is looked for."""

    options: PublishOptions
    reference: str = ""


@dataclass(frozen=True, kw_only=True)
class _Ready:
    """Images of one row whose gate is open, and what workers must push of them."""

    images: Sequence[LocalImage]
    jobs: Sequence[DeliveryJob]

    def publish(self, answers: Answers) -> PublishResult:
        """Read every verdict again, see what the workers stored, attach, sign, and move the tags. Raises UserError."""
        ends = {job.image: answers[job.key] for job in self.jobs}
        if lost := [problem for end in ends.values() if isinstance(end, UserError) for problem in end.problems]:
            raise UserError(lost, code=1)
        results = {image: end for image, end in ends.items() if isinstance(end, DeliveryResult)}
        return publication.publish_images([_with(one, results.get(str(one.options.name))) for one in self.images])


@dataclass(kw_only=True)
class Publishing:
    """`publish --on` of several rows. Use `all` once."""

    how: ExecutorArguments
    say: Callable[[str, str], None] = executors.tell

    @cached_property
    def fleet(self) -> Fleet:
        """Raises UserError: fleet.yaml can't be read."""
        return config.read(self.how.file)

    def all(self, rows: Sequence[Sequence[Wish]]) -> Iterator[PublishResult | UserError]:
        """Each row with its end, in the order of the ends. One that fails stops no other. Raises UserError."""
        fleet = self.fleet
        waiting: list[_Ready] = []
        for row in rows:
            try:
                waiting.append(self._ready(row))
            except UserError as error:
                yield error
            except OSError as error:
                yield UserError(problem_of(error, str(row[0].options.name)), code=1)
        answers: dict[str, DeliveryResult | UserError] = {}
        yield from _ended(waiting, answers)
        jobs = [job for ready in waiting for job in ready.jobs]
        if not jobs:
            return
        executor = executors.executor(self.how.on, paths.in_workspace(Path("out")), fleet)
        submission = Submission.new(fleet, executor, self.say)
        with closing(submitting.results(jobs, submission)) as ends:
            for job, end in ends:
                answers[job.key] = end
                self.say(job.key, _told(end))
                yield from _ended(waiting, answers)

    def _ready(self, row: Sequence[Wish]) -> _Ready:
        """Check all that can be checked before anything is sent. Raises UserError."""
        if row[0].options.key:
            signing.require(row[0].options.key)
        for wish in row:
            machines(self.fleet, wish.options.name.platform, str(wish.options.name))
        located = [self._located(wish) for wish in row]
        images = [image for image, _ in located]
        with publication.opened(images) as (opened, parts):
            opened.check(parts)
            lacking = [publication.lacking(opened.target, image) for image in images]
        jobs = [
            DeliveryJob(
                image=str(image.options.name),
                digest=image.info.id,
                reference=reference,
                to=str(image.options.repository),
                platform=image.options.name.platform,
                compressions=compressions,
            )
            for (image, reference), compressions in zip(located, lacking, strict=True)
            if compressions
        ]
        return _Ready(images=images, jobs=jobs)

    def _located(self, wish: Wish) -> tuple[LocalImage, str]:
        """An image as its registry has it, with the reference that a worker pulls. Raises UserError."""
        options = wish.options
        found = attestation.in_folder(options.attestation, str(options.name))
        noted = travel.noted(options.attestation, found.verdict.digest)
        there = self._in_registry(wish.reference or noted, options.name.platform)
        reference = there.reference if there else self._sent(wish, noted)
        image = published.read(reference)
        if image is None:
            raise UserError(Problem(where=reference, cause="is not there any more", then="send it again"), code=1)
        return _with(
            LocalImage(
                info=image.info,
                content=PushedContent(info=image.info),
                attestation=found,
                options=options,
                say=lambda text: self.say(str(options.name), text),
            )
        ), reference

    @staticmethod
    def _in_registry(text: str, platform: Platform) -> Found | None:
        """What `--image` names, or a worker has pushed. Raises UserError: no access."""
        return travel.in_registry(Reference.parse(text), platform) if "/" in text else None

    def _sent(self, wish: Wish, noted: str) -> str:
        """An image of this machine's engine, sent; else what `--through` has under its name. Raises UserError."""
        options, text = wish.options, self.how.through or self.fleet.through
        if noted and not text:
            then = f"`nox -s build -- {options.name} --on {self.how.on}` sends it again"
            raise UserError(Problem(where=noted, cause="is not in its registry any more", then=then), code=1)
        repository = travel.repository(text)
        with executors.local_engine(None) as engine, Progress() as progress:
            tags = [wish.reference or str(options.name)]
            where = repository if not wish.reference else None
            found = gather.by_tag(tags, Places(engine=engine, repository=where), options.name.platform)
            if found is None:
                raise _nowhere(wish, engine, repository)
            if engine is None or found.local is None:
                return found.reference
            return travel.send(engine, found.local, repository, options.cache, progress.job(str(options.name)))


def _with(image: LocalImage, result: DeliveryResult | None = None) -> LocalImage:
    """With its verdict judged from the evidence now, and with what a worker pushed. Raises UserError."""
    options = image.options
    found = attestation.read_folder(options.attestation, str(options.name), image.info)
    return replace(image, attestation=found, content=PushedContent(info=image.info, result=result))


def _ended(waiting: list[_Ready], answers: Answers) -> Iterator[PublishResult | UserError]:
    """Publish the rows of which every job has ended, and wait for them no longer."""
    for ready in [one for one in waiting if all(job.key in answers for job in one.jobs)]:
        waiting.remove(ready)
        try:
            yield ready.publish(answers)
        except UserError as error:
            yield error
        except OSError as error:
            yield UserError(problem_of(error, str(ready.images[0].options.name)), code=1)


def _nowhere(wish: Wish, engine: Engine | None, repository: Repository) -> UserError:
    name = wish.options.name
    if wish.reference:
        then = "name an image of this machine's engine, or HOST/NAME:TAG, or HOST/NAME@sha256:..."
        return UserError(Problem(where=f"--image {wish.reference}", cause="is nowhere", then=then))
    here = "it is in no engine here" if engine is None else "this machine's engine has none of this name"
    cause = f"{here}, and {repository} has no tag of this name"
    then = f"`nox -s build -- {name}`, with the same --on or without; or name it: --image HOST/NAME@sha256:..."
    return UserError(Problem(where=str(name), cause=cause, then=then), code=1)


def _told(end: DeliveryResult | UserError) -> str:
    if isinstance(end, UserError):
        return f"failed: {end.problems[0].cause}"
    return f"stored on {end.worker.node} in {end.seconds:.0f} s, {end.sent / 1e6:.0f} MB sent"
