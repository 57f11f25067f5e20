"""An image that stands on one of ours: what is put above it, what that changed, and which claims still hold it. Pure.

A child is held to its parent's claims. What any child may do (add packages, put code into /workspace, have an
entrypoint) is named and no fault; what moves a pin, or breaks what was validated, fails as it would in the parent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from validate.claims import Claim, ClaimSet
from validate.evidence import Evidence

_LAST_STEPS = ('CMD ["bash"]', "WORKDIR /workspace")
"""How our Dockerfiles end, the last first (templates/stages/image.j2)."""
_OURS = "dev.truetag."
_USERS_FILES = "/workspace/*"
_FREE = {("S8", "size"), ("S8", "settings"), ("S1", "lock")}
"""Claims that a child need not keep: they are measured and shown."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What a child's packages are beside its parent's: name -> version, and for moved ones the parent's first."""

    steps: tuple[str, ...]
    added: Mapping[str, str]
    removed: Mapping[str, str]
    moved: Mapping[str, tuple[str, str]]

    def lines(self) -> list[str]:
        """In words, a line each kind."""
        moved = {name: f"{before} to {after}" for name, (before, after) in self.moved.items()}
        kinds = (("added", self.added), ("removed", self.removed), ("moved", moved))
        told = [
            f"{kind} {len(found)}: {', '.join(f'{name} {version}' for name, version in sorted(found.items()))}"
            for kind, found in kinds
            if found
        ]
        return [f"{len(self.steps)} steps above the parent", *(told or ["no package differs from the parent's"])]


def steps_above(history: Sequence[str]) -> tuple[str, ...] | None:
    """The steps of a child, first to last, from an image's history (newest first); none in the parent itself.

    None: nothing in it looks like one of our images.
    """
    # The classic builder writes something before an instruction.
    plain = [step.removeprefix("/bin/sh -c #(nop) ").strip() for step in history]
    for index in range(len(history) - 1):
        if tuple(plain[index : index + 2]) == _LAST_STEPS:
            return tuple(reversed(history[:index]))
    return None


def claims(parent: ClaimSet) -> ClaimSet:
    """The parent's claims as a child is held to them."""
    return ClaimSet(image=parent.image, claims=tuple(map(_of_child, parent.claims)))


def _of_child(claim: Claim) -> Claim:
    expect = dict(claim.expect)
    if claim.id == "S1" and "closed" in expect:
        expect["closed"] = False
    if "leftovers" in expect:
        expect["leftovers"] = {path: what for path, what in expect["leftovers"].items() if path != _USERS_FILES}
    if "free" in expect:
        expect["free"] = True
    if "labels" in expect:
        expect["labels"] = {name: value for name, value in expect["labels"].items() if name.startswith(_OURS)}
    required = claim.required and (claim.id, claim.subject) not in _FREE
    return replace(claim, expect=expect, required=required)


def changes(evidence: Evidence, steps: Sequence[str]) -> Changes | None:
    """What a validation run of a child found of its packages; None where the static tier was not measured."""
    claim = next((one for one in evidence.claims if (one.id, one.subject) == ("S1", "lock")), None)
    record = evidence.of(claim.probe) if claim else None
    measured = record.of("lock") if record else None
    if claim is None or measured is None or "error" in measured.evidence:
        return None
    wanted: Mapping[str, str] = claim.expect["versions"]
    found = {name: versions[0] for name, versions in measured.evidence["installed"].items()}
    return Changes(
        steps=tuple(steps),
        added={name: version for name, version in found.items() if name not in wanted},
        removed={name: version for name, version in wanted.items() if name not in found},
        moved={
            name: (version, found[name])
            for name, version in wanted.items()
            if name in found and found[name].partition("+")[0] != version.partition("+")[0]
        },
    )
