"""Read and write manifests, blobs and tags of one repository in a container registry (OCI).

Every rule comes from the OCI distribution specification 1.1. No maintained library does what
publishing needs: the `oras` package (0.2.43) neither mounts blobs across repositories nor streams a
layer of any size, and the docker SDK reaches registries only through an engine.

A request is tried five times if the connection is refused, drops or times out, if the body of the
answer breaks off, or if the status is 408, 429, 500, 502, 503 or 504. A certificate that is refused
and any other status are final.
"""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import urljoin, urlsplit

import requests
from urllib3 import Retry
from urllib3.exceptions import InvalidHeader

from images.errors import Problem, innermost_error, root_cause
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
"""Bytes of a blob that is read into memory: configurations, SBOMs and evidence are far smaller."""
_LARGEST_MANIFEST = 4 * 1024**2
"""Bytes. The specification asks registries to accept at least as many."""
_UPLOAD_SECONDS = (60, 900)
"""Timeouts of an upload: for connecting and for each send, and for the answer. A registry that
stores its blobs in an object store may copy gigabytes before it answers."""
Chunks = Callable[[], Iterator[bytes]]
"""A function that returns the content from its beginning, each time it is called. An error that it
raises ends the upload."""
PAUSES = (0.0, 2.0, 4.0, 8.0)
"""Seconds before each further attempt, unless the registry names others (`Retry-After`)."""
_LONGEST_PAUSE = 60.0
"""Seconds that are waited at most, whatever the registry asks for."""
_CHUNK = 1 << 18
"""Bytes of an answer that are read at a time."""
_CANNOT_DELETE_TAGS = (400, 405, 501)
"""HTTP statuses with which registries say that they do not delete tags."""

Result = TypeVar("Result")


class StoredBlob(NamedTuple):
    """What a registry says of a blob."""

    exists: bool
    size: int | None
    """Bytes; None where the registry has no such blob or does not say its size."""


