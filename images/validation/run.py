"""A validation run: the suite measures an image in containers, and evidence comes back. S2 and S10 alone are judged
here: they say whether anything of the image may run.

Suite and claims come from this checkout, over whatever copy the image holds.
"""

import json
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from images.context.labels import LABELS
from images.engine import ContainerSpec, Engine, EngineError, EngineErrorKind, Exit, ImageInfo, configuration, layers
from images.engine.gpus import NO_GPU, Attachment
from images.engine.runtime import EngineFacts
from images.errors import UserError
from images.validation import own_python
from images.validation.containers import INSIDE, ContainerPlan, planned, require_end, run_suite, suite_files
from validate import checks, host_faults
from validate.claims import FIRST, HOST_PROBE, Claim, ClaimSet, Tier
from validate.environment import credentials
from validate.environment import host as host_facts
from validate.evidence import Evidence, Measurement, Outcome, Record, plain
from validate.judge import judge
from validate.judging import Status

_GIB = 1024**3
MEMORY, GPU_MEMORY, SCRATCH = 12 * _GIB, 24 * _GIB, 4 * _GIB
"""Of a container; of one where probes use GPUs, as each holds torch and a CUDA context; of each of its tmpfs. Bytes."""
SHARED_MEMORY = 8 * _GIB
"""/dev/shm of the container where ranks of several GPUs run: as `--shm-size` gives users."""
_PAGE = 1 << 16
"""No machine that we know of has larger pages."""
_SECONDS = 3600
"""For the suite in one container. Each probe has a limit of its own, which gives a verdict; past this one there is
none."""
_AT_ONCE, _CORES_EACH = 2, 4
"""Containers side by side: one that reads files waits for the disk, one that runs code does not; more on more cores."""
_MEMORY_EACH = 8 * _GIB
"""Memory of the machine for each of two: with less, they run one after another. More than two get all that they may."""
_PODMAN_OWN = "Podman mounts no empty folder of a user's own without one on the host: judge this with Docker"
_NO_LAYERS = "it keeps no layers as they were built: judge this with a Docker Engine of the classic store"
_MOST_LISTED = 40
_MOST_ON_GPUS = 6
_GPU_MEMORY_EACH = 3 * _GIB
"""A probe with torch, cuDNN's workspaces and a CUDA context stays below this (H100)."""
RANKS_ULIMITS = {"memlock": -1, "stack": 64 << 20}
"""What NVIDIA asks for several GPUs in a container, beside room in /dev/shm (NCCL's user guide, troubleshooting)."""


def unsupported_by(facts: EngineFacts, image: ImageInfo, claims: ClaimSet) -> dict[str, str]:
    """Return the claims (`ID SUBJECT`) that an engine can't measure of this image, each with the reason.

    Podman's tmpfs takes no owner (podman-run(1), `--mount`: no uid and gid).
    """
    found = {}
    no_programs = other_processor(facts, image)
    for claim in claims.inside().claims if no_programs else ():
        if not checks.settings(claim.probe).reads_files_only:
            found[claim.key] = no_programs
    for claim in claims.claims:
        if claim.id == "S10" and claim.subject == "parent" and (facts.podman or facts.containerd_images):
            found["S10 parent"] = _NO_LAYERS
        elif facts.podman and claim.expect.get("mount") == "own":
            found[claim.key] = _PODMAN_OWN
    return found


def other_processor(facts: EngineFacts, image: ImageInfo) -> str:
    """Return why programs of this image do not run on the engine's machine; empty: they do."""
    if not image.architecture or image.architecture == facts.architecture:
        return ""
    return (
        f"programs for {image.architecture} do not run on this machine ({facts.architecture}):"
        f" validate it on a machine with {image.architecture}"
    )


def limited(claims: ClaimSet, host: Mapping[str, Any]) -> ClaimSet:
    """Claims as evidence from a host can answer them: what was unsupported there is unproven, and so never green."""
    reasons = host.get("unsupported") or {}
    found = (replace(one, unproven=one.unproven or reasons.get(one.key, "")) for one in claims.claims)
    return replace(claims, claims=tuple(found))


