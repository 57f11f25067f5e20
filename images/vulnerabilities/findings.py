"""What scanners found: the JSON of Grype, Trivy and OSV-scanner as one kind of finding. Pure.

Read from the programs' own sources: grype/presenter/models, trivy/pkg/types/report.go, osv-scanner/pkg/models.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from packageurl import PackageURL

from images.vulnerabilities.inventory import DEB, KINDS, PYPI, canonical


class Severity(StrEnum):
    """As the scanner rates it."""

    CRITICAL = "critical"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    UNKNOWN = "unknown"


_SEVERITIES = {**{one.value: one for one in Severity}, "negligible": Severity.LOW, "moderate": Severity.MEDIUM}
_OSV_KINDS = {"debian": DEB, "pypi": PYPI}
_CVSS = ((9.0, Severity.CRITICAL), (7.0, Severity.HIGH), (4.0, Severity.MEDIUM), (0.1, Severity.LOW))
"""Lowest base score of each rating (CVSS 3.1, table 14)."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One vulnerability of one package, as one source tells it."""

    id: str
    """A CVE, where it has one."""
    kind: str
    """Type of the package URL."""
    package: str
    version: str
    severity: Severity
    fixed: tuple[str, ...] = ()
    """Versions without it."""
    aliases: frozenset[str] = frozenset()
    source: str = ""
    """Who tells it."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """One file of findings. `images`: digests that it says it is of; empty where it says none."""

    scanner: str
    findings: tuple[Finding, ...]
    covers: frozenset[str]
    """Types of packages that were looked at. No finding of another type means nothing."""
    images: frozenset[str] = field(default_factory=frozenset)


def read(content: bytes) -> Findings:
    """Read a file of one of the three scanners. Raises ValueError, LookupError, TypeError, AttributeError."""
    data = json.loads(content)
    if "matches" in data:
        return _grype(data)
    if "SchemaVersion" in data:
        return _trivy(data)
    if "results" in data:
        return _osv(data)
    raise ValueError("it is no JSON of Grype (matches), Trivy (SchemaVersion) or OSV-scanner (results)")


def _grype(data: Mapping[str, Any]) -> Findings:
    found = [_grype_match(one) for one in data["matches"] if _kind(one["artifact"].get("purl", ""))]
    target = (data.get("source") or {}).get("target")
    target = target if isinstance(target, dict) else {}
    has_distro = bool((data.get("distro") or {}).get("name"))
    return Findings(
        scanner="grype",
        findings=tuple(found),
        covers=frozenset({PYPI, DEB} if has_distro else {PYPI}),
        images=_digests(target.get("imageID"), target.get("manifestDigest")),
    )


def _grype_match(one: Mapping[str, Any]) -> Finding:
    vulnerability, artifact = one["vulnerability"], one["artifact"]
    names = [vulnerability["id"], *(related["id"] for related in one.get("relatedVulnerabilities") or ())]
    fix = vulnerability.get("fix") or {}
    return _finding(
        names,
        kind=_kind(artifact["purl"]),
        package=artifact["name"],
        version=artifact["version"],
        severity=_severity(vulnerability.get("severity")),
        fixed=tuple(fix.get("versions") or ()) if fix.get("state") == "fixed" else (),
        source="grype",
    )


def _trivy(data: Mapping[str, Any]) -> Findings:
    results = data.get("Results") or []
    found = [
        _trivy_row(row, kind)
        for result in results
        if (kind := _trivy_kind(result))
        for row in result.get("Vulnerabilities") or ()
    ]
    metadata = data.get("Metadata") or {}
    digests = [text.rpartition("@")[2] for text in metadata.get("RepoDigests") or ()]
    return Findings(
        scanner="trivy",
        findings=tuple(found),
        covers=frozenset(filter(None, map(_trivy_kind, results))),
        images=_digests(metadata.get("ImageID"), *digests),
    )


def _trivy_kind(result: Mapping[str, Any]) -> str:
    """Type of the packages of one result; empty for others."""
    if result.get("Class") == "os-pkgs":
        return DEB if result.get("Type") in ("debian", "ubuntu") else ""
    return PYPI if result.get("Type") in ("python-pkg", "pip", "conda-pkg") else ""


def _trivy_row(row: Mapping[str, Any], kind: str) -> Finding:
    fixed = [text.strip() for text in (row.get("FixedVersion") or "").split(",")]
    return _finding(
        [row["VulnerabilityID"], *(row.get("VendorIDs") or ())],
        kind=kind,
        package=row["PkgName"],
        version=row["InstalledVersion"],
        severity=_severity(row.get("Severity")),
        fixed=tuple(filter(None, fixed)),
        source="trivy",
    )


def _osv(data: Mapping[str, Any]) -> Findings:
    packages = [
        (one, kind)
        for result in data["results"]
        for one in result["packages"]
        if (kind := _OSV_KINDS.get(str(one["package"].get("ecosystem", "")).partition(":")[0].lower()))
    ]
    found = [finding for one, kind in packages for finding in _osv_package(one, kind)]
    return Findings(scanner="osv-scanner", findings=tuple(found), covers=frozenset(kind for _, kind in packages))


def _osv_package(one: Mapping[str, Any], kind: str) -> Iterator[Finding]:
    """A finding for each group: OSV lists a vulnerability once for each database that has it."""
    package = one["package"]
    by_id = {row["id"]: row for row in one.get("vulnerabilities") or ()}
    for group in one.get("groups") or [{"ids": [name]} for name in by_id]:
        names = [*group["ids"], *(group.get("aliases") or ())]
        rows = [by_id[name] for name in group["ids"] if name in by_id]
        yield _finding(
            names,
            kind=kind,
            package=package.get("os_package_name") or package["name"],
            version=package["version"],
            severity=_by_score(group.get("max_severity")),
            fixed=tuple(dict.fromkeys(_osv_fixes(rows, package["name"]))),
            source="osv-scanner",
        )


def _osv_fixes(rows: Sequence[Mapping[str, Any]], package: str) -> Iterator[str]:
    for affected in (one for row in rows for one in row.get("affected") or ()):
        if (affected.get("package") or {}).get("name") == package:
            events = [event for span in affected.get("ranges") or () for event in span.get("events") or ()]
            yield from (event["fixed"] for event in events if "fixed" in event)


def _finding(
    names: Sequence[str],
    *,
    kind: str,
    package: str,
    version: str,
    severity: Severity,
    fixed: tuple[str, ...],
    source: str,
) -> Finding:
    """Named by its CVE, where one of its names is one."""
    first = next((name for name in names if name.startswith("CVE-")), names[0])
    return Finding(
        id=first,
        kind=kind,
        package=canonical(kind, package),
        version=version,
        severity=severity,
        fixed=fixed,
        aliases=frozenset(names) - {first},
        source=source,
    )


def _kind(purl: str) -> str:
    """Of a package URL; empty where it is none, or of a type that images don't have."""
    try:
        kind = PackageURL.from_string(purl).type
    except ValueError:
        return ""
    return kind if kind in KINDS else ""


def _severity(text: object) -> Severity:
    return _SEVERITIES.get(str(text or "").lower(), Severity.UNKNOWN)


def _by_score(text: object) -> Severity:
    try:
        score = float(str(text))
    except ValueError:
        return Severity.UNKNOWN
    return next((severity for lowest, severity in _CVSS if score >= lowest), Severity.LOW)


def _digests(*found: object) -> frozenset[str]:
    return frozenset(str(one) for one in found if one and str(one).startswith("sha256:"))
