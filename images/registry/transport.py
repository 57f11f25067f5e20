"""Requests to one repository of a registry: sessions, the scheme, logins, and which failures are repeated."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import requests

from images.errors import Problem
from images.registry import retries
from images.registry.auth import HTTP_PORT, HTTPS_PORT, SECONDS, CredentialStore, RegistryAuth, anonymous, origin
from images.registry.errors import RegistryError, TransientError, problem, refusal, registry_message, root_message
from images.registry.reference import Repository, is_loopback

_CHUNK = 1 << 18

Result = TypeVar("Result")


class Transport:
    """The way to one repository."""

    def __init__(self, repository: Repository, credentials: CredentialStore, mount_from: Sequence[Repository]) -> None:
        """`mount_from`: other repositories of this registry, to read. Raises UserError."""
        self.repository = repository
        self.stopping = threading.Event()
        """Once it is set, each request that is to be repeated raises Stopped."""
        self._session = _Session()
        if is_loopback(repository.host):
            self._session.trust_env = False  # as Docker: a proxy can't reach this machine's loopback
        self.scheme = self._scheme()
        self._session.auth = RegistryAuth([repository, *mount_from], credentials, self._session, self.scheme)
        self._root = f"{self.scheme}://{repository.api_host}/v2/{repository.name}/"

    def close(self) -> None:
        self._session.close()

    def repeat(self, work: Callable[[], Result]) -> Result:
        """Do work again where it may help. Raises RegistryError."""
        return retries.repeat(work, self.stopping)

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
                    raise TransientError(self._problem(f"the connection broke: {root_message(error)}")) from None
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
                cause = f"its certificate is not accepted: {root_message(error)}"
                raise RegistryError(self._problem(cause)) from None
            raise TransientError(self._problem(f"the connection broke: {root_message(error)}")) from None
        if answer.status_code in retries.STATUSES:
            raise TransientError(self._problem(registry_message(answer)), answer)
        if not answer.ok:
            raise refusal(self.repository, answer)
        return answer

    def _secured(self, url: str) -> str:
        """What a registry named, over https where it is reached so itself. Raises RegistryError.

        A proxy that ends TLS and does not say so (X-Forwarded-Proto) has the registry name itself over http. Docker
        goes there, without its login, and is refused.
        """
        parts = urlsplit(url)
        if parts.scheme != "http" or self.scheme == "http":
            return url
        named, own = origin(f"https://{parts.netloc}"), origin(f"https://{self.repository.api_host}")
        if own in (named, named._replace(port=HTTPS_PORT) if parts.port == HTTP_PORT else named):
            return parts._replace(scheme="https", netloc=self.repository.api_host).geturl()
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

    def _problem(self, cause: str) -> Problem:
        return problem(self.repository, cause)


class _Session(requests.Session):
    """One that gives a redirect no login of ~/.netrc: storage refuses a second one beside its signed address."""

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        request = response.request
        if request.url and prepared_request.url and self.should_strip_auth(request.url, prepared_request.url):  # type: ignore[no-untyped-call]
            prepared_request.headers.pop("Authorization", None)


def _is_certificate(error: requests.exceptions.RequestException) -> bool:
    return isinstance(error, requests.exceptions.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error)
