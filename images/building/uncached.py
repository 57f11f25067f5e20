"""Uncached rebuilds: with a wheel cache and a layer of their own, and nothing of them kept in the build cache."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from images.context.render import Context, content_of
from images.engine import CacheRecord, Engine

T = TypeVar("T")
Files = Mapping[str, bytes | Path]
Which = Callable[[Sequence[CacheRecord]], Sequence[CacheRecord]]
"""Chooses among the records of a build cache."""

_CACHE_ID = re.compile(rb"\bid=truetag-uv\b")
_FROM = re.compile(rb"^FROM .+\n(USER root\n)?", re.MULTILINE)
_ROUNDS = 8
"""Attempts to delete records: those of an interrupted build can be deleted only a moment later."""


@dataclass(frozen=True, kw_only=True)
class OwnLayer:
    """The layer that `on_own_layer` puts below an image. `size` in bytes, as the engine counts it."""

    digest: str
    size: int


def with_own_wheels(context: Files, run_id: str) -> Context:
    """The context whose steps share a cache of wheels that no other build has."""
    return {**context, "Dockerfile": _CACHE_ID.sub(rf"\g<0>-{run_id}".encode(), content_of(context["Dockerfile"]))}


def on_own_layer(context: Files, run_id: str) -> Context:
    """The context with a small layer of its own above the base: no layer of it has another layer's parents.

    An engine (seen with 20.10.24) that builds a layer again on the same layers below keeps the first, and never
    deletes the second's files: no build cache, no image knows them.
    """
    step = rf"\g<0>RUN {_own_step(run_id)}\n".encode()
    return {**context, "Dockerfile": _FROM.sub(step, content_of(context["Dockerfile"]), count=1)}


def _own_step(run_id: str) -> str:
    return f"echo {run_id} >/uncached"


def own_layer(engine: Engine, image: str, base: str, run_id: str) -> OwnLayer:
    """What `on_own_layer` added to an image that was built from its context. Raises NoSuchImage."""
    layers = engine.inspect(image).layers
    made = [entry.size for entry in engine.history(image) if _own_step(run_id) in entry.created_by]
    return OwnLayer(digest=layers[shared(engine.inspect(base).layers, layers)], size=sum(made))


def shared(first: Sequence[str], second: Sequence[str]) -> int:
    """How many layers from the bottom both have in common: those of the base."""
    return next(
        (index for index, (one, other) in enumerate(zip(first, second, strict=False)) if one != other), len(first)
    )


def without(layers: Sequence[T], index: int) -> list[T]:
    return [*layers[:index], *layers[index + 1 :]]


@contextmanager
def nothing_new_kept(engine: Engine, image: str, which: Which = tuple) -> Iterator[None]:
    """Afterwards the image is gone, and all that `which` finds in the build cache and was not there before."""
    before = {record.id for record in engine.build_cache()}
    try:
        yield
    finally:
        engine.untag(image)
        forget(engine, lambda records: [record for record in which(records) if record.id not in before])


def forget(engine: Engine, which: Which) -> None:
    """Delete what `which` chooses from the build cache, except parents of other records."""
    for _ in range(_ROUNDS):
        left = which(engine.build_cache())
        if not left:
            return
        for record in topmost_first(left):
            engine.forget(record)


def topmost_first(records: Sequence[CacheRecord]) -> list[CacheRecord]:
    """In an order in which they can be deleted: children before parents. Pure."""
    ordered: list[CacheRecord] = []
    left = list(records)
    while left:
        stood_on = {parent for record in left for parent in record.parents}
        ordered += [record for record in left if record.id not in stood_on]
        left = [record for record in left if record.id in stood_on]
    return ordered
