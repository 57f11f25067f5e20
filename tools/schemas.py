"""Make the JSON Schemas of verdict.json and evidence.json in docs/schema/, from their types.

What a check measures may be anything by the schema of evidence.json: its type stands in the check
(validate/checks/).
"""

from __future__ import annotations

import json

from images.validation.rows import EvidenceFile, VerdictFile


def generated() -> dict[str, bytes]:
    """Return the schemas: path below the project's root -> content."""
    files = {}
    for name, model in (("verdict", VerdictFile), ("evidence", EvidenceFile)):
        schema = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            **model.model_json_schema(),
        }
        content = json.dumps(schema, indent=1, sort_keys=True) + "\n"
        files[f"docs/schema/{name}.schema.json"] = content.encode()
    return files
