"""`nightly --on slurm|ray`: workers build and validate the sets of versions of a nightly run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from images.commands import common, executors, trials
from images.commands.building_on import is_anywhere
from images.commands.executors import ExecutorArguments
from images.commands.options import ImageInputArguments
from images.config.matrix import Sources
from images.engine import Engine
from images.engine.progress import Progress
from images.errors import Problem, UserError
from images.fleet import config, gather, travel
from images.fleet.builds import sets
from images.fleet.builds.pool import Pool
from images.fleet.builds.sets import Parent, SetOptions
from images.fleet.config import Fleet
from images.fleet.gather import Places
from images.fleet.submission import Submission
from images.nightly.options import Judge
from images.planning.image import Image
from images.registry.reference import Repository
from validate.claims import Tier


@dataclass(frozen=True, kw_only=True)
class NightlyWishes:
    """What is asked for, beside the images."""

    sources: Sources
    how: ExecutorArguments
    inputs: ImageInputArguments
    tiers: Sequence[Tier]
    gpus: str
    out: Path
    over: bool


def require_possible(wishes: NightlyWishes, *, engine: str | None, updates: bool) -> None:
    """Refuse what workers can't do, with the next command. Raises UserError with all of it."""
    here = "`nox -s nightly` on one machine, without --on"
    on_gpus = {f"--tier {tier}": (tier in wishes.tiers, here) for tier in (Tier.GPU, Tier.MULTIGPU)}
    base = f"push it, and name it by its digest: --base HOST/NAME@sha256:...; or {here}"
    executors.require_none(
        {
            f"--base {wishes.inputs.base}": (not is_anywhere(wishes.inputs.base), base),
            "--wheelhouse": (wishes.inputs.wheelhouse, here),
            **executors.gpus_wanted(wishes.gpus, here),
            "--through": (wishes.how.through and not wishes.over, "leave it out: without --over no image travels"),
            **on_gpus,
            "security updates": (updates, "--no-updates, and `nox -s nightly -- --only-updates` on a Debian machine"),
        }
    )
    if engine:
        raise executors.no_engine_of(engine, wishes.how.on)


@contextmanager
def judge(images: Sequence[Image], wishes: NightlyWishes) -> Iterator[tuple[Judge, Callable[[], None]]]:
    """What judges a set of versions, and what ends all that go on. Raises UserError."""
    fleet = config.read(wishes.how.file)
    options = SetOptions(
        sources=wishes.sources,
        out=wishes.out,
        cache=common.cache(),
        bases=trials.pinned_bases(),
        tiers=wishes.tiers,
        base=wishes.inputs.base,
        wheel_mirror=wishes.inputs.wheel_mirror,
        parents=_parents(images, wishes, fleet) if wishes.over else None,
    )
    executor = executors.executor(wishes.how.on, wishes.out, fleet)
    with Pool(executor) as pool:
        yield sets.on_workers(pool, Submission.new(fleet, executor, executors.tell), options), pool.cancel


def _parents(images: Sequence[Image], wishes: NightlyWishes, fleet: Fleet) -> dict[str, Parent]:
    """The images that versions are laid over, in the registry. Raises UserError for one that is nowhere."""
    repository = travel.repository(wishes.how.through or fleet.through)
    with executors.local_engine(None) as engine, Progress() as progress:
        return {str(image.name): _parent(image, engine, repository, progress) for image in images}


def _parent(image: Image, engine: Engine | None, repository: Repository, progress: Progress) -> Parent:
    name = str(image.name)
    # A candidate has no verdict, or a bad one: what fails over it says nothing of the versions.
    found = gather.by_tag([name], Places(engine=engine, repository=repository), image.platform)
    if found is None:
        cause = f"it is in no engine here, and {repository} has no tag of this name"
        raise UserError(Problem(where=f"--over {name}", cause=cause, then=f"`nox -s build -- {name}`"), code=1)
    reference = found.reference
    if engine and found.local:
        reference = travel.send(engine, found.local, repository, common.cache() / "push", progress.job(name))
    return Parent(reference=reference, digest=found.digest, labels=found.described.labels)
