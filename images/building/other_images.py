"""Runs failed GPU claims in another image, to tell the image's fault from the machine's.

The other image is the newest that is recorded as PASS on this GPU model and that the engine has.
If it fails on this machine, too, the machine is at fault; validate/judge.py draws that conclusion,
from what is stored in the evidence here.

Besides admission (images/validation/admission.py), this is the only place where measuring depends
on a verdict: it decides which claims another image runs, and never what comes out.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import NamedTuple

from images.building import validating
from images.config.matrix import Sources
from images.engine import Engine, ImageInfo, layers
from images.engine.gpus import Attachment
from images.engine.host_gpus import require_driver
from images.errors import UserError, command
from images.hardware.inventory import Inventory
from images.planning import chooser, plan
from images.planning.image import Image
from images.validation import validation_run
from images.validation.origin import known_forms
from images.validation.validation_run import GrowingEvidence
from validate.claims import GPU_TIERS, Claim, ClaimSet
from validate.evidence import Evidence, MeasuredOn, OtherImage, Outcome
from validate.judge import Verdict, needs_other_image
from validate.judging import plural

MOST_SECONDS = 300
"""Time for all other images together. Nobody should wait longer to learn whose fault a failure
is."""


@dataclass(frozen=True, kw_only=True)
class RecordedPass:
    """A recorded validation run in which claims about GPUs passed."""

    run: str
    """Its ID in results/runs.jsonl."""
    image: str
    """The image's name in the matrix."""
    digest: str
    payload: Mapping[str, str]
    """Layers and settings of the image (images/engine/configuration.py); empty: not recorded."""
    gpus: Collection[str]
    """Names of the GPUs as the driver has them."""
    claims: Collection[str]
    """Keys of the claims about GPUs that passed."""
    is_of_today: bool
    """Whether a build of today gives these layers."""


class Candidate(NamedTuple):
    """An image of the engine that may run failed claims."""

    recorded: RecordedPass
    info: ImageInfo
    claims: ClaimSet
    """Its own, as the matrix has them today for this machine."""


