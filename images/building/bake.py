"""docker-bake.json: rendered contexts as the input of `docker buildx bake`, for remote and Kubernetes builders. Pure.

Caches, attestations and other outputs are buildx's own affair: `docker buildx bake --set '*.cache-to=...'`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from images.planning.image import Image

FILE = "docker-bake.json"


def bake(images: Sequence[Image], repository: str = "") -> dict[str, Any]:
    """The content of docker-bake.json: a target an image, a group a profile. Contexts are `NAME/context` beside it.

    Images are tagged `NAME-candidate`: only a validation run gives the name. `repository`: where they are pushed;
    empty: into the engine that buildx works for.
    """
    groups: dict[str, list[str]] = {"default": [str(image.name) for image in images]}
    for image in images:
        groups.setdefault(f"profile-{image.profile or 'none'}", []).append(str(image.name))
    return {
        "group": {name: {"targets": members} for name, members in groups.items()},
        "target": {str(image.name): _target(image, repository) for image in images},
    }


def _target(image: Image, repository: str) -> dict[str, Any]:
    return {
        "context": f"{image.name}/context",
        "dockerfile": "Dockerfile",
        "platforms": [str(image.platform)],
        "tags": [f"{repository}:{image.name}-candidate" if repository else f"{image.local_name}-candidate"],
        "output": ["type=registry" if repository else "type=docker"],
        # With BuildKit's own attestation the push would be an index of two manifests, which `publish` refuses.
        "attest": ["type=provenance,disabled=true"],
    }
