"""What images that stand on one of ours are held to, and what such an image changed of it.

A derived image is one that a user builds with `FROM` one of our images; that image of ours is its
base image. The matrix and the facts say what is known about additions (`derived_rules`); which
claims follow is said in validate/derived.py. Nothing here reads a file or runs a program.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from images.config.facts import Facts
from images.config.matrix import Sources
from images.planning import expectations
from images.planning.image import Image
from images.validation import origin
from validate.checks.static.host_origin import StepChange
from validate.checks.static.pins import KnownConflict, KnownFailure
from validate.checks.static.records import without_local
from validate.derived import LOCK_CLAIM, DerivedRules
from validate.evidence import Evidence
from validate.judging import listed

_STEP_CHARACTERS = 120
"""How much of a step (`RUN pip install ...`) a report quotes."""


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
        """Return the lines of a report: the number of steps, then what changed.

        There is a line for each kind of change to packages that occurs, and one for each step that
        changed files of the base image. A line reads
        `packages moved: 1 (numpy 2.2.6 to 1.26.4)`: the version in the base image comes first.
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
                # `listed` below joins the first 30, and says how many more there are.
                packages = [f"{name} {version}" for name, version in sorted(versions.items())]
                changes.append(f"{kind}: {len(packages)} ({listed(packages, limit=30)})")
        # If files were not compared (None), a line below says so.
        for step_change in self.files or ():
            changes.append(_changed_files(step_change))
        if not changes:
            changes = ["no package or file of the base image differs"]

        lines = [f"steps above the base image: {len(self.steps)}", *changes]
        if self.files is None:
            lines.append("files: not compared, this engine's layers can't be read here")
        return lines


def _changed_files(change: StepChange) -> str:
    """Return a report's line on the files of the base image that one step replaced or removed.

    It reads: files of the base image changed by `RUN rm /usr/bin/less`: 1 (/usr/bin/less removed)

    `change` has the text of the build step, and the paths: `removed`, and `replaced` (path -> what
    differs, such as `content`). Both may be cut; `count` is the number of all paths.
    """
    paths = []
    for path in change["removed"]:
        paths.append(f"{path} removed")
    for path, difference in change["replaced"].items():
        paths.append(f"{path}: {difference}")
    files = listed(paths, limit=10)

    # A history has the words of the shell before each command.
    step = change["step"].replace("RUN /bin/sh -c ", "RUN ")
    step = step[:_STEP_CHARACTERS]
    count = change["count"]
    return f"files of the base image changed by `{step}`: {count} ({files})"


def derived_rules(image: Image, sources: Sources) -> DerivedRules:
    """Return what is known about images that users build on this one (`FROM image`).

    For example, which packages are known to fail in them (`failing`), which releases fail together
    (`conflicts`), and which environment variables users may set (`allowed_variables`). The result
    is stored as JSON; DerivedRules explains all its keys.
    """
    conflicts: list[KnownConflict] = []
    for conflict in sources.facts.conflicts:
        conflicts.append({"packages": conflict.packages, "why": conflict.why})
    # Python expression -> the values that it may have.
    state = {expression: list(values) for expression, values in expectations.STATE.items()}
    return {
        "failing": failing_packages(image, sources.facts),
        "conflicts": conflicts,
        "state": state,
        "allowed_variables": list(expectations.ALLOWED_VARIABLES),
        "harmless_variables": list(expectations.HARMLESS_VARIABLES),
        "folder_variables": list(expectations.FOLDER_VARIABLES),
    }


def failing_packages(image: Image, facts: Facts) -> list[KnownFailure]:
    """Return the packages and environment variables that fail if a user adds them to an image.

    Each has a `name`, and the reason with a remedy (`why`). One package or variable that is listed
    in `unless` is enough to make it work. `facts` is what is known of packages in any image.
    """
    failures: list[KnownFailure] = []
    # Packages that nobody maintains any longer.
    for name, replacement in facts.replaced.items():
        why = f"it is no longer maintained: take {replacement.by}"
        failures.append({"name": name, "unless": [], "why": why})

    # Packages of which no release is made for the image's torch.
    for name, reason in image.unfit.items():
        why = (
            f"{reason}: remove it (`pip uninstall {name}`), "
            "or take an image of a torch that it is made for (`plan` lists them)"
        )
        failures.append({"name": name, "unless": [], "why": why})

    # Packages that need something else beside them.
    for addition in facts.failing_additions:
        # nvcc, the CUDA compiler, is neither a package nor a variable, so the judge of a derived
        # image would not find it. `devel` images have it: there, such an addition does not fail.
        works_with_nvcc = "nvcc" in addition.unless
        if not (image.name.devel and works_with_nvcc):
            failures.append({"name": addition.name, "unless": addition.unless, "why": addition.why})
    return failures


def _read_versions(evidence: Evidence) -> tuple[Mapping[str, str], Mapping[str, str]] | None:
    """Return the versions of packages before and after a user built an image on one of ours.

    The first mapping is package -> version in the lock of our image, the second is the same as it
    is installed in the user's. None if a run did not measure this (the claim pins/lock), or if its
    test could not list the packages.
    """
    lock_claims = [claim for claim in evidence.claims if claim.key == LOCK_CLAIM]
    if not lock_claims:
        return None
    record = evidence.record_of(lock_claims[0].probe)
    measurement = record.measurement_of("lock") if record else None
    # A probe that could not list the packages says so as `error`.
    if measurement is None or "error" in measurement.evidence:
        return None

    installed: dict[str, str] = {}
    for name, versions in measurement.evidence["installed"].items():
        # If there are several copies of a package, Python imports the first.
        installed[name] = versions[0]
    return lock_claims[0].expect["versions"], installed


def find_changes(evidence: Evidence, steps: Sequence[str]) -> Changes | None:
    """Return the packages and files that a user changed in an image built FROM one of ours.

    `evidence` is what was measured in the user's image: the claim pins/lock has the versions of our
    image's packages, and its probe has listed what is installed in the user's. `steps` are the
    user's build steps, in their order. Returns None if the installed packages were not listed.
    """
    versions = _read_versions(evidence)
    if versions is None:
        return None
    locked, installed = versions

    added: dict[str, str] = {}
    for name, version in installed.items():
        if name not in locked:
            added[name] = version

    removed: dict[str, str] = {}
    moved: dict[str, tuple[str, str]] = {}
    for name, version in locked.items():
        if name not in installed:
            removed[name] = version
        # `2.7.1+cu126` is a build of 2.7.1.
        elif without_local(installed[name]) != without_local(version):
            moved[name] = (version, installed[name])

    return Changes(
        steps=tuple(steps),
        added=added,
        removed=removed,
        moved=moved,
        files=origin.origin_changes(evidence.records),
    )
