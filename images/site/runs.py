"""What was ever judged: lines of results/, nightly runs, and the attestations of published images."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from images.config.names import ImageName
from images.errors import Problem, UserError, failed
from images.nightly import results
from images.nightly.results import Job, JobLine, Outcome
from images.publish import attachments
from images.publish.tags import ImageVersion, immutable_tag
from images.registry.client import Registry
from images.site import records
from images.site.records import RunLine
from images.validation.rows import ClaimVerdictRow, StepRow, TierCount, VerdictFile
from validate import report
from validate.claims import Tier
from validate.judge import Verdict, explain

_JUDGED = (Outcome.PASS, Outcome.FAIL, Outcome.XFAIL, Outcome.UNPROVEN)


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
    claims: tuple[ClaimVerdictRow, ...] = ()
    """Empty for nightly runs: their lines have only the claims that did not pass."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Distribution -> version, as `pins` measured them."""
    size: int = 0
    """Of the image, unpacked, in bytes; 0: not recorded."""
    steps: Mapping[str, StepRow] = field(default_factory=dict)
    """Subject of `step` -> the training step."""

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


def recorded(*folders: Path) -> tuple[Run, ...]:
    """The runs of FOLDER/runs.jsonl (none given: results/) but experiments; kept evidence is judged again.

    Raises UserError with everything that is wrong: a line that can't be read, or that its evidence contradicts.
    """
    runs: list[Run] = []
    problems: list[Problem] = []
    for folder in folders or (records.FOLDER,):
        for line in (one for one in records.read(folder) if not one.experiment):
            run = _of_line(line, f"{records.LINES} {line.id}")
            try:
                if line.kept:
                    content = records.read_evidence(folder, line.id)
                    run = _with_verdict(run, records.judged_again(line, content))
            except UserError as error:
                problems += error.problems
            runs.append(run)
    if problems:
        raise UserError(problems, code=1)
    return tuple(runs)


def _of_line(line: RunLine, source: str) -> Run:
    """Claims that are open have their reasons, the others name and verdict."""
    findings = {(one.tier, one.check, one.subject): one for one in line.findings}
    claims = []
    for tier, status, check, subject in line.each():
        row = ClaimVerdictRow(
            check=check, tier=tier, subject=subject, required=True, verdict=status, reason="", seconds=0.0
        )
        if known := findings.get((tier, check, subject)):
            row = row.model_copy(update={"required": known.required, "reason": known.reason})
        claims.append(row)
    return _run(line, source, claims=tuple(claims), packages=line.packages)


def _run(line: RunLine | JobLine, source: str, **more: Any) -> Run:
    return Run(
        image=line.image,
        digest=line.digest,
        moment=line.date,
        tiers=line.tiers,
        source=source,
        gpus=tuple(line.gpus),
        size=line.bytes,
        steps=line.steps,
        **more,
    )


def _with_verdict(run: Run, verdict: Verdict) -> Run:
    """Add what only the evidence has: reasons and hints of every claim, the size and the packages."""
    measured = {(one.claim.check, one.claim.subject): one.evidence for one in verdict.claims}
    size = measured.get(("image", "size"), {}).get("bytes", 0)
    return replace(
        run,
        claims=tuple(VerdictFile.model_validate(report.json_data(explain(verdict))).claims),
        size=run.size or size,
        packages=records.packages(verdict.claims),
    )


def newest_first(found: Iterable[Run]) -> list[Run]:
    """Runs without a date come last."""
    beginning = datetime.min.replace(tzinfo=UTC)
    return sorted(found, key=lambda run: (run.moment or beginning, run.source), reverse=True)


def of_nightly(lines: Sequence[JobLine | results.BreakageLine]) -> Iterator[Run]:
    """The control jobs with a verdict. A canary has other versions than the image that people get."""
    for line in lines:
        if not isinstance(line, JobLine) or line.job is not Job.CONTROL or line.ranges:
            continue
        if line.outcome in _JUDGED and line.digest:
            yield _run(line, f"results/nightly/{line.date:%Y-%m}.jsonl")


def published(
    registry: Registry, names: Sequence[str], key: str, report_progress: Callable[[str], None]
) -> tuple[tuple[Published, ...], tuple[Run, ...]]:
    """The tags of these names that a registry has, and the attestations of what they name.

    With a key, only what its signature covers counts, and what is not signed is reported. Raises UserError: no access,
    or an attestation whose verdict is not what its evidence says.
    """
    tags = set(registry.tags())
    found, attached = [], []
    for name in (name for name in names if name in tags):
        platform = ImageName.parse(name).platform
        remote = attachments.load(registry, registry.get(name), platform=platform)
        counted = attachments.counted(remote, key)
        if ignored := len(remote.statements) - len(counted.statements):
            report_progress(f"{name}: {ignored} attachments are not signed with the key, and are ignored")
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
        for number, one in enumerate(counted.attestations, 1):
            if one.verdict.image != name:
                cause = f"its attestation is of {one.verdict.image}, the tag says {name}"
                raise failed(remote.reference, cause, "publish it anew")
            line = records.line_of(one.evidence, one.verdict, f"attestation-{number}")
            run = _of_line(line, f"{remote.reference} (attestation {number})")
            attached.append(_with_verdict(run, one.verdict))
    return tuple(found), tuple(attached)