class Registry:
    """One repository of a registry. Use it as a context manager."""

    def __init__(
        self,
        repository: Repository,
        *,
        credentials: CredentialStore = docker_credentials,
        mount_from: Sequence[Repository] = (),
    ) -> None:
        """Prepare a session, and find out whether the registry speaks https.

        `credentials` returns the login of a host. `mount_from` has other repositories of this
        registry from which blobs shall be linked (see `mount`): the login asks for the right to
        read them.
        """
        self.repository = repository
        self.stopping = threading.Event()
        """Once set, failed requests are not tried again, in whatever thread: they raise Stopped."""
        self._session = _Session()
        if is_loopback(repository.host):
            # Ignore proxies, as Docker does: they can't reach this machine's loopback.
            self._session.trust_env = False
        self._scheme = self._find_scheme()
        self._login = Login([repository, *mount_from], credentials, self._session)
        self._root = f"{self._scheme}://{repository.api_host}/v2/{repository.name}/"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def _find_scheme(self) -> str:
        """Return `https`, or `http` for a registry on this machine that does not speak https.

        Docker does the same. Only a registry on this machine is asked, with one request.
        """
        host = self.repository.host
        if not is_loopback(host):
            return "https"
        try:
            self._session.get(f"https://{host}/v2/", auth=anonymous, timeout=SECONDS)
        except requests.exceptions.RequestException as error:
            # A registry whose certificate is refused does speak https.
            return "https" if _is_certificate(error) else "http"
        return "https"

    # --- manifests and tags ---

    def check_access(self) -> None:
        """Open an upload and cancel it. Raises RegistryError if we may not write here."""
        self._cancel_upload(self._repeat(self._start_upload))

    def find(self, identifier: str) -> Manifest | None:
        """Return the manifest that a tag or digest names; None where there is none.

        Raises RegistryError if the registry fails or refuses, and if the manifest is too large or
        does not match its digest.
        """
        accept = {"Accept": ", ".join(MANIFEST_TYPES)}
        try:
            headers, content = self._read(f"manifests/{identifier}", _LARGEST_MANIFEST, accept)
        except RegistryError as error:
            if error.status == requests.codes.not_found:
                return None
            raise
        # `_read` stops soon after the limit.
        if len(content) > _LARGEST_MANIFEST:
            raise self._invalid(identifier, f"its manifest has more than {_LARGEST_MANIFEST} bytes")

        media_type = headers.get("Content-Type", "").partition(";")[0].strip()
        manifest = Manifest(media_type=media_type, content=content)

        # For a tag, the registry may say what the digest is; not every registry does.
        if is_digest(identifier):
            expected = identifier
        else:
            expected = headers.get("Docker-Content-Digest", "")
        if expected and expected != manifest.digest:
            raise self._invalid(identifier, f"the content is {manifest.digest}, not {expected}")
        return manifest

    def get(self, identifier: str) -> Manifest:
        """Return the manifest that a tag or digest names. Raises RegistryError if there is none."""
        manifest = self.find(identifier)
        if manifest is None:
            where = str(Reference(self.repository, identifier))
            cause = "the registry has no such image"
            raise RegistryError(
                Problem(where=where, cause=cause, then="check the name and the tag"), 404
            )
        return manifest

    def put(self, manifest: Manifest, tag: str = "") -> None:
        """Store a manifest under a tag, or without a tag under its digest. Raises RegistryError."""
        self._request(
            "PUT",
            f"manifests/{tag or manifest.digest}",
            headers={"Content-Type": manifest.media_type},
            data=manifest.content,
        )

    def delete_tag(self, tag: str) -> bool:
        """Delete a tag, but not its manifest. Return whether the tag is gone.

        False if the registry cannot delete tags, as many can't. Raises RegistryError for every
        other failure.
        """
        try:
            self._request("DELETE", f"manifests/{tag}", missing_ok=True)
        except RegistryError as error:
            if error.status in _CANNOT_DELETE_TAGS:
                return False
            raise
        # Look whether it is gone, whatever the registry answered.
        return self.find(tag) is None

    def tags(self) -> tuple[str, ...]:
        """Return every tag of the repository.

        Raises RegistryError if the registry fails or refuses, or if there is no such repository.
        """
        tags: list[str] = []
        # Registries split long lists into pages: each answer links to the next one.
        url = "tags/list?n=1000"
        while url:
            answer = self._repeat(partial(self._send, "GET", url))
            for tag in json_object(answer).get("tags") or ():
                tags.append(str(tag))
            next_page = answer.links.get("next", {}).get("url")
            url = urljoin(answer.url, next_page) if next_page else ""
        return tuple(tags)

    # --- blobs ---

    def blob(self, descriptor: Descriptor) -> bytes:
        """Return the content of a blob (a configuration, say), after comparing it with its digest.

        `descriptor` has its digest and size. Raises RegistryError if the registry fails or has no
        such blob, and for a blob of more than 256 MiB or of another size than described.
        """
        digest, size = descriptor.digest, descriptor.size
        if size > _LARGEST_BLOB:
            raise self._invalid(digest, f"it has {size} bytes, too many to read whole")
        _, content = self._read(f"blobs/{digest}", size)
        if len(content) > size:
            raise self._invalid(digest, f"it has more bytes than the {size} that are declared")
        if oci_digest(content) != digest:
            raise self._invalid(digest, "the content does not fit the digest")
        return content

    def has_blob(self, digest: str, size: int | None = None) -> bool:
        """Return whether the registry has a blob (a layer or another file of an image).

        Raises RegistryError if the blob there has another size than `size`: then it is damaged, for
        example by a power failure, and a registry does not take a second copy. By default (None),
        any size will do.
        """
        stored = self.stat_blob(digest)
        is_size_known = stored.size is not None and size is not None
        if is_size_known and stored.size != size:
            where = str(Reference(self.repository, digest))
            cause = (
                f"the registry holds {stored.size} bytes of this blob, not {size}: its store is "
                "damaged"
            )
            then = (
                "have who runs the registry delete this blob from its store; "
                "then give the command again"
            )
            raise RegistryError(Problem(where=where, cause=cause, then=then))
        return stored.exists

    def stat_blob(self, digest: str) -> StoredBlob:
        """Ask the registry whether it has a blob, and of what size. Raises RegistryError."""
        # Without compression on the way, the length of the answer is that of the blob.
        headers = {"Accept-Encoding": "identity"}
        answer = self._request("HEAD", f"blobs/{digest}", headers=headers, missing_ok=True)
        if answer is None:
            return StoredBlob(exists=False, size=None)
        length = answer.headers.get("Content-Length", "")
        return StoredBlob(exists=True, size=int(length) if length.isdecimal() else None)

    def mount(self, digest: str, source: Repository, size: int | None = None) -> bool:
        """Link a blob from another repository of this registry, without sending it.

        Returns whether the repository has the blob now; False if the registry does not link it.
        Raises RegistryError if the registry fails, or if the blob there has another size than
        `size` (None: any size will do).
        """
        if self.has_blob(digest, size):
            return True

        # If the registry does not link the blob, it opens an upload instead. Its address is empty
        # if the blob was linked.
        location = self._repeat(partial(self._start_upload, f"?mount={digest}&from={source.name}"))
        if location:
            self._cancel_upload(location)
            return False

        # It was linked. Its size shows whether the registry's copy is damaged.
        if size is None:
            return True
        return self.has_blob(digest, size)

    def put_blob(self, content: bytes) -> str:
        """Store a blob unless the registry has it. Return its digest. Raises RegistryError."""
        digest = oci_digest(content)
        self.put_stream(digest, len(content), lambda: iter([content]))
        return digest

    def put_stream(self, digest: str, size: int, chunks: Chunks) -> None:
        """Store a blob of any size, unless the registry has it.

        `chunks` is a function that yields the content; it is called for each attempt, since a
        failed upload is repeated from its beginning. Raises RegistryError, also for a damaged copy
        in the registry; Stopped, if `stopping` was set; and whatever `chunks` raises.
        """
        self._repeat(partial(self._upload, digest, size, chunks))
        # docker-registry keeps a damaged copy that it had, and still reports success: compare
        # sizes.
        self.has_blob(digest, size)

    def _upload(self, digest: str, size: int, chunks: Chunks) -> None:
        """Upload a blob, once, unless the registry has it. Raises RegistryError.

        `chunks` is a function that yields the content of `size` bytes. POST opens a session, one
        PATCH sends the whole content, as Docker's own client does, and PUT closes the session with
        the digest.
        """
        if self.has_blob(digest, size):
            return
        location = self._start_upload()
        answer = self._send(
            "PATCH",
            location,
            headers={"Content-Type": "application/octet-stream", "Content-Length": str(size)},
            data=_Body(chunks, size),
            timeout=_UPLOAD_SECONDS,
        )
        # The session goes on at this URL, which may be relative, and may have a query already.
        location = urljoin(answer.url, answer.headers.get("Location", location))
        separator = "&" if "?" in location else "?"
        self._send("PUT", f"{location}{separator}digest={digest}", timeout=_UPLOAD_SECONDS)

    def _start_upload(self, query: str = "") -> str:
        """Open an upload session. Return the URL to send the blob to.

        `query` is the end of the request's URL: `?mount=DIGEST&from=NAME` asks to link a blob from
        another repository. The result is empty if the registry did so: then nothing need be sent.
        """
        answer = self._send("POST", f"blobs/uploads/{query}", headers={"Content-Length": "0"})
        if answer.status_code == requests.codes.created:
            return ""
        return urljoin(answer.url, answer.headers.get("Location", ""))

    def _cancel_upload(self, location: str) -> None:
        """End an upload session. Where the registry cannot, it ends by itself after a while."""
        with suppress(RegistryError):
            self._send("DELETE", location)

    # --- requests ---

    def _repeat(self, work: Callable[[], Result]) -> Result:
        """Call `work`, and call it again after each TransientError, up to five times in all.

        Returns what `work` returns. Raises the fifth TransientError, any other RegistryError at
        once, and Stopped if `stopping` is set during a pause.
        """
        # After each call that fails, wait as long as the registry asks for, but a minute at most.
        # If it does not say, wait for `pause`.
        for pause in PAUSES:
            try:
                return work()
            except TransientError as error:
                seconds = pause
                if error.retry_after:
                    with suppress(InvalidHeader):
                        seconds = min(Retry().parse_retry_after(error.retry_after), _LONGEST_PAUSE)
            wait(self.stopping, seconds)
        # The error of the last call is final.
        return work()

    def _request(
        self, method: str, path: str, *, missing_ok: bool = False, **more: Any
    ) -> requests.Response | None:
        """Send a request, and repeat it after errors that may pass. Return the registry's answer.

        `path` is below the repository's URL, or a whole URL. `more` has options of requests. With
        `missing_ok`, returns None for the status 404. Raises RegistryError for every other status
        that is not OK, and if no answer comes.
        """
        try:
            return self._repeat(lambda: self._send(method, path, **more))
        except RegistryError as error:
            if missing_ok and error.status == requests.codes.not_found:
                return None
            raise

    def _read(
        self, path: str, limit: int, headers: Mapping[str, str] | None = None
    ) -> tuple[Mapping[str, str], bytes]:
        """Return the headers and the content of a GET request, sent again after transient errors.

        If the content has more than `limit` bytes, only its beginning is returned, a little longer
        than the limit: the caller sees by its length that it is too large. Raises RegistryError.
        """
        return self._repeat(partial(self._read_once, path, limit, headers))

    def _read_once(
        self, path: str, limit: int, headers: Mapping[str, str] | None
    ) -> tuple[Mapping[str, str], bytes]:
        """Read a document of the registry, without another attempt: headers and content.

        `path` is below the repository's URL. Reading stops soon after `limit` bytes: a content that
        is longer than the limit may be cut off. Raises TransientError if the connection breaks, and
        RegistryError if the registry refuses.
        """
        content = bytearray()
        with self._send("GET", path, headers=headers, stream=True) as answer:
            try:
                for chunk in answer.iter_content(_CHUNK):
                    content += chunk
                    if len(content) > limit:
                        break
            except requests.exceptions.RequestException as error:
                raise self._broken(error) from None
            return answer.headers, bytes(content)

    def _send(self, method: str, path: str, **more: Any) -> requests.Response:
        """Send one request, and once more with a login if the registry asks for it.

        `path` is below the repository's URL, or a whole URL, as registries give for uploads and
        pages of lists. `more` has options of requests. Raises TransientError if a later attempt may
        succeed, else RegistryError.
        """
        url = path if "://" in path else f"{self._root}{path}"
        self._require_encrypted(url)
        try:
            answer = self._send_with_login(method, url, more)
            if not answer.ok:
                # Reading this property loads the error's text: here, where a broken connection is
                # handled.
                answer.content  # noqa: B018
        except requests.exceptions.RequestException as error:
            if _is_certificate(error):
                cause = f"the registry's certificate is not accepted: {root_cause(error)}"
                then = (
                    "if a company's authority signed it, set SSL_CERT_FILE to a file with that "
                    "authority (docs/engines.md), then give the command again"
                )
                where = str(self.repository)
                raise RegistryError(Problem(where=where, cause=cause, then=then)) from None
            raise self._broken(error) from None
        if not answer.ok:
            raise refusal(self.repository, answer)
        return answer

    def _require_encrypted(self, url: str) -> None:
        """Raise RegistryError for an http URL, unless the registry itself speaks http."""
        if url.startswith("http://") and self._scheme == "https":
            cause = (
                f"the registry sends us on to an unencrypted address, http://{urlsplit(url).netloc}"
            )
            then = (
                "report it to whoever runs the registry: its addresses must begin with https:// "
                "(a proxy before it must send X-Forwarded-Proto)"
            )
            raise RegistryError(Problem(where=str(self.repository), cause=cause, then=then))

    def _send_with_login(
        self, method: str, url: str, options: Mapping[str, Any]
    ) -> requests.Response:
        """Send one request, and once more if the registry answers 401 and a login helps.

        `options` are those of requests. Returns the last answer, whatever its status. Raises
        RegistryError where logging in fails, and whatever requests raises.
        """
        answer = self._send_once(method, url, options)
        if answer.status_code != requests.codes.unauthorized:
            return answer
        # A redirect may have led to another host, whose challenge is not answered.
        if not self._is_own(answer.url):
            return answer

        challenge = answer.headers.get("WWW-Authenticate", "")
        refused = answer.request.headers.get("Authorization", "")
        # `answer` returns False if there is no other login than the refused one.
        if self._login.answer(challenge, refused):
            answer.close()
            answer = self._send_once(method, url, options)
        return answer

    def _send_once(self, method: str, url: str, options: Mapping[str, Any]) -> requests.Response:
        """Send a request once, and return the answer, whatever its status.

        The login for the registry is sent only to the registry itself. It may send a client on to
        other hosts for uploads and pages of lists, and these must not get it.
        """
        # `anonymous` keeps requests from sending a login of its own, from ~/.netrc.
        headers = dict(options.get("headers") or {})
        if self._login.authorization and self._is_own(url):
            headers["Authorization"] = self._login.authorization
        options = {"timeout": SECONDS, **options, "headers": headers, "auth": anonymous}
        return self._session.request(method, url, **options)

    def _is_own(self, url: str) -> bool:
        """Return whether a URL has the scheme, host and port of the registry."""
        return origin(url) == origin(self._root)

    def _broken(self, error: requests.exceptions.RequestException) -> TransientError:
        """Return the error for a connection that broke, or was never made."""
        inner = innermost_error(error)
        if isinstance(inner, socket.gaierror):
            cause = f"this host is not known here: {root_cause(error)}"
            then = "check the host's name and this machine's network, then give the command again"
            return TransientError(Problem(where=str(self.repository), cause=cause, then=then))
        if isinstance(inner, ConnectionRefusedError):
            cause = "nothing answers at this address: the connection was refused"
        else:
            cause = f"the connection broke: {root_cause(error)}"
        return TransientError(problem(self.repository, cause))

    def _invalid(self, identifier: str, cause: str) -> RegistryError:
        """Return the error for a manifest or blob whose content must not be used."""
        where = str(Reference(self.repository, identifier))
        then = "don't use this image, and report it to whoever runs the registry"
        return RegistryError(Problem(where=where, cause=cause, then=then))


