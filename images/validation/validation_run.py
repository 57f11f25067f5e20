"""Measures an image and returns the evidence: a validation run.

`validate` reads in the order in which it happens. Suite and claims come from this checkout, never
from the copy that an image carries.
"""

import math
import secrets
import threading
import time
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
from images.validation.admission import find_broken, reasons_not_measured, with_admission_claims
from images.validation.containers import (
    GPU_MEMORY,
    MEMORY,
    SUITE_SECONDS,
    ContainerPlan,
    measure_in_container,
    plan_containers,
)
from validate import checks, host_faults
from validate.claims import ClaimSet, Tier
from validate.environment import host as host_facts
from validate.evidence import Evidence, MeasuredOn, Outcome, Record, strict_json

_AT_ONCE_ON_SMALL = 2
"""Containers side by side on a small machine: one reads files and waits for the disk, one runs
code."""
_MEMORY_ON_SMALL = 8 * 1024**3
"""Bytes of memory that the machine needs for each of these; with less, they run one by one."""
_CORES_ON_LARGE = 4
"""Cores that a larger machine needs for each container. There, each needs all of its MEMORY,
too."""
_CORES_BESIDE_GPU = 12
"""Cores that a machine needs to run checks of a GPU beside those of the CPU. Up to six of them run
at once, and each needs a core."""


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
    """Measure an image for its claims of these tiers, and return the evidence.

    Its files are read first. If they are broken, nothing of the image is started, unless
    `run_anyway` is set. Containers have no network, a read-only root, the image's user and bounded
    memory, and are always removed. `on_record` is called after each probe.

    Raises UserError if the suite could not start in a container: an image without Python, say.
    """
    image = engine.inspect(reference)
    steps_above = configuration.steps_above(engine.steps(image.handle))
    # Admission claims decide whether programs of the image may run at all. So they are measured
    # even if the caller did not choose their tier.
    chosen = claims.in_tiers(tiers)
    to_measure = with_admission_claims(chosen)
    host = describe_host(engine, image, to_measure, gpus, steps_above)
    # Claims that this host can't measure are unproven from the start.
    evidence = GrowingEvidence(image, with_host_limits(to_measure, host), host, on_record)

    # Read the image's files with our own Python. No program of the image runs.
    claims_left = read_files(engine, image, evidence)
    look_from_host(engine, image, evidence, steps_above)

    # Judge the admission claims. Everything else is judged later, by the caller.
    evidence_so_far = evidence.for_claims(evidence.claims)
    broken = find_broken(evidence.claims, evidence_so_far)
    if broken and not run_anyway:
        unmeasured = reasons_not_measured(claims_left, chosen, broken)
        host["unsupported"] = {**host.get("unsupported", {}), **unmeasured}
    else:
        run_containers(engine, image, claims_left, gpus, evidence)

    # Admission claims that the caller did not choose are reported only if they do not hold.
    reported_keys = {*(claim.key for claim in chosen.claims), *broken}
    reported = to_measure.where(lambda claim: claim.key in reported_keys)
    # Claims that `host` lists as not measured become unproven.
    return evidence.for_claims(with_host_limits(reported, host))


def describe_host(
    engine: Engine, image: ImageInfo, claims: ClaimSet, gpus: Attachment, steps_above: Sequence[str]
) -> MeasuredOn:
    """Return facts about the engine, its machine and the image, to be stored with the evidence.

    There is also a new random seed for all probes (programs that measure) of this run. MeasuredOn
    explains the keys.

    claims: those that the run is to measure.
    gpus: how containers get GPUs, and which.
    steps_above: the build steps that a user's image has on top of ours; empty for our own images.
    """
    facts = engine.facts
    host: MeasuredOn = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "engine": facts.version,
        "cpus": facts.cpus,
        "driver": "",
        "gpus": [],
        "attached": gpus.as_json(),
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
    host["faults"] = find_machine_faults(engine, gpus)
    # If the image is for another processor than the engine's machine, say what can't be measured.
    unsupported = unsupported_claims(facts, image, claims)
    if unsupported:
        host["unsupported"] = unsupported
    reason = reason_other_processor(facts, image)
    if reason:
        host["other_processor"] = reason
    return host


def find_machine_faults(engine: Engine, gpus: Attachment) -> list[str]:
    """Return what is wrong now with the driver and the GPUs that containers get, a sentence each.

    They can be read only if the engine runs on this machine; of any other, the list is empty.
    """
    if not gpus.attached or not engine.facts.local:
        return []
    return host_faults.of_machine(host_facts.read(folder=Path(gpus.library_path)))


