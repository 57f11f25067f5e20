"""What was ever judged: recorded trials in results/, nights, and the proofs attached to published images."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from images.config.matrix import ROOT
from images.config.names import ImageName
from images.errors import Problem, UserError
from images.nightly import results
from images.nightly.results import Leg, LegLine, Outcome, TierCount
from images.publish import gate, publication
from images.publish.publication import Remote
from images.registry.client import Registry
from images.validation.schemas import ClaimVerdictRow, VerdictFile
from validate.claims import Tier
from validate.judging import Status

FOLDER = ROOT / "results"
DATED = "run.json"
"""`{"date": "2026-11-21"}` beside a verdict whose evidence does not say when it was measured."""
_JUDGED = (Outcome.PASS, Outcome.FAIL, Outcome.XFAIL, Outcome.UNPROVEN)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One image, judged once. A verdict is of `digest` and of nothing else."""

    image: str
    digest: str
    moment: datetime | None
    """When it was measured. None: nobody wrote it down; then it counts as stale."""
    tiers: Mapping[Tier, TierCount]
    source: str
    """Where it is kept: `results/NAME/FOLDER`, a month's file of nights, or a published image."""
    gpus: tuple[str, ...] = ()
    """Names as the driver has them, one a GPU."""
    driver: str = ""
    claims: tuple[ClaimVerdictRow, ...] = ()
    """Empty for nights: they keep only what was not well."""
    size: int = 0
    """Of the image, unpacked, in bytes; 0: not recorded."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """The recorded files, as they were written."""

    @property
    def date(self) -> date | None:
        """UTC."""
        return self.moment.astimezone(UTC).date() if self.moment else None

    @property
    def packages(self) -> dict[str, str]:
        """Distribution -> version, as S1 measured them."""
        rows = (one for one in self.claims if one.id == "S1" and one.verdict is Status.PASS)
        found = {one.subject: gate.installed(one.evidence) for one in rows}
        return {name: version for name, version in found.items() if version}


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


def recorded(folder: Path = FOLDER) -> tuple[Run, ...]:
    """Every `FOLDER/NAME/WHERE/verdict.json`, evidence judged again. Raises UserError with everything that is wrong."""
    runs: list[Run] = []
    problems: list[Problem] = []
    for path in sorted(folder.glob("*/*/verdict.json")):
        try:
            runs.append(_recorded(path.parent, f"results/{path.parent.relative_to(folder)}"))
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(problems, code=1)
    return tuple(runs)


def _recorded(folder: Path, source: str) -> Run:
    names = ("verdict.json", "evidence.json", "build.json", DATED)
    files = {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}
    if "evidence.json" in files:
        gate.proof(files["verdict.json"], files["evidence.json"], str(folder))
    try:
        verdict = VerdictFile.model_validate_json(files["verdict.json"])
        evidence, built, dated = (_object(files.get(name, b"{}")) for name in names[1:])
    except (ValidationError, ValueError) as error:
        cause = f"can't be read: {str(error).splitlines()[0]}"
        then = "bring it back from git, or take the folder out"
        raise UserError(Problem(where=str(folder), cause=cause, then=then), code=1) from None
    host = evidence.get("host") or {}
    return _run(verdict, host, source, files, moment=_moment(host.get("date") or dated.get("date")), built=built)


def _run(
    verdict: VerdictFile,
    host: Mapping[str, Any],
    source: str,
    files: Mapping[str, bytes],
    *,
    moment: datetime | None,
    built: Mapping[str, Any],
) -> Run:
    ImageName.parse(verdict.image)  # it becomes the path of a page
    return Run(
        image=verdict.image,
        digest=verdict.digest,
        moment=moment,
        tiers=tier_counts(verdict.claims),
        source=source,
        gpus=tuple(str(gpu.get("name", "")) for gpu in host.get("gpus") or ()),
        driver=str(host.get("driver") or ""),
        claims=tuple(verdict.claims),
        size=_size(verdict, built),
        files={name: content for name, content in files.items() if name != DATED},
    )


def _size(verdict: VerdictFile, built: Mapping[str, Any]) -> int:
    """As the build recorded it, else as S8 measured it; 0 where neither did."""
    measured = (one.evidence for one in verdict.claims if (one.id, one.subject) == ("S8", "size"))
    found = built if built.get("digest") == verdict.digest else next(measured, {})
    size = found.get("bytes")
    return size if isinstance(size, int) else 0


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


def tier_counts(rows: Sequence[ClaimVerdictRow]) -> dict[Tier, TierCount]:
    """Each judged tier: FAIL if a required claim failed, PASS only if there are required ones and all passed."""
    found = {}
    for tier in Tier:
        own = [row for row in rows if row.tier is tier]
        if own:
            required = [row.verdict for row in own if row.required]
            counts = Counter(row.verdict for row in own)
            in_order = {status: counts[status] for status in Status if counts[status]}
            found[tier] = TierCount(verdict=_worst(required), counts=in_order)
    return found


def _worst(required: Sequence[Status]) -> Status:
    if Status.FAIL in required:
        return Status.FAIL
    return Status.PASS if required and set(required) == {Status.PASS} else Status.UNPROVEN


def newest_first(found: Iterable[Run]) -> list[Run]:
    """What nobody dated is the oldest."""
    beginning = datetime.min.replace(tzinfo=UTC)
    return sorted(found, key=lambda run: (run.moment or beginning, run.source), reverse=True)


def of_nights(lines: Sequence[LegLine | results.BreakageLine]) -> Iterator[Run]:
    """The control legs that were judged. A canary is of other versions than the image that people get."""
    for line in lines:
        if not isinstance(line, LegLine) or line.leg is not Leg.CONTROL or line.ranges:
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
    """The tags of these names that a registry has, and the proofs that are attached to what they mean.

    With a key, only what its signature covers is believed, and what is not signed is told. Raises UserError: no access,
    or an attached proof that its evidence denies.
    """
    tags = set(registry.tags())
    found, attached = [], []
    for name in (name for name in names if name in tags):
        remote = publication.load(registry, registry.get(name))
        if key:
            try:
                remote = publication.believed(remote, key)
            except UserError as error:
                say(f"{name}: {error.problems[0].cause}: its proofs are not believed")
                remote = replace(remote, attached=())
        found.append(_published(name, remote, tags))
        attached += [_attached(name, remote, number, proof) for number, proof in enumerate(remote.proofs, 1)]
    return tuple(found), tuple(attached)


def _published(name: str, remote: Remote, tags: Collection[str]) -> Published:
    fixed = gate.immutable_tag(name, remote.standing.created, remote.image_id) if remote.standing else ""
    return Published(
        image=name,
        reference=remote.reference,
        digest=remote.image_id,
        bytes=sum(layer.size for layer in remote.manifest.layers),
        tags=(name, *([fixed] if fixed in tags else [])),
    )


def _attached(name: str, remote: Remote, number: int, proof: gate.Proof) -> Run:
    if proof.verdict.image != name:
        cause = f"its proof is of {proof.verdict.image}, the tag says {name}"
        raise UserError(Problem(where=remote.reference, cause=cause, then="publish it anew"), code=1)
    host = _object(proof.evidence_file).get("host") or {}
    verdict = VerdictFile.model_validate_json(proof.verdict_file)
    files = {"verdict.json": proof.verdict_file, "evidence.json": proof.evidence_file}
    source = f"{remote.reference} (proof {number})"
    return _run(verdict, host, source, files, moment=_moment(host.get("date")), built={})
