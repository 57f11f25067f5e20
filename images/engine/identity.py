"""Says what names an image, whichever engine holds it. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from images.registry.distribution import OCI_INDEX, OCI_MANIFEST, Manifest


@dataclass(frozen=True, kw_only=True)
class ImageIdentity:
    """What names an image, on every machine and in every registry.

    An engine's own ID of an image is another thing (`ImageInfo.handle`): the classic store takes
    the configuration's digest for it, the containerd image store that of the manifest or of the
    index.
    """

    configuration: str
    """The digest of its configuration, and so of its layers and settings. Evidence, recorded runs,
    labels, locks and attestations name an image by it."""
    manifest: str | None = None
    """The digest of its manifest, which names the layers as they are compressed. None if the engine
    has no manifest of it (the classic store)."""
    platform: str
    """`linux/amd64`, say."""


def choose_manifest(
    read_blob: Callable[[str], bytes | None], digest: str, platform: str
) -> Manifest | None:
    """Return the manifest that an image's digest leads to; None if it is not known.

    `digest` is that of a manifest, or of an index. A manifest lists the configuration and the
    layers of one image. An index lists manifests, one for each platform: the one for `platform`
    (`linux/amd64`) is taken. `read_blob` returns the content that has a digest; None if it is not
    known. Raises ValueError, LookupError or TypeError for content that is neither of the two.
    """
    content = read_blob(digest)
    if content is None:
        return None
    # The content says by its media type whether it is a manifest or an index. It may lack that
    # (image-spec, manifest.md): then the field `manifests` tells, which only an index has.
    fields = Manifest(media_type=OCI_MANIFEST, content=content).data
    guessed_type = OCI_INDEX if "manifests" in fields else OCI_MANIFEST
    media_type = str(fields.get("mediaType") or guessed_type)
    manifest = Manifest(media_type=media_type, content=content)
    if not manifest.is_index:
        return manifest
    for entry in manifest.manifests:
        # BuildKit's attestations are entries, too; their platform is `unknown/unknown`.
        if entry.platform == platform:
            return choose_manifest(read_blob, entry.digest, platform)
    return None


def platform_of_image(inspected: Mapping[str, Any]) -> str:
    """Return the platform in the engine's answer about an image."""
    return f"{inspected.get('Os') or 'linux'}/{inspected.get('Architecture') or ''}"
