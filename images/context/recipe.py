"""Recipes: a digest of all that decides the bytes of a layer. Pure.

Two builds of one recipe must give the same layer, whatever engine and machine build it. So a layer that is recorded for
its recipe (locks/layers.json) proves the origin of every file in it, and none has to be looked at.

A recipe covers the recipe below, the step as it is rendered, the files that the step mounts from the build context
(scripts, locks with the hashes of wheels, wheels that no index has), the stages that it mounts, and the platform. The
settings of the machine that builds are left out: whichever mirror sends a file, the lock has its hash.
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
"""Labels name revisions of the matrix, and are checked by themselves."""


@dataclass(frozen=True, kw_only=True)
class LayerRecipe:
    """What one layer is made of."""

    layer: str
    """Its name in a payload (images/engine/configuration.py)."""
    digest: str


@dataclass(frozen=True, kw_only=True)
class ImageRecipe:
    """The recipes of an image's layers, the lowest first, and last that of its settings. The suite's layer has none."""

    layers: tuple[LayerRecipe, ...]

    @property
    def digest(self) -> str:
        """Return the digest of the whole image's recipe: each recipe covers those below it."""
        return self.layers[-1].digest


@dataclass(kw_only=True)
class _Stage:
    """A stage of a Dockerfile, as far as it was read."""

    state: str
    """The digest of every instruction so far."""
    layers: list[tuple[str, str]] = field(default_factory=list)
    """The step that made each layer, as a history has it, and its recipe."""


def image_recipe(
    image: Image,
    locks: Mapping[str, bytes],
    base: BaseContext,
    base_recipe: str,
    *,
    wheels: Mapping[str, str],
    missing: Mapping[str, str],
) -> ImageRecipe:
    """Return the recipe of an image.

    `wheels`: file name -> sha256, of wheels that no index has. `missing`: optional package -> why the image goes
    without it.
    """
    # Rendered without settings of this machine, and without the suite, which moves with this project.
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
    """Return the recipes of the layers of a Dockerfile's last stage. `files`: path in the context -> sha256."""
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
    layers = [
        LayerRecipe(layer=name, digest=digest)
        for name, (_, digest) in zip(names, stage.layers, strict=True)
    ]
    return ImageRecipe(layers=(*layers, LayerRecipe(layer=SETTINGS, digest=stage.state)))


def instructions(dockerfile: str) -> Iterator[tuple[str, str]]:
    """Yield each instruction of a Dockerfile: its keyword, and the rest in one line without superfluous spaces."""
    words: list[str] = []
    for line in dockerfile.splitlines():
        if line.lstrip().startswith("#") or not line.strip():
            continue
        words += line.removesuffix("\\").split()
        if not line.endswith("\\"):
            yield words[0], " ".join(words[1:])
            words = []


def mounted(text: str, files: Mapping[str, str], stages: Mapping[str, _Stage]) -> dict[str, str]:
    """Return what a step mounts, as path or stage -> digest, without the settings of the machine that builds."""
    found: dict[str, str] = {}
    for mount in _MOUNT.findall(text):
        options = dict(option.partition("=")[::2] for option in mount.split(","))
        if options.get("type") != "bind":
            continue
        source = options.get("source", "")
        if "from" in options:
            found[f"stage {options['from']}"] = stages[options["from"]].state
        elif source != _HOST_SETTINGS:
            inside = [path for path in files if path == source or path.startswith(f"{source}/")]
            found |= {path: files[path] for path in inside}
    return found


def base_recipe(base: BaseContext, labels: Mapping[str, str]) -> str:
    """Return the recipe of a base: what it was made of (`labels`, images/context/bootstrap.py), else its digest."""
    made_of = dict(labels) if base.origin == "bootstrapped" else {"digest": base.digest}
    return sha256(json.dumps(made_of, sort_keys=True).encode())
