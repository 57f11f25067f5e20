"""One audit from beginning to end: survey, static checks of each environment, a run of its Python.

Its containers have no network, and bounded memory and output. In most, our own Python reads the image's files as root,
and nothing of the image runs. In one of its own the image's Python runs, as the image's user, without rights: what it
prints is the word of strangers, and the report says so. All text of the image goes through `cleaned`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from images.audit import checks, expected
from images.audit.cleaning import cleaned
from images.audit.expected import AUDIT_JUDGES
from images.audit.model import Audit, Check, Environment, LibraryCode, Outcome, Severity, Source
from images.config.facts import Facts
from images.engine import ContainerSpec, Engine, ImageInfo
from images.engine.runtime import Stopped
from images.planning.chooser import Machine
from images.validation import own_python
from images.validation.containers import INSIDE, run_suite, suite_files
from images.validation.host_look import credentials_of
from validate.checks import settings
from validate.claims import Claim, ClaimSet
from validate.evidence import Evidence, Record
from validate.evidence import Outcome as ProbeOutcome
from validate.judge import Verdict, explain, judge

_MOST_ENVIRONMENTS = 8
_OLDEST = (3, 10)
_GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """How an image is audited."""

    run: bool = True
    machine: Machine | None = None
    """Where it shall run."""
    timeout: float = 1800
    """Of each container."""
    progress: Callable[[str], None] = lambda _text: None

    def on_record(self, record: Record) -> None:
        self.progress(f"  {record.probe} in {record.seconds:.1f} s ({record.outcome})")


def audit(
    engine: Engine, reference: str, facts: Facts, options: AuditOptions
) -> tuple[Audit, Sequence[Mapping[str, Any]]]:
    """Audit an image that the engine has. Returns also what it was judged from: an entry for each environment.

    Raises NoSuchImage, UserError where it can't be read at all.
    """
    info = engine.inspect(reference)
    options.progress(f"reading {reference} ({info.id[:19]}, {info.size / 1e9:.2f} GB)")
    survey = _survey(engine, info, options)
    environments = survey["environments"][:_MOST_ENVIRONMENTS]
    code = checks.library_code(survey)
    # Leftovers and secrets in all files but those of packages, in whatever environment.
    folders = [folder for one in survey["environments"] for folder in one["path"]]
    empty = {"optimize": 0, "modules": {}, "version": "", "prefix": ""}
    hygiene = expected.hygiene()
    whole = judged(
        info.id,
        hygiene,
        _read(engine, info, hygiene, own_python.user_of(info, start={"path": folders, **empty}), options),
    )
    found = [*checks.of_image(info, survey, list(credentials_of(engine, info))), *checks.from_verdict("", whole)]
    evidence = [evidence_of("", whole)]
    for one in environments:
        found += checks.of_environment(one, survey["toolkits"])
        found += checks.of_versions(one, facts)
        found += checks.of_machine(one, code, facts, options.machine) if options.machine and one["torch"] else ()
        verdict, of_claims = _of_environment(engine, info, one, code, facts, options)
        found += of_claims
        evidence.append(evidence_of(str(one["prefix"]), verdict))
    for prefix in [str(one["prefix"]) for one in survey["environments"][_MOST_ENVIRONMENTS:]]:
        found.append(left_out(prefix, f"{prefix}: more than {_MOST_ENVIRONMENTS} environments: not looked at"))
    for folder in survey["without_interpreter"]:
        found.append(left_out(folder, f"{folder}: no interpreter belongs to this folder of packages: not looked at"))
    cuda = next((str(one["torch"].get("cuda", "")) for one in environments if one["torch"]), "")
    return (
        Audit(
            image=reference,
            digest=info.id,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            size=info.size,
            system=str(survey["system"]),
            user=info.user,
            checks=tuple(found),
            environments=tuple(environment_of(one) for one in environments),
            device_code=code,
            runs=checks.runs(code, cuda),
            drivers=checks.drivers(environments, facts),
        ),
        evidence,
    )


def environment_of(found: Mapping[str, Any]) -> Environment:
    """A surveyed environment, as the report has it."""
    return Environment(
        **{name: found[name] for name in ("prefix", "kind", "python", "version", "first")},
        torch=str(found["torch"].get("version", "")),
        cuda=str(found["torch"].get("cuda", "")),
        distributions=len(found["distributions"]),
    )


def _of_environment(
    engine: Engine,
    info: ImageInfo,
    environment: Mapping[str, Any],
    code: Sequence[LibraryCode],
    facts: Facts,
    options: AuditOptions,
) -> tuple[Verdict, list[Check]]:
    """The claims of one environment, measured and judged."""
    claims, unknown = expected.expected(environment, code, facts)
    prefix, version = str(environment["prefix"]), str(environment["version"])
    python = str(environment["python"])
    options.progress(f"{prefix}: Python {version}, {len(environment['distributions'])} distributions")
    user = own_python.user_of(info, python=python, start=environment["start"])
    records = _read(engine, info, claims.where(_is_read), user, options)
    running = [one for one in claims.claims if not _is_read(one) and not one.unproven]
    not_run = ""
    if running and not options.run:
        not_run = "the image's Python was not run (--no-run)"
    elif running and tuple(int(part) for part in version.split(".") if part.isdigit()) < _OLDEST:
        not_run = f"the suite needs Python 3.10, this is {version}"
    elif running:
        options.progress(f"{prefix}: running {python}, without a network")
        records += _run(engine, info, python, replace(claims, claims=tuple(running)), options)
    verdict = judged(info.id, claims, records)
    found = [
        replace(check, outcome=Outcome.NOT_MEASURED, text=not_run, hints=())
        if not_run and check.source is Source.RUN
        else check
        for check in checks.from_verdict(prefix, verdict)
    ]
    return verdict, [*found, *(left_out(prefix, text) for text in unknown)]


def _is_read(one: Claim) -> bool:
    return settings(one.probe).reads_files_only


def left_out(environment: str, text: str) -> Check:
    outcome, severity = Outcome.NOT_MEASURED, Severity.NOTE
    return Check(check="audit", subject="scope", environment=environment, outcome=outcome, severity=severity, text=text)


def judged(digest: str, claims: ClaimSet, records: Sequence[Record]) -> Verdict:
    evidence = Evidence(image=claims.image, digest=digest, records=tuple(records), claims=claims.claims)
    return explain(judge(claims, evidence, judges=AUDIT_JUDGES))


def evidence_of(environment: str, verdict: Verdict) -> Mapping[str, Any]:
    return {
        "environment": environment,
        "claims": [
            {
                "check": one.claim.check,
                "subject": one.claim.subject,
                "expect": one.claim.expect,
                "evidence": one.evidence,
            }
            for one in verdict.claims
            if one.evidence
        ],
    }


def _survey(engine: Engine, image: ImageInfo, options: AuditOptions) -> Mapping[str, Any]:
    """What the image has (validate/survey/main.py). Raises UserError where that can't be read."""
    found = own_python.document(engine, image, "survey", timeout=options.timeout)
    told: dict[str, Any] = cleaned(
        {**found, "preload": own_python.read_file(engine, image, own_python.PRELOAD).split()}
    )
    return told


