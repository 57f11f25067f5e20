"""One tag for several platforms: an OCI index of the images of a row of the matrix, one a platform.

It lists an image only where the image's own attestations open the gate, and only beside the one for linux/amd64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from images.config.names import ImageName
from images.config.platforms import Platform
from images.errors import Problem, UserError
from images.publish import attachments
from images.publish.attachments import PublishedImage
from images.publish.checks import Check
from images.registry import distribution
from images.registry.client import Registry
from images.registry.distribution import Manifest


def compose(images: Sequence[PublishedImage]) -> Manifest:
    """The index of some images, linux/amd64 first. The same images give the same bytes."""
    ranked = sorted(images, key=lambda image: (image.platform != Platform.AMD64, image.platform))
    return distribution.index([replace(image.manifest.descriptor, platform=image.platform) for image in ranked])


def load(source: Registry, manifest: Manifest) -> tuple[PublishedImage, ...]:
    """The images of an index, with what is attached to them; of another manifest, the image. Raises UserError."""
    if not manifest.is_index:
        return (attachments.load(source, manifest),)
    if not manifest.manifests:
        where = f"{source.repository}@{manifest.digest}"
        raise UserError(Problem(where=where, cause="is an empty index", then="publish its images anew"), code=1)
    return tuple(attachments.load(source, source.get(entry.digest)) for entry in manifest.manifests)


def select(source: Registry, manifest: Manifest, platform: str) -> Manifest:
    """The image for a platform, where a tag names an index; else what it names. Raises UserError where it has none."""
    if not manifest.is_index:
        return manifest
    for entry in manifest.manifests:
        if entry.platform == platform:
            return source.get(entry.digest)
    where, cause = f"{source.repository}@{manifest.digest}", f"the index has no image for {platform}"
    raise UserError(Problem(where=where, cause=cause, then=f"publish the image for {platform}"), code=1)


def is_complete(images: Sequence[PublishedImage]) -> bool:
    """Whether there may be an index of them: without linux/amd64 most readers of its tag would get nothing."""
    return any(image.platform == Platform.AMD64 for image in images)


def check(manifest: Manifest, images: Sequence[PublishedImage]) -> Check:
    """An index against the images that it lists. Pure."""
    platforms = [entry.platform for entry in manifest.manifests]
    faults = [f"two images are for {one}" for one in sorted({one for one in platforms if platforms.count(one) > 1})]
    faults += [
        f"{image.manifest.digest[:19]} is listed for {platform or 'no platform'}, and is for {image.platform or 'none'}"
        for platform, image in zip(platforms, images, strict=True)
        if platform != image.platform
    ]
    rows = {_row_name(image) for image in images}
    if len(rows) > 1 or "" in rows:
        called = ", ".join(image.name or "nothing" for image in images)
        faults.append(f"its images are not one row of the matrix: they are called {called}")
    if not is_complete(images):
        faults.append(f"it has no image for {Platform.AMD64}")
    return Check.of("index", faults, f"of {', '.join(sorted(rows))}: {', '.join(platforms)}, each as it is labelled")


def _row_name(image: PublishedImage) -> str:
    """The row of an image: its name without the platform. Empty where its label is no name for its platform."""
    try:
        name = ImageName.parse(image.name)
    except UserError:
        return ""
    return str(replace(name, platform=Platform.AMD64)) if name.platform == image.platform else ""
