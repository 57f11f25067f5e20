"""Compare what is recorded of two images, as a maintainer does before he accepts an update. Pure.

A record may lack something: an older run has no layers, and one without a GPU has no training
steps. What is not recorded is never guessed. It is left out of the comparison, and a note says so.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from images.engine.configuration import SUITE
from images.validation.rows import Change, ClaimRow, StepRow, TierCount
from validate.checks.gpu.step import LOSS_SLACK, PEAK_SLACK
from validate.claims import Tier
from validate.harness import timing
from validate.harness.timing import Timed
from validate.judging import Status, listed

_MOST_NAMES = 12
"""Names that a note lists at most."""
_FIGURE = re.compile(r"[0-9]+(\.[0-9]+)?")
"""A number in a claim's reason."""


@dataclass(frozen=True, kw_only=True)
class ImageRecord:
    """What is recorded of one image. An empty field is not recorded."""

    label: str
    """What the tables call it: `A`."""
    name: str
    source: str
    """Where all of this was read: `run cu126-torch25/h200`."""
    platform: str
    """`linux/amd64`, say. Empty: not known, as of an experiment with a name of its own."""
    digest: str
    """`sha256:...` of the image."""
    run: str = ""
    """The run that judged its claims: its ID, or its folder. Empty: none did."""
    date: datetime | None = None
    """When its claims were measured."""
    gpus: Sequence[str] = ()
    """Names of the GPUs as the driver has them, one a GPU."""
    driver: str = ""
    pins: Sequence[str] = ()
    """The packages that the matrix pins."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Python package -> version: `2.7.1+cu126`, or `2.7.1` (`local_versions`)."""
    all_packages: bool = False
    """`packages` has every package, so one that it lacks is not installed."""
    local_versions: bool = False
    """Versions in `packages` have their local part (`+cu126`), if they have one in the image.
    Recorded runs have versions without it."""
    system_packages: Mapping[str, str] = field(default_factory=dict)
    """Package of Debian (`libc6`) or of the CUDA toolkit (`nvidia_cuda_nvcc`) -> version. These are
    all of them."""
    bytes: int = 0
    """Size, unpacked."""
    layers: Mapping[str, str] = field(default_factory=dict)
    """Layer -> its digest; the settings count as a layer (configuration.payload)."""
    layer_bytes: Mapping[str, int] = field(default_factory=dict)
    """Layer -> its size, unpacked."""
    tiers: Mapping[Tier, TierCount] = field(default_factory=dict)
    claims: Sequence[ClaimRow] = ()
    steps: Mapping[str, StepRow] = field(default_factory=dict)
    """Training step -> its figures, of those that did not fail."""


class LayerState(StrEnum):
    """What became of a layer from one image to the other."""

    SAME = "same"
    CHANGED = "changed"
    ADDED = "added"
    REMOVED = "removed"
    NOT_RECORDED = "not recorded"
    """The layers of one image are not recorded."""


@dataclass(frozen=True, kw_only=True)
class LayerChange:
    """A layer in both images."""

    layer: str
    state: LayerState
    before: int | None
    """Bytes. None: not recorded, or the image has no such layer (`state`)."""
    after: int | None


@dataclass(frozen=True, kw_only=True)
class ClaimChange:
    """A claim whose verdicts differ, or that only one of two runs judged."""

    tier: Tier
    claim: str
    before: Status | None
    """None: that run did not judge it."""
    after: Status | None
    reason: str
    """Why it is not PASS, in the newer run if it is not PASS there, else in the older."""
    reason_of: str
    """The label of the image with this reason; empty: there is none."""


@dataclass(frozen=True, kw_only=True)
class ReasonChange:
    """A claim that is FAIL or UNPROVEN in both runs, for another reason or with another weight."""

    tier: Tier
    claim: str
    verdict: Status
    reason_before: str
    reason_after: str
    required_before: bool
    """The image gets no name without it."""
    required_after: bool


@dataclass(frozen=True, kw_only=True)
class StepChange:
    """A training step in both images."""

    step: str
    before: StepRow | None
    """None: not recorded."""
    after: StepRow | None
    longest_seconds: float | None
    """How long it may take after the update, with the noise of both. None: not compared."""
    findings: Sequence[str]
    """What is beyond the noise: `slower`, `more memory`. Empty if all is within it."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two images, compared."""

    before: ImageRecord
    after: ImageRecord
    packages: Sequence[Change]
    """The Python packages that moved, pinned ones first."""
    system_packages: Sequence[Change]
    """The same of Debian's packages and the CUDA toolkit's."""
    layers: Sequence[LayerChange]
    claims: Sequence[ClaimChange]
    reasons: Sequence[ReasonChange]
    steps: Sequence[StepChange]
    notes: Sequence[str]
    """Sentences: what is not recorded, and what cannot be compared."""


