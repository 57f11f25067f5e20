"""A client of the OCI distribution protocol: manifests, blobs, tags. One repository of one registry.

Written here because no maintained library does what publishing needs: the `oras` package (0.2.43) neither mounts blobs
across repositories nor goes on with a broken upload, and the docker SDK reaches registries only through an engine.
Source of every rule: the OCI distribution specification 1.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from urllib.parse import urljoin

import requests

from images.errors import Problem
from images.host.hashing import oci_digest
from images.registry.distribution import MANIFEST_TYPES, Descriptor, Manifest
from images.registry.errors import RegistryError, TransientError, json_object
from images.registry.reference import Reference, Repository, is_digest
from images.registry.transport import PAUSES, Transport

_LARGEST_BLOB = 256 * 1024**2
"""Bytes of a blob that is read whole: configurations, SBOMs and evidence are far below."""
_LARGEST_MANIFEST = 4 * 1024**2  # what the specification asks registries to accept at least
_UPLOAD_SECONDS = (60, 900)
"""Timeouts of a request of an upload. The first is also the longest that a registry may take nothing; in the second, a
registry that stands on an object store copies a blob of gigabytes."""
_BAD_SESSION = frozenset({400, 404, 416})
"""What registries answer where they don't go on with a session. The digest of a whole blob is refused with 400, too."""
Chunks = Callable[[int], Iterator[bytes]]
"""An offset -> the content from there on. What it raises ends the upload."""


