"""A registry with repositories of their own: uploads in parts, mounts, and no manifest before its blobs."""

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
    """Its `answer` is for `Server.answer`. What it stores can be looked at; `before` may fail a request instead."""

    blobs: defaultdict[str, dict[str, bytes]] = field(default_factory=lambda: defaultdict(dict))
    """Repository -> digest -> content."""
    manifests: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """`REPOSITORY:TAG`, `REPOSITORY:DIGEST` -> media type, content."""
    before: Callable[[str, str], Reply | bool | None] = lambda *_: True
    """Method, path -> what is answered instead (None: nothing, the connection drops); True: go on."""
    received: int = 0
    """Bytes of blobs, also of those that never became one."""
    _sessions: dict[str, bytes] = field(default_factory=dict)

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Reply | None:
        instead = self.before(method, path)
        if not isinstance(instead, bool):
            return instead
        url = urlsplit(path)
        found = re.fullmatch(r"/v2/(.+?)/(blobs/uploads|blobs|manifests|referrers)/(.*)", url.path)
        if listed := re.fullmatch(r"/v2/(.+?)/tags/list", url.path):
            return 200, {}, json.dumps({"tags": sorted(self.tags(listed[1]))}).encode()
        if not found:
            return 200, {}, b"{}"
        repository, kind, last = found.groups()
        if kind == "manifests":
            return self._manifest(method, f"{repository}:{last}", headers, body)
        if kind == "blobs/uploads":
            return self._upload(method, repository, last, parse_qs(url.query), body)
        there = self.blobs[repository].get(last)
        return (404, {}, b"") if there is None or kind == "referrers" else (200, {}, there)

    def _manifest(self, method: str, name: str, headers: dict[str, str], body: bytes) -> Reply:
        repository = name.partition(":")[0]
        if method == "PUT":
            data = json.loads(body)
            held = [data["config"], *data["layers"]] if "config" in data else []
            named = [one["digest"] for one in held]
            if not all(digest in self.blobs[repository] for digest in named):
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
        if method == "POST":
            (digest,), (source,) = query.get("mount", [""]), query.get("from", [""])
            if content := self.blobs[source].get(digest) if source else None:
                self.blobs[repository][digest] = content
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
        """Names of manifests that are no digests."""
        names = [
            key.partition(":")[2] for key in self.manifests if key.partition(":")[0] == repository
        ]
        return {name for name in names if not name.startswith("sha256:")}
