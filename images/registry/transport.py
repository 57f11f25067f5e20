"""Requests to one repository of a registry: sessions, the scheme, logins, and which failures are repeated."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3 import Retry
from urllib3.exceptions import MaxRetryError

from images.errors import Problem
from images.registry import retries
from images.registry.auth import HTTP_PORT, HTTPS_PORT, SECONDS, CredentialStore, RegistryAuth, anonymous, origin
from images.registry.errors import RegistryError, TransientError, problem, refusal, registry_message, root_message
from images.registry.reference import Repository, is_loopback
from images.registry.retries import RegistryRetry

_CHUNK = 1 << 18

Taken = TypeVar("Taken")


class Transport:
    """The way to one repository."""

    def __init__(
        self,
        repository: Repository,
        credentials: CredentialStore,
        retry: RegistryRetry,
        mount_from: Sequence[Repository],
    ) -> None:
        """`mount_from`: other repositories of this registry, to read. Raises UserError."""
        self.repository = repository
        self.stopping = threading.Event()
        """Once it is set, each request that is to be repeated raises Stopped."""
        self.retry = retry.new(stop=self.stopping)
        self._repeating = _session(repository.host, self.retry)
        self._single = _session(repository.host, 0)
        self.scheme = self._scheme()
        self._repeating.auth = RegistryAuth([repository, *mount_from], credentials, self._repeating, self.scheme)
        self._single.auth = self._repeating.auth
        self._root = f"{self.scheme}://{repository.api_host}/v2/{repository.name}/"

    def close(self) -> None:
        self._repeating.close()
        self._single.close()

    # --- reading ----------------------------------------------------------------------------------------------------

    def read(self, path: str, most: int, headers: Mapping[str, str] | None = None) -> tuple[Mapping[str, str], bytes]:
        """Headers and content of an answer. Of one with more than `most` bytes, a little more than these are read."""

        def take(answer: requests.Response) -> tuple[Mapping[str, str], bytes]:
            content = bytearray()
            for chunk in self.chunks(answer):
                content += chunk
                if len(content) > most:
                    break
            return answer.headers, bytes(content)

        return self.streamed(path, take, headers)

    def streamed(
        self, path: str, take: Callable[[requests.Response], Taken], headers: Mapping[str, str] | None = None
    ) -> Taken:
        """What `take` makes of an answer whose content it reads, at each attempt. Raises RegistryError."""

        def read() -> Taken:
            with self.send("GET", path, headers=headers, stream=True) as answer:
                return take(answer)

        return retries.repeat(read, self.retry)

    def chunks(self, answer: requests.Response) -> Iterator[bytes]:
        """Raises TransientError."""
        try:
            yield from answer.iter_content(_CHUNK)
        except requests.exceptions.RequestException as error:
            raise TransientError(self._problem(f"the connection broke: {root_message(error)}")) from None

    # --- requests ---------------------------------------------------------------------------------------------------

    def request(self, method: str, path: str, *, missing_ok: bool = False, **more: Any) -> requests.Response | None:
        """A request that may be repeated. None for 404 where `missing_ok`. Raises RegistryError."""
        try:
            return retries.repeat(lambda: self.send(method, path, repeats=True, **more), self.retry)
        except RegistryError as error:
            if missing_ok and error.status == requests.codes.not_found:
                return None
            raise

    def send(self, method: str, path: str, *, repeats: bool = False, **more: Any) -> requests.Response:
        """A request to the repository, or to a whole URL. Raises TransientError, RegistryError.

        `repeats`: as the policy says; what fails then is a RegistryError.
        """
        session = self._repeating if repeats else self._single
        url = self._secured(path) if "://" in path else f"{self._root}{path}"
        try:
            answer = session.request(method, url, **{"timeout": SECONDS, **more})
            if not answer.ok:
                answer.content  # noqa: B018  # what is read in parts may break off here, too
        except requests.exceptions.RequestException as error:
            raise self._failure(error, repeats) from None
        if answer.status_code in retries.STATUSES and not repeats:
            raise TransientError(self._problem(registry_message(answer)), answer)
        if not answer.ok:
            raise refusal(self.repository, answer)
        return answer

    def _failure(self, error: requests.exceptions.RequestException, repeats: bool) -> RegistryError:
        """A request that got no answer. TLS that ends without a word is a connection that broke: `repeat` takes it up,
        as urllib3 counts it with refused certificates, which are final.
        """
        if _is_certificate(error):
            return RegistryError(self._problem(f"its certificate is not accepted: {root_message(error)}"))
        broken = self._problem(f"the connection broke: {root_message(error)}")
        was_repeated = repeats and error.args and isinstance(error.args[0], MaxRetryError)
        if was_repeated and not isinstance(error, requests.exceptions.SSLError):
            return RegistryError(broken)
        return TransientError(broken)

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
            self._single.get(f"https://{host}/v2/", auth=anonymous, timeout=SECONDS)
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


def _session(host: str, retry: Retry | int) -> requests.Session:
    session = _Session()
    session.mount("https://", HTTPAdapter(max_retries=retry))
    session.mount("http://", HTTPAdapter(max_retries=retry))
    if is_loopback(host):
        session.trust_env = False  # as Docker: a proxy can't reach this machine's loopback
    return session
