"""The claims that hold for a derived image, and what it changed of its base image.

A derived image is one that a user builds with `FROM` one of our images; that image of ours is its
base image. The derived image is held to the claims of its base image. It may add packages, put code
into /workspace and set an entrypoint: that is listed and no fault. What moves a pinned package, or
breaks what was validated, fails as it would in the base image. Nothing here reads a file or runs a
program.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from images.config.facts import Conflict, FailingAddition
from images.planning import expectations
from images.validation import origin
from images.validation.claims.context import claim
from validate.checks.static.host_origin import StepChange
from validate.checks.static.pins import AdditionsExpect, KnownFailure
from validate.claims import Claim, ClaimSet, ImageKind
from validate.evidence import Evidence
from validate.judging import listed

_OUR_LABELS = "dev.truetag."
"""How the names of our own labels begin."""
_USERS_FILES = "/workspace/*"
"""The pattern of leftovers that our own images must not have, and where users put their files."""
_REPORTED_LEFTOVERS = ("/var/cache/apt/*",)
"""Leftovers that are reported and no fault: Debian's official base image cleans them by itself
(docker-clean), and ours does not.
"""
_NOT_REQUIRED = ("image/size", "pins/lock")
"""Claims that a derived image need not keep. They are measured and shown."""
_LOCK_CLAIM = "pins/lock"
"""The claim whose probe lists every installed package, beside the versions of the lock."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What a derived image changed of its base image. Stored as changes.json."""

    steps: tuple[str, ...]
    """The build steps above the base image, the first first."""
    added: Mapping[str, str]
    """Package -> its version in the derived image."""
    removed: Mapping[str, str]
    """Package -> its version in the base image."""
    moved: Mapping[str, tuple[str, str]]
    """Package -> its versions in the base image and in the derived image."""
    files: Sequence[StepChange] | None
    """The files of the base image that each step replaced or removed.

    None: the engine's layers can't be read here.
    """

    def lines(self) -> list[str]:
        """Return the lines of a report: the number of steps, then one for each kind of change.

        A line reads `packages moved: 1 (numpy 2.2.6 to 1.26.4)`.
        """
        moved = {name: f"{before} to {after}" for name, (before, after) in self.moved.items()}
        packages_by_kind = {
            "packages added": self.added,
            "packages removed": self.removed,
            "packages moved": moved,
        }
        changes = []
        for kind, versions in packages_by_kind.items():
            if versions:
                packages = [f"{name} {version}" for name, version in sorted(versions.items())]
                changes.append(f"{kind}: {len(packages)} ({listed(packages, limit=30)})")
        # None (not compared) is added below.
        for step_change in self.files or ():
            changes.append(_changed_files(step_change))
        if not changes:
            changes = ["no package or file of the base image differs"]

        lines = [f"steps above the base image: {len(self.steps)}", *changes]
        if self.files is None:
            lines.append("files: not compared, this engine's layers can't be read here")
        return lines


def _changed_files(change: StepChange) -> str:
    """Return a report's line on the files of the base image that one step replaced or removed."""
    paths = [f"{path} removed" for path in change["removed"]]
    paths += [f"{path}: {difference}" for path, difference in change["replaced"].items()]
    step = change["step"].replace("RUN /bin/sh -c ", "RUN ")[:120]
    files = f"{change['count']} ({listed(paths, limit=10)})"
    return f"files of the base image changed by `{step}`: {files}"


def derived_claims(
    base: ClaimSet,
    known: Mapping[str, str] = MappingProxyType({}),
    *,
    failing: Sequence[FailingAddition] = (),
    conflicts: Sequence[Conflict] = (),
    has_nvcc: bool = False,
) -> ClaimSet:
    """Return the claims that a derived image is held to.

    They are the claims of its base image, loosened where a derived image may differ, a claim about
    the packages that it adds, and one about the state after `import torch`.

    `base`: the claims of the base image. `known`: package -> why it fails in this base image.
    `failing`: packages that fail in any image. `conflicts`: releases that fail together in any
    image. Both are rows of facts.yaml. `has_nvcc`: whether the base image has nvcc, with which some
    of the failing packages work.
    """
    pinned = _pinned_packages(base)
    claims = [_loosened(base_claim, pinned) for base_claim in base.claims]

    additions: AdditionsExpect = {
        "pinned": pinned,
        "known": _failing_packages(known, failing, has_nvcc=has_nvcc),
        "conflicts": [
            {"packages": conflict.packages, "why": conflict.why} for conflict in conflicts
        ],
    }
    for base_claim in base.claims:
        if base_claim.key == _LOCK_CLAIM:
            claims.append(_additions_claim(base_claim, additions))

    # Expression -> the values that it may have.
    state = {expression: list(values) for expression, values in expectations.STATE.items()}
    statement = "after `import torch`, Python and torch are as in the parent"
    claims.append(claim("state", "after-import", "cpu.state", statement, {"state": state}))
    return ClaimSet(image=base.image, claims=tuple(claims))


