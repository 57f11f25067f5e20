"""Which requests to a registry are repeated, when, and how often.

| what failed | what is repeated |
|---|---|
| a connection is refused, drops or times out; status 408, 429, 500, 502, 503, 504 | the request, of any method |
| the body of an answer breaks off | the request |
| the same, while a blob is uploaded | the upload, in a new upload session, unless the blob has arrived |
| the same, while a layer is uploaded | what the registry does not hold yet, if it says so; else as any blob |
| a certificate is refused, any other status | nothing |

GET, HEAD and DELETE are idempotent. The PUT of a manifest is, as its content is fixed by its digest, or its tag by this
client. The POST that opens an upload or asks for a token leaves nothing behind. The PUT of a blob is not: the registry
may have stored a part, and refuses the second copy in the same upload session.

There are five attempts. The pauses between them are those of urllib3: 0, 2, 4 and 8 seconds, or what `Retry-After`
says, at most a minute. A layer's attempts count from each one that brought more bytes of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Self, TypeVar

from urllib3 import BaseHTTPResponse, Retry
from urllib3.exceptions import InvalidHeader, MaxRetryError

from images.registry.errors import Stopped, TransientError

STATUSES = frozenset({408, 429, 500, 502, 503, 504})
_LONGEST_PAUSE = 60.0

Result = TypeVar("Result")


class RegistryRetry(Retry):
    """urllib3's policy, with a bound on what a registry may ask for, and pauses that end when all is to stop."""

    def __init__(self, *arguments: Any, stop: threading.Event | None = None, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._stop = stop or threading.Event()

    def new(self, **changes: Any) -> Self:
        return super().new(**{"stop": self._stop, **changes})

    def sleep(self, response: BaseHTTPResponse | None = None) -> None:
        """The pause before the next attempt. Raises Stopped."""
        asked = None if response is None else self.get_retry_after(response)
        self.wait(asked or self.get_backoff_time())

    def wait(self, seconds: float) -> None:
        """Raises Stopped."""
        if self._stop.wait(seconds):
            raise Stopped

    def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
        """Seconds of `Retry-After`, at most a minute; None where it can't be read."""
        try:
            asked = super().get_retry_after(response)
        except InvalidHeader:
            return None
        return None if asked is None else min(asked, _LONGEST_PAUSE)


POLICY = RegistryRetry(
    total=4,
    other=0,  # urllib3 counts refused certificates here
    allowed_methods=None,  # every method
    status_forcelist=STATUSES,
    backoff_factor=1.0,
    backoff_max=_LONGEST_PAUSE,
    raise_on_status=False,  # the last answer has the registry's own words
)
"""Five attempts."""


def repeat(work: Callable[[], Result], policy: Retry) -> Result:
    """Do work of several requests, again after each TransientError that the policy allows. Raises RegistryError."""
    while True:
        try:
            return work()
        except TransientError as error:
            policy = pause(policy, error)


def pause(policy: Retry, error: TransientError) -> Retry:
    """Wait before the next attempt: what is left of the policy. Raises Stopped; the error where it was the last one."""
    raw = None if error.answer is None else error.answer.raw
    try:
        left = policy.increment(response=raw)
    except MaxRetryError:
        raise error from None
    left.sleep(raw)
    return left
