"""Requests to one repository of a registry: the scheme, logins, and which failures are repeated.

A connection that is refused, drops or times out, the body of an answer that breaks off, and the statuses 408, 429, 500,
502, 503 and 504 are tried five times. A certificate that is refused and any other status are final.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import requests
from urllib3 import Retry
from urllib3.exceptions import InvalidHeader

from images.errors import Problem, root_cause
from images.registry.auth import SECONDS, CredentialStore, RegistryAuth, anonymous, docker_credentials, origin
from images.registry.errors import RegistryError, Stopped, TransientError, problem, refusal
from images.registry.reference import Repository, is_loopback

PAUSES = (0.0, 2.0, 4.0, 8.0)
"""Seconds before each further attempt, where the registry says nothing else (`Retry-After`)."""
_LONGEST_PAUSE = 60.0
_CHUNK = 1 << 18

Result = TypeVar("Result")


class Transport:
    """The way to one repository. Use it as a context manager."""

    def __init__(
        self,
        repository: Repository,
        *,
        credentials: CredentialStore = docker_credentials,
        mount_from: Sequence[Repository] = (),
    ) -> None:
        """`mount_from`: other repositories of this registry, to read. Raises UserError."""
        self.repository = repository
        self.stopping = threading.Event()
        self._session = _Session()
        if is_loopback(repository.host):
            self._session.trust_env = False  # as Docker: a proxy can't reach this machine's loopback
        self.scheme = self._scheme()
        self._session.auth = RegistryAuth([repository, *mount_from], credentials, self._session, self.scheme)
        self._root = f"{self.scheme}://{repository.api_host}/v2/{repository.name}/"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def stop(self) -> None:
        """Let requests of other threads end without another attempt: they raise Stopped. For good."""
        self.stopping.set()

    def repeat(self, work: Callable[[], Result]) -> Result:
        """Do work again after each TransientError, five times in all. Raises RegistryError, Stopped."""
        pauses = iter(PAUSES)
        while True:
            try:
                return work()
            except TransientError as error:
                self.pause(pauses, error)

    def pause(self, pauses: Iterator[float], error: TransientError) -> None:
        """Wait before the next attempt. Raises the error where it was the last one, Stopped where all is to end."""
        seconds = next(pauses, None)
        if seconds is None:
            raise error
        with suppress(InvalidHeader):
            if error.retry_after:
                seconds = min(Retry().parse_retry_after(error.retry_after), _LONGEST_PAUSE)
        if self.stopping.wait(seconds):
            raise Stopped

    def read(self, path: str, most: int, headers: Mapping[str, str] | None = None) -> tuple[Mapping[str, str], bytes]:
        """Headers and content of an answer. Of one with more than `most` bytes, a little more than these are read."""

        def read() -> tuple[Mapping[str, str], bytes]:
            content = bytearray()
            with self.send("GET", path, headers=headers, stream=True) as answer:
                try:
                    for chunk in answer.iter_content(_CHUNK):
                        content += chunk
                        if len(content) > most:
                            break
                except requests.exceptions.RequestException as error:
                    raise self.broken(error) from None
                return answer.headers, bytes(content)

        return self.repeat(read)

    def request(self, method: str, path: str, *, missing_ok: bool = False, **more: Any) -> requests.Response | None:
        """A request that may be repeated. None for 404 where `missing_ok`. Raises RegistryError."""
        try:
            return self.repeat(lambda: self.send(method, path, **more))
        except RegistryError as error:
            if missing_ok and error.status == requests.codes.not_found:
                return None
            raise

    def send(self, method: str, path: str, **more: Any) -> requests.Response:
        """One request to the repository, or to a whole URL. Raises TransientError, RegistryError."""
        url = self._secured(path) if "://" in path else f"{self._root}{path}"
        try:
            answer = self._session.request(method, url, **{"timeout": SECONDS, **more})
            if not answer.ok:
                answer.content  # noqa: B018  # what is read in parts may break off here, too
        except requests.exceptions.RequestException as error:
            if _is_certificate(error):
                cause = f"its certificate is not accepted: {root_cause(error)}"
                raise RegistryError(problem(self.repository, cause)) from None
            raise self.broken(error) from None
        if not answer.ok:
            raise refusal(self.repository, answer)
        return answer

    def broken(self, error: requests.exceptions.RequestException) -> TransientError:
        return TransientError(problem(self.repository, f"the connection broke: {root_cause(error)}"))

    def _secured(self, url: str) -> str:
        """What a registry named, over https where it is reached so itself. Raises RegistryError.

        A proxy that ends TLS and does not say so (X-Forwarded-Proto) has the registry name itself over http. Docker
        goes there, without its login, and is refused.
        """
        parts, own = urlsplit(url), self.repository.api_host
        if parts.scheme != "http" or self.scheme == "http":
            return url
        if origin(f"https://{parts.netloc.removesuffix(':80')}") == origin(f"https://{own}"):
            return parts._replace(scheme="https", netloc=own).geturl()
        cause = f"it names an unencrypted address, http://{parts.netloc}"
        then = "tell who runs the registry: what it names must begin with https://"
        raise RegistryError(Problem(where=str(self.repository), cause=cause, then=then))

    def _scheme(self) -> str:
        """https; on this machine's loopback http too, as Docker has it, where nobody speaks https."""
        host = self.repository.host
        if not is_loopback(host):
            return "https"
        try:
            self._session.get(f"https://{host}/v2/", auth=anonymous, timeout=SECONDS)
        except requests.exceptions.RequestException as error:
            return "https" if _is_certificate(error) else "http"
        return "https"


class _Session(requests.Session):
    """One that gives a redirect no login of ~/.netrc: storage refuses a second one beside its signed address."""

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        request = response.request
        if request.url and prepared_request.url and self.should_strip_auth(request.url, prepared_request.url):  # type: ignore[no-untyped-call]
            prepared_request.headers.pop("Authorization", None)


def _is_certificate(error: requests.exceptions.RequestException) -> bool:
    return isinstance(error, requests.exceptions.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error)
