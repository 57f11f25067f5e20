"""Run an audit: survey the files, write claims from what is installed, and measure them.

Some claims are decided by what the survey saw. Its evidence is added to what was measured.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from images.audit import expected, machine, survey
from images.audit.cleaning import clean_value
from images.audit.device_code import library_code
from images.audit.survey import Survey, SurveyedEnvironment
from images.config.facts import Facts
from images.config.platforms import Platform, of_machine
from images.engine import Engine, ImageInfo
from images.errors import failed, wrong
from images.planning.chooser import Machine
from images.validation import own_python, validation_run
from validate import suite
from validate.claims import AUDIT_OF, HOST_PROBE, Claim, ClaimSet, Tier
from validate.environment.user_environment import UserEnvironment
from validate.evidence import Evidence, Measurement, Outcome, Record

SURVEY_SECONDS = 1800
"""How long the survey of an image's files may take."""
NAME_A_FOLDER = (
    "name the environment's own folder, which has bin/ and lib/: while it is active, "
    "`echo $VIRTUAL_ENV` or `echo $CONDA_PREFIX` prints it"
)

SurveyEvidence = dict[str, Mapping[str, Any]]
"""Subject of a claim -> the evidence for it that the survey has."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What an image or a folder is audited for."""

    facts: Facts
    machine: Machine | None = None
    """The machine that it shall run on, if one was named."""
    run: bool = True
    """Whether the image's own Python runs, too. Without it, files are only read."""
    say: Callable[[str], None]
    """Shows a line about the progress."""


class SurveyedClaims(NamedTuple):
    """The claims of an audit, and the evidence for those of them that the survey decides."""

    claims: list[Claim]
    evidence: SurveyEvidence


def audit_image(engine: Engine, reference: str, options: Options) -> Evidence:
    """Audit an image of the engine, and return the claims with their evidence, not yet judged.

    Of several Python environments in it, the one that PATH finds first is audited. Raises UserError
    if the image has none.
    """
    info = engine.inspect(reference)
    options.say(f"reading {reference} ({info.digest[:19]}, {info.size / 1e9:.2f} GB)")
    survey_of_image = _survey_image(engine, info)
    environments = survey_of_image["environments"]
    if not environments:
        raise failed(
            reference,
            "has no Python with installed packages, so there is nothing to audit",
            "name an image that has one, or the folder of a Python environment",
        )
    environment = environments[0]
    options.say(f"found the environment {environment['prefix']}: Python {environment['version']}")

    claims, survey_evidence = _claims_about_environment(environment, survey_of_image, options)
    claims += expected.image_claims()
    claims += expected.rule_claims(survey.OF_IMAGE)
    # An environment that nobody looked at must not seem sound: each gets an unproven claim.
    other_prefixes = [str(other["prefix"]) for other in environments[1:]]
    claims += expected.unaudited_claims(
        dict.fromkeys(other_prefixes, "only the environment that PATH finds first is audited")
    )
    survey_evidence |= clean_value(survey.image_evidence(info, survey_of_image))

    def say_measured(record: Record) -> None:
        options.say(record.progress_line())

    to_measure, from_survey = _split(ClaimSet(image=f"{AUDIT_OF}{reference}", claims=tuple(claims)))
    tiers = (Tier.STATIC, Tier.CPU) if options.run else (Tier.STATIC,)
    measured = validation_run.validate(
        engine,
        info.handle,
        to_measure,
        tiers,
        # Strangers' images often have altered files. This is reported, and the rest is measured.
        run_anyway=True,
        on_record=say_measured,
    )
    records = [_cleaned_record(record) for record in measured.records]
    return replace(
        measured,
        records=_with_survey_evidence(records, survey_evidence, measured.host.get("seed")),
        claims=(*measured.claims, *from_survey.claims),
    )


def _survey_image(engine: Engine, info: ImageInfo) -> Survey:
    """Return the survey of an image's files, with `preload` added and all texts made safe to show.

    Nothing of the image runs.
    """
    document = own_python.query_files(engine, info, "survey", timeout=SURVEY_SECONDS)
    document["preload"] = own_python.read_file(engine, info, own_python.PRELOAD).split()
    cleaned: Survey = clean_value(document)
    return cleaned


