"""The image of the matrix that is nearest to what somebody has, and what would change. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packaging.version import InvalidVersion, Version

from images.audit.model import Nearest
from images.config.names import Minor
from images.planning.image import Image

_FRAMEWORKS = ("axolotl", "unsloth", "colossalai", "deepspeed", "transformers")
"""Packages that tell which profile a person wants."""


def nearest(environment: Mapping[str, Any], images: Sequence[Image]) -> Nearest | None:
    """By torch first, then CUDA, profile and Python. None: the environment has no torch that could be compared."""
    torch = environment["torch"]
    try:
        cuda, version = Minor.parse(str(torch["cuda"])), Version(str(torch["version"]))
        python = Minor.parse(str(environment["version"]))
    except (KeyError, ValueError, InvalidVersion):
        return None
    found = {str(one["name"]): str(one["version"]).partition("+")[0] for one in environment["distributions"]}
    candidates = [one for one in images if one.name.arch is None and one.pin("torch")]
    if not candidates:
        return None
    best = min(candidates, key=lambda one: _distance(one, cuda, version, python, found))
    return Nearest(name=str(best.name), same=_same(best, found), changes=_changes(best, cuda, python, found))


def _distance(image: Image, cuda: Minor, torch: Version, python: Minor, found: Mapping[str, str]) -> tuple[float, ...]:
    pin = image.pin("torch")
    own = Version(pin.version) if pin else torch
    wanted = {name for name in _FRAMEWORKS[:4] if name in found}
    brought = {name for name in _FRAMEWORKS[:4] if image.pin(name)}
    pins = [one for one in image.pins if one.name in found]
    return (
        abs((own.major * 100 + own.minor) - (torch.major * 100 + torch.minor)),
        len(wanted - brought),
        abs((image.wheel_cuda.major * 100 + image.wheel_cuda.minor) - (cuda.major * 100 + cuda.minor)),
        len(brought - wanted),
        float(image.python != python),
        float(image.devel),
        -sum(one.version == found[one.name] for one in pins),
    )


def _same(image: Image, found: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{one.name} {one.version}" for one in image.pins if found.get(one.name) == one.version)


def _changes(image: Image, cuda: Minor, python: Minor, found: Mapping[str, str]) -> tuple[str, ...]:
    changes = [] if image.wheel_cuda == cuda else [f"torch's CUDA {cuda} to {image.wheel_cuda}"]
    changes += [] if image.python == python else [f"Python {python} to {image.python}"]
    for pin in image.pins:
        has = found.get(pin.name)
        if has is None:
            changes.append(f"{pin.name} {pin.version} added")
        elif has != pin.version:
            changes.append(f"{pin.name} {has} to {pin.version}")
    return tuple(changes)
