"""Sets of versions: the newest that the matrix's ranges allow, mixtures of old and new; built, validated, remembered.

Wheels' own metadata always holds, as uv resolves; what the facts know to be wrong is left out beforehand. Versions that
the facts do not know are taken: finding out is what the canary is for.
"""

import json
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import Field

from images.building import validating
from images.building.build import build_all
from images.building.contexts import BuildOptions
from images.config.matrix import Sources
from images.config.names import ImageName
from images.config.schema import Matrix, Nightly
from images.engine import Engine, ImageInfo
from images.engine.failures import BuildFailed
from images.engine.progress import Progress
from images.errors import UserError
from images.host.hashing import sha256
from images.locking import debian, lock_file, measure_records, resolve, uv
from images.locking.inputs import LockInputs
from images.locking.lock_file import Lock
from images.nightly.results import Change, Job
from images.planning import plan
from images.planning.image import Image
from images.validation.containers import suite_files
from images.validation.rows import ClaimRow, Row, StepRow, claim_rows, read_evidence, steps_of
from validate.claims import ORIGIN_PROBE, ClaimSet, Tier
from validate.evidence import Evidence
from validate.judge import Verdict
from validate.judging import Status

_OF_VERSIONS = ("hash", "compile", "resolve", "dockerfile", "other")
"""Causes of a failed build that other versions may not have."""
_SHORT = 12


@dataclass(frozen=True, kw_only=True)
class Locked:
    """An image and the lock it is built from."""

    image: Image
    lock: Lock

    @property
    def versions(self) -> dict[str, str]:
        """Distribution -> version of all Python layers."""
        return self.lock.versions(self.lock.inputs.layers)

    @property
    def hash(self) -> str:
        """Short hash of everything that the lock installs."""
        files = sorted(self.lock.files.items())
        return sha256(b"".join(name.encode() + b"\0" + text + b"\0" for name, text in files))[:_SHORT]


def requirements(control: Locked, wanted: Nightly, refused: Mapping[str, Mapping[str, str]]) -> list[str]:
    """What a canary is resolved from: held layers exactly as they are locked, all other pins from theirs upward.

    torch's layer is held always, or it would be another image.

    `refused` is distribution -> versions that the facts speak against -> why.
    """
    inputs, torch = control.lock.inputs, control.image.pin("torch")
    held = tuple(layer for layer in control.image.layers if layer in wanted.held or (torch and layer == torch.layer))
    ranges = {**wanted.ranges, **wanted.stacks.get(str(control.image.name.torch), {})}
    lines = [f"{name}=={version}" for name, version in control.lock.versions(held).items()]
    lines += [need for layer, needs in inputs.needs.items() if layer not in held for need in needs]
    for layer in (layer for layer in inputs.layers if layer not in held):
        # The pins that the lock is made from: not those that no index has.
        names = {str(canonicalize_name(text.partition("==")[0])) for text in inputs.layers[layer]}
        for pin in (pin for pin in control.image.pins if pin.layer == layer and pin.name in names):
            excluded = [f"!={version}" for version in refused.get(pin.name, {})]
            within, own = ranges.get(pin.name, ""), Version(pin.version)
            ends = [Version(one.version.removesuffix(".*")) for one in SpecifierSet(within)]
            if own not in SpecifierSet(within, prereleases=True) and all(end <= own for end in ends):
                within = ""  # a profile may pin beyond the range of its stack
            allowed = [f">={pin.version}", *filter(None, [within]), *excluded]
            lines.append(f"{pin.name}{','.join(allowed)}")
    return lines


def refused_by_facts(image: Image, sources: Sources) -> dict[str, dict[str, str]]:
    """Distribution -> newer versions that the rules, by what the facts know of them, would refuse here -> why.

    Not for what their metadata requires: uv holds to that, and moves two that require each other together.
    """
    facts, rows = sources.facts, sources.facts.packages.items()
    free = {
        name: {version: row.model_copy(update={"requires": []}) for version, row in known.items()}
        for name, known in rows
    }
    sources = replace(sources, facts=facts.model_copy(update={"packages": free}))
    found: dict[str, dict[str, str]] = {}
    for pin in image.pins:
        for version in (*facts.companions.get(pin.name, {}), *facts.packages.get(pin.name, {})):
            if Version(version) > Version(pin.version):
                matrix = with_pins(sources.matrix, image.name, {pin.name: version})
                if reasons := plan.plan_one(image.name, replace(sources, matrix=matrix)).reasons:
                    found.setdefault(pin.name, {})[version] = "; ".join(reasons)
    return found


