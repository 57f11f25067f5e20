"""Plans which claims are measured in which container, and runs the suite (validate/) in one."""

import json
import posixpath
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from images.config.paths import EXAMPLES, SUITE
from images.engine import Engine, EngineError, EngineErrorKind
from images.engine.archive import Files
from images.engine.containers import Container
from images.engine.gpus import NO_GPU, Attachment
from images.engine.runtime import KILLED, ContainerSpec, Exit, ImageInfo
from images.errors import failed
from images.hardware.inventory import Inventory
from images.validation.claims.multinode import ranks_of_node
from validate import channel, checks, hints
from validate.checks import RunAs
from validate.claims import ARBITRARY_UID, Claim, ClaimSet, Tier
from validate.evidence import Outcome, Record
from validate.nodes import ADDRESSES_VARIABLE, NODE_VARIABLE, NODES, SHARED_FOLDER

SUITE_FOLDER = "/judge"
"""Where the suite lies in a container: a volume of its own, as the root is read-only."""
CLAIMS_OPTION = ("--claims", f"{SUITE_FOLDER}/claims.json")
"""Option of the suite: the file with the claims to measure."""
USER_OPTION = ("--user", f"{SUITE_FOLDER}/user.json")
"""Option of the suite: the file that says how a user's process would start (`user_json`)."""
IMAGES_PYTHON = ("python3", "-I", "-S", "-B", "-X", f"pycache_prefix={SUITE_FOLDER}/none")
"""The image's own Python, which runs the suite. It is made to read no bytecode of the image: that
could be anything, and run in the suite's own process, where it could sign records."""

_GIB = 1024**3
MEMORY = 12 * _GIB
"""Bytes of memory of a container without GPUs."""
GPU_MEMORY = 24 * _GIB
"""Bytes of memory of a container with GPUs, where each probe holds torch and a CUDA context."""
SCRATCH = 4 * _GIB
"""Bytes of each tmpfs of a container."""
SHARED_MEMORY = 8 * _GIB
"""Bytes of /dev/shm where ranks run on several GPUs, as our docs tell users to set (`--shm-
size`)."""
_PAGE = 1 << 16
"""No machine that we know of has larger pages."""
SUITE_SECONDS = 3600
"""Time for the suite in one container. Past it the validation run fails without a verdict; each
probe has a shorter limit of its own, past which its claims FAIL."""
_MOST_PROBES_ON_GPUS = 6
_GPU_MEMORY_OF_PROBE = 3 * _GIB
"""A probe with torch, cuDNN's workspaces and a CUDA context stays below this (H100)."""
RANKS_ULIMITS = {"memlock": -1, "stack": 64 << 20}
"""What NVIDIA asks for several GPUs in a container, besides room in /dev/shm (NCCL's user guide,
troubleshooting)."""
_MOST_PRINTED = 64 << 20
"""Bytes that a container may print: any process in it can."""
_MOST_OTHER_LINES = 1000
"""How many of the last printed lines are stored that are no records."""


