"""Decides whether the evidence of an earlier validation run may stand for a new one.

Evidence belongs to its inputs: the image, the suite, the claims, the settings of the run and the
machine. A run records them (`MeasuredOn.inputs`). If all of them are the same again, measuring
would give the same verdict. If one differs, everything is measured: nobody could check which parts
of a run an input has touched.
"""

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from images.config.paths import RESOURCES
from images.engine import Engine, ImageInfo
from images.engine.gpus import Attachment
from images.host.hashing import sha256
from images.validation import validation_run
from images.validation.containers import suite_files
from validate.claims import ClaimSet, Tier
from validate.environment import nvml
from validate.evidence import Evidence, Outcome
from validate.judge import judge
from validate.judging import Status, plural

Inputs = Mapping[str, str]
"""What a run depends on, in the words of messages (`the driver`) -> its value, or a digest where
the value is long or nobody's business: evidence is published."""

IMAGE = "the image"
AGAIN = "--again measures anew"
"""What a message adds to a verdict of an earlier run."""
_SETTLED = (Status.PASS, Status.KNOWN, Status.NOT_APPLICABLE)
_PROCESSOR = re.compile(
    r"^(?:model name|microcode|flags|CPU implementer|CPU part|Features)\s*:.*$", re.MULTILINE
)
"""Lines of /proc/cpuinfo that stay the same for the life of a machine; its clock rates do not."""
_UNITS = (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))
"""Units of an age, and the seconds of each."""


def read(folder: Path) -> Evidence | None:
    """Return the evidence of a finished validation run from its folder.

    None if there is none, or if it is not exactly what the run wrote: it was damaged, edited, or
    written by another release. An unfinished run has no verdict.json, which is written last.
    """
    try:
        text = (folder / "evidence.json").read_text(encoding="utf-8")
        evidence = Evidence.loads(text)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    # `loads` also accepts a text without a digest of its content.
    is_as_written = text == f"{evidence.dumps()}\n"
    if is_as_written and (folder / "verdict.json").is_file():
        return evidence
    return None


def describe_inputs(
    engine: Engine,
    image: ImageInfo,
    claims: ClaimSet,
    tiers: Sequence[Tier],
    gpus: Attachment,
    *,
    other_base: str,
    run_anyway: bool,
) -> Inputs:
    """Return everything that the result of a validation run may depend on.

    The random seed is not among it: each run draws its own. The result is empty if it can't be
    known from here, as with the GPUs of an engine on another machine. Raises OSError if a file of
    the suite can't be read.
    """
    facts = engine.facts
    inventory = gpus.inventory
    # Without a UUID, a GPU that was exchanged for another of its model would not be noticed.
    if gpus.attached and (inventory is None or len(inventory.uuids) != len(inventory.gpus)):
        return {}
    gpu_facts = ""
    driver = ""
    if inventory:
        gpu_facts = json.dumps([inventory.as_json()["gpus"], inventory.links, inventory.uuids])
        driver = inventory.driver
    processor = ""
    if facts.local:
        processor = "\n".join(_PROCESSOR.findall(Path("/proc/cpuinfo").read_text(encoding="utf-8")))

    suite = {**suite_files(claims)}
    # The claims have a row of their own.
    del suite["claims.json"]
    program = {}
    for path in sorted((RESOURCES / "images").rglob("*.py")):
        program[str(path.relative_to(RESOURCES))] = path.read_bytes()

    return {
        IMAGE: image.digest,
        "the suite": _digest_of_files(suite),
        # It reads the image's files, and says how containers are started. Its own Python comes
        # along into a container.
        "truetag": _digest_of_files({**program, "version": sys.version.encode()}),
        # Who may not read the engine's store can't measure what is in it.
        "the user": str(os.geteuid()),
        "the engine": _digest([facts.version, facts.further, str(facts.containerd_images)]),
        "the number of cores": str(facts.cpus),
        "the memory": str(facts.memory),
        "the processor": _digest([facts.architecture, processor]),
        "the driver": driver,
        "the list of GPUs": _digest([gpu_facts]),
        "a setting of the GPUs": _digest([_gpu_settings(gpus)]),
        "the way to the GPUs": _digest([json.dumps(gpus.as_json(), sort_keys=True)]),
        "the machine's health": "; ".join(validation_run.find_machine_faults(engine, gpus)),
        "the choice of tiers": ",".join(sorted(tiers)),
        "the base": other_base,
        "--run-anyway": str(run_anyway),
        "a claim": _digest([claims.dumps()]),
    }