def with_pins(matrix: Matrix, name: ImageName, pins: Mapping[str, str]) -> Matrix:
    """The matrix as if these were its pins for one image: in its stack, and in the profiles that pin them over it."""
    torch = str(name.torch)
    stack = {**matrix.stacks[torch], **pins}
    profiles = dict(matrix.profiles)
    for key, profile in profiles.items():
        if own := profile.stacks.get(torch):
            over = {name: pins.get(name, version) for name, version in own.items()}
            profiles[key] = profile.model_copy(update={"stacks": {**profile.stacks, torch: over}})
    return matrix.model_copy(update={"stacks": {**matrix.stacks, torch: stack}, "profiles": profiles})


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A pin that the canary leaves behind its newest release, and why."""

    name: str
    locked: str
    canary: str
    newest: str
    reason: str

    def __str__(self) -> str:
        moved = f", canary {self.canary}" if self.canary != self.locked else ""
        return f"{self.name} {self.locked}{moved}, newest {self.newest}: {self.reason}"


def gaps(
    control: Locked,
    newest: Locked,
    lines: Sequence[str],
    refused: Mapping[str, Mapping[str, str]],
    pythons: Collection[str],
    run: uv.Runner,
) -> tuple[Gap, ...]:
    """Why the canary does not have the newest release of each pin, in the order of the layers, and of its CUDA.

    `lines` and `refused` are what the canary was resolved from. Releases for any of `pythons` count. Raises UserError
    where an index does not answer.
    """
    inputs, image, found = control.lock.inputs, control.image, []
    movable = {Requirement(line).name: line for line in lines if "==" not in line}
    for pin in (*image.pins, *image.toolkit[:1]):  # one part of the toolkit speaks for the others
        of_toolkit = pin in image.toolkit
        name, has = pin.name, pin.version if of_toolkit else newest.versions.get(pin.name, "")
        if not has:  # no index has it
            continue
        every = {python: released(name, python, inputs, run) for python in pythons}
        top = max(filter(None, every.values()), key=Version, default="")
        if not top or Version(top) <= Version(has):
            continue
        if of_toolkit:
            reason = f"this is the image of CUDA {image.toolkit_cuda}: a newer one is another image"
        elif name not in movable:
            reason = f"the layer {pin.layer} stays as it is locked: a newer torch is another stack"
        elif top != every.get(inputs.python):
            others = ", ".join(python for python, version in every.items() if version == top)
            reason = f"it is not for Python {inputs.python}, but for {others}"
        elif top in refused.get(name, {}):
            reason = f"the facts speak against it: {refused[name][top]}"
        else:
            reason = _held_back(name, top, movable[name], lines, newest, run)
        locked = pin.version if of_toolkit else control.versions[name]
        found.append(Gap(name=name, locked=locked, canary=has, newest=top, reason=reason))
    return tuple(found)


def released(name: str, python: str, inputs: LockInputs, run: uv.Runner) -> str:
    """The newest release for a Python; empty: there is none for it."""
    target = replace(inputs, python=python, excluded=())
    try:
        return uv.packages([name], target, chosen={}, run=run, where=name, dependencies=False)[0].version
    except uv.NoSolution:
        return ""


def _held_back(name: str, top: str, line: str, lines: Sequence[str], newest: Locked, run: uv.Runner) -> str:
    """What keeps the newest release out, though it is for this Python and the facts allow it."""
    if not Requirement(line).specifier.contains(top, prereleases=True):
        return f"the range of this run is {line.removeprefix(name)}"
    tried = [one for one in lines if one != line] + [f"{name}=={top}"]
    try:
        uv.versions(tried, newest.lock.inputs, preferred={}, run=run, where=name)
    except uv.NoSolution as error:
        cause = error.problems[0].cause
        asking = re.search(rf"(\S+?)[<>=!~]\S* depends on (?:one of: )?{re.escape(name)}[{{<>=!~]", cause)
        version = newest.versions.get(asking[1]) if asking else None
        return f"{asking[1]} {version} does not allow it" if asking and version else cause
    return "it fits, but other pins are newer without it"


def relocked(control: Locked, chosen: Mapping[str, str], run: uv.Runner = uv.run) -> Locked:
    """The control's image at other versions, locked. `chosen` binds pins; the rest only as far as it still fits."""
    pins = tuple(
        # Builds of torch other than the default index's are named by their local version, which the pin keeps apart.
        replace(pin, version=Version(chosen[pin.name]).public) if pin.name in chosen and not pin.optional else pin
        for pin in control.image.pins
    )
    image = replace(control.image, pins=pins)
    return Locked(image=image, lock=resolve.resolve(image, run, preferred=chosen))


