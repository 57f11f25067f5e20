"""Names of published images: repositories, tags and digests. Pure."""

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
    """`HOST/NAME` of a registry."""

    host: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `ghcr.io/me/images` or `127.0.0.1:5000/staging`. Raises UserError."""
        match = _HOST.fullmatch(text)
        # Docker's rule: without a dot or a port, and not `localhost`, it is a name on Docker Hub.
        is_host = match and (
            "." in match["host"] or ":" in match["host"] or match["host"] == "localhost"
        )
        if not match or not is_host or not _NAME.fullmatch(match["path"]):
            raise wrong(
                text, "is no repository of a registry", "write HOST[:PORT]/NAME, in lower case"
            )
        return cls(match["host"], match["path"])

    @property
    def api_host(self) -> str:
        """The host that serves the distribution API."""
        return _DOCKER_HUB_API if self.host == DOCKER_HUB else self.host

    def __str__(self) -> str:
        return f"{self.host}/{self.name}"


@dataclass(frozen=True)
class Reference:
    """`HOST/NAME:TAG` or `HOST/NAME@DIGEST`. `identifier` is the tag or the digest."""

    repository: Repository
    identifier: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a reference; a tag beside a digest is ignored. Raises UserError."""
        head, at, digest = text.partition("@")
        name, colon, tag = head.rpartition(":")
        tagged = bool(colon) and "/" not in tag
        identifier = digest if at else tag if tagged else ""
        if not (_DIGEST if at else _TAG).fullmatch(identifier):
            raise wrong(text, "names no image", "write HOST/NAME:TAG or HOST/NAME@sha256:...")
        return cls(Repository.parse(name if tagged else head), identifier)

    def __str__(self) -> str:
        return f"{self.repository}{'@' if is_digest(self.identifier) else ':'}{self.identifier}"


def is_digest(text: str) -> bool:
    """Whether a text is `sha256:` and 64 hexadecimal digits."""
    return _DIGEST.fullmatch(text) is not None


def is_loopback(host: str) -> bool:
    """Whether `HOST[:PORT]` is this machine."""
    name = re.sub(r":\d+$", "", host).strip("[]")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
