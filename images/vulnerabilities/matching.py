"""Findings against an inventory. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from images.vulnerabilities.findings import Finding, Findings, Severity
from images.vulnerabilities.inventory import Installed, Inventory


@dataclass(frozen=True, kw_only=True)
class Match:
    """A finding about a package that the image has."""

    finding: Finding
    package: Installed


@dataclass(frozen=True, kw_only=True)
class Matched:
    """A file of findings, split by whether the image has the package in that version."""

    matches: tuple[Match, ...]
    strangers: tuple[Finding, ...]
    """About what the SBOM does not list."""


def match(inventory: Inventory, found: Findings) -> Matched:
    """Match by type, name (of the package or its source) and version."""
    by_name: dict[tuple[str, str, str], list[Installed]] = {}
    for one in inventory.packages:
        for name in {one.name, one.source or one.name}:
            by_name.setdefault((one.kind, name, one.version), []).append(one)
    matches: list[Match] = []
    strangers: list[Finding] = []
    for finding in found.findings:
        packages = by_name.get((finding.kind, finding.package, finding.version), [])
        exact = [one for one in packages if one.name == finding.package] or packages
        matches += [Match(finding=finding, package=one) for one in exact]
        strangers += [] if packages else [finding]
    return Matched(matches=tuple(matches), strangers=tuple(strangers))


def refusal(inventory: Inventory, found: Findings, matched: Matched) -> str:
    """Why a file says nothing of this image; empty if it does. A file without findings counts by its digest alone."""
    if found.images and inventory.digest not in found.images:
        return f"is of {min(found.images)[:19]}, the image is {inventory.digest[:19]}"
    if not found.images and not matched.matches:
        return "names neither this image nor a package of it, so it may be of another one"
    return ""


def merged(matches: Sequence[Match]) -> tuple[Match, ...]:
    """One row for each vulnerability of a package, whoever told it: the worst rating, every fixed version."""
    rows: list[Match] = []
    for one in matches:
        same = next((row for row in rows if row.package == one.package and _is_same(row.finding, one.finding)), None)
        if same is None:
            rows.append(one)
        else:
            rows[rows.index(same)] = replace(same, finding=_both(same.finding, one.finding))
    return tuple(sorted(rows, key=_order))


def _order(one: Match) -> tuple[int, str, str]:
    return list(Severity).index(one.finding.severity), one.package.name, one.finding.id


def _is_same(one: Finding, other: Finding) -> bool:
    return not {one.id, *one.aliases}.isdisjoint({other.id, *other.aliases})


def _both(one: Finding, other: Finding) -> Finding:
    names = {one.id, other.id, *one.aliases, *other.aliases}
    first = min(names, key=lambda name: (not name.startswith("CVE-"), name))
    return replace(
        one,
        id=first,
        aliases=frozenset(names) - {first},
        severity=min(one.severity, other.severity, key=list(Severity).index),
        fixed=tuple(dict.fromkeys([*one.fixed, *other.fixed])),
        source=", ".join(_sources(one, other)),
    )


def _sources(*found: Finding) -> Iterator[str]:
    yield from dict.fromkeys(name for one in found for name in one.source.split(", "))
