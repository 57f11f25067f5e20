"""C11: packages that users add, and torch, which stays."""

from __future__ import annotations

from collections.abc import Iterator

from validate.contracts.home import AdditionsEvidence, AdditionsExpect
from validate.judging import Finding, typed, unproven
from validate.judging.text import conclude, telling_line

_REFUSALS = ("ResolutionImpossible", "conflicting dependencies")


@typed
def judge(_subject: str, expect: AdditionsExpect, evidence: AdditionsEvidence) -> Finding:
    """C11. expect: {uid, gid, folder, mount, held}."""
    if evidence["uid"] != expect["uid"]:
        return unproven(f"the probe ran as uid {evidence['uid']}, not {expect['uid']}")
    good = (
        f"pip adds a package for uid {evidence['uid']}, refuses one that wants another torch, "
        f"and torch {evidence['after']['version']} stays; {len(expect['held'])} distributions are held"
    )
    return conclude(_faults(expect, evidence), good)


def _faults(expect: AdditionsExpect, evidence: AdditionsEvidence) -> Iterator[str]:
    held = evidence["constraints"]
    wrong = [f"{name} {held.get(name, 'not')}" for name, version in expect["held"].items() if held.get(name) != version]
    if wrong:
        yield f"the constraints hold {', '.join(wrong[:3])}{' and others' if len(wrong) > 3 else ''} as validated"
    if evidence["plain"]["code"] != 0:
        yield f"pip can't add a package: {telling_line(evidence['plain']['said'])}"
    elif not evidence["imported"].startswith(f"{expect['folder']}/"):
        yield f"the added package is imported from {evidence['imported'] or 'nowhere'}"
    if evidence["control"]["code"] != 0:
        yield f"control: without constraints pip refuses as well ({telling_line(evidence['control']['said'])})"
    said = evidence["mover"]["said"]
    if evidence["mover"]["code"] == 0:
        yield "pip replaces torch where a package asks for another"
    elif not any(word in said for word in _REFUSALS):
        yield f"pip refuses another torch, but not for the constraints: {telling_line(said)}"
    if not evidence["before"]["version"] or evidence["after"] != evidence["before"]:
        yield f"torch was {evidence['before']}, and is {evidence['after']}"
