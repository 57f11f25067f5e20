"""An image that stands on one of ours: what is put above it, what that changed, and which claims still hold it. Pure.

A child is held to its parent's claims. What any child may do (add packages, put code into /workspace, have an
entrypoint) is named and no fault; what moves a pin, or breaks what was validated, fails as it would in the parent.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from images.config.facts import Conflict, FailingAddition
from images.engine.configuration import step
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
_NAMES = re.compile(r"(?:^ENV |(?<=\s))([A-Za-z_][A-Za-z0-9_]*)=")
_FREE = {("image", "size"), ("pins", "lock")}
"""Claims that a child need not keep: they are measured and shown."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What a child has beside its parent: packages (name -> version, of moved ones both) and the rest."""

    steps: tuple[str, ...]
    added: Mapping[str, str]
    removed: Mapping[str, str]
    moved: Mapping[str, tuple[str, str]]
    debian: Mapping[str, str] | None
    """Debian package that differs from the parent's -> `5.1`, `5.1 to 5.2`, `removed`; None: no parent is here."""
    variables: tuple[str, ...]
    """Names that the steps set."""
    files: Sequence[StepChange] | None
    """The paths of the parent that each step replaced or removed; None: the engine's layers can't be read here."""

    def lines(self) -> list[str]:
        """In words, a line each kind; Debian's packages and variables count, too."""
        moved = {name: f"{before} to {after}" for name, (before, after) in self.moved.items()}
        debian, unknown = self.debian or {}, self.debian is None
        kinds: Mapping[str, list[str]] = {
            "packages added": _sorted(self.added),
            "packages removed": _sorted(self.removed),
            "packages moved": _sorted(moved),
            "Debian's packages changed": _sorted(debian),
            "variables set": list(self.variables),
        }
        told = [f"{kind}: {len(found)} ({listed(found, limit=30)})" for kind, found in kinds.items() if found]
        for change in self.files or ():
            paths = [*(f"{path} removed" for path in change["removed"])]
            paths += [f"{path}: {difference}" for path, difference in change["replaced"].items()]
            step = change["step"].replace("RUN /bin/sh -c ", "RUN ")[:120]
            examples = listed(paths, limit=10)
            told.append(f"files of the parent changed by `{step}`: {change['count']} ({examples})")
        return [
            f"steps above the parent: {len(self.steps)}",
            *(told or ["no package, variable or file of the parent's differs"]),
            *(["Debian's packages: not compared, the parent is not in this engine"] if unknown else []),
            *(["files: not compared, this engine's layers can't be read here"] if self.files is None else []),
        ]


def _sorted(versions: Mapping[str, str]) -> list[str]:
    return [f"{name} {version}" for name, version in sorted(versions.items())]


def debian_packages(status: str) -> dict[str, str]:
    """Installed package -> version, of dpkg's own database (/var/lib/dpkg/status)."""
    stanzas = (dict(line.partition(": ")[::2] for line in one.splitlines()) for one in status.split("\n\n"))
    installed = (one for one in stanzas if one.get("Status", "").endswith(" installed"))
    return {one["Package"]: one.get("Version", "") for one in installed if "Package" in one}


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
    locked = {name for one in parent.claims if "closed" in one.expect for name in one.expect["versions"]}
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
    return ClaimSet(image=parent.image, claims=(*(_of_child(one, pinned) for one in parent.claims), *added))


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
        expect["leftovers"] = {path: what for path, what in expect["leftovers"].items() if path != _USERS_FILES}
        expect["told"] = list(_TOLD)
    if "labels" in expect:
        expect["labels"] = {name: value for name, value in expect["labels"].items() if name.startswith(_OURS)}
    required = parents.required and (parents.check, parents.subject) not in _FREE
    return replace(parents, expect=expect, required=required)


def changes(
    evidence: Evidence,
    steps: Sequence[str],
    environment: Collection[str] = (),
    debian: tuple[Mapping[str, str], Mapping[str, str]] | None = None,
) -> Changes | None:
    """What a validation run of a child found beside its parent; None where the static tier was not measured.

    `environment`: the child's variables. `debian`: Debian's packages of parent and child.
    """
    lock = next((one for one in evidence.claims if (one.check, one.subject) == ("pins", "lock")), None)
    record = evidence.of(lock.probe) if lock else None
    measured = record.of("lock") if record else None
    if lock is None or measured is None or "error" in measured.evidence:
        return None
    wanted: Mapping[str, str] = lock.expect["versions"]
    found = {name: versions[0] for name, versions in measured.evidence["installed"].items()}
    set_by = [plain for plain in map(step, steps) if plain.startswith("ENV ")]
    return Changes(
        steps=tuple(steps),
        added={name: version for name, version in found.items() if name not in wanted},
        removed={name: version for name, version in wanted.items() if name not in found},
        moved={
            name: (version, found[name])
            for name, version in wanted.items()
            if name in found and found[name].partition("+")[0] != version.partition("+")[0]
        },
        debian=_moved(*debian) if debian else None,
        # What a history has of ENV lacks the quotes: some of these may be parts of values.
        variables=tuple(sorted({name for one in set_by for name in _NAMES.findall(one)}.intersection(environment))),
        files=origin.origin_changes(evidence.records),
    )


def _moved(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Name -> how its version differs."""
    moved = {name: f"{before[name]} to {after[name]}" for name in before.keys() & after.keys()}
    gone = dict.fromkeys(before.keys() - after.keys(), "removed")
    new = {name: after[name] for name in after.keys() - before.keys()}
    return {**new, **gone, **{name: text for name, text in moved.items() if before[name] != after[name]}}