@dataclass(frozen=True)
class _Body:
    """The body of a request as requests streams it. After a redirect, it is iterated again."""

    chunks: Chunks
    size: int

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[bytes]:
        return self.chunks()


class _Session(requests.Session):
    """A session that sends no login to other hosts after a redirect.

    requests would send one from ~/.netrc. Storage services refuse it beside their signed URLs.
    """

    def rebuild_auth(
        self, prepared_request: requests.PreparedRequest, response: requests.Response
    ) -> None:
        """Remove the login from a redirected request if it goes to another host.

        requests calls this method for each redirect: `response` is the answer that redirects, and
        `prepared_request` the request that follows it.
        """
        request = response.request
        if not request.url or not prepared_request.url:
            return
        leaves_host = self.should_strip_auth(  # type: ignore[no-untyped-call]
            request.url, prepared_request.url
        )
        if leaves_host:
            prepared_request.headers.pop("Authorization", None)


def wait(stopping: threading.Event, seconds: float) -> None:
    """Wait, and raise Stopped as soon as `stopping` is set."""
    if stopping.wait(seconds):
        raise Stopped


def _is_certificate(error: requests.exceptions.RequestException) -> bool:
    """Return whether a request failed because the registry's certificate was refused."""
    is_tls_error = isinstance(error, requests.exceptions.SSLError)
    return is_tls_error and "CERTIFICATE_VERIFY_FAILED" in str(error)
