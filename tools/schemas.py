"""docs/schema/: JSON Schemas of verdict.json and evidence.json, from the types that write them.

What a check measures is said where it is judged (validate/checks/), and is free in evidence.json's.
"""

from __future__ import annotations

import json

from images.validation.rows import EvidenceFile, VerdictFile


def generated() -> dict[str, bytes]:
    """Path below the project's root -> JSON Schema."""
    published = {
        "verdict": VerdictFile.model_json_schema(),
        "evidence": EvidenceFile.model_json_schema(),
    }
    dated = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {
        f"docs/schema/{name}.schema.json": (
            json.dumps({**dated, **one}, indent=1, sort_keys=True) + "\n"
        ).encode()
        for name, one in published.items()
    }
