"""A client of the OCI distribution protocol: manifests, blobs, tags, referrers. One repository of one registry.

Written here because no maintained library does what publishing needs: the `oras` package (0.2.43) neither lists
referrers, nor keeps the referrers tag of registries without that API, nor mounts blobs across repositories, and the
docker SDK reaches registries only through an engine. Source of every rule: the OCI distribution specification 1.1.
Retries are those of `retries.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3 import Retry
from urllib3.exceptions import MaxRetryError

from images.errors import Problem
from images.host.hashing import oci_digest
from images.registry import retries
from images.registry.auth import SECONDS, CredentialStore, RegistryAuth, anonymous, docker_credentials
from images.registry.distribution import (
    EMPTY,
    MANIFEST_TYPES,
    OCI_INDEX,
    Descriptor,
    File,
    Manifest,
    artifact,
    index,
    referrer,
    referrers_tag,
)
from images.registry.errors import (
    RegistryError,
    TransientError,
    json_object,
    problem,
    refusal,
    registry_message,
    root_message,
)
from images.registry.reference import Reference, Repository, is_digest, is_loopback
from images.registry.uploads import Blob, Upload

_LARGEST_BLOB = 256 * 1024**2
"""Bytes of a blob that is read whole: configurations, SBOMs and evidence are far below."""
_LARGEST_MANIFEST = 4 * 1024**2  # what the specification asks registries to accept at least
_CHUNK = 1 << 18
_REFERRERS_WRITES = 5
_NO_DELETION = (400, 401, 403, 405, 501)
"""Statuses of registries that delete no manifest, or not with this login."""

_Taken = TypeVar("_Taken")


class Registry:
    """One repository of a registry. Use it as a context manager, or call `close`."""

    def __init__(
        self,
        repository: Repository,
        *,
        credentials: CredentialStore = docker_credentials,
        retry: Retry | None = None,
        mount_from: Sequence[Repository] = (),
    ) -> None:
        """`retry` replaces the policy of `retries.py`; `mount_from`: other repositories of this registry, to read.

        Raises UserError.
        """
        self.repository = repository
        self._retry = retry or retries.POLICY
        self._session = _session(repository.host, self._retry)
        self._single = _session(repository.host, 0)
        self.scheme = self._scheme()
        self._session.auth = RegistryAuth([repository, *mount_from], credentials, self._session, self.scheme)
        self._single.auth = self._session.auth
        self._root = f"{self.scheme}://{repository.api_host}/v2/{repository.name}/"

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._session.close()
        self._single.close()

    # --- manifests and tags -----------------------------------------------------------------------------------------

    def check_access(self) -> None:
        """Open an upload and cancel it: may we write here? Raises RegistryError."""
        self._cancel_upload(self._start_upload(self._session))

    def find(self, identifier: str) -> Manifest | None:
        """The manifest of a tag or digest; None where there is none. Raises RegistryError, also for wrong content."""
        headers = {"Accept": ", ".join(MANIFEST_TYPES)}
        answer = self._request("GET", f"manifests/{identifier}", headers=headers, missing_ok=True)
        if answer is None:
            return None
        if len(answer.content) > _LARGEST_MANIFEST:
            raise self._invalid(identifier, f"its manifest has {len(answer.content)} bytes")
        media_type = answer.headers.get("Content-Type", "").partition(";")[0].strip()
        manifest = Manifest(media_type=media_type, content=answer.content)
        expected = identifier if is_digest(identifier) else answer.headers.get("Docker-Content-Digest", "")
        if expected and expected != manifest.digest:
            raise self._invalid(identifier, f"the content is {manifest.digest}, not {expected}")
        return manifest

    def get(self, identifier: str) -> Manifest:
        """The manifest of a tag or digest. Raises RegistryError."""
        if found := self.find(identifier):
            return found
        where = str(Reference(self.repository, identifier))
        raise RegistryError(Problem(where=where, cause="the registry has no such image", then="check the name"), 404)

    def put(self, manifest: Manifest, tag: str = "") -> requests.Response:
        """Store a manifest under a tag, or (`tag` empty) by its digest alone. Raises RegistryError."""
        headers = {"Content-Type": manifest.media_type}
        identifier = tag or manifest.digest
        answer = self._request("PUT", f"manifests/{identifier}", headers=headers, data=manifest.content)
        if answer is None:
            raise self._invalid(identifier, "the registry does not know the repository")
        return answer

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
        pages = self._pages("tags/list?n=1000")
        return tuple(str(tag) for page in pages for tag in page.get("tags") or ())

    # --- blobs ------------------------------------------------------------------------------------------------------

    def blob(self, descriptor: Descriptor) -> bytes:
        """A blob's content, checked against its digest. Raises RegistryError."""
        if descriptor.size > _LARGEST_BLOB:
            raise self._invalid(descriptor.digest, f"it has {descriptor.size} bytes, too many to read whole")
        answer = self._request("GET", f"blobs/{descriptor.digest}")
        content = answer.content if answer is not None else b""
        if oci_digest(content) != descriptor.digest:
            raise self._invalid(descriptor.digest, "the content does not fit the digest")
        return content

    def read_blob(self, digest: str, take: Callable[[Iterator[bytes]], _Taken]) -> _Taken:
        """What `take` makes of a blob of any size, which it checks: called anew where the connection breaks.

        Raises RegistryError, and what `take` raises.
        """

        def read() -> _Taken:
            with self._send(self._single, "GET", f"blobs/{digest}", stream=True) as answer:
                return take(self._chunks(answer))

        return retries.repeat(read, self._retry)

    def _chunks(self, answer: requests.Response) -> Iterator[bytes]:
        try:
            yield from answer.iter_content(_CHUNK)
        except requests.exceptions.RequestException as error:
            raise TransientError(self._problem(f"the connection broke: {root_message(error)}")) from None

    def has_blob(self, digest: str) -> bool:
        return self.blob_size(digest) is not None

    def blob_size(self, digest: str) -> int | None:
        """Bytes of a blob that is there; None for one that isn't. Raises RegistryError."""
        answer = self._request("HEAD", f"blobs/{digest}", missing_ok=True)
        return None if answer is None else int(answer.headers.get("Content-Length") or 0)

    def put_blob(self, content: bytes) -> str:
        """Store a blob unless it is there. Returns its digest. Raises RegistryError."""
        digest = oci_digest(content)

        def upload() -> None:
            if not self.has_blob(digest):
                self._upload(content, digest)

        retries.repeat(upload, self._retry)
        return digest

    def put_stream(self, blob: Blob) -> None:
        """Store a blob of any size, unless it is there. Raises RegistryError, and what the blob's chunks raise."""

        def start() -> str:
            return "" if self.has_blob(blob.digest) else self._start_upload(self._single)

        Upload(blob, lambda method, url, **more: self._send(self._single, method, url, **more), start).run(self._retry)

    def mount(self, digest: str, source: Repository) -> bool:
        """Link a blob from another repository of this registry. False where the registry doesn't grant it."""
        if self.has_blob(digest):
            return True
        location = self._start_upload(self._session, f"?mount={digest}&from={source.name}")
        if location:
            self._cancel_upload(location)
        return not location

    def _upload(self, content: bytes, digest: str) -> None:
        """One attempt, in an upload session of its own. Raises TransientError, RegistryError."""
        location = self._start_upload(self._single)
        url = f"{location}{'&' if '?' in location else '?'}digest={digest}"
        headers = {"Content-Type": "application/octet-stream"}
        self._send(self._single, "PUT", url, headers=headers, data=content)

    def _start_upload(self, session: requests.Session, query: str = "") -> str:
        """Where to send a blob; empty when a mount made sending needless."""
        answer = self._send(session, "POST", f"blobs/uploads/{query}", headers={"Content-Length": "0"})
        if answer.status_code == requests.codes.created:
            return ""
        return urljoin(answer.url, answer.headers.get("Location", ""))

    def _cancel_upload(self, location: str) -> None:
        try:
            self._send(self._single, "DELETE", location)
        except RegistryError:
            return  # registries remove unfinished uploads themselves after a while

    # --- referrers --------------------------------------------------------------------------------------------------

    def attach(
        self,
        subject: Descriptor,
        artifact_type: str,
        files: Sequence[File],
        annotations: Mapping[str, str] | None = None,
    ) -> Descriptor:
        """Store files as an artifact that refers to `subject`. The same content twice is stored once."""
        for content in (EMPTY, *(file.content for file in files)):
            self.put_blob(content)
        return self.put_referrer(artifact(subject, artifact_type, files, annotations or {}))

    def put_referrer(self, manifest: Manifest) -> Descriptor:
        """Store a manifest that has a subject, so that `referrers` finds it. Raises RegistryError."""
        answer = self.put(manifest)
        entry = referrer(manifest)
        if answer.headers.get("OCI-Subject") != manifest.subject:
            self._add_to_referrers_tag(manifest.subject, entry)
        return entry

    def referrers(self, subject: str) -> tuple[Descriptor, ...]:
        """What refers to a digest: by the referrers API, else by the referrers tag."""
        if not is_digest(subject):
            raise ValueError(f"{subject!r} is no digest")
        try:
            pages = list(self._pages(f"referrers/{subject}"))
        except RegistryError as error:
            if error.status != requests.codes.not_found:
                raise
            return self._by_referrers_tag(subject)
        return tuple(Descriptor.from_json(entry) for page in pages for entry in page.get("manifests") or ())

    def detach(self, subject: str, digest: str) -> bool:
        """Remove what refers to a digest. False where the registry goes on to list it. Raises RegistryError."""
        listed = self._by_referrers_tag(subject)
        kept = [one for one in listed if one.digest != digest]
        if len(kept) < len(listed):
            self.put(index(kept), referrers_tag(subject))
        try:
            self._request("DELETE", f"manifests/{digest}", missing_ok=True)
        except RegistryError as error:
            if error.status not in _NO_DELETION:
                raise
        return digest not in [one.digest for one in self.referrers(subject)]

    def _by_referrers_tag(self, subject: str) -> tuple[Descriptor, ...]:
        found = self.find(referrers_tag(subject))
        return found.manifests if found else ()

    def _add_to_referrers_tag(self, subject: str, entry: Descriptor) -> None:
        """The specification's tag schema. Reading back detects a concurrent writer that overwrote our entry."""
        for _ in range(_REFERRERS_WRITES):
            listed = self._by_referrers_tag(subject)
            if any(one.digest == entry.digest for one in listed):
                return
            self.put(index([*listed, entry]), referrers_tag(subject))
        raise self._invalid(subject, "concurrent writers keep overwriting its list of referrers")

    # --- requests ---------------------------------------------------------------------------------------------------

    def _pages(self, path: str) -> Iterator[dict[str, Any]]:
        url: str | None = path
        while url:
            answer = self._request("GET", url, headers={"Accept": f"{OCI_INDEX}, application/json"})
            if answer is None:
                return
            yield json_object(answer)
            following = answer.links.get("next", {}).get("url")
            url = urljoin(answer.url, following) if following else None

    def _request(self, method: str, path: str, *, missing_ok: bool = False, **more: Any) -> requests.Response | None:
        """A request that may be repeated. None for 404 where `missing_ok`. Raises RegistryError."""
        try:
            return retries.repeat(lambda: self._send(self._session, method, path, **more), self._retry)
        except RegistryError as error:
            if missing_ok and error.status == requests.codes.not_found:
                return None
            raise

    def _send(self, session: requests.Session, method: str, path: str, **more: Any) -> requests.Response:
        """A request to the repository, or to a whole URL. Raises TransientError, RegistryError.

        What `session` has repeated already is a RegistryError.
        """
        url = self._secured(path) if "://" in path else f"{self._root}{path}"
        try:
            answer = session.request(method, url, **{"timeout": SECONDS, **more})
        except requests.exceptions.SSLError as error:
            raise RegistryError(self._problem(f"its certificate is not accepted: {root_message(error)}")) from None
        except requests.exceptions.RequestException as error:
            broken = self._problem(f"the connection broke: {root_message(error)}")
            repeated = session is self._session and error.args and isinstance(error.args[0], MaxRetryError)
            raise (RegistryError(broken) if repeated else TransientError(broken)) from None
        if answer.status_code in retries.STATUSES and session is self._single:
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
        if parts.netloc == self.repository.api_host:
            return parts._replace(scheme="https").geturl()
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
        except requests.exceptions.SSLError as error:
            return "https" if "CERTIFICATE_VERIFY_FAILED" in str(error) else "http"
        except requests.exceptions.RequestException:
            return "http"
        return "https"

    def _problem(self, cause: str) -> Problem:
        return problem(self.repository, cause)

    def _invalid(self, identifier: str, cause: str) -> RegistryError:
        where = str(Reference(self.repository, identifier))
        return RegistryError(Problem(where=where, cause=cause, then="don't use it; tell who runs the registry"))


def _session(host: str, retry: Retry | int) -> requests.Session:
    session = requests.Session()
    session.mount("https://", HTTPAdapter(max_retries=retry))
    session.mount("http://", HTTPAdapter(max_retries=retry))
    if is_loopback(host):
        session.trust_env = False  # as Docker: a proxy can't reach this machine's loopback
    return session
