"""What was ever judged: lines of results/, nightly runs, and the attestations of published images."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from images.config.names import ImageName
from images.errors import Problem, UserError
from images.nightly import results
from images.nightly.results import Job, JobLine, Outcome
from images.publish import attachments, index
from images.publish.attachments import PublishedImage
from images.publish.attestation import Attestation
from images.publish.tags import ImageVersion, immutable_tag
from images.registry.client import Registry
from images.site import records
from images.site.records import RunLine
from images.validation.rows import TierCount
from images.validation.schemas import ClaimVerdictRow, VerdictFile
from validate import hints, report
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
    driver: str = ""
    claims: tuple[ClaimVerdictRow, ...] = ()
    """Empty for nightly runs: their lines have only the claims that did not pass."""
    evidence: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    """Claim id and subject -> what was measured; empty where the evidence is not at hand."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Distribution -> version, as S1 measured them."""
    size: int = 0
    """Of the image, unpacked, in bytes; 0: not recorded."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """The files at hand, as they were written."""

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
    found = [(folder, line) for folder in folders or (records.FOLDER,) for line in records.read(folder)]
    for place, line in found:
        try:
            if not line.experiment:
                runs.append(_of_line(line, place))
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(problems, code=1)
    return tuple(runs)


def _of_line(line: RunLine, folder: Path) -> Run:
    run = Run(
        image=line.image,
        digest=line.digest,
        moment=line.date,
        tiers=line.tiers,
        source=f"{records.LINES} {line.id}",
        gpus=tuple(line.gpus),
        driver=line.driver,
        claims=tuple(_claims(line)),
        packages=line.packages,
        size=line.bytes,
    )
    if not line.kept:
        return run
    content = records.read_evidence(folder, line.id)
    verdict = records.judged_again(line, content)
    return replace(run, **_detailed(verdict), files={"evidence.json": content})


def _claims(line: RunLine) -> Iterator[ClaimVerdictRow]:
    """The claims of a line: with a reason those that are open, the others by name and verdict."""
    findings = {(one.tier, one.id, one.subject): one for one in line.findings}
    for tier, status, number, subject in line.each():
        known = findings.get((tier, number, subject))
        yield ClaimVerdictRow(
            id=number,
            tier=tier,
            subject=subject,
            required=known.required if known else True,
            verdict=status,
            reason=known.reason if known else "",
            seconds=0.0,
        )


def _detailed(verdict: Verdict) -> dict[str, Any]:
    """Claims, evidence and packages of a run whose evidence is at hand."""
    explained = explain(verdict.recorded, hints.known())
    return {
        "claims": tuple(VerdictFile.model_validate(report.json_data(explained)).claims),
        "evidence": {(one.claim.id, one.claim.subject): one.evidence for one in verdict.claims},
        "packages": records.packages(verdict.claims),
    }


def _object(content: bytes) -> dict[str, Any]:
    data = json.loads(content)
    if not isinstance(data, dict):
        raise ValueError("is no JSON object")
    return data


def _moment(text: Any) -> datetime | None:
    """A day alone is its beginning, UTC."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


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
            yield Run(
                image=line.image,
                digest=line.digest,
                moment=line.date,
                tiers=line.tiers,
                source=f"results/nightly/{line.date:%Y-%m}.jsonl",
                gpus=tuple(line.gpus),
                size=line.bytes,
            )


def published(
    registry: Registry, names: Sequence[str], key: str, say: Callable[[str], None]
) -> tuple[tuple[Published, ...], tuple[Run, ...]]:
    """The tags of these names that a registry has, and the attestations of what they name.

    With a key, only what its signature covers counts, and what is not signed is told. Raises UserError: no access, or
    an attestation whose verdict is not what its evidence says.
    """
    tags = set(registry.tags())
    found, attached = [], []
    for name in (name for name in names if name in tags):
        platform = ImageName.parse(name).platform
        remote = attachments.load(registry, index.select(registry, registry.get(name), platform))
        counted = attachments.counted(remote, key)
        if ignored := len(remote.statements) - len(counted.statements):
            say(f"{name}: {ignored} attachments are not signed with the key, and are ignored")
        found.append(_published(name, remote, tags))
        attached += [_attached(name, remote, number, one) for number, one in enumerate(counted.attestations, 1)]
    return tuple(found), tuple(attached)


def _published(name: str, remote: PublishedImage, tags: Collection[str]) -> Published:
    version = ImageVersion.of(remote.manifest.digest, remote.labels, remote.created)
    fixed = immutable_tag(name, version.created, remote.image_id) if version else ""
    return Published(
        image=name,
        reference=remote.reference,
        digest=remote.image_id,
        bytes=remote.compressed_size,
        tags=(name, *([fixed] if fixed in tags else [])),
    )


def _attached(name: str, remote: PublishedImage, number: int, attestation: Attestation) -> Run:
    if attestation.verdict.image != name:
        cause = f"its attestation is of {attestation.verdict.image}, the tag says {name}"
        raise UserError(Problem(where=remote.reference, cause=cause, then="publish it anew"), code=1)
    ImageName.parse(name)  # it becomes the path of a page
    host = _object(attestation.evidence_file).get("host") or {}
    detailed = _detailed(attestation.verdict)
    return Run(
        image=name,
        digest=attestation.verdict.digest,
        moment=_moment(host.get("date")),
        tiers=records.tier_counts(detailed["claims"]),
        source=f"{remote.reference} (attestation {number})",
        gpus=tuple(str(gpu.get("name", "")) for gpu in host.get("gpus") or ()),
        driver=str(host.get("driver") or ""),
        size=_size(attestation.verdict),
        files={"evidence.json": attestation.evidence_file},
        **detailed,
    )


def _size(verdict: Verdict) -> int:
    """As S8 measured it; 0 where it did not."""
    found = next((one.evidence for one in verdict.claims if (one.claim.id, one.claim.subject) == ("S8", "size")), {})
    size = found.get("bytes")
    return size if isinstance(size, int) else 0
