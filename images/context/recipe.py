"""Computes recipes: a recipe is a digest of everything that decides the bytes of a layer. Pure.

Two builds of one recipe must give the same layer, whatever engine and machine build it. So a layer
that is recorded for its recipe (locks/layers.json) proves the origin of every file in it.

A recipe covers the recipe of the layer below, the step as it is rendered, the platform, and what
the step mounts: other stages, and files of the build context (scripts, locks with the hashes of
wheels, wheels that no index has). The settings of the machine that builds are left out:
whichever mirror sends a file, the lock has its hash.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from images.config.platforms import Platform
from images.context.labels import BaseContext
from images.context.render import content_of, render
from images.engine import configuration
from images.engine.configuration import SETTINGS, SUITE
from images.host.hashing import sha256
from images.planning.image import Image

_MOUNT = re.compile(r"--mount=(\S+)")
_HOST_SETTINGS = "host"
"""The folder of the context with the certificates and index settings of the machine that builds."""
_MAKES_LAYER = ("RUN", "COPY", "ADD", "WORKDIR")
"""Instructions that make a layer in BuildKit."""
_LEFT_OUT = "LABEL"
"""Labels name revisions of the matrix, and other checks look at them."""


@dataclass(frozen=True, kw_only=True)
class LayerRecipe:
    """The recipe of one layer."""

    layer: str
    """Its name in a payload (images/engine/configuration.py)."""
    digest: str


@dataclass(frozen=True, kw_only=True)
class ImageRecipe:
    """The recipes of an image's layers, lowest first, and last that of its settings.

    The suite's layer has none.
    """

    layers: tuple[LayerRecipe, ...]

    @property
    def digest(self) -> str:
        """The recipe of the whole image: that of its settings, which covers all layers below."""
        return self.layers[-1].digest


class _BuiltLayer(NamedTuple):
    """A layer that an instruction makes."""

    step: str
    """The instruction, written as in an image's history."""
    recipe: str


@dataclass(kw_only=True)
class _Stage:
    """A stage of a Dockerfile, as far as its instructions were read."""

    state: str
    """The digest of all instructions so far."""
    layers: list[_BuiltLayer] = field(default_factory=list)


def image_recipe(
    image: Image,
    locks: Mapping[str, bytes],
    base: BaseContext,
    base_recipe: str,
    *,
    wheels: Mapping[str, str],
    missing: Mapping[str, str],
) -> ImageRecipe:
    """Return the recipe of an image that is built of these locks on this base.

    wheels: file name -> sha256, of wheels that no index has. missing: optional package -> why the
    image lacks it.
    """
    # Rendered without settings of this machine, and without the suite, which changes with this
    # project. The bytes of wheels are not needed: their digests are known.
    context = render(image, locks, base, wheels=dict.fromkeys(wheels, b""), missing=missing)
    digests = {path: sha256(content_of(content)) for path, content in context.items()}
    for name, digest in wheels.items():
        digests[f"wheels/{name}"] = digest
    return dockerfile_recipe(
        content_of(context["Dockerfile"]).decode(), digests, base_recipe, image.name.platform
    )


def dockerfile_recipe(
    dockerfile: str, files: Mapping[str, str], base: str, platform: Platform
) -> ImageRecipe:
    """Return the recipes of the layers of a Dockerfile's last stage, which is the image.

    A step's recipe is a digest of the steps before it, the platform, its text, and what it mounts.

    files: path in the context -> sha256. base: the recipe of the base image.
    """
    stages: dict[str, _Stage] = {}
    stage = _Stage(state=base)
    for keyword, text in instructions(dockerfile):
        if keyword == "FROM":
            # A stage begins with the layers of the stage, or of the base image, below it.
            below, _, name = text.partition(" AS ")
            if below in stages:
                stage = _Stage(state=stages[below].state, layers=list(stages[below].layers))
            else:
                stage = _Stage(state=base, layers=[_BuiltLayer("FROM", base)])
            stages[name] = stage
            continue
        # An image's history has steps without their mounts.
        step = f"{keyword} {_MOUNT.sub('', text)}"
        # Labels and the suite decide about no other file.
        if keyword == _LEFT_OUT or configuration.layer_name(step) == SUITE:
            continue
        parts = [stage.state, str(platform), keyword, text, digests_of_mounts(text, files, stages)]
        # Every instruction counts for those after it, but only some make a layer.
        stage.state = sha256(json.dumps(parts, sort_keys=True).encode())
        if keyword in _MAKES_LAYER:
            stage.layers.append(_BuiltLayer(step, stage.state))

    names = configuration.layer_names([layer.step for layer in stage.layers])
    layers = []
    for name, layer in zip(names, stage.layers, strict=True):
        layers.append(LayerRecipe(layer=name, digest=layer.recipe))
    # The settings come last, so that their recipe covers the whole image.
    layers.append(LayerRecipe(layer=SETTINGS, digest=stage.state))
    return ImageRecipe(layers=tuple(layers))


class Instruction(NamedTuple):
    """An instruction of a Dockerfile: its keyword, and all else in one line with single spaces."""

    keyword: str
    text: str


def instructions(dockerfile: str) -> Iterator[Instruction]:
    """Yield the instructions of a Dockerfile, without comments and line breaks."""
    words: list[str] = []
    for line in dockerfile.splitlines():
        if line.lstrip().startswith("#") or not line.strip():
            continue
        words += line.removesuffix("\\").split()
        if not line.endswith("\\"):
            yield Instruction(keyword=words[0], text=" ".join(words[1:]))
            words = []


def digests_of_mounts(
    text: str, files: Mapping[str, str], stages: Mapping[str, _Stage]
) -> dict[str, str]:
    """Return the digest of everything that a step mounts, by path or `stage NAME`.

    The settings of the machine that builds are left out. `text` is the step without its keyword;
    `files` has the sha256 of each path in the context.
    """
    digests: dict[str, str] = {}
    for mount in _MOUNT.findall(text):
        options = {}
        for option in mount.split(","):
            name, _, value = option.partition("=")
            options[name] = value
        # Caches and tmpfs are no part of what a step is made of.
        if options.get("type") != "bind":
            continue
        source = options.get("source", "")
        if "from" in options:
            stage = options["from"]
            digests[f"stage {stage}"] = stages[stage].state
        elif source != _HOST_SETTINGS:
            for path, digest in files.items():
                if path == source or path.startswith(f"{source}/"):
                    digests[path] = digest
    return digests


def base_recipe(base: BaseContext, labels: Mapping[str, str]) -> str:
    """Return the recipe of a base: of what it was made of, or else of its digest.

    `labels` say what a base was made of (images/context/bootstrap.py).
    """
    made_of = dict(labels) if base.origin == "bootstrapped" else {"digest": base.digest}
    return sha256(json.dumps(made_of, sort_keys=True).encode())
