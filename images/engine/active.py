"""The builds and containers of a connection that are at work, so that any thread can stop them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from images.engine import containers
from images.engine.docker_api import DockerApi
from images.engine.failures import Cancelled


class ActiveWork:
    """Knows what runs, and removes it on every way out. Thread safe."""

    def __init__(self, api: DockerApi) -> None:
        self._api = api
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._builds: set[str] = set()
        self._containers: set[str] = set()

    def cancel(self) -> None:
        """Stop everything: whoever waits for it gets Cancelled, as does whoever starts something later."""
        with self._lock:
            self._cancelled.set()
            builds, running = tuple(self._builds), tuple(self._containers)
        for build_id in builds:
            self._api.cancel_build(build_id)
        for container_id in running:
            containers.remove(self._api, container_id)

    def sleep(self, seconds: float) -> None:
        """Wait, at most until `cancel`."""
        self._cancelled.wait(seconds)

    def pause(self, seconds: float) -> None:
        """Wait. Raises Cancelled after `cancel`."""
        if self._cancelled.wait(seconds):
            raise Cancelled

    @contextmanager
    def build(self, build_id: str) -> Iterator[None]:
        """Around a build: any exception cancels it in the engine. Raises Cancelled."""
        with self._lock:
            if self._cancelled.is_set():
                raise Cancelled
            self._builds.add(build_id)
        try:
            yield
        except BaseException as error:
            self._api.cancel_build(build_id)
            if self._cancelled.is_set() and isinstance(error, Exception):
                raise Cancelled from error
            raise
        finally:
            with self._lock:
                self._builds.discard(build_id)

    @contextmanager
    def container(self, container_id: str) -> Iterator[None]:
        """Around the life of a container, which is removed at its end. Raises Cancelled."""
        with self._lock:
            self._containers.add(container_id)
        try:
            if self._cancelled.is_set():
                raise Cancelled
            yield
            if self._cancelled.is_set():
                raise Cancelled
        except Exception as error:
            if self._cancelled.is_set() and not isinstance(error, Cancelled):
                raise Cancelled from error
            raise
        finally:
            containers.remove(self._api, container_id)
            with self._lock:
                self._containers.discard(container_id)