def compare(before: ImageRecord, after: ImageRecord) -> Comparison:
    """Compare two images by their records. `before` is the image as it was, `after` the updated."""
    return Comparison(
        before=before,
        after=after,
        packages=_compare_packages(before, after),
        system_packages=_compare_system_packages(before, after),
        layers=_compare_layers(before, after),
        claims=_compare_claims(before, after),
        reasons=_compare_reasons(before, after),
        steps=_compare_steps(before, after),
        notes=tuple(_describe_gaps(before, after)),
    )


# --- packages -------------------------------------------------------------------------------------


def list_changes(
    before: Mapping[str, str], after: Mapping[str, str], pinned: Sequence[str] = ()
) -> tuple[Change, ...]:
    """Return what differs between two sets of packages (name -> version), pinned packages first.

    A package that only one set has is also a change, with an empty version for the other set.
    """
    others = sorted(name for name in {*before, *after} if name not in pinned)
    changes = []
    for name in (*pinned, *others):
        old_version = before.get(name, "")
        new_version = after.get(name, "")
        if old_version != new_version:
            changes.append(
                Change(name=name, before=old_version, after=new_version, pinned=name in pinned)
            )
    return tuple(changes)


def _compare_packages(before: ImageRecord, after: ImageRecord) -> tuple[Change, ...]:
    """Return the Python packages that moved, came or went, as far as both records tell."""
    names = {*before.packages, *after.packages}
    names -= _unrecorded_packages(before, after)
    names -= _unrecorded_packages(after, before)

    old_versions = _select(before.packages, names)
    new_versions = _select(after.packages, names)
    if before.local_versions != after.local_versions:
        # `2.7.1` of a record that has no local parts may be the same as `2.7.1+cu126`.
        old_versions = _without_local_parts(old_versions)
        new_versions = _without_local_parts(new_versions)
    pins: list[str] = []
    for name in (*after.pins, *before.pins):
        if name in names and name not in pins:
            pins.append(name)
    return list_changes(old_versions, new_versions, pins)


def _select(versions: Mapping[str, str], names: Set[str]) -> dict[str, str]:
    """Return the packages (name -> version) whose name is among `names`."""
    return {name: version for name, version in versions.items() if name in names}


def _without_local_parts(versions: Mapping[str, str]) -> dict[str, str]:
    """Return packages (name -> version) with `2.7.1` in place of `2.7.1+cu126`."""
    return {name: version.partition("+")[0] for name, version in versions.items()}


def _unrecorded_packages(record: ImageRecord, other: ImageRecord) -> set[str]:
    """Return the packages of another image that a record lacks, although its image may have them.

    There are none if the record has every package: what it lacks is then not installed.
    """
    if record.all_packages:
        return set()
    return {*other.packages} - {*record.packages}


def _compare_system_packages(before: ImageRecord, after: ImageRecord) -> tuple[Change, ...]:
    """Return the packages of Debian and the CUDA toolkit that moved, came or went.

    None are returned unless they are known of both images.
    """
    if not before.system_packages or not after.system_packages:
        return ()
    return list_changes(before.system_packages, after.system_packages)


# --- layers ---------------------------------------------------------------------------------------


def _compare_layers(before: ImageRecord, after: ImageRecord) -> tuple[LayerChange, ...]:
    """Return the layers of two images that can be compared, with what became of each.

    The layer of the suite is left out where its digest is not recorded: it changes with this
    project.
    """
    names = dict.fromkeys([*after.layer_bytes, *after.layers, *before.layer_bytes, *before.layers])
    rows = []
    for name in names:
        row = LayerChange(
            layer=name,
            state=_layer_state(name, before.layers, after.layers),
            before=before.layer_bytes.get(name),
            after=after.layer_bytes.get(name),
        )
        # Without digests, a layer can still be compared by its sizes. The settings have none.
        has_sizes = row.before is not None and row.after is not None
        if row.state is not LayerState.NOT_RECORDED or (has_sizes and name != SUITE):
            rows.append(row)
    return tuple(rows)


