"""What we say of vulnerabilities: statements in the repository, as a CycloneDX VEX document. Pure."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from packageurl import PackageURL

FILE = Path("results", "vulnerabilities", "vex.cdx.json")
"""Below the workspace."""
MEDIA_TYPE = "application/vnd.cyclonedx.vex+json"
"""Artifact type of the document where it is attached: that of CycloneDX is the SBOM's."""
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://truetag.dev/vex")


class State(StrEnum):
    """What we say."""

    NOT_AFFECTED = "not-affected"
    FIXED = "fixed"
    WILL_NOT_FIX = "will-not-fix"


_ANALYSES: Mapping[State, tuple[str, tuple[str, ...]]] = {
    State.NOT_AFFECTED: ("not_affected", ()),
    State.FIXED: ("resolved", ("update",)),
    State.WILL_NOT_FIX: ("exploitable", ("will_not_fix",)),
}
"""State -> `analysis.state` and `analysis.response` of CycloneDX 1.6."""
JUSTIFICATIONS = (
    "code_not_present",
    "code_not_reachable",
    "requires_configuration",
    "requires_dependency",
    "requires_environment",
    "protected_by_compiler",
    "protected_at_runtime",
    "protected_at_perimeter",
    "protected_by_mitigating_control",
)
"""CycloneDX's words for why something is not affected."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What we say of one vulnerability of one package in one version."""

    id: str
    purl: str
    """With a version, without qualifiers."""
    state: State
    because: str
    justification: str = ""
    date: str
    """ISO 8601, UTC: when it was said."""

    def is_of(self, names: Sequence[str], purl: str) -> bool:
        return self.id in names and self.purl == purl


def is_exact(purl: str) -> bool:
    """Whether a package URL names one version and has no qualifiers."""
    try:
        found = PackageURL.from_string(purl)
    except ValueError:
        return False
    return bool(found.version) and not found.qualifiers and found.to_string() == purl


def dumps(statements: Sequence[Statement], created: datetime) -> bytes:
    """The document, CycloneDX 1.6 JSON. The same statements give the same bytes."""
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.output.json import JsonV1Dot6

    ordered = sorted(statements, key=lambda one: (one.id, one.purl))
    serial = uuid.uuid5(_NAMESPACE, repr(ordered))
    bom = Bom(serial_number=serial, metadata=BomMetaData(timestamp=created))
    for one in ordered:
        bom.vulnerabilities.add(_vulnerability(one))
    return (JsonV1Dot6(bom).output_as_string(indent=1) + "\n").encode()


def _vulnerability(one: Statement) -> Any:
    from cyclonedx.model.impact_analysis import (
        ImpactAnalysisJustification,
        ImpactAnalysisResponse,
        ImpactAnalysisState,
    )
    from cyclonedx.model.vulnerability import BomTarget, Vulnerability, VulnerabilityAnalysis

    state, responses = _ANALYSES[one.state]
    analysis = VulnerabilityAnalysis(
        state=ImpactAnalysisState(state),
        justification=ImpactAnalysisJustification(one.justification) if one.justification else None,
        responses=[ImpactAnalysisResponse(response) for response in responses],
        detail=one.because,
        first_issued=datetime.fromisoformat(one.date),
    )
    return Vulnerability(
        bom_ref=f"{one.id}/{one.purl}", id=one.id, analysis=analysis, affects=[BomTarget(ref=one.purl)]
    )


def loads(content: bytes) -> tuple[Statement, ...]:
    """Read the document. Raises ValueError, LookupError, TypeError."""
    document = json.loads(content)
    if not isinstance(document, dict):
        raise ValueError("it is no CycloneDX document")
    rows = document.get("vulnerabilities", ())
    return tuple(_statement(row, target["ref"]) for row in rows for target in row["affects"])


def _statement(row: Mapping[str, Any], purl: str) -> Statement:
    analysis = row["analysis"]
    found = (analysis["state"], tuple(analysis.get("response", ())))
    state = next((state for state, written in _ANALYSES.items() if written == found), None)
    if state is None:
        raise ValueError(f"{row['id']}: {found[0]} with the response {' '.join(found[1]) or 'none'} is none of ours")
    return Statement(
        id=row["id"],
        purl=purl,
        state=state,
        because=str(analysis.get("detail", "")),
        justification=str(analysis.get("justification", "")),
        date=str(analysis["firstIssued"]),
    )
