"""The status of an image: what its recorded validation runs prove of it today. One definition.

`choose`, `plan`, `build`, the site, the README and the table of images all show it. It reads: its
gpu tier *passed the 64 claims of its run on H200 of 2026-11-27; 3 claims added
since and not measured*.

- A run counts by its verdict, on that GPU and that day. Claims that were written later are counted
  as newer ones. They do not turn a PASS into anything else.
- A run whose layers have moved since is *stale*: it measured other packages than those that are
  pinned today, or other layers than builds of today give (locks/layers.json), or it built the image
  from another lock than today's. A stale run proves nothing about the image of today, whether it
  passed or failed.

Pure: nothing is read here.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from images.engine.configuration import SETTINGS, SUITE
from images.locking import layer_record
from images.locking.layer_record import LayerRecord
from images.planning import chooser
from images.site.runs import Run, newest_first
from images.validation.rows import Row
from validate.claims import GPU_TIERS, Claim, Tier
from validate.judging import Status, listed, plural


class Validation(StrEnum):
    """Whether an image is validated, by its runs."""

    VALIDATED = "validated"
    """The newest run of every tier of the gate is PASS, none is stale, and nothing failed."""
    PARTLY = "partly"
    """A tier is PASS, nothing failed, and a tier of the gate was not validated or is UNPROVEN."""
    STALE = "stale"
    """It was validated, or partly, with layers that have moved since."""
    FAILED = "failed"
    """A required claim failed."""
    NEVER = "never"
    """No run of this image was recorded, or no tier of it is PASS."""


class TierRun(Row):
    """One tier of an image, validated once."""

    tier: Tier
    gpus: str
    """`H100`, `2 x H200`; empty for the tiers without GPU."""
    verdict: Status
    """FAIL if a required claim failed; PASS only if there are required claims and every one
    passed; else UNPROVEN."""
    counts: dict[Status, int]
    """Claims by verdict, those that are not required among them."""
    newer: Annotated[int, Field(ge=0)] = 0
    """Required claims that the matrix makes of this tier today and this run did not judge. Of a
    nightly run, whose line has no names of claims, optional ones count, too. 0 of a run that judged
    only some claims (`validate --claim`)."""
    date: date | None
    """The day it was measured, UTC; null: not known."""
    digest: str
    """The image that was measured. The verdict holds for images with these layers."""
    current: bool
    """It measured the image's `digest`, or an image with the same layers. Where the layers are not
    recorded and no tag names the image, also an image that is not known to have others."""
    layers_recorded: bool = True
    """Its layers are recorded, so that a build can be compared with it."""
    moved: str = ""
    """What has moved since: `transformers 4.57.6 where the pin is 4.50.3 now`. Empty: nothing that
    is known. The run is stale if it is not empty."""
    source: str
    """Line of runs.jsonl, file of nightly runs, or published image that it was read from."""

    @property
    def is_pass(self) -> bool:
        """Return whether it passed, with layers that have not moved."""
        return self.verdict is Status.PASS and not self.moved

    @property
    def known(self) -> int:
        """Return how many silent faults it showed that its pinned versions are known to have."""
        return self.counts.get(Status.KNOWN, 0)

    @property
    def phrase(self) -> str:
        """Return what it proved: `passed the 64 claims of its run on H200 of 2026-11-27`.

        Newer claims and layers that moved are added. Known faults, which are no failure, are
        counted beside the claims that passed.
        """
        parts = [self._result]
        if self.newer:
            parts.append(f"{plural(self.newer, 'claim')} added since and not measured")
        if not self.layers_recorded:
            parts.append("its layers are not recorded")
        if self.moved:
            parts.append(f"stale: {self.moved}")
        return "; ".join(parts)

    @property
    def _result(self) -> str:
        """Return the verdict as a phrase: `passed the 64 claims of its run on H200 of 2026-11-27`.

        The number is that of the claims with this verdict. Known silent faults are added, and to a
        PASS the claims that failed and are not required.
        """
        on_gpus = f" on {self.gpus}" if self.gpus else ""
        day = f" of {self.date}" if self.date else ", whose day is not recorded"
        run = f"its run{on_gpus}{day}"
        number = self.counts.get(self.verdict, 0)
        total = sum(self.counts.values())
        if self.verdict is Status.FAIL:
            result = f"failed {number} of the {plural(total, 'claim')} of {run}"
        elif self.verdict is Status.UNPROVEN and not number:
            # No claim is unproven, but none that is required passed.
            result = f"is not proved by the {plural(total, 'claim')} of {run}"
        elif self.verdict is Status.UNPROVEN:
            result = f"left {number} of the {plural(total, 'claim')} of {run} unproven"
        else:
            result = f"passed the {plural(number, 'claim')} of {run}"
            if not_required := self.counts.get(Status.FAIL):
                result += f", failed {not_required} of those not required"

        known = plural(self.known, "known silent fault")
        return f"{result} and showed {known}" if self.known else result


@dataclass(frozen=True)
class ImageStatus:
    """What the recorded runs of an image prove of it today."""

    digest: str
    """The image whose runs count: what the tag names, else what was measured last. Empty: none."""
    runs: tuple[TierRun, ...]
    """Every tier of every run, newest first."""

    @property
    def deciding(self) -> list[TierRun]:
        """Return the newest run of each tier and GPU, of the current layers.

        They decide whether the image is validated.
        """
        newest: dict[tuple[Tier, str], TierRun] = {}
        for run in self.runs:
            if run.current:
                newest.setdefault((run.tier, run.gpus), run)
        return list(newest.values())

    @property
    def passed_on(self) -> list[str]:
        """Return the GPU models on which its gpu tier passed, with layers that have not moved."""
        return [run.gpus for run in self.deciding if run.tier is Tier.GPU and run.is_pass]

    def validation(self, gate: Sequence[Tier]) -> Validation:
        """Return whether the image is validated, by the newest run of each tier and GPU.

        `gate`: the tiers that must pass. A run is stale if the image's layers have moved since
        (`moved`). Its result does not count, but an image of which only stale runs passed is STALE.
        """
        runs = self.deciding
        if any(run.verdict is Status.FAIL and not run.moved for run in runs):
            return Validation.FAILED
        passed_tiers = {run.tier for run in runs if run.is_pass}
        if gate and passed_tiers >= set(gate):
            return Validation.VALIDATED
        if passed_tiers:
            return Validation.PARTLY
        if any(run.verdict is Status.PASS for run in runs):
            return Validation.STALE
        return Validation.NEVER

    def gpu_sentence(self, models: Collection[str] = (), archs: str = "") -> str:
        """Return a sentence on what was proved on GPUs: `Its gpu tier passed the 60 claims ...`.

        `models` are the GPU models of a machine, as gpu_models.yaml names them, and `archs` their
        architectures in words. If there is no run on these models, the sentence says so, and then
        what was proved on others. Without `models`, any run will do.
        """
        gpu_runs = [run for run in self.deciding if run.tier is Tier.GPU]
        if not gpu_runs:
            return "No run of its gpu tier is recorded, on any GPU."
        here = [run for run in gpu_runs if set(models) <= set(run.gpus.split(", "))]
        if here or not models:
            run = (here or gpu_runs)[0]
            return f"Its gpu tier {run.phrase} ({_image_id(run)})."
        run = gpu_runs[0]
        return (
            f"Its gpu tier has not run on {listed(list(models))} ({archs}). "
            f"It {run.phrase} ({_image_id(run)})."
        )

    @property
    def sentence(self) -> str:
        """Return what every tier proved, as one sentence.

        `Its tiers: static passed the 90 claims of its run of 2026-11-27; not validated on a GPU.`
        """
        if not self.deciding:
            return "Not validated: no run of this image was recorded."

        phrases = []
        ran_on_gpus = any(run.tier in GPU_TIERS for run in self.deciding)
        for tier in Tier:
            runs_of_tier = [run for run in self.deciding if run.tier is tier]
            runs_of_tier.sort(key=lambda run: run.gpus)
            for run in runs_of_tier:
                phrases.append(f"{tier} {run.phrase}")
            if tier is Tier.GPU and not runs_of_tier:
                # The gpu tier did not run. Another one on GPUs, such as multigpu, may have.
                phrases.append("gpu not validated" if ran_on_gpus else "not validated on a GPU")
        return f"Its tiers: {'; '.join(phrases)}."


def _image_id(run: TierRun) -> str:
    """Return `image ID 8cd341f51eb9`, the start of the digest that a run measured."""
    return f"image ID {run.digest.removeprefix('sha256:')[:12]}"


def image_status(
    runs: Iterable[Run],
    *,
    pins: Mapping[str, str],
    layers: Mapping[str, Collection[str]],
    claims: Sequence[Claim] = (),
    lock: str = "",
    published_digest: str = "",
) -> ImageStatus:
    """Return what the recorded validation runs of an image prove of it today.

    runs: all recorded runs of the image, in any order.
    pins: package -> the version that is pinned today.
    layers: layer -> the digests that builds of today give it; empty: not recorded.
    claims: what the matrix claims of the image today.
    lock: the short hash of the image's lock today; empty: not known.
    published_digest: the image that its tag names in a registry. People pull that very image, so
        its runs are never stale, whatever the pins and layers are today. Empty: people build it.
    """
    ordered = newest_first(runs)
    # The newest run of the image that people get. Runs of images with the same layers count, too.
    newest_run = _newest_run(ordered, published_digest)
    digest = published_digest or (newest_run.digest if newest_run else "")

    tier_runs: list[TierRun] = []
    packages: Mapping[str, str] = {}
    for run in ordered:
        # A run that recorded no packages is taken to have had those of the next newer one.
        packages = run.packages or packages
        moved = ""
        if not published_digest:
            moved = describe_moves(run, packages, pins, layers, lock)
        is_current = _is_current(run, newest_run, digest, published_digest)
        tier_runs += _tier_runs(run, ordered, claims, moved, is_current=is_current)
    return ImageStatus(digest, tuple(tier_runs))


def _newest_run(ordered: Sequence[Run], published_digest: str) -> Run | None:
    """Return the newest run of the published image; of any image with a digest, if it is empty.

    `ordered`: all runs, the newest first. None: there is no such run.
    """
    for run in ordered:
        if run.digest and published_digest in ("", run.digest):
            return run
    return None


def _is_current(run: Run, newest_run: Run | None, digest: str, published_digest: str) -> bool:
    """Return whether a run counts for an image: see TierRun.current.

    `digest`: the image that people get. `newest_run`: its newest run; None: there is none.
    `published_digest`: as in `image_status`.
    """
    if not run.digest:
        return False
    if run.digest == digest:
        return True
    # `payload`: layer -> its digest; empty: not recorded.
    if newest_run and run.payload and newest_run.payload:
        return run.payload == newest_run.payload
    return not published_digest


def layers_of_today(record: LayerRecord, image: str) -> dict[str, frozenset[str]]:
    """Return the digests that today's builds of an image give its layers: layer -> digests.

    `record` is locks/layers.json: what recorded builds of a recipe gave. Today's is the recipe of
    this image that was built last. Empty if the record has none of it. The image's settings count
    as a layer.
    """
    # Recipe of the image -> the day of its last build. Layers may be shared by several images, but
    # the settings in a recipe are those of one image: so they tell whose recipe it is.
    last_builds: dict[str, str] = {}
    for recipe, layer in record.items():
        images_of_layer = {build.image for build in layer.builds}
        if layer.layer == SETTINGS and images_of_layer == {image}:
            last_builds[recipe] = max(build.date for build in layer.builds)
    if not last_builds:
        return {}

    newest_recipe = max(last_builds, key=lambda recipe: (last_builds[recipe], recipe))
    digests = {}
    for layer in layer_record.layers_of(record, newest_recipe, image).values():
        digests[layer.layer] = frozenset((layer.diff_id, *layer.written_as))
    return digests


def describe_moves(
    run: Run,
    packages: Mapping[str, str],
    pins: Mapping[str, str],
    layers: Mapping[str, Collection[str]],
    lock: str,
) -> str:
    """Return how the image of a run differs from today's; empty if no difference is known.

    For example `transformers 4.57.6 where the pin is 4.50.3 now`, or `the layers torch, light
    moved`. `packages`: name -> version, as they were measured. A pinned package that was not
    measured is no difference. `pins`, `layers` and `lock` are today's: see `image_status`.
    """
    differences = []
    for name, pinned_version in sorted(pins.items()):
        version = packages.get(name)
        if version is not None and version != pinned_version:
            differences.append(f"{name} {version} where the pin is {pinned_version} now")
    if differences:
        return listed(differences)

    moved = []
    for name, digests in layers.items():
        if name in run.payload and run.payload[name] not in digests:
            moved.append(name)
    if moved:
        return f"the layer{'s' * (len(moved) > 1)} {listed(moved)} moved"

    # Runs of today record the hash of their lock; older ones have an empty one.
    if lock and run.lock not in ("", lock):
        return "its lock has changed since"
    return ""


def _tier_runs(
    run: Run, others: Sequence[Run], claims: Sequence[Claim], moved: str, *, is_current: bool
) -> Iterator[TierRun]:
    """Yield the status of each tier of a run. A tier is a group of claims.

    Left out are tiers that need a GPU, of a run without one; and a tier of which the run judged
    only some claims, unless one of these failed. `others`: all runs of the image. `moved`: see
    TierRun. `claims`: what the matrix claims of the image today.
    """
    for tier, tier_count in run.tiers.items():
        # Without a GPU, nothing of these tiers was measured.
        if tier in GPU_TIERS and not run.gpus:
            continue
        # A run of some claims can't show that the tier passed. If one of them failed, it counts.
        is_partial = judged_only_a_part(run, tier, others)
        if is_partial and tier_count.verdict is not Status.FAIL:
            continue

        # A run that failed by one of a few claims may be the only run of the image.
        claims_of_tier = [claim for claim in claims if claim.tier is tier]
        judged_count = sum(tier_count.counts.values())
        if tier_count.verdict is Status.FAIL and len(claims_of_tier) > 2 * judged_count:
            is_partial = True

        # Count the required claims of today that this run did not judge: they are newer than it.
        if is_partial:
            newer_count = 0
        elif run.claims:
            newer_count = len(unjudged_claims((run,), tier, claims))
        else:
            # Nightly runs do not record the names of claims that passed, nor how many of them were
            # required: compare the numbers of all claims.
            newer_count = max(0, len(claims_of_tier) - judged_count)
        yield TierRun(
            tier=tier,
            gpus=describe_gpus(tier, run.gpus),
            verdict=tier_count.verdict,
            # Verdict -> number of claims.
            counts=tier_count.counts,
            newer=newer_count,
            date=run.date,
            digest=run.digest,
            current=is_current,
            layers_recorded=bool(run.payload),
            moved=moved,
            source=run.source,
        )


def judged_only_a_part(run: Run, tier: Tier, others: Sequence[Run]) -> bool:
    """Return whether a run judged only a small part of a tier's claims, such as those about speed.

    `others` are runs to compare it with. It did if one of them has the same layers and judged more
    than twice as many: over time claims are added and removed, but never so many at once. False
    for a run that judged no claim of the tier.
    """
    judged = {claim.key for claim in run.claims if claim.tier is tier}
    if not judged:
        return False
    # Every run of the whole gpu tier judges `device`. A run of single claims (`validate --claim`)
    # need not.
    if tier is Tier.GPU and not any(key.startswith("device/") for key in judged):
        return True
    for other in others:
        # `payload` has the digest of each layer: another build of the image may have the same ones.
        has_layers = run.digest == other.digest or (run.payload and run.payload == other.payload)
        judged_by_other = {claim.key for claim in other.claims if claim.tier is tier}
        if has_layers and len(judged_by_other) > 2 * len(judged):
            return True
    return False


def unjudged_claims(runs: Sequence[Run], tier: Tier, claims: Sequence[Claim]) -> list[str]:
    """Return the names (`CHECK/SUBJECT`) of required claims that none of these runs judged.

    `claims` are all claims of an image, and `runs` are recorded validation runs of it. Only claims
    of this tier are looked at. A claim was judged whatever its verdict was.
    """
    judged: set[str] = set()
    for run in runs:
        judged.update(claim.key for claim in run.claims)
    required = [claim for claim in claims if claim.tier is tier and claim.required]
    return [claim.key for claim in required if claim.key not in judged]


def describe_gpus(tier: Tier, names: Sequence[str]) -> str:
    """Return the GPUs of a tier's run: `H100` for tier gpu, `2 x H200` for tier multigpu.

    A tier is a group of claims. Empty for tiers that need no GPU. `names`: as the driver has them
    (`NVIDIA H100 80GB HBM3`), one for each GPU.
    """
    if tier not in GPU_TIERS:
        return ""
    models = Counter(chooser.model_of(name) for name in names)
    # The gpu tier runs on each GPU by itself, so their number does not matter.
    if tier is Tier.GPU:
        return ", ".join(sorted(models))
    return ", ".join(f"{count} x {model}" for model, count in sorted(models.items()))


def compare_build(
    runs: Iterable[Run], image_id: str, payload: Mapping[str, str]
) -> tuple[str, bool]:
    """Say whether a new build of an image is the same as one that was validated on a GPU.

    Returns a sentence, and whether a recorded run is about this build: it measured an image of the
    same ID, or one with the same layers and settings. `runs` are the recorded runs of the image.
    `payload` has the layers and settings of the build; empty: not known.
    """
    gpu_runs = list(_gpu_runs(newest_first(runs)))
    if not gpu_runs:
        return "no run of its gpu tier is recorded, of any build", False

    # An equal ID says more than equal layers, so look for it in every run first.
    for run, tier_run in gpu_runs:
        if image_id == run.digest:
            same = f"this build is, bit for bit, the image whose gpu tier {tier_run.phrase}"
            return same, True

    # An empty payload is not known, so it equals no other, not even an empty one.
    for run, tier_run in gpu_runs:
        if payload and payload == run.payload:
            same = f"the layers and settings of the image whose gpu tier {tier_run.phrase}"
            other = (
                "its other ID comes of our suite, labels, history, or how the engine writes tars"
            )
            return f"this build has, bit for bit, {same}; {other}", True
    return _difference_from_runs(gpu_runs, payload), False


def _gpu_runs(runs: Sequence[Run]) -> Iterator[tuple[Run, TierRun]]:
    """Yield each run of the gpu tier, in the same order, and the status of this tier.

    `runs`: all of an image, newest first.
    """
    for run in runs:
        for tier_run in _tier_runs(run, runs, (), "", is_current=False):
            if tier_run.tier is Tier.GPU:
                yield run, tier_run


def _difference_from_runs(
    gpu_runs: Sequence[tuple[Run, TierRun]], payload: Mapping[str, str]
) -> str:
    """Return a sentence on how a build differs from the newest run whose payload is recorded.

    A payload is what an image has: name -> digest, of its layers and settings. Where that of the
    build or of every run is not known, the sentence says so. `payload`: of the build; empty: not
    known. `gpu_runs`: recorded runs of the image on GPUs, newest first, at least one.
    """
    with_payload = [pair for pair in gpu_runs if pair[0].payload]
    run, tier_run = with_payload[0] if with_payload else gpu_runs[0]
    if not payload or not run.payload:
        which = "that one" if payload else "this build"
        return (
            f"this build has another ID than the image whose gpu tier {tier_run.phrase}, "
            f"and the layers of {which} are not known: no recorded run is about it"
        )

    differing = []
    for name in {**payload, **run.payload}:
        if payload.get(name) != run.payload.get(name):
            differing.append(name)
    advice = ""
    if differing == [SUITE]:
        # A payload has the suite's layer only where nobody could read whether anything else is in
        # it. Reading the layers of some engines takes root.
        advice = "; root on the engine's machine can read whether it holds our suite alone"
    return (
        f"this build differs in {listed(differing)} from the image whose gpu tier "
        f"{tier_run.phrase}: no recorded run is about it{advice}"
    )
