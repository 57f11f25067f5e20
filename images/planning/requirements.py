"""What packages require of each other, against what an image pins. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
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


@dataclass(frozen=True, eq=False)
class Applying:
    """A requirement that holds for an image, with what every image asks of it."""

    on: str
    """Canonical name."""
    specifier: SpecifierSet
    shown: str
    """As the package writes it."""
    canonical: str
    """With the canonical name."""

    def allows(self, version: str) -> bool:
        return _allows(self, version)


@cache
def _allows(requirement: Applying, version: str) -> bool:
    return requirement.specifier.contains(Version(version), prereleases=True)


def applying(row: PackageFacts, python: Minor) -> tuple[Applying, ...]:
    """The requirements that hold on Linux x86-64 with this Python. Profiles, whose packages these are, are built there
    alone."""
    return _applying(tuple(row.requires), str(python))


@cache
def _applying(requires: tuple[str, ...], python: str) -> tuple[Applying, ...]:
    """The same rows are asked for each image that pins them."""
    environment = {
        "extra": "",
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }
    parsed = map(Requirement, requires)
    holding = (one for one in parsed if one.marker is None or one.marker.evaluate(environment))
    return tuple(_asked(one, str(canonicalize_name(one.name))) for one in holding)


def _asked(requirement: Requirement, on: str) -> Applying:
    specifier = requirement.specifier
    return Applying(on, specifier, f"{requirement.name}{specifier}", f"{on}{specifier}")


def unmet(
    name: str, version: str, row: PackageFacts, pins: Mapping[str, str], left_out: frozenset[str], python: Minor
) -> Iterator[Unmet]:
    """What one package requires and the pins contradict, or `left_out` lacks."""
    for requirement in applying(row, python):
        on = requirement.on
        if on in left_out:
            yield Unmet(f"{name} {version}", requirement.shown, on, "")
        elif on in pins and not requirement.allows(pins[on]):
            yield Unmet(f"{name} {version}", requirement.shown, on, pins[on])


def clashing(rows: Mapping[tuple[str, str], PackageFacts], pinned: frozenset[str], python: Minor) -> Iterator[Unmet]:
    """Two packages that ask for different versions of a third that nobody pins. `rows`: (name, version) -> facts."""
    exact: dict[str, tuple[str, str]] = {}
    asked = [
        (f"{name} {version}", requirement)
        for (name, version), row in rows.items()
        for requirement in applying(row, python)
        if requirement.on not in pinned
    ]
    for by, requirement in asked:
        for wanted in requirement.specifier:
            if wanted.operator == "==" and "*" not in wanted.version:
                exact.setdefault(requirement.on, (by, wanted.version))
    for by, requirement in asked:
        first, version = exact.get(requirement.on, ("", ""))
        if first and first != by and not requirement.allows(version):
            yield Unmet(by, requirement.shown, requirement.on, f"{version} that {first} requires")
