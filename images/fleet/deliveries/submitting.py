"""Pushes handed to workers, and what the registry must have before the submitter believes in one."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from images.engine import ImageInfo
from images.errors import Problem, UserError
from images.fleet import submission as submitted
from images.fleet.deliveries.model import DeliveryJob, DeliveryResult
from images.fleet.deliveries.worker import DeliveryAssignment
from images.fleet.executors.executor import Ended
from images.fleet.results import error_of
from images.fleet.submission import Submission
from images.publish import checks, sbom, variants
from images.publish.compression import Compression
from images.publish.sbom import Packages
from images.registry.client import Registry
from images.registry.distribution import Manifest
from validate.judge import Verdict

_AGAIN = "give the same command again: layers that arrived are not sent again"


@dataclass(frozen=True, kw_only=True)
class PushedContent:
    """An image that a worker pushed: its layers stay where they are (images/publish/unpublished_image.py, Content)."""

    info: ImageInfo
    verdict: Verdict
    """The image's, judged here: what its evidence measured must be among the packages."""
    result: DeliveryResult | None = None
    """None: no worker was asked, as nothing was lacking."""

    def push(self, target: Registry, wanted: Sequence[Compression]) -> Sequence[tuple[Compression, Manifest]]:
        """The manifests that the worker stored, as the registry has them. Raises UserError for one that is not so."""
        return tuple((one, self._manifest(target, one)) for one in wanted)

    def packages(self) -> Packages:
        """As the worker told them. Raises UserError: it told none, or others than the evidence measured."""
        try:
            found = sbom.packages_of(self.result.packages if self.result else {})
        except (LookupError, TypeError, ValueError):
            raise self._refused_packages("no worker told its packages") from None
        if faults := checks.unlisted(sbom.python_versions(found), self.verdict):
            raise self._refused_packages("; ".join(faults[:3]))
        return found

    def _refused_packages(self, cause: str) -> UserError:
        then = "publish it on one machine, without --on: its engine reads them"
        return UserError(Problem(where=self.info.id, cause=cause, then=then), code=1)

    def _manifest(self, target: Registry, compression: Compression) -> Manifest:
        digest = self.result.manifests.get(compression, "") if self.result else ""
        where = f"{target.repository}@{digest}" if digest else f"{target.repository} ({compression})"
        found = target.find(digest) if digest else None
        if found is None:
            raise UserError(Problem(where=where, cause="no worker stored this variant", then=_AGAIN), code=1)
        if cause := fault(found, self.info, compression):
            raise UserError(Problem(where=where, cause=cause, then=_AGAIN), code=1)
        return found


def fault(found: Manifest, info: ImageInfo, compression: Compression) -> str:
    """Why a manifest is not an image's in a compression; empty if it is. Pure."""
    if found.is_index or found.config.digest != info.id:
        return f"its worker stored another image than the validated {info.id[:19]}"
    types = [layer.media_type for layer in found.layers]
    if types != [compression.media_type] * len(info.layers):
        return f"its worker stored {len(types)} layers, not {len(info.layers)} of {compression.media_type}"
    if (stored := variants.compression_of(found)) is not compression:
        return f"its worker stored {stored} layers, not {compression}"
    return ""


def results(
    jobs: Sequence[DeliveryJob], submission: Submission
) -> Generator[tuple[DeliveryJob, DeliveryResult | UserError]]:
    """Each job with its result, as they end. What was begun is cancelled on any way out. Raises UserError."""
    by_key = {job.key: job for job in jobs}
    placed = [
        submission.placed(
            job.key,
            DeliveryAssignment(job=job.model_dump_json(), run=submission.run, executor=submission.executor.name),
            job.platform,
            job.image,
        )
        for job in by_key.values()
    ]
    for ended in submission.ends(placed):
        yield by_key[ended.key], result_of(ended, submission.run)


def result_of(ended: Ended, run: str) -> DeliveryResult | UserError:
    """What a worker pushed for this job of this run, or why it pushed nothing."""
    answer = submitted.answer_of(ended, run, DeliveryResult, _AGAIN)
    return answer if isinstance(answer, UserError) else error_of(answer) or answer
