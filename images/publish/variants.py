"""The variants of a published image: one image ID, its layers compressed in different ways, one manifest for each.

| published | NAME, NAME-DATE-ID, aliases | the same tags with `-zstd` | with `-zstd-chunked` |
|---|---|---|---|
| `--compression gzip` | gzip | - | - |
| `--compression both` | gzip, which every engine takes | zstd | - |
| `--compression all` | gzip | zstd | zstd:chunked |
| `--compression zstd` | zstd | - | - |
| `--compression zstd:chunked` | zstd:chunked | - | - |

What is without a suffix is the plain variant. A dated tag never moves, so neither does the compression that it names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from images.errors import Problem, UserError
from images.publish.chunked.contents import TOC_DIGEST
from images.publish.compression import Compression
from images.registry.client import Registry
from images.registry.distribution import Manifest, require_one_image

_BESIDE = {one: f"-{one.replace(':', '-')}" for one in (Compression.ZSTD, Compression.ZSTD_CHUNKED)}
"""What the tags of a variant end with that is not the plain one."""
SUFFIXES = ("", *_BESIDE.values())
PUBLISHED_BY = dict(zip(_BESIDE.values(), ("both", "all"), strict=True))
"""Suffix -> the `--compression` that publishes such a variant beside a gzip one."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One manifest of an image. `suffix` is what its tags end with."""

    suffix: str
    manifest: Manifest

    @property
    def compression(self) -> Compression:
        return compression_of(self.manifest)


def compression_of(manifest: Manifest) -> Compression:
    """What a reader must take for the image: a compression counts where a layer has it."""
    if any(TOC_DIGEST in layer.annotations for layer in manifest.layers):
        return Compression.ZSTD_CHUNKED
    zstd = any(layer.media_type.endswith("zstd") for layer in manifest.layers)
    return Compression.ZSTD if zstd else Compression.GZIP


def suffix_of(compression: Compression, wanted: Iterable[Compression]) -> str:
    """What the tags of a variant end with, where these are published together."""
    return "" if compression is plain_of(wanted) else _BESIDE[compression]


def find(target: Registry, tag: str, image_id: str) -> tuple[Variant, ...]:
    """The variants of an image that its dated tag names: the plain one first. Raises UserError for another image."""
    found: list[Variant] = []
    for suffix in SUFFIXES:
        manifest = target.find(f"{tag}{suffix}")
        if manifest is None:
            continue
        where = f"{target.repository}:{tag}{suffix}"
        require_one_image(manifest, where)
        if image_id not in (manifest.config.digest, manifest.digest):
            cause = f"is {manifest.config.digest[:19]}, not the image that was validated ({image_id[:19]})"
            raise UserError(Problem(where=where, cause=cause, then="build anew: such tags are never moved"), code=1)
        found.append(Variant(suffix=suffix, manifest=manifest))
    return tuple(found)


def require_possible(found: Sequence[Variant], wanted: Iterable[Compression], where: str) -> None:
    """Raises UserError where the plain variant is there and would have to become another one. `where`: its tag."""
    plain = next((one.compression for one in found if not one.suffix), None)
    if plain is None or plain is plain_of(wanted):
        return
    may = "add to it with --compression both or all" if plain is Compression.GZIP else f"give --compression {plain}"
    cause = f"names the image with {plain} layers, and such tags are never moved"
    raise UserError(Problem(where=where, cause=cause, then=f"{may}; or build anew"), code=1)


def plain_of(wanted: Iterable[Compression]) -> Compression:
    """The compression of the plain variant: the one that most readers take."""
    given = set(wanted)
    return next(one for one in Compression if one in given)


def merged(
    found: Sequence[Variant], pushed: Sequence[tuple[Compression, Manifest]], wanted: Iterable[Compression]
) -> tuple[Variant, ...]:
    """What was there and what was pushed, the plain variant first."""
    by_suffix = {one.suffix: one for one in found}
    for compression, manifest in pushed:
        suffix = suffix_of(compression, wanted)
        by_suffix.setdefault(suffix, Variant(suffix=suffix, manifest=manifest))
    return tuple(by_suffix[suffix] for suffix in sorted(by_suffix))
