"""Writes an image's configuration anew, and says what a recorded verdict is about. Pure.

An engine writes the time of the build into a configuration, and each version has its own words for
the steps. So the same layers have another configuration, and another digest of it, on each machine.
What BuildKit made is therefore written anew, over the same layers (OCI image specification,
config.md): every build that gives these layers and settings then has the same digest.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from images.engine.runtime import FURTHER, ImageInfo
from images.host.hashing import oci_digest
from images.planning.user_overlay import INSTALLERS_ONLY
from images.registry.distribution import (
    OCI_CONFIG,
    Descriptor,
    Manifest,
    image_manifest,
    index,
)

CREATED = "2024-01-01T00:00:00Z"
"""The date of every image and step: that of the files that a build writes
(images/context/templates.py, EPOCH)."""
SUITE = "suite"
"""The layer with the suite and the commands to add packages. It changes with this project, so it is
not compared if it holds nothing else (layers.read_layers)."""
ABOVE = "above"
"""A layer of a step that is not ours, in an image that somebody built on one of ours."""
SETTINGS = "settings"
"""The name of the settings beside the layers: variables, user, folder, entrypoint and command."""

_SETTINGS_WRITTEN = ("User", "Env", "Entrypoint", "Cmd", "WorkingDir", "Labels", *FURTHER)
_INSTRUCTIONS_WITHOUT_LAYER = frozenset(
    (
        *("ARG", "CMD", "ENTRYPOINT", "ENV", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER"),
        *("ONBUILD", "SHELL", "STOPSIGNAL", "USER", "VOLUME"),
    )
)
_LAST_STEPS = ("WORKDIR /workspace", 'CMD ["bash"]')
"""How our Dockerfiles end (templates/stages/image.j2)."""
_OCI_LAYER_TYPES = {
    "application/vnd.docker.image.rootfs.diff.tar": "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip": (
        "application/vnd.oci.image.layer.v1.tar+gzip"
    ),
}
"""Docker's media type of a layer -> the one of the OCI image specification for the same bytes."""
_STEP_OF_LAYER = re.compile(
    r"/run/locks/([\w-]+)\.txt|/run/wheels/([\w.]+)-|/run/scripts/(debian|compilers|suite)\.sh"
    r"|/run/(toolkit|entrypoint)\b|^(WORKDIR) /workspace$"
)
"""What a step of our Dockerfiles has in its text, with the name of its layer in a group."""


def normal_step(text: str) -> str:
    """Return a step of a history in one form, without the words that only some builders add."""
    return " ".join(text.removeprefix("/bin/sh -c #(nop)").removesuffix("# buildkit").split())


def has_layer(text: str) -> bool:
    """Return whether a step of a history made a layer. WORKDIR makes one in BuildKit."""
    return normal_step(text).partition(" ")[0] not in _INSTRUCTIONS_WITHOUT_LAYER


def canonical_bytes(inspected: Mapping[str, Any], steps: Sequence[str]) -> bytes | None:
    """Return an image's configuration as JSON that is equal wherever the same image is built.

    It has fixed dates, sorted keys, and steps without the words that only some builders add. None
    if the steps do not match the layers, as with a base of another builder.

    `inspected`: the engine's answer about the image (`docker image inspect`). `steps`: the texts of
    its history, the first step first.
    """
    layers = inspected["RootFS"]["Layers"]
    if len([text for text in steps if has_layer(text)]) != len(layers):
        return None

    # Only what is set: the answer may have null, or an empty value, for the rest.
    settings = {}
    for key in _SETTINGS_WRITTEN:
        if inspected["Config"].get(key):
            settings[key] = inspected["Config"][key]
    history = []
    for text in steps:
        row: dict[str, Any] = {"created": CREATED, "created_by": normal_step(text)}
        if not has_layer(text):
            row["empty_layer"] = True
        history.append(row)
    content = {
        "architecture": inspected["Architecture"],
        "os": "linux",
        "created": CREATED,
        "config": settings,
        "history": history,
        "rootfs": {"type": "layers", "diff_ids": layers},
    }
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def docker_archive(config: bytes, diff_ids: Sequence[str], name: str) -> dict[str, bytes]:
    """Return the files of an archive that gives layers of the classic store this configuration.

    The archive is that of `docker save` before version 25, but has no layers: the store finds them
    by their diff IDs. `name` is that of the image, with its tag.
    """
    layers = [f"{diff_id.removeprefix('sha256:')}/layer.tar" for diff_id in diff_ids]
    manifest = {"Config": "config.json", "RepoTags": [name], "Layers": layers}
    return {"config.json": config, "manifest.json": json.dumps([manifest]).encode()}


