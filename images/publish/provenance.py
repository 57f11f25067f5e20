"""Provenance of an image: SLSA's predicate (slsa.dev/spec/v1.0/provenance)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from images.config.names import ImageName
from images.errors import Problem, UserError, command
from images.host.hashing import sha256

BUILD_TYPE = "https://truetag.dev/build/v1"
"""Names the form of `externalParameters` below; docs/publishing.md describes it."""
_BASE = "base:"


class BaseRecord(BaseModel):
    """The base image of a build. `digest` is empty where it was made on the machine."""

    reference: str
    origin: str
    digest: str = ""


class EngineRecord(BaseModel):
    """The engine that built."""

    version: str


class BuildRecord(BaseModel):
    """build.json, as far as the provenance has it."""

    digest: str
    base: BaseRecord
    engine: EngineRecord
    wheels: dict[str, str] = {}
    """File name -> sha256 of the wheels that no index has."""
    missing: dict[str, str] = {}
    """What the image goes without -> why."""


@dataclass(frozen=True, kw_only=True)
class ProvenanceInput:
    """What a statement is written from."""

    name: ImageName
    image_id: str
    """`sha256:...` of the configuration: what was judged."""
    revision: str
    """Of matrix and facts."""
    source: str
    """The checkout's commit, empty where there is none."""
    locks: Mapping[str, bytes]
    """Path below the project's root -> content."""
    build: BuildRecord
    created: str


def read_build_record(folder: Path, name: str, image_id: str) -> BuildRecord:
    """Read a folder's build.json. Raises UserError when it is not of this very image."""
    path = folder / "build.json"
    then = (
        f"publish first where `{command('build', name)}` was run (its folder holds build.json), with the same options"
    )
    try:
        found = BuildRecord.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        cause = f"the record of the build can't be read: {error}"
        raise UserError(Problem(where=str(path), cause=cause, then=then), code=1) from None
    if found.digest != image_id:
        raise UserError(Problem(where=str(path), cause="is the record of another build", then=then), code=1)
    return found


def predicate(given: ProvenanceInput) -> dict[str, Any]:
    """What one image was built from, and how. Pure."""
    build = given.build
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"name": str(given.name), "matrixRevision": given.revision},
            "internalParameters": {"missing": build.missing},
            "resolvedDependencies": [*_sources(given), _base(build.base), *_wheels(build.wheels)],
        },
        "runDetails": {
            "builder": {"id": f"{BUILD_TYPE}/docker-engine", "version": {"engine": build.engine.version}},
            "metadata": {"finishedOn": given.created},
            "byproducts": [{"name": "image-id", "digest": _digest(given.image_id)}],
        },
    }


def _sources(given: ProvenanceInput) -> list[dict[str, Any]]:
    locks = [{"name": path, "digest": {"sha256": sha256(content)}} for path, content in sorted(given.locks.items())]
    return [{"name": "checkout", "digest": {"gitCommit": given.source}}, *locks] if given.source else locks


def _base(base: BaseRecord) -> dict[str, Any]:
    found: dict[str, Any] = {"name": f"{_BASE}{base.reference}", "annotations": {"origin": base.origin}}
    return {**found, "digest": _digest(base.digest)} if base.digest else found


def _wheels(wheels: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "digest": _digest(digest)} for name, digest in sorted(wheels.items())]


def _digest(text: str) -> dict[str, str]:
    algorithm, _, value = text.rpartition(":")
    return {algorithm or "sha256": value}


def read(predicate: Mapping[str, Any]) -> dict[str, str]:
    """Its `matrix-revision` and `base-digest`. Raises LookupError, TypeError, AttributeError."""
    definition = predicate["buildDefinition"]
    bases = [row for row in definition["resolvedDependencies"] if row["name"].startswith(_BASE)]
    digest: Mapping[str, str] = (bases[0].get("digest") or {}) if bases else {}
    return {
        "matrix-revision": str(definition["externalParameters"]["matrixRevision"]),
        "base-digest": ",".join(f"{algorithm}:{value}" for algorithm, value in digest.items()),
    }