@dataclass(frozen=True, kw_only=True)
class ContainerPlan:
    """A container and the claims that are measured in it."""

    name: str
    """Unique among the containers of a validation run."""
    claims: ClaimSet
    writable: Sequence[str] = ("/tmp",)
    """Folders that are empty and writable there, whatever the image has in them."""
    user: str | None = None
    """`UID:GID`; None: the image's own."""
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Folder -> kind of mount. `volume`: a fresh named volume, to which the engine gives owner and
    mode of the image's folder. `own`: an empty folder that belongs to the container's user.
    `foreign`: an empty folder of root, as engines make it for a bind mount of a missing folder."""
    gpus: Attachment = NO_GPU
    has_ranks: bool = False
    """Whether probes start a process for each GPU."""
    runs_alone: bool = False
    """Whether no other container may run meanwhile, because times are measured, or because each GPU
    has a rank."""
    nodes: Sequence[Mapping[str, str]] = ()
    """The environment variables of each node. If there are any, the suite runs in as many
    containers at once, which have the same network and volumes. Empty: in one container."""
    arguments: Sequence[str] = ()
    """Further arguments of the suite."""
    files: Mapping[str, Files] = field(default_factory=dict)
    """Folder -> files that are put there besides the suite."""


def plan_containers(
    home: str,
    claims: ClaimSet,
    gpus: Attachment,
    user_file: bytes = b"",
    *,
    keep_home: bool = False,
) -> list[ContainerPlan]:
    """Return the containers of a validation run, the one that takes longest first.

    Tests of claims differ in the user and the folders that they need, and in whether they need a
    GPU. Those that need the same share a container.

    home: the home of the image's user; empty: /root.
    user_file: how a user's process would start in the image (own_python.user_json).
    keep_home: leave in the home what the image has there, such as packages that its user installed.
        Otherwise the home is empty.
    """
    # Claims that are known to be unproven are not tested.
    claims = claims.of_container().where(lambda claim: not claim.unproven)
    static = claims.in_tiers([Tier.STATIC])

    # Most claims of the cpu tier are tested as the image's user. Some are tested as a user whom the
    # image does not know, and some as a user whom the claim names.
    cpu = claims.in_tiers([Tier.CPU])
    as_any_user = cpu.where(lambda claim: _user_of_probe(claim) is RunAs.ARBITRARY_UID)
    as_user_of_claim = cpu.where(lambda claim: _user_of_probe(claim) is RunAs.EACH_CLAIM)
    other_users_probes = {claim.probe for claim in (*as_any_user.claims, *as_user_of_claim.claims)}
    as_image_user = cpu.not_measured_by(other_users_probes)

    # The root of a container is read-only, but programs need a home that they can write to: an
    # empty folder or, with `keep_home`, a volume that begins with what the image has there.
    home = posixpath.normpath(home or "/root")
    emptied = list(dict.fromkeys(["/tmp", home]))
    writable = ["/tmp"] if keep_home else emptied
    mounts = {home: "volume"} if keep_home and home != "/" else {}
    any_user = f"{ARBITRARY_UID}:{ARBITRARY_UID}"
    plans = [
        ContainerPlan(name="cpu", claims=as_image_user, writable=writable, mounts=mounts),
        ContainerPlan(
            name="static",
            claims=static,
            arguments=USER_OPTION,
            files={SUITE_FOLDER: {"user.json": user_file}},
        ),
        ContainerPlan(name="any-user", claims=as_any_user, writable=emptied, user=any_user),
    ]
    for number, claim in enumerate(as_user_of_claim.claims):
        plan = ContainerPlan(
            name=f"mount-{number}",
            claims=ClaimSet(image=claims.image, claims=(claim,)),
            user=f"{claim.expect['uid']}:{claim.expect['gid']}",
            mounts={claim.expect["folder"]: claim.expect["mount"]},
        )
        plans.append(plan)

    # Only these containers get GPUs. With a GPU come the driver's libraries and LD_LIBRARY_PATH,
    # which the tests in other containers would take for a part of the image.
    if gpus.attached:
        gpu = claims.in_tiers([Tier.GPU])
        of_times = gpu.where(lambda claim: checks.settings(claim.probe).runs_alone)
        with_gpus = ContainerPlan(
            name="gpu",
            claims=gpu.not_measured_by({claim.probe for claim in of_times.claims}),
            writable=writable,
            mounts=mounts,
            gpus=gpus,
        )
        alone = replace(with_gpus, runs_alone=True)
        several_gpus = claims.in_tiers([Tier.MULTIGPU])
        # Without an inventory it is not known which GPUs are which node's.
        claims_of_nodes = claims.in_tiers([Tier.MULTINODE] if gpus.inventory else [])
        on_nodes = replace(
            alone,
            name="multinode",
            claims=claims_of_nodes,
            mounts={**mounts, SHARED_FOLDER: "volume"},
            has_ranks=True,
            nodes=node_environments(gpus.inventory),
        )
        plans = [
            with_gpus,
            *plans,
            replace(alone, name="gpu-times", claims=of_times),
            replace(alone, name="multigpu", claims=several_gpus, has_ranks=True),
            on_nodes,
        ]
    return [plan for plan in plans if plan.claims.claims]


def node_environments(inventory: Inventory | None) -> list[dict[str, str]]:
    """Return the environment variables of each node of a simulated cluster, first node first.

    A node is one of NODES (two) containers on this machine. Together they look like two hosts to
    torch. Each container has all GPUs of the machine, which are in `inventory`, but its processes
    see only their own half. No GPU is seen if the inventory is None or has too few.
    """
    # One rank (process) runs on each GPU; 0 without an inventory.
    gpus_of_node = ranks_of_node(inventory)
    # Linux gives the loopback interface all addresses that begin with 127.
    addresses = [f"127.0.0.{node + 1}" for node in range(NODES)]
    environments = []
    for node in range(NODES):
        gpu_numbers = range(node * gpus_of_node, (node + 1) * gpus_of_node)
        environments.append(
            {
                NODE_VARIABLE: str(node),
                ADDRESSES_VARIABLE: ",".join(addresses),
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpu_numbers)),
                # NCCL takes nodes with different IDs for different hosts, and so uses the network
                # between them, which is to be tested, and not the memory that they share.
                "NCCL_HOSTID": f"node-{node}",
                # The network has only the loopback interface. NCCL and gloo do not choose it by
                # themselves, and NCCL shall not leave it for the host's InfiniBand.
                "NCCL_SOCKET_IFNAME": "lo",
                "NCCL_IB_DISABLE": "1",
                "GLOO_SOCKET_IFNAME": "lo",
            }
        )
    return environments


def _user_of_probe(claim: Claim) -> RunAs:
    """Return as whom the probe of a claim runs."""
    return checks.settings(claim.probe).run_as


class ContainerResult(NamedTuple):
    """How a container of a validation run ended, besides the records that came from it."""

    end: Exit
    """Of several nodes, that of the one that ran out of memory, else of the first."""
    refused_limits: str
    """Why the engine refused RANKS_ULIMITS; empty: it did not, or they were not asked for."""


def measure_in_container(
    engine: Engine,
    image: ImageInfo,
    plan: ContainerPlan,
    seed: int,
    on_record: Callable[[Record], None],
    *,
    timeout: float = SUITE_SECONDS,
) -> ContainerResult:
    """Run our checks (the suite) in a container, with the image's own Python.

    plan: the claims to test, and the container's settings.
    seed: seeds the random inputs of the checks.
    on_record: is called with what a check measured, once for each check.
    timeout: seconds after which the checks must have ended.

    Returns how the container ended. Raises UserError if the suite did not start, was ended from
    outside or took too long, or if the engine failed.
    """
    spec = container_spec(engine, image, plan, seed)
    files = dict(plan.files)
    # Folder -> files that are put there. The plan may add files to the suite's own folder.
    files[SUITE_FOLDER] = {**suite_files(plan.claims), **plan.files.get(SUITE_FOLDER, {})}
    probes = {claim.probe for claim in plan.claims.claims}

    name = image_label(image)
    then = (
        f"see what `docker run --rm -it {name} python3 --version` prints: the image needs a "
        "python3 on its PATH"
    )

    def run(spec: ContainerSpec) -> Exit:
        """Run the suite with these settings in a container, or in one for each node."""
        if plan.nodes:
            specs = [replace(spec, env={**spec.env, **node}) for node in plan.nodes]
            return run_suite_on_nodes(
                engine,
                specs,
                files,
                timeout=timeout,
                probes=probes,
                on_record=on_record,
                require_end=partial(require_end, image, then=then),
            )
        suite_run = run_suite(
            engine, spec, files, timeout=timeout, probes=probes, on_record=on_record
        )
        require_end(image, plan.name, suite_run, then)
        return suite_run.end

    refused_limits = ""
    try:
        end = run(spec)
    except EngineError as error:
        if error.kind is not EngineErrorKind.ULIMIT or not spec.ulimits:
            raise
        # A rootless engine may not raise limits. Then processes that train together on several GPUs
        # run without them, and the evidence says so.
        refused_limits = error.problems[0].cause
        end = run(replace(spec, ulimits={}))
    return ContainerResult(end, refused_limits)


def _folders_in_memory(plan: ContainerPlan) -> dict[str, str]:
    """Return the folders of a container that are in memory (tmpfs), each with its mount options.

    The root of a container is read-only. Programs may write to these folders, and to volumes.
    """
    folders = {}
    for folder in plan.writable:
        folders[folder] = f"rw,exec,nosuid,nodev,mode=1777,size={SCRATCH}"
    # `own`: as if the user had mounted a folder of their own. Nobody else may write to it.
    uid, _, gid = (plan.user or "").partition(":")
    for folder in _mounts_of_kind("own", plan):
        owner = f"uid={uid},gid={gid}"
        folders[folder] = f"rw,exec,nosuid,nodev,mode=755,{owner},size={SCRATCH}"
    return folders


def _mounts_of_kind(kind: str, plan: ContainerPlan) -> list[str]:
    """Return the folders of a container on which such a mount is (`ContainerPlan.mounts`)."""
    return [folder for folder, kind_of_mount in plan.mounts.items() if kind_of_mount == kind]


def container_spec(
    engine: Engine, image: ImageInfo, plan: ContainerPlan, seed: int
) -> ContainerSpec:
    """Return how the engine is to run a container of a validation run: command, mounts and limits.

    `plan` says which checks run in the container, as which user, and with which folders and GPUs.
    `seed` is that of all random numbers of the run.
    """
    gpus = plan.gpus
    command = [
        *IMAGES_PYTHON,
        f"{SUITE_FOLDER}/validate",
        *CLAIMS_OPTION,
        *plan.arguments,
        "--seed",
        str(seed),
    ]
    if gpus.attached:
        command += ["--jobs", str(_probes_at_once(plan, engine.facts.cpus))]

    # Folders that programs may write to are in memory (tmpfs) or volumes. A plain volume is a
    # folder of root; a copied one begins with what the image has in the folder.
    volumes = [SUITE_FOLDER, *plan.files, *_mounts_of_kind("foreign", plan)]
    copied_volumes = _mounts_of_kind("volume", plan)

    # Leave a quarter of the memory to the machine.
    memory = GPU_MEMORY if gpus.attached else MEMORY
    memory = min(memory, engine.facts.memory * 3 // 4)

    # Ranks are processes that train together. They exchange data through shared memory.
    shm_size = None
    ulimits: Mapping[str, int] = {}
    if plan.has_ranks:
        shm_size = shared_memory(engine.facts.memory)
        ulimits = RANKS_ULIMITS

    return ContainerSpec(
        image.handle,
        command,
        tmpfs=_folders_in_memory(plan),
        volumes=list(dict.fromkeys(volumes)),
        copied_volumes=copied_volumes,
        memory=memory,
        env=gpus.environment(image.env),
        user=plan.user,
        binds=gpus.binds,
        devices=gpus.devices,
        device_requests=gpus.device_requests,
        shm_size=shm_size,
        ulimits=ulimits,
    )


def _probes_at_once(plan: ContainerPlan, cpus: int) -> int:
    """Return how many probes may run at once on the GPUs: as cores and the smallest GPU allow."""
    # Nodes must begin their probes in the same order, and both must be at the same one.
    if plan.nodes:
        return 1
    gpus = plan.gpus.inventory.gpus if plan.gpus.inventory else ()
    smallest_memory = min((gpu.memory for gpu in gpus), default=0)
    at_once = min(cpus, _MOST_PROBES_ON_GPUS, smallest_memory // _GPU_MEMORY_OF_PROBE)
    # A probe with ranks starts a process for each GPU.
    if plan.has_ranks and gpus:
        at_once //= len(gpus)
    return max(1, at_once)


def shared_memory(machine_memory: int) -> int:
    """Return the bytes of /dev/shm for ranks: a quarter of the machine's memory at most.

    `machine_memory`: bytes of the engine's machine. The result is a whole number of pages.
    """
    return min(SHARED_MEMORY, machine_memory // 4) // _PAGE * _PAGE


def suite_files(claims: ClaimSet) -> Mapping[str, bytes]:
    """Return the files of the suite, our checks, to put into a container or image: path -> content.

    Besides the folder validate/, these are the claims to measure (`claims.json`), and the example
    programs that claims name. Raises OSError if one of the files can't be read.
    """
    files = {}
    for path in sorted(SUITE.rglob("*")):
        if path.suffix in (".py", ".json") and "__pycache__" not in path.parts:
            files[f"validate/{path.relative_to(SUITE)}"] = path.read_bytes()
    # The table of known errors is YAML here. The image's own Python reads no YAML, so it is written
    # as JSON.
    files[f"validate/{hints.IN_CONTAINERS}"] = hints.as_json()

    example_folders = set()
    for claim in claims.claims:
        # `expect` is JSON that differs by the kind of claim.
        if "example" in claim.expect:
            example_folders.add(claim.expect["example"]["folder"])
    # All examples share the files right in examples/, such as tiny.py, and those in data/.
    for folder in (".", "data", *sorted(example_folders)):
        for path in sorted((EXAMPLES / folder).iterdir()):
            if path.is_file() and not path.name.startswith("."):
                files[f"examples/{path.relative_to(EXAMPLES)}"] = path.read_bytes()

    files["claims.json"] = claims.dumps().encode()
    return files


class SuiteRun(NamedTuple):
    """How a run of the suite in a container ended, besides its records."""

    other_lines: list[str]
    """The last printed lines that are no records."""
    end: Exit
    has_begun: bool
    """Whether a record came."""


def run_suite(
    engine: Engine,
    spec: ContainerSpec,
    files: Mapping[str, Files],
    *,
    timeout: float,
    probes: Collection[str] = (),
    on_record: Callable[[Record], None] = lambda _record: None,
) -> SuiteRun:
    """Run our checks (the suite) in a container, and read what it prints.

    Some lines are records: JSON with what one check (probe) measured. A record is accepted if the
    suite has signed it, and if it is the first one of a probe.

    files: folder of the container -> files that are put there before the start.
    timeout: seconds after which the suite must have ended.
    probes: those whose records are expected.
    on_record: is called with each record as soon as it comes.

    Returns how the container ended, and the other lines. Raises EngineError; Stopped past the
    timeout, or if too much is printed.
    """
    with engine.container(replace(spec, stdin=True)) as container:
        for folder, content in files.items():
            container.put(content, folder)
        key = _start_suite(container)
        return _read_suite(container, key, timeout=timeout, probes=probes, on_record=on_record)


def run_suite_on_nodes(
    engine: Engine,
    specs: Sequence[ContainerSpec],
    files: Mapping[str, Files],
    *,
    timeout: float,
    probes: Collection[str],
    on_record: Callable[[Record], None],
    require_end: Callable[[str, SuiteRun], None],
) -> Exit:
    """Run our checks (the suite) in several containers at once, as on the nodes of a cluster.

    The first container's network and volumes are those of all. Evidence comes from the first: a
    record of another node is passed on only if its probe did not come to its end there, and is
    then a part of what the probe's record says (validation_run.merge_records).

    specs: the container of each node; the other parameters are those of `run_suite`.
    require_end: raises UserError if a container, `node-0` for example, did not end well.

    Returns how the nodes ended. If one does not end well, all are killed, and its error is raised.
    """

    def read(node: Container, key: str, *, is_first: bool) -> SuiteRun:
        """Read what the suite prints on a node until it ends."""

        def pass_on(record: Record) -> None:
            if is_first or record.outcome is not Outcome.COMPLETED:
                on_record(record)

        return _read_suite(node, key, timeout=timeout, probes=probes, on_record=pass_on)

    with ExitStack() as stack:
        nodes: list[Container] = []
        for spec in specs:
            joined_spec = joined_to(nodes[0], spec) if nodes else spec
            container = engine.container(replace(joined_spec, stdin=True))
            nodes.append(stack.enter_context(container))
        for folder, content in files.items():
            nodes[0].put(content, folder)

        # Leaving this block waits for the threads, which end with the containers that they read.
        readers: dict[Future[SuiteRun], str] = {}
        with ThreadPoolExecutor(max_workers=len(nodes)) as pool, _killed_on_error(nodes):
            # The first node must run before others can join its network.
            for number, node in enumerate(nodes):
                reader = pool.submit(read, node, _start_suite(node), is_first=number == 0)
                readers[reader] = f"node-{number}"
            for reader in as_completed(readers):
                require_end(readers[reader], reader.result())
        ends = [reader.result().end for reader in readers]
    return next((end for end in ends if end.oom), ends[0])


@contextmanager
def _killed_on_error(nodes: Sequence[Container]) -> Iterator[None]:
    """Kill these containers if the `with` block fails, because they would wait for each other."""
    try:
        yield
    except BaseException:
        for node in nodes:
            # If the engine does not answer, the error of the block says so.
            with suppress(Exception):
                node.kill()
        raise


def joined_to(first: Container, spec: ContainerSpec) -> ContainerSpec:
    """Return the spec of a container with the network and the volumes of the first node."""
    return replace(
        spec,
        network=f"container:{first.id}",
        volumes_from=first.id,
        volumes=(),
        copied_volumes=(),
    )


def _start_suite(container: Container) -> str:
    """Start a container that runs the suite, and return the key that the suite signs with.

    Only the suite knows the key. Other programs of the image may print, but can't sign a record.
    """
    key = channel.new_key()
    container.start(f"{key}\n".encode())
    return key


def _read_suite(
    container: Container,
    key: str,
    *,
    timeout: float,
    probes: Collection[str],
    on_record: Callable[[Record], None],
) -> SuiteRun:
    """Read what the suite prints in a container until it ends, and return how it ended.

    The suite prints a record of each probe, signed with `key`; `on_record` is called with each.
    Other lines are kept for people.

    timeout: in seconds. probes: those of which a record is taken, once each.
    """
    missing_probes = set(probes)
    other_lines = deque[str](maxlen=_MOST_OTHER_LINES)
    for stream, line in container.lines(timeout, most=_MOST_PRINTED):
        # The line without its signature, or None if it is not signed with the key.
        text = channel.verify(key, line) if stream == "stdout" else None
        record = parse_record(text or "")
        if record and record.probe in missing_probes:
            missing_probes.remove(record.probe)
            on_record(record)
        else:
            other_lines.append(line)
    # The output has ended, so only the container's exit status is waited for.
    end = container.wait(timeout=300)
    # The suite has begun if at least one record came.
    return SuiteRun(list(other_lines), end, has_begun=missing_probes != set(probes))


def parse_record(text: str) -> Record | None:
    """Return the record that a line of the suite holds; None if it holds none."""
    if not text.startswith("{"):
        return None
    try:
        return Record.from_json(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def require_end(image: ImageInfo, container: str, run: SuiteRun, then: str) -> None:
    """Raise UserError if our checks (the suite) did not start in a container, or were stopped.

    What such a run measured says nothing about the image. Nothing is raised if the suite had begun
    and then ran out of memory (`oom`), because the evidence says so.

    container: the container's name in the validation run.
    run: how the suite ended in this container.
    then: what the user can do if the suite did not start.
    """
    end = run.end
    # The container was killed from outside: by a person, by the job's limit, or by the machine.
    was_killed = end.code == KILLED and not end.oom
    if was_killed:
        cause = (
            f"the container `{container}` was killed while truetag's checks ran in it, and the "
            "engine reports no lack of memory"
        )
        then = (
            "validate the image again; if nobody killed the container, see whether the machine or "
            "its job ran out of memory (`dmesg`, `sacct`)"
        )
        raise failed(image_label(image), cause, then)
    # The suite did not start. The lines that were printed instead may tell the cause.
    if not run.has_begun:
        tail = " | ".join(line.strip() for line in run.other_lines[-3:] if line.strip())
        printed = tail or f"status {end.code}, nothing printed"
        cause = f"truetag's checks did not start in the image: {printed}"
        raise failed(image_label(image), cause, then)
    # The suite was stopped. By itself it ends with 0, whatever the checks have found.
    if end.code != 0 and not end.oom:
        cause = (
            f"truetag's checks in the container `{container}` ended with status {end.code}: "
            "something in the image stopped them"
        )
        then = (
            "validate the image again; if it ends so each time, look for what the image starts "
            "with every process (an ENTRYPOINT, LD_PRELOAD, sitecustomize.py)"
        )
        raise failed(image_label(image), cause, then)


def image_label(image: ImageInfo) -> str:
    """Return what messages call an image: its first tag, or its digest."""
    return image.tags[0] if image.tags else image.digest
