"""What probes measured: plain JSON, no opinions. Recorded evidence can be judged again without its container."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any


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

    def of(self, subject: str) -> Measurement | None:
        return next((found for found in self.measurements if found.subject == subject), None)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        measurements = tuple(Measurement(**found) for found in data.get("measurements", ()))
        return cls(**{**data, "outcome": Outcome(data["outcome"]), "measurements": measurements})


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything measured in one image: enough to judge it again, anywhere."""

    image: str
    digest: str
    records: tuple[Record, ...]
    host: Mapping[str, Any] = field(default_factory=dict)
    """Engine version, GPUs and driver as the host saw them."""

    def of(self, probe: str) -> Record | None:
        return next((record for record in self.records if record.probe == probe), None)

    def dumps(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def loads(cls, text: str) -> Evidence:
        data = json.loads(text)
        return cls(**{**data, "records": tuple(Record.from_json(record) for record in data["records"])})
