"""An image's SBOM as SPDX 2.3, made of the CycloneDX one: both list the same packages. Pure.

Written here because `spdx-tools` (0.8), the reference library, brings an RDF stack for a document of four keys. Tests
hold what is written against its validator.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

_UNKNOWN = "NOASSERTION"
_NAMESPACE = "https://truetag.dev/spdx"
_ROOT = "SPDXRef-image"


def document(cyclonedx: bytes) -> dict[str, Any]:
    """The SPDX document of a CycloneDX SBOM. The same SBOM gives the same document. Raises ValueError, LookupError."""
    bom = json.loads(cyclonedx)
    image = bom["metadata"]["component"]
    rows = list(_rows(bom))
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": str(image["name"]),
        "documentNamespace": f"{_NAMESPACE}/{image['name']}-{uuid.uuid5(uuid.NAMESPACE_URL, bom['serialNumber'])}",
        "creationInfo": {"created": _created(bom["metadata"]["timestamp"]), "creators": ["Tool: truetag"]},
        "packages": [_image(image), *(_package(reference, component) for reference, _, component in rows)],
        "relationships": [
            _relationship("SPDXRef-DOCUMENT", "DESCRIBES", _ROOT),
            *(_relationship(parent, "CONTAINS", reference) for reference, parent, _ in rows),
        ],
    }


def urls(found: Mapping[str, Any]) -> frozenset[str]:
    """The package URLs of a document. Raises LookupError, TypeError."""
    references = [one for package in found["packages"] for one in package.get("externalRefs", ())]
    return frozenset(str(one["referenceLocator"]) for one in references if one["referenceType"] == "purl")


def cyclonedx_urls(content: bytes) -> frozenset[str]:
    """The package URLs of a CycloneDX SBOM. Raises ValueError."""
    return frozenset(str(row["purl"]) for _, _, row in _rows(json.loads(content)) if row.get("purl"))


def _rows(bom: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Identifier, identifier of what contains it, and component; components inside components, too."""
    used: set[str] = set()
    waiting = [(_ROOT, component) for component in reversed(bom.get("components", ()))]
    while waiting:
        parent, component = waiting.pop()
        reference = _identifier(component, used)
        yield reference, parent, component
        waiting += [(reference, inner) for inner in reversed(component.get("components", ()))]


def _identifier(component: Mapping[str, Any], used: set[str]) -> str:
    """Unique in the document: SPDX allows letters, digits, dots and hyphens."""
    kind = str(component.get("purl", "")).partition("/")[0].removeprefix("pkg:") or "package"
    words = f"{kind}-{component['name']}-{component.get('version', '')}"
    plain = re.sub(r"[^A-Za-z0-9.-]+", "-", f"SPDXRef-{words}").strip("-")
    found, number = plain, 2
    while found in used:
        found, number = f"{plain}-{number}", number + 1
    used.add(found)
    return found


def _image(component: Mapping[str, Any]) -> dict[str, Any]:
    algorithm, _, value = str(component["version"]).partition(":")
    return {
        **_common(_ROOT, component),
        "primaryPackagePurpose": "CONTAINER",
        "checksums": [{"algorithm": algorithm.upper(), "checksumValue": value}],
    }


def _package(reference: str, component: Mapping[str, Any]) -> dict[str, Any]:
    found = {**_common(reference, component), "licenseDeclared": _licence(component)}
    if url := component.get("purl"):
        row = {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": url}
        found["externalRefs"] = [row]
    return found


def _common(reference: str, component: Mapping[str, Any]) -> dict[str, Any]:
    version = component.get("version")
    return {
        "SPDXID": reference,
        "name": component["name"],
        **({"versionInfo": version} if version else {}),
        "downloadLocation": _UNKNOWN,
        "filesAnalyzed": False,
        "licenseConcluded": _UNKNOWN,
        "copyrightText": _UNKNOWN,
    }


def _licence(component: Mapping[str, Any]) -> str:
    """An SPDX expression; licences that only have a name have none."""
    rows = component.get("licenses", ())
    found = [row.get("expression") or row.get("license", {}).get("id") for row in rows]
    return " AND ".join(found) if found and all(found) else _UNKNOWN


def _relationship(element: str, kind: str, related: str) -> dict[str, str]:
    return {"spdxElementId": element, "relationshipType": kind, "relatedSpdxElement": related}


def _created(timestamp: str) -> str:
    return datetime.fromisoformat(timestamp).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
