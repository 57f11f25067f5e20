"""Choose, build and validate sets of versions for a nightly run.

The control is the committed lock. The canary has the newest versions that the ranges of matrix.yaml
allow. A bisection tries mixtures of both. uv resolves every set, so what wheels require by their
own metadata always holds. Versions that the facts know to be wrong are left out beforehand.
Versions that the facts do not know are taken: the canary is there to find out about them.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from images.building.build import build_all
from images.building.contexts import BuildOptions
from images.config.facts import Facts
from images.config.matrix import Sources
from images.config.schema import Nightly
from images.engine import Engine, ImageInfo
from images.engine.failures import BuildFailed
from images.engine.progress import Progress
from images.errors import UserError
from images.locking import lock_file, measure_records, resolve, uv
from images.locking.lock_file import Lock
from images.nightly.results import Job
from images.planning import plan
from images.planning.image import Image, Pin
from images.validation.rows import (
    ClaimRow,
    StepRow,
    claim_rows,
    collect_steps,
    read_evidence,
)
from validate.claims import ORIGIN_PROBE, Tier
from validate.evidence import Evidence
from validate.judge import Verdict
from validate.judging import Status

_CAUSED_BY_VERSIONS = ("hash", "compile", "resolve", "dockerfile", "other")
"""Kinds of failed builds (images/data/build_failures.yaml) that other versions may not have. The
other kinds, such as `disk` and `network`, are faults of the machine."""


@dataclass(frozen=True, kw_only=True)
class Locked:
    """An image and the lock it is built from."""

    image: Image
    lock: Lock

    @property
    def versions(self) -> dict[str, str]:
        """Return distribution -> version of all Python layers."""
        return self.lock.versions(self.lock.inputs.layers)


def list_requirements(
    control: Locked, nightly: Nightly, refused: Mapping[str, Mapping[str, str]]
) -> list[str]:
    """Return requirements that allow an image newer versions than its lock has, in pip's notation.

    Some packages may move upward: `torchao>=0.11.0,<0.13,!=0.12.1`. Those in a held layer keep
    their locked versions: `torch==2.7.1`.

    control: the image as it is locked.
    nightly: settings of matrix.yaml: which layers are held, and how far packages may move.
    refused: package -> version -> why that version must not be taken.
    """
    image, inputs = control.image, control.lock.inputs
    held_layers = set(nightly.held)
    # torch always stays: an image with another torch has another name.
    torch = image.pin("torch")
    if torch:
        held_layers.add(torch.layer)

    locked = control.lock.versions(layer for layer in image.layers if layer in held_layers)
    requirements = [f"{name}=={version}" for name, version in locked.items()]
    # Some packages are in no index, so the resolver cannot read what they require. The inputs of
    # the lock list it by layer.
    for layer, needed_by_layer in inputs.needs.items():
        if layer not in held_layers:
            requirements += needed_by_layer

    # Ranges for this torch replace those for every torch.
    ranges = {**nightly.ranges, **nightly.stacks.get(str(image.name.torch), {})}
    for layer, resolved_pins in inputs.layers.items():
        if layer in held_layers:
            continue
        # Pins that are in no index, such as flash-attn, are not among these. They keep their
        # version.
        names = {canonicalize_name(pin.partition("==")[0]) for pin in resolved_pins}
        for pin in image.pins:
            if pin.layer == layer and pin.name in names:
                matrix_range = ranges.get(pin.name, "")
                refused_versions = refused.get(pin.name, {})
                requirements.append(_require_newer(pin, matrix_range, refused_versions))
    return requirements


def _require_newer(pin: Pin, matrix_range: str, refused_versions: Iterable[str]) -> str:
    """Return the requirement of a pin that may move upward: `torchao>=0.11.0,<0.13,!=0.12.1`."""
    specifiers = [f">={pin.version}"]
    specifiers += _range_above(pin.version, matrix_range)
    specifiers += [f"!={version}" for version in refused_versions]
    return f"{pin.name}{','.join(specifiers)}"


def _range_above(pinned_version: str, matrix_range: str) -> list[str]:
    """Return a list with a range of the matrix (`<0.13`), if it allows the pinned version or newer.

    The list is empty if the range is, or if it allows only older versions: a profile may pin beyond
    the range of its stack.
    """
    if not matrix_range:
        return []
    allowed = SpecifierSet(matrix_range)
    if allowed.contains(pinned_version, prereleases=True):
        return [matrix_range]
    # The range may begin above the pin: from 0.18.1, `==0.19.*` can be reached by moving upward. Of
    # that condition, `specifier.version` is `0.19.*`.
    for specifier in allowed:
        if Version(specifier.version.removesuffix(".*")) > Version(pinned_version):
            return [matrix_range]
    return []


def find_refused_versions(image: Image, sources: Sources) -> dict[str, dict[str, str]]:
    """Return the newer versions of pins that the rules of `plan` refuse for an image, and why.

    The result is package -> version -> reasons. Each newer version that facts.yaml lists is tried:
    the image is planned with this one pin moved.
    """
    # With one pin moved, what packages require of each other may not hold. That is no refusal: uv
    # solves it later, by moving both.
    sources = replace(sources, facts=_without_requirements(sources.facts))
    facts = sources.facts

    refused: dict[str, dict[str, str]] = {}
    for pin in image.pins:
        for version in facts.releases_of(pin.name):
            if Version(version) <= Version(pin.version):
                continue
            planned = plan.plan_one(image.name, sources, pins={pin.name: version})
            if planned.reasons:
                refused.setdefault(pin.name, {})[version] = "; ".join(planned.reasons)
    return refused


def _without_requirements(facts: Facts) -> Facts:
    """Return the facts without what packages require of each other."""
    packages = {}
    for name, releases in facts.packages.items():
        packages[name] = {
            version: release.model_copy(update={"requires": []})
            for version, release in releases.items()
        }
    return facts.model_copy(update={"packages": packages})


def relock(control: Locked, versions: Mapping[str, str], run: uv.Runner = uv.run) -> Locked:
    """Return an image whose pinned packages have other versions, with a new lock.

    `control` is the image as it is. `versions` is distribution -> version: pins get exactly these
    versions, and dependencies where they fit. Optional packages stay as they are. Raises
    uv.NoSolution if the versions do not fit together.
    """
    pins = []
    for pin in control.image.pins:
        if pin.name in versions and not pin.optional:
            # A pin has its local version apart (`Pin.local`), so `2.7.1+cu126` becomes `2.7.1`.
            pin = replace(pin, version=Version(versions[pin.name]).public)
        pins.append(pin)
    image = replace(control.image, pins=tuple(pins))
    return Locked(image=image, lock=resolve.resolve(image, run, preferred=versions))


def mix_versions(
    control: Locked, canary: Locked, moved: Set[str], run: uv.Runner = uv.run
) -> Locked | None:
    """Return an image with some packages at new versions, and all others at their old ones.

    control: the image with its present lock.
    canary: the same image with the newest versions.
    moved: the packages that get the canary's versions. What they require moves with them, as far as
        it must.
    run: calls uv, the resolver.

    Returns None if no set of versions fits. Raises UserError if the index cannot be asked.
    """
    old_versions, new_versions = control.versions, canary.versions
    required = {name: new_versions[name] for name in moved}
    # All other packages stay at the control's version, and those that only the canary has get its
    # version. Later dicts win.
    preferred = {**new_versions, **old_versions, **required}
    try:
        mixture = relock(control, preferred, run)
    except uv.NoSolution:
        return None

    # uv may have chosen other versions of dependencies than the preferred ones.
    has_all_required = required.items() <= mixture.versions.items()
    return mixture if has_all_required else None


# --- Build and validate a set of versions ---


@dataclass(frozen=True, kw_only=True)
class SetResult:
    """One set of versions, built and validated."""

    claims: tuple[ClaimRow, ...]
    """Every claim that was judged, the good ones too; empty if the image could not be built."""
    digest: str = ""
    bytes: int = 0
    seconds: float = 0.0
    gpus: tuple[str, ...] = ()
    driver: str = ""
    layers: Mapping[str, str] = field(default_factory=dict)
    """Layer -> its digest, with the settings."""
    layer_bytes: Mapping[str, int] = field(default_factory=dict)
    steps: Mapping[str, StepRow] = field(default_factory=dict)
    """Training step -> its figures, of those that did not fail."""
    cause: str = ""
    """Why the image could not be built; empty if it was built and judged."""

    def verdict(self, key: str) -> Status | None:
        """Return the verdict of a claim by its key, or None if it was not judged."""
        for claim in self.claims:
            if claim.key == key:
                return claim.verdict
        return None


ValidateSet = Callable[[Locked, Sequence[Tier], str], SetResult]
"""Builds these versions and validates these tiers (none: all that the machine can), under a name
with this suffix.

