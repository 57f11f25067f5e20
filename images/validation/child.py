"""An image that stands on one of ours: what is put above it, what that changed, and which claims still hold it. Pure.

A child is held to its parent's claims. What any child may do (add packages, put code into /workspace, have an
entrypoint) is named and no fault; what moves a pin, or breaks what was validated, fails as it would in the parent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from images.config.facts import Conflict, FailingAddition
from images.planning import expectations
from images.validation import origin
from images.validation.claims.context import claim
from validate.checks.static.host_origin import StepChange
from validate.claims import Claim, ClaimSet, ImageKind
from validate.evidence import Evidence
from validate.judging import listed

_OURS = "dev.truetag."
_USERS_FILES = "/workspace/*"
_TOLD = ("/var/cache/apt/*",)
"""Leftovers that other images clean by themselves (Debian's official base: docker-clean) and ours do not."""
_FREE = {("image", "size"), ("pins", "lock")}
"""Claims that a child need not keep: they are measured and shown."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What a child has beside its parent: packages (name -> version, of moved ones both) and the rest."""

    steps: tuple[str, ...]
    added: Mapping[str, str]
    removed: Mapping[str, str]
    moved: Mapping[str, tuple[str, str]]
    files: Sequence[StepChange] | None
    """The paths of the parent that each step replaced or removed; None: the engine's layers can't be read here."""

    def lines(self) -> list[str]:
        """Return sentences about it, one for each kind of change."""
        moved = {name: f"{before} to {after}" for name, (before, after) in self.moved.items()}
        kinds = {
            "packages added": self.added,
            "packages removed": self.removed,
            "packages moved": moved,
        }
        changed = []
        for kind, versions in kinds.items():
            if versions:
                changed.append(f"{kind}: {len(versions)} ({listed(_sorted(versions), limit=30)})")
        for change in self.files or ():
            changed.append(_changed_files(change))

        lines = [f"steps above the parent: {len(self.steps)}"]
        lines += changed or ["no package or file of the parent's differs"]
        if self.files is None:
            lines.append("files: not compared, this engine's layers can't be read here")
        return lines


def _changed_files(change: StepChange) -> str:
    """Return a sentence about the files that one step replaced or removed."""
    paths = [f"{path} removed" for path in change["removed"]]
    paths += [f"{path}: {difference}" for path, difference in change["replaced"].items()]
    step = change["step"].replace("RUN /bin/sh -c ", "RUN ")[:120]
    return f"files of the parent changed by `{step}`: {change['count']} ({listed(paths, limit=10)})"


def _sorted(versions: Mapping[str, str]) -> list[str]:
    return [f"{name} {version}" for name, version in sorted(versions.items())]


def claims(
    parent: ClaimSet,
    known: Mapping[str, str] = MappingProxyType({}),
    *,
    failing: Sequence[FailingAddition] = (),
    conflicts: Sequence[Conflict] = (),
    nvcc: bool = False,
) -> ClaimSet:
    """The parent's claims as a child is held to them, and one of what it adds.

    `known`: package -> why it fails in the parent. `failing`, `conflicts`: what fails in any image
    (facts.yaml). `nvcc`: the parent has it.
    """
    locked = {
        name for one in parent.claims if "closed" in one.expect for name in one.expect["versions"]
    }
    pinned = sorted(locked | {one.subject for one in parent.claims if one.check == "pins"})
    rows = [{"name": name, "unless": [], "why": why} for name, why in known.items()]
    for addition in failing:
        if not (nvcc and "nvcc" in addition.unless):
            rows.append({"name": addition.name, "unless": addition.unless, "why": addition.why})
    together = [{"packages": conflict.packages, "why": conflict.why} for conflict in conflicts]
    added = [
        replace(
            one,
            subject="additions",
            statement="nothing that was added is known to fail in this image",
            expect={"pinned": pinned, "known": rows, "conflicts": together},
        )
        for one in parent.claims
        if (one.check, one.subject) == ("pins", "lock")
    ]
    state = {expression: list(values) for expression, values in expectations.STATE.items()}
    statement = "after `import torch`, Python and torch are as in the parent"
    added.append(claim("state", "after-import", "cpu.state", statement, {"state": state}))
    return ClaimSet(
        image=parent.image, claims=(*(_of_child(one, pinned) for one in parent.claims), *added)
    )


def _of_child(parents: Claim, pinned: list[str]) -> Claim:
    expect = dict(parents.expect)
    if parents.check == "libraries":
        expect["pinned"] = pinned
    if parents.check == "pins" and "closed" in expect:
        expect["closed"] = False
    if "is_derived" in expect:
        expect["is_derived"] = True
    if "denied" in expect:
        expect["allowed"] = list(expectations.CHILDRENS_VARIABLES)
    if "image_kind" in expect:
        expect["image_kind"] = ImageKind.DERIVED
    if "leftovers" in expect:
        expect["leftovers"] = {
            path: what for path, what in expect["leftovers"].items() if path != _USERS_FILES
        }
        expect["told"] = list(_TOLD)
    if "labels" in expect:
        expect["labels"] = {
            name: value for name, value in expect["labels"].items() if name.startswith(_OURS)
        }
    required = parents.required and (parents.check, parents.subject) not in _FREE
    return replace(parents, expect=expect, required=required)


def changes(evidence: Evidence, steps: Sequence[str]) -> Changes | None:
    """Return what a derived image has beside the image below; None where the static tier was not measured.

    `steps`: those above the image below, the first first.
    """
    lock = next(
        (claim for claim in evidence.claims if (claim.check, claim.subject) == ("pins", "lock")),
        None,
    )
    record = evidence.record_of(lock.probe) if lock else None
    measured = record.measurement_of("lock") if record else None
    if lock is None or measured is None or "error" in measured.evidence:
        return None

    locked: Mapping[str, str] = lock.expect["versions"]
    installed = {name: versions[0] for name, versions in measured.evidence["installed"].items()}
    moved = {}
    for name, version in locked.items():
        # `2.7.1+cu126` is a build of 2.7.1.
        if name in installed and installed[name].partition("+")[0] != version.partition("+")[0]:
            moved[name] = (version, installed[name])
    return Changes(
        steps=tuple(steps),
        added={name: version for name, version in installed.items() if name not in locked},
        removed={name: version for name, version in locked.items() if name not in installed},
        moved=moved,
        files=origin.origin_changes(evidence.records),
    )