def audit_folder(folder: Path, options: Options) -> Evidence:
    """Audit an environment's folder (a venv or conda prefix) of this machine.

    Nothing of the environment runs: truetag's own Python reads its files. Only claims of the static
    tier are measured. Raises UserError if the folder is no environment, or is incomplete.
    """
    package_folders = sorted(folder.resolve().glob("lib/python*/site-packages"))
    if not package_folders:
        raise wrong(
            str(folder),
            "is no Python environment: it has no lib/pythonX.Y/site-packages",
            NAME_A_FOLDER,
        )
    # How the environment's user would start Python (UserEnvironment). Variables of this process
    # count for nothing.
    user: dict[str, Any] = {
        "environ": {},
        "directory": "/",
        "python": str(folder.resolve() / "bin" / "python3"),
    }
    with tempfile.TemporaryDirectory(prefix="truetag-audit-") as scratch:
        survey_of_folder = _survey_folder(package_folders[0], user, Path(scratch))
        if not survey_of_folder["environments"]:
            raise wrong(
                str(folder),
                "has packages, but no Python interpreter in its bin/",
                "name the folder of a whole environment; or create this one anew "
                "(`python3 -m venv`, `uv venv` or `conda create`), install its packages, then "
                "audit it again",
            )
        environment = survey_of_folder["environments"][0]

        claims, survey_evidence = _claims_about_environment(environment, survey_of_folder, options)
        static_claims = tuple(claim for claim in claims if claim.tier is Tier.STATIC)
        name = f"{AUDIT_OF}{folder}"
        to_measure, from_survey = _split(ClaimSet(image=name, claims=static_claims))
        why_unmeasured = expected.why_not_loadable(environment, of_machine(os.uname().machine))
        python = str(environment["version"])
        to_measure = expected.adapt_to_folder(to_measure, python, why_unmeasured)
        # What was not measured is said first, and not only at the end of the report.
        if why_unmeasured:
            options.say(f"{folder}: what its libraries need is {why_unmeasured}")

        claims_file = Path(scratch, "claims.json")
        claims_file.write_text(to_measure.dumps())
        of_folder = UserEnvironment(**user, start=environment["start"])
        jobs = os.cpu_count() or 1
        records = list(suite.run(to_measure, claims_file, jobs=jobs, user=of_folder))
    return Evidence(
        image=name,
        digest="",
        records=_with_survey_evidence(records, survey_evidence),
        host={"date": datetime.now(UTC).isoformat(timespec="seconds")},
        claims=(*to_measure.claims, *from_survey.claims),
    )


def _survey_folder(package_folder: Path, user: Mapping[str, Any], scratch: Path) -> Survey:
    """Return the survey of a folder site-packages, made by truetag's own Python in a new process.

    A survey lists what is installed; it is read from files, and nothing there is run. Raises
    CalledProcessError if the process fails. `user`: the fields of UserEnvironment without `start`.
    `scratch`: a folder for temporary files.
    """
    user_file = scratch / "user.json"
    user_file.write_text(json.dumps(user))
    # -I and -S: neither this user's variables nor our own packages play a part.
    python = [sys.executable, "-I", "-S", str(Path(suite.__file__).parent)]
    command = [*python, "survey", str(user_file), str(package_folder)]
    run = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    document: Survey = json.loads(run.stdout)
    return document


def _claims_about_environment(
    environment: SurveyedEnvironment, survey_document: Survey, options: Options
) -> SurveyedClaims:
    """Return what an audit claims of a Python environment, and the evidence that is known already.

    A claim is a sentence that is judged by evidence, for example "no releases here are known to
    fail together". The survey, which read what is installed, is evidence enough for some claims.
    All others are measured later, by our checks.

    `survey_document` is the whole survey. `environment` is one of the environments in it.
    """
    # What is known of packages differs on ARM. An environment without any library may be for any
    # processor: it is taken to be for the usual one.
    platform = survey.platform_of(environment) or Platform.AMD64
    facts = options.facts.on(platform)

    # Claims to be measured, written as for an image of ours. A package that facts.yaml does not
    # know is left out, and gets an unproven claim, with the reason.
    code = library_code(survey_document)
    image, left_out = expected.describe_as_image(environment, code, facts)
    claims = expected.environment_claims(environment, code, facts, image)
    claims += expected.unaudited_claims(left_out)

    # Claims that the survey decides. `environment_evidence` has the evidence for all of them.
    claims += expected.rule_claims(survey.OF_ENVIRONMENT)
    claims += [expected.conflicts_claim(facts), expected.limits_claim(facts)]
    evidence: SurveyEvidence = dict(
        survey.environment_evidence(environment, survey_document["toolkits"])
    )

    # The claim that it runs on a machine, if the user named one. The survey decides it, too.
    if options.machine:
        claims.append(machine.machine_claim(environment, image, facts, options.machine))
        evidence[machine.SUBJECT] = machine.machine_evidence(environment, code, options.machine)
    return SurveyedClaims(claims, evidence)


def _split(claims: ClaimSet) -> tuple[ClaimSet, ClaimSet]:
    """Return the claims that must be measured, and those that the survey decides."""
    to_measure = claims.where(lambda claim: claim.check != expected.AUDIT)
    from_survey = claims.where(lambda claim: claim.check == expected.AUDIT)
    return to_measure, from_survey


def _with_survey_evidence(
    records: Sequence[Record], evidence: SurveyEvidence, seed: int | None = None
) -> tuple[Record, ...]:
    """Return the records of an audit's run, with what the survey found out added to them.

    A record has what one probe measured. The survey was made by this machine, so its evidence
    (subject -> evidence) is added to the record of the host's probe, which comes last. That record
    is made if the run has none. `seed`: the seed of the run; None: it has none.
    """
    other_records = [record for record in records if record.probe != HOST_PROBE]
    host_records = [record for record in records if record.probe == HOST_PROBE]
    if host_records:
        host_record = host_records[0]
    else:
        host_record = Record(probe=HOST_PROBE, outcome=Outcome.COMPLETED, seconds=0.0, seed=seed)
    measurements = list(host_record.measurements)
    for subject, subject_evidence in evidence.items():
        measurements.append(Measurement(subject=subject, seconds=0.0, evidence=subject_evidence))
    return (*other_records, replace(host_record, measurements=tuple(measurements)))


def _cleaned_record(record: Record) -> Record:
    """Return a record with every text that may come from the image made safe to show."""
    measurements = []
    for measurement in record.measurements:
        cleaned = replace(
            measurement,
            subject=clean_value(measurement.subject),
            evidence=clean_value(measurement.evidence),
        )
        measurements.append(cleaned)
    return replace(record, measurements=tuple(measurements), log=str(clean_value(record.log)))
