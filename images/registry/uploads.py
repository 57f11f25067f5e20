"""Uploads of large blobs: streamed, and gone on with where the registry allows it.

The rules are the distribution specification's ("Pushing blobs"). A session is opened (POST), takes the whole content
in one request (PATCH, as Docker's own client sends it), and is closed with the digest (PUT). When a request fails, the
session is asked how much it holds, and the next attempt sends the rest. A registry that does not say, or that refuses
the rest, gets a new session (docker-registry 2.8 does so after a connection that broke within a body).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urljoin

import requests

from images.registry import retries
from images.registry.errors import RegistryError, TransientError

SECONDS = (60, 900)
"""Timeouts of a request of an upload. The first is also the longest that a registry may take nothing; in the second, a
registry that stands on an object store copies a blob of gigabytes."""
_BAD_SESSION = frozenset({400, 404, 416})
"""What registries answer where they don't go on with a session. The digest of a whole blob is refused with 400, too."""


class Blob(Protocol):
    """Content that can be read from any place on, as often as it takes."""

    @property
    def digest(self) -> str: ...

    @property
    def size(self) -> int: ...

    def chunks(self, offset: int) -> Iterator[bytes]:
        """The content from `offset` on. What it raises ends the upload."""
        ...


Send = Callable[..., requests.Response]
"""Method, URL, options of requests -> an answer that is no error. Raises TransientError, RegistryError."""


@dataclass(frozen=True)
class _Rest:
    """The body of a request, in the form that requests streams: it can be iterated again, after a redirect say."""

    blob: Blob
    offset: int

    def __len__(self) -> int:
        return self.blob.size - self.offset

    def __iter__(self) -> Iterator[bytes]:
        return self.blob.chunks(self.offset)


class Upload:
    """One blob on its way into a repository."""

    def __init__(self, blob: Blob, send: Send, start: Callable[[], str]) -> None:
        """`start` opens a session: its URL, or nothing where the blob is there already."""
        self._blob = blob
        self._send = send
        self._start = start
        self._location = ""
        self._resumed = False
        """The session is one that an earlier attempt left."""
        self._held = 0
        """Bytes that the registry holds, as far as it said."""

    def run(self, stopping: threading.Event) -> None:
        """Send it. Five attempts count from each one that brought more bytes. Raises RegistryError, Stopped."""
        pauses, farthest = iter(retries.PAUSES), 0
        while True:
            try:
                return self._attempt()
            except TransientError as error:
                if self._held > farthest:
                    pauses, farthest = iter(retries.PAUSES), self._held
                retries.pause(pauses, error, stopping)

    def _attempt(self) -> None:
        self._resumed = bool(self._location)
        if self._resumed:
            self._ask()
        if not self._location:
            self._resumed = False
            self._location = self._start()
        if self._location:
            self._finish()

    def _ask(self) -> None:
        """How much does the session hold? One that can't say, or holds nothing, is given up. Raises TransientError."""
        try:
            answer = self._send("GET", self._location)
        except TransientError:
            raise
        except RegistryError:
            self._forget()
            return
        held = held_bytes(answer.headers.get("Range", ""))
        if 0 < held <= self._blob.size:
            self._follow(answer)
            self._held = held
        else:
            self._forget()

    def _finish(self) -> None:
        try:
            if self._held < self._blob.size:
                self._send_rest()
            separator = "&" if "?" in self._location else "?"
            self._send("PUT", f"{self._location}{separator}digest={self._blob.digest}", timeout=SECONDS)
        except RegistryError as error:
            if not (self._resumed and error.status in _BAD_SESSION):
                raise
            self._forget()
            raise TransientError(error.problems[0]) from None

    def _send_rest(self) -> None:
        rest = _Rest(self._blob, self._held)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(len(rest))}
        if self._held:
            headers["Content-Range"] = f"{self._held}-{self._blob.size - 1}"
        answer = self._send("PATCH", self._location, headers=headers, data=rest, timeout=SECONDS)
        self._follow(answer)
        self._held = self._blob.size

    def _follow(self, answer: requests.Response) -> None:
        if location := answer.headers.get("Location"):
            self._location = urljoin(answer.url, location)

    def _forget(self) -> None:
        self._location, self._held = "", 0


def held_bytes(content_range: str) -> int:
    """Bytes in the `Range` of a session: `0-1023` is 1024. `0-0` is what registries say of an empty one, too: 0."""
    found = re.fullmatch(r"(?:bytes=)?0-(\d+)", content_range.strip())
    last = int(found[1]) if found else 0
    return last + 1 if last else 0
