"""A validation run: an image is measured, and evidence comes back. `validate` reads as it happens.

Suite and claims come from this checkout, over whatever copy the image holds.
"""

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from images.context.labels import LABELS
from images.engine import Engine, ImageInfo, configuration, layers
from images.engine.gpus import NO_GPU, Attachment
from images.engine.runtime import EngineFacts
from images.validation import host_look, origin, own_python
from images.validation.admission import judge_first, left_unproven, with_admission_claims
from images.validation.containers import (
    MEMORY,
    SUITE_SECONDS,
    ContainerPlan,
    measure_in_container,
    planned,
)
from validate import checks, host_faults
from validate.claims import ClaimSet, Tier
from validate.environment import host as host_facts
from validate.evidence import Evidence, MeasuredOn, Outcome, Record, plain

_AT_ONCE, _CORES_EACH = 2, 4
"""Containers side by side: one that reads files waits for the disk, one that runs code does not; more on more cores."""
_MEMORY_EACH = 8 * 1024**3
"""Memory of the machine for each of two: with less, they run one after another. More than two get all that they may."""


def validate(
    engine: Engine,
    reference: str,
    claims: ClaimSet,
    tiers: Sequence[Tier],
    gpus: Attachment = NO_GPU,
    *,
    run_anyway: bool = False,
    on_record: Callable[[Record], None] = lambda _record: None,
) -> Evidence:
    """Measure an image. Its files are read first; nothing of an image whose files are broken is started.

    No network, read-only root, its own user, bounded memory, containers always removed. `run_anyway`: start it all the
    same. `on_record` is called after each probe. Raises UserError when the suite could not even start there (no Python,
    say).
    """
    image = engine.inspect(reference)
    steps_above = configuration.steps_above(engine.steps(image.id))
    chosen = claims.in_tiers(tiers)
    to_measure = with_admission_claims(chosen)
    host = describe_host(engine, image, to_measure, gpus, steps_above)
    evidence = GrowingEvidence(image, limited(to_measure, host), host, on_record)

    # Our own Python reads the files: no process of the image runs.
    not_read = read_files(engine, image, evidence)
    look_from_host(engine, image, evidence, steps_above)

    # The one judgement here: whether anything of the image may run.
    broken = judge_first(evidence.claims, evidence.for_claims(evidence.claims))
    if broken and not run_anyway:
        unproven = {**host.get("unsupported", {}), **left_unproven(not_read, chosen, broken)}
        host["unsupported"] = unproven
    else:
        run_containers(engine, image, not_read, gpus, evidence)

    # Admission claims that nobody chose are reported only where they fail.
    reported = {*(claim.key for claim in chosen.claims), *broken}
    return evidence.for_claims(limited(to_measure.where(lambda claim: claim.key in reported), host))


def describe_host(
    engine: Engine, image: ImageInfo, claims: ClaimSet, gpus: Attachment, steps_above: Sequence[str]
) -> MeasuredOn:
    """Return what evidence tells about the machine, and about the image as its engine knows it."""
    facts = engine.facts
    host: MeasuredOn = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "engine": facts.version,
        "cpus": facts.cpus,
        "driver": "",
        "gpus": [],
        "attached": gpus.as_json(),
        "faults": [],
        "seed": secrets.randbelow(1 << 31),
        "labelled": image.labels.get(f"{LABELS}.image", ""),
        "steps_above": len(steps_above),
    }
    if gpus.inventory:
        inventory = gpus.inventory.as_json()
        host["driver"] = inventory["driver"]
        host["gpus"] = inventory["gpus"]
        host["links"] = inventory["links"]
        host["source"] = inventory["source"]
    # Nothing can be read of another machine than this one.
    if gpus.attached and facts.local:
        host["faults"] = host_faults.of_machine(host_facts.read(folder=Path(gpus.library_path)))
    if unsupported := unsupported_by(facts, image, claims):
        host["unsupported"] = unsupported
    if no_programs := other_processor(facts, image):
        host["other_processor"] = no_programs
    return host


class GrowingEvidence:
    """The evidence of one image while it is measured. Containers run side by side, so records come from threads."""

    def __init__(
        self,
        image: ImageInfo,
        claims: ClaimSet,
        host: MeasuredOn,
        on_record: Callable[[Record], None],
    ) -> None:
        self.claims = claims
        self.host = host
        self._digest = image.id
        self._on_record = on_record
        self._records: list[Record] = []
        self._lock = threading.Lock()

    def add(self, record: Record) -> None:
        """Add what a probe measured in one container."""
        record = Record.from_json(plain(asdict(record)))
        with self._lock:
            self._records.append(record)
            self._on_record(record)

    def note_container_end(self, *, out_of_memory: bool, refused_limits: str) -> None:
        """Note how a container ended."""
        with self._lock:
            self.host["out_of_memory"] = self.host.get("out_of_memory", False) or out_of_memory
            if refused_limits:
                self.host["ulimits"] = refused_limits

    def for_claims(self, claims: ClaimSet) -> Evidence:
        """Return the evidence by which these claims can be judged."""
        probes = {claim.probe for claim in claims.claims}
        asked_for = [record for record in self._records if record.probe in probes]
        return Evidence(
            image=claims.image,
            digest=self._digest,
            records=merged(asked_for),
            host=self.host,
            claims=claims.claims,
        )


