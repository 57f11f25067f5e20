"""What a fleet does, as plain data: matrix cells, the jobs that workers get, and the records that they give back."""

import getpass
import hashlib
import json
import os
import socket
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, Field

from images.config.platforms import Platform
from images.validation.rows import Row
from validate.claims import ClaimSet, Tier

ON_GPUS = (Tier.GPU, Tier.MULTIGPU)


@dataclass(frozen=True, kw_only=True)
class MatrixCell:
    """One tier of one image on one GPU architecture: what is fresh, due or impossible."""

    image: str
    digest: str
    """`sha256:...` of the configuration, the one that verdicts name; of an image to be built, its context digest."""
    tier: Tier
    arch: str = ""
    """Compute capability, `9.0`; empty for the tiers without a GPU."""


class Job(Row):
    """All that a worker is told. It brings an engine, and gets the rest from the registry and the checkout.

    A job with a `context` builds its image where the staging repository has none of this context. Its digest,
    reference and claims are empty until then.
    """

    schema_version: Literal[2] = 2
    image: str
    tiers: tuple[Tier, ...]
    digest: str = ""
    """Of the configuration: what was pulled must have it."""
    reference: str = ""
    """`HOST/NAME@sha256:...`, of the manifest."""
    context: str = ""
    """sha256 of the build context, as far as it depends on no machine."""
    staging: str = ""
    """`REGISTRY/REPOSITORY` that a built image is pushed to, by digest."""
    arch: str = ""
    gpus: Annotated[int, Field(ge=0)] = 0
    """How many GPUs the worker is given."""
    platform: Platform = Platform.AMD64
    """Of the image: its machines have the same."""
    described: dict[str, Any] = {}
    """Labels and history of the image: with them and the worker's GPUs, the submitter writes the claims again."""
    only: tuple[str, ...] = ()
    """Texts of `--claim`; empty: every claim."""
    claims: dict[str, Any] = {}
    """The claim set that the matrix writes for the image, without those of the GPU tiers: they depend on the worker's
    GPUs, and the worker writes them from the same checkout."""

    @property
    def key(self) -> str:
        """Names the job among all: the same image or context, tiers, GPU and claims give the same key."""
        what = f"built-{self.context[:12]}" if self.context else self.digest.removeprefix("sha256:")[:12]
        where = self.arch.replace(".", "")
        texts = hashlib.sha256(json.dumps(self.only).encode()).hexdigest()[:6] if self.only else ""
        return "-".join(filter(None, (self.image, what, *map(str, self.tiers), where, texts)))

    @property
    def cells(self) -> tuple[MatrixCell, ...]:
        """What it validates."""
        digest = self.digest or self.context
        return tuple(MatrixCell(image=self.image, digest=digest, tier=tier, arch=self.arch) for tier in self.tiers)

    @property
    def claim_set(self) -> ClaimSet:
        return ClaimSet.loads(json.dumps(self.claims))


class WorkerInfo(Row):
    """Who did a job: the machine's name, what started it there, and its engine."""

    executor: str
    node: str
    id: str = ""
    """Slurm's job or Ray's task."""
    engine: str = ""


class JobRecord(Row):
    """One job, done. It counts only with the evidence that it names by sha256, which was written before it."""

    schema_version: Literal[3] = 3
    key: str
    worker: WorkerInfo
    started: AwareDatetime
    ended: AwareDatetime
    digest: str
    """`sha256:...` of the image that was measured."""
    reference: str
    """`HOST/NAME@sha256:...`, where it was pulled from or pushed to."""
    evidence_sha256: str
    """`sha256` of evidence.json."""
    build: dict[str, Any] = {}
    """build.json, of an image that this job built."""

    @property
    def seconds(self) -> float:
        return (self.ended - self.started).total_seconds()


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """What a worker gives back: the record, and evidence.json as text."""

    record: JobRecord
    evidence: str


@dataclass(frozen=True, kw_only=True)
class FleetRun:
    """One process of `fleet run`."""

    id: str
    owner: str
    """`USER@HOST (process N)`."""
    executor: str

    @classmethod
    def new(cls, executor: str) -> Self:
        """A run by this process."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a uid without a name
            user = str(os.getuid())
        return cls(
            id=f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:6]}",
            owner=f"{user}@{socket.gethostname()} (process {os.getpid()})",
            executor=executor,
        )


class Lease(Row):
    """Who has taken a job, so that nobody else does."""

    run: str
    owner: str
    since: AwareDatetime
    executor: str
    cluster_id: str = ""
    """Slurm's job; empty until it is submitted."""


class Failure(Row):
    """Why a job gave no record the last time."""

    at: AwareDatetime
    cause: str
    node: str = ""