class GrowingEvidence:
    """The evidence of one image while it is measured.

    Containers run side by side, each in a thread that adds its records.
    """

    def __init__(
        self,
        image: ImageInfo,
        claims: ClaimSet,
        host: MeasuredOn,
        on_record: Callable[[Record], None],
    ) -> None:
        """Begin a validation run of `image`, which has no records yet.

        A record is what one probe (a program that measures) found. `claims` are what is measured.
        `host` has facts of the machine: more of them are added to this same dict during the run.
        `on_record` is called with each record that is added, in the thread that adds it.
        """
        self.claims = claims
        self.host = host
        self._digest = image.digest
        self._on_record = on_record
        self._records: list[Record] = []
        self._lock = threading.Lock()

    def add(self, record: Record) -> None:
        """Add what a probe measured in one container."""
        # Turn it into what evidence.json will hold (lists for tuples, no NaN), so that the same is
        # judged now and later.
        json_record = strict_json(asdict(record))
        record = Record.from_json(json_record)
        with self._lock:
            self._records.append(record)
            self._on_record(record)

    def note_container_end(self, *, out_of_memory: bool, refused_limits: str) -> None:
        """Note that a container ran out of memory, or why the engine refused its limits."""
        with self._lock:
            self.host["out_of_memory"] = self.host.get("out_of_memory", False) or out_of_memory
            if refused_limits:
                self.host["ulimits"] = refused_limits

    def for_claims(self, claims: ClaimSet) -> Evidence:
        """Return the evidence by which these claims can be judged."""
        probes = {claim.probe for claim in claims.claims}
        records = [record for record in self._records if record.probe in probes]
        return Evidence(
            image=claims.image,
            digest=self._digest,
            records=merge_records(records),
            host=self.host,
            claims=claims.claims,
        )


def merge_records(records: Sequence[Record]) -> tuple[Record, ...]:
    """Merge records of the same probe, so that there is one for each.

    A record says what a program (probe) measured, and how it ended. A probe may have run in several
    containers. The merged record has all measurements and logs, and the sum of the seconds. It has
    completed only if all of them have.
    """
    by_probe: dict[str, Record] = {}
    for record in records:
        earlier = by_probe.get(record.probe)
        if earlier is None:
            by_probe[record.probe] = record
            continue
        # Outcome and exit code are those of the first record that did not complete.
        worse = record if earlier.outcome is Outcome.COMPLETED else earlier
        by_probe[record.probe] = replace(
            worse,
            seconds=round(earlier.seconds + record.seconds, 3),
            measurements=(*earlier.measurements, *record.measurements),
            log=earlier.log + record.log,
        )
    return tuple(by_probe.values())


def read_files(engine: Engine, image: ImageInfo, evidence: GrowingEvidence) -> ClaimSet:
    """Measure the claims about the image's files, and add what is measured to the evidence.

    The files are read by our own Python, which is copied into a container of the image: no program
    of the image runs. Returns all claims that are not about files. Raises UserError if our Python
    could not start there, or did not come to its end.
    """
    about_files = evidence.claims.where(lambda claim: checks.settings(claim.probe).reads_files_only)
    # Claims that are known to be unproven are not measured.
    to_measure = about_files.where(lambda claim: not claim.unproven)
    if to_measure.claims:
        # Our mounts in the container hide these files of the image. They can't be read, so a check
        # reports them.
        covered = own_python.find_covered_files(engine, image)
        own_python.measure_files(
            engine,
            image,
            to_measure,
            own_python.user_json(image, covered=covered),
            seed=evidence.host["seed"],
            timeout=SUITE_SECONDS,
            on_record=evidence.add,
        )
    # Claims about files that are known to be unproven were not measured, and are not returned.
    return evidence.claims.not_measured_by({claim.probe for claim in about_files.claims})


def look_from_host(
    engine: Engine, image: ImageInfo, evidence: GrowingEvidence, steps_above: Sequence[str]
) -> None:
    """Measure an image from outside: its configuration, and its layers in the engine's store.

    No container is started. What was measured is added to `evidence` as records, and the digests of
    the layers to its `host`. `steps_above`: the build steps that a user's image has on top of ours;
    empty for our own images. Raises EngineError.
    """
    claims = evidence.claims
    # Engines may store the same files of a layer in different ways. The claim on the origin names
    # the digests of all ways that are known.
    layer_reading = layers.read_layers(engine, image, origin.known_forms(claims))
    # By these digests, later runs tell whether they measured the same image.
    evidence.host["payload"] = layer_reading.compared
    # An engine gives the last step of a history first.
    history = list(reversed(engine.history(image.handle)))
    evidence.host["layer_bytes"] = configuration.layer_sizes(history)
    records = [
        *host_look.measure_image(engine, image, claims),
        *origin.measure_origin(engine, image, claims, layer_reading, steps_above),
    ]
    # Evidence names the run's seed in each record, even where nothing is random.
    for record in records:
        evidence.add(replace(record, seed=evidence.host["seed"]))


