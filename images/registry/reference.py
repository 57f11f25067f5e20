"""Parse the names of published images: repositories, tags and digests."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Self

from images.errors import wrong

DOCKER_HUB = "docker.io"
_DOCKER_HUB_API = "registry-1.docker.io"
_HOST = re.compile(
    r"(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*(?::\d{1,5})?|\[[0-9a-fA-F:]+\](?::\d{1,5})?)/(?P<path>.+)"
)
_NAME = re.compile(
    r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*"
)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Repository:
    """A repository in a registry, written `HOST/NAME`."""

    host: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `ghcr.io/me/images` or `127.0.0.1:5000/staging`.

        Raises UserError for a text without a host (`me/images`) or with a malformed name.
        """
        # Two groups: `host`, up to the first slash, and `path`, the rest.
        match = _HOST.fullmatch(text)
        host = match["host"] if match else ""
        path = match["path"] if match else ""
        # Docker's rule: without a dot, a port or `localhost`, it is a name on Docker Hub.
        is_host = "." in host or ":" in host or host == "localhost"
        if not is_host or not _NAME.fullmatch(path):
            then = "write HOST[:PORT]/NAME in lower case: ghcr.io/me/images, for example"
            raise wrong(text, "this is no repository of a registry", then)
        return cls(host, path)

    @property
    def api_host(self) -> str:
        """Return the host that serves its API: Docker Hub has another one than in its names."""
        return _DOCKER_HUB_API if self.host == DOCKER_HUB else self.host

    def __str__(self) -> str:
        return f"{self.host}/{self.name}"


@dataclass(frozen=True)
class Reference:
    """The name of an image in a registry: `HOST/NAME:TAG` or `HOST/NAME@DIGEST`."""

    repository: Repository
    identifier: str
    """The tag or the digest."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `HOST/NAME:TAG` or `HOST/NAME@DIGEST`. A tag before a digest is ignored.

        Raises UserError for a text with neither tag nor digest, and for a malformed name.
        """
        name, at_sign, digest = text.partition("@")
        before_colon, colon, tag = name.rpartition(":")
        # In `localhost:5000/images`, the colon belongs to the port.
        has_tag = bool(colon) and "/" not in tag
        if has_tag:
            name = before_colon

        if at_sign:
            identifier = digest
            is_valid = is_digest(digest)
        else:
            identifier = tag
            is_valid = has_tag and _TAG.fullmatch(tag) is not None
        if not is_valid:
            cause = "this has neither a tag nor a whole digest, so it names no image"
            then = "write HOST/NAME:TAG (ghcr.io/me/images:latest, say) or HOST/NAME@sha256:DIGEST"
            raise wrong(text, cause, then)
        return cls(Repository.parse(name), identifier)

    def __str__(self) -> str:
        separator = "@" if is_digest(self.identifier) else ":"
        return f"{self.repository}{separator}{self.identifier}"


def is_digest(text: str) -> bool:
    """Return whether a text is `sha256:` and 64 hexadecimal digits."""
    return _DIGEST.fullmatch(text) is not None


def is_loopback(host: str) -> bool:
    """Return whether `HOST` or `HOST:PORT` is this machine."""
    name = re.sub(r":\d+$", "", host).strip("[]")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
