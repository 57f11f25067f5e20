"""Which requests to a registry are repeated, when, and how often.

| what failed | what is repeated |
|---|---|
| a connection is refused, drops or times out; status 408, 429, 500, 502, 503, 504 | the request, of any method |
| the body of an answer breaks off | the request |
| the same, while a blob is uploaded | the upload, in a new session, unless the blob has arrived |
| the same, while a layer is uploaded | what the registry does not hold yet, if it says so; else as any blob |
| a certificate is refused, any other status | nothing |

A repeated GET, HEAD, DELETE or PUT of a manifest changes nothing more, and the POST that opens an upload or asks for a
token leaves nothing behind. A blob's PUT is not repeated: a registry refuses the second copy in the same session.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

from urllib3 import Retry
from urllib3.exceptions import InvalidHeader

from images.registry.errors import Stopped, TransientError

STATUSES = frozenset({408, 429, 500, 502, 503, 504})
PAUSES = (0.0, 2.0, 4.0, 8.0)
"""Seconds before each further attempt, where the registry says nothing else (`Retry-After`)."""
_LONGEST_PAUSE = 60.0

Result = TypeVar("Result")


def repeat(work: Callable[[], Result], stopping: threading.Event) -> Result:
    """Do work again after each TransientError, five times in all. Raises RegistryError, Stopped."""
    pauses = iter(PAUSES)
    while True:
        try:
            return work()
        except TransientError as error:
            pause(pauses, error, stopping)


def pause(pauses: Iterator[float], error: TransientError, stopping: threading.Event) -> None:
    """Wait before the next attempt. Raises the error where it was the last one, Stopped where all is to end."""
    seconds = next(pauses, None)
    if seconds is None:
        raise error
    said = "" if error.answer is None else error.answer.headers.get("Retry-After", "")
    with suppress(InvalidHeader):
        seconds = min(Retry().parse_retry_after(said), _LONGEST_PAUSE) if said else seconds
    wait(stopping, seconds)


def wait(stopping: threading.Event, seconds: float) -> None:
    """Raises Stopped as soon as all is to end."""
    if stopping.wait(seconds):
        raise Stopped
