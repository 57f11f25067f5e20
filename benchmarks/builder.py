"""Builds the sides of a comparison so that each cold run starts without build cache and wheels, and leaves nothing.

What the engine keeps of a run is found by the run ID, which stands in every step.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from images.context.hosting import HostSettings
from images.context.render import Context, content_of
from images.engine import Engine
from images.engine.buildkit import BuildEvent, BuildResult

Files = Mapping[str, bytes | Path]


@dataclass(frozen=True, kw_only=True)
class CacheRecord:
    """Something that the engine keeps of builds: the snapshot of a step, or a cache mount."""

    id: str
    parents: tuple[str, ...]
    made_by: str
    """In BuildKit's words: `mount / from exec /bin/sh -c ...`."""


Which = Callable[[Sequence[CacheRecord]], Sequence[CacheRecord]]
"""Chooses among the records of a build cache."""
_STEP = re.compile(rb"^(?P<indent> +(?:&& )?)(?P<command>sh /run/scripts/|\. /run/host/env)", re.MULTILINE)
_CACHE_ID = re.compile(rb"\bid=truetag-uv\b")
_FROM = re.compile(rb"^FROM .+\n(USER root\n)?", re.MULTILINE)
_ROUNDS = 8
"""Attempts to delete records: those of an interrupted build can be deleted only a moment later."""


@dataclass(frozen=True)
class Builder:
    """Builds in one engine, with the host's settings, under one run ID, which also names its image.

    `before`: records of the build cache that were there before it.
    """

    engine: Engine
    host: HostSettings
    run_id: str
    on_event: Callable[[BuildEvent], None]
    before: frozenset[str] = frozenset()

    def build(
        self, context: Files, *, cold: bool = False, marked: bool = True, target: str | None = None
    ) -> BuildResult:
        """Build a context. `cold`: no step and no wheel comes from a cache. `marked`: steps bear the run ID."""
        files = marked_with(context, self.run_id) if marked else context
        if cold:
            files = on_own_layer(with_own_wheels(files, self.run_id), self.run_id)
        return self.engine.build(files, self.run_id, no_cache=cold, target=target, attempts=1, on_event=self.on_event)

    def nothing_new_kept(self) -> AbstractContextManager[None]:
        """The builder's image, and what its marked steps add to the build cache inside, are gone after it."""
        return nothing_new_kept(self.engine, self.run_id, lambda records: traces(records, self.run_id))

    def nothing_at_all_kept(self) -> AbstractContextManager[None]:
        """The same of unmarked steps, which may come from the build cache.

        No record says who made it: builds of others on the same engine meanwhile leave nothing in the cache, either.
        """
        return nothing_new_kept(self.engine, self.run_id)

    def clear(self) -> None:
        """Remove the builder's image and build cache, so that the next run is as cold as the first."""
        self.engine.untag(self.run_id)
        self.forget_steps()

    def forget_steps(self) -> None:
        """Remove the build cache alone: an image that was made keeps its layers."""
        forget(self.engine, lambda records: traces(records, self.run_id))
        forget(self.engine, lambda records: unused_bases(records, self.before))


@contextmanager
def open_builder(engine: Engine, host: HostSettings, on_event: Callable[[BuildEvent], None]) -> Iterator[Builder]:
    """A builder that leaves nothing in the engine: neither the image of its run ID, nor the cache of its steps."""
    before = frozenset(record.id for record in build_cache(engine))
    builder = Builder(engine, host, f"truetag-bench-{uuid.uuid4().hex[:12]}", on_event, before)
    try:
        yield builder
    finally:
        builder.clear()


def build_cache(engine: Engine) -> tuple[CacheRecord, ...]:
    """What the engine keeps of builds. Newer engines say `Parents`; a step's snapshot has one."""
    return tuple(
        CacheRecord(
            id=one["ID"],
            parents=tuple(one.get("Parents") or filter(None, [one.get("Parent")])),
            made_by=one.get("Description") or "",
        )
        for one in engine.sdk.df()["BuildCache"] or ()
    )


def traces(records: Sequence[CacheRecord], run_id: str) -> list[CacheRecord]:
    """The records of steps that bear a run ID, and all that stand on them. Pure."""
    found = {record.id: record for record in records if run_id in record.made_by}
    while above := [one for one in records if one.id not in found and found.keys() & set(one.parents)]:
        found.update((record.id, record) for record in above)
    return list(found.values())


def unused_bases(records: Sequence[CacheRecord], before: frozenset[str]) -> list[CacheRecord]:
    """New records of images that steps stood on, and none stands on now: they hold the bytes of an image that is gone.

    Whoever builds on such an image later has the record again, at no cost. Pure.
    """
    stood_on = {parent for record in records for parent in record.parents}
    free = (record for record in records if record.id not in before | stood_on)
    return [record for record in free if record.made_by.startswith("from local")]


def marked_with(context: Files, run_id: str) -> Context:
    """The context with a run ID in each step."""
    mark = rf"\g<indent>: {run_id} && \g<command>".encode()
    return {**context, "Dockerfile": _STEP.sub(mark, content_of(context["Dockerfile"]))}


def with_own_wheels(context: Files, run_id: str) -> Context:
    """The context whose steps share a cache of wheels that no other build has."""
    return {**context, "Dockerfile": _CACHE_ID.sub(rf"\g<0>-{run_id}".encode(), content_of(context["Dockerfile"]))}


def on_own_layer(context: Files, run_id: str) -> Context:
    """The context with a small layer of its own above the base: no layer of it has another layer's parents.

    An engine (seen with 20.10.24) that builds a layer again on the same layers below keeps the first, and never
    deletes the second's files: no build cache, no image knows them.
    """
    step = rf"\g<0>RUN echo {run_id} >/uncached\n".encode()
    return {**context, "Dockerfile": _FROM.sub(step, content_of(context["Dockerfile"]), count=1)}


@contextmanager
def nothing_new_kept(engine: Engine, image: str, which: Which = tuple) -> Iterator[None]:
    """Afterwards the image is gone, and all that `which` finds in the build cache and was not there before."""
    before = {record.id for record in build_cache(engine)}
    try:
        yield
    finally:
        engine.untag(image)
        forget(engine, lambda records: [record for record in which(records) if record.id not in before])


def forget(engine: Engine, which: Which) -> None:
    """Delete what `which` chooses from the build cache, except parents of other records."""
    for _ in range(_ROUNDS):
        left = which(build_cache(engine))
        if not left:
            return
        for record in topmost_first(left):
            engine.sdk.prune_builds(filters={"id": [record.id]}, all=True)  # what something else needs stays


def topmost_first(records: Sequence[CacheRecord]) -> list[CacheRecord]:
    """In an order in which they can be deleted: children before parents. Pure."""
    ordered: list[CacheRecord] = []
    left = list(records)
    while left:
        stood_on = {parent for record in left for parent in record.parents}
        ordered += [record for record in left if record.id not in stood_on]
        left = [record for record in left if record.id in stood_on]
    return ordered
