"""One audit from beginning to end: survey, static checks of each environment, a run of its Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from images.audit import checks, expected, insight
from images.audit.containers import Limits, Reader, measured_by_its_python, user_json
from images.audit.judging import AUDIT_JUDGES
from images.audit.model import Audit, Check, Environment, LibraryCode, Outcome, Severity, Source
from images.config.facts import Facts
from images.engine import Engine, ImageInfo
from images.engine.gpus import NO_GPU, Attachment
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
    progress: Callable[[str], None] = lambda _text: None
    """Told what is being done."""

    def on_record(self, record: Record) -> None:
        self.progress(f"  {record.probe} in {record.seconds:.1f} s ({record.outcome})")


@dataclass(frozen=True, kw_only=True)
class Audited:
    """What an audit found, and what it was judged from: an entry for each environment."""

    audit: Audit
    evidence: tuple[Mapping[str, Any], ...]


def audit(engine: Engine, reference: str, facts: Facts, options: AuditOptions) -> Audited:
    """Audit an image that the engine has. Raises NoSuchImage, UserError where it can't be read at all."""
    info = engine.inspect(reference)
    reader = Reader(engine, info, options.limits)
    options.progress(f"reading {reference} ({info.id[:19]}, {info.size / 1e9:.2f} GB)")
    survey = reader.survey()
    environments = survey["environments"][:_MOST_ENVIRONMENTS]
    code = insight.library_code(survey)
    whole = _hygiene(reader, info, survey, options)
    found = [*checks.of_image(info, survey, list(credentials_of(engine, info))), *checks.from_verdict("", whole)]
    evidence = [_evidence("", whole)]
    for one in environments:
        found += checks.of_environment(one, survey["toolkits"])
        verdict, of_claims = _of_environment(engine, info, reader, one, code, facts, options)
        found += of_claims
        evidence.append(_evidence(str(one["prefix"]), verdict))
    for prefix in [str(one["prefix"]) for one in survey["environments"][_MOST_ENVIRONMENTS:]]:
        found.append(_left_out(prefix, f"{prefix}: more than {_MOST_ENVIRONMENTS} environments: not looked at"))
    for folder in survey["without_interpreter"]:
        found.append(_left_out(folder, f"{folder}: no interpreter belongs to this folder of packages: not looked at"))
    cuda = next((str(one["torch"].get("cuda", "")) for one in environments if one["torch"]), "")
    return Audited(
        audit=Audit(
            image=reference,
            digest=info.id,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            size=info.size,
            system=str(survey["system"]),
            user=info.user,
            checks=tuple(found),
            environments=tuple(
                Environment(
                    **{name: one[name] for name in ("prefix", "kind", "python", "version", "first")},
                    torch=str(one["torch"].get("version", "")),
                    cuda=str(one["torch"].get("cuda", "")),
                    distributions=len(one["distributions"]),
                )
                for one in environments
            ),
            device_code=code,
            runs=insight.runs(code, cuda),
            drivers=insight.drivers(environments, facts),
        ),
        evidence=tuple(evidence),
    )


def _hygiene(reader: Reader, info: ImageInfo, survey: Mapping[str, Any], options: AuditOptions) -> Verdict:
    """Leftovers and secrets in all files but those of packages, in whatever environment."""
    claims = expected.hygiene()
    folders = [folder for one in survey["environments"] for folder in one["path"]]
    empty = {"flags": {}, "environ": {}, "modules": {}, "standard": [], "version": "", "prefix": "", "found": {}}
    user = user_json(info, python="", start={"path": folders, **empty})
    return _judged(info, claims, reader.probes(claims, user, options.on_record))


def _of_environment(
    engine: Engine,
    info: ImageInfo,
    reader: Reader,
    environment: Mapping[str, Any],
    code: Sequence[LibraryCode],
    facts: Facts,
    options: AuditOptions,
) -> tuple[Verdict, list[Check]]:
    """The claims of one environment, measured and judged."""
    wanted = expected.expected(environment, code, _torch_code(environment, code), facts)
    prefix, version = str(environment["prefix"]), str(environment["version"])
    python = str(environment["python"])
    options.progress(f"{prefix}: Python {version}, {len(environment['distributions'])} distributions")
    user = user_json(info, python=python, start=environment["start"])
    records = reader.probes(wanted.claims.of([Tier.STATIC]), user, options.on_record)
    inside = ClaimSet(
        image=wanted.claims.image,
        claims=tuple(one for one in wanted.claims.claims if one.tier is not Tier.STATIC and not one.unproven),
    )
    not_run = ""
    if inside.claims and not options.run:
        not_run = "the image's Python was not run (--no-run)"
    elif inside.claims and tuple(int(part) for part in version.split(".") if part.isdigit()) < _OLDEST:
        not_run = f"the suite needs Python 3.10, this is {version}"
    elif inside.claims:
        options.progress(f"{prefix}: running {python}, without a network")
        records += measured_by_its_python(engine, info, python, inside, options.limits, options.gpus, options.on_record)
    verdict = _judged(info, wanted.claims, records)
    found = [
        replace(check, outcome=Outcome.NOT_MEASURED, text=not_run, hints=())
        if not_run and check.source is Source.RUN
        else check
        for check in checks.from_verdict(prefix, verdict)
    ]
    return verdict, [*found, *(_left_out(prefix, text) for text in wanted.left_out)]


def _left_out(environment: str, text: str) -> Check:
    outcome, severity = Outcome.NOT_MEASURED, Severity.NOTE
    return Check(id="A0", subject="scope", environment=environment, outcome=outcome, severity=severity, text=text)


def _judged(info: ImageInfo, claims: ClaimSet, records: Sequence[Record]) -> Verdict:
    evidence = Evidence(image=claims.image, digest=info.id, records=tuple(records), claims=claims.claims)
    return explain(judge(claims, evidence, judges=AUDIT_JUDGES), hints.known())


def _torch_code(environment: Mapping[str, Any], code: Sequence[LibraryCode]) -> Mapping[str, int]:
    """Bytes by architecture in the largest library of an environment's torch."""
    folder = str(environment["torch"].get("file", "")).rpartition("/")[0]
    own = [one.archs for one in code if folder and one.path.startswith(f"{folder}/lib/libtorch_cuda")]
    return max(own, key=lambda archs: sum(archs.values()), default={})


def _evidence(environment: str, verdict: Verdict) -> Mapping[str, Any]:
    return {
        "environment": environment,
        "claims": [
            {"id": one.claim.id, "subject": one.claim.subject, "expect": one.claim.expect, "evidence": one.evidence}
            for one in verdict.claims
            if one.evidence
        ],
    }
