"""Runs the suite in a container of an image and brings back evidence. The judge brings its own yardstick:
suite and claims come from this checkout, over whatever copy the image holds."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from images.config.paths import EXAMPLES, SUITE
from images.engine import KILLED, ContainerSpec, EngineError, EngineErrorKind, Exit, ImageInfo
from images.engine.gpus import NO_GPU, Attachment
from images.engine.runtime import Runtime
from images.errors import Problem, UserError
from images.validation import containers, foreign, inspection, limits, own_python
from images.validation.containers import INSIDE, ContainerPlan
from images.validation.emulated_processor import FOLDER, EmulatedProcessor, emulated_processor
from images.validation.foreign import Foreign
from validate.claims import IN_OWN_CONTAINER, ClaimSet, Tier
from validate.evidence import Evidence, Outcome, Record

_GIB = 1024**3
_PAGE = 1 << 16
"""No machine that we know of has larger pages."""
_AT_ONCE = 2
"""Containers of a trial that run side by side: one that reads files waits for the disk, one that runs code does not."""
_MEMORY_EACH = 8 * _GIB
"""Memory of the machine for each of them: beside less, they run one after another."""
_MOST_ON_GPUS = 6
_START_SECONDS = 300
"""For an emulated Python to say how it starts."""
_EMULATED_SECONDS = 3000
"""For an emulated probe: qemu takes ten to twenty times as long (docs/arm64.md)."""
_GPU_MEMORY_EACH = 3 * _GIB
"""A probe with torch, cuDNN's workspaces and a CUDA context stays below this (H100)."""
RANKS_ULIMITS = {"memlock": -1, "stack": 64 << 20}
"""What NVIDIA asks for several GPUs in a container, beside room in /dev/shm (NCCL's user guide, troubleshooting)."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What a trial may use. Memory in bytes, timeout in seconds for the whole suite."""

    memory: int = 12 * _GIB
    gpu_memory: int = 24 * _GIB
    """In place of `memory` where probes use GPUs: each holds torch and a CUDA context."""
    shared_memory: int = 8 * _GIB
    """/dev/shm of the container where ranks of several GPUs run: as `--shm-size` gives users."""
    scratch: int = 4 * _GIB
    timeout: float = 3600
    """Each probe has a limit of its own, which gives a verdict; past this one there is none."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """How to try an image."""

    tiers: Sequence[Tier]
    bounds: Bounds = field(default_factory=Bounds)
    gpus: Attachment = NO_GPU
    on_record: Callable[[Record], None] = lambda _record: None
    on_evidence: Callable[[Evidence], None] = lambda _evidence: None
    """Told after each record what was measured so far: a trial that is killed leaves that much."""


def run(engine: Runtime, reference: str, claims: ClaimSet, trial: Trial) -> Evidence:
    """Measure an image: no network, read-only root, its own user, bounded memory, always removed.

    Raises UserError when the suite could not even start there (no Python, say).
    """
    image = engine.inspect(reference)
    reasons = limits.of_engine(claims.of(trial.tiers), engine.facts)
    asked = limits.limited(claims.of(trial.tiers), reasons)
    records: list[Record] = []
    one_at_a_time = threading.Lock()
    host: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "engine": engine.facts.version,
        "cpus": engine.facts.cpus,
        **_gpus_of_host(trial.gpus),
        **limits.as_host(reasons, engine.facts),
    }

    def evidence(found: Sequence[Record]) -> Evidence:
        return Evidence(image=claims.image, digest=image.id, records=tuple(found), host=host, claims=asked.claims)

    def keep(record: Record) -> None:
        with one_at_a_time:
            records.append(record)
            trial.on_record(record)
            trial.on_evidence(evidence(_finished(merged(records), asked)))

    def measure(plan: ContainerPlan) -> None:
        _, end, refused = _run_suite(engine, image, plan, replace(trial, on_record=keep))
        with one_at_a_time:
            host["out_of_memory"] = host.get("out_of_memory", False) or end.oom
            if refused:
                host["ulimits"] = refused

    for record in inspection.records(engine, image, asked):
        keep(record)
    home = image.env.get("HOME", "/root")
    with _reader(engine, image, asked) as reader:
        if reader:
            host["emulated"] = reader.emulated(asked.inside().claims)
        wanted = containers.planned(home, limits.given(asked.inside(), reasons), trial.gpus)
        plans = [plan for plan in _split(wanted, reader) if plan.claims.claims]
        _side_by_side(engine, measure, [plan for plan in plans if not plan.gpus.attached])
        for plan in plans:
            if plan.gpus.attached:
                measure(plan)
    return evidence(merged(records))


def _side_by_side(engine: Runtime, measure: Callable[[ContainerPlan], None], plans: Sequence[ContainerPlan]) -> None:
    """Measure in some containers at once. After an error none begins any more; an interrupt stops those that run."""
    over = threading.Event()

    def unless_over(plan: ContainerPlan) -> None:
        try:
            if not over.is_set():
                measure(plan)
        except BaseException:
            over.set()
            raise

    at_once = min(_AT_ONCE, max(1, engine.facts.memory // _MEMORY_EACH))
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        try:
            running = [pool.submit(unless_over, plan) for plan in plans]
            wait(running)
        except BaseException:
            over.set()
            engine.cancel()
            raise
    for future in running:
        future.result()


@contextmanager
def _reader(engine: Runtime, image: ImageInfo, claims: ClaimSet) -> Iterator[Foreign | None]:
    """What reads an image's files where its own Python would run emulated; None where that runs as it is."""
    if not foreign.is_foreign(engine, image):
        yield None
        return
    command = ["python3", "-I", "-S", f"{INSIDE}/validate", "user", f"{INSIDE}/claims.json"]
    spec = ContainerSpec(image.id, command, volumes=[INSIDE], tmpfs={"/tmp": "rw,exec,nosuid,nodev,mode=1777"})
    with engine.container(spec) as container:
        container.put(suite_files(claims), INSIDE)
        container.start()
        lines = list(container.lines(timeout=_START_SECONDS))
        container.wait(timeout=60)
    told = next((line.text for line in lines if line.stream == "stdout" and line.text.startswith("{")), "")
    with foreign.prepared(engine, image, told or "\n".join(line.text for line in lines)) as found:
        yield found


