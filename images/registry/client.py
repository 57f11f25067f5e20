"""A client of the OCI distribution protocol: manifests, blobs, tags. One repository of one registry.

Written here because no maintained library does what publishing needs: the `oras` package (0.2.43) neither mounts blobs
across repositories nor streams a layer of any size, and the docker SDK reaches registries only through an engine.
Source of every rule: the OCI distribution specification 1.1.

A connection that is refused, drops or times out, the body of an answer that breaks off, and the statuses 408, 429, 500,
502, 503 and 504 are tried five times. A certificate that is refused and any other status are final.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar
from urllib.parse import urljoin, urlsplit

import requests
from urllib3 import Retry
from urllib3.exceptions import InvalidHeader

from images.errors import Problem, root_cause
from images.host.hashing import oci_digest
from images.registry.auth import (
    SECONDS,
    CredentialStore,
    Login,
    anonymous,
    docker_credentials,
    origin,
)
from images.registry.distribution import MANIFEST_TYPES, Descriptor, Manifest
from images.registry.errors import (
    RegistryError,
    Stopped,
    TransientError,
    json_object,
    problem,
    refusal,
)
from images.registry.reference import Reference, Repository, is_digest, is_loopback

_LARGEST_BLOB = 256 * 1024**2
"""Bytes of a blob that is read whole: configurations, SBOMs and evidence are far below."""
_LARGEST_MANIFEST = 4 * 1024**2  # what the specification asks registries to accept at least
_UPLOAD_SECONDS = (60, 900)
"""Timeouts of a request of an upload. The first is also the longest that a registry may take nothing; in the second, a
registry that stands on an object store copies a blob of gigabytes."""
Chunks = Callable[[], Iterator[bytes]]
"""The content, from its beginning each time. What it raises ends the upload."""
PAUSES = (0.0, 2.0, 4.0, 8.0)
"""Seconds before each further attempt, where the registry says nothing else (`Retry-After`)."""
_LONGEST_PAUSE = 60.0
_CHUNK = 1 << 18

Result = TypeVar("Result")


class Registry:
    """One repository of a registry. Use it as a context manager."""

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
        """Set: requests of other threads end without another attempt, and raise Stopped. For good."""
        self._session = _Session()
        if is_loopback(repository.host):
            self._session.trust_env = (
                False  # as Docker: a proxy can't reach this machine's loopback
            )
        self._scheme = self._find_scheme()
        self._login = Login([repository, *mount_from], credentials, self._session)
        self._root = f"{self._scheme}://{repository.api_host}/v2/{repository.name}/"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def _repeat(self, work: Callable[[], Result]) -> Result:
        """Do work again after each TransientError, five times in all. Raises RegistryError, Stopped."""
        for pause in PAUSES:
            try:
                return work()
            except TransientError as error:
                seconds = pause
                with suppress(InvalidHeader):
                    if error.retry_after:
                        seconds = min(Retry().parse_retry_after(error.retry_after), _LONGEST_PAUSE)
            wait(self.stopping, seconds)
        return work()

    def _read(
        self, path: str, most: int, headers: Mapping[str, str] | None = None
    ) -> tuple[Mapping[str, str], bytes]:
        """Headers and content of an answer. Of one with more than `most` bytes, a little more than these are read."""

        def read() -> tuple[Mapping[str, str], bytes]:
            content = bytearray()
            with self._send("GET", path, headers=headers, stream=True) as answer:
                try:
                    for chunk in answer.iter_content(_CHUNK):
                        content += chunk
                        if len(content) > most:
                            break
                except requests.exceptions.RequestException as error:
                    raise self._broken(error) from None
                return answer.headers, bytes(content)

        return self._repeat(read)

    def _request(
        self, method: str, path: str, *, missing_ok: bool = False, **more: Any
    ) -> requests.Response | None:
        """A request that may be repeated. None for 404 where `missing_ok`. Raises RegistryError."""
        try:
            return self._repeat(lambda: self._send(method, path, **more))
        except RegistryError as error:
            if missing_ok and error.status == requests.codes.not_found:
                return None
            raise

    def _send(self, method: str, path: str, **more: Any) -> requests.Response:
        """Send one request to the repository, or to a whole URL. Raises TransientError, RegistryError."""
        url = path if "://" in path else f"{self._root}{path}"
        if url.startswith("http://") and self._scheme == "https":
            cause = f"it names an unencrypted address, http://{urlsplit(url).netloc}"
            then = (
                "tell who runs the registry: what it names must begin with https:// "
                "(a proxy before it must send X-Forwarded-Proto)"
            )
            raise RegistryError(Problem(where=str(self.repository), cause=cause, then=then))
        try:
            answer = self._ask(method, url, more)
            is_refused = answer.status_code == requests.codes.unauthorized and self._is_own(
                answer.url
            )
            if is_refused:
                challenge = answer.headers.get("WWW-Authenticate", "")
                refused = answer.request.headers.get("Authorization", "")
                if self._login.answer(challenge, refused):
                    answer.close()
                    answer = self._ask(method, url, more)
            if not answer.ok:
                answer.content  # noqa: B018  # what is read in parts may break off here, too
        except requests.exceptions.RequestException as error:
            if _is_certificate(error):
                cause = f"its certificate is not accepted: {root_cause(error)}"
                raise RegistryError(problem(self.repository, cause)) from None
            raise self._broken(error) from None
        if not answer.ok:
            raise refusal(self.repository, answer)
        return answer

    def _ask(self, method: str, url: str, options: Mapping[str, Any]) -> requests.Response:
        """Send a request. It carries our login to the registry itself, and to no other host (uploads, pages)."""
        headers = dict(options.get("headers") or {})
        if self._login.authorization and self._is_own(url):
            headers["Authorization"] = self._login.authorization
        options = {"timeout": SECONDS, **options, "headers": headers, "auth": anonymous}
        return self._session.request(method, url, **options)

    def _is_own(self, url: str) -> bool:
        """Return whether a URL is the registry's, over its own scheme."""
        return origin(url) == origin(self._root)

    def _broken(self, error: requests.exceptions.RequestException) -> TransientError:
        return TransientError(
            problem(self.repository, f"the connection broke: {root_cause(error)}")
        )

    def _find_scheme(self) -> str:
        """https; on this machine's loopback http too, as Docker has it, where nobody speaks https."""
        host = self.repository.host
        if not is_loopback(host):
            return "https"
        try:
            self._session.get(f"https://{host}/v2/", auth=anonymous, timeout=SECONDS)
        except requests.exceptions.RequestException as error:
            return "https" if _is_certificate(error) else "http"
        return "https"

    def check_access(self) -> None:
        """Open an upload and cancel it: may we write here? Raises RegistryError."""
        self._cancel_upload(self._repeat(self._start_upload))

    def find(self, identifier: str) -> Manifest | None:
        """The manifest of a tag or digest; None where there is none. Raises RegistryError, also for wrong content."""
        headers = {"Accept": ", ".join(MANIFEST_TYPES)}
        try:
            said, content = self._read(f"manifests/{identifier}", _LARGEST_MANIFEST, headers)
        except RegistryError as error:
            if error.status == requests.codes.not_found:
                return None
            raise
        if len(content) > _LARGEST_MANIFEST:
            raise self._invalid(identifier, f"its manifest has more than {_LARGEST_MANIFEST} bytes")
        media_type = said.get("Content-Type", "").partition(";")[0].strip()
        manifest = Manifest(media_type=media_type, content=content)
        expected = identifier if is_digest(identifier) else said.get("Docker-Content-Digest", "")
        if expected and expected != manifest.digest:
            raise self._invalid(identifier, f"the content is {manifest.digest}, not {expected}")
        return manifest

    def get(self, identifier: str) -> Manifest:
        """The manifest of a tag or digest. Raises RegistryError."""
        if found := self.find(identifier):
            return found
        where = str(Reference(self.repository, identifier))
        raise RegistryError(
            Problem(where=where, cause="the registry has no such image", then="check the name"), 404
        )

    def put(self, manifest: Manifest, tag: str = "") -> None:
        """Store a manifest under a tag, or (`tag` empty) by its digest alone. Raises RegistryError."""
        headers = {"Content-Type": manifest.media_type}
        self._request(
            "PUT", f"manifests/{tag or manifest.digest}", headers=headers, data=manifest.content
        )

    def delete_tag(self, tag: str) -> bool:
        """Delete a tag, never the manifest. False where the registry has no such operation. Raises RegistryError."""
        try:
            self._request("DELETE", f"manifests/{tag}", missing_ok=True)
        except RegistryError as error:
            if error.status in (400, 405, 501):
                return False
            raise
        return self.find(tag) is None

    def tags(self) -> tuple[str, ...]:
        """Every tag of the repository. Raises RegistryError."""
        found: list[str] = []
        url = "tags/list?n=1000"
        while url:
            answer = self._repeat(partial(self._send, "GET", url))
            found += map(str, json_object(answer).get("tags") or ())
            following = answer.links.get("next", {}).get("url")
            url = urljoin(answer.url, following) if following else ""
        return tuple(found)

    def blob(self, descriptor: Descriptor) -> bytes:
        """A blob's content, checked against its digest. Raises RegistryError."""
        if descriptor.size > _LARGEST_BLOB:
            raise self._invalid(
                descriptor.digest, f"it has {descriptor.size} bytes, too many to read whole"
            )
        _, content = self._read(f"blobs/{descriptor.digest}", descriptor.size)
        if len(content) > descriptor.size:
            raise self._invalid(
                descriptor.digest, f"it has more bytes than the {descriptor.size} that are declared"
            )
        if oci_digest(content) != descriptor.digest:
            raise self._invalid(descriptor.digest, "the content does not fit the digest")
        return content

    def has_blob(self, digest: str, size: int | None = None) -> bool:
        """Whether a blob is there. Raises RegistryError, also for one that has other than `size` bytes there.

        Such a blob is damaged, by a lost power say. Registries take no second copy of what they have.
        """
        there, held = self.held(digest)
        if there and None not in (held, size) and held != size:
            where = str(Reference(self.repository, digest))
            cause = f"the registry holds {held} bytes of it, not {size}: its store is damaged"
            then = "have who runs the registry delete this blob from its store; then give the command again"
            raise RegistryError(Problem(where=where, cause=cause, then=then))
        return there

    def held(self, digest: str) -> tuple[bool, int | None]:
        """Whether a blob is there, and its size in bytes where the registry says it. Raises RegistryError."""
        headers = {"Accept-Encoding": "identity"}  # so that the length is the blob's
        answer = self._request("HEAD", f"blobs/{digest}", headers=headers, missing_ok=True)
        length = "" if answer is None else answer.headers.get("Content-Length", "")
        return answer is not None, int(length) if length.isdecimal() else None

    def mount(self, digest: str, source: Repository, size: int | None = None) -> bool:
        """Link a blob from another repository of this registry. False where the registry doesn't grant it.

        Raises RegistryError, also where it has other than `size` bytes then.
        """
        if self.has_blob(digest, size):
            return True
        location = self._repeat(partial(self._start_upload, f"?mount={digest}&from={source.name}"))
        if location:
            self._cancel_upload(location)
            return False
        return size is None or self.has_blob(digest, size)

    def put_blob(self, content: bytes) -> str:
        """Store a blob unless it is there. Returns its digest. Raises RegistryError, also for a damaged one there."""
        digest = oci_digest(content)
        self.put_stream(digest, len(content), lambda: iter([content]))
        return digest

    def put_stream(self, digest: str, size: int, chunks: Chunks) -> None:
        """Store a blob of any size, unless it is there.

        A session is opened (POST), takes the whole content in one request (PATCH, as Docker's own client sends it), and
        is closed with the digest (PUT). When one of these fails, all is sent again in a new session. Raises
        RegistryError, also for a damaged blob there, Stopped, and what `chunks` raises.
        """

        def send() -> None:
            if self.has_blob(digest, size):
                return
            location = self._start_upload()
            headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
            answer = self._send(
                "PATCH",
                location,
                headers=headers,
                data=_Body(chunks, size),
                timeout=_UPLOAD_SECONDS,
            )
            location = urljoin(answer.url, answer.headers.get("Location", location))
            closing = f"{location}{'&' if '?' in location else '?'}digest={digest}"
            self._send("PUT", closing, timeout=_UPLOAD_SECONDS)

        self._repeat(send)
        self.has_blob(
            digest, size
        )  # docker-registry keeps what it had, and says that it stored the blob

    def _start_upload(self, query: str = "") -> str:
        """Where to send a blob; empty when a mount made sending needless."""
        answer = self._send("POST", f"blobs/uploads/{query}", headers={"Content-Length": "0"})
        if answer.status_code == requests.codes.created:
            return ""
        return urljoin(answer.url, answer.headers.get("Location", ""))

    def _cancel_upload(self, location: str) -> None:
        try:
            self._send("DELETE", location)
        except RegistryError:
            return  # registries remove unfinished uploads themselves after a while

    def _invalid(self, identifier: str, cause: str) -> RegistryError:
        where = str(Reference(self.repository, identifier))
        return RegistryError(
            Problem(where=where, cause=cause, then="don't use it; tell who runs the registry")
        )


@dataclass(frozen=True)
class _Body:
    """The body of a request, in the form that requests streams: it can be iterated again, after a redirect say."""

    chunks: Chunks
    size: int

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[bytes]:
        return self.chunks()


class _Session(requests.Session):
    """One that gives a redirect no login of ~/.netrc: storage refuses a second one beside its signed address."""

    def rebuild_auth(
        self, prepared_request: requests.PreparedRequest, response: requests.Response
    ) -> None:
        request = response.request
        if not request.url or not prepared_request.url:
            return
        leaves_host = self.should_strip_auth(  # type: ignore[no-untyped-call]
            request.url, prepared_request.url
        )
        if leaves_host:
            prepared_request.headers.pop("Authorization", None)


def wait(stopping: threading.Event, seconds: float) -> None:
    """Raises Stopped as soon as all is to end."""
    if stopping.wait(seconds):
        raise Stopped


def _is_certificate(error: requests.exceptions.RequestException) -> bool:
    return isinstance(error, requests.exceptions.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(
        error
    )
