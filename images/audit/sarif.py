"""An audit for GitHub: SARIF 2.1.0, and workflow commands that annotate a pull request. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

from images.audit.model import NO_VALIDATION, Audit, Check, Severity

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def dumps(audit: Audit, location: str) -> str:
    """SARIF of all faults. `location`: the file of the repository that they are shown at, a Dockerfile say."""
    faults = audit.faults()
    rules = {rule_id(one): one for one in faults}
    run = {
        "tool": {
            "driver": {
                "name": "truetag audit",
                "rules": [
                    {"id": name, "shortDescription": {"text": name}, "help": _help(rules[name])} for name in rules
                ],
            }
        },
        "properties": {"notice": NO_VALIDATION, "image": audit.image, "digest": audit.digest},
        "results": [_result(one, location) for one in faults],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def commands(audit: Audit, location: str) -> Iterator[str]:
    """One workflow command a fault (GitHub, "Workflow commands": `::error file=...,title=...::text`)."""
    for one in audit.faults():
        title = _property(f"audit: {rule_id(one)}")
        yield f"::{_COMMANDS[one.severity]} file={_property(location)},line=1,title={title}::{_data(told(one))}"


def rule_id(one: Check) -> str:
    """`S3-libraries`."""
    return f"{one.id}-{one.subject}".replace(" ", "-")


def told(one: Check) -> str:
    """A fault in one paragraph: where, what, and what to do."""
    where = f"{one.environment}: " if one.environment else ""
    return f"{where}{one.text}{_advice(one)}"


def _advice(one: Check) -> str:
    known = "".join(f" Cause: {hint.cause} Fix: {hint.fix}" for hint in one.hints[:1])
    return known or (f" Fix: {one.fix}." if one.fix else "")


def _help(one: Check) -> dict[str, str]:
    return {"text": _advice(one).strip() or "see docs/audit.md"}


def _result(one: Check, location: str) -> dict[str, object]:
    fingerprint = hashlib.sha256(f"{one.id} {one.subject} {one.environment} {one.text}".encode()).hexdigest()
    return {
        "ruleId": rule_id(one),
        "level": str(one.severity),
        "message": {"text": told(one)},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": {"uri": location}, "region": {"startLine": 1}},
                "logicalLocations": [{"fullyQualifiedName": one.environment or "image"}],
            }
        ],
        "partialFingerprints": {"truetagAudit/v1": fingerprint},
    }


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
