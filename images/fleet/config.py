"""fleet.yaml: which machines there are, and how Slurm, Ray and Kubernetes are asked for them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from images.config import paths, yamlfile
from images.config.facts import Capability, Row, Sentence
from images.config.platforms import Platform
from images.config.validating import validated
from images.errors import Problem, UserError

NAME = "fleet.yaml"
_RANKS = 2
_MINUTES = 120
_WAIT_HOURS = 24
_MEMORY = re.compile(r"^([0-9]+(?:\.[0-9]+)?)(Ki|Mi|Gi|Ti|k|M|G|T)?$")
"""A quantity of Kubernetes in bytes (its API reference, Quantity), without exponents."""
_UNITS: dict[str, float] = {
    **{f"{letter}i": 1 << 10 * power for power, letter in enumerate("KMGT", 1)},
    **{letter: 1000**power for power, letter in enumerate("kMGT", 1)},
}
_DOMAIN = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
"""A DNS subdomain (Kubernetes' "Object Names and IDs", by RFC 1123)."""
_WORD = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
"""A name in keys and values (Kubernetes' "Labels and Selectors")."""
_LONGEST_NAME = 253
_LONGEST_KEY = _LONGEST_NAME + 1 + 63
LabelKey = Annotated[str, Field(pattern=rf"^({_DOMAIN}/)?{_WORD}$", max_length=_LONGEST_KEY)]
LabelValue = Annotated[str, Field(pattern=rf"^({_WORD})?$")]
ObjectName = Annotated[str, Field(pattern=rf"^({_DOMAIN})?$", max_length=_LONGEST_NAME)]
Quantity = Annotated[str, Field(pattern=_MEMORY.pattern)]
PLATFORM_LABELS = ("kubernetes.io/os", "kubernetes.io/arch")
"""What rendering asks nodes for by the image's platform."""


def memory_bytes(quantity: str) -> float:
    """Bytes of `memory`. Raises ValueError: it is no quantity."""
    found = _MEMORY.match(quantity)
    if not found:
        raise ValueError(f"{quantity!r} is no quantity of memory")
    return float(found[1]) * _UNITS.get(found[2], 1)


class SlurmRequest(Row):
    """What a job asks Slurm for, in sbatch's own words."""

    partition: str = ""
    gres: Annotated[str, Field(pattern=r"^([a-z]+(:[A-Za-z0-9_.-]+)?)?$")] = ""
    """`gpu:h100`: the kind. The number is that of the tier: 1, or `ranks`."""
    constraint: str = ""
    account: str = ""
    qos: str = ""
    minutes: Annotated[int, Field(gt=0)] = _MINUTES
    mem: str = ""
    cpus: Annotated[int, Field(gt=0)] = 1
    more: dict[str, str] = {}
    """Other options of sbatch, by their long names: `reservation: nightly`."""


class RayRequest(Row):
    """What a task asks Ray for."""

    cpus: Annotated[float, Field(ge=0)] = 1
    accelerator_type: str = ""
    """As Ray names it: `H100`."""
    resources: dict[str, float] = {}
    """Custom resources of the nodes that have an engine: `engine: 1`."""


class KubernetesRequest(Row):
    """What a Job asks Kubernetes for."""

    node_labels: dict[LabelKey, LabelValue] = {}
    """The nodes: `nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3`. Their platform is asked for without being said."""
    gpu_resource: Annotated[str, Field(pattern=rf"^{_DOMAIN}/{_WORD}$", max_length=_LONGEST_KEY)] = "nvidia.com/gpu"
    """What the device plugin calls a GPU."""
    cpus: Annotated[int, Field(gt=0)] = 2
    """Cores that each container asks for, and probes that it runs at once; on GPUs no more than a trial runs."""
    cpu_limit: Annotated[int, Field(gt=0)] | None = None
    """Cores that each container may use, where a quota or a LimitRange wants a limit; none: no limit is written."""
    memory: Quantity = "4Gi"
    """Memory that each container asks for; it may use what a trial may. As `4Gi`, `4.5Gi` or `4000M`."""
    ephemeral_storage: Quantity | None = None
    """Storage of the node that each container asks for and may use. A pod may use the sum; none: nothing is written."""
    minutes: Annotated[int, Field(gt=0)] = _MINUTES
    """How long one pod may run, from its start on a node."""
    wait_hours: Annotated[int, Field(gt=0)] = _WAIT_HOURS
    """How long a Job may wait in all. Its time runs from its creation, and all Jobs are created at once."""
    tolerate: list[LabelKey] = []
    """Keys of taints."""
    pull_secret: ObjectName = ""
    runtime_class: ObjectName = ""


class WorkerType(Row):
    """Machines of one kind. Without `arch` they have no GPU, and judge the static and the cpu tier."""

    arch: Capability | None = None
    """Compute capability of their GPUs: `9.0`."""
    gpus: Annotated[int, Field(ge=0)] = 0
    """GPUs of one machine; with `arch`, at least 1."""
    ranks: Annotated[int, Field(ge=2, le=8)] = _RANKS
    """GPUs that the multigpu tier is given."""
    platform: Platform = Platform.AMD64
    """They judge the images of this platform alone."""
    slurm: SlurmRequest = SlurmRequest()
    ray: RayRequest = RayRequest()
    kubernetes: KubernetesRequest = KubernetesRequest()


class SlurmSettings(Row):
    """What holds for every job on Slurm."""

    setup: list[Sentence] = []
    """Lines of shell before each job: `module load python`."""
    at_once: Annotated[int, Field(gt=0)] = 256
    """Jobs of one array that run at a time."""


class RaySettings(Row):
    """What holds for every task on Ray."""

    pip: list[Sentence] = []
    """Requirements that Ray installs for the tasks. Empty: the workers' Python has truetag's dependencies."""
    retries: Annotated[int, Field(ge=0)] = 3
    """How often Ray starts a task anew whose worker died."""


class Fleet(Row):
    """fleet.yaml."""

    schema_version: Literal[1] = 1
    through: str = ""
    """`REGISTRY/REPOSITORY` that images travel through; `--through` says it, too."""
    max_age_days: Annotated[int, Field(gt=0)] = 14
    """A validation that is older is due again."""
    workers: dict[str, WorkerType] = Field(min_length=1)
    slurm: SlurmSettings = SlurmSettings()
    ray: RaySettings = RaySettings()

    def of(self, platform: Platform) -> Fleet:
        """The machines of a platform; there may be none."""
        return self._by_platform[platform]

    @cached_property
    def _by_platform(self) -> dict[Platform, Fleet]:
        settings = {name: getattr(self, name) for name in Fleet.model_fields}
        found: dict[Platform, Fleet] = {}
        for platform in Platform:
            workers = {name: one for name, one in self.workers.items() if one.platform is platform}
            found[platform] = Fleet.model_construct(**{**settings, "workers": workers})
        return found

    @property
    def plain(self) -> str:
        """The machines for tiers without a GPU: those that have none, else the first."""
        return next((name for name, one in self.workers.items() if one.arch is None), next(iter(self.workers)))

    @cached_property
    def by_arch(self) -> dict[str, tuple[str, WorkerType]]:
        """Capability -> the first machines that have it."""
        found: dict[str, tuple[str, WorkerType]] = {}
        for name, one in self.workers.items():
            if one.arch:
                found.setdefault(one.arch, (name, one))
        return found


ONE_MACHINE = Fleet(workers={"this-machine": WorkerType()})
"""Where there is no fleet.yaml: a machine without a GPU."""


def read(path: Path | None = None) -> Fleet:
    """The named file, else the workspace's, else ONE_MACHINE. Raises UserError with every problem and its line."""
    file = path or paths.workspace().root / NAME
    if path is None and not file.is_file():
        return ONE_MACHINE
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        then = "name another file with --fleet; docs/fleet.md has one to begin with"
        raise UserError(Problem(where=str(file), cause=f"can't be read: {error}", then=then)) from None
    parsed = yamlfile.parse(paths.shown(file), text)
    fleet, problems, _ = validated(Fleet, parsed)
    told = [Problem(where=one.where, cause=one.cause, then=_advice(parsed.name)) for one in problems]
    told += _inconsistent(fleet, parsed) if fleet and not told else []
    if told or fleet is None:
        raise UserError(told)
    return fleet


def _advice(name: str) -> str:
    return f"fix {name}; docs/fleet.md explains each key"


def _inconsistent(fleet: Fleet, file: yamlfile.YamlFile) -> list[Problem]:
    problems = []
    for name, one in fleet.workers.items():
        where = file.where(("workers", name))
        if one.arch and not one.gpus:
            problems.append(Problem(where=where, cause=f"{name} has arch {one.arch} and no gpus", then="say gpus: 1"))
        if one.gpus and not one.arch:
            then = "say arch: '9.0' (`nvidia-smi --query-gpu=compute_cap --format=csv` prints it)"
            problems.append(Problem(where=where, cause=f"{name} has gpus and no arch", then=then))
        problems += _of_kubernetes(name, one.kubernetes, file)
    return problems


def _of_kubernetes(name: str, asked: KubernetesRequest, file: yamlfile.YamlFile) -> Iterator[Problem]:
    there = ("workers", name, "kubernetes")
    for label in (one for one in PLATFORM_LABELS if one in asked.node_labels):
        cause = f"{name} sets {label}, which follows from `platform`"
        yield Problem(where=file.where((*there, "node_labels", label)), cause=cause, then="say `platform` in its place")
    if asked.cpu_limit and asked.cpu_limit < asked.cpus:
        cause = f"{name} asks for {asked.cpus} cpus, and may use {asked.cpu_limit}"
        yield Problem(where=file.where((*there, "cpu_limit")), cause=cause, then=f"say {asked.cpus} or more there")
