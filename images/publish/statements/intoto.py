"""In-toto statements: something that is said of an image's digest. Pure. Source: in-toto attestation framework 1.1."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STATEMENT = "https://in-toto.io/Statement/v1"
TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
PROVENANCE = "https://slsa.dev/provenance/v1"
CYCLONEDX = "https://cyclonedx.org/bom"
SPDX = "https://spdx.dev/Document"
NAMES: Mapping[str, str] = {
    TEST_RESULT: "test result",
    PROVENANCE: "provenance",
    CYCLONEDX: "CycloneDX SBOM",
    SPDX: "SPDX SBOM",
}
"""Predicate type -> what people call it. An image that is published with a key has one of each."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A statement as it is signed: its bytes are its identity."""

    predicate_type: str
    payload: bytes

    @property
    def predicate(self) -> Mapping[str, Any]:
        """Raises ValueError, LookupError."""
        return dict(json.loads(self.payload)["predicate"])


def statement(predicate_type: str, predicate: Mapping[str, Any], *, repository: str, digest: str) -> Statement:
    """Say something of `REPOSITORY@sha256:...`. The same content gives the same bytes."""
    algorithm, _, value = digest.partition(":")
    content = {
        "_type": STATEMENT,
        "subject": [{"name": repository, "digest": {algorithm: value}}],
        "predicateType": predicate_type,
        "predicate": predicate,
    }
    return Statement(
        predicate_type=predicate_type, payload=json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    )


def dumps(predicate: Mapping[str, Any]) -> bytes:
    """A predicate as a file: what `cosign attest --predicate` takes."""
    return (json.dumps(predicate, indent=1, sort_keys=True) + "\n").encode()


def file_name(predicate_type: str) -> str:
    """What a statement of a type is called where it is a file."""
    return NAMES[predicate_type].lower().replace(" ", "-")


def read(payload: bytes) -> Statement:
    """Read a statement. Raises ValueError, LookupError, TypeError."""
    return Statement(predicate_type=str(json.loads(payload)["predicateType"]), payload=payload)
