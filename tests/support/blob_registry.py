"""A registry in memory: uploads in parts, mounts, and no manifest before its blobs."""

import json
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from images.host.hashing import oci_digest
from tests.support.http_server import Reply


@dataclass
class BlobRegistry:
    """A registry whose `answer` is for `Server.answer` (http_server.py).

    Tests look at what it stores. Through `before` they make requests fail.
    """

    blobs: defaultdict[str, dict[str, bytes]] = field(default_factory=lambda: defaultdict(dict))
    """Repository -> digest -> content."""
    manifests: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """`REPOSITORY:TAG`, `REPOSITORY:DIGEST` -> media type, content."""
    before: Callable[[str, str], Reply | bool | None] = lambda *_: True
    """Method, path -> a reply in place of the registry's own; None: the connection drops; True: the
    registry answers."""
    received: int = 0
    """Bytes of all uploads, also of those that were never finished."""
    _sessions: dict[str, bytes] = field(default_factory=dict)

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Reply | None:
        """Return the reply to a request; None: drop the connection."""
        instead = self.before(method, path)
        if not isinstance(instead, bool):
            return instead

        url = urlsplit(path)
        tags_list = re.fullmatch(r"/v2/(.+?)/tags/list", url.path)
        if tags_list:
            return 200, {}, json.dumps({"tags": sorted(self.tags(tags_list[1]))}).encode()
        target = re.fullmatch(r"/v2/(.+?)/(blobs/uploads|blobs|manifests|referrers)/(.*)", url.path)
        if not target:
            return 200, {}, b"{}"
        repository, kind, last = target.groups()
        if kind == "manifests":
            return self._manifest(method, f"{repository}:{last}", headers, body)
        if kind == "blobs/uploads":
            return self._upload(method, repository, last, parse_qs(url.query), body)
        # It has no referrers API: clients fall back to a tag.
        blob = None if kind == "referrers" else self.blobs[repository].get(last)
        return (404, {}, b"") if blob is None else (200, {}, blob)

    def _manifest(self, method: str, name: str, headers: dict[str, str], body: bytes) -> Reply:
        """Store, return or delete a manifest. `name`: `REPOSITORY:TAG` or `REPOSITORY:DIGEST`."""
        repository = name.partition(":")[0]
        if method == "PUT":
            manifest = json.loads(body)
            # An index has no blobs of its own.
            blobs = [manifest["config"], *manifest["layers"]] if "config" in manifest else []
            if not all(blob["digest"] in self.blobs[repository] for blob in blobs):
                return 404, {}, b'{"errors": [{"code": "MANIFEST_BLOB_UNKNOWN"}]}'
            for key in (name, f"{repository}:{oci_digest(body)}"):
                self.manifests[key] = (headers["Content-Type"], body)
            return 201, {}, b""
        if method == "DELETE":
            return (202 if self.manifests.pop(name, None) else 404), {}, b""
        media_type, content = self.manifests.get(name, ("", b""))
        return (200, {"Content-Type": media_type}, content) if content else (404, {}, b"")

    def _upload(
        self, method: str, repository: str, last: str, query: dict[str, list[str]], body: bytes
    ) -> Reply:
        """Begin, go on with or finish an upload. `last`: the session, empty if none has begun."""
        if method == "POST":
            # A blob of another repository may be mounted in place of an upload.
            (digest,), (source,) = query.get("mount", [""]), query.get("from", [""])
            mounted = self.blobs[source].get(digest) if source else None
            if mounted:
                self.blobs[repository][digest] = mounted
                return 201, {}, b""
            session = f"s{len(self._sessions)}"
            self._sessions[session] = b""
            return 202, {"Location": f"/v2/{repository}/blobs/uploads/{session}"}, b""
        if last not in self._sessions:
            return 404, {}, b""
        self._sessions[last] += body
        self.received += len(body)
        content = self._sessions[last]
        if method == "PUT":
            (digest,) = query["digest"]
            if oci_digest(content) != digest:
                return 400, {}, b'{"errors": [{"code": "DIGEST_INVALID"}]}'
            self.blobs[repository][digest] = content
            return 201, {}, b""
        return 202, {"Range": f"0-{max(len(content) - 1, 0)}"}, b""

    def tags(self, repository: str) -> set[str]:
        """Return the tags of a repository."""
        tags = set()
        for name in self.manifests:
            own_repository, _, tag = name.partition(":")
            if own_repository == repository and not tag.startswith("sha256:"):
                tags.add(tag)
        return tags