def _split(plans: Iterable[ContainerPlan], reader: Foreign | None) -> Iterator[ContainerPlan]:
    """Each container as it is; of a foreign image, what is read natively in one of its own."""
    for plan in plans:
        if reader is None:
            yield plan
            continue
        native = {claim.probe for claim in plan.claims.claims if reader.is_native(claim.probe)}
        yield replace(plan, claims=plan.claims.only(native), reader=reader)
        yield replace(plan, claims=plan.claims.less(native))


def _finished(records: Sequence[Record], asked: ClaimSet) -> list[Record]:
    """Without the probes that still have containers before them: what those will measure is not missing yet."""
    found = {record.probe: len(record.measurements) for record in records}
    waiting = {probe for probe in IN_OWN_CONTAINER if found.get(probe, 0) < len(asked.only([probe]).claims)}
    return [record for record in records if record.probe not in waiting]


def merged(records: Sequence[Record]) -> tuple[Record, ...]:
    """One record a probe: those that ran in several containers are as well as the worst of them."""
    merged: dict[str, Record] = {}
    for record in records:
        before = merged.get(record.probe)
        merged[record.probe] = _and(before, record) if before else record
    return tuple(merged.values())


def _and(one: Record, other: Record) -> Record:
    worse = one if other.outcome is Outcome.COMPLETED else other
    return replace(
        worse,
        seconds=round(one.seconds + other.seconds, 3),
        measurements=(*one.measurements, *other.measurements),
        log=one.log + other.log,
    )


