"""fleet.yaml: the kinds of machines of a cluster, and what Slurm and Ray are asked for to get one."""

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
    """As Ray names it: `H100`."""
    resources: dict[str, float] = {}
    """Custom resources of the nodes that have an engine: `engine: 1`."""


class Machines(Row):
    """One kind of machine, and how a task gets one."""

    gpus: Annotated[int, Field(ge=0)] = 0
    """GPUs that a task gets. 0: static and cpu tier; 1: the gpu tier, too; more: all tiers."""
    slurm: dict[str, str] = {}
    """Options of sbatch, by their long names: `partition: gpu`. One without a value is `true`."""
    ray: RayRequest = RayRequest()


class SlurmSettings(Row):
    """What holds for every task on Slurm."""

    setup: list[Sentence] = []
    """Lines of shell before each task: `module load python`."""
    at_once: Annotated[int, Field(gt=0)] = 256
    """Tasks of one array that run at a time."""


class RaySettings(Row):
    """What holds for every task on Ray."""

    pip: list[Sentence] = []
    """Requirements that Ray installs for the tasks. Empty: the workers' Python has truetag's."""
    retries: Annotated[int, Field(ge=0)] = 3
    """How often Ray starts a task anew whose worker died."""


class Fleet(Row):
    """fleet.yaml."""

    schema_version: Literal[2] = 2
    staging: str = ""
    """`REGISTRY/REPOSITORY` that workers push what they built to, by digest. Empty: it stays in their engines."""
    workers: dict[str, Machines] = Field(min_length=1)
    slurm: SlurmSettings = SlurmSettings()
    ray: RaySettings = RaySettings()


PLAIN = Fleet(workers={"any": Machines()})
"""Where there is no fleet.yaml: machines without a GPU, and nothing particular asked for."""


def read(path: Path | None, root: Path) -> Fleet:
    """Return the named file, else fleet.yaml in `root`, else PLAIN.

    Raises UserError with every problem and its line, OSError.
    """
    file = path or root / NAME
    if path is None and not file.is_file():
        return PLAIN
    parsed = yamlfile.parse(paths.shown(file), file.read_text(encoding="utf-8"))
    return validated(Fleet, parsed, "docs/fleet.md")


def choose_machines(fleet: Fleet, name: str) -> tuple[str, Machines]:
    """Return the named machines; without a name, those of a fleet that has one kind only. Raises UserError."""
    if not name and len(fleet.workers) == 1:
        name = next(iter(fleet.workers))
    if name not in fleet.workers:
        cause = (
            "is no kind of machine in fleet.yaml"
            if name
            else "is needed: fleet.yaml has several kinds of machines"
        )
        raise wrong(f"--workers {name}".strip(), cause, f"name one of {', '.join(fleet.workers)}")
    return name, fleet.workers[name]
