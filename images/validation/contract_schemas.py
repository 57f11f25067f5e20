"""JSON Schema of what each check expects and measures, for docs/schema/evidence.schema.json. Pure.

pydantic reads TypedDicts of the standard library only from Python 3.12 on, and `validate/` has no other.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints, is_typeddict

from validate import checks

Schema = dict[str, Any]

_PLAIN: Mapping[object, Schema] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": ["number", "string"]},  # what is not finite is text
    type(None): {"type": "null"},
    object: {},
}


class Definitions:
    """Schemas of types; TypedDicts become definitions that others refer to."""

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
        name = kind.__name__
        if self._kinds.setdefault(name, kind) is not kind:
            raise TypeError(f"two contracts have the name {name}")
        if name not in self.found:
            self.found[name] = {}  # a type that holds itself ends here
            properties = {key: self.of(value) for key, value in get_type_hints(kind).items()}
            required: Schema = {"required": sorted(_required(kind))}
            # What raised, or can't run on this GPU, has nothing else to show.
            if alone := [{"required": [key]} for key in ("error", "gated") if key in properties]:
                required = {"anyOf": [required, *alone]}
            self.found[name] = {"type": "object", "properties": properties, **required}
        return {"$ref": f"#/$defs/{name}"}


class _Row(NamedTuple):
    key: str
    """`ID`, or `ID SUBJECT`: a key of CLAIMS in a check file."""
    probe: str
    expect: object
    evidence: object


def with_contracts(schema: Schema) -> Schema:
    """The schema of evidence.json, in which `expect` and evidence keep to the types of their check."""
    definitions = Definitions()
    rows = list(_rows())
    expects = [_claim_rule(key, rows, definitions) for key in dict.fromkeys(row.key for row in rows)]
    records = [_record_rule(probe, rows, definitions) for probe in dict.fromkeys(row.probe for row in rows)]
    found = {name: dict(one) for name, one in schema["$defs"].items()}
    found["ClaimRow"] = {**found["ClaimRow"], "allOf": expects}
    found["RecordRow"] = {**found["RecordRow"], "allOf": records}
    return {**schema, "$defs": {**definitions.found, **found}}


def _rows() -> Iterator[_Row]:
    """Every claim of every check, with the types that its judge is annotated with."""
    for probe, file in checks.every():
        for key, judge in file.CLAIMS.items():
            _subject, expect, evidence, _finding = get_type_hints(judge).values()
            yield _Row(key, probe, expect, evidence)


def _claim_rule(key: str, rows: Sequence[_Row], definitions: Definitions) -> Schema:
    number, _, subject = key.partition(" ")
    asked: Schema = {"id": {"const": number}}
    named = [row.key.partition(" ")[2] for row in rows if row.key.startswith(f"{number} ")]
    if subject:
        asked["subject"] = {"const": subject}
    elif named:
        asked["subject"] = {"not": {"enum": named}}
    kinds = {id(row.expect): row.expect for row in rows if row.key == key}
    # A claim that is known to be unproven may expect nothing.
    expect = {"anyOf": [*map(definitions.of, kinds.values()), {"maxProperties": 0}]}
    return {"if": {"properties": asked}, "then": {"properties": {"expect": expect}}}


def _record_rule(probe: str, rows: Sequence[_Row], definitions: Definitions) -> Schema:
    """Subjects of a probe may have types of their own, one of which the evidence keeps to."""
    kinds = {id(row.evidence): row.evidence for row in rows if row.probe == probe}
    evidence = {"anyOf": [*map(definitions.of, kinds.values()), {"maxProperties": 0}]}
    items = {"items": {"properties": {"evidence": evidence}}}
    return {"if": {"properties": {"probe": {"const": probe}}}, "then": {"properties": {"measurements": items}}}


def _required(kind: Any) -> frozenset[str]:
    found: frozenset[str] = kind.__required_keys__
    return found
