"""Read fleet.yaml: the kinds of machines in a cluster, and how to get them from Slurm or Ray."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from images.config import paths, yamlfile
from images.config.facts import Row, Sentence
from images.config.yamlfile import validated
from images.errors import wrong

NAME = "fleet.yaml"


class RayRequest(Row):
    """Options of a Ray task, under Ray's own names."""

    num_cpus: Annotated[float, Field(ge=0)] = 1
    accelerator_type: str = ""
    """Ray's name of a GPU model: `H100`."""
    resources: dict[str, float] = {}
    """Custom resources that a node must have: `engine: 1`, say, for nodes with a Docker engine."""


class Machines(Row):
    """One kind of machine, and how a task gets such a machine."""

    gpus: Annotated[int, Field(ge=0)] = 0
    """GPUs for each task. With 0, the static and cpu tiers are measured; with 1, also the gpu tier;
    with more, all tiers."""
    slurm: dict[str, str] = {}
    """Options of sbatch by their long names: `partition: gpu`. The value of a flag is `true`."""
    ray: RayRequest = RayRequest()


class SlurmSettings(Row):
    """Settings for every task on Slurm."""

    setup: list[Sentence] = []
    """Shell commands to run before each task: `module load python`."""
    at_once: Annotated[int, Field(gt=0)] = 256
    """How many tasks run at the same time."""


class RaySettings(Row):
    """Settings for every task on Ray."""

    pip: list[Sentence] = []
    """Packages that Ray installs for the tasks. Empty: the workers have truetag's requirements."""
    retries: Annotated[int, Field(ge=0)] = 3
    """How often Ray starts a task again if its worker died."""


class Fleet(Row):
    """The content of fleet.yaml."""

    schema_version: Literal[2] = 2
    staging: str = ""
    """`REGISTRY/REPOSITORY` to which workers push built images by digest. Empty: images stay in the
    workers' engines."""
    workers: dict[str, Machines] = Field(min_length=1)
    slurm: SlurmSettings = SlurmSettings()
    ray: RaySettings = RaySettings()


PLAIN = Fleet(workers={"any": Machines()})
"""The default without a fleet.yaml: machines without a GPU, and no options."""


def read(path: Path | None, root: Path) -> Fleet:
    """Read a fleet file: `path` or, if it is None, fleet.yaml in `root`.

    Returns PLAIN if `path` is None and there is no fleet.yaml. Raises UserError with every problem
    in the file and its line, and OSError if the file cannot be read.
    """
    file = path or root / NAME
    if path is None and not file.is_file():
        return PLAIN
    parsed = yamlfile.parse(paths.shown(file), file.read_text(encoding="utf-8"))
    return validated(Fleet, parsed, "docs/fleet.md")


def choose_machines(fleet: Fleet, name: str) -> tuple[str, Machines]:
    """Return (name, kind of machine) from fleet.yaml for the name of a kind, as in --workers.

    The name may be empty if there is only one kind. Raises UserError for an unknown name, and for
    an empty one if there are several kinds.
    """
    if not name and len(fleet.workers) == 1:
        name = next(iter(fleet.workers))
    if name in fleet.workers:
        return name, fleet.workers[name]

    cause = "`workers` in fleet.yaml has no such kind of machine"
    if not name:
        cause = "this option is missing: `workers` in fleet.yaml has several kinds of machines"
    then = f"give --workers one of {', '.join(fleet.workers)}"
    raise wrong(f"--workers {name}".strip(), cause, then)
