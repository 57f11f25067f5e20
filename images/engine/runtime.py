"""What a trial asks of whatever runs containers: a Docker Engine, Podman by Docker's interface, or Apptainer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol, Self

from images.engine.archive import Files
from images.engine.container import Exit, Line
from images.engine.facts import EngineFacts
from images.engine.responses import HistoryEntry, ImageInfo
from images.engine.specs import PLATFORM, ContainerSpec


class RunningContainer(Protocol):
    """One container: files in, start, lines out, how it ended. See images/engine/container.py."""

    def put(self, files: Files, to: str) -> None:
        """Copy files into the folder `to`, one of the spec's volumes, before the start. Raises UserError."""
        ...

    def start(self) -> None:
        """Start it. Raises UserError."""
        ...

    def lines(self, timeout: float | None = None) -> Iterator[Line]:
        """What it prints, line by line, until it ends. Kills it and raises TimedOut after `timeout` seconds."""
        ...

    def wait(self, timeout: float | None = None) -> Exit:
        """Wait for its end. Kills it and raises TimedOut after `timeout` seconds."""
        ...


class Runtime(Protocol):
    """Runs containers of images that are there, or that it fetches. `Engine` is one."""

    facts: EngineFacts

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def cancel(self) -> None:
        """Stop all containers, from any thread: their callers get Cancelled."""
        ...

    def sweep(self) -> tuple[str, ...]:
        """Remove what killed runs of this machine left behind. Returns names."""
        ...

    def inspect(self, ref: str) -> ImageInfo:
        """What is known of an image. Raises NoSuchImage."""
        ...

    def find(self, ref: str) -> ImageInfo | None:
        """The image, or None where it is not there."""
        ...

    def pull(self, ref: str, *, platform: str = PLATFORM) -> ImageInfo:
        """Fetch an image from its registry. Raises UserError with the registry's words."""
        ...

    def history(self, ref: str) -> tuple[HistoryEntry, ...]:
        """How the image came to be, newest step first. Raises NoSuchImage."""
        ...

    def container(self, spec: ContainerSpec) -> AbstractContextManager[RunningContainer]:
        """A container that is not started yet, and gone on every way out. Raises NoSuchImage, UserError, Cancelled."""
        ...
