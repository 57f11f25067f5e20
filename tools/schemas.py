"""docs/schema/: JSON Schemas of verdict.json, evidence.json and audit.json, from the types that write them."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from images.audit.report import AuditFile
from images.validation.schemas import EvidenceFile, VerdictFile
from validate import checks

Schema = dict[str, Any]
_PLAIN: Mapping[object, Schema] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": ["number", "string"]},  # what is not finite is text
    type(None): {"type": "null"},
    object: {},
    Any: {},
}


def generated() -> dict[str, bytes]:
    """Path below the project's root -> JSON Schema."""
    audit = AuditFile.model_json_schema(mode="serialization")
    published = {
        "verdict": VerdictFile.model_json_schema(),
        "evidence": _evidence_schema(),
        "audit": {**audit, "title": "audit.json: what an audit found in an image that nobody validated"},
    }
    dated = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {
        f"docs/schema/{name}.schema.json": (json.dumps({**dated, **one}, indent=1, sort_keys=True) + "\n").encode()
        for name, one in published.items()
    }


def _evidence_schema() -> Schema:
    """Of evidence.json, in which `expect` and evidence keep to the types that their judge is annotated with.

    Subjects of a claim, or of a probe, may have types of their own. A claim that is known to be unproven may expect
    nothing, and what could not be measured has no evidence.
    """
    definitions = Definitions()
    expects: dict[str, dict[int, object]] = {}
    evidence: dict[str, dict[int, object]] = {}
    for probe, file in checks.every():
        for key, judge in file.CLAIMS.items():
            _subject, expected, measured, _finding = get_type_hints(judge).values()
            expects.setdefault(key, {})[id(expected)] = expected
            evidence.setdefault(probe, {})[id(measured)] = measured

    def one_of(kinds: Mapping[int, object]) -> Schema:
        return {"anyOf": [*map(definitions.of, kinds.values()), {"maxProperties": 0}]}

    claim_rules, record_rules = list[Schema](), list[Schema]()
    for key, kinds in expects.items():
        number, _, subject = key.partition(" ")
        others = [one.partition(" ")[2] for one in expects if one.startswith(f"{number} ")]
        asked: Schema = {"id": {"const": number}}
        if others:
            asked["subject"] = {"const": subject} if subject else {"not": {"enum": others}}
        claim_rules.append({"if": {"properties": asked}, "then": {"properties": {"expect": one_of(kinds)}}})
    for probe, kinds in evidence.items():
        measurements = {"items": {"properties": {"evidence": one_of(kinds)}}}
        then = {"properties": {"measurements": measurements}}
        record_rules.append({"if": {"properties": {"probe": {"const": probe}}}, "then": then})
    schema = EvidenceFile.model_json_schema()
    found = schema["$defs"]
    found["Claim"] = {**found["Claim"], "allOf": claim_rules}
    found["Record"] = {**found["Record"], "allOf": record_rules}
    return {**schema, "$defs": {**definitions.found, **found}}


class Definitions:
    """Schemas of types; TypedDicts become definitions that others refer to.

    pydantic reads TypedDicts of the standard library only from Python 3.12 on, and `validate/` has no other.
    """

    def __init__(self) -> None:
        self.found: dict[str, Schema] = {}
        self._kinds: dict[str, object] = {}

    def of(self, kind: Any) -> Schema:
        """Raises TypeError for a type that has no schema here."""
        if kind in _PLAIN:
            return dict(_PLAIN[kind])
        if is_typeddict(kind):
            return self._reference(kind)
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin in (Union, types.UnionType):
            return {"anyOf": [self.of(one) for one in arguments]}
        if origin in (list, Sequence):
            return {"type": "array", "items": self.of(arguments[0])}
        if origin is tuple:
            items = [self.of(one) for one in arguments]
            return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        raise TypeError(f"{kind} has no schema here")

    def _reference(self, kind: Any) -> Schema:
        name, always = kind.__name__, sorted(kind.__required_keys__)
        if self._kinds.setdefault(name, kind) is not kind:
            raise TypeError(f"two types have the name {name}")
        if name not in self.found:
            self.found[name] = {}  # a type that holds itself ends here
            properties = {key: self.of(value) for key, value in get_type_hints(kind).items()}
            required: Schema = {"required": always}
            # What raised, or can't run on this GPU, has nothing else to show.
            if alone := [{"required": [key]} for key in ("error", "gated") if key in properties]:
                required = {"anyOf": [required, *alone]}
            self.found[name] = {"type": "object", "properties": properties, **required}
        return {"$ref": f"#/$defs/{name}"}
