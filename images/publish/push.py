"""Push an image from an engine into a registry."""

from __future__ import annotations

from collections.abc import Callable

from images.engine import Engine, ImageInfo
from images.engine.buildkit import BuildEvent
from images.errors import Problem, UserError
from images.registry.client import Registry
from images.registry.distribution import Manifest, require_one_image


def push(
    engine: Engine, info: ImageInfo, target: Registry, tag: str, on_event: Callable[[BuildEvent], None]
) -> Manifest:
    """Push an image under its immutable tag, unless it is there already. Returns its manifest.

    Raises UserError: the tag names another image, or the engine pushed a list of images.
    """
    where = f"{target.repository}:{tag}"
    found = target.find(tag)
    if found is None:
        engine.tag(info.id, where)
        try:
            engine.push(where, on_event=on_event)
        finally:
            engine.untag(where)
        found = target.get(tag)
    require_one_image(found, where)
    if info.id not in (found.config.digest, found.digest):
        cause = f"is {found.config.digest[:19]}, not the image that was validated ({info.id[:19]})"
        raise UserError(Problem(where=where, cause=cause, then="build anew: such tags are never moved"), code=1)
    return found