def merged(records: Sequence[Record]) -> tuple[Record, ...]:
    """Return one record a probe: of several containers, one that is as well as the worst of them."""
    by_probe: dict[str, Record] = {}
    for record in records:
        before = by_probe.get(record.probe)
        if before is None:
            by_probe[record.probe] = record
            continue
        by_probe[record.probe] = replace(
            before if record.outcome is Outcome.COMPLETED else record,
            seconds=round(before.seconds + record.seconds, 3),
            measurements=(*before.measurements, *record.measurements),
            log=before.log + record.log,
        )
    return tuple(by_probe.values())


def read_files(engine: Engine, image: ImageInfo, evidence: GrowingEvidence) -> ClaimSet:
    """Measure what the image's files say, by our own Python. Returns the claims that are left to measure.

    Raises UserError where our Python could not even start in the image's container.
    """
    of_files = evidence.claims.where(lambda claim: checks.settings(claim.probe).reads_files_only)
    to_read = of_files.where(lambda claim: not claim.unproven)
    if to_read.claims:
        user = own_python.user_of(image, hidden=own_python.covered_files(engine, image))
        seed = evidence.host["seed"]
        own_python.measure(
            engine, image, to_read, user, seed=seed, timeout=SUITE_SECONDS, on_record=evidence.add
        )
    return evidence.claims.less({claim.probe for claim in of_files.claims})


def look_from_host(
    engine: Engine, image: ImageInfo, evidence: GrowingEvidence, steps_above: Sequence[str]
) -> None:
    """Measure what no container shows: the image's configuration, and its layers as the engine stores them."""
    claims = evidence.claims
    layer_reading = layers.read_layers(engine, image, origin.known_forms(claims))
    evidence.host["payload"] = layer_reading.compared
    records = [
        *host_look.measure_image(engine, image, claims),
        *origin.measure_origin(engine, image, claims, layer_reading, steps_above),
    ]
    for record in records:
        evidence.add(replace(record, seed=evidence.host["seed"]))


def run_containers(
    engine: Engine, image: ImageInfo, claims: ClaimSet, gpus: Attachment, evidence: GrowingEvidence
) -> None:
    """Measure what programs of the image answer, each kind of probe in a container of its own."""
    plans = planned(image.env.get("HOME", ""), claims, gpus, own_python.user_of(image))
    stopped = threading.Event()

    def measure(plan: ContainerPlan) -> None:
        if stopped.is_set():
            return
        try:
            with_seed = replace(
                plan, arguments=(*plan.arguments, "--seed", str(evidence.host["seed"]))
            )
            end, refused = measure_in_container(engine, image, with_seed, evidence.add)
            evidence.note_container_end(out_of_memory=end.oom, refused_limits=refused)
        except BaseException:
            # After an error no container begins any more.
            stopped.set()
            raise

    # Side by side as far as the machine allows.
    memory, cores = engine.facts.memory, engine.facts.cpus
    at_once = max(
        1, min(_AT_ONCE, memory // _MEMORY_EACH), min(cores // _CORES_EACH, memory // MEMORY)
    )
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        try:  # around the start, too: a container may run before the last one is submitted
            containers = [pool.submit(measure, plan) for plan in plans if not plan.gpus.attached]
            wait(containers)
        except BaseException:  # an interrupt
            stopped.set()
            engine.cancel()
            raise
    for container in containers:
        container.result()

    # One after another: each uses all GPUs.
    for plan in plans:
        if plan.gpus.attached:
            measure(plan)


def unsupported_by(facts: EngineFacts, image: ImageInfo, claims: ClaimSet) -> dict[str, str]:
    """Return the claims (by their keys) that an engine can't measure of this image, each with the reason."""
    reasons = {}
    no_programs = other_processor(facts, image)
    for claim in claims.claims:
        runs_programs = claim.is_inside and not checks.settings(claim.probe).reads_files_only
        if no_programs and runs_programs:
            reasons[claim.key] = no_programs
    return reasons


def other_processor(facts: EngineFacts, image: ImageInfo) -> str:
    """Return why programs of this image do not run on the engine's machine; empty: they do."""
    if not image.architecture or image.architecture == facts.architecture:
        return ""
    return (
        f"programs for {image.architecture} do not run on this machine ({facts.architecture}):"
        f" validate it on a machine with {image.architecture}"
    )


def limited(claims: ClaimSet, host: Mapping[str, Any]) -> ClaimSet:
    """Return claims as evidence of a host can answer them: what was unsupported there is unproven, so never green."""
    reasons = host.get("unsupported") or {}
    known = [
        replace(claim, unproven=claim.unproven or reasons.get(claim.key, ""))
        for claim in claims.claims
    ]
    return replace(claims, claims=tuple(known))
