"""Compare what is recorded of two images, as a maintainer does before he accepts an update. Pure.

A record may lack something: an older run has no layers, and one without a GPU has no training
steps. What is not recorded is never guessed: it is left out, and `ImageRecord.missing` names it.
"""

import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from images.validation.rows import Change, ClaimRow, StepRow, TierCount
from validate.checks.gpu.step import LOSS_SLACK, PEAK_SLACK
from validate.claims import Tier
from validate.harness import timing
from validate.harness.timing import Timed
from validate.judging import Status

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
    digest: str
    """`sha256:...` of the image."""
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
    all of them. No recorded run has them, only an image that the engine has."""
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

    @property
    def missing(self) -> list[str]:
        """Return what is not recorded, in words for people."""
        parts = {
            "packages": self.packages,
            "packages that the matrix does not pin": self.all_packages,
            "packages of Debian and the CUDA toolkit": self.system_packages,
            "layers": self.layers,
            "sizes of layers": self.layer_bytes,
            "claims": self.claims,
            "undisturbed training steps": self.steps,
        }
        return [name for name, recorded in parts.items() if not recorded]


class LayerState(StrEnum):
    """What became of a layer from one image to the other."""

    SAME = "same"
    CHANGED = "changed"
    ADDED = "added"
    REMOVED = "removed"
    UNKNOWN = "content not recorded"


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
    """A claim whose verdicts differ, that fails in another way, or that only one run judged."""

    tier: Tier
    claim: str
    before: ClaimRow | None
    """None: that run did not judge it."""
    after: ClaimRow | None


@dataclass(frozen=True, kw_only=True)
class StepChange:
    """A training step in both images."""

    step: str
    before: StepRow | None
    """None: not recorded."""
    after: StepRow | None
    judgement: str
    """What is beyond the noise: `slower, more memory`; `within noise` if nothing is."""


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


def compare(before: ImageRecord, after: ImageRecord) -> Comparison:
    """Compare two images by their records. `before` is the image as it was, `after` the updated.

    The result has what differs: packages, layers, claims and training steps. What is not recorded
    of both images is left out.
    """
    system_packages: Sequence[Change] = ()
    if before.system_packages and after.system_packages:
        system_packages = list_changes(before.system_packages, after.system_packages)
    return Comparison(
        before=before,
        after=after,
        packages=_compare_packages(before, after),
        system_packages=system_packages,
        layers=_compare_layers(before, after),
        claims=_compare_claims(before, after),
        steps=_compare_steps(before, after),
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
    """Return the Python packages whose version changed, and those that only one image has.

    What is not recorded is not compared: some records have only a part of the packages, or versions
    without their local parts (`+cu126`). Packages that an image pins come first.
    """
    names = before.packages.keys() | after.packages.keys()
    # Of a package that an incomplete record lacks, nothing is known: the image may have it.
    if not before.all_packages:
        names &= before.packages.keys()
    if not after.all_packages:
        names &= after.packages.keys()
    has_local_parts = before.local_versions and after.local_versions
    return list_changes(
        _select(before.packages, names, has_local_parts),
        _select(after.packages, names, has_local_parts),
        [*dict.fromkeys([*after.pins, *before.pins])],
    )


def _select(versions: Mapping[str, str], names: Set[str], has_local_parts: bool) -> dict[str, str]:
    """Return the packages (name -> version) whose name is among `names`.

    Without `has_local_parts`, `2.7.1+cu126` becomes `2.7.1`: it may be the same as the `2.7.1` of a
    record that has no local parts.
    """
    selected = {}
    for name, version in versions.items():
        if name in names:
            selected[name] = version if has_local_parts else version.partition("+")[0]
    return selected


# --- layers ---------------------------------------------------------------------------------------


def _compare_layers(before: ImageRecord, after: ImageRecord) -> tuple[LayerChange, ...]:
    """Return for each layer of two images whether it is the same, and its size in both.

    Digests tell whether a layer is the same. If a record has none, it is UNKNOWN, and only sizes
    are compared. Empty if there are no sizes either.
    """
    has_digests = bool(before.layers and after.layers)
    old_layers: Mapping[str, object] = before.layers if has_digests else before.layer_bytes
    new_layers: Mapping[str, object] = after.layers if has_digests else after.layer_bytes
    if not old_layers or not new_layers:
        return ()

    rows = []
    for name in dict.fromkeys([*new_layers, *old_layers]):
        if name not in old_layers:
            state = LayerState.ADDED
        elif name not in new_layers:
            state = LayerState.REMOVED
        elif not has_digests:
            state = LayerState.UNKNOWN
        elif old_layers[name] == new_layers[name]:
            state = LayerState.SAME
        else:
            state = LayerState.CHANGED
        row = LayerChange(
            layer=name,
            state=state,
            before=before.layer_bytes.get(name),
            after=after.layer_bytes.get(name),
        )
        rows.append(row)
    return tuple(rows)


# --- claims ---------------------------------------------------------------------------------------


def _compare_claims(before: ImageRecord, after: ImageRecord) -> tuple[ClaimChange, ...]:
    """Return the claims that differ, or that only one image has, with both verdicts.

    Tiers that only one of the two runs measured are left out.
    """
    old_claims = {(claim.tier, claim.key): claim for claim in before.claims}
    new_claims = {(claim.tier, claim.key): claim for claim in after.claims}
    changes = []
    for tier, key in dict.fromkeys([*new_claims, *old_claims]):
        if tier not in before.tiers or tier not in after.tiers:
            continue
        old = old_claims.get((tier, key))
        new = new_claims.get((tier, key))
        if old is None or new is None or _is_different(old, new):
            changes.append(ClaimChange(tier=tier, claim=key, before=old, after=new))
    return tuple(changes)


def _is_different(old: ClaimRow, new: ClaimRow) -> bool:
    """Return whether a claim's verdicts differ, or its reason or weight where it does not hold.

    FAIL may mean a large rounding error in one run, and a crash in the other. Only required claims
    decide on a tier, so its verdict may change although that of no claim does.
    """
    if old.verdict is not new.verdict:
        return True
    if new.verdict not in (Status.FAIL, Status.UNPROVEN):
        return False
    old_reason, new_reason = old.reason, new.reason
    # What was measured without a verdict, such as a training step's time, differs in each run.
    if new.verdict is Status.UNPROVEN:
        old_reason, new_reason = _FIGURE.sub("", old_reason), _FIGURE.sub("", new_reason)
    return old_reason != new_reason or old.required != new.required


# --- training steps -------------------------------------------------------------------------------


def _compare_steps(before: ImageRecord, after: ImageRecord) -> tuple[StepChange, ...]:
    """Return the training steps of two images, judged where they ran on the same GPU model."""
    is_same_model = len({*before.gpus, *after.gpus}) == 1
    rows = []
    for name in dict.fromkeys([*after.steps, *before.steps]):
        old, new = before.steps.get(name), after.steps.get(name)
        judgement = "not judged"
        if old and new:
            judgement = _judge_step(old, new) if is_same_model else "not judged: other GPUs"
        rows.append(StepChange(step=name, before=old, after=new, judgement=judgement))
    return tuple(rows)


def _judge_step(before: StepRow, after: StepRow) -> str:
    """Return what differs by more than noise, such as `slower, more memory`, or `within noise`.

    Memory and loss are held to the bounds that the check `step` has for recorded runs. NaN is never
    within a bound.
    """
    findings = []
    if max(before.spread, after.spread) > timing.NOISY:
        findings.append("too noisy to compare")
    elif _is_slower(before, after):
        findings.append("slower")
    elif _is_slower(after, before):
        findings.append("faster")

    if not after.peak <= PEAK_SLACK * before.peak:
        findings.append("more memory")
    elif not before.peak <= PEAK_SLACK * after.peak:
        findings.append("less memory")

    if not math.fabs(after.loss - before.loss) <= LOSS_SLACK:
        findings.append("another loss")
    return ", ".join(findings) or "within noise"


def _is_slower(before: StepRow, after: StepRow) -> bool:
    """Return whether `after` takes longer than the noise of both runs and two machines explains.

    The bound is that of the check `step`, for two machines with one GPU model.
    """
    longest = timing.longest_allowed(_timed(before), _timed(after), timing.MARGIN)
    return not after.seconds <= longest


def _timed(step: StepRow) -> Timed:
    """Return the time of a recorded step as the noise model takes it.

    How often the step was repeated is not recorded, and the model does not read it.
    """
    return {"seconds": step.seconds, "spread": step.spread, "repeats": 1}
