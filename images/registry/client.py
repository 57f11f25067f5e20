"""A client of the OCI distribution protocol: manifests, blobs, tags, referrers. One repository of one registry.

Written here because no maintained library does what publishing needs: the `oras` package (0.2.43) neither lists
referrers, nor keeps the referrers tag of registries without that API, nor mounts blobs across repositories, and the
docker SDK reaches registries only through an engine. Source of every rule: the OCI distribution specification 1.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urljoin

import requests

from images.errors import Problem
from images.host.hashing import oci_digest
from images.registry import retries
from images.registry.auth import CredentialStore, docker_credentials
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
from images.registry.errors import RegistryError, json_object
from images.registry.reference import Reference, Repository, is_digest
from images.registry.retries import RegistryRetry
from images.registry.transport import Taken, Transport
from images.registry.uploads import Blob, Upload

_LARGEST_BLOB = 256 * 1024**2
"""Bytes of a blob that is read whole: configurations, SBOMs and evidence are far below."""
_LARGEST_MANIFEST = 4 * 1024**2  # what the specification asks registries to accept at least
_REFERRERS_WRITES = 5
_NO_DELETION = (400, 401, 403, 405, 501)
"""Statuses of registries that delete no manifest, or not with this login."""


class Registry:
    """One repository of a registry. Use it as a context manager, or call `close`."""

    def __init__(
        self,
        repository: Repository,
        *,
        credentials: CredentialStore = docker_credentials,
        retry: RegistryRetry | None = None,
        mount_from: Sequence[Repository] = (),
    ) -> None:
        """`retry` replaces the policy of `retries.py`; `mount_from`: other repositories of this registry, to read.

        Raises UserError.
        """
        self.repository = repository
        self._http = Transport(repository, credentials, retry or retries.POLICY, mount_from)
        self._listed: dict[str, dict[str, Descriptor]] = {}
        """Subject -> digest -> what was put into its referrers tag here."""

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def stop(self) -> None:
        """Let requests of other threads end without another attempt: they raise Stopped. For good."""
        self._http.stopping.set()

    @property
    def scheme(self) -> str:
        """https, or http."""
        return self._http.scheme

    # --- manifests and tags -----------------------------------------------------------------------------------------

    def check_access(self) -> None:
        """Open an upload and cancel it: may we write here? Raises RegistryError."""
        self._cancel_upload(self._start_upload(repeats=True))

    def find(self, identifier: str) -> Manifest | None:
        """The manifest of a tag or digest; None where there is none. Raises RegistryError, also for wrong content."""
        headers = {"Accept": ", ".join(MANIFEST_TYPES)}
        try:
            said, content = self._http.read(f"manifests/{identifier}", _LARGEST_MANIFEST, headers)
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
        raise RegistryError(Problem(where=where, cause="the registry has no such image", then="check the name"), 404)

    def put(self, manifest: Manifest, tag: str = "") -> requests.Response:
        """Store a manifest under a tag, or (`tag` empty) by its digest alone. Raises RegistryError."""
        headers = {"Content-Type": manifest.media_type}
        identifier = tag or manifest.digest
        answer = self._http.request("PUT", f"manifests/{identifier}", headers=headers, data=manifest.content)
        if answer is None:
            raise self._invalid(identifier, "the registry does not know the repository")
        return answer

    def delete_tag(self, tag: str) -> bool:
        """Delete a tag, never the manifest. False where the registry has no such operation. Raises RegistryError."""
        try:
            self._http.request("DELETE", f"manifests/{tag}", missing_ok=True)
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
        _, content = self._http.read(f"blobs/{descriptor.digest}", descriptor.size)
        if len(content) > descriptor.size:
            raise self._invalid(descriptor.digest, f"it has more bytes than the {descriptor.size} that are declared")
        if oci_digest(content) != descriptor.digest:
            raise self._invalid(descriptor.digest, "the content does not fit the digest")
        return content

    def read_blob(self, digest: str, take: Callable[[Iterator[bytes]], Taken]) -> Taken:
        """What `take` makes of a blob of any size, which it checks: called anew where the connection breaks.

        Raises RegistryError, and what `take` raises.
        """
        return self._http.streamed(f"blobs/{digest}", lambda answer: take(self._http.chunks(answer)))

    def has_blob(self, digest: str, size: int | None = None) -> bool:
        """Whether a blob is there. Raises RegistryError, also for one that has other than `size` bytes there.

        Such a blob is damaged, by a lost power say. Registries take no second copy of what they have.
        """
        there, held = self._held(digest)
        if there and None not in (held, size) and held != size:
            where = str(Reference(self.repository, digest))
            cause = f"the registry holds {held} bytes of it, not {size}: its store is damaged"
            then = "have who runs the registry delete this blob from its store; then give the command again"
            raise RegistryError(Problem(where=where, cause=cause, then=then))
        return there

    def blob_size(self, digest: str) -> int | None:
        """Bytes of a blob that is there; None for one that isn't, or whose size isn't said. Raises RegistryError."""
        return self._held(digest)[1]

    def _held(self, digest: str) -> tuple[bool, int | None]:
        """Whether a blob is there, and its size where the registry says it."""
        headers = {"Accept-Encoding": "identity"}  # so that the length is the blob's
        answer = self._http.request("HEAD", f"blobs/{digest}", headers=headers, missing_ok=True)
        length = "" if answer is None else answer.headers.get("Content-Length", "")
        return answer is not None, int(length) if length.isdecimal() else None

    def put_blob(self, content: bytes) -> str:
        """Store a blob unless it is there. Returns its digest. Raises RegistryError, also for a damaged one there."""
        digest = oci_digest(content)

        def upload() -> None:
            if not self.has_blob(digest, len(content)):
                self._upload(content, digest)

        retries.repeat(upload, self._http.retry)
        return digest

    def put_stream(self, blob: Blob) -> None:
        """Store a blob of any size, unless it is there.

        Raises RegistryError, also for a damaged one there, and what the blob's chunks raise.
        """

        def start() -> str:
            return "" if self.has_blob(blob.digest, blob.size) else self._start_upload()

        Upload(blob, self._http.send, start).run(self._http.retry)
        self.has_blob(blob.digest, blob.size)  # docker-registry keeps what it had, and says that it stored the blob

    def mount(self, digest: str, source: Repository, size: int | None = None) -> bool:
        """Link a blob from another repository of this registry. False where the registry doesn't grant it.

        Raises RegistryError, also where it has other than `size` bytes then.
        """
        if self.has_blob(digest, size):
            return True
        location = self._start_upload(f"?mount={digest}&from={source.name}", repeats=True)
        if location:
            self._cancel_upload(location)
            return False
        return size is None or self.has_blob(digest, size)

    def _upload(self, content: bytes, digest: str) -> None:
        """One attempt, in an upload session of its own. Raises TransientError, RegistryError."""
        location = self._start_upload()
        url = f"{location}{'&' if '?' in location else '?'}digest={digest}"
        headers = {"Content-Type": "application/octet-stream"}
        self._http.send("PUT", url, headers=headers, data=content)

    def _start_upload(self, query: str = "", *, repeats: bool = False) -> str:
        """Where to send a blob; empty when a mount made sending needless."""
        answer = self._http.send("POST", f"blobs/uploads/{query}", repeats=repeats, headers={"Content-Length": "0"})
        if answer.status_code == requests.codes.created:
            return ""
        return urljoin(answer.url, answer.headers.get("Location", ""))

    def _cancel_upload(self, location: str) -> None:
        try:
            self._http.send("DELETE", location)
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
            self._add_to_referrers_tag(manifest.subject, [entry])
            self._listed.setdefault(manifest.subject, {})[entry.digest] = entry
        return entry

    def relist_referrers(self) -> None:
        """List again what was stored here, where another writer, who read the list before, dropped it.

        Registries without the referrers API have no conditional write: the later this is done, the fewer such writers
        are left. Raises RegistryError.
        """
        for subject, entries in self._listed.items():
            listed = self._by_referrers_tag(subject)
            dropped = [one for one in entries.values() if not _is_listed(one, listed)]
            # What another writer has removed on purpose is not there any more.
            if left := [one for one in dropped if self.find(one.digest)]:
                self._add_to_referrers_tag(subject, left)

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
        self._listed.get(subject, {}).pop(digest, None)
        listed = self._by_referrers_tag(subject)
        kept = [one for one in listed if one.digest != digest]
        if len(kept) < len(listed):
            self.put(index(kept), referrers_tag(subject))
        try:
            self._http.request("DELETE", f"manifests/{digest}", missing_ok=True)
        except RegistryError as error:
            if error.status not in _NO_DELETION:
                raise
        return digest not in [one.digest for one in self.referrers(subject)]

    def _by_referrers_tag(self, subject: str) -> tuple[Descriptor, ...]:
        found = self.find(referrers_tag(subject))
        return found.manifests if found else ()

    def _add_to_referrers_tag(self, subject: str, entries: Sequence[Descriptor]) -> None:
        """The specification's tag schema. Reading back detects a concurrent writer that overwrote our entries."""
        for writes_left in reversed(range(_REFERRERS_WRITES + 1)):
            listed = self._by_referrers_tag(subject)
            digests = {one.digest for one in listed}
            missing = [one for one in entries if one.digest not in digests]
            if not missing:
                return
            if writes_left:
                self.put(index([*listed, *missing]), referrers_tag(subject))
        where = str(Reference(self.repository, subject))
        cause = "concurrent writers keep overwriting its list of referrers"
        then = "give the command again when no other machine publishes this image"
        raise RegistryError(Problem(where=where, cause=cause, then=then))

    # --- pages ------------------------------------------------------------------------------------------------------

    def _pages(self, path: str) -> Iterator[dict[str, Any]]:
        url: str | None = path
        while url:
            answer = self._http.request("GET", url, headers={"Accept": f"{OCI_INDEX}, application/json"})
            if answer is None:
                return
            yield json_object(answer)
            following = answer.links.get("next", {}).get("url")
            url = urljoin(answer.url, following) if following else None

    def _invalid(self, identifier: str, cause: str) -> RegistryError:
        where = str(Reference(self.repository, identifier))
        return RegistryError(Problem(where=where, cause=cause, then="don't use it; tell who runs the registry"))


def _is_listed(entry: Descriptor, listed: Sequence[Descriptor]) -> bool:
    """Whether a list of referrers has an artifact, or what took its place: its type and annotations say what it is.

    A registry that deletes no manifest still has what was replaced.
    """
    same = [one for one in listed if (one.artifact_type, one.annotations) == (entry.artifact_type, entry.annotations)]
    return entry.digest in [one.digest for one in listed] or bool(entry.annotations and same)
