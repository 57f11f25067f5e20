"""What was ever judged: lines of results/, nightly runs, and the attestations of published images."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from images.config.names import ImageName
from images.errors import failed
from images.nightly import results
from images.nightly.results import Job, JobLine, Outcome
from images.publish import attachments
from images.publish.tags import ImageVersion, immutable_tag
from images.registry.client import Registry
from images.site import records
from images.site.records import RunLine
from images.validation.rows import ClaimRow, TierCount
from validate.claims import Tier

_JUDGED = (Outcome.PASS, Outcome.FAIL, Outcome.UNPROVEN)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One image, validated once. The verdicts hold for `digest` and for nothing else."""

    image: str
    digest: str
    moment: datetime | None
    """When it was measured. None: not recorded; then it counts as stale."""
    tiers: Mapping[Tier, TierCount]
    source: str
    """Where it is recorded: a line of runs.jsonl, a month's file of nightly runs, or a published image."""
    gpus: tuple[str, ...] = ()
    """Names as the driver has them, one a GPU."""
    claims: tuple[ClaimRow, ...] = ()
    """Those that are open have a reason. Empty for nightly runs: their lines have only claims that did not pass."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Distribution -> version, as `pins` measured them."""
    size: int = 0
    """Of the image, unpacked, in bytes; 0: not recorded."""

    @property
    def date(self) -> date | None:
        """UTC."""
        return self.moment.astimezone(UTC).date() if self.moment else None


@dataclass(frozen=True, kw_only=True)
class Published:
    """A tag of an image's own name, as a registry has it."""

    image: str
    reference: str
    """`HOST/NAME@sha256:...`."""
    digest: str
    """Of its configuration: the one that verdicts name."""
    bytes: int
    """Sum of the compressed layers: what a pull transfers."""
    tags: tuple[str, ...]


def recorded(folders: Iterable[Path]) -> list[Run]:
    """Return the runs of each FOLDER/runs.jsonl but experiments. Raises UserError with all lines that can't be read."""
    runs = []
    for folder in folders:
        for line in records.read(folder):
            if not line.experiment:
                runs.append(_of_line(line, f"{records.LINES} {line.id}"))
    return runs


def _of_line(line: RunLine, source: str) -> Run:
    return _run(line, source, claims=tuple(line.rows()), packages=line.packages)


def _run(line: RunLine | JobLine, source: str, **more: Any) -> Run:
    return Run(
        image=line.image,
        digest=line.digest,
        moment=line.date,
        tiers=line.tiers,
        source=source,
        gpus=tuple(line.gpus),
        size=line.bytes,
        **more,
    )


def newest_first(found: Iterable[Run]) -> list[Run]:
    """Runs without a date come last."""
    beginning = datetime.min.replace(tzinfo=UTC)
    return sorted(found, key=lambda run: (run.moment or beginning, run.source), reverse=True)


def of_nightly(lines: Sequence[JobLine | results.BreakageLine]) -> Iterator[Run]:
    """The control jobs with a verdict. A canary has other versions than the image that people get."""
    for line in lines:
        if not isinstance(line, JobLine) or line.job is not Job.CONTROL:
            continue
        if line.outcome in _JUDGED and line.digest:
            yield _run(line, f"results/nightly/{line.date:%Y-%m}.jsonl")


def published(
    registry: Registry, names: Sequence[str], key: str, report_progress: Callable[[str], None]
) -> tuple[list[Published], list[Run]]:
    """Return the tags of these names that a registry has, and the attestations of what they name.

    With a key, only what its signature covers counts, and what is not signed is reported. Raises UserError: no access,
    or an attestation whose verdict is not what its evidence says.
    """
    tags = set(registry.tags())
    found, attached = [], []
    for name in names:
        if name not in tags:
            continue
        platform = ImageName.parse(name).platform
        remote = attachments.load(registry, registry.get(name), platform=platform)
        counted = attachments.drop_untrusted(remote, key)
        if ignored := len(remote.statements) - len(counted.statements):
            report_progress(
                f"{name}: {ignored} attachments are not signed with the key, and are ignored"
            )

        version = ImageVersion.of(remote.labels, remote.created)
        fixed = immutable_tag(name, version.created, remote.image_id) if version else ""
        found.append(
            Published(
                image=name,
                reference=remote.reference,
                digest=remote.image_id,
                bytes=remote.compressed_size,
                tags=(name, fixed) if fixed in tags else (name,),
            )
        )
        for number, attestation in enumerate(counted.attestations, 1):
            verdict = attestation.verdict
            if verdict.image != name:
                cause = f"its attestation is of {verdict.image}, the tag says {name}"
                raise failed(remote.reference, cause, "publish it anew")
            line = records.line_of(attestation.evidence, verdict, f"attestation-{number}")
            attached.append(_of_line(line, f"{remote.reference} (attestation {number})"))
    return found, attached
