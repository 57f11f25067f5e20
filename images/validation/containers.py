"""What is measured in which container; what a container may use, the suite's files, and how it is run in one."""

import json
import posixpath
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from images.config.paths import EXAMPLES, SUITE
from images.engine import Engine, EngineError, EngineErrorKind
from images.engine.archive import Files
from images.engine.gpus import NO_GPU, Attachment
from images.engine.runtime import KILLED, ContainerSpec, Exit, ImageInfo
from images.errors import failed
from validate import channel, checks, hints
from validate.checks import RunAs
from validate.claims import ARBITRARY_UID, ClaimSet, Tier
from validate.evidence import Record

INSIDE = "/judge"
"""Where the suite lies in a container: a volume of its own, as the root is read-only."""
IMAGES_PYTHON = ("python3", "-I", "-S", "-B", "-X", f"pycache_prefix={INSIDE}/none")
"""It runs the suite from sources, as bytecode of the image could sign what it likes."""
OF_USER = ("--user", f"{INSIDE}/user.json")
"""Of suite and survey: the user's environment is that of a file."""
_GIB = 1024**3
MEMORY, GPU_MEMORY, SCRATCH = 12 * _GIB, 24 * _GIB, 4 * _GIB
"""Of a container; of one where probes use GPUs, as each holds torch and a CUDA context; of each of its tmpfs. Bytes."""
SHARED_MEMORY = 8 * _GIB
"""/dev/shm of the container where ranks of several GPUs run: as `--shm-size` gives users."""
_PAGE = 1 << 16
"""No machine that we know of has larger pages."""
SUITE_SECONDS = 3600
"""For the suite in one container. Each probe has a limit of its own, which gives a verdict; past this one there is
none."""
_MOST_ON_GPUS = 6
_GPU_MEMORY_EACH = 3 * _GIB
"""A probe with torch, cuDNN's workspaces and a CUDA context stays below this (H100)."""
RANKS_ULIMITS = {"memlock": -1, "stack": 64 << 20}
"""What NVIDIA asks for several GPUs in a container, beside room in /dev/shm (NCCL's user guide, troubleshooting)."""

_MOST_PRINTED, _LINES_KEPT = 64 << 20, 1000
"""Bytes in one container, where any process can print; of what is no record, the last lines are kept."""