def _run_suite(engine: Runtime, image: ImageInfo, plan: ContainerPlan, trial: Trial) -> tuple[list[Record], Exit, str]:
    """Records, how the container ended, and why it has not the limits that ranks should have (an engine that may not
    raise its own, as it runs in a container itself); empty: it has.
    """
    if not plan.ranks:
        return *_run_in(engine, image, plan, trial, {}), ""
    try:
        return *_run_in(engine, image, plan, trial, RANKS_ULIMITS), ""
    except EngineError as error:
        if error.kind is not EngineErrorKind.ULIMIT:
            raise
        return *_run_in(engine, image, plan, trial, {}), error.problems[0].cause


def _run_in(
    engine: Runtime, image: ImageInfo, plan: ContainerPlan, trial: Trial, ulimits: Mapping[str, int]
) -> tuple[list[Record], Exit]:
    gpus = plan.gpus
    tmpfs = f"rw,exec,nosuid,nodev,mode=1777,size={trial.bounds.scratch}"
    command = _command(plan, foreign.is_foreign(engine, image))
    command += ["--jobs", str(_at_once(engine, plan))] if gpus.attached else []
    memory = trial.bounds.gpu_memory if gpus.attached else trial.bounds.memory
    processor = _processor(engine, image, plan)
    records: list[Record] = []
    complaints: list[str] = []
    spec = ContainerSpec(
        image.id,
        command,
        tmpfs={**dict.fromkeys(plan.writable, tmpfs), **_owned(plan, trial.bounds)},
        volumes=[
            INSIDE,
            *([FOLDER] if processor.files else []),
            *(folder for folder, mount in plan.mounts.items() if mount == "foreign"),
        ],
        copied_volumes=[folder for folder, mount in plan.mounts.items() if mount == "volume"],
        memory=min(memory, engine.facts.memory * 3 // 4),
        env={**gpus.environment(image.env), **plan.environment, **_of_reader(plan), **processor.environment},
        user=plan.user,
        binds=gpus.binds,
        devices=gpus.devices,
        device_requests=gpus.device_requests,
        shm_size=shared_memory(trial.bounds, engine.facts.memory) if plan.ranks else None,
        ulimits=ulimits,
    )
    with engine.container(spec) as container:
        own = foreign.files(plan.reader) if plan.reader else {}
        container.put({**suite_files(plan.claims), **own}, INSIDE)
        if processor.files:
            container.put(processor.files, FOLDER)
        container.start()
        for line in container.lines(timeout=trial.bounds.timeout):
            record = _record(line.text) if line.stream == "stdout" else None
            if record is None:
                complaints.append(line.text)
                continue
            records.append(record)
            trial.on_record(record)
        end = container.wait(timeout=300)
    name = image.tags[0] if image.tags else image.id
    if end.code == KILLED and not end.oom:
        raise UserError(_killed(name, plan.name, tells_memory=not engine.facts.apptainer), code=1)
    if not records:
        raise UserError(_not_started(name, end.code, complaints), code=1)
    return records, end


def _processor(engine: Runtime, image: ImageInfo, plan: ContainerPlan) -> EmulatedProcessor:
    """What programs of the image see of theirs in this container; nothing of its own where they run natively."""
    if plan.reader or not foreign.is_foreign(engine, image):
        return EmulatedProcessor()
    return emulated_processor(image.architecture, engine.facts.cpus)


def _command(plan: ContainerPlan, is_foreign: bool) -> list[str]:
    """The suite: by the image's own Python, which gets more time where it runs emulated, or by the reader's."""
    arguments = ["--claims", f"{INSIDE}/claims.json"]
    if plan.reader:
        return foreign.command(INSIDE, [*arguments, "--user", f"{INSIDE}/user.json"])
    slow = ["--emulated", "--timeout", str(_EMULATED_SECONDS)] if is_foreign else []
    return ["python3", "-I", "-S", f"{INSIDE}/validate", *arguments, *slow]


def _of_reader(plan: ContainerPlan) -> dict[str, str]:
    """Variables of the reader's own process: what a user's has stands in user.json."""
    if plan.reader is None:
        return {}
    scratch = plan.environment.get("TMPDIR") or plan.writable[0]
    return {**own_python.environment(INSIDE), "TMPDIR": scratch}


def _owned(plan: ContainerPlan, bounds: Bounds) -> dict[str, str]:
    """Mounts of folders that belong to the container's user alone: what a bind mount of one's own folder is inside."""
    uid, _, gid = (plan.user or "").partition(":")
    options = f"rw,exec,nosuid,nodev,mode=755,uid={uid},gid={gid},size={bounds.scratch}"
    return {folder: options for folder, mount in plan.mounts.items() if mount == "own"}


def shared_memory(bounds: Bounds, machine: int) -> int:
    """Bytes of /dev/shm for ranks, on a machine of so many: a quarter at most, in whole pages, as kernels have it."""
    return min(bounds.shared_memory, machine // 4) // _PAGE * _PAGE


def _at_once(engine: Runtime, plan: ContainerPlan) -> int:
    """Probes at once on GPUs: as many as cores and the smallest GPU's memory allow; one of ranks counts for each."""
    found = plan.gpus.inventory.gpus if plan.gpus.inventory else ()
    memory = min((gpu.memory for gpu in found), default=0)
    return at_once_on_gpus(engine.facts.cpus, len(found) if plan.ranks else 1, memory)


def at_once_on_gpus(cpus: int, ranks: int, memory: int | None = None) -> int:
    """Probes that may use GPUs at once, each with so many ranks.

    `memory`: bytes of the smallest GPU; None: nobody knows it yet, and it bounds nothing.
    """
    by_memory = _MOST_ON_GPUS if memory is None else memory // _GPU_MEMORY_EACH
    return max(1, min(cpus, _MOST_ON_GPUS, by_memory) // ranks)


def _gpus_of_host(gpus: Attachment) -> dict[str, Any]:
    """The host's GPUs and how the container got them, for the evidence."""
    seen = gpus.inventory.as_json() if gpus.inventory else {"driver": "", "gpus": []}
    return {**seen, "attached": gpus.as_json()}


def suite_files(claims: ClaimSet) -> Mapping[str, bytes]:
    """The suite as it goes into the container, with the examples that the claims name."""
    files = {
        f"validate/{path.relative_to(SUITE)}": path.read_bytes()
        for path in sorted(SUITE.rglob("*"))
        if path.suffix in (".py", ".json") and "__pycache__" not in path.parts
    }
    return {**files, **example_files(claims), "claims.json": claims.dumps().encode()}


def example_files(claims: ClaimSet) -> Mapping[str, bytes]:
    """examples/: what all examples and doctor's snippets share, and the folders that claims name."""
    named = {claim.expect["example"]["folder"] for claim in claims.claims if "example" in claim.expect}
    return {
        f"examples/{path.relative_to(EXAMPLES)}": path.read_bytes()
        for folder in (".", "data", *sorted(named))
        for path in sorted((EXAMPLES / folder).iterdir())
        if path.is_file() and not path.name.startswith(".")
    }


def _record(line: str) -> Record | None:
    try:
        data: Any = json.loads(line)
        return Record.from_json(data)
    except (ValueError, TypeError, KeyError):
        return None


def _killed(reference: str, container: str, *, tells_memory: bool) -> Problem:
    """What such a container did not measure says nothing about the image. `tells_memory`: the runtime would know."""
    memory = ", not for its memory" if tells_memory else " (Apptainer can't tell whether for its memory)"
    return Problem(
        where=reference,
        cause=f"its container `{container}` was killed from outside in the middle of the suite{memory}",
        then="validate it again; if nobody killed it, see whether machine or job ran out of memory (`dmesg`, `sacct`)",
    )


def _not_started(reference: str, code: int, complaints: Sequence[str]) -> Problem:
    tail = " | ".join(text.strip() for text in complaints[-3:] if text.strip()) or f"status {code}, nothing printed"
    return Problem(
        where=reference,
        cause=f"the suite did not start in it: {tail}",
        then=f"`docker run --rm -it {reference} python3 --version`: an image needs a python3 on its PATH",
    )