Raises UserError for a failure that the versions did not cause: a network, a disk, an engine.
"""


@dataclass(frozen=True, kw_only=True)
class NightlyOptions:
    """What a nightly run works with.

    What validates, the resolver and the clock are injected, so that tests need no engine.
    """

    sources: Sources
    validate: ValidateSet
    now: Callable[[], datetime]
    results: Path
    tiers: Sequence[Tier] = ()
    run: uv.Runner = uv.run
    progress: Callable[[str, str], None] = lambda _image, _text: None


def build_with(engine: Engine, options: BuildOptions, progress: Progress) -> ValidateSet:
    """Return a function that builds a set of versions on this engine and validates it.

    The function takes the image with its lock, the tiers to judge (none: all that the machine can)
    and a label, which becomes the suffix of the image's name: `control`, `canary` or `bisect`. It
    leaves no image behind. It raises UserError for a failure that has nothing to do with the
    versions.
    """

    def validate(locked: Locked, tiers: Sequence[Tier], label: str) -> SetResult:
        """Build the image `NAME-LABEL` from its lock, validate it, and remove its tags.

        `tiers` are the groups of claims to judge; if empty, those of the options. Returns the
        judged claims. If the build fails because of the versions in the lock, the result has the
        cause instead. Raises UserError for any other failure, such as a full disk.
        """
        start = time.monotonic()
        name = f"{locked.image.name}-{label}"
        lock = _with_records(locked, options.out / "locks" / label, options.sources.workspace.locks)
        build_options = replace(
            options,
            suffix=f"-{label}",
            tiers=tiers or options.tiers,
            # The control shows that the committed lock can still be built from nothing.
            no_cache=label == Job.CONTROL,
        )
        try:
            (result,) = build_all(engine, [(locked.image, lock)], build_options, progress)
        finally:
            # An image that did not get its name is left as a candidate.
            engine.untag(f"{locked.image.prefix}{name}")
            engine.untag(f"{locked.image.prefix}{name}-candidate")

        # A build that fails because of its versions is a result of the nightly run.
        if isinstance(result, BuildFailed) and result.failure.kind in _CAUSED_BY_VERSIONS:
            problem = result.problems[0]
            seconds = round(time.monotonic() - start, 1)
            return SetResult(claims=(), cause=f"{problem.where}: {problem.cause}", seconds=seconds)
        # Every other failure is the machine's.
        if isinstance(result, UserError):
            raise result

        evidence = read_evidence(options.out / name / "evidence.json")
        return set_result(result.info, evidence, result.verdict, start)

    return validate


def _with_records(locked: Locked, folder: Path, committed_locks: Path) -> Lock:
    """Return the lock of an image with digests of the RECORDs of its wheels.

    A RECORD is a wheel's list of its files with their hashes. The claims of the check `records`
    need the digests, and a new set of versions has none. `folder` gets the lock and, beside it, a
    table of such digests. Those that the table in `committed_locks` has are not measured again.
    """
    image = locked.image
    files = {}
    for name, content in lock_file.serialize(locked.lock).items():
        files[f"{image.lock_name}/{name}"] = content
    lock_file.write(files, folder)

    # Download the RECORDs whose digests neither folder's table has, and write their digests into
    # the table of `folder`.
    lock = lock_file.read(image, folder, committed_locks)
    table_file = measure_records.update({str(image.name): lock}, folder)
    lock_file.put(table_file, folder)

    return lock_file.read(image, folder, committed_locks)


def without_unproven_origin(verdict: Verdict) -> Verdict:
    """Leave the claim about the image's origin out of a verdict, unless it failed.

    The claim says that earlier builds of the same lock gave the same bytes. An image with the
    newest versions has a new lock, of which there are no earlier builds: its origin can't be proved
    yet, which says nothing about the versions.
    """
    claim_verdicts = []
    for claim_verdict in verdict.claims:
        is_about_origin = claim_verdict.claim.probe == ORIGIN_PROBE
        if not is_about_origin or claim_verdict.status is Status.FAIL:
            claim_verdicts.append(claim_verdict)
    return replace(verdict, claims=tuple(claim_verdicts))


def set_result(info: ImageInfo, evidence: Evidence, verdict: Verdict, start: float) -> SetResult:
    """Return the result of a nightly build: verdicts, size, layers, GPUs and training steps.

    `info` describes the image, `evidence` is what was measured of it. `start`: when the work on it
    began, as time.monotonic() gave it.
    """
    not_failed = [claim for claim in verdict.claims if claim.status is not Status.FAIL]
    # Nobody can prove the origin of an image with the newest versions, so that is left out.
    return SetResult(
        claims=claim_rows(without_unproven_origin(verdict)),
        digest=info.digest,
        bytes=info.size,
        seconds=round(time.monotonic() - start, 1),
        gpus=tuple(str(gpu["name"]) for gpu in evidence.host.get("gpus", ())),
        driver=str(evidence.host.get("driver") or ""),
        layers=evidence.host.get("payload", {}),
        layer_bytes=evidence.host.get("layer_bytes", {}),
        steps=collect_steps(not_failed),
    )
