"""An audit: survey the files, write claims from what is installed, measure them, add what the survey saw."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from images.audit import expected, survey
from images.audit.cleaning import cleaned
from images.audit.device_code import LibraryCode, library_code
from images.config.facts import Facts
from images.engine import Engine
from images.errors import failed, wrong
from images.planning.chooser import Machine
from images.validation import own_python, validation_run
from validate import suite
from validate.claims import HOST_PROBE, Claim, ClaimSet, Tier
from validate.environment.user_environment import UserEnvironment
from validate.evidence import Evidence, MeasuredOn, Measurement, Outcome, Record

SURVEY_SECONDS = 1800
PREFIX = "audit of "
"""So begins the name of what was audited in evidence and verdict: no name of an image of ours does."""

Measured = dict[str, Mapping[str, Any]]
"""Subject -> what the survey shows of it."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What an image is audited for."""

    facts: Facts
    machine: Machine | None = None
    """Where it shall run; None: nobody asks."""
    run: bool = True
    """Whether the image's own Python runs, too."""
    say: Callable[[str], None]


def audit_image(engine: Engine, reference: str, options: Options) -> Evidence:
    """Measure an image of the engine. Raises UserError where it has no Python with packages."""
    info = engine.inspect(reference)
    options.say(f"reading {reference} ({info.id[:19]}, {info.size / 1e9:.2f} GB)")
    found = own_python.query_files(engine, info, "survey", timeout=SURVEY_SECONDS)
    found["preload"] = own_python.read_file(engine, info, own_python.PRELOAD).split()
    # Text of strangers is shown to people.
    files: dict[str, Any] = cleaned(found)
    if not files["environments"]:
        raise failed(
            reference,
            "has no Python with packages: there is nothing to audit",
            "name another image",
        )
    # The one that PATH finds first.
    environment = files["environments"][0]
    options.say(f"{environment['prefix']}: Python {environment['version']}")

    claims, seen = claims_and_survey(environment, files, options)
    claims += [*expected.image_claims(), *expected.of_rules(survey.OF_IMAGE)]
    others = [str(other["prefix"]) for other in files["environments"] if other is not environment]
    claims += expected.not_audited(
        dict.fromkeys(others, "only the environment that PATH finds first is audited")
    )
    seen |= cleaned(survey.image_evidence(info, files))

    whole = ClaimSet(image=f"{PREFIX}{reference}", claims=tuple(claims))
    tiers = (Tier.STATIC, Tier.CPU) if options.run else (Tier.STATIC,)
    to_measure = whole.where(lambda claim: claim.check != expected.AUDIT)
    measured = validation_run.validate(
        engine,
        info.id,
        to_measure,
        tiers,
        # Files of strangers are altered now and then: that is told, and the rest is measured all the same.
        run_anyway=True,
        on_record=lambda record: options.say(
            f"measured {record.probe} in {record.seconds:.1f} s ({record.outcome})"
        ),
    )
    records = [_cleaned(record) for record in measured.records]
    surveyed = whole.where(lambda claim: claim.check == expected.AUDIT)
    with_seen = with_survey(records, seen, measured.host.get("seed"))
    claims_of_both = (*measured.claims, *surveyed.claims)
    return replace(measured, records=with_seen, claims=claims_of_both)


def audit_folder(folder: Path, options: Options) -> Evidence:
    """Measure an environment's folder (a venv or conda prefix) of this machine. Nothing of it runs.

    Raises UserError: it is none.
    """
    sites = sorted(folder.resolve().glob("lib/python*/site-packages"))
    if not sites:
        then = "name an environment's own folder, the one with bin/ and lib/"
        raise wrong(
            str(folder), "is no Python environment: it has no lib/pythonX.Y/site-packages", then
        )
    with tempfile.TemporaryDirectory(prefix="truetag-audit-") as scratch:
        user: dict[str, Any] = {
            "environ": {},
            "directory": "/",
            "python": str(folder.resolve() / "bin" / "python3"),
        }
        file = Path(scratch, "user.json")
        file.write_text(json.dumps(user))
        command = [
            sys.executable,
            "-I",
            "-S",
            str(Path(suite.__file__).parent),
            "survey",
            str(file),
            str(sites[0]),
        ]
        files = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        if not files["environments"]:
            raise wrong(
                str(folder),
                "has no interpreter in its bin/",
                "make the environment again: it is not whole",
            )
        environment = files["environments"][0]

        claims, seen = claims_and_survey(environment, files, options)
        name = f"{PREFIX}{folder}"
        whole = ClaimSet(
            image=name, claims=tuple(claim for claim in claims if claim.tier is Tier.STATIC)
        )
        read = expected.readable_here(
            whole.where(lambda claim: claim.check != expected.AUDIT), environment
        )
        claims_file = Path(scratch, "claims.json")
        claims_file.write_text(read.dumps())
        looked_at = UserEnvironment(**user, start=environment["start"])
        records = list(suite.run(read, claims_file, jobs=os.cpu_count() or 1, user=looked_at))
    host: MeasuredOn = {"date": datetime.now(UTC).isoformat(timespec="seconds")}
    judged = (*read.claims, *whole.where(lambda claim: claim.check == expected.AUDIT).claims)
    return Evidence(
        image=name, digest="", records=with_survey(records, seen), host=host, claims=judged
    )


def claims_and_survey(
    environment: Mapping[str, Any], files: Mapping[str, Any], options: Options
) -> tuple[list[Claim], Measured]:
    """Return the claims about an environment, and what the survey has seen already of some of them."""
    code: Sequence[LibraryCode] = library_code(files)
    claims, left_out = expected.environment_claims(environment, code, options.facts)
    claims += [*expected.of_rules(survey.OF_ENVIRONMENT), *expected.not_audited(left_out)]
    claims.append(expected.conflicts_claim(options.facts))
    seen: Measured = dict(survey.environment_evidence(environment, files["toolkits"]))
    if options.machine:
        claims.append(expected.machine_claim(environment, code, options.facts, options.machine))
        archs = [f"{arch.major}{arch.minor}" for arch in options.machine.archs]
        seen[survey.MACHINE] = survey.machine_evidence(
            code, str(environment["torch"].get("cuda", "")), archs
        )
    return claims, seen


def with_survey(
    records: Sequence[Record], seen: Measured, seed: int | None = None
) -> tuple[Record, ...]:
    """Add what the survey saw to the record of what the host measures. `seed`: of the run."""
    others = [record for record in records if record.probe != HOST_PROBE]
    of_host = [record for record in records if record.probe == HOST_PROBE]
    host = (
        of_host[0]
        if of_host
        else Record(probe=HOST_PROBE, outcome=Outcome.COMPLETED, seconds=0.0, seed=seed)
    )
    measurements = [
        Measurement(subject=subject, seconds=0.0, evidence=evidence)
        for subject, evidence in seen.items()
    ]
    return (*others, replace(host, measurements=(*host.measurements, *measurements)))


def _cleaned(record: Record) -> Record:
    """Return a record with every text of the image made safe to show."""
    measurements = []
    for measurement in record.measurements:
        subject, evidence = cleaned(measurement.subject), cleaned(measurement.evidence)
        measurements.append(replace(measurement, subject=subject, evidence=evidence))
    return replace(record, measurements=tuple(measurements), log=str(cleaned(record.log)))