def measure(
    engine: Engine,
    reference: str,
    claims: ClaimSet,
    tiers: Sequence[Tier],
    gpus: Attachment = NO_GPU,
    *,
    run_anyway: bool = False,
    on_record: Callable[[Record], None] = lambda _record: None,
    on_evidence: Callable[[Evidence], None] = lambda _evidence: None,
) -> Evidence:
    """Measure an image: no network, read-only root, its own user, bounded memory, containers always removed.

    Its files are read first, by our own Python, and nothing of an image whose files are not as known (S2, S10) is run,
    unless `run_anyway`: all else is unproven by that. So it is where others were asked for, and then tells what failed.
    `on_evidence` is told after each record what was measured so far: a run that is killed leaves that much.
    Raises UserError when the suite could not even start there (no Python, say).
    """
    image = engine.inspect(reference)
    asked = claims.of(tiers)
    wanted = {(one.id, one.subject) for one in asked.claims}
    measured = [claim for claim in asked.inside().claims if not claim.unproven]
    started = {claim.tier for claim in measured if not checks.settings(claim.probe).reads_files_only}
    # The suite reads no bytecode of the image, and its programs of the static tier have none.
    first = [one for one in asked.first if one.tier is Tier.STATIC or started - {Tier.STATIC}]
    claims = replace(asked, claims=(*asked.claims, *first)) if started else asked
    unsupported = unsupported_by(engine.facts, image, claims)
    host: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "engine": engine.facts.version,
        "cpus": engine.facts.cpus,
        **(gpus.inventory.as_json() if gpus.inventory else {"driver": "", "gpus": []}),
        "attached": gpus.as_json(),
        "faults": _faults_of_host(engine, gpus),
        **({"unsupported": unsupported} if unsupported else {}),
        **({"other_processor": no_programs} if (no_programs := other_processor(engine.facts, image)) else {}),
        "seed": secrets.randbelow(1 << 31),
        "labelled": image.labels.get(f"{LABELS}.image", ""),
        "steps_above": len(configuration.steps_above(history(engine, claims.image, image)) or ()),
    }
    claims = limited(claims, host)
    seed, records = ("--seed", str(host["seed"])), list[Record]()
    to_come = Counter[str]()
    lock, stopped = threading.Lock(), threading.Event()  # containers run side by side

    def evidence(without: Mapping[str, int]) -> Evidence:
        probes = {one.probe for one in claims.claims}
        found = merged(one for one in records if one.probe in probes and without.get(one.probe, 0) <= 0)
        return Evidence(image=claims.image, digest=image.id, records=found, host=host, claims=claims.claims)

    def keep(record: Record) -> None:
        record = Record.from_json(plain(asdict(record)))
        with lock:
            records.append(record)
            to_come[record.probe] -= 1
            on_record(record)
            # What a probe still has containers for is not there yet, which is not the same as missing.
            on_evidence(evidence(without=to_come))

    def measure_in(plan: ContainerPlan) -> None:
        try:
            if not stopped.is_set():
                end, refused = _run(engine, image, replace(plan, arguments=(*plan.arguments, *seed)), keep)
                with lock:
                    host["out_of_memory"] = host.get("out_of_memory", False) or end.oom
                    host.update({"ulimits": refused} if refused else {})
        except BaseException:
            stopped.set()  # after an error no container begins any more
            raise

    with ThreadPoolExecutor(max_workers=2) as pool:
        looks = partial(layers.payload, engine, image), partial(_inspected, engine, image, claims)
        beside = list[Future[Any]]()
        # Once their reader runs: what looks beside it takes this process's time, and it would start seconds later.
        rest = _read_files(engine, image, claims, seed, keep, lambda: beside.extend(pool.submit(one) for one in looks))
        host["payload"], inspected = (one.result() for one in beside)
        for record in inspected:
            keep(replace(record, seed=host["seed"]))
    read = evidence(without={})
    unknown = {
        (one.claim.id, one.claim.subject): one.reason
        for one in judge(claims.where(lambda one: one.id in FIRST), read).claims
        # Where memory ran out, the reader may have left no record of one.
        if one.status is Status.FAIL or not (one.claim.unproven or read.of(one.claim.probe))
    }
    if unknown and not run_anyway:
        claims = claims.where(lambda one: (one.id, one.subject) in {*wanted, *unknown})
        key, reason = next(iter(unknown.items()))
        why = f"nothing of the image was run: {' '.join(key)} failed"
        why += "" if key in wanted else f": {reason}"
        host["unsupported"] = {**unsupported, **{one.key: why for one in rest.inside().claims}}
        claims = limited(claims, host)
        return evidence(without={})
    plans = planned(image.env.get("HOME", ""), rest, gpus, own_python.user_of(image))
    to_come.update(probe for plan in plans for probe in {claim.probe for claim in plan.claims.claims})
    memory, cores = engine.facts.memory, engine.facts.cpus
    at_once = max(1, min(_AT_ONCE, memory // _MEMORY_EACH), min(cores // _CORES_EACH, memory // MEMORY))
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        try:  # around the start, too: a container may run before the last one is submitted
            running = [pool.submit(measure_in, plan) for plan in plans if not plan.gpus.attached]
            wait(running)
        except BaseException:  # an interrupt
            stopped.set()
            engine.cancel()
            raise
    for container in running:
        container.result()
    for plan in plans:
        if plan.gpus.attached:
            measure_in(plan)
    besides = judge(claims.where(lambda one: (one.id, one.subject) not in wanted), evidence(without={}))
    wanted.update((*unknown, *((one.claim.id, one.claim.subject) for one in besides.of(Status.FAIL))))
    claims = claims.where(lambda one: (one.id, one.subject) in wanted)
    return evidence(without={})


def merged(records: Iterator[Record] | Sequence[Record]) -> tuple[Record, ...]:
    """One record a probe: those that ran in several containers are as well as the worst of them."""
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


def _read_files(
    engine: Engine,
    image: ImageInfo,
    claims: ClaimSet,
    seed: Sequence[str],
    keep: Callable[[Record], None],
    on_start: Callable[[], None],
) -> ClaimSet:
    """Measure what an image's files say; returns the claims that are left to measure. `on_start`: called once
    their reader runs, or nothing is to be read. Raises UserError where that reader could not even start.
    """
    probes = {claim.probe for claim in claims.claims}
    files_only = [probe for probe in probes if checks.settings(probe).reads_files_only]
    asked = claims.only(files_only).where(lambda one: not one.unproven)
    if not asked.claims:
        on_start()
        return claims
    user = own_python.user_of(image, hidden=list(own_python.hidden(engine, image)))
    own_python.measure(engine, image, asked, user, keep, *seed, timeout=_SECONDS, on_start=on_start)
    return claims.less(files_only)


def _run(engine: Engine, image: ImageInfo, plan: ContainerPlan, keep: Callable[[Record], None]) -> tuple[Exit, str]:
    """Run the suite in one container. Returns how it ended, and why an engine refused the limits that ranks ask for."""
    spec, refused = _spec(engine, image, plan), ""
    files = {**plan.files, INSIDE: {**suite_files(plan.claims), **plan.files.get(INSIDE, {})}}
    options: Any = {"timeout": _SECONDS, "asked": {claim.probe for claim in plan.claims.claims}, "on_record": keep}
    try:
        complaints, end, began = run_suite(engine, spec, files, **options)
    except EngineError as error:
        if error.kind is not EngineErrorKind.ULIMIT or not spec.ulimits:
            raise
        refused, spec = error.problems[0].cause, replace(spec, ulimits={})
        complaints, end, began = run_suite(engine, spec, files, **options)
    name = image.tags[0] if image.tags else image.id
    then = f"`docker run --rm -it {name} python3 --version`: an image needs a python3 on its PATH"
    require_end(image, plan.name, end, began=began, said=complaints, then=then)
    return end, refused


def _spec(engine: Engine, image: ImageInfo, plan: ContainerPlan) -> ContainerSpec:
    gpus, facts = plan.gpus, engine.facts
    command = [*plan.python, f"{INSIDE}/validate", "--claims", f"{INSIDE}/claims.json", *plan.arguments]
    if gpus.attached:
        # Probes at once: as many as cores and the smallest GPU's memory allow. One of ranks counts once a GPU.
        found = gpus.inventory.gpus if gpus.inventory else ()
        by_memory = min((gpu.memory for gpu in found), default=0) // _GPU_MEMORY_EACH
        at_once = min(facts.cpus, _MOST_ON_GPUS, by_memory) // (len(found) if plan.ranks and found else 1)
        command += ["--jobs", str(max(1, at_once))]
    mounted = {kind: [folder for folder, one in plan.mounts.items() if one == kind] for kind in plan.mounts.values()}
    scratch = f"rw,exec,nosuid,nodev,mode=1777,size={SCRATCH}"
    uid, _, gid = (plan.user or "").partition(":")
    # A folder that belongs to the container's user alone: what a bind mount of a user's own folder is inside.
    own = f"rw,exec,nosuid,nodev,mode=755,uid={uid},gid={gid},size={SCRATCH}"
    return ContainerSpec(
        image.id,
        command,
        tmpfs={**dict.fromkeys(plan.writable, scratch), **dict.fromkeys(mounted.get("own", ()), own)},
        volumes=list(dict.fromkeys([INSIDE, *plan.files, *mounted.get("foreign", ())])),
        copied_volumes=mounted.get("volume", ()),
        memory=min(GPU_MEMORY if gpus.attached else MEMORY, facts.memory * 3 // 4),
        env={**gpus.environment(image.env), **plan.environment},
        user=plan.user,
        binds=gpus.binds,
        devices=gpus.devices,
        device_requests=gpus.device_requests,
        shm_size=shared_memory(facts.memory) if plan.ranks else None,
        ulimits=RANKS_ULIMITS if plan.ranks else {},
    )


def _faults_of_host(engine: Engine, gpus: Attachment) -> list[str]:
    """Return what is wrong with the machine whose GPUs are lent; nothing can be read of another machine than this."""
    if not (gpus.attached and engine.facts.local):
        return []
    return host_faults.of_machine(host_facts.read(folder=Path(gpus.library_path)))


def shared_memory(machine: int) -> int:
    """Bytes of /dev/shm for ranks, on a machine of so many: a quarter at most, in whole pages, as kernels have it."""
    return min(SHARED_MEMORY, machine // 4) // _PAGE * _PAGE


def _inspected(engine: Engine, image: ImageInfo, claims: ClaimSet) -> Sequence[Record]:
    """What the engine knows of an image (S8): one record for all claims that the host measures. Raises NoSuchImage."""
    asked = claims.only([HOST_PROBE]).claims
    if not asked:
        return ()
    started = time.monotonic()
    steps = [step for step, _ in reversed(engine.history(image.id))]
    tomorrow = f"{datetime.now(UTC) + timedelta(days=1):%FT%TZ}"
    evidence: dict[str, Any] = {
        "labels": dict(image.labels),
        "bytes": image.size,
        "architecture": image.architecture,
        "user": image.user,
        "entrypoint": list(image.entrypoint),
        "command": list(image.command),
        "directory": image.workdir,
        "further": dict(image.further),
        "layers": [name for name in configuration.payload(image, steps) if name != configuration.SETTINGS],
        "foreign": configuration.foreign(layers.configuration_of(engine, image), tomorrow),
        "variables": sorted(image.env),
        "driver": {name: value for name, value in image.env.items() if name.startswith("NVIDIA_")},
        "secrets": list(credentials_of(engine, image)),
    }
    looks = {"parent": _beside_parent, "layers": _unseen}
    found = [
        (claim.subject, looks[claim.subject](engine, image, claim) if claim.subject in looks else evidence)
        for claim in asked
        if not (claim.subject in looks and claim.unproven)
    ]
    seconds = round(time.monotonic() - started, 3)
    measured = tuple(Measurement(subject=name, seconds=seconds, evidence=one) for name, one in found)
    return (Record(probe=HOST_PROBE, outcome=Outcome.COMPLETED, seconds=seconds, measurements=measured),)


def find_parent(engine: Engine, name: str, image: ImageInfo) -> ImageInfo | None:
    """The image of this name, if another stands on it: all its layers are the lowest of that. Its history may lie."""
    found = engine.find(name)
    return found if found and image.layers[: len(found.layers)] == found.layers else None


def history(engine: Engine, name: str, image: ImageInfo) -> list[str]:
    """An image's steps, newest first; below those of one that stands on `name` by its layers, that one's, whatever its
    own history says of them."""
    own, parent = [step for step, _ in engine.history(image.id)], find_parent(engine, name, image)
    above = len(image.layers) - len(parent.layers) if parent else 0
    if not above or configuration.steps_above(own):
        return own
    made = [place for place, one in enumerate(own, 1) if not configuration.empty(one)]
    return [*own[: dict(enumerate(made)).get(above - 1)], *(step for step, _ in engine.history(name))]


def _unseen(engine: Engine, image: ImageInfo, _claim: Claim) -> dict[str, Any]:
    """What of an image's layers is in none of its containers, and travels with it."""
    from images.engine import exported

    if (found := exported.unseen(engine, image)) is None:
        return {"unread": "the layers lie where this user can't read them: ask as root, on the engine's own machine"}
    files, count = found
    secrets = ((path, kind) for _, path, data in files for _, kind in credentials.of_file(data, path))
    return {
        "files": count,
        "hidden": [f"/{path}" for foreign, path, _ in files if foreign][:_MOST_LISTED],
        "secrets": [{"path": f"/{path}", "kind": kind} for path, kind in dict.fromkeys(secrets)],
    }


def _beside_parent(engine: Engine, image: ImageInfo, claim: Claim) -> dict[str, Any]:
    """What a child's layers do to its parent's, which are the lowest of its own."""
    from images.engine import exported  # most images are no child
    from images.locking import debian
    from images.validation import on_parent

    if image.architecture not in ("", *on_parent.MACHINES):
        return {"unread": f"where the loader of {image.architecture} looks is not known"}
    name = claim.expect["parent"]
    if (below := find_parent(engine, name, image)) is None:
        return {"unread": f"the engine has no {name} that it stands on: pull that, and `docker tag` it so"}
    found, count = exported.entries(engine, image, on_parent.wanted), len(below.layers)
    parent = exported.tree(found[:count])
    start = on_parent.start(image.env, image.workdir, image.architecture)
    said = on_parent.compare(parent, exported.tree(found[count:], parent), start, claim.expect)
    packages, suite = said.pop("excusing"), claim.expect.get("suite")
    if not packages or not suite:
        return said
    try:
        known = debian.checksums(suite, start.architecture, packages)
    except UserError as error:
        return said | {"unasked": error.problems[0].cause}
    return said | {"of_archive": {one: own == known[one] if one in known else None for one, own in packages.items()}}


def credentials_of(engine: Engine, image: ImageInfo) -> Iterator[dict[str, str]]:
    """Kind and place of each credential in variables, labels and build steps, never the text: evidence is published."""
    texts = [(f"the variable {name}", f"{name}={value}") for name, value in image.env.items()]
    texts += [(f"the label {name}", value) for name, value in image.labels.items()]
    for step, _ in engine.history(image.id):  # with its build arguments
        texts.append((f"the build step `{step[:80].split('=')[0]}`", step))
    said = layers.configuration_of(engine, image)
    rest = {**said, "config": {**(said.get("config") or {}), "Env": (), "Labels": ()}}
    rest["history"] = [{**one, "created_by": ""} for one in said.get("history") or ()]
    texts += [(f"the field {name} of its configuration", json.dumps(value)) for name, value in rest.items()]
    for where, text in texts:
        for _, kind in credentials.in_text(text):
            yield {"where": where, "kind": kind}