def _layer_state(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> LayerState:
    """Return what became of a layer. `before` and `after`: layer -> digest; empty: not recorded."""
    if not before or not after:
        return LayerState.NOT_RECORDED
    old_digest, new_digest = before.get(name), after.get(name)
    # Only the size of this layer is recorded.
    if old_digest is None and new_digest is None:
        return LayerState.NOT_RECORDED
    if old_digest is None:
        return LayerState.ADDED
    if new_digest is None:
        return LayerState.REMOVED
    if old_digest == new_digest:
        return LayerState.SAME
    return LayerState.CHANGED


# --- claims ---------------------------------------------------------------------------------------


def _compare_claims(before: ImageRecord, after: ImageRecord) -> tuple[ClaimChange, ...]:
    """Return the claims with another verdict, then those that only one of the two runs judged.

    Claims of a tier that only one run measured are left out.
    """
    old_claims = {(claim.tier, claim.key): claim for claim in before.claims}
    new_claims = {(claim.tier, claim.key): claim for claim in after.claims}
    judged_by_both: list[ClaimChange] = []
    judged_by_one: list[ClaimChange] = []
    for tier, key in dict.fromkeys([*new_claims, *old_claims]):
        if tier not in before.tiers or tier not in after.tiers:
            continue
        old, new = old_claims.get((tier, key)), new_claims.get((tier, key))
        old_verdict = old.verdict if old else None
        new_verdict = new.verdict if new else None
        if old_verdict is new_verdict:
            continue
        # Of a claim that is PASS now, the earlier reason says what was mended.
        reason, reason_of = "", ""
        for label, claim in ((before.label, old), (after.label, new)):
            if claim and claim.verdict is not Status.PASS:
                reason, reason_of = claim.reason, label
        change = ClaimChange(
            tier=tier,
            claim=key,
            before=old_verdict,
            after=new_verdict,
            reason=reason,
            reason_of=reason_of,
        )
        if old and new:
            judged_by_both.append(change)
        else:
            judged_by_one.append(change)
    return (*judged_by_both, *judged_by_one)


def _compare_reasons(before: ImageRecord, after: ImageRecord) -> tuple[ReasonChange, ...]:
    """Return the claims that are FAIL or UNPROVEN in both runs, where more than that differs.

    FAIL may mean a large rounding error in one run, and a crash in the other. Only required claims
    decide on a tier, so its verdict may change although that of no claim does.
    """
    old_claims = {(claim.tier, claim.key): claim for claim in before.claims}
    changes = []
    for new in after.claims:
        old = old_claims.get((new.tier, new.key))
        if old is None or old.verdict is not new.verdict:
            continue
        if new.verdict not in (Status.FAIL, Status.UNPROVEN):
            continue
        # What was measured without a verdict, such as a training step's time, differs in each run.
        is_same_reason = old.reason == new.reason
        if new.verdict is Status.UNPROVEN:
            is_same_reason = _FIGURE.sub("", old.reason) == _FIGURE.sub("", new.reason)
        if is_same_reason and old.required == new.required:
            continue
        change = ReasonChange(
            tier=new.tier,
            claim=new.key,
            verdict=new.verdict,
            reason_before=old.reason,
            reason_after=new.reason,
            required_before=old.required,
            required_after=new.required,
        )
        changes.append(change)
    return tuple(changes)


# --- training steps -------------------------------------------------------------------------------


def _compare_steps(before: ImageRecord, after: ImageRecord) -> tuple[StepChange, ...]:
    """Return the training steps of two images, judged where they ran on the same GPU model."""
    is_same_model = len({*before.gpus, *after.gpus}) == 1
    rows = []
    for name in dict.fromkeys([*after.steps, *before.steps]):
        old, new = before.steps.get(name), after.steps.get(name)
        longest_seconds = None
        findings: list[str] = []
        if old and new and is_same_model:
            longest_seconds = timing.longest_allowed(_timed(old), _timed(new), timing.MARGIN)
            findings = _judge_step(old, new)
        row = StepChange(
            step=name,
            before=old,
            after=new,
            longest_seconds=longest_seconds,
            findings=findings,
        )
        rows.append(row)
    return tuple(rows)


def _judge_step(before: StepRow, after: StepRow) -> list[str]:
    """Return what differs by more than noise: `slower`, `faster`, `more memory`, `another loss`.

    Times are held to the bound that the check `step` holds them to, for two machines with one GPU
    model; memory and loss to its bounds for recorded runs. NaN is never within a bound.
    """
    old_time, new_time = _timed(before), _timed(after)
    findings = []
    if max(before.spread, after.spread) > timing.NOISY:
        findings.append("too noisy to compare")
    elif not after.seconds <= timing.longest_allowed(old_time, new_time, timing.MARGIN):
        findings.append("slower")
    elif not before.seconds <= timing.longest_allowed(new_time, old_time, timing.MARGIN):
        findings.append("faster")

    if not after.peak <= PEAK_SLACK * before.peak:
        findings.append("more memory")
    elif not before.peak <= PEAK_SLACK * after.peak:
        findings.append("less memory")

    if not math.fabs(after.loss - before.loss) <= LOSS_SLACK:
        findings.append("another loss")
    return findings


def _timed(step: StepRow) -> Timed:
    """Return the time of a recorded step as the noise model takes it.

    How often the step was repeated is not recorded, and the model does not read it.
    """
    return {"seconds": step.seconds, "spread": step.spread, "repeats": 1}


# --- what is not compared -------------------------------------------------------------------------


def _describe_gaps(before: ImageRecord, after: ImageRecord) -> Iterator[str]:
    """Yield sentences: what is not recorded of an image, and what cannot be compared, and why."""
    if before.digest == after.digest:
        yield "both are runs of the same image: only machine and day differ"
    yield from _describe_gaps_of_packages(before, after)

    without_layers = [record.label for record in (before, after) if not record.layers]
    yield from _describe_gap("the layers", without_layers)
    without_sizes = [record.label for record in (before, after) if not record.layer_bytes]
    yield from _describe_gap("the sizes of the layers", without_sizes)

    yield from _describe_gaps_of_claims(before, after)
    yield from _describe_gaps_of_steps(before, after)


def _describe_gaps_of_packages(before: ImageRecord, after: ImageRecord) -> Iterator[str]:
    """Yield sentences about packages that are not compared."""
    for record, other in ((before, after), (after, before)):
        unrecorded = sorted(_unrecorded_packages(record, other))
        if record.packages and unrecorded:
            yield f"not recorded of {record.label}: {listed(unrecorded, limit=_MOST_NAMES)}"

    without_packages = []
    only_with_pins = []
    for record in (before, after):
        if not record.packages:
            without_packages.append(record.label)
        elif not record.all_packages:
            only_with_pins.append(record.label)
    yield from _describe_gap("the packages", without_packages)
    yield from _describe_gap("the packages that the matrix does not pin", only_with_pins)

    yield from _describe_gap_of_local_parts(before, after)
    yield from _describe_gap_of_local_parts(after, before)

    # They are read of images that an engine has, and are in no recorded run.
    if not before.system_packages or not after.system_packages:
        yield (
            "Debian's packages and the toolkit's are compared only for two images that the engine "
            "has"
        )


def _describe_gap_of_local_parts(record: ImageRecord, other: ImageRecord) -> Iterator[str]:
    """Yield a sentence if only the other record has local parts of versions (`+cu126`).

    It names the packages of which they are left out.
    """
    if record.local_versions or not other.local_versions:
        return
    versions = []
    for name, version in other.packages.items():
        if name in record.packages and "+" in version:
            versions.append(f"{name} {version}")
    if versions:
        yield (
            f"local parts of versions are not recorded of {record.label}, and are left out of "
            f"{other.label}: {listed(sorted(versions), limit=_MOST_NAMES)}"
        )


def _describe_gaps_of_claims(before: ImageRecord, after: ImageRecord) -> Iterator[str]:
    """Yield a sentence for each tier that only one run measured, in place of all its claims."""
    for tier in Tier:
        labels = [record.label for record in (before, after) if tier in record.tiers]
        if len(labels) == 1:
            yield f"the {tier} tier was measured of {labels[0]} only"
    if before.tiers.keys().isdisjoint(after.tiers):
        yield "no tier was measured of both: no claims are compared"


def _describe_gaps_of_steps(before: ImageRecord, after: ImageRecord) -> Iterator[str]:
    """Yield sentences about training steps that are not recorded, or not of the same machine."""
    without_steps = [record.label for record in (before, after) if not record.steps]
    if without_steps:
        yield from _describe_gap("undisturbed training steps", without_steps)
        return
    gpus = sorted({*before.gpus, *after.gpus})
    if len(gpus) != 1:
        yield f"steps on different GPUs are not judged: {', '.join(gpus)}"
    if before.driver != after.driver:
        yield f"the steps ran with different drivers: {before.driver}, {after.driver}"


def _describe_gap(what: str, labels: Sequence[str]) -> Iterator[str]:
    """Yield a sentence: `the layers of A and B are not recorded`; nothing if `labels` is empty."""
    if labels:
        yield f"{what} of {' and '.join(labels)} are not recorded"
