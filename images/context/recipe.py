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
from images.planning.user_overlay import INSTALLERS_ONLY

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
        """Digest of everything that decides the image's bytes: it covers the layers below, too."""
        return self.layers[-1].digest


class Instruction(NamedTuple):
    """An instruction of a Dockerfile: its keyword, and all else in one line with single spaces."""

    keyword: str
    text: str


class _BuiltLayer(NamedTuple):
    """A layer that an instruction makes."""

    step: str
    """The instruction, written as in an image's history."""
    recipe: str


@dataclass(kw_only=True)
class _Stage:
    """A stage of a Dockerfile, as far as its instructions were read."""

    digest: str
    """A digest of all its instructions so far, and of what the stage stands on."""
    layers: list[_BuiltLayer] = field(default_factory=list)
    """The layers of what it stands on, and its own, lowest first."""


def image_recipe(
    image: Image,
    locks: Mapping[str, bytes],
    base: BaseContext,
    base_recipe: str,
    *,
    wheels: Mapping[str, str],
    missing: Mapping[str, str],
) -> ImageRecipe:
    """Return the recipe of an image: for each layer, a digest of all that decides its bytes.

    locks: file name -> content.
    base: the base image that it is built on.
    base_recipe: the recipe of the base.
    wheels: file name -> sha256, of wheels that no index has.
    missing: optional package -> why the image lacks it.
    """
    # Render the context without settings of this machine, and without the suite, which changes with
    # this project. Wheels are empty files here: their true digests are put in below.
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
    """Return for each layer of an image a digest of everything that decides the layer's bytes.

    dockerfile: the text. Its last stage is the image.
    files: path in the build context -> sha256.
    base: the digest of the base image, which covers everything below.
    platform: for which the image is built.
    """
    stages: dict[str, _Stage] = {}
    stage = _Stage(digest=base)
    for instruction in instructions(dockerfile):
        if instruction.keyword == "FROM":
            # `FROM system AS torch`: a new stage, on top of an earlier one or of the base image.
            below, _, name = instruction.text.partition(" AS ")
            stage = _begin_stage(below, stages, base)
            stages[name] = stage
        else:
            _add_instruction(stage, instruction, files, stages, platform)
    return _recipe_of_stage(stage)


def _begin_stage(below: str, stages: Mapping[str, _Stage], base: str) -> _Stage:
    """Return a new stage on top of the stage `below`, or on the base image if that is no stage.

    `stages` are the stages so far, by name. `base` is the recipe of the base image.
    """
    if below in stages:
        stage_below = stages[below]
        return _Stage(digest=stage_below.digest, layers=list(stage_below.layers))
    return _Stage(digest=base, layers=[_BuiltLayer("FROM", base)])


def _add_instruction(
    stage: _Stage,
    instruction: Instruction,
    files: Mapping[str, str],
    stages: Mapping[str, _Stage],
    platform: Platform,
) -> None:
    """Add an instruction of a Dockerfile to the digest of its stage, and its layer if it makes one.

    `stage` is changed. `files`: path in the build context -> sha256. `stages` are the earlier
    stages, by name.
    """
    keyword, text = instruction
    # Leave out labels, the layer of our own checks, and variables that only installers read: they
    # change no other file of the image. Each of these variables has an `ENV` of its own.
    if keyword == "ENV" and text.partition("=")[0] in INSTALLERS_ONLY:
        return
    # An image's history has the step without mounts. Layers are named by that text.
    step = f"{keyword} {_MOUNT.sub('', text)}"
    if keyword == _LEFT_OUT or configuration.layer_name(step) == SUITE:
        return

    # Each instruction changes the digest, because it may change later layers: ENV makes no layer,
    # but a later RUN reads it.
    mounts = digests_of_mounts(text, files, stages)
    parts = [stage.digest, str(platform), keyword, text, mounts]
    stage.digest = sha256(json.dumps(parts, sort_keys=True).encode())
    if keyword in _MAKES_LAYER:
        stage.layers.append(_BuiltLayer(step, stage.digest))


def _recipe_of_stage(stage: _Stage) -> ImageRecipe:
    """Return the recipe of the image that a complete stage is: of its layers and its settings."""
    names = configuration.layer_names([layer.step for layer in stage.layers])
    layers = []
    for name, layer in zip(names, stage.layers, strict=True):
        layers.append(LayerRecipe(layer=name, digest=layer.recipe))
    # The settings come last, so that their recipe covers the whole image.
    layers.append(LayerRecipe(layer=SETTINGS, digest=stage.digest))
    return ImageRecipe(layers=tuple(layers))


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

    `text` is the step without its keyword: `--mount=type=bind,source=locks,target=/run/locks ...`.
    `files` has the sha256 of each path in the context. The settings of the machine that builds are
    left out.
    """
    digests: dict[str, str] = {}
    for mount in _MOUNT.findall(text):
        options = {}
        for option in mount.split(","):
            name, _, value = option.partition("=")
            options[name] = value
        # Caches and tmpfs do not decide what a step makes.
        if options.get("type") != "bind":
            continue
        source = options.get("source", "")
        if "from" in options:
            stage_name = options["from"]
            digests[f"stage {stage_name}"] = stages[stage_name].digest
        elif source != _HOST_SETTINGS:
            # The source is a file, or a folder with all its files.
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