def _additions_claim(lock_claim: Claim, expect: AdditionsExpect) -> Claim:
    """Return the claim that none of the packages that were added is known to fail.

    It is like the claim on the lock, whose probe lists the installed packages.
    """
    return replace(
        lock_claim,
        subject="additions",
        statement="nothing that was added is known to fail in this image",
        expect={**expect},
    )


def _pinned_packages(base: ClaimSet) -> list[str]:
    """Return what no addition may move, sorted: packages of the base image's lock, and its pins."""
    pinned: set[str] = set()
    for base_claim in base.claims:
        if base_claim.check == "pins":
            pinned.add(base_claim.subject)
        # Only the claim on the lock has `closed`: whether the image may hold no other package.
        if "closed" in base_claim.expect:
            pinned |= set(base_claim.expect["versions"])
    return sorted(pinned)


def _failing_packages(
    known: Mapping[str, str], failing: Sequence[FailingAddition], *, has_nvcc: bool
) -> list[KnownFailure]:
    """Return the packages, and variables, that fail when they are added to the base image.

    For each there is the reason, and anything that makes it work after all (`unless`): another
    package, or a variable. The parameters are those of `derived_claims`.
    """
    rows: list[KnownFailure] = []
    for name, reason in known.items():
        rows.append({"name": name, "unless": [], "why": reason})
    for addition in failing:
        # nvcc is neither a package nor a variable, so the judge would not find it.
        works_with_nvcc = "nvcc" in addition.unless
        if not (has_nvcc and works_with_nvcc):
            rows.append({"name": addition.name, "unless": addition.unless, "why": addition.why})
    return rows


def _loosened(base_claim: Claim, pinned: list[str]) -> Claim:
    """Return a claim of the base image as a derived image is held to it.

    Which claims are loosened is told by the keys of what they expect, so that it holds for every
    claim of a check. Their judges know what each key means. `pinned`: the packages that no addition
    may move.
    """
    expect = dict(base_claim.expect)
    # The judges of these are told that the image is a derived one: `image/settings` and others then
    # accept its own user and entrypoint, `origin/layers` accepts layers on top of ours.
    if "image_kind" in expect:
        expect["image_kind"] = ImageKind.DERIVED
    if "is_derived" in expect:
        expect["is_derived"] = True

    # Packages beyond the lock are no fault, and may lack libraries that ours must find.
    if "closed" in expect:
        expect["closed"] = False
    if base_claim.check == "libraries":
        expect["pinned"] = pinned

    # Variables that a user may set although our own images must not have them.
    if "denied" in expect:
        expect["allowed"] = list(expectations.CHILDRENS_VARIABLES)

    # Users put their files into /workspace.
    if "leftovers" in expect:
        leftovers = dict(expect["leftovers"])
        leftovers.pop(_USERS_FILES, None)
        expect["leftovers"] = leftovers
        expect["told"] = list(_REPORTED_LEFTOVERS)

    # Labels that do not name us, such as the title, are the user's to set.
    if "labels" in expect:
        labels = {}
        for name, value in expect["labels"].items():
            if name.startswith(_OUR_LABELS):
                labels[name] = value
        expect["labels"] = labels
    required = base_claim.required and base_claim.key not in _NOT_REQUIRED
    return replace(base_claim, expect=expect, required=required)


def find_changes(evidence: Evidence, steps: Sequence[str]) -> Changes | None:
    """Return what a derived image changed of its base image; None if its packages were not listed.

    `evidence`: of the derived image. Its packages are compared with the versions of the lock that
    stand in its claim pins/lock. `steps`: the build steps above the base image, the first first.
    """
    # The claim on the lock and what its probe measured. A run of some claims only may lack them.
    lock_claims = [claim for claim in evidence.claims if claim.key == _LOCK_CLAIM]
    if not lock_claims:
        return None
    record = evidence.record_of(lock_claims[0].probe)
    measurement = record.measurement_of("lock") if record else None
    if measurement is None or "error" in measurement.evidence:
        return None

    locked: Mapping[str, str] = lock_claims[0].expect["versions"]
    # Of several copies of a package, Python imports the first.
    installed = {name: versions[0] for name, versions in measurement.evidence["installed"].items()}
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
