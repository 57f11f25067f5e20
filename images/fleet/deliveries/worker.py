"""What a worker does with a push: pull by digest, compress, store without a tag, read the packages. Knows no key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from images.engine import Engine, connect, ignore
from images.errors import UserError
from images.fleet import travel
from images.fleet.deliveries import layers
from images.fleet.deliveries.model import DeliveryJob, DeliveryResult
from images.fleet.results import told
from images.fleet.task import TaskContext
from images.fleet.worker import pulled, worker_info
from images.host import cache as host_cache
from images.publish import sbom
from images.publish.push import PushJob, Tally, known_blobs, push
from images.registry.client import Registry
from images.registry.reference import Reference, Repository


@dataclass(frozen=True, kw_only=True)
class DeliveryAssignment:
    """A job, and what the worker must know beside it. Plain data: it is sent to another machine."""

    job: str
    """A DeliveryJob as JSON."""
    run: str
    executor: str

    def elsewhere(self) -> DeliveryAssignment:
        return self

    def perform(self, context: TaskContext) -> DeliveryResult:
        return deliver(self, context)

    def perform_and_keep(self, context: TaskContext) -> DeliveryResult:
        return deliver(self, context)


def deliver(given: DeliveryAssignment, context: TaskContext) -> DeliveryResult:
    """Push an image from this machine's engine. What goes wrong is told in the result. Raises UserError: no engine."""
    job = DeliveryJob.model_validate_json(given.job)
    started = datetime.now(UTC)
    with connect(None, builds=False) as engine:
        context.on_engine(engine)
        engine.sweep()
        try:
            made = _made(engine, job)
        except UserError as error:
            made = {"problems": told(error)}
        version = engine.facts.version
    return DeliveryResult(
        key=job.key,
        run=given.run,
        worker=worker_info(context, given.executor, version),
        started=started,
        ended=datetime.now(UTC),
        **made,
    )


def _made(engine: Engine, job: DeliveryJob) -> Mapping[str, Any]:
    """Fields of the result. Raises UserError."""
    travel.require_layers(engine, "give the workers a Docker Engine (fleet.yaml names the machines)")
    info = pulled(engine, job.reference, job.digest, str(job.platform))
    source, target = Reference.parse(job.reference), Repository.parse(job.to)
    cache = host_cache.folder() / "push"
    siblings = known_blobs(cache).siblings(target, job.compressions, info.layers)
    at_hand: layers.Layers = {}
    if source.repository.host == target.host:
        siblings = tuple(dict.fromkeys((source.repository, *siblings)))
        at_hand = layers.at_hand(source, info, job, known_blobs(cache))
    with Registry(target, mount_from=[one for one in siblings if one != target]) as registry:
        registry.check_access()
        pushing = PushJob(
            engine=engine,
            info=info,
            target=registry,
            wanted=job.compressions,
            cache=cache,
            siblings=siblings,
            at_hand=at_hand,
        )
        with Tally(where=job.to, on_event=ignore) as tally:
            pushed = push(pushing, tally)
    manifests = {compression: manifest.digest for compression, manifest in pushed}
    return {"manifests": manifests, "sent": tally.sent, "packages": asdict(sbom.read(engine, info.id))}