class OtherImages:
    """The images of an engine that are recorded as PASS, to compare a failed one with."""

    def __init__(
        self,
        engine: Engine,
        sources: Sources,
        read_passes: Callable[[], Sequence[RecordedPass]],
        say: Callable[[str], None],
    ) -> None:
        """Keep what a comparison needs; nothing is read or run before a claim has failed.

        read_passes: returns the recorded runs, the newest first.
        say: called with a line before each image that runs claims.
        """
        self._engine = engine
        self._sources = sources
        self._read_passes = read_passes
        self._say = say
        self._payloads: dict[str, Mapping[str, str]] = {}
        """Layers and settings of images of the engine that were read, by handle."""

    def compare(self, evidence: Evidence, verdict: Verdict, gpus: Attachment) -> None:
        """Run the required GPU claims that failed in other images, and add what they measured.

        That is `other_images` in the host facts of `evidence`, and in `not_compared` the claims
        that no other image ran. An image that can't run is no error: its claims are not compared.
        """
        failed = [
            judged.claim
            for judged in verdict.claims
            if needs_other_image(judged.claim, judged.status)
        ]
        if not failed:
            return
        too_long = find_too_long(failed, evidence)
        keys = {claim.key for claim in failed}.difference(too_long)
        # The failed image was measured, and its evidence is not stored yet: nothing that goes wrong
        # here may lose it.
        try:
            passes = choose_passes(self._read_passes(), evidence, gpus.inventory)
        except UserError as error:
            problem = error.problems[0]
            reason = f"the recorded runs can't be read ({problem.where}: {problem.cause})"
            evidence.host["not_compared"] = {**too_long, **dict.fromkeys(keys, reason)}
            return

        others, not_run = self._run(passes, keys, evidence, gpus)
        if others:
            evidence.host["other_images"] = others
        if too_long or not_run:
            evidence.host["not_compared"] = {**too_long, **not_run}

    def _run(
        self,
        passes: Sequence[RecordedPass],
        keys: Collection[str],
        evidence: Evidence,
        gpus: Attachment,
    ) -> tuple[list[OtherImage], dict[str, str]]:
        """Run each of these claims in the newest image that is recorded as PASS and can be had.

        `passes` are the recorded runs that may be compared with, the newest first.
        Returns what the images measured, and the claims that none of them measured: key -> reason.
        """
        end = time.monotonic() + MOST_SECONDS
        waiting = set(keys)
        not_run: dict[str, str] = {}
        others: list[OtherImage] = []
        absent: list[RecordedPass] = []
        # Key of a claim -> the image that has it and can't be held to it on this machine.
        not_held: dict[str, str] = {}
        for recorded in passes:
            keys_of_image = waiting.intersection(recorded.claims)
            if not keys_of_image:
                continue
            candidate = self._find(recorded, gpus)
            if candidate is None:
                absent.append(recorded)
                continue
            claims = choose_runnable(candidate.claims, keys_of_image)
            for key in keys_of_image.difference(claim.key for claim in claims.claims):
                not_held[key] = recorded.image
            if not claims.claims:
                continue
            measured, problem = self._measure(candidate, claims, evidence, gpus, end)
            others.append(describe(candidate, measured))
            # What this image was to run is settled, even if it did not come to it.
            for claim in claims.claims:
                waiting.discard(claim.key)
                if measured.record_of(claim.probe) is None:
                    not_run[claim.key] = problem

        for key in sorted(waiting):
            if key in not_held:
                not_run[key] = f"{not_held[key]} can't be held to this claim on this machine"
            else:
                not_run[key] = reason_absent(key, absent)
        return others, not_run

    def _find(self, recorded: RecordedPass, gpus: Attachment) -> Candidate | None:
        """Return the engine's image that a recorded run is about, with its claims.

        It has the recorded digest. Or it has the recorded name (with or without `-candidate`) and
        the recorded layers and settings. None if the engine has no such image, which is not pulled,
        or if the driver is too old for it.
        """
        # UserError: the matrix or its locks no longer have this image, or the driver is too old.
        with suppress(UserError):
            image = find_planned(recorded.image, self._sources)
            if image is None:
                return None
            if gpus.inventory:
                require_driver(gpus.inventory, image.min_driver)
            for reference in (recorded.digest, image.local_name, f"{image.local_name}-candidate"):
                info = self._engine.find(reference)
                if info is None:
                    continue
                claims = self._claims_of(image, info, gpus)
                if info.digest == recorded.digest:
                    return Candidate(recorded, info, claims)
                if recorded.payload and self._read_payload(info, claims) == recorded.payload:
                    return Candidate(recorded, info, claims)
        return None

    def _claims_of(self, image: Image, info: ImageInfo, gpus: Attachment) -> ClaimSet:
        """Return the claims of an image of the engine, for this machine."""
        steps = self._engine.steps(info.handle)
        return validating.claims_of(
            image, self._sources, info.labels, steps, GPU_TIERS, attachment=gpus
        )

    def _read_payload(self, info: ImageInfo, claims: ClaimSet) -> Mapping[str, str]:
        """Return the layers and settings of an image, as recorded runs have them.

        Several runs of an image may be recorded, so what was read is kept.
        """
        if info.handle not in self._payloads:
            reading = layers.read_layers(self._engine, info, known_forms(claims))
            self._payloads[info.handle] = reading.compared
        return self._payloads[info.handle]

    def _measure(
        self,
        candidate: Candidate,
        claims: ClaimSet,
        evidence: Evidence,
        gpus: Attachment,
        end: float,
    ) -> tuple[Evidence, str]:
        """Run claims in another image, and return what it measured and why it did not measure all.

        Its files are not read first: they are those of the recorded run. The second text is empty
        if it ended well. `end`: when the image must have ended, as time.monotonic() counts.
        """
        name = candidate.recorded.image
        self._say(
            f"{name} runs {plural(len(claims.claims), 'failed claim')}, to tell the image's fault "
            "from the machine's"
        )
        host: MeasuredOn = {"seed": evidence.host["seed"], "steps_above": 0}
        growing = GrowingEvidence(candidate.info, claims, host, lambda _record: None)
        problem = f"the image {name} did not measure it"
        try:
            validation_run.run_containers(
                self._engine, candidate.info, claims, gpus, growing, end=end
            )
        except UserError as error:
            problem += f": {error.problems[0].cause}"
        return growing.for_claims(claims), problem


