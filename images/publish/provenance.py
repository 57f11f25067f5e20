"""Write and read the provenance of an image: what it was built from.

Its form is SLSA's predicate: slsa.dev/spec/v1.0/provenance.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from images.config.names import ImageName
from images.errors import command, failed

BUILD_TYPE = "https://truetag.dev/build/v1"
"""Names the form of `externalParameters` below; docs/publishing.md describes it."""
_BASE = "base:"
"""Prefix that marks the base image among the dependencies."""


def read_build_record(folder: Path, name: str, image_id: str) -> dict[str, Any]:
    """Return the content of a folder's build.json, in which `build` recorded what it built.

    `name` is the image's, `image_id` its ID (`sha256:...`). Raises UserError if the file cannot be
    read, if it lacks what a provenance needs, or if it is the record of another image.
    """
    path = folder / "build.json"
    build = command("build", name)
    then = (
        f"publish where `{build}` was run, or name the folder of that build, which holds its "
        "build.json, with --attestation; or build the image again, then publish it"
    )
    try:
        record: dict[str, Any] = json.loads(path.read_bytes())
        digest = record["digest"]
        # Raise here, and not in `make_predicate`, if the record lacks what a provenance needs.
        _ = record["base"]["reference"], record["base"]["origin"], record["engine"]["version"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise failed(str(path), f"the record of the build can't be read: {error!r}", then) from None
    if digest != image_id:
        cause = (
            f"this is the record of another build: it made {str(digest)[:19]}, and the image to be "
            f"published is {image_id[:19]}"
        )
        raise failed(str(path), cause, then)
    return record


def make_predicate(
    build: Mapping[str, Any], *, name: ImageName, revision: str, created: str
) -> dict[str, Any]:
    """Return the predicate of an image's provenance: what it was built from, and how.

    `build` is the content of its build.json, `revision` the label `matrix-revision` (a hash of the
    matrix that it was built from), and `created` the date to publish it with. The field names are
    SLSA's, and docs/publishing.md describes what they contain. Raises LookupError if `build` lacks
    what is needed: `read_build_record` looks for that.
    """
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"name": str(name), "matrixRevision": revision},
            "internalParameters": {"missing": build.get("missing", {})},
            "resolvedDependencies": list_dependencies(build),
        },
        "runDetails": {
            "builder": {
                "id": f"{BUILD_TYPE}/docker-engine",
                "version": {"engine": build["engine"]["version"]},
            },
            "metadata": {"finishedOn": created},
            "byproducts": [{"name": "image-id", "digest": as_digest(build["digest"])}],
        },
    }


def list_dependencies(build: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what an image was built from: the checkout, lock files, the base image, and wheels.

    Each is an entry with a `name` and a `digest`, as SLSA writes dependencies. `build` is the
    content of build.json. Its commit is empty if the checkout had other changes. Records of older
    releases have neither commit nor locks, and a base image that was built locally has no digest.
    """
    dependencies: list[dict[str, Any]] = []
    if build.get("commit"):
        dependencies.append({"name": "checkout", "digest": {"gitCommit": build["commit"]}})
    for path, digest in sorted(build.get("locks", {}).items()):
        dependencies.append({"name": path, "digest": as_digest(digest)})

    base: dict[str, Any] = {
        "name": f"{_BASE}{build['base']['reference']}",
        "annotations": {"origin": build["base"]["origin"]},
    }
    base_digest = build["base"].get("digest")
    if base_digest:
        base["digest"] = as_digest(base_digest)
    dependencies.append(base)

    for wheel, digest in sorted(build.get("wheels", {}).items()):
        dependencies.append({"name": wheel, "digest": as_digest(digest)})
    return dependencies


def as_digest(text: str) -> dict[str, str]:
    """Return `sha256:VALUE`, or a bare VALUE, as SLSA writes digests: `{"sha256": VALUE}`."""
    algorithm, _, value = text.rpartition(":")
    return {algorithm or "sha256": value}


def read_labels(predicate: Mapping[str, Any]) -> dict[str, str]:
    """Return the values that two labels of an image must have by its provenance.

    The labels are `matrix-revision` (a hash of the matrix it was built from) and `base-digest`; the
    latter is empty if the provenance names no base image by digest. `predicate` is the content of
    the provenance (SLSA). Raises LookupError, TypeError or AttributeError if it has another form.
    """
    definition = predicate["buildDefinition"]
    base_digests: list[str] = []
    for dependency in definition["resolvedDependencies"]:
        # The first dependency that is marked as a base: `list_dependencies` writes only one.
        if dependency["name"].startswith(_BASE):
            for algorithm, value in (dependency.get("digest") or {}).items():
                base_digests.append(f"{algorithm}:{value}")
            break
    return {
        "matrix-revision": str(definition["externalParameters"]["matrixRevision"]),
        "base-digest": ",".join(base_digests),
    }
