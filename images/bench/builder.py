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

from images.building import uncached
from images.context.hosting import HostSettings
from images.context.render import Context, content_of
from images.engine import CacheRecord, Engine
from images.engine.buildkit import BuildEvent, BuildResult

_STEP = re.compile(r"^(?P<indent> +(?:&& )?)(?P<command>sh /run/scripts/|\. /run/host/env)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class How:
    """How a context is built."""

    no_cache: bool = False
    """No step comes from the build cache."""
    no_wheels: bool = False
    """Wheels don't come from uv's cache mount either."""
    marked: bool = True
    """Steps bear the run ID."""
    target: str | None = None


COLD = How(no_cache=True, no_wheels=True)
UNCACHED = How(no_cache=True)
UNMARKED = How(marked=False)


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

    def build(self, context: Mapping[str, bytes | Path], tag: str, how: How | None = None) -> BuildResult:
        """Build a context. Without build cache it stands on a layer of its own, as an engine forgets on the disk what
        it builds twice.
        """
        how = how or How()
        files = marked_with(context, self.run_id) if how.marked else context
        files = uncached.with_own_wheels(files, self.run_id) if how.no_wheels else files
        files = uncached.on_own_layer(files, self.run_id) if how.no_cache else files
        return self.engine.build(
            files, tag or None, no_cache=how.no_cache, target=how.target, attempts=1, on_event=self.on_event
        )

    def nothing_new_kept(self) -> AbstractContextManager[None]:
        """The builder's image, and what its marked steps add to the build cache inside, are gone after it."""
        return uncached.nothing_new_kept(self.engine, self.run_id, lambda records: traces(records, self.run_id))

    def nothing_at_all_kept(self) -> AbstractContextManager[None]:
        """The same of unmarked steps, which may come from the build cache.

        No record says who made it: builds of others on the same engine meanwhile leave nothing in the cache, either.
        """
        return uncached.nothing_new_kept(self.engine, self.run_id)

    def clear(self) -> None:
        """Remove the builder's image and build cache, so that the next run is as cold as the first."""
        self.engine.untag(self.run_id)
        self.forget_steps()

    def forget_steps(self) -> None:
        """Remove the build cache alone: an image that was made keeps its layers."""
        uncached.forget(self.engine, lambda records: traces(records, self.run_id))
        uncached.forget(self.engine, lambda records: unused_bases(records, self.before))


@contextmanager
def open_builder(engine: Engine, host: HostSettings, on_event: Callable[[BuildEvent], None]) -> Iterator[Builder]:
    """A builder that leaves nothing in the engine: neither the image of its run ID, nor the cache of its steps."""
    before = frozenset(record.id for record in engine.build_cache())
    builder = Builder(engine, host, f"truetag-bench-{uuid.uuid4().hex[:12]}", on_event, before)
    try:
        yield builder
    finally:
        builder.clear()


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


def marked_with(context: Mapping[str, bytes | Path], run_id: str) -> Context:
    """The context with a run ID in each step."""
    text = content_of(context["Dockerfile"]).decode()
    return {**context, "Dockerfile": _STEP.sub(rf"\g<indent>: {run_id} && \g<command>", text).encode()}
