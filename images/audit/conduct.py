"""One audit from beginning to end: survey, static checks of each environment, a run of its Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from images.audit import checks, expected, insight, running
from images.audit.judging import AUDIT_JUDGES
from images.audit.model import Audit, Check, Environment, LibraryCode, Outcome, Severity, Source
from images.audit.nearest import nearest
from images.audit.reading import Limits, Reader, user_json
from images.config.facts import Facts
from images.engine import Engine, ImageInfo
from images.engine.gpus import NO_GPU, Attachment
from images.planning.image import Image
from images.validation.run import credentials_of
from validate import hints
from validate.claims import ClaimSet, Tier
from validate.evidence import Evidence, Record
from validate.judge import Verdict, explain, judge

_MOST_ENVIRONMENTS = 8
_OLDEST = (3, 10)
"""The suite's oldest Python."""


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """How an image is audited."""

    run: bool = True
    """Also run the image's own Python."""
    gpus: Attachment = NO_GPU
    limits: Limits = field(default_factory=Limits)
    say: Callable[[str], None] = lambda _text: None
    """Told what is being done."""


@dataclass(frozen=True, kw_only=True)
class Audited:
    """What an audit found, and what it was judged from: an entry for each environment."""

    audit: Audit
    evidence: tuple[Mapping[str, Any], ...]


def audit(engine: Engine, reference: str, facts: Facts, images: Sequence[Image], options: AuditOptions) -> Audited:
    """Audit an image that the engine has. Raises NoSuchImage, UserError where it can't be read at all."""
    info = engine.inspect(reference)
    own = Reader(engine, info, options.limits)
    options.say(f"reading {reference} ({info.id[:19]}, {info.size / 1e9:.2f} GB)")
    survey = own.survey()
    environments = survey["environments"][:_MOST_ENVIRONMENTS]
    code = insight.library_code(survey)
    whole = _hygiene(own, info, survey, options)
    measured = [_measured(engine, info, own, one, code, facts, options) for one in environments]
    first = next((one for one in environments if one["torch"]), None)
    archs = [str(arch.major * 10 + arch.minor) for arch in expected.archs(_torch_code(first, code))] if first else []
    history = list(credentials_of(engine, info))
    found = Audit(
        image=reference,
        digest=info.id,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        size=info.size,
        system=str(survey["system"]),
        user=info.user,
        checks=tuple(_all_checks(info, survey, history, whole, measured)),
        environments=tuple(map(_environment, environments)),
        device_code=code,
        runs=insight.runs(code, str(first["torch"].get("cuda", "")) if first else ""),
        weights=insight.weights(code, archs),
        drivers=insight.drivers(environments, facts),
        licences=tuple(insight.licences(survey)),
        licence_files=tuple(survey["licences"]),
        nearest=nearest(first, images) if first else None,
    )
    return Audited(
        audit=found, evidence=(_evidence("", whole), *(_evidence(one.prefix, one.verdict) for one in measured))
    )


@dataclass(frozen=True, kw_only=True)
class _Measured:
    prefix: str
    survey: Mapping[str, Any]
    verdict: Verdict
    left_out: tuple[str, ...]
    not_run: str
    """Why its Python was not run; empty: it was."""


def _all_checks(
    info: ImageInfo,
    survey: Mapping[str, Any],
    history: Sequence[Mapping[str, str]],
    whole: Verdict,
    measured: Sequence[_Measured],
) -> Iterator[Check]:
    yield from checks.of_image(info, survey, history)
    yield from checks.from_verdict("", whole)
    for one in measured:
        yield from checks.of_environment(one.survey, survey["toolkits"])
        for check in checks.from_verdict(one.prefix, one.verdict):
            is_lost = one.not_run and check.source is Source.RUN
            yield replace(check, outcome=Outcome.NOT_MEASURED, text=one.not_run, hints=()) if is_lost else check
        for text in one.left_out:
            yield _left_out(one.prefix, text)
    for one in survey["environments"][_MOST_ENVIRONMENTS:]:
        yield _left_out(str(one["prefix"]), f"more than {_MOST_ENVIRONMENTS} environments: not looked at")
    for folder in survey["without_interpreter"]:
        yield _left_out(folder, "no interpreter belongs to this folder of packages: not looked at")


