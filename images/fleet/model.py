"""What a fleet judges, as plain data: a pair, the job that a worker gets, and the record that it gives back."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field

from images.config.platforms import Platform
from images.site.records import RunLine
from images.validation.rows import Row
from validate.claims import ClaimSet, Tier

ON_GPUS = (Tier.GPU, Tier.MULTIGPU)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One tier of one image on one GPU architecture: what is fresh, due or impossible."""

    image: str
    digest: str
    """`sha256:...` of the configuration: the one that verdicts name."""
    tier: Tier
    arch: str = ""
    """Compute capability, `9.0`; empty for the tiers without a GPU."""


class LedgerJob(Row, ABC):
    """A job that a ledger keeps: to judge an image, or to build one."""

    @property
    @abstractmethod
    def key(self) -> str:
        """Names the job among all: the same work gives the same key."""


class Job(LedgerJob):
    """All that a worker is told. It brings an engine, and gets the rest from the registry and the checkout."""

    schema_version: Literal[1] = 1
    image: str
    digest: str
    """Of the configuration: what was pulled must have it."""
    reference: str
    """`HOST/NAME@sha256:...`, of the manifest."""
    tiers: tuple[Tier, ...]
    arch: str = ""
    gpus: Annotated[int, Field(ge=0)] = 0
    """How many GPUs the worker is given."""
    platform: Platform = Platform.AMD64
    """Of the image: its machines have the same."""
    required: tuple[str, ...] = ()
    """`ID SUBJECT` of the claims of the GPU tiers that the plan requires: a worker's claims must have them."""
    only: tuple[str, ...] = ()
    """Texts of `--claim`; empty: every claim."""
    claims: dict[str, Any]
    """The claim set that the matrix writes for the image, without those of the GPU tiers: they depend on the worker's
    GPUs, and the worker writes them from the same checkout."""

    @property
    def key(self) -> str:
        """Names the job among all: the same image, tiers, GPU and claims give the same key."""
        where = f"-{self.arch.replace('.', '')}" if self.arch else ""
        texts = hashlib.sha256(json.dumps(self.only).encode()).hexdigest()[:6] if self.only else ""
        tiers = "-".join(map(str, self.tiers))
        return f"{self.image}-{self.digest.removeprefix('sha256:')[:12]}-{tiers}{where}{texts and f'-{texts}'}"

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """What it judges."""
        return tuple(Pair(image=self.image, digest=self.digest, tier=tier, arch=self.arch) for tier in self.tiers)

    @property
    def claim_set(self) -> ClaimSet:
        return ClaimSet.loads(json.dumps(self.claims))


class WorkerInfo(Row):
    """Who judged: the machine's name, what started it there, and its engine."""

    executor: str
    node: str
    id: str = ""
    """Slurm's job or Ray's task."""
    engine: str = ""


class JobRecord(Row):
    """What a worker gave back of a job: for which run, where, and when."""

    schema_version: Literal[1] = 1
    key: str
    run: str
    """The run that handed it out."""
    worker: WorkerInfo
    started: AwareDatetime
    ended: AwareDatetime

    @property
    def seconds(self) -> float:
        return (self.ended - self.started).total_seconds()


class FleetRecord(JobRecord):
    """One job, judged. It counts only with the evidence that it names by sha256, which was written before it."""

    line: RunLine
    """As `record` writes it into results/runs.jsonl."""


class Booking(Row):
    """Who has taken a job, so that nobody else does."""

    schema_version: Literal[1] = 1
    key: str
    run: str
    owner: str
    """`USER@HOST (process N)`."""
    since: AwareDatetime
    executor: str
    cluster_id: str = ""
    """Slurm's job; empty until it is submitted."""
    submitted_by: str = ""
    """The dead run that submitted that job, and is named in its result; empty: this one did."""

    def is_forgotten_on(self, executor: str) -> bool:
        """Whether a run on this executor does not watch what was submitted: it is on another one."""
        return bool(self.cluster_id) and self.executor != executor

    def after(self, dead: Booking | None) -> Booking:
        """This booking in the place of a dead run's, with what that one left on the same cluster."""
        if dead is None or not dead.cluster_id or dead.is_forgotten_on(self.executor):
            return self
        submitted_by = dead.submitted_by or dead.run
        return self.model_copy(update={"cluster_id": dead.cluster_id, "submitted_by": submitted_by})


class FleetRun(Row):
    """One process of `fleet run` or `build --on`, and its jobs. `--resume` begins another with what is left."""

    schema_version: Literal[1] = 1
    id: str
    owner: str
    started: AwareDatetime
    executor: str
    jobs: tuple[str, ...]
    """Keys."""
    ended: AwareDatetime | None = None
    """When its last job was seen to be done, by whomever. None: it goes on, was killed, or lost a job."""


class Failure(Row):
    """Why a job gave no record the last time."""

    schema_version: Literal[1] = 1
    key: str
    run: str
    at: AwareDatetime
    cause: str
    node: str = ""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What a worker gives back: the record, and evidence.json as text."""

    record: FleetRecord
    evidence: str
