"""What probes measured: plain JSON, no opinions. Recorded evidence can be judged again without its container."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, TypedDict

from validate.claims import Claim, ClaimSet

SCHEMA_VERSION = 3


class Outcome(str, Enum):
    """How a probe's process ended. Only COMPLETED evidence can carry a PASS."""

    COMPLETED = "completed"
    CRASHED = "crashed"
    TIMED_OUT = "timed-out"
    SILENT = "silent"
    """It ended as if all were well, but left no closing record."""
    MISSING = "missing"
    """There is no such probe in the suite."""

    __str__ = str.__str__  # Python 3.10, which a foreign base may bring, has no StrEnum


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What one probe found about one subject."""

    subject: str
    seconds: float
    evidence: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Record:
    """One probe's run in a process of its own."""

    probe: str
    outcome: Outcome
    seconds: float
    measurements: tuple[Measurement, ...] = ()
    exit_code: int | None = None
    log: str = ""
    """The tail of what the process printed, for people and for hints."""
    seed: int | None = None
    """What it drew its inputs with, as it said when it was done; None in evidence of before."""

    def measurement_of(self, subject: str) -> Measurement | None:
        """Return what was measured about a subject; None if nothing was."""
        for measurement in self.measurements:
            if measurement.subject == subject:
                return measurement
        return None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        measurements = tuple(Measurement(**found) for found in data.get("measurements", ()))
        return cls(**{**data, "outcome": Outcome(data["outcome"]), "measurements": measurements})


class MeasuredOn(TypedDict, total=False):
    """What evidence tells about the machine that measured, and about the image as its engine knows it."""

    date: str
    """When the measurement began: UTC, ISO 8601."""
    engine: str
    """The engine's version."""
    cpus: int
    driver: str
    """The NVIDIA driver's version; empty: none was found."""
    gpus: Sequence[Mapping[str, Any]]
    links: Sequence[Any]
    """How each pair of GPUs is connected."""
    source: str
    """Where driver and GPUs were read: `NVML`."""
    attached: Mapping[str, Any]
    """How containers got the GPUs."""
    faults: Sequence[str]
    """What is wrong with the machine (host_faults.py)."""
    unsupported: Mapping[str, str]
    """Claims, by their keys, that could not be measured there -> why."""
    other_processor: str
    """Why programs of the image do not run on the machine."""
    seed: int
    """What probes drew their inputs with."""
    labelled: str
    """The name that the image's label gives it."""
    steps_above: int
    """How many build steps stand above those of our Dockerfile."""
    payload: Mapping[str, str]
    """The image's layers and settings, as recorded runs are compared by."""
    out_of_memory: bool
    """Whether a container ran out of memory."""
    ulimits: str
    """Why the engine refused the limits that ranks ask for."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything measured in one image: enough to judge it again, anywhere."""

    image: str
    digest: str
    records: tuple[Record, ...]
    host: MeasuredOn = field(default_factory=lambda: MeasuredOn())
    claims: tuple[Claim, ...] = ()
    """Those that it was measured for: evidence.json alone can be judged again."""
    recorded_sha256: str = field(default="", compare=False)
    """Of the file that it was read from; empty for what was just measured."""

    def record_of(self, probe: str) -> Record | None:
        """Return the record of a probe; None if it was not run."""
        for record in self.records:
            if record.probe == probe:
                return record
        return None

    @property
    def claim_set(self) -> ClaimSet:
        return ClaimSet(image=self.image, claims=self.claims)

    @property
    def sha256(self) -> str:
        """Of the content, as JSON with sorted keys and no spaces: as it was recorded."""
        return self.recorded_sha256 or _sha256(self._content())

    def dumps(self) -> str:
        """The content of evidence.json. Its `sha256` tells a file that was edited or damaged; it is no signature."""
        data = self._content()
        return json.dumps({**data, "sha256": _sha256(data)}, indent=1, sort_keys=True)

    def _content(self) -> dict[str, Any]:
        data = {name: value for name, value in asdict(self).items() if name != "recorded_sha256"}
        return {"schema_version": SCHEMA_VERSION, **data}

    @classmethod
    def loads(cls, text: str) -> Evidence:
        """Read it back.

        Raises ValueError: the content is not what its `sha256` says, or of another schema version.
        """
        data = json.loads(text)
        said, recorded = data.pop("sha256", None), _sha256(data)
        if said is not None and said != recorded:
            raise ValueError(
                "the content is not what its sha256 says: it was changed after it was measured"
            )
        if (version := data.pop("schema_version", 1)) != SCHEMA_VERSION:
            raise ValueError(f"schema version {version} is not known here, {SCHEMA_VERSION} is")
        records = tuple(Record.from_json(record) for record in data["records"])
        claims = tuple(Claim.from_json(claim) for claim in data.get("claims", ()))
        return cls(**{**data, "records": records, "claims": claims, "recorded_sha256": recorded})


def _sha256(data: Mapping[str, Any]) -> str:
    plain = json.loads(
        json.dumps(data)
    )  # as it is read back: keys become text before they are sorted
    return hashlib.sha256(
        json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def plain(value: Any) -> Any:
    """Keep evidence strict JSON: not-a-number and infinity become text, which no judge takes for a number; text becomes
    UTF-8, as a file's name need not be."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value
