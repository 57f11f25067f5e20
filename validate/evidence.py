"""Holds what probes measured: plain JSON, not judged.

Recorded evidence can be judged again without its container.
"""

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


_LINE_CHARACTERS = 200
"""A line of a log is cut to this where it is shown."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What one probe measured for one claim, which its subject names."""

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
    """The seed of its random inputs, written when it was done; None in evidence from before."""

    def measurement_of(self, subject: str) -> Measurement | None:
        """Return what was measured for a subject; None: nothing."""
        for measurement in self.measurements:
            if measurement.subject == subject:
                return measurement
        return None

    def progress_line(self) -> str:
        """Return what is printed as soon as the probe has ended: `measured cpu.home in 1.2 s`.

        If it did not complete, the line ends with the last line of its log, which may tell why.
        """
        end = str(self.outcome)
        if self.outcome is not Outcome.COMPLETED:
            last_line = self.log.rstrip().rpartition("\n")[2].strip()
            printable = "".join(c if c.isprintable() else " " for c in last_line)
            end += f": {printable[:_LINE_CHARACTERS]}" if printable else ""
        return f"measured {self.probe} in {self.seconds:.1f} s ({end})"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """Return the record from its JSON. Raises ValueError, TypeError or LookupError."""
        measurements = tuple(Measurement(**row) for row in data.get("measurements", ()))
        return cls(**{**data, "outcome": Outcome(data["outcome"]), "measurements": measurements})


class OtherImage(TypedDict):
    """What another image measured on the same machine, of claims that the image had failed."""

    image: str
    """Its name in the matrix."""
    digest: str
    run: str
    """The recorded run (results/runs.jsonl) in which these claims passed on this GPU model."""
    claims: Sequence[Mapping[str, Any]]
    """Its own claims of these names, as JSON: it may have another torch."""
    records: Sequence[Mapping[str, Any]]


class MeasuredOn(TypedDict, total=False):
    """Facts of the machine that measured, and of the image as its engine knows it."""

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
    """Keys of claims that could not be measured there -> the reason."""
    other_processor: str
    """Why programs of the image do not run on the machine."""
    seed: int
    """The seed of probes' random inputs."""
    labelled: str
    """The name that the image's label gives it."""
    other_base: str
    """The base that the image stands on in place of the matrix's (--base); missing: its own."""
    steps_above: int
    """How many build steps stand above those of our Dockerfile."""
    inputs: Mapping[str, str]
    """What the run depended on, by name -> value or digest (images/building/earlier_run.py)."""
    payload: Mapping[str, str]
    """The image's layers and settings, as recorded runs are compared by."""
    layer_bytes: Mapping[str, int]
    """The size of each layer, unpacked, by the layer's name."""
    out_of_memory: bool
    """Whether a container ran out of memory."""
    ulimits: str
    """Why the engine refused the limits that ranks ask for."""
    other_images: Sequence[OtherImage]
    """Images that ran failed claims on the same machine (images/building/other_images.py)."""
    not_compared: Mapping[str, str]
    """Keys of failed claims that no other image could run -> the reason."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything measured in one image: enough to judge it again, anywhere."""

    image: str
    digest: str
    records: tuple[Record, ...]
    host: MeasuredOn = field(default_factory=lambda: MeasuredOn())
    claims: tuple[Claim, ...] = ()
    """The claims that it was measured for, so that evidence.json alone can be judged again."""
    recorded_sha256: str = field(default="", compare=False)
    """The digest of the file that it was read from; empty for what was just measured."""

    def record_of(self, probe: str) -> Record | None:
        """Return the record of a probe; None: it was not run."""
        for record in self.records:
            if record.probe == probe:
                return record
        return None

    @property
    def claim_set(self) -> ClaimSet:
        """Return the claims that it was measured for."""
        return ClaimSet(image=self.image, claims=self.claims)

    @property
    def sha256(self) -> str:
        """Return the digest of the content, as it was recorded if it was read from a file."""
        return self.recorded_sha256 or _sha256(self._content())

    def dumps(self) -> str:
        """Return the content of evidence.json.

        Its `sha256` shows whether the file was edited or damaged; it is no signature. Keys stay in
        the order in which they were measured, in which judges list them in a reason: so the same
        words come of the file as of the run.
        """
        data = self._content()
        return json.dumps({**data, "sha256": _sha256(data)}, indent=1)

    def _content(self) -> dict[str, Any]:
        """Return what is recorded: all but the digest."""
        data = asdict(self)
        del data["recorded_sha256"]
        return {"schema_version": SCHEMA_VERSION, **data}

    @classmethod
    def loads(cls, text: str) -> Evidence:
        """Return the evidence (what was measured of an image) in a text that `dumps` wrote.

        A text without `sha256` is read as well. Raises ValueError if its `sha256` is not that of
        its content, if it is of another schema version, or if it is no JSON; LookupError or
        TypeError if keys are missing or unknown.
        """
        data = json.loads(text)
        # The digest is that of all other keys.
        stated_sha256 = data.pop("sha256", None)
        sha256 = _sha256(data)
        if stated_sha256 is not None and stated_sha256 != sha256:
            raise ValueError(
                "the content is not what its sha256 says: it was changed after it was measured"
            )
        version = data.pop("schema_version", 1)
        if version != SCHEMA_VERSION:
            raise ValueError(f"schema version {version} is not known here, {SCHEMA_VERSION} is")

        data["records"] = tuple(Record.from_json(record) for record in data["records"])
        data["claims"] = tuple(Claim.from_json(claim) for claim in data.get("claims", ()))
        return cls(**data, recorded_sha256=sha256)


def _sha256(data: Mapping[str, Any]) -> str:
    """Return the digest of JSON with sorted keys and without spaces."""
    # JSON turns keys that are numbers into text. Do that first, because text is sorted in another
    # order than numbers: `10` before `9`.
    as_read = json.loads(json.dumps(data))
    text = json.dumps(as_read, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def strict_json(value: Any) -> Any:
    """Return a value in a form that strict JSON can hold, with all that is nested in it.

    Not-a-number and infinity become text (`nan`), which no judge takes for a number. Bytes of a
    file's name that are no UTF-8 become escapes. Keys become text; sets and tuples become lists.
    """
    if isinstance(value, str):
        # Python keeps such a byte as a surrogate, which UTF-8 can't hold: `\udcff` is written out.
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {strict_json(str(key)): strict_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [strict_json(item) for item in value]
    return value
