"""JSON Schema of the contracts between claims, probes and judges, for docs/schema/evidence.schema.json. Pure.

pydantic reads TypedDicts of the standard library only from Python 3.12 on, and `validate/` has no other.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from validate.contracts import catalogue
from validate.contracts.catalogue import Contract

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


def with_contracts(schema: Schema) -> Schema:
    """The schema of evidence.json, in which each claim's `expect` and each probe's evidence keep to their contract."""
    definitions = Definitions()
    expects = [_claim_rule(number, subject, one, definitions) for number, subject, one in _rows()]
    records = list(_record_rules(definitions))
    found = {name: dict(one) for name, one in schema["$defs"].items()}
    found["ClaimRow"] = {**found["ClaimRow"], "allOf": expects}
    found["RecordRow"] = {**found["RecordRow"], "allOf": records}
    return {**schema, "$defs": {**definitions.found, **found}}


def _rows() -> Iterator[tuple[str, str | None, Contract]]:
    """Number, subject (None: all that have no row of their own) and contract."""
    for number, found in catalogue.CONTRACTS.items():
        if isinstance(found, Contract):
            yield number, None, found
            continue
        for subject, one in found.items():
            yield number, subject or None, one


def _claim_rule(number: str, subject: str | None, one: Contract, definitions: Definitions) -> Schema:
    others = catalogue.CONTRACTS[number]
    asked: Schema = {"id": {"const": number}}
    if subject is not None:
        asked["subject"] = {"const": subject}
    elif not isinstance(others, Contract):
        asked["subject"] = {"not": {"enum": [key for key in others if key]}}
    return {"if": {"properties": asked}, "then": {"properties": {"expect": _or_empty(one.expect, definitions)}}}


def _record_rules(definitions: Definitions) -> Iterator[Schema]:
    """By probe: its subjects may have contracts of their own, one of which the evidence keeps to."""
    by_probe: dict[str, list[Schema]] = {}
    for _, _, one in _rows():
        if one.probe:
            known, schema = by_probe.setdefault(one.probe, []), _measured(one, definitions)
            if schema not in known:
                known.append(schema)
    for probe, schemas in by_probe.items():
        evidence = {"anyOf": [*schemas, {"maxProperties": 0}]}
        items = {"items": {"properties": {"evidence": evidence}}}
        yield {"if": {"properties": {"probe": {"const": probe}}}, "then": {"properties": {"measurements": items}}}


def _measured(one: Contract, definitions: Definitions) -> Schema:
    schema = definitions.of(one.evidence)
    if one.ranks is None:
        return schema
    return {"allOf": [schema, {"properties": {"ranks": {"items": definitions.of(one.ranks)}}}]}


def _or_empty(kind: object, definitions: Definitions) -> Schema:
    """A claim that is known to be unproven may expect nothing."""
    return {"anyOf": [definitions.of(kind), {"maxProperties": 0}]}


def _required(kind: Any) -> frozenset[str]:
    found: frozenset[str] = kind.__required_keys__
    return found
