"""Opening what builds and judges images, rid of what killed commands left there."""

from __future__ import annotations

from images.commands.common import say
from images.engine import Engine, connect, private_engine


def open_engine(url: str | None, *, install: bool = True, builds: bool = True) -> Engine:
    """The engine to work with, rid of the containers and volumes that killed commands of this machine left there.

    `builds`: not Podman, which judges images and has no BuildKit.
    """
    engine = private_engine.open_engine(url, on_progress=say, builds=builds) if install else connect(url, builds=builds)
    if left := engine.sweep():
        say(f"removed what killed commands left behind: {', '.join(left)}")
    return engine
