"""What an audit gives back. Its words are its own: there is no PASS, as nobody said what the image should be."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from validate.hints import Hint

NO_VALIDATION = (
    "This is an audit, not a validation: it reports faults that were found by general rules. "
    "It says nothing of what the image was meant to hold, and gives no verdict, name or tag."
)


class Severity(StrEnum):
    """How much a fault matters."""

    ERROR = "error"
    """Something is broken, or gives wrong results."""
    WARNING = "warning"
    """Something may break, misleads, or is waste."""
    NOTE = "note"


class Outcome(StrEnum):
    """How a check ended."""

    FAULT = "fault"
    NONE = "no fault found"
    NOT_MEASURED = "not measured"


class Source(StrEnum):
    """Whose word a check takes."""

    FILES = "files"
    """Our own Python read the image's files; nothing of the image ran."""
    ENGINE = "engine"
    """The engine's description of the image."""
    RUN = "run"
    """The image's own programs ran, without a network: a hostile image may make them lie."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One rule, held against one environment or the whole image."""

    check: str
    """files, triton: as in docs/validation.md; audit: docs/audit.md."""
    subject: str
    environment: str = ""
    """Prefix of a Python environment; empty: the whole image."""
    outcome: Outcome
    severity: Severity
    text: str
    source: Source = Source.FILES
    hints: tuple[Hint, ...] = ()
    fix: str = ""
    """What to do where no hint is known."""
    seconds: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.check}/{self.subject}"


@dataclass(frozen=True, kw_only=True)
class Environment:
    """One Python environment, as the files say."""

    prefix: str
    kind: str
    python: str
    version: str
    first: bool
    torch: str
    """Version; empty: it has none."""
    cuda: str
    """CUDA that torch was built for; empty: not known, or none."""
    distributions: int


@dataclass(frozen=True, kw_only=True)
class LibraryCode:
    """The device code of one library."""

    path: str
    owner: str
    nvidia: bool
    archs: Mapping[str, int]
    """`sm_90` or `compute_90` -> bytes."""
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Runs:
    """How one package's libraries run on one GPU architecture: `machine code`, `PTX` or `no`."""

    package: str
    libraries: int
    on: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Everything that an audit found of one image."""

    image: str
    digest: str
    date: str
    size: int
    """Bytes."""
    system: str
    user: str
    checks: tuple[Check, ...]
    environments: tuple[Environment, ...] = ()
    device_code: tuple[LibraryCode, ...] = ()
    runs: tuple[Runs, ...] = ()
    drivers: tuple[str, ...] = ()
    """What each CUDA in it asks of the host."""

    def faults(self, *severities: Severity) -> tuple[Check, ...]:
        """Checks that found something, the gravest first."""
        wanted = severities or tuple(Severity)
        found = [one for one in self.checks if one.outcome is Outcome.FAULT and one.severity in wanted]
        return tuple(sorted(found, key=lambda one: list(Severity).index(one.severity)))

    def of(self, outcome: Outcome) -> tuple[Check, ...]:
        return tuple(one for one in self.checks if one.outcome is outcome)