def _read(engine: Engine, image: ImageInfo, claims: ClaimSet, user: bytes, options: AuditOptions) -> list[Record]:
    """The records of static probes, measured for one Python environment."""
    found: list[Record] = []

    def on_record(record: Record) -> None:
        found.append(_cleaned(record))
        options.on_record(found[-1])

    more = ["--timeout", str(options.timeout / 2)]
    own_python.measure(engine, image, claims, user, on_record, *more, timeout=options.timeout)
    return found


def _run(engine: Engine, image: ImageInfo, python: str, claims: ClaimSet, options: AuditOptions) -> list[Record]:
    """What the image's own Python measured: a record of each probe that was asked for, also of one that left none."""
    command = [python, "-I", "-S", f"{INSIDE}/validate", "--claims", f"{INSIDE}/claims.json", "--tier", "cpu"]
    writable = ("/tmp", image.env.get("HOME") or "/root")
    spec = ContainerSpec(
        image.id,
        [*command, "--timeout", str(options.timeout / 2)],
        tmpfs=dict.fromkeys(writable, f"rw,exec,nosuid,nodev,mode=1777,size={4 * _GIB}"),
        volumes=[INSIDE],
        memory=min(12 * _GIB, engine.facts.memory * 3 // 4),
        processes=1024,
        capabilities=[],
    )
    asked = list(dict.fromkeys(claim.probe for claim in claims.claims))
    found: dict[str, Record] = {}

    def on_record(record: Record) -> None:
        found[record.probe] = _cleaned(record)
        options.on_record(found[record.probe])

    end, files = "", {INSIDE: suite_files(claims)}
    try:
        run_suite(engine, spec, files, timeout=options.timeout, asked=asked, on_record=on_record)
    except Stopped as error:
        end = f": the container {error.problems[0].cause}"
    lost = f"the image's Python left no record of it{end}"
    silent = ProbeOutcome.SILENT
    return [found.get(one) or Record(probe=one, outcome=silent, seconds=0.0, log=lost) for one in asked]


def _cleaned(record: Record) -> Record:
    found = (replace(one, subject=cleaned(one.subject), evidence=cleaned(one.evidence)) for one in record.measurements)
    return replace(record, probe=cleaned(record.probe), measurements=tuple(found), log=str(cleaned(record.log)))
