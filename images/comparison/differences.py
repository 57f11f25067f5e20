"""Compare what is recorded of two images, as a maintainer does before he accepts an update. Pure.

A record may lack something: an older run has no layers, and one without a GPU has no training
steps. What is not recorded is never guessed. It is left out of the comparison, and a note says so.
"""

import math
from collections.abc import Callable, Mapping, Sequence
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
    """Python package -> version, without its local part (`+cu126`)."""
    all_packages: bool = False
    """`packages` has every package, so one that it lacks is not installed."""
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
    steps: Sequence[StepChange]
    notes: Sequence[str]
    """Sentences: what is not recorded, and what cannot be compared."""


def compare(before: ImageRecord, after: ImageRecord) -> Comparison:
    """Compare two images by their records. `before` is the image as it was, `after` the updated."""
    notes: list[str] = []
    if before.digest == after.digest:
        notes.append("both are runs of the same image: only machine and day differ")
    return Comparison(
        before=before,
        after=after,
        packages=_compare_packages(before, after, notes),
        system_packages=_compare_system_packages(before, after, notes),
        layers=_compare_layers(before, after, notes),
        claims=_compare_claims(before, after, notes),
        steps=_compare_steps(before, after, notes),
        notes=notes,
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


def _compare_packages(
    before: ImageRecord, after: ImageRecord, notes: list[str]
) -> tuple[Change, ...]:
    """Return the Python packages that moved, came or went, as far as both records tell.

    `notes` gets a sentence about each gap in the records.
    """
    # A package that is only in one record may still be in the other image, unless that record has
    # every package.
    names = {*before.packages, *after.packages}
    compared = set(names)
    for record in (before, after):
        missing = sorted(names - set(record.packages))
        if record.all_packages or not missing:
            continue
        compared.difference_update(missing)
        if record.packages:
            notes.append(f"not recorded of {record.label}: {listed(missing, limit=_MOST_NAMES)}")
    _note_gap([before, after], lambda record: bool(record.packages), "the packages", notes)
    _note_gap(
        [before, after],
        lambda record: record.all_packages or not record.packages,
        "the packages that the matrix does not pin",
        notes,
    )

    pins = dict.fromkeys([*after.pins, *before.pins])
    return list_changes(
        {name: version for name, version in before.packages.items() if name in compared},
        {name: version for name, version in after.packages.items() if name in compared},
        [name for name in pins if name in compared],
    )


def _compare_system_packages(
    before: ImageRecord, after: ImageRecord, notes: list[str]
) -> tuple[Change, ...]:
    """Return the packages of Debian and the CUDA toolkit that moved, came or went.

    They are read of images that an engine has, and are in no recorded run: `notes` says so.
    """
    if before.system_packages and after.system_packages:
        return list_changes(before.system_packages, after.system_packages)
    notes.append(
        "Debian's packages and the toolkit's are compared only for two images that the engine has"
    )
    return ()


def _note_gap(
    records: Sequence[ImageRecord],
    is_recorded: Callable[[ImageRecord], bool],
    what: str,
    notes: list[str],
) -> None:
    """Append a sentence to `notes` if something is not recorded of an image, or of both.

    `what` it is, in the plural: `the layers`.
    """
    labels = [record.label for record in records if not is_recorded(record)]
    if labels:
        notes.append(f"{what} of {' and '.join(labels)} are not recorded")


# --- layers ---------------------------------------------------------------------------------------


def _compare_layers(
    before: ImageRecord, after: ImageRecord, notes: list[str]
) -> tuple[LayerChange, ...]:
    """Return the layers of two images that can be compared, with what became of each.

    The layer of the suite is left out where its digest is not recorded: it changes with this
    project. `notes` gets a sentence about each gap in the records.
    """
    both = [before, after]
    _note_gap(both, lambda record: bool(record.layers), "the layers", notes)
    _note_gap(both, lambda record: bool(record.layer_bytes), "the sizes of the layers", notes)

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
    if not before or not after or name not in {*before, *after}:
        return LayerState.NOT_RECORDED
    if name not in before:
        return LayerState.ADDED
    if name not in after:
        return LayerState.REMOVED
    return LayerState.SAME if before[name] == after[name] else LayerState.CHANGED


# --- claims ---------------------------------------------------------------------------------------


def _compare_claims(
    before: ImageRecord, after: ImageRecord, notes: list[str]
) -> tuple[ClaimChange, ...]:
    """Return the claims with another verdict, then those that only one of the two runs judged.

    A tier that only one run measured is a sentence in `notes` and not a list of all its claims.
    """
    old_claims = {(claim.tier, claim.key): claim for claim in before.claims}
    new_claims = {(claim.tier, claim.key): claim for claim in after.claims}
    tiers_of_both = []
    for tier in Tier:
        has_measured = [tier in record.tiers for record in (before, after)]
        if all(has_measured):
            tiers_of_both.append(tier)
        elif any(has_measured):
            label = before.label if tier in before.tiers else after.label
            notes.append(f"the {tier} tier was measured of {label} only")
    if not tiers_of_both:
        notes.append("no tier was measured of both: no claims are compared")

    changes = []
    for tier, key in dict.fromkeys([*new_claims, *old_claims]):
        old, new = old_claims.get((tier, key)), new_claims.get((tier, key))
        old_verdict = old.verdict if old else None
        new_verdict = new.verdict if new else None
        if tier not in tiers_of_both or old_verdict is new_verdict:
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
        changes.append(change)
    # False comes first: claims that both have.
    changes.sort(key=lambda change: change.before is None or change.after is None)
    return tuple(changes)


# --- training steps -------------------------------------------------------------------------------


def _compare_steps(
    before: ImageRecord, after: ImageRecord, notes: list[str]
) -> tuple[StepChange, ...]:
    """Return the training steps of two images, judged where they ran on the same GPU model.

    `notes` gets a sentence where there are none, or where they cannot be compared.
    """
    _note_gap(
        [before, after], lambda record: bool(record.steps), "undisturbed training steps", notes
    )

    gpus = {*before.gpus, *after.gpus}
    is_comparable = len(gpus) == 1
    if before.steps and after.steps and not is_comparable:
        notes.append(f"steps on different GPUs are not judged: {', '.join(sorted(gpus))}")
    if before.steps and after.steps and before.driver != after.driver:
        notes.append(f"the steps ran with different drivers: {before.driver}, {after.driver}")

    rows = []
    for name in dict.fromkeys([*after.steps, *before.steps]):
        old, new = before.steps.get(name), after.steps.get(name)
        longest_seconds = None
        findings: list[str] = []
        if old and new and is_comparable:
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