class Registry(Transport):
    """One repository of a registry."""

    # --- manifests and tags -----------------------------------------------------------------------------------------

    def check_access(self) -> None:
        """Open an upload and cancel it: may we write here? Raises RegistryError."""
        self._cancel_upload(self.repeat(self._start_upload))

    def find(self, identifier: str) -> Manifest | None:
        """The manifest of a tag or digest; None where there is none. Raises RegistryError, also for wrong content."""
        headers = {"Accept": ", ".join(MANIFEST_TYPES)}
        try:
            said, content = self.read(f"manifests/{identifier}", _LARGEST_MANIFEST, headers)
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

    def put(self, manifest: Manifest, tag: str = "") -> None:
        """Store a manifest under a tag, or (`tag` empty) by its digest alone. Raises RegistryError."""
        headers = {"Content-Type": manifest.media_type}
        self.request("PUT", f"manifests/{tag or manifest.digest}", headers=headers, data=manifest.content)

    def delete_tag(self, tag: str) -> bool:
        """Delete a tag, never the manifest. False where the registry has no such operation. Raises RegistryError."""
        try:
            self.request("DELETE", f"manifests/{tag}", missing_ok=True)
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
            answer = self.repeat(partial(self.send, "GET", url))
            found += map(str, json_object(answer).get("tags") or ())
            following = answer.links.get("next", {}).get("url")
            url = urljoin(answer.url, following) if following else ""
        return tuple(found)

    # --- blobs ------------------------------------------------------------------------------------------------------

    def blob(self, descriptor: Descriptor) -> bytes:
        """A blob's content, checked against its digest. Raises RegistryError."""
        if descriptor.size > _LARGEST_BLOB:
            raise self._invalid(descriptor.digest, f"it has {descriptor.size} bytes, too many to read whole")
        _, content = self.read(f"blobs/{descriptor.digest}", descriptor.size)
        if len(content) > descriptor.size:
            raise self._invalid(descriptor.digest, f"it has more bytes than the {descriptor.size} that are declared")
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
        answer = self.request("HEAD", f"blobs/{digest}", headers=headers, missing_ok=True)
        length = "" if answer is None else answer.headers.get("Content-Length", "")
        return answer is not None, int(length) if length.isdecimal() else None

    def mount(self, digest: str, source: Repository, size: int | None = None) -> bool:
        """Link a blob from another repository of this registry. False where the registry doesn't grant it.

        Raises RegistryError, also where it has other than `size` bytes then.
        """
        if self.has_blob(digest, size):
            return True
        location = self.repeat(partial(self._start_upload, f"?mount={digest}&from={source.name}"))
        if location:
            self._cancel_upload(location)
            return False
        return size is None or self.has_blob(digest, size)

    def put_blob(self, content: bytes) -> str:
        """Store a blob unless it is there. Returns its digest. Raises RegistryError, also for a damaged one there."""
        digest = oci_digest(content)
        self.put_stream(digest, len(content), lambda offset: iter([content[offset:]]))
        return digest

    def put_stream(self, digest: str, size: int, chunks: Chunks) -> None:
        """Store a blob of any size, unless it is there.

        A session is opened (POST), takes the whole content in one request (PATCH, as Docker's own client sends it), and
        is closed with the digest (PUT). When a request fails, the session is asked how much it holds, and the next
        attempt sends the rest. A session that does not say, or that refuses the rest, is given up for a new one
        (docker-registry 2.8 does so after a connection that broke within a body). Five attempts count from each one
        that brought more bytes. Raises RegistryError, also for a damaged blob there, Stopped, and what `chunks` raises.
        """
        location, held, farthest, pauses = "", 0, 0, iter(PAUSES)
        while True:
            resumed = bool(location)
            try:
                if resumed:
                    location, held = self._resumed(location, size)
                if not location:
                    if self.has_blob(digest, size):
                        return
                    location, held, resumed = self._start_upload(), 0, False
                if held < size:
                    headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size - held)}
                    headers |= {"Content-Range": f"{held}-{size - 1}"} if held else {}
                    rest = _Rest(chunks, held, size)
                    answer = self.send("PATCH", location, headers=headers, data=rest, timeout=_UPLOAD_SECONDS)
                    location, held = _following(answer, location), size
                closing = f"{location}{'&' if '?' in location else '?'}digest={digest}"
                self.send("PUT", closing, timeout=_UPLOAD_SECONDS)
                break
            except TransientError as error:
                failure = error
            except RegistryError as error:
                if not (resumed and error.status in _BAD_SESSION):
                    raise
                location, held, failure = "", 0, TransientError(error.problems[0], error.status)
            if held > farthest:
                pauses, farthest = iter(PAUSES), held
            self.pause(pauses, failure)
        self.has_blob(digest, size)  # docker-registry keeps what it had, and says that it stored the blob

    def _resumed(self, location: str, size: int) -> tuple[str, int]:
        """Where a session goes on, and how much it holds; nothing where it can't say. Raises TransientError."""
        try:
            answer = self.send("GET", location)
        except TransientError:
            raise
        except RegistryError:
            return "", 0
        found = re.fullmatch(r"(?:bytes=)?0-(\d+)", answer.headers.get("Range", "").strip())
        last = int(found[1]) if found else 0  # `0-0` is what registries say of an empty one, too
        return (_following(answer, location), last + 1) if 0 < last < size else ("", 0)

    def _start_upload(self, query: str = "") -> str:
        """Where to send a blob; empty when a mount made sending needless."""
        answer = self.send("POST", f"blobs/uploads/{query}", headers={"Content-Length": "0"})
        if answer.status_code == requests.codes.created:
            return ""
        return urljoin(answer.url, answer.headers.get("Location", ""))

    def _cancel_upload(self, location: str) -> None:
        try:
            self.send("DELETE", location)
        except RegistryError:
            return  # registries remove unfinished uploads themselves after a while

    def _invalid(self, identifier: str, cause: str) -> RegistryError:
        where = str(Reference(self.repository, identifier))
        return RegistryError(Problem(where=where, cause=cause, then="don't use it; tell who runs the registry"))


@dataclass(frozen=True)
class _Rest:
    """The body of a request, in the form that requests streams: it can be iterated again, after a redirect say."""

    chunks: Chunks
    offset: int
    size: int

    def __len__(self) -> int:
        return self.size - self.offset

    def __iter__(self) -> Iterator[bytes]:
        return self.chunks(self.offset)


def _following(answer: requests.Response, location: str) -> str:
    """Where a session goes on after an answer."""
    named = answer.headers.get("Location")
    return urljoin(answer.url, named) if named else location
