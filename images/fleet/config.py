"""fleet.yaml: which machines there are, and how Slurm and Ray are asked for them."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from images.config import paths, yamlfile
from images.config.facts import Capability, Row, Sentence
from images.config.platforms import Platform
from images.config.yamlfile import validated
from images.errors import Problem, UserError, wrong

NAME = "fleet.yaml"


class SlurmRequest(Row):
    """What a job asks Slurm for, in sbatch's own words."""

    partition: str = ""
    gres: Annotated[str, Field(pattern=r"^([a-z]+(:[A-Za-z0-9_.-]+)?)?$")] = ""
    """`gpu:h100`: the kind. The number is that of the tier: 1, or `ranks`."""
    constraint: str = ""
    account: str = ""
    qos: str = ""
    minutes: Annotated[int, Field(gt=0)] = 120
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


class WorkerType(Row):
    """Machines of one kind. Without `arch` they have no GPU, and judge the static and the cpu tier."""

    arch: Capability | None = None
    """Compute capability of their GPUs: `9.0`."""
    gpus: Annotated[int, Field(ge=0)] = 0
    """GPUs of one machine; with `arch`, at least 1."""
    ranks: Annotated[int, Field(ge=2, le=8)] = 2
    """GPUs that the multigpu tier is given."""
    platform: Platform = Platform.AMD64
    """They judge the images of this platform alone."""
    slurm: SlurmRequest = SlurmRequest()
    ray: RayRequest = RayRequest()

    @model_validator(mode="after")
    def _has_both(self) -> Self:
        if bool(self.arch) != bool(self.gpus):
            lacks = "say gpus: 1" if self.arch else "`nvidia-smi --query-gpu=compute_cap --format=csv` prints arch"
            raise ValueError(f"arch and gpus go together: {lacks}")
        return self


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
    staging: str = ""
    """`REGISTRY/REPOSITORY` that images travel through, and that workers build for; `--staging` says it, too."""
    max_age_days: Annotated[int, Field(gt=0)] = 14
    """A validation that is older is due again."""
    workers: dict[str, WorkerType] = Field(min_length=1)
    slurm: SlurmSettings = SlurmSettings()
    ray: RaySettings = RaySettings()

    def of(self, platform: Platform) -> Self:
        """The machines of a platform; there may be none."""
        workers = {name: one for name, one in self.workers.items() if one.platform is platform}
        return self.model_copy(update={"workers": workers})

    @property
    def plain(self) -> str:
        """The machines for tiers without a GPU: those that have none, else the first."""
        return next((name for name, one in self.workers.items() if one.arch is None), next(iter(self.workers)))

    @property
    def by_arch(self) -> dict[str, tuple[str, WorkerType]]:
        """Capability -> the first machines that have it."""
        found: dict[str, tuple[str, WorkerType]] = {}
        for name, one in self.workers.items():
            if one.arch:
                found.setdefault(one.arch, (name, one))
        return found


ONE_MACHINE = Fleet(workers={"this-machine": WorkerType()})
"""Where there is no fleet.yaml: a machine without a GPU."""


def read(path: Path | None, root: Path) -> Fleet:
    """The named file, else fleet.yaml in `root`, else ONE_MACHINE. Raises UserError with every problem and its line."""
    file = path or root / NAME
    if path is None and not file.is_file():
        return ONE_MACHINE
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        then = "name another file with --fleet; docs/fleet.md has one to begin with"
        raise wrong(str(file), f"can't be read: {error}", then) from None
    parsed = yamlfile.parse(paths.shown(file), text)
    fleet, problems, _ = validated(Fleet, parsed)
    if problems or fleet is None:
        then = f"fix {parsed.name}; docs/fleet.md explains each key"
        raise UserError([Problem(where=one.where, cause=one.cause, then=then) for one in problems])
    return fleet
