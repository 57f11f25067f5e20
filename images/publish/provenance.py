"""Provenance of an image: SLSA's predicate (slsa.dev/spec/v1.0/provenance)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from images.config.names import ImageName
from images.errors import command, failed

BUILD_TYPE = "https://truetag.dev/build/v1"
"""Names the form of `externalParameters` below; docs/publishing.md describes it."""
_BASE = "base:"


def read_build_record(folder: Path, name: str, image_id: str) -> dict[str, Any]:
    """A folder's build.json. Raises UserError when it is not of this very image, or lacks what the provenance says."""
    path = folder / "build.json"
    then = f"publish first where `{command('build', name)}` was run (its folder holds build.json), with the same options"
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
        digest, _ = (
            found["digest"],
            (found["base"]["reference"], found["base"]["origin"], found["engine"]["version"]),
        )
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise failed(str(path), f"the record of the build can't be read: {error!r}", then) from None
    if digest != image_id:
        raise failed(str(path), "is the record of another build", then)
    return found


def predicate(
    build: Mapping[str, Any], *, name: ImageName, revision: str, created: str
) -> dict[str, Any]:
    """What one image was built from, and how. Pure.

    `build`: a build.json; its `commit` is empty where none says all, and older ones have neither that nor `locks`.
    `revision`: of matrix and facts.
    """
    base = {
        "name": f"{_BASE}{build['base']['reference']}",
        "annotations": {"origin": build["base"]["origin"]},
    }
    digest = build["base"].get("digest")
    dependencies = [
        *(
            [{"name": "checkout", "digest": {"gitCommit": build["commit"]}}]
            if build.get("commit")
            else []
        ),
        *(
            {"name": path, "digest": _digest(its)}
            for path, its in sorted(build.get("locks", {}).items())
        ),
        {**base, "digest": _digest(digest)} if digest else base,
        *(
            {"name": wheel, "digest": _digest(its)}
            for wheel, its in sorted(build.get("wheels", {}).items())
        ),
    ]
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"name": str(name), "matrixRevision": revision},
            "internalParameters": {"missing": build.get("missing", {})},
            "resolvedDependencies": dependencies,
        },
        "runDetails": {
            "builder": {
                "id": f"{BUILD_TYPE}/docker-engine",
                "version": {"engine": build["engine"]["version"]},
            },
            "metadata": {"finishedOn": created},
            "byproducts": [{"name": "image-id", "digest": _digest(build["digest"])}],
        },
    }


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