def run_containers(
    engine: Engine,
    image: ImageInfo,
    claims: ClaimSet,
    gpus: Attachment,
    evidence: GrowingEvidence,
    *,
    end: float = math.inf,
) -> None:
    """Measure claims by running programs of the image, in several containers.

    `end`: when all of them must have ended, as time.monotonic() counts; a container that then still
    runs is an error. Records are added to `evidence`. If an error occurs in a container, or the
    user interrupts, no further container is started, and the error is raised.
    """
    home = image.env.get("HOME", "")
    is_derived = bool(evidence.host["steps_above"])  # a user's image, built on one of ours
    plans = plan_containers(home, claims, gpus, own_python.user_json(image), keep_home=is_derived)
    stopped = threading.Event()  # set once a container failed

    def measure(plan: ContainerPlan) -> None:
        """Measure the claims of one container, unless another container has failed (`stopped`)."""
        if stopped.is_set():
            return
        try:
            seed = evidence.host["seed"]
            timeout = min(SUITE_SECONDS, max(1.0, end - time.monotonic()))
            result = measure_in_container(engine, image, plan, seed, evidence.add, timeout=timeout)
            evidence.note_container_end(
                out_of_memory=result.end.oom, refused_limits=result.refused_limits
            )
        except BaseException:
            stopped.set()
            raise

    side_by_side, one_by_one = split_plans(engine.facts, plans)
    at_once = containers_at_once(engine.facts)
    at_once += sum(plan.gpus.attached for plan in side_by_side)
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        # An interrupt may come while a container runs already and others are still submitted.
        try:
            containers = [pool.submit(measure, plan) for plan in side_by_side]
            wait(containers)
        except BaseException:
            stopped.set()
            engine.cancel()
            raise
    for container in containers:
        # This raises the error of the container's thread, if there was one.
        container.result()

    for plan in one_by_one:
        measure(plan)


def split_plans(
    machine: EngineFacts, plans: Sequence[ContainerPlan]
) -> tuple[list[ContainerPlan], list[ContainerPlan]]:
    """Return the containers that may run side by side, and those that run one by one after them.

    A container that must run alone is one of the latter. So is the one with the GPUs, unless the
    machine has the cores for it, and memory for it besides all others that run at once.
    """
    # Of the containers that may run side by side, at most one has GPUs (plan_containers).
    memory = GPU_MEMORY + MEMORY * containers_at_once(machine)
    is_large = machine.cpus >= _CORES_BESIDE_GPU and machine.memory >= memory
    side_by_side = []
    one_by_one = []
    for plan in plans:
        if plan.runs_alone or (plan.gpus.attached and not is_large):
            one_by_one.append(plan)
        else:
            side_by_side.append(plan)
    return side_by_side, one_by_one


def containers_at_once(machine: EngineFacts) -> int:
    """Return how many containers without GPUs may run side by side on a machine: at least one.

    There are two limits, for small and for large machines. The one that allows more counts.
    """
    small_machine = min(_AT_ONCE_ON_SMALL, machine.memory // _MEMORY_ON_SMALL)
    large_machine = min(machine.cpus // _CORES_ON_LARGE, machine.memory // MEMORY)
    return max(1, small_machine, large_machine)


def unsupported_claims(facts: EngineFacts, image: ImageInfo, claims: ClaimSet) -> dict[str, str]:
    """Return the claims that the engine's machine can't measure: name of the claim -> reason.

    If the image is for another processor than the machine's (`facts`), no program of it runs there.
    Then these are all claims for which a program must run. Otherwise there are none.
    """
    reason = reason_other_processor(facts, image)
    if not reason:
        return {}
    reasons = {}
    for claim in claims.claims:
        # Other claims are about what the engine says of the image, or about its files.
        runs_programs = claim.is_of_container and not checks.settings(claim.probe).reads_files_only
        if runs_programs:
            reasons[claim.key] = reason
    return reasons


def reason_other_processor(facts: EngineFacts, image: ImageInfo) -> str:
    """Return why programs of an image do not run on the engine's machine; empty if they do."""
    if not image.architecture or image.architecture == facts.architecture:
        return ""
    return (
        f"programs for {image.architecture} do not run on this machine ({facts.architecture}):"
        f" validate it on a machine with {image.architecture}"
    )


def with_host_limits(claims: ClaimSet, host: Mapping[str, Any]) -> ClaimSet:
    """Return these claims, and mark as unproven those that a host could not measure.

    `host` has facts about the machine. Its `unsupported` has the claims that could not be measured
    there: key -> reason. A claim that is unproven already keeps its own reason.
    """
    reasons = host.get("unsupported") or {}
    limited = []
    for claim in claims.claims:
        unproven = claim.unproven or reasons.get(claim.key, "")
        limited.append(replace(claim, unproven=unproven))
    return replace(claims, claims=tuple(limited))