def oci_layout(config: bytes | None, built: Manifest, name: str) -> dict[str, bytes]:
    """Return an archive (path -> content) that gives an image a new configuration and a name.

    It is for `docker load`. It has no layers, as Docker has those of the image already. It is an
    OCI image layout (OCI image specification, image-layout.md): index.json has the name and the
    digest of a manifest, and the manifest has the digests of the configuration and of the layers.

    config: the new configuration; None: the image keeps its own, and so its manifest.
    built: the manifest of the image as it was built. A new manifest has the same layers.
    name: the image's name with its tag, `REPOSITORY:TAG`.
    """
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}
    manifest = built
    if config is not None:
        # The build's manifest may be in Docker's format. The new one is OCI's, and so are the media
        # types of its layers.
        layers = []
        for blob in built.layers:
            media_type = _OCI_LAYER_TYPES.get(blob.media_type, blob.media_type)
            layers.append(Descriptor(media_type=media_type, digest=blob.digest, size=blob.size))
        manifest = image_manifest(Descriptor.of(OCI_CONFIG, config), layers)
        # A digest `sha256:HEX` is the file blobs/sha256/HEX.
        files[f"blobs/{oci_digest(config).replace(':', '/')}"] = config
    files[f"blobs/{manifest.digest.replace(':', '/')}"] = manifest.content

    # containerd gives the image that it loads the name in the first annotation
    # (images/annotations.go), which is the full one: `docker.io/library/NAME:TAG`.
    repository, _, tag = name.rpartition(":")
    domain_and_path = docker_reference(repository)
    annotations = {
        "io.containerd.image.name": f"{domain_and_path}:{tag}",
        "org.opencontainers.image.ref.name": tag,
    }
    entry = Descriptor.of(manifest.media_type, manifest.content, annotations=annotations)
    files["index.json"] = index([entry]).content
    return files


def docker_reference(repository: str) -> str:
    """Return the full name of a repository: `cu126-torch25` is `docker.io/library/cu126-torch25`.

    (github.com/distribution/reference, normalize.go.)
    """
    first, _, remainder = repository.partition("/")
    is_registry = "." in first or ":" in first or first == "localhost"
    if remainder and is_registry:
        return repository
    return f"docker.io/{repository}" if remainder else f"docker.io/library/{repository}"


def layer_name(step_text: str) -> str:
    """Return the name of the layer that a step of our Dockerfiles makes.

    Empty for any other step.
    """
    match = _STEP_OF_LAYER.search(normal_step(step_text))
    if match is None:
        return ""
    # Each alternative of the pattern has one group; that of the matching one is set.
    name: str = next(filter(None, match.groups()))
    return name.lower()


def layer_names(steps: Sequence[str]) -> list[str]:
    """Return a name for each layer, from the steps that made them, the lowest first.

    A step of our Dockerfiles has a name of its own, such as `suite` (`layer_name`; empty for other
    steps). A step of somebody else is `base` below the first of ours, and `above` after it. A name
    that occurs again gets a number: `base`, `base-2`.

    `steps`: the texts of the image's history, only of those steps that made a layer.
    """
    names: list[str] = []
    times = Counter[str]()
    has_step_of_ours = False
    for text in steps:
        name = layer_name(text)
        if name:
            has_step_of_ours = True
        else:
            name = ABOVE if has_step_of_ours else "base"
        times[name] += 1
        is_first_of_name = times[name] == 1
        names.append(name if is_first_of_name else f"{name}-{times[name]}")
    return names


def layer_sizes(history: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Return the unpacked size of each layer in bytes, by its name (`layer_names`).

    `history`: each step of the image's history with the bytes that it added, the first step first.
    """
    with_layer = [(text, size) for text, size in history if has_layer(text)]
    names = layer_names([text for text, _size in with_layer])
    return dict(zip(names, [size for _text, size in with_layer], strict=True))


def payload(info: ImageInfo, steps: Sequence[str]) -> dict[str, str]:
    """Return what a verdict about an image (whether it is valid) is about: layers and settings.

    That is name of the layer -> diff ID, the lowest first (`layer_names`), and `settings` -> a
    digest of all settings. Labels are left out: they change with this project. An empty dict if the
    steps do not match the layers.

    `steps`: the texts of the image's history, the first step first.
    """
    steps_with_layer = [text for text in steps if has_layer(text)]
    if len(steps_with_layer) != len(info.layers):
        return {}
    layers = dict(zip(layer_names(steps_with_layer), info.layers, strict=True))
    variables = {name: value for name, value in info.env.items() if name not in INSTALLERS_ONLY}
    settings: list[Any] = [
        sorted(variables.items()),
        info.user,
        info.workdir,
        info.entrypoint,
        info.command,
    ]
    # Images of ours have none of these settings, and their digests were recorded before this list
    # had a place for them.
    if info.further:
        settings.append(info.further)
    return {**layers, SETTINGS: oci_digest(json.dumps(settings, sort_keys=True).encode())}


def steps_above(steps: Sequence[str]) -> tuple[str, ...]:
    """Return the build steps that somebody put on top of one of our images, the first first.

    `steps`: the texts of all steps in an image's history, the first first. Empty if nothing is on
    top, or if the image has no steps of ours.
    """
    instructions = [normal_step(text) for text in steps]
    # Our steps end where _LAST_STEPS, the last instructions of our Dockerfiles, occur for the first
    # time. They may occur again above, because a derived image may end in the same way.
    for end in range(len(_LAST_STEPS), len(instructions) + 1):
        if tuple(instructions[end - len(_LAST_STEPS) : end]) == _LAST_STEPS:
            return tuple(steps[end:])
    return ()
