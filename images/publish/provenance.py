"""How an image came to be, as an in-toto statement with SLSA's provenance predicate (slsa.dev/spec/v1.0/provenance)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from images.config.names import ImageName
from images.host.hashing import sha256

MEDIA_TYPE = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "https://truetag.dev/build/v1"
"""Names the form of `externalParameters` below; docs/publishing.md describes it."""
_BASE = "base:"


@dataclass(frozen=True, kw_only=True)
class Made:
    """What is known of a build."""

    name: ImageName
    repository: str
    digest: str
    """`sha256:...` of the manifest: what is pulled."""
    image_id: str
    """`sha256:...` of the configuration: what was judged."""
    revision: str
    """Of matrix and facts."""
    source: str
    """The checkout's commit, empty where there is none."""
    locks: Mapping[str, bytes]
    """Path below the project's root -> content."""
    build: Mapping[str, Any]
    """build.json as `nox -s build` wrote it."""
    created: str


def statement(made: Made) -> bytes:
    """The statement about one image. Pure."""
    build = made.build
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"name": str(made.name), "matrixRevision": made.revision},
            "internalParameters": {"missing": dict(build.get("missing") or {})},
            "resolvedDependencies": [*_sources(made), _base(build["base"]), *_wheels(build.get("wheels") or {})],
        },
        "runDetails": {
            "builder": {"id": f"{BUILD_TYPE}/docker-engine", "version": {"engine": str(build["engine"]["version"])}},
            "metadata": {"finishedOn": made.created},
            "byproducts": [{"name": "image-id", "digest": _digest(made.image_id)}],
        },
    }
    subject = [{"name": made.repository, "digest": _digest(made.digest)}]
    content = {"_type": STATEMENT, "subject": subject, "predicateType": PREDICATE, "predicate": predicate}
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


def _sources(made: Made) -> list[dict[str, Any]]:
    locks = [{"name": path, "digest": {"sha256": sha256(content)}} for path, content in sorted(made.locks.items())]
    return [{"name": "checkout", "digest": {"gitCommit": made.source}}, *locks] if made.source else locks


def _base(base: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {"name": f"{_BASE}{base['reference']}", "annotations": {"origin": base["origin"]}}
    return {**found, "digest": _digest(base["digest"])} if base.get("digest") else found


def _wheels(wheels: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "digest": _digest(digest)} for name, digest in sorted(wheels.items())]


def _digest(text: str) -> dict[str, str]:
    algorithm, _, value = text.rpartition(":")
    return {algorithm or "sha256": value}


def read(content: bytes) -> dict[str, str]:
    """Its `digest`, `matrix-revision` and `base-digest`. Raises ValueError, LookupError, TypeError."""
    found: Any = json.loads(content)
    if (found["_type"], found["predicateType"]) != (STATEMENT, PREDICATE):
        raise ValueError(f"it is a {found['predicateType']} in a {found['_type']}")
    definition = found["predicate"]["buildDefinition"]
    bases = [row for row in definition["resolvedDependencies"] if row["name"].startswith(_BASE)]
    return {
        "digest": _joined(found["subject"][0]["digest"]),
        "matrix-revision": str(definition["externalParameters"]["matrixRevision"]),
        "base-digest": _joined(bases[0].get("digest") or {}) if bases else "",
    }


def _joined(digest: Mapping[str, str]) -> str:
    return ",".join(f"{algorithm}:{value}" for algorithm, value in digest.items())
