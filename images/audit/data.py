"""audit.json: what an audit found, with a schema of its own, so that nobody takes it for a verdict. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter

from images.audit.model import NO_VALIDATION, Audit


class AuditFile(BaseModel):
    """audit.json. Keys that are not listed are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["truetag-audit"] = "truetag-audit"
    schema_version: Literal[1] = 1
    notice: str = NO_VALIDATION
    audit: Audit


def dumps(audit: Audit) -> str:
    """The content of audit.json, in ASCII."""
    plain: Any = TypeAdapter(AuditFile).dump_python(AuditFile(audit=audit), mode="json")
    return json.dumps(plain, indent=1) + "\n"


def evidence(entries: Sequence[Mapping[str, Any]]) -> str:
    """The content of audit-evidence.json: what each check was judged from."""
    return json.dumps({"kind": "truetag-audit-evidence", "schema_version": 1, "entries": entries}, indent=1) + "\n"


def generated() -> dict[str, bytes]:
    """docs/schema/audit.schema.json."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **AuditFile.model_json_schema(mode="serialization"),
    }
    title = "audit.json: what an audit found in an image that nobody validated"
    return {
        "docs/schema/audit.schema.json": (
            json.dumps({**schema, "title": title}, indent=1, sort_keys=True) + "\n"
        ).encode()
    }
