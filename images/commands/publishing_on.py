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
from images.publish.publication import PublishResult
from images.publish.unpublished_image import PublishOptions, UnpublishedImage
from images.registry.reference import Reference

Answers = Mapping[str, DeliveryResult | UserError]
"""Key of a job -> its end."""


@dataclass(frozen=True, kw_only=True)
class PublishRequest:
    """An image to publish. `reference`: `--image`; empty: it is looked for."""

    options: PublishOptions
    reference: str = ""


@dataclass(frozen=True, kw_only=True)
class _Ready:
    """Images of one row whose gate is open, and what workers must push of them."""

    images: Sequence[UnpublishedImage]
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

    def all(self, rows: Sequence[Sequence[PublishRequest]]) -> Iterator[PublishResult | UserError]:
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
        key = next((wish.options.key for row in rows for wish in row), "")
        executor = executors.executor(self.how.on, paths.in_workspace(Path("out")), fleet, key)
        submission = Submission.new(fleet, executor, self.say)
        with closing(submitting.results(jobs, submission)) as ends:
            for job, end in ends:
                answers[job.key] = end
                self.say(job.key, _told(end))
                yield from _ended(waiting, answers)

    def _ready(self, row: Sequence[PublishRequest]) -> _Ready:
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

    def _located(self, wish: PublishRequest) -> tuple[UnpublishedImage, str]:
        """An image as its registry has it, with the reference that a worker pulls. Raises UserError."""
        options = wish.options
        found = attestation.in_folder(options.attestation, str(options.name))
        noted = travel.noted(options.attestation, found.verdict.digest)
        reference = self._by_digest(wish, noted) or self._by_name(wish, noted)
        image = published.read(reference)
        if image is None:
            raise UserError(Problem(where=reference, cause="is not there any more", then="send it again"), code=1)
        return _with(
            UnpublishedImage(
                info=image.info,
                content=PushedContent(info=image.info, verdict=found.verdict),
                attestation=found,
                options=options,
                say=lambda text: self.say(str(options.name), text),
            )
        ), reference

    @staticmethod
    def _by_digest(wish: PublishRequest, noted: str) -> str:
        """What `--image` names by digest, or a worker has pushed, where its registry has it: an engine's would be the
        same, and would have to be sent. Raises UserError: no access.
        """
        text = wish.reference or noted
        found = travel.in_registry(Reference.parse(text), wish.options.name.platform) if _names_a_digest(text) else None
        return found.reference if found else ""

    def _by_name(self, wish: PublishRequest, noted: str) -> str:
        """An image of this machine's engine, sent; else what a registry has under its name. Raises UserError."""
        options, through = wish.options, self.how.through or self.fleet.through
        if noted and not wish.reference and not through:
            then = f"`nox -s build -- {options.name} --on {self.how.on}` sends it again"
            raise UserError(Problem(where=noted, cause="is not in its registry any more", then=then), code=1)
        repository = None if wish.reference else travel.repository(through)
        with executors.local_engine(None) as engine, Progress() as progress:
            found = _found(wish, Places(engine=engine, repository=repository))
            if engine is None or found.local is None:
                return found.reference
            to = travel.repository(through)
            return travel.send(engine, found.local, to, options.cache, progress.job(str(options.name)))


def _with(image: UnpublishedImage, result: DeliveryResult | None = None) -> UnpublishedImage:
    """With its verdict judged from the evidence now, and with what a worker pushed. Raises UserError."""
    options = image.options
    found = attestation.read_folder(options.attestation, str(options.name), image.info)
    return replace(
        image, attestation=found, content=PushedContent(info=image.info, verdict=found.verdict, result=result)
    )


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


def _names_a_digest(reference: str) -> bool:
    """`HOST/NAME@sha256:...`."""
    return "@" in reference and "/" in reference


def _found(wish: PublishRequest, places: Places) -> Found:
    """What is there under the name that is asked for. Raises UserError: nothing, no access."""
    name = wish.options.name
    if wish.reference:
        return gather.by_reference(wish.reference, f"--image {wish.reference}", places, name.platform)
    if found := gather.by_tag([str(name)], places, name.platform):
        return found
    here = "it is in no engine here" if places.engine is None else "this machine's engine has none of this name"
    cause = f"{here}, and {places.repository} has no tag of this name"
    then = f"`nox -s build -- {name}`, with the same --on or without; or name it: --image HOST/NAME@sha256:..."
    raise UserError(Problem(where=str(name), cause=cause, then=then), code=1)


def _told(end: DeliveryResult | UserError) -> str:
    if isinstance(end, UserError):
        return f"failed: {end.problems[0].cause}"
    return f"stored on {end.worker.node} in {end.seconds:.0f} s, {end.sent / 1e6:.0f} MB sent"