def choose_runnable(claims: ClaimSet, keys: Collection[str]) -> ClaimSet:
    """Return the claims with these keys that an image can be held to on this machine."""
    return claims.where(
        lambda claim: (
            claim.key in keys and not claim.unproven and "not_applicable" not in claim.expect
        )
    )


def describe(candidate: Candidate, measured: Evidence) -> OtherImage:
    """Return what the evidence of the failed image holds of another image.

    If that image ran out of memory, probes that did not complete are left out: they were killed,
    and tell nothing of the machine.
    """
    records = measured.records
    if measured.host.get("out_of_memory"):
        records = tuple(record for record in records if record.outcome is Outcome.COMPLETED)
    return {
        "image": candidate.recorded.image,
        "digest": candidate.info.digest,
        "run": candidate.recorded.run,
        "claims": [asdict(claim) for claim in measured.claims],
        "records": [asdict(record) for record in records],
    }


def find_planned(name: str, sources: Sources) -> Image | None:
    """Return an image of the matrix by its name; None if the matrix lacks it or refuses it."""
    for planned in plan.plan(sources):
        if planned.name == name:
            return planned.image
    return None


def choose_passes(
    passes: Sequence[RecordedPass], evidence: Evidence, inventory: Inventory | None
) -> list[RecordedPass]:
    """Return the recorded runs on the GPU models of this machine, of other images. Pure.

    The order stays. `evidence` is the failed image's: an image with the same layers and settings is
    no other one. `inventory`: the machine's GPUs; None: not known, and no run is returned.
    """
    if inventory is None:
        return []
    models = {chooser.model_of(gpu.name) for gpu in inventory.gpus}
    chosen = []
    for recorded in passes:
        is_same = recorded.digest == evidence.digest or (
            bool(recorded.payload) and recorded.payload == evidence.host.get("payload")
        )
        if not is_same and {chooser.model_of(name) for name in recorded.gpus} == models:
            chosen.append(recorded)
    return chosen


def find_too_long(failed: Sequence[Claim], evidence: Evidence) -> dict[str, str]:
    """Return the failed claims that are not measured again in other images: key -> reason. Pure.

    All probes (the programs that measure claims) get MOST_SECONDS together, and the shortest come
    first. A probe is expected to take the time that it took in the failed image (`evidence`).
    """
    probes = {claim.probe for claim in failed}
    records = [record for record in evidence.records if record.probe in probes]
    total = 0.0
    # Probe -> the reason.
    too_long = {}
    for record in sorted(records, key=lambda record: record.seconds):
        total += record.seconds
        if total > MOST_SECONDS:
            too_long[record.probe] = (
                f"{record.probe} took {record.seconds:.0f} s, and other images get "
                f"{MOST_SECONDS} s together"
            )
    return {claim.key: too_long[claim.probe] for claim in failed if claim.probe in too_long}


def reason_absent(key: str, absent: Sequence[RecordedPass]) -> str:
    """Return why no other image could be tried for a claim, and how to build one if that helps.

    `key` is the claim's. `absent` are recorded runs on this GPU model, the newest first, whose
    images the engine lacks.
    """
    # Runs in which the claim passed.
    passed = [recorded for recorded in absent if key in recorded.claims]
    for recorded in passed:
        if recorded.is_of_today:
            return (
                "the engine has no image that is recorded as PASS on this GPU model: "
                f"`{command('build', recorded.image)}` builds one, then validate again"
            )
    if passed:
        return "what is recorded as PASS on this GPU model are images that no build gives today"
    return "no other image is recorded as PASS on this GPU model"
