"""Bytes of layers, and what of them an engine that already holds others must still fetch. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from images.bench.data import LayerBytes


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
    def from_json(cls, data: LayerBytes) -> Layer:
        return cls(digest=data["digest"], tar=data["tar"], gzip=data["gzip"], zstd=data["zstd"])

    def as_json(self) -> LayerBytes:
        return LayerBytes(digest=self.digest, tar=self.tar, gzip=self.gzip, zstd=self.zstd)


@dataclass(frozen=True, kw_only=True)
class Total:
    """Sums over layers, in bytes."""

    layers: int
    tar: int
    gzip: int
    zstd: int


def total(layers: Iterable[Layer]) -> Total:
    """The bytes of layers together. One that an image has twice is held, and fetched, once."""
    once = list({layer.digest: layer for layer in layers}.values())
    return Total(
        layers=len(once),
        tar=sum(layer.tar for layer in once),
        gzip=sum(layer.gzip for layer in once),
        zstd=sum(layer.zstd for layer in once),
    )


def fetched(images: Sequence[Sequence[Layer]]) -> list[Total]:
    """For images pulled one after another into an empty engine: what each still has to fetch.

    An engine keeps a layer with all that lies below it: above the first layer that it lacks, it fetches every one, also
    those that it has on other layers (moby, `distribution/xfer/download.go`; seen with 20.10, 26.1 and 28.5).
    """
    held: set[tuple[str, ...]] = set()
    totals = []
    for layers in images:
        chains = [tuple(layer.digest for layer in layers[: number + 1]) for number in range(len(layers))]
        totals.append(total(layer for layer, chain in zip(layers, chains, strict=True) if chain not in held))
        held.update(chains)
    return totals


def changed(before: Sequence[str], after: Sequence[str]) -> tuple[str, ...]:
    """The layers of `after` that are not in `before`: what a rebuild changed."""
    return tuple(digest for digest in after if digest not in set(before))
