"""What layers weigh, and what of them an engine that already holds others must still fetch. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer: its digest (of the uncompressed tar) and its bytes as a tar, and compressed both ways."""

    digest: str
    tar: int
    gzip: int
    """zlib, level 6: what registries hold of images that an engine pushed."""
    zstd: int
    """Level 3, its default."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Layer:
        return cls(**{key: data[key] for key in ("digest", "tar", "gzip", "zstd")})

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Weight:
    """Sums over layers, in bytes."""

    layers: int
    tar: int
    gzip: int
    zstd: int

    def as_json(self) -> dict[str, int]:
        return asdict(self)


def weight(layers: Iterable[Layer]) -> Weight:
    """What layers weigh together. One that stands twice is held, and fetched, once."""
    once = list({layer.digest: layer for layer in layers}.values())
    return Weight(
        layers=len(once),
        tar=sum(layer.tar for layer in once),
        gzip=sum(layer.gzip for layer in once),
        zstd=sum(layer.zstd for layer in once),
    )


def fetched(images: Sequence[Sequence[Layer]]) -> list[Weight]:
    """For images pulled one after another into an empty engine: what each still has to fetch."""
    held: set[str] = set()
    weights = []
    for layers in images:
        weights.append(weight(layer for layer in layers if layer.digest not in held))
        held.update(layer.digest for layer in layers)
    return weights


def changed(before: Sequence[str], after: Sequence[str]) -> tuple[str, ...]:
    """The layers of `after` that are not in `before`: what a rebuild made anew."""
    return tuple(digest for digest in after if digest not in set(before))
