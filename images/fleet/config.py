"""fleet.yaml: the kinds of machines of a cluster, and what Slurm and Ray are asked for to get one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from images.config import paths, yamlfile
from images.config.facts import Row, Sentence
from images.config.yamlfile import YamlFile, validated
from images.errors import Problem, UserError, wrong

NAME = "fleet.yaml"

OLD_KEYS: Mapping[str, str] = {
    "max_age_days": "leave it out: each `fleet` measures anew",
    "arch": "leave it out: the evidence names the GPU that was used",
    "ranks": "write `gpus: 2`: as many GPUs as a task gets; with several, the multigpu tier is measured",
    "platform": "leave it out: name the images that these machines can run",
    "minutes": "write sbatch's own option, `time: 120`",
    "cpus": "write the option's own name: `cpus-per-task` below slurm, `num_cpus` below ray",
    "more": "write these options beside the others: all are sbatch's own",
}
"""Keys that fleet.yaml had until `fleet` left placement to Slurm and Ray -> what to write now."""


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
    problems = find_old_keys(parsed)
    if problems:
        raise UserError(problems)

    fleet, problems, _ = validated(Fleet, parsed)
    if problems or fleet is None:
        then = f"fix {parsed.name}; docs/fleet.md explains each key"
        raise UserError([Problem(where=each.where, cause=each.cause, then=then) for each in problems])
    return fleet


def find_old_keys(file: YamlFile) -> list[Problem]:
    """Return a problem for each key that has no meaning any more, with what to write now."""
    problems = []
    for path in file.lines:
        # The second part of `workers.NAME` is a name of the user's.
        is_key = path and path[:-1] != ("workers",)
        if is_key and path[-1] in OLD_KEYS:
            cause = f"{path[-1]!r} has no meaning any more"
            problems.append(Problem(where=file.where(path), cause=cause, then=OLD_KEYS[str(path[-1])]))
    return problems


def choose_machines(fleet: Fleet, name: str) -> tuple[str, Machines]:
    """Return the named machines; without a name, those of a fleet that has one kind only. Raises UserError."""
    if not name and len(fleet.workers) == 1:
        name = next(iter(fleet.workers))
    if name not in fleet.workers:
        cause = "is no kind of machine in fleet.yaml" if name else "is needed: fleet.yaml has several kinds of machines"
        raise wrong(f"--workers {name}".strip(), cause, f"name one of {', '.join(fleet.workers)}")
    return name, fleet.workers[name]
