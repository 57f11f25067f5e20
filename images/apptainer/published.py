"""What a registry says of an image, as an engine would: Apptainer keeps no configuration of what it unpacks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from images.engine import HistoryEntry, ImageInfo
from images.errors import Problem, UserError
from images.registry.client import Registry
from images.registry.reference import Reference, is_loopback


@dataclass(frozen=True, kw_only=True)
class Published:
    """An image of a registry. `reference` is `HOST/NAME@sha256:...`, of its manifest."""

    reference: str
    info: ImageInfo
    history: tuple[HistoryEntry, ...]
    plain_http: bool
    """The registry is on this machine, and speaks no TLS."""


def read(reference: str) -> Published | None:
    """The image under a reference; None: there is none. Raises UserError, also for an index of several platforms."""
    named = Reference.parse(reference)
    with Registry(named.repository) as registry:
        manifest = registry.find(named.identifier)
        if manifest is None:
            return None
        if manifest.is_index:
            then = "name the image of one platform: HOST/NAME@sha256:..."
            raise UserError(Problem(where=reference, cause="is an index of images", then=then), code=1)
        config = json.loads(registry.blob(manifest.config))
        whole = f"{named.repository}@{manifest.digest}"
        http = is_loopback(named.repository.host) and registry.scheme == "http"
    info = image_info(whole, manifest.config.digest, config)
    steps = [str(one.get("created_by", "")) for one in config.get("history") or ()]
    history = tuple(HistoryEntry(created_by=step, size=0, comment="") for step in reversed(steps))
    return Published(reference=whole, info=info, history=history, plain_http=http)


def image_info(reference: str, digest: str, config: Mapping[str, Any]) -> ImageInfo:
    """An image's configuration (OCI image specification). Its unpacked size is in no registry: 0. Pure."""
    inner = config.get("config") or {}
    return ImageInfo(
        id=digest,
        tags=(),
        digests=(reference,),
        size=0,
        created=str(config.get("created") or ""),
        architecture=str(config.get("architecture") or ""),
        layers=tuple((config.get("rootfs") or {}).get("diff_ids") or ()),
        labels=inner.get("Labels") or {},
        env={name: value for name, _, value in (line.partition("=") for line in inner.get("Env") or ())},
        user=str(inner.get("User") or ""),
        workdir=str(inner.get("WorkingDir") or ""),
        entrypoint=tuple(inner.get("Entrypoint") or ()),
        command=tuple(inner.get("Cmd") or ()),
    )
