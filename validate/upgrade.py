"""Reads evidence of schema version 1 as version 2: only names change, a recorded run keeps its verdicts. Pure.

Files of version 1 have no `schema_version`. A verdict.json of version 1 is not read: judge its evidence again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

SCHEMA_VERSION = 2

Json = dict[str, Any]

_PROBES = {"cpu.stranger": "cpu.arbitrary_uid"}
_SUBJECTS = {("C8", "unknown user"): "arbitrary UID", ("S5", "sliced"): "pruned"}
_MEASURED_SUBJECTS = {("cpu.stranger", "unknown user"): "arbitrary UID", ("static.devicecode", "sliced"): "pruned"}
_DEVICE_CODE_KINDS = {"kernel": "kernels", "file": "files", "surplus": "pruned"}


def evidence(data: Mapping[str, Any]) -> Json:
    """The content of an evidence.json, without its `sha256`, as version 2. Raises ValueError: an unknown version."""
    version = data.get("schema_version", 1)
    if version == SCHEMA_VERSION:
        return dict(data)
    if version != 1:
        raise ValueError(f"schema version {version} is not known here, {SCHEMA_VERSION} is")
    return {
        **data,
        "schema_version": SCHEMA_VERSION,
        "claims": [_claim(one) for one in data.get("claims", ())],
        "records": [_record(one) for one in data["records"]],
    }


def verdict(data: Mapping[str, Any]) -> Json:
    """The content of a verdict.json with the subjects of version 2."""
    rows = [{**row, "subject": _SUBJECTS.get((row["id"], row["subject"]), row["subject"])} for row in data["claims"]]
    return {**data, "claims": rows}


def _claim(old: Mapping[str, Any]) -> Json:
    renamed = {"statement" if key == "promise" else key: value for key, value in old.items()}
    change = _EXPECTS.get(old["id"])
    expect = old.get("expect", {})
    return {
        **renamed,
        "subject": _SUBJECTS.get((old["id"], old["subject"]), old["subject"]),
        "probe": _PROBES.get(old["probe"], old["probe"]),
        "expect": change(expect) if change and expect else expect,
    }


def _record(old: Mapping[str, Any]) -> Json:
    probe = old["probe"]
    measurements = [
        {
            **one,
            "subject": _MEASURED_SUBJECTS.get((probe, one["subject"]), one["subject"]),
            "evidence": _measured(probe, one["evidence"]),
        }
        for one in old.get("measurements", ())
    ]
    return {**old, "probe": _PROBES.get(probe, probe), "measurements": measurements}


def _measured(probe: str, old: Mapping[str, Any]) -> Json:
    if probe == "static.devicecode":
        return {**old, "files": {path: _code(facts) for path, facts in old["files"].items()}}
    if probe == "gpu.llama":
        return _keys(old, {"again": "second_run"})
    if probe == "multigpu.shared_memory":
        return _keys(old, {"refuses more": "refuses_more", "handed over": "handed_over"})
    if probe == "multigpu.collectives" and "ranks" in old:
        return {**old, "ranks": [_collectives(rank) for rank in old["ranks"]]}
    return dict(old)


def _code(facts: Mapping[str, Any]) -> Json:
    """Marks of what was taken out, and regions that stay whole, were not counted from the beginning."""
    if "error" in facts:
        return dict(facts)
    counted = {"marked": [], "marked_bytes": 0, "whole": 0} if "surplus" in facts else {"hidden": {}}
    return {**counted, **facts}


def _collectives(rank: Mapping[str, Any]) -> Json:
    new = _keys(rank, {"peer access": "peer_access"})
    if "libraries" in new:
        new["libraries"] = [
            {**library, "owners": [_keys(owner, {"as recorded": "as_recorded"}) for owner in library["owners"]]}
            for library in new["libraries"]
        ]
    return new


def _keys(old: Mapping[str, Any], names: Mapping[str, str]) -> Json:
    return {names.get(key, key): value for key, value in old.items()}


def _device_code(old: Mapping[str, Any]) -> Json:
    """One claim whose `depth` said what it is became three kinds, each with what it expects and no more."""
    kind = _DEVICE_CODE_KINDS[old["depth"]]
    if kind == "pruned":
        own = {"files": old["also"], "nvidia": old["nvidia"], "by_design_of": old.get("by_design_of", {})}
        return {"kind": kind, "archs": old["archs"], **own}
    own = {"files": old["files"], "also": old.get("also", []), "known_gaps": old.get("holes", [])}
    by_design = {"by_design": old.get("by_design", [])} if kind == "kernels" else {}
    return {"kind": kind, "archs": old["archs"], **own, **by_design}


def _kernel(old: Mapping[str, Any]) -> Json:
    return _keys(old, {"ran": "expected_kernels"})


def _pins(old: Mapping[str, Any]) -> Json:
    return dict(old) if "versions" in old else {"shares": [], **old}


def _hygiene(old: Mapping[str, Any]) -> Json:
    return {"entrypoint": [], **old} if "capabilities" in old else dict(old)


_EXPECTS: Mapping[str, Callable[[Mapping[str, Any]], Json]] = {
    "C1": lambda old: {"after": True, **old},
    "S1": _pins,
    "S5": _device_code,
    "S8": _hygiene,
    "C7": lambda old: _keys({"apart": {}, **old}, {"apart": "bundled"}),
    **dict.fromkeys((f"G{number}" for number in range(1, 10)), _kernel),
    "M1": lambda old: _keys({"ranks": None, **old}, {"lent": "injected"}),
    "M6": lambda old: _keys(old, {"floor": "minimum"}),
}
