"""What packages require of each other, against what an image pins. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from images.config.facts import PackageFacts
from images.config.names import Minor


@dataclass(frozen=True)
class Unmet:
    """A requirement that a pin contradicts."""

    by: str
    """`axolotl 0.13.1`."""
    requirement: str
    on: str
    """The distribution it is about."""
    found: str
    """The pinned version; empty: it is left out."""


def applying(row: PackageFacts, python: Minor) -> Iterator[Requirement]:
    """The requirements that hold on Linux x86-64 with this Python. Profiles, whose packages these are, are built there
    alone."""
    yield from _applying(tuple(row.requires), python)


@cache
def _applying(requires: tuple[str, ...], python: Minor) -> tuple[Requirement, ...]:
    """The same rows are asked for each image that pins them."""
    environment = {
        "extra": "",
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.0",
        "python_version": str(python),
        "sys_platform": "linux",
    }
    parsed = map(Requirement, requires)
    return tuple(one for one in parsed if one.marker is None or one.marker.evaluate(environment))


def unmet(
    name: str, version: str, row: PackageFacts, pins: Mapping[str, str], left_out: frozenset[str], python: Minor
) -> Iterator[Unmet]:
    """What one package requires and the pins contradict, or `left_out` lacks."""
    for requirement in applying(row, python):
        on = canonicalize_name(requirement.name)
        if on in left_out:
            yield Unmet(f"{name} {version}", _shown(requirement), on, "")
        elif on in pins and not requirement.specifier.contains(Version(pins[on]), prereleases=True):
            yield Unmet(f"{name} {version}", _shown(requirement), on, pins[on])


def clashing(rows: Mapping[tuple[str, str], PackageFacts], pinned: frozenset[str], python: Minor) -> Iterator[Unmet]:
    """Two packages that ask for different versions of a third that nobody pins. `rows`: (name, version) -> facts."""
    exact: dict[str, tuple[str, str]] = {}
    asked = [
        (f"{name} {version}", requirement)
        for (name, version), row in rows.items()
        for requirement in applying(row, python)
        if canonicalize_name(requirement.name) not in pinned
    ]
    for by, requirement in asked:
        for wanted in requirement.specifier:
            if wanted.operator == "==" and "*" not in wanted.version:
                exact.setdefault(canonicalize_name(requirement.name), (by, wanted.version))
    for by, requirement in asked:
        on = canonicalize_name(requirement.name)
        first, version = exact.get(on, ("", ""))
        if first and first != by and not requirement.specifier.contains(Version(version), prereleases=True):
            yield Unmet(by, _shown(requirement), on, f"{version} that {first} requires")


def _shown(requirement: Requirement) -> str:
    return f"{requirement.name}{requirement.specifier}"
