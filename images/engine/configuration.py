"""An image's configuration as a function of what is in it, and what of an image a recorded verdict
is about. Pure.

An engine writes the time of the build into a configuration, and each version its own words: the
same layers have another image ID on each machine. So what BuildKit made is written anew, over the
same layers (OCI image specification, config.md), and its ID is that of every build with these
layers and settings.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from images.engine.runtime import FURTHER, ImageInfo
from images.host.hashing import oci_digest

CREATED = "2024-01-01T00:00:00Z"
"""The date of every image and step: that of the files that a build writes
(images/context/templates.py, EPOCH)."""
SUITE = "suite"
"""The layer with the suite and the commands to add packages, which moves with this project
(layers.read_layers)."""
ABOVE = "above"
"""A layer of a step that is not ours, in an image that somebody built on one of ours."""
SETTINGS = "settings"
"""Beside the layers: variables, user, folder, entrypoint and command."""

_SAID = ("User", "Env", "Entrypoint", "Cmd", "WorkingDir", "Labels", *FURTHER)
_NO_LAYER = frozenset(
    "ARG CMD ENTRYPOINT ENV EXPOSE HEALTHCHECK LABEL MAINTAINER ONBUILD SHELL STOPSIGNAL USER VOLUME".split()
)
_LAST_STEPS = ("WORKDIR /workspace", 'CMD ["bash"]')
"""How our Dockerfiles end (templates/stages/image.j2)."""
_LAYER = re.compile(
    r"/run/locks/([\w-]+)\.txt|/run/wheels/([\w.]+)-|/run/scripts/(debian|compilers|suite)\.sh"
    r"|/run/(toolkit|entrypoint)\b|^(WORKDIR) /workspace$"
)


def step(text: str) -> str:
    """An instruction of a history as every builder writes it."""
    return " ".join(text.removeprefix("/bin/sh -c #(nop)").removesuffix("# buildkit").split())


def canonical(inspected: Mapping[str, Any], steps: Sequence[str]) -> bytes | None:
    """The configuration of an image, from what the engine tells of it and its steps, the first
    first.

    None where the steps can't be told from the layers: a base of another builder.
    """
    layers = inspected["RootFS"]["Layers"]
    said = [(step(one), empty(one)) for one in steps]
    if [empty for _, empty in said].count(False) != len(layers):
        return None
    content = {
        "architecture": inspected["Architecture"],
        "os": "linux",
        "created": CREATED,
        "config": {key: inspected["Config"][key] for key in _SAID if inspected["Config"].get(key)},
        "history": [
            {"created": CREATED, "created_by": text, **({"empty_layer": True} if empty else {})}
            for text, empty in said
        ],
        "rootfs": {"type": "layers", "diff_ids": layers},
    }
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def layer_name(step_text: str) -> str:
    """Return the name of the layer that a step of our Dockerfiles makes; empty for any other
    step.
    """
    match = _LAYER.search(step(step_text))
    return next(filter(None, match.groups())).lower() if match else ""


def layer_names(steps: Sequence[str]) -> list[str]:
    """Return a name for each layer, from the steps that made them, the lowest first.

    Layers below the first step of ours are the base's; other steps above it are somebody else's
    (`above`).
    """
    names: list[str] = []
    times = Counter[str]()
    is_base = True
    for text in steps:
        name = layer_name(text)
        is_base = is_base and not name
        name = name or ("base" if is_base else ABOVE)
        times[name] += 1
        names.append(name if times[name] == 1 else f"{name}-{times[name]}")
    return names


def payload(info: ImageInfo, steps: Sequence[str]) -> dict[str, str]:
    """Return what a verdict about an image is about: layer -> diff ID, the lowest first, and a
    digest of its settings.

    `steps`: its history, the first first. Labels are left out: they change with this project. Empty
    where the steps can't be told from the layers.
    """
    made = [one for one in steps if not empty(one)]
    if len(made) != len(info.layers):
        return {}
    found = dict(zip(layer_names(made), info.layers, strict=True))
    settings: list[Any] = [
        sorted(info.env.items()),
        info.user,
        info.workdir,
        info.entrypoint,
        info.command,
    ]
    settings += [info.further] if info.further else []
    return {**found, SETTINGS: oci_digest(json.dumps(settings, sort_keys=True).encode())}


def steps_above(steps: Sequence[str]) -> tuple[str, ...]:
    """Return the steps of a derived image that stand above ours, the first first; none of an image
    of ours, or another.

    `steps`: all steps of an image, the first first.
    """
    instructions = [step(text) for text in steps]
    for number in range(2, len(instructions) + 1):
        # The first place that looks so is our own end: derived images may end alike.
        if tuple(instructions[number - 2 : number]) == _LAST_STEPS:
            return tuple(steps[number:])
    return ()


def empty(text: str) -> bool:
    """Whether a step made no layer. WORKDIR makes one in BuildKit."""
    return step(text).partition(" ")[0] in _NO_LAYER