def _gpu_settings(gpus: Attachment) -> str:
    """Return settings of the GPUs that decide how fast they are, and whether they can be used.

    NVML tells the power limit, MIG and the compute mode. It does not tell whether somebody has
    locked the clocks (`nvidia-smi -lgc`). Empty without GPUs, or if NVML can't be loaded.
    """
    if gpus.inventory is None:
        return ""
    folder = Path(gpus.library_path)
    limits = []
    for uuid in gpus.inventory.uuids:
        with nvml.open_gpu_reader(uuid, folder) as read_gpu:
            limits.append(read_gpu().get("power_limit"))
    try:
        modes = [[health.get("mig"), health.get("mode")] for health in nvml.read_health(folder)]
    except nvml.DriverError:
        modes = []
    return json.dumps([limits, modes])


def reason_to_measure(earlier: Evidence, inputs: Inputs) -> str:
    """Return why the evidence of an earlier run can't stand for a new run; empty if it can.

    The reason is the first input that differs (`the driver differs`), or what the earlier run left
    open. `inputs` are those of the new run. Pure.
    """
    recorded = earlier.host.get("inputs")
    if not inputs or not recorded:
        return "what a run depends on here is not known"
    for name, value in inputs.items():
        if recorded.get(name) != value:
            return f"{name} differs"
    if inputs[IMAGE] != earlier.digest:
        return f"{IMAGE} differs"
    return _reason_open(earlier)


def _reason_open(evidence: Evidence) -> str:
    """Return why measuring again may end in another verdict though nothing differs; empty if not.

    Something may have been lacking that comes and goes: memory, time, room on the disk, a GPU.
    """
    if evidence.host.get("faults"):
        return "the machine had a fault"
    if evidence.host.get("out_of_memory"):
        return "a container ran out of memory"
    for record in evidence.records:
        if record.outcome is not Outcome.COMPLETED:
            return f"{record.probe} did not run to its end"

    for judged in judge(evidence.claim_set, evidence).claims:
        claim = judged.claim
        # What was known beforehand to be unproven follows from the inputs. So does what reading
        # the same files leaves unproven, unlike what running a program does.
        is_known = bool(claim.unproven)
        was_read = claim.tier is Tier.STATIC and evidence.record_of(claim.probe) is not None
        if judged.status is Status.UNPROVEN and (is_known or was_read):
            continue
        # A failure is always tried again, as an error does not always say what it came from.
        if judged.status not in _SETTLED:
            return f"{claim.key} was {judged.status}"
    return ""


def describe_age(evidence: Evidence, now: datetime | None = None) -> str:
    """Return how long ago evidence was measured: `measured 14 minutes ago on this machine`."""
    measured_at = datetime.fromisoformat(evidence.host["date"])
    seconds = int(((now or datetime.now(UTC)) - measured_at).total_seconds())
    for unit, length in _UNITS:
        count = seconds // length
        if count > 0:
            return f"measured {plural(count, unit)} ago on this machine"
    # It was just now, or the clock was set back.
    return f"measured at {evidence.host['date']} on this machine"


def _digest_of_files(files: Mapping[str, bytes]) -> str:
    """Return a digest of files: path -> content."""
    return _digest(f"{path} {sha256(content)}" for path, content in files.items())


def _digest(lines: Iterable[str]) -> str:
    """Return a digest of some texts."""
    return sha256("\n".join(lines).encode())
