"""What a Dockerfile needs to know of the base image that it stands on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Origin(StrEnum):
    """Where a base came from. Stands in the image's labels."""

    DIGEST = "digest"
    TAG = "tag"
    BOOTSTRAPPED = "bootstrapped"
    CUSTOM = "custom"


@dataclass(frozen=True, kw_only=True)
class BaseContext:
    """What the image is built on, as far as the Dockerfile must know."""

    reference: str
    """What stands after FROM."""
    origin: str
    """Where the base came from: digest, tag, bootstrapped, custom."""
    digest: str = ""
    executable: str = "/opt/venv/bin/python"
    """The interpreter that packages are installed for."""
    environment: str = "/opt/venv"
    python: bool = False
    """The base brings its own Python and packages."""
    kept: frozenset[str] = frozenset()
    """Canonical names of packages that the base has and that stay as they are."""
