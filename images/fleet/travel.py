"""Images of a fleet travel by digest through a registry: found there, or sent from this machine's engine, untagged."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from images.building.validating import Described, described
from images.config.platforms import Platform
from images.engine import Engine, ImageInfo
from images.engine.buildkit import BuildEvent
from images.errors import Problem, UserError
from images.publish import attachments, index
from images.publish.compression import Compression
from images.publish.push import PushJob, push, siblings
from images.registry.client import Registry
from images.registry.reference import Reference, Repository

_PUSHED = "pushed.json"
_HOME = "/root"
"""Where an image sets no HOME, as in a trial."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """An image that is there. `local`: this machine's engine has it, and the registry is yet to get it."""

    digest: str
    described: Described
    home: str
    """HOME of its user."""
    reference: str = ""
    local: ImageInfo | None = None


def in_engine(engine: Engine, reference: str) -> Found | None:
    """What an engine has under a name; None: nothing."""
    info = engine.find(reference)
    if info is None:
        return None
    return Found(digest=info.id, described=described(engine, info), home=info.env.get("HOME", _HOME), local=info)


def in_registry(reference: Reference, platform: Platform) -> Found | None:
    """What a registry has under a name or a digest; of an index, for a platform. None: nothing. Raises UserError."""
    with Registry(reference.repository) as registry:
        manifest = registry.find(reference.identifier)
        if manifest is None:
            return None
        image = attachments.load(registry, index.select(registry, manifest, platform), with_statements=False)
    steps = [str(one.get("created_by", "")) for one in image.config.get("history") or ()]
    known = Described(labels=image.labels, history=list(reversed(steps)))
    env = dict(str(one).partition("=")[::2] for one in (image.config.get("config") or {}).get("Env") or ())
    return Found(digest=image.image_id, described=known, home=env.get("HOME", _HOME), reference=image.reference)


def send(
    engine: Engine, info: ImageInfo, repository: Repository, cache: Path, on_event: Callable[[BuildEvent], None]
) -> str:
    """Store an image in a registry by its digest alone, without a tag: nothing gets a name before its verdict.

    Layers that are there are neither read nor sent. Returns `HOST/NAME@sha256:...`. Raises UserError.
    """
    name = info.tags[0] if info.tags else info.id
    require_layers(engine, f"`podman push {name} docker://{repository}:TAG`, then `--image NAME={repository}:TAG`")
    wanted = (Compression.GZIP,)
    places = siblings(cache, repository, wanted, info.layers)
    with Registry(repository, mount_from=places) as registry:
        job = PushJob(
            engine=engine,
            info=info,
            target=registry,
            wanted=wanted,
            cache=cache,
            siblings=places,
            on_event=on_event,
        )
        (manifest,) = push(job).manifests.values()
    return f"{repository}@{manifest.digest}"


def note(folder: Path, digest: str, reference: str) -> None:
    """Keep in an image's folder where a worker pushed it: no engine here need have it."""
    (folder / _PUSHED).write_text(json.dumps({"digest": digest, "reference": reference}, indent=1) + "\n")


def noted(folder: Path, digest: str) -> str:
    """Where a worker pushed the image of a folder; empty: nowhere, or that was another image."""
    try:
        found = json.loads((folder / _PUSHED).read_bytes())
        return str(found["reference"]) if found["digest"] == digest else ""
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def require_layers(engine: Engine, then: str) -> None:
    """Refuse an engine whose layers can't be sent from here. Raises UserError."""
    if engine.facts.podman:
        raise UserError(Problem(where=engine.facts.url, cause="Podman's layers are not sent from here", then=then))


def repository(text: str) -> Repository:
    """Where images travel through. Raises UserError where nobody said it."""
    if not text:
        then = "`--through HOST/NAME`, or `through:` in fleet.yaml: workers pull images from there by digest"
        raise UserError(Problem(where="--through", cause="no registry is named that images travel through", then=then))
    return Repository.parse(text)
