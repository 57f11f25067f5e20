"""Profiles: environments that people train in, as pins of their own over a stack, in a layer of their own. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from packaging.utils import canonicalize_name

from images.config import yamlfile
from images.config.names import Minor
from images.config.schema import Matrix, Profile
from images.config.yamlfile import YamlFile
from images.errors import Problem

LAYER = "profile"
"""Where packages go that no layer of the matrix installs: above all that images share, below what moves most."""


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A profile for one torch, with all that it inherits."""

    name: str
    pins: Mapping[str, str]
    optional: Mapping[str, str]
    """Optional package -> version: taken where it fits."""
    waived: Mapping[str, str]
    """Distribution that is required and left out -> why."""
    unproven: Mapping[str, str]
    """`C10` or `C10 subject` -> why it stays UNPROVEN."""
    extensions: tuple[str, ...] = ()
    """Rows of `sources` that make its packages with their compiled extensions."""
    environment: Mapping[str, str] = field(default_factory=dict)
    entrypoint: str = ""


def resolve(matrix: Matrix, name: str | None, minor: Minor) -> Resolved | None:
    """What an image's profile asks; None: it has none, or one that `refusal` speaks of."""
    if name is None or refusal(matrix, name, minor):
        return None
    torch = str(minor)
    line = tuple(_line(matrix, name))
    return Resolved(
        name=name,
        pins=_merged(profile.stacks.get(torch, {}) for profile in line),
        optional=_merged(_optional(profile, torch) for profile in line),
        waived=_merged(profile.waived.get(torch, {}) for profile in line),
        unproven=_merged(profile.unproven.get(torch, {}) for profile in line),
        extensions=tuple(dict.fromkeys(row for profile in line for row in profile.extensions)),
        environment=_merged(profile.environment for profile in line),
        entrypoint=next((profile.entrypoint for profile in reversed(line) if profile.entrypoint), ""),
    )


def refusal(matrix: Matrix, name: str | None, torch: Minor) -> str:
    """Why an image's profile can't be had with its torch; empty if it can, or if it has none."""
    if name is None:
        return ""
    if name not in matrix.profiles:
        known = ", ".join(matrix.profiles) or "none"
        return f"matrix.yaml has no profile {name!r} (it has {known})"
    fits = matrix.profiles[name].stacks
    if str(torch) not in fits:
        return f"the profile {name} is pinned for torch {', '.join(fits)} alone"
    return ""


def layers(matrix: Matrix, profile: Resolved | None) -> tuple[str, ...]:
    """An image's layers, bottom first: a profile's own comes below the last, which moves most."""
    shared = tuple(matrix.layers)
    return (*shared[:-1], LAYER, shared[-1]) if profile else shared


def problems(matrix: Matrix, file: YamlFile) -> Iterator[Problem]:
    """What the types can't say of the profiles."""
    for name, profile in matrix.profiles.items():
        yield from _named_well(profile, ("profiles", name), file)
        yield from _placed_well(matrix, profile, ("profiles", name), file)
        yield from _extended_well(matrix, name, ("profiles", name), file)


def _named_well(profile: Profile, at: yamlfile.Path, file: YamlFile) -> Iterator[Problem]:
    paths = [("stacks", torch, pin) for torch, pins in profile.stacks.items() for pin in pins]
    paths += [("waived", torch, pin) for torch, pins in profile.waived.items() for pin in pins]
    for path in [*paths, *(("optional", pin) for pin in profile.optional)]:
        if canonicalize_name(path[-1]) != path[-1]:
            cause = f"write {path[-1]!r} as {canonicalize_name(path[-1])!r}"
            yield Problem(where=file.where((*at, *path)), cause=cause, then="fix it")


def _placed_well(matrix: Matrix, profile: Profile, at: yamlfile.Path, file: YamlFile) -> Iterator[Problem]:
    if profile.extends and (profile.extends not in matrix.profiles or matrix.profiles[profile.extends].extends):
        cause = f"extends {profile.extends!r}, which is no profile, or extends one itself"
        yield Problem(where=file.where((*at, "extends")), cause=cause, then="extend a profile that stands alone")
    for torch, pins in profile.stacks.items():
        if torch not in matrix.stacks:
            cause = f"there is no stack for torch {torch}"
            yield Problem(where=file.where((*at, "stacks", torch)), cause=cause, then="name a torch of `stacks`")
        elif pins.get("torch", matrix.stacks[torch].get("torch")) != matrix.stacks[torch].get("torch"):
            cause = "a profile shares its torch with the stack"
            yield Problem(where=file.where((*at, "stacks", torch, "torch")), cause=cause, then="take it out")
        inherited = matrix.profiles[profile.extends].stacks if profile.extends in matrix.profiles else {torch: {}}
        if torch not in inherited:
            cause = f"extends {profile.extends}, which has nothing for torch {torch}"
            yield Problem(where=file.where((*at, "stacks", torch)), cause=cause, then="pin it there too")
    for torch in {*profile.waived, *profile.unproven} - {*profile.stacks}:
        key = "waived" if torch in profile.waived else "unproven"
        cause = f"the profile has no pins for torch {torch}"
        yield Problem(where=file.where((*at, key, torch)), cause=cause, then="take it out")


def _extended_well(matrix: Matrix, name: str, at: yamlfile.Path, file: YamlFile) -> Iterator[Problem]:
    """Each extension is a row of `sources`, and makes a package that the profile pins."""
    pinned = {pin for one in _line(matrix, name) for pins in one.stacks.values() for pin in pins}
    for index, row in enumerate(matrix.profiles[name].extensions):
        at_row = (*at, "extensions", index)
        if row not in matrix.sources:
            yield Problem(where=file.where(at_row), cause=f"{row!r} is no row of `sources`", then="name one that is")
        elif (made := matrix.sources[row].distribution or row) not in pinned:
            cause = f"{row} makes {made}, which the profile does not pin"
            yield Problem(where=file.where(at_row), cause=cause, then="pin it")


def _line(matrix: Matrix, name: str) -> Iterator[Profile]:
    """The profile it extends, then itself."""
    profile = matrix.profiles[name]
    if profile.extends in matrix.profiles:
        yield matrix.profiles[profile.extends]
    yield profile


def _optional(profile: Profile, torch: str) -> dict[str, str]:
    """Its optional packages for one torch."""
    versions = {
        name: version if isinstance(version, str) else version.get(torch) for name, version in profile.optional.items()
    }
    return {name: version for name, version in versions.items() if version}


def _merged(parts: Iterator[Mapping[str, str]]) -> dict[str, str]:
    merged: dict[str, str] = {}
    for part in parts:
        merged.update(part)
    return merged


def owner(name: str, profile: Resolved | None, torch: Minor) -> str:
    """Who pins a distribution, for a sentence."""
    own = {*profile.pins, *profile.optional} if profile else set()
    return f"the profile {profile.name}" if profile and name in own else f"the stack of torch {torch}"
