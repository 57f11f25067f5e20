"""Keep builds apart: a second build of an image must not profit from anything of the first.

The first one therefore uses no cache, and leaves nothing in the engine.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from images.context.render import Context, content_of
from images.engine import Engine

Files = Mapping[str, bytes | Path]

_CACHE_ID = re.compile(rb"\bid=truetag-uv\b")
_FROM = re.compile(rb"^FROM .+\n(USER root\n)?", re.MULTILINE)
_ROUNDS = 30
"""Attempts to delete records."""
_PAUSE_SECONDS = 1.0
"""The pause between two attempts: an engine lets go of a build's last records only a moment after
it, and on a busy machine that moment is long."""


@dataclass(frozen=True, kw_only=True)
class CacheRecord:
    """Something that the engine keeps of builds: the snapshot of a step, or a cache mount."""

    id: str
    parents: tuple[str, ...]
    made_by: str
    """In BuildKit's words: `mount / from exec /bin/sh -c ...`."""


def build_cache(engine: Engine) -> list[CacheRecord]:
    """Return what the engine keeps of builds."""
    records = []
    for data in engine.sdk.df()["BuildCache"] or ():
        # Newer engines report `Parents`, older ones `Parent`.
        parents = data.get("Parents") or []
        if not parents and data.get("Parent"):
            parents = [data["Parent"]]
        records.append(
            CacheRecord(
                id=data["ID"], parents=tuple(parents), made_by=data.get("Description") or ""
            )
        )
    return records


def with_own_wheels(context: Files, run_id: str) -> Context:
    """Return the context whose steps share a cache of wheels that no other build has."""
    dockerfile = content_of(context["Dockerfile"])
    return {**context, "Dockerfile": _CACHE_ID.sub(rf"\g<0>-{run_id}".encode(), dockerfile)}


def on_own_layer(context: Files, run_id: str) -> Context:
    """Return the context with a small layer of its own above the base.

    So no layer of this build has the same layers below as one of another build. An engine (seen
    with 20.10.24) that builds a layer again on the same layers keeps the first, and never deletes
    the files of the second: neither its build cache nor an image lists them.
    """
    step = rf"\g<0>RUN echo {run_id} >/uncached\n".encode()
    return {**context, "Dockerfile": _FROM.sub(step, content_of(context["Dockerfile"]), count=1)}


@contextmanager
def nothing_new_kept(engine: Engine, image: str) -> Iterator[None]:
    """Let the caller build an image in a `with` block, and leave nothing of that in the engine.

    When the block ends, the tag `image` is removed, and all that was not in the build cache before.
    What the engine keeps, because something else needs it, stays: no error is raised.
    """
    before = {record.id for record in build_cache(engine)}
    try:
        yield
    finally:
        engine.untag(image)
        for attempt in range(_ROUNDS):
            if attempt:
                time.sleep(_PAUSE_SECONDS)
            new = [record for record in build_cache(engine) if record.id not in before]
            if not new:
                break
            for record in topmost_first(new):
                # The engine keeps a record that something else needs.
                engine.sdk.prune_builds(filters={"id": [record.id]}, all=True)


def topmost_first(records: Sequence[CacheRecord]) -> list[CacheRecord]:
    """Return the records in an order in which they can be deleted: each before its parents."""
    ordered: list[CacheRecord] = []
    remaining = list(records)
    while remaining:
        parents: set[str] = set()
        for record in remaining:
            parents.update(record.parents)
        ordered += [record for record in remaining if record.id not in parents]
        remaining = [record for record in remaining if record.id in parents]
    return ordered