def moves(before: Mapping[str, str], after: Mapping[str, str], pinned: Sequence[str] = ()) -> tuple[Change, ...]:
    """What differs between two sets of packages (name -> version): what is pinned first."""
    others = sorted(name for name in {*before, *after} if name not in pinned)
    return tuple(
        Change(name=name, before=before.get(name, ""), after=after.get(name, ""), pinned=name in pinned)
        for name in (*pinned, *others)
        if before.get(name) != after.get(name)
    )


def mixed(control: Locked, canary: Locked, moved: Set[str], run: uv.Runner = uv.run) -> Locked | None:
    """The control with these packages moved to the canary's versions; None where that can't be had.

    What a moved package asks for moves with it, as far as it must. Raises UserError where the index can't be asked.
    """
    before, after = control.versions, canary.versions
    preferred = {**after, **before, **{name: after[name] for name in moved}}
    try:
        found = relocked(control, preferred, run)
    except uv.NoSolution:
        return None
    versions = found.versions
    return found if all(versions.get(name) == after[name] for name in moved) else None


# --- built, validated, remembered -------------------------------------------------------------------------------------


class SetResult(Row):
    """One set of versions, built and validated."""

    claims: tuple[ClaimRow, ...]
    """Every claim that was judged, the good ones too."""
    digest: str = ""
    bytes: Annotated[int, Field(ge=0)] = 0
    seconds: Annotated[float, Field(ge=0)] = 0.0
    gpus: tuple[str, ...] = ()
    debian: dict[str, str] = {}
    """Debian package -> version, of the control."""
    steps: dict[str, StepRow] = {}
    """Subject of `step` -> the training step."""
    cause: str = ""
    """Why there is no verdict; empty where there is one."""

    def verdict(self, key: str) -> Status | None:
        """The verdict of a claim (`symbols/resolved`); None: it was not judged."""
        return next((claim.verdict for claim in self.claims if claim.key == key), None)


ValidateSet = Callable[[Locked, Sequence[Tier], str], SetResult]
"""Builds these versions and validates these tiers (none: all that the machine can), under a name with this suffix.

Raises UserError for a failure that the versions did not cause: a network, a disk, an engine.
"""


class State:
    """Answers by key, in memory and in a file that only grows; without `resume` it starts empty."""

    def __init__(self, file: Path, *, resume: bool) -> None:
        self._file = file
        self._known: dict[str, Any] = {}
        if not resume:
            file.unlink(missing_ok=True)
        for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
            try:
                row = json.loads(line)
                self._known[row["key"]] = row["answer"]
            except (ValueError, KeyError, TypeError):
                continue  # an interruption cut it off: it is validated again

    def find(self, key: str) -> Any | None:
        return self._known.get(key)

    def keep(self, key: str, answer: Any) -> None:
        self._known[key] = answer
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as file:
            file.write("\n" + json.dumps({"key": key, "answer": answer}))


@dataclass(frozen=True, kw_only=True)
class NightlyOptions:
    """What a nightly run works with. What validates, the resolver and the clock are injected."""

    sources: Sources
    validate: ValidateSet
    state: State
    now: Callable[[], datetime]
    results: Path
    debian_before: Callable[[str], Mapping[str, str]] = lambda _image: {}
    """Debian package -> version of the image that people have, by its name; empty: there is none to compare with."""
    tiers: Sequence[Tier] = ()
    run: uv.Runner = uv.run
    progress: Callable[[str, str], None] = lambda _image, _text: None