def _left_out(environment: str, text: str) -> Check:
    return Check(
        id="A0",
        subject="scope",
        environment=environment,
        outcome=Outcome.NOT_MEASURED,
        severity=Severity.NOTE,
        text=text,
    )


def _hygiene(own: Reader, info: ImageInfo, survey: Mapping[str, Any], options: AuditOptions) -> Verdict:
    """Leftovers and secrets in all files but those of packages, in whatever environment."""
    claims = expected.hygiene()
    folders = [folder for one in survey["environments"] for folder in one["path"]]
    start = {"path": folders, "flags": {}, "environ": {}, "modules": {}, "standard": [], "version": "", "prefix": ""}
    user = user_json(info, python="", start={**start, "found": {}})
    return _judged(info, claims, own.probes(claims, user, _teller(options)))


def _measured(
    engine: Engine,
    info: ImageInfo,
    own: Reader,
    environment: Mapping[str, Any],
    code: Sequence[LibraryCode],
    facts: Facts,
    options: AuditOptions,
) -> _Measured:
    wanted = expected.expected(environment, code, _torch_code(environment, code), facts)
    prefix, tell = str(environment["prefix"]), _teller(options)
    options.say(f"{prefix}: Python {environment['version']}, {len(environment['distributions'])} distributions")
    user = user_json(info, python=str(environment["python"]), start=environment["start"])
    records = own.probes(wanted.claims.of([Tier.STATIC]), user, tell)
    inside = ClaimSet(
        image=wanted.claims.image,
        claims=tuple(one for one in wanted.claims.claims if one.tier is not Tier.STATIC and not one.unproven),
    )
    not_run = _why_not_run(environment, options) if inside.claims else ""
    if inside.claims and not not_run:
        options.say(f"{prefix}: running {environment['python']}, without a network")
        run = running.Run(python=str(environment["python"]), claims=inside, limits=options.limits, gpus=options.gpus)
        records += running.records(engine, info, run, tell)
    verdict = _judged(info, wanted.claims, records)
    return _Measured(prefix=prefix, survey=environment, verdict=verdict, left_out=wanted.left_out, not_run=not_run)


def _why_not_run(environment: Mapping[str, Any], options: AuditOptions) -> str:
    if not options.run:
        return "the image's Python was not run (--no-run)"
    version = tuple(int(part) for part in str(environment["version"]).split(".") if part.isdigit())
    return f"the suite needs Python 3.10, this is {environment['version']}" if version < _OLDEST else ""


def _teller(options: AuditOptions) -> Callable[[Record], None]:
    return lambda record: options.say(f"  {record.probe} in {record.seconds:.1f} s ({record.outcome})")


def _judged(info: ImageInfo, claims: ClaimSet, records: Sequence[Record]) -> Verdict:
    evidence = Evidence(image=claims.image, digest=info.id, records=tuple(records), claims=claims.claims)
    return explain(judge(claims, evidence, judges=AUDIT_JUDGES), hints.known())


def _torch_code(environment: Mapping[str, Any] | None, code: Sequence[LibraryCode]) -> Mapping[str, int]:
    """Bytes by architecture in the largest library of an environment's torch."""
    file = str(environment["torch"].get("file", "")) if environment else ""
    folder = file.rpartition("/")[0]
    own = [one.archs for one in code if folder and one.path.startswith(f"{folder}/lib/libtorch_cuda")]
    return max(own, key=lambda archs: sum(archs.values()), default={})


def _environment(found: Mapping[str, Any]) -> Environment:
    torch = found["torch"]
    return Environment(
        prefix=str(found["prefix"]),
        kind=str(found["kind"]),
        python=str(found["python"]),
        version=str(found["version"]),
        first=bool(found["first"]),
        torch=str(torch.get("version", "")),
        cuda=str(torch.get("cuda", "")),
        distributions=len(found["distributions"]),
    )


def _evidence(environment: str, verdict: Verdict) -> Mapping[str, Any]:
    return {
        "environment": environment,
        "claims": [
            {"id": one.claim.id, "subject": one.claim.subject, "expect": one.claim.expect, "evidence": one.evidence}
            for one in verdict.claims
            if one.evidence
        ],
    }