@dataclass(frozen=True, kw_only=True)
class ContainerPlan:
    """A container and what is measured in it."""

    name: str
    """Unique among the containers of a run."""
    claims: ClaimSet
    writable: Sequence[str] = ("/tmp",)
    """Folders that are empty and writable there, whatever the image has in them."""
    user: str | None = None
    """None: the image's own."""
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Folder -> `volume`: a fresh named volume, to which the engine gives the owner and the mode of the image's folder;
    `own`: an empty folder of the user's own; `foreign`: one of root's, as engines make it for a bind mount of a folder
    that is missing."""
    gpus: Attachment = NO_GPU
    ranks: bool = False
    """Probes start a process a GPU."""
    arguments: Sequence[str] = ()
    files: Mapping[str, Files] = field(default_factory=dict)
    """Folder -> more files that are put there."""


def planned(
    home: str, claims: ClaimSet, gpus: Attachment, start: bytes = b""
) -> list[ContainerPlan]:
    """Return the containers with something to measure, the one that takes longest first. Pure.

    `home`: of the image's user. `start`: how its processes start (own_python.user_of).

    Claims that are known to be unproven are in none. What runs the image's code gets an empty, writable home. Only the
    containers of the gpu tiers get GPUs: what attaches them (the driver's libraries, LD_LIBRARY_PATH) is never taken
    for the image's.
    """
    claims = claims.inside().where(lambda claim: not claim.unproven)
    run_in = list(dict.fromkeys(["/tmp", posixpath.normpath(home or "/root")]))
    of_user = {INSIDE: {"user.json": start}}
    cpu = claims.in_tiers([Tier.CPU])
    any_user = cpu.where(lambda claim: checks.settings(claim.probe).run_as is RunAs.ARBITRARY_UID)
    each_claim = cpu.where(lambda claim: checks.settings(claim.probe).run_as is RunAs.EACH_CLAIM)
    elsewhere = {claim.probe for part in (any_user, each_claim) for claim in part.claims}

    plans = [
        ContainerPlan(name="cpu", claims=cpu.less(elsewhere), writable=run_in),
        ContainerPlan(
            name="static", claims=claims.in_tiers([Tier.STATIC]), arguments=OF_USER, files=of_user
        ),
        ContainerPlan(
            name="any-user",
            claims=any_user,
            writable=run_in,
            user=f"{ARBITRARY_UID}:{ARBITRARY_UID}",
        ),
    ]
    for number, claim in enumerate(each_claim.claims):
        plans.append(
            ContainerPlan(
                name=f"mount-{number}",
                claims=ClaimSet(image=claims.image, claims=(claim,)),
                user=f"{claim.expect['uid']}:{claim.expect['gid']}",
                mounts={claim.expect["folder"]: claim.expect["mount"]},
            )
        )
    if gpus.attached:
        several = claims.in_tiers([Tier.MULTIGPU])
        plans.append(
            ContainerPlan(
                name="gpu", claims=claims.in_tiers([Tier.GPU]), writable=run_in, gpus=gpus
            )
        )
        plans.append(
            ContainerPlan(name="multigpu", claims=several, writable=run_in, gpus=gpus, ranks=True)
        )
    return [plan for plan in plans if plan.claims.claims]


def suite_files(claims: ClaimSet) -> Mapping[str, bytes]:
    """Return the suite as it goes into a container or an image, with its claims and the examples that they name."""
    files = {}
    for path in sorted(SUITE.rglob("*")):
        if path.suffix in (".py", ".json") and "__pycache__" not in path.parts:
            files[f"validate/{path.relative_to(SUITE)}"] = path.read_bytes()
    # The image's own Python reads no YAML.
    files[f"validate/{hints.IN_CONTAINERS}"] = hints.as_json()

    named = {
        claim.expect["example"]["folder"] for claim in claims.claims if "example" in claim.expect
    }
    for folder in (".", "data", *sorted(named)):
        for path in sorted((EXAMPLES / folder).iterdir()):
            if path.is_file() and not path.name.startswith("."):
                files[f"examples/{path.relative_to(EXAMPLES)}"] = path.read_bytes()

    files["claims.json"] = claims.dumps().encode()
    return files


class SuiteRun(NamedTuple):
    """What came of a run of the suite in a container, beside its records."""

    other_lines: list[str]
    """The last lines that are no record."""
    end: Exit
    has_begun: bool
    """A record came."""


def run_suite(
    engine: Engine,
    spec: ContainerSpec,
    files: Mapping[str, Files],
    *,
    timeout: float,
    asked: Collection[str] = (),
    on_record: Callable[[Record], None] = lambda _record: None,
) -> SuiteRun:
    """Run the suite in a container, and read what it prints: the one place where records leave an image.

    `files`: folder -> what is put there before the start. `timeout` in seconds. `asked`: the probes whose records are
    taken, each once, as they come, if the suite signed them (validate/channel.py). Raises Stopped, EngineError.
    """
    other_lines = deque[str](maxlen=_LINES_KEPT)
    key = channel.new_key()
    missing = set(asked)
    with engine.container(replace(spec, stdin=True)) as container:
        for folder, content in files.items():
            container.put(content, folder)
        container.start(f"{key}\n".encode())
        for stream, line in container.lines(timeout, most=_MOST_PRINTED):
            text = channel.accepted(key, line) if stream == "stdout" else None
            record = parse_record(text or "")
            if record and record.probe in missing:
                missing.remove(record.probe)
                on_record(record)
            else:
                other_lines.append(line)
        end = container.wait(timeout=300)
    return SuiteRun(list(other_lines), end, has_begun=missing != set(asked))


def measure_in_container(
    engine: Engine, image: ImageInfo, plan: ContainerPlan, on_record: Callable[[Record], None]
) -> tuple[Exit, str]:
    """Run the suite in one container. Returns how it ended, and why an engine refused the limits that ranks ask for."""
    spec = container_spec(engine, image, plan)
    files = {**plan.files, INSIDE: {**suite_files(plan.claims), **plan.files.get(INSIDE, {})}}
    probes = {claim.probe for claim in plan.claims.claims}
    run = partial(
        run_suite, engine, files=files, timeout=SUITE_SECONDS, asked=probes, on_record=on_record
    )
    refused = ""
    try:
        suite_run = run(spec)
    except EngineError as error:
        if error.kind is not EngineErrorKind.ULIMIT or not spec.ulimits:
            raise
        # A rootless engine may not raise limits: ranks run without, and the evidence says so.
        refused = error.problems[0].cause
        suite_run = run(replace(spec, ulimits={}))
    name = image.tags[0] if image.tags else image.id
    then = f"`docker run --rm -it {name} python3 --version`: an image needs a python3 on its PATH"
    require_end(image, plan.name, suite_run, then)
    return suite_run.end, refused


def container_spec(engine: Engine, image: ImageInfo, plan: ContainerPlan) -> ContainerSpec:
    """Return what an engine is asked for, for a planned container."""
    gpus, facts = plan.gpus, engine.facts
    command = [
        *IMAGES_PYTHON,
        f"{INSIDE}/validate",
        "--claims",
        f"{INSIDE}/claims.json",
        *plan.arguments,
    ]
    if gpus.attached:
        command += ["--jobs", str(_probes_at_once(plan, facts.cpus))]

    scratch = f"rw,exec,nosuid,nodev,mode=1777,size={SCRATCH}"
    uid, _, gid = (plan.user or "").partition(":")
    # A folder that belongs to the container's user alone: what a bind mount of a user's own folder is inside.
    own = f"rw,exec,nosuid,nodev,mode=755,uid={uid},gid={gid},size={SCRATCH}"
    mounted: dict[str, list[str]] = {}
    for folder, kind in plan.mounts.items():
        mounted.setdefault(kind, []).append(folder)

    return ContainerSpec(
        image.id,
        command,
        tmpfs={
            **dict.fromkeys(plan.writable, scratch),
            **dict.fromkeys(mounted.get("own", ()), own),
        },
        volumes=list(dict.fromkeys([INSIDE, *plan.files, *mounted.get("foreign", ())])),
        copied_volumes=mounted.get("volume", ()),
        memory=min(GPU_MEMORY if gpus.attached else MEMORY, facts.memory * 3 // 4),
        env=gpus.environment(image.env),
        user=plan.user,
        binds=gpus.binds,
        devices=gpus.devices,
        device_requests=gpus.device_requests,
        shm_size=shared_memory(facts.memory) if plan.ranks else None,
        ulimits=RANKS_ULIMITS if plan.ranks else {},
    )


def _probes_at_once(plan: ContainerPlan, cpus: int) -> int:
    """Return how many probes run at once on GPUs: as many as cores and the smallest GPU's memory allow."""
    gpus = plan.gpus.inventory.gpus if plan.gpus.inventory else ()
    smallest = min((gpu.memory for gpu in gpus), default=0)
    at_once = min(cpus, _MOST_ON_GPUS, smallest // _GPU_MEMORY_EACH)
    # A probe of ranks counts once a GPU.
    if plan.ranks and gpus:
        at_once //= len(gpus)
    return max(1, at_once)


def shared_memory(machine: int) -> int:
    """Return the bytes of /dev/shm for ranks: a quarter of the machine's memory at most, in whole pages."""
    return min(SHARED_MEMORY, machine // 4) // _PAGE * _PAGE


def require_end(image: ImageInfo, container: str, run: SuiteRun, then: str) -> None:
    """Raise UserError where something outside the suite ended it: a part of its records says nothing of the image.

    `container`: its name in a validation run. `then`: what to do where the suite did not start.
    """
    where = image.tags[0] if image.tags else image.id
    end = run.end
    was_killed = end.code == KILLED and not end.oom
    if not run.has_begun and not was_killed:
        tail = " | ".join(line.strip() for line in run.other_lines[-3:] if line.strip())
        raise failed(
            where,
            f"the suite did not start in it: {tail or f'status {end.code}, nothing printed'}",
            then,
        )
    if was_killed:
        cause = f"its container `{container}` was killed amid the suite, and the engine heard of no kill for memory"
        then = "validate it again; if nobody killed it, see whether machine or job ran out of memory (`dmesg`, `sacct`)"
        raise failed(where, cause, then)
    if end.code != 0 and not end.oom:
        cause = f"the suite in its container `{container}` ended with status {end.code}: something there stopped it"
        then = "validate it again; if it ends so each time, see what the image starts beside its programs"
        raise failed(where, cause, then)


def parse_record(text: str) -> Record | None:
    """One record as the suite writes it; None for any other text."""
    try:
        return Record.from_json(json.loads(text)) if text.startswith("{") else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