def validated(locked: Locked, tiers: Sequence[Tier], label: str, options: NightlyOptions) -> SetResult:
    """A set of versions, validated once: what this run or the one it resumes has validated is taken from the state."""
    names = ",".join(tiers) or "all"
    base = options.sources.workspace.locks / debian.place(locked.image.base)
    packages = sha256(base.read_bytes())[:12] if base.is_file() else "unlocked"
    files = sorted(suite_files(ClaimSet(image="", claims=())).items())
    suite = sha256(b"\0".join(name.encode() + text for name, text in files))[:12]  # another one validates again
    key = f"versions {locked.image.name} {locked.hash} {packages} {options.sources.revision} {suite} {names}"
    if (known := options.state.find(key)) is not None:
        return SetResult.model_validate(known)
    made = options.validate(locked, tiers, label)
    options.state.keep(key, made.model_dump(mode="json"))
    return made


def built(engine: Engine, options: BuildOptions, progress: Progress) -> ValidateSet:
    """Builds with the engine, validates, and leaves no image behind.

    The control is built without a cache: on a base without locked packages it takes Debian's newest. They are read.
    """

    def validate(locked: Locked, tiers: Sequence[Tier], label: str) -> SetResult:
        start, name, installed = time.monotonic(), f"{locked.image.name}-{label}", dict[str, str]()
        # The lock with the RECORDs of its wheels, which `records` asks: written into a folder of locks, beside what is
        # known.
        folder, known = options.out / "locks" / label, options.sources.workspace.locks
        own = {f"{locked.image.lock_name}/{path}": text for path, text in lock_file.written(locked.lock).items()}
        lock_file.write(own, folder)
        lock = lock_file.read(locked.image, folder, known)
        lock_file.put(measure_records.update({str(locked.image.name): lock}, folder), folder)
        lock = lock_file.read(locked.image, folder, known)
        is_control = label == Job.CONTROL
        how = replace(options, suffix=f"-{label}", tiers=tiers or options.tiers, no_cache=is_control)
        try:
            (result,) = build_all(engine, [(locked.image, lock)], how, progress)
            if isinstance(result, UserError):
                if not isinstance(result, BuildFailed) or result.failure.kind not in _OF_VERSIONS:
                    raise result
                cause = f"{result.problems[0].where}: {result.problems[0].cause}"
                return SetResult(claims=(), cause=cause, seconds=round(time.monotonic() - start, 1))
            if is_control:
                installed = validating.debian_packages(engine, result.info)
        finally:
            engine.untag(f"{locked.image.prefix}{name}")
            engine.untag(f"{locked.image.prefix}{name}-candidate")
        evidence = read_evidence(options.out / name / "evidence.json")
        return set_result(result.info, evidence, result.verdict, start, installed)

    return validate


def without_unproven_origin(verdict: Verdict) -> Verdict:
    """Return a verdict without the claim about the origin, unless that failed.

    No build of a canary's lock is recorded before somebody takes it, so its origin is always UNPROVEN. That says
    nothing about its versions: control and canary are compared without the claim.
    """
    counted = [one for one in verdict.claims if one.claim.probe != ORIGIN_PROBE or one.status is Status.FAIL]
    return replace(verdict, claims=tuple(counted))


def set_result(
    info: ImageInfo, evidence: Evidence, verdict: Verdict, start: float, installed: Mapping[str, str] | None = None
) -> SetResult:
    """A verdict as the state of a nightly run has it. `start`: when the work began, by the monotonic clock."""
    return SetResult(
        claims=claim_rows(without_unproven_origin(verdict)),
        digest=info.id,
        bytes=info.size,
        seconds=round(time.monotonic() - start, 1),
        gpus=tuple(str(gpu["name"]) for gpu in evidence.host.get("gpus", ())),
        debian=dict(installed or {}),
        steps=steps_of(verdict.claims),
    )
