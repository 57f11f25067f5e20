"""One container: files in, start, lines out, how it ended."""

from __future__ import annotations

import signal
import tarfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, cast

import docker.errors
import requests

from images.engine.archive import ChunkReader, Files, pack
from images.engine.buildkit import plain_line
from images.engine.docker_api import DockerApi
from images.engine.responses import asking
from images.errors import Problem, UserError

_OOM_DELAY = 0.3  # seconds by which the engine may learn of a kill for memory later than of the end of the container
_KILLED_DELAY = 10.0  # the same where the container's end was a kill: beside load news of its cause may take long
KILLED = 128 + signal.SIGKILL
"""Status of a container whose process somebody killed: a person, the engine, or the kernel for memory."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line that a container printed; `stream` is stdout or stderr."""

    stream: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How a container ended. `oom`: the kernel killed something in it for memory."""

    code: int
    oom: bool
    error: str


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A whole run of a container."""

    exit: Exit
    stdout: str
    stderr: str


class TimedOut(UserError):  # noqa: N818  # said as an event
    """A container did not end in time and was killed."""

    def __init__(self, where: str, seconds: float) -> None:
        super().__init__(
            Problem(
                where=where, cause=f"did not end within {seconds:g} s and was stopped", then="run it alone, or longer"
            ),
            code=1,
        )


class TooMuchOutput(UserError):  # noqa: N818  # said as an event
    """A container printed more than was asked for and was killed."""

    def __init__(self, where: str, most: int) -> None:
        super().__init__(
            Problem(
                where=where,
                cause=f"printed more than {most / 1e6:.0f} MB and was stopped",
                then="run it alone to see what it prints",
            ),
            code=1,
        )


@dataclass(kw_only=True)
class _Lines:
    """Bytes of one stream into lines."""

    stream: str
    rest: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> Iterator[Line]:
        if b"\n" not in data:  # a line without end must not be copied with each part of it
            self.rest += data
            return
        *whole, rest = (bytes(self.rest) + data).split(b"\n")
        self.rest = bytearray(rest)
        for line in whole:
            yield Line(stream=self.stream, text=plain_line(line))

    def end(self) -> Iterator[Line]:
        if self.rest:
            yield from self.feed(b"\n")


class Container:
    """One container, made by `Engine.container`, which also removes it."""

    def __init__(self, api: DockerApi, container_id: str, name: str) -> None:
        self._sdk = api.sdk
        self.id = container_id
        self.name = name
        self._output: Iterator[tuple[bytes | None, bytes | None]] | None = None

    def put(self, files: Files, to: str, *, uid: int = 0, gid: int = 0) -> None:
        """Copy files into the folder `to`, before or after the start. Raises UserError.

        With a read-only root, `to` must lie in one of the spec's volumes: the engine refuses all other places.
        """
        with asking(self.name):
            self._sdk.put_archive(self.id, to, pack(files, uid=uid, gid=gid))

    def get_file(self, path: str, *, most: int = -1) -> bytes:
        """The content of a file, or its first `most` bytes, also after the end (but a tmpfs is gone then).

        Raises FileNotFoundError where there is no file, or something else: a link, a folder.
        """
        try:
            with asking(self.name, missing=path):
                chunks, _ = self._sdk.get_archive(self.id, path)
                with tarfile.open(fileobj=cast("IO[bytes]", ChunkReader(iter(chunks))), mode="r|") as archive:
                    for member in archive:
                        if member.isreg() and (data := archive.extractfile(member)):
                            return data.read(most)
        except docker.errors.NotFound:
            pass
        raise FileNotFoundError(path)

    def start(self) -> None:
        """Start it. What it prints is kept for `lines` from the first byte on. Raises UserError."""
        with asking(self.name):
            self._output = self._sdk.attach(self.id, stream=True, demux=True, stdout=True, stderr=True, logs=False)
            self._sdk.start(self.id)

    def lines(self, timeout: float | None = None, *, most: int | None = None) -> Iterator[Line]:
        """What it prints, line by line, until it ends.

        Kills it and raises TimedOut after `timeout` seconds, TooMuchOutput after `most` bytes of both streams.
        """
        if self._output is None:
            raise RuntimeError("lines() of a container that was not started")
        out, err = _Lines(stream="stdout"), _Lines(stream="stderr")
        printed, ended = 0, False
        try:
            with self._deadline(timeout), asking(self.name):
                for stdout, stderr in self._output:
                    printed += len(stdout or b"") + len(stderr or b"")
                    if most is not None and printed > most:
                        raise TooMuchOutput(self.name, most)
                    yield from out.feed(stdout or b"")
                    yield from err.feed(stderr or b"")
                ended = True
        finally:
            if not ended:
                self._kill_while_reading(self._output)
        yield from out.end()
        yield from err.end()

    def _kill_while_reading(self, output: Iterator[object]) -> None:
        """Kill it, and take what it still prints.

        An engine ends no container whose output nobody takes, and other calls wait for it meanwhile (seen with 20.10).
        """
        with ThreadPoolExecutor(max_workers=1) as pool, suppress(OSError, docker.errors.DockerException):
            killing = pool.submit(self.kill)
            for _ in output:
                if killing.done() and killing.exception():
                    break

    def wait(self, timeout: float | None = None) -> Exit:
        """Wait for its end. Kills it and raises TimedOut after `timeout` seconds."""
        with self._deadline(timeout), asking(self.name):
            code = self._sdk.wait(self.id, timeout=None)["StatusCode"]
            details = self._sdk.inspect_container(self.id)
            until = time.monotonic() + (_KILLED_DELAY if code == KILLED else _OOM_DELAY)
            bounded = details["HostConfig"].get("Memory")
            while bounded and not details["State"]["OOMKilled"] and time.monotonic() < until:
                time.sleep(_OOM_DELAY)
                details = self._sdk.inspect_container(self.id)
        state = details["State"]
        return Exit(code=code, oom=bool(state["OOMKilled"]), error=state["Error"])

    def run(self, timeout: float | None = None) -> Finished:
        """Start it, collect what it prints, wait for its end. Raises TimedOut, UserError."""
        self.start()
        printed: dict[str, list[str]] = {"stdout": [], "stderr": []}
        for line in self.lines(timeout):
            printed[line.stream].append(line.text)
        stdout, stderr = ("".join(f"{text}\n" for text in printed[stream]) for stream in ("stdout", "stderr"))
        return Finished(exit=self.wait(timeout), stdout=stdout, stderr=stderr)

    def kill(self) -> None:
        """End it at once. One that has ended is no error."""
        try:
            self._sdk.kill(self.id)
        except docker.errors.APIError as error:
            if error.status_code not in (requests.codes.conflict, requests.codes.not_found):
                raise

    @contextmanager
    def _deadline(self, seconds: float | None) -> Iterator[None]:
        """Kills the container when time is up: the only interruption that reaches a blocked read on any transport."""
        if seconds is None:
            yield
            return
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            self.kill()

        timer = threading.Timer(seconds, expire)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
        if expired.is_set():
            raise TimedOut(self.name, seconds)
