"""What layers came to when they were compressed, and which repositories have the result: one small file for each.

With them, a layer that a registry has is neither read nor compressed again. They are a cache: without them, the same
layers come to the same blobs, and those that are there are not sent.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from images.publish.compression import Compression
from images.registry.reference import Repository

_MOST_REPOSITORIES = 8


@dataclass(frozen=True, kw_only=True)
class KnownBlob:
    """A compressed layer. `repositories` have it, or had it once: the latest first."""

    digest: str
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict)
    """What a manifest says of it."""
    repositories: tuple[str, ...] = ()


class KnownBlobs:
    """The records below a folder. Several processes may use it: each file is replaced as a whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, compression: Compression, diff_id: str) -> KnownBlob | None:
        """None where there is no record, or none that can be read."""
        try:
            data = json.loads(self._path(compression, diff_id).read_bytes())
            found = KnownBlob(
                digest=str(data["digest"]),
                size=int(data["size"]),
                annotations={str(key): str(value) for key, value in data.get("annotations", {}).items()},
                repositories=tuple(map(str, data["repositories"])),
            )
            return found if found.annotations or compression is not Compression.ZSTD_CHUNKED else None
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None

    def note(self, compression: Compression, diff_id: str, blob: KnownBlob, repository: Repository) -> None:
        """Keep what a layer came to, and that a repository has it. Raises OSError."""
        known = self.find(compression, diff_id)
        before = known.repositories if known and known.digest == blob.digest else ()
        places = tuple(dict.fromkeys((str(repository), *before)))[:_MOST_REPOSITORIES]
        if known == replace(blob, repositories=places):
            return
        path = self._path(compression, diff_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        annotations = {"annotations": dict(blob.annotations)} if blob.annotations else {}
        content = {"digest": blob.digest, "size": blob.size, **annotations, "repositories": places}
        handle, half = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w") as stream:
            json.dump(content, stream)
        Path(half).replace(path)

    def siblings(
        self, target: Repository, compressions: Iterable[Compression], diff_ids: Iterable[str]
    ) -> tuple[Repository, ...]:
        """Other repositories of the target's registry that have most of these layers: three at most."""
        layers = list(diff_ids)
        blobs = [known for one in compressions for diff_id in layers if (known := self.find(one, diff_id))]
        places = [Repository.parse(text) for blob in blobs for text in blob.repositories]
        others = [place for place in places if place.host == target.host and place != target]
        return tuple(sorted(dict.fromkeys(others), key=others.count, reverse=True)[:3])

    def _path(self, compression: Compression, diff_id: str) -> Path:
        return self._folder / compression.recipe / f"{diff_id.removeprefix('sha256:')}.json"
