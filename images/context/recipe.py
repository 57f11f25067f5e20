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


@dataclass(kw_only=True)
class _Stage:
    """A stage of a Dockerfile, as far as its instructions were read."""

    state: str
    """The digest of all instructions so far."""
    layers: list[tuple[str, str]] = field(default_factory=list)
    """(step, recipe) of each layer; the step is written as in an image's history."""


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
    # Settings of this machine are left out, and so is the suite, which changes with this project.
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
    """Return the recipes of the layers of a Dockerfile's last stage.

    files: path in the context -> sha256. base: the recipe of the base image.
    """
    stages: dict[str, _Stage] = {}
    stage = _Stage(state=base)
    for keyword, text in instructions(dockerfile):
        if keyword == "FROM":
            below, _, name = text.partition(" AS ")
            if below in stages:
                stage = _Stage(state=stages[below].state, layers=list(stages[below].layers))
            else:
                stage = _Stage(state=base, layers=[("FROM", base)])
            stages[name] = stage
            continue
        step = f"{keyword} {_MOUNT.sub('', text)}"
        if keyword == _LEFT_OUT or configuration.layer_name(step) == SUITE:
            continue
        parts = [stage.state, str(platform), keyword, text, mounted(text, files, stages)]
        stage.state = sha256(json.dumps(parts, sort_keys=True).encode())
        if keyword in _MAKES_LAYER:
            stage.layers.append((step, stage.state))

    names = configuration.layer_names([step for step, _ in stage.layers])
    digests = [digest for _, digest in stage.layers]
    layers = []
    for name, digest in zip(names, digests, strict=True):
        layers.append(LayerRecipe(layer=name, digest=digest))
    layers.append(LayerRecipe(layer=SETTINGS, digest=stage.state))
    return ImageRecipe(layers=tuple(layers))


def instructions(dockerfile: str) -> Iterator[tuple[str, str]]:
    """Yield the keyword and the text of each instruction of a Dockerfile.

    The text is joined to one line, with single spaces.
    """
    words: list[str] = []
    for line in dockerfile.splitlines():
        if line.lstrip().startswith("#") or not line.strip():
            continue
        words += line.removesuffix("\\").split()
        if not line.endswith("\\"):
            yield words[0], " ".join(words[1:])
            words = []


def mounted(text: str, files: Mapping[str, str], stages: Mapping[str, _Stage]) -> dict[str, str]:
    """Return the digest of everything that a step mounts, by path or `stage NAME`.

    The settings of the machine that builds are left out. `text` is the step without its keyword;
    `files` has the sha256 of each path in the context.
    """
    digests: dict[str, str] = {}
    for mount in _MOUNT.findall(text):
        options = dict(option.partition("=")[::2] for option in mount.split(","))
        if options.get("type") != "bind":
            continue
        source = options.get("source", "")
        if "from" in options:
            name = options["from"]
            digests[f"stage {name}"] = stages[name].state
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
