"""Compares claims with evidence: the only place where an image becomes PASS, FAIL or UNPROVEN.

Pure. `build` and `validate` exit with 1 for FAIL, not for UNPROVEN; the release gate accepts only
PASS (validate/judging.py says more).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from validate import checks, hints, host_faults, next_steps
from validate.checks import Judge, Judges, RunAs
from validate.claims import AUDIT_OF, GPU_TIERS, STANDS_ON, Claim, ClaimSet, Tier
from validate.evidence import Evidence, MeasuredOn, Measurement, OtherImage, Outcome, Record
from validate.hints import Hint
from validate.judging import (
    PROVES_NOTHING,
    Finding,
    Status,
    failed,
    listed,
    not_applicable,
    root_cause,
    suspects,
    unproven,
)


@dataclass(frozen=True, kw_only=True)
class ClaimVerdict:
    """One claim, judged."""

    claim: Claim
    status: Status
    reason: str
    seconds: float
    evidence: Mapping[str, Any]
    hints: tuple[Hint, ...] = ()
    """Known errors that its reason or evidence speaks of: `explain` adds them."""
    next_step: str = ""
    """What to do if the claim does not hold; empty if it holds, or if the reason says it."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """An image, judged."""

    image: str
    digest: str
    """The digest of the image that was measured."""
    claims: tuple[ClaimVerdict, ...]
    evidence_sha256: str = ""
    """The digest of the evidence that was judged; empty if there was none."""
    faults: tuple[str, ...] = ()
    """What is wrong with the machine that measured (host_faults.py)."""
    other_base: str = ""
    """The base that the image stands on in place of the matrix's; empty: the matrix's own."""
    not_compared: Mapping[str, str] = field(default_factory=dict)
    """Keys of failed claims that no other image could run on this machine -> the reason."""

    @property
    def overall(self) -> Status:
        """Return FAIL if a required claim failed, PASS if all of them passed, else UNPROVEN.

        An image without a required claim is UNPROVEN.
        """
        required = [judged.status for judged in self.claims if judged.claim.required]
        if Status.FAIL in required:
            return Status.FAIL
        if required and set(required) == {Status.PASS}:
            return Status.PASS
        return Status.UNPROVEN

    def claims_with(self, status: Status) -> tuple[ClaimVerdict, ...]:
        """Return the claims with this verdict."""
        return tuple(judged for judged in self.claims if judged.status is status)


def judge(
    claims: ClaimSet,
    evidence: Evidence,
    tiers: Sequence[Tier] = tuple(Tier),
    *,
    judges: Judges | None = None,
) -> Verdict:
    """Compare what an image must have (claims) with what was measured of it (evidence).

    Returns the image's verdict, which has one for each claim, such as PASS or FAIL, with a reason.
    Nothing is run.

    tiers: only claims of these are judged; by default, all.
    judges: functions that judge in place of those in the checks' own files, by the name of the
        check or claim: `CHECK` or `CHECK/SUBJECT`.

    Raises ValueError if the evidence is of another image.
    """
    if evidence.image != claims.image:
        raise ValueError(f"the claims are {claims.image}'s, the evidence is {evidence.image}'s")

    verdicts = []
    for claim in claims.in_tiers(tiers).claims:
        judging = checks.find_judge(judges or {}, claim) or checks.judge_of(claim)
        verdicts.append(_judge_claim(claim, evidence, judging))
    return Verdict(
        image=claims.image,
        digest=evidence.digest,
        claims=tuple(verdicts),
        evidence_sha256=evidence.sha256,
        faults=tuple(evidence.host.get("faults") or ()),
        other_base=str(evidence.host.get("other_base", "")),
        not_compared=evidence.host.get("not_compared") or {},
    )


def judge_record(claims: Sequence[Claim], record: Record) -> list[ClaimVerdict]:
    """Return provisional verdicts on the claims that one program (probe) has just measured.

    claims: those of all probes.
    record: what the probe measured in one container, and how it ended.

    What is known of the machine at the end may still change these verdicts. Claims without a
    measurement are left out, because the same probe may measure them in another container. But if a
    probe that runs in one container alone crashed, all of its claims are FAIL.
    """
    # The image and its machine are not needed here.
    evidence = Evidence(image="", digest="", records=(record,), host={})
    has_containers_of_its_own = checks.settings(record.probe).run_as is RunAs.EACH_CLAIM
    verdicts = []
    for claim in claims:
        if claim.probe != record.probe:
            continue
        # A claim fails if its probe ended before it was measured. If each claim has a container of
        # its own, the record does not say which claim its container was for.
        ended_early = record.outcome is not Outcome.COMPLETED and not has_containers_of_its_own
        if ended_early or record.measurement_of(claim.subject):
            verdicts.append(_judge_claim(claim, evidence, checks.judge_of(claim)))
    return verdicts


def explain(verdict: Verdict) -> Verdict:
    """Return the verdict with hints added to each claim that failed or is UNPROVEN."""
    explained = []
    for judged in verdict.claims:
        if judged.status in (Status.FAIL, Status.UNPROVEN):
            texts = [judged.reason, *hints.texts(judged.evidence)]
            judged = replace(judged, hints=hints.find(texts))
        explained.append(judged)
    return replace(verdict, claims=tuple(explained))


OF_HOST = "the host's fault: "
"""The reason of a claim that a fault of the machine made UNPROVEN begins with this. An image with
such a claim does not get its name."""
_MENDING = {
    "fabric": "start the Fabric Manager on the host (`sudo systemctl enable --now "
    "nvidia-fabricmanager`), of exactly the driver's version",
    "exclusive compute mode": "end what runs on this GPU, or run `sudo nvidia-smi -c DEFAULT` on "
    "the host (with MIG: `sudo nvidia-smi mig -cgi 0 -C` makes an instance)",
    "SYS_PTRACE": "let this container have it (`--cap-add SYS_PTRACE`)",
    "may not lock": "start Docker with `--default-ulimit memlock=-1`",
    "": "mend this machine (`nvidia-smi` and `sudo dmesg` say more)",
}
"""Words of a fault of the machine -> what mends it. Most others have a hint (hints.yaml)."""
_OTHER_SUITE = (
    f"measure the image again with this release of truetag: {next_steps.VALIDATE_AGAIN}; or judge "
    "it with the release that measured it"
)
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters, and surrogates: so Python keeps bytes of file names that are no UTF-8."""


def _judge_claim(claim: Claim, evidence: Evidence, judging: Judge | None) -> ClaimVerdict:
    """Judge one claim by what a validation run measured: PASS, FAIL and so on, with a reason.

    A failure becomes UNPROVEN if it is known to come from the machine, such as a broken driver.

    judging: the function that judges such claims; None: there is none.
    """
    record = evidence.record_of(claim.probe)
    measurement = record.measurement_of(claim.subject) if record else None
    measured = dict(measurement.evidence) if measurement else {}

    if record and _has_other_seed(record, evidence):
        finding = failed(
            f"what truetag's check {claim.probe} measured is from another run, whose random inputs "
            "were drawn with another seed",
            f"measure the image again: {next_steps.VALIDATE_AGAIN}",
        )
    else:
        finding = _decide(claim, record, measurement, judging)

    # A failure that a broken GPU or driver explains says nothing about the image.
    fault = _fault_of_host(claim, measured, evidence.host)
    if fault and finding.status in (Status.FAIL, Status.KNOWN):
        reason = f"{OF_HOST}{fault}; so this failed: {finding.reason}"
        finding = unproven(reason, _how_to_mend(fault))
    # Another image may have run what failed, on the same machine.
    if needs_other_image(claim, finding.status):
        finding = _compare(claim, finding, evidence.host, judging)

    # If the probe ended early, add its exit status and log, which may tell why.
    if record and record.outcome is not Outcome.COMPLETED:
        measured["probe"] = {
            "outcome": str(record.outcome),
            "exit_code": record.exit_code,
            "log": record.log,
        }
    # Escape characters that a terminal can't print.
    reason = _UNPRINTABLE.sub(_escape_character, finding.reason)
    return ClaimVerdict(
        claim=claim,
        status=finding.status,
        reason=reason,
        seconds=_seconds_of(claim, record, measurement),
        evidence=measured,
        next_step=fit_to_image(
            _find_next_step(claim, finding, measured),
            evidence.image,
            is_folder=not evidence.digest,
        ),
    )


def _find_next_step(claim: Claim, finding: Finding, measured: Mapping[str, Any]) -> str:
    """Return what to do about a claim that was judged so; empty if it holds.

    It is the finding's own step, else that of the check. A check has none for what was not
    measured: it depends on why. Variables that the reason suspects come first: they may explain a
    measurement that proves nothing, too.

    measured: the evidence, with the variables that change how things are computed.
    """
    if finding.next_step:
        return finding.next_step
    if finding.status not in (Status.FAIL, Status.KNOWN):
        return ""
    variables = suspects(measured)
    if variables and variables in finding.reason:
        return next_steps.remove_variables(listed(list(measured["environment"])))
    # A problem of a rank begins with its number, so look for the words anywhere in the first one.
    first_problem = finding.reason.partition("; ")[0]
    if PROVES_NOTHING in first_problem:
        return next_steps.MEASUREMENT_FAILED
    step = checks.next_step_of(claim, finding.reason)
    # `FILE of numpy 2.4.6 is missing`. Of several packages, the reason has the names.
    packages = set(re.findall(r" of ([\w.-]+) (\d\S*) is (?:altered|missing)", finding.reason))
    if len(packages) == 1:
        step = step.replace("PACKAGE==VERSION", "==".join(packages.pop()))
    return step


def fit_to_image(step: str, image: str, *, is_folder: bool = False) -> str:
    """Return a next step with the commands for an image of the matrix, or for one of a user's own.

    They have the image's name in place of NAME, or the name of the image of the matrix that a
    user's own stands on. What was audited stands on none: its commands audit it. `is_folder`: it
    is the folder of a Python environment.
    """
    if re.match(r"cu\d", image):
        # Only the whole word: not in NCCL_SOCKET_IFNAME.
        return re.sub(r"\bNAME\b", image, step)
    tables = [next_steps.FOR_OWN_IMAGES]
    if image.startswith(AUDIT_OF):
        tables.append(next_steps.FOR_AUDITS)
        if is_folder:
            tables.insert(0, next_steps.FOR_FOLDERS)
    for table in tables:
        for words, own_words in table.items():
            step = step.replace(words, own_words)
    if image.startswith(AUDIT_OF):
        audited = shlex.quote(image.removeprefix(AUDIT_OF))
        return re.sub(r"\bIMAGE\b", lambda _: audited, step)
    if image.startswith(STANDS_ON):
        return fit_to_image(step, image.removeprefix(STANDS_ON))
    return step


def _seconds_of(claim: Claim, record: Record | None, measurement: Measurement | None) -> float:
    """Return how many seconds measuring a claim took; 0.0 if it was not tried.

    If the probe ended before it measured this claim, it is the time of the whole probe.
    """
    if measurement:
        return measurement.seconds
    if record and not claim.unproven:
        return record.seconds
    return 0.0


def _has_other_seed(record: Record, evidence: Evidence) -> bool:
    """Return whether a probe that ended well drew its inputs with another seed than its run.

    Then its record is not of this run. Evidence from before seeds were recorded has none, which is
    no difference.
    """
    if record.outcome is not Outcome.COMPLETED or "seed" not in evidence.host:
        return False
    return record.seed != evidence.host["seed"]


def _escape_character(match: re.Match[str]) -> str:
    """Return the matched character as Python writes it in a string: `\\x1b`."""
    return match[0].encode("unicode_escape").decode()


def _how_to_mend(fault: str) -> str:
    """Return the next step after a fault of the machine, by its words."""
    mending = next(step for words, step in _MENDING.items() if words in fault)
    return (
        f"nothing is known of the image: {mending}, or take another machine, then validate again: "
        f"{next_steps.VALIDATE_AGAIN}"
    )


def _fault_of_host(claim: Claim, measured: Mapping[str, Any], host: Mapping[str, Any]) -> str:
    """Return the fault of the machine that explains a failure on its GPUs.

    It is the first fault that was seen on the machine (`host["faults"]`), or else one that an error
    number in the evidence (`measured`) tells. The wording of an error never decides. Empty if the
    machine explains nothing, or if measuring the claim needs no GPU.
    """
    if claim.tier not in GPU_TIERS:
        return ""
    faults = host.get("faults")
    if faults:
        return str(faults[0])
    return host_faults.of_evidence(measured)


def needs_other_image(claim: Claim, status: Status) -> bool:
    """Return whether another image can tell whose fault this is: the image's or the machine's."""
    return status is Status.FAIL and claim.required and claim.tier in GPU_TIERS


def _compare(claim: Claim, finding: Finding, host: MeasuredOn, judging: Judge | None) -> Finding:
    """Return the finding on a failed claim, with what other images measured on the same machine.

    If another image fails, too, it is the machine's fault: that image is recorded as PASS on this
    GPU model. If it passes, the fault is the image's own. The finding stays as it is if no other
    image ran this claim (`host["other_images"]`), or if it did not come to a result.
    """
    for other in host.get("other_images") or ():
        judged = _judge_other_image(claim, other, judging)
        if judged is None:
            continue
        if judged.status is Status.PASS:
            reason = (
                f"{finding.reason}; the image {other['image']} passes this claim on this machine, "
                "so the fault is the image's"
            )
            return finding._replace(reason=reason)
        # Its failure may itself have the error number of a known fault of the machine.
        if judged.status is Status.FAIL or judged.reason.startswith(OF_HOST):
            fault = (
                f"the image {other['image']}, which passed this before on a GPU of this model, "
                "fails here, too"
            )
            others_reason = judged.reason.removeprefix(OF_HOST)
            if others_reason != finding.reason:
                fault += f" ({others_reason})"
            reason = f"{OF_HOST}{fault}; this image: {finding.reason}"
            return unproven(reason, _how_to_mend(fault))
    return finding


def _judge_other_image(
    claim: Claim, other: OtherImage, judging: Judge | None
) -> ClaimVerdict | None:
    """Judge another image's own claim of the same name; None: it did not run it."""
    for data in other["claims"]:
        others_claim = Claim.from_json(data)
        if others_claim.key != claim.key:
            continue
        evidence = Evidence(
            image=other["image"],
            digest=other["digest"],
            records=tuple(Record.from_json(record) for record in other["records"]),
        )
        return _judge_claim(others_claim, evidence, judging)
    return None


def _decide(
    claim: Claim, record: Record | None, measurement: Measurement | None, judging: Judge | None
) -> Finding:
    """Judge one claim by what was measured, as if the machine had no fault.

    record: how the program that tests the claim (its probe) ended; None: it was not run.
    measurement: what the probe measured for this claim; None: it ended before it did.
    judging: the function that judges such claims; None: there is none.
    """
    if claim.unproven:
        return unproven(claim.unproven)
    if judging is None:
        return unproven(
            "it was measured by a release of truetag that has this check, which this release lacks",
            _OTHER_SUITE,
        )
    # A probe that was not run says nothing about the image.
    if record is None:
        return unproven(
            f"truetag's check {claim.probe} was not run",
            f"measure the image again: {next_steps.VALIDATE_AGAIN}",
        )
    if record.outcome is Outcome.MISSING:
        return unproven(f"this release of truetag has no check {claim.probe}", _OTHER_SUITE)
    # A check that ran and did not finish is a FAIL.
    if measurement is None:
        return _nothing_measured(claim, record)

    try:
        finding = apply_judge(judging, claim, measurement.evidence)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        # A judge that cannot read the evidence has not seen that the claim holds.
        # Figures that are not finite stand there as text (`strict_json`): `'losses': [6.5, 'nan']`.
        figure = re.search(r"'([^']*)': [^'}]*'(nan|-?inf)'", str(measurement.evidence))
        if figure:
            cause = f"{figure[1]} is {figure[2]}, and must be a number"
            return failed(f"what was measured can't be judged: {cause}")
        return failed(
            f"what truetag's check {claim.probe} recorded can't be read: {type(error).__name__}: "
            f"{error}",
            f"measure the image again ({next_steps.VALIDATE_AGAIN}), because another release of "
            f"truetag may have recorded it; if it says the same, {next_steps.REPORT}",
        )
    # Only a probe that ran to its end can carry a PASS (evidence.Outcome).
    if finding.status is Status.PASS and record.outcome is not Outcome.COMPLETED:
        return unproven(
            f"what was measured is right ({finding.reason}), but then {_describe_end(record)}",
            next_steps.PROBE_ENDED,
        )
    return finding


def _nothing_measured(claim: Claim, record: Record) -> Finding:
    """Return FAIL for a claim whose probe ran and did not measure it, with the end of its log."""
    if record.outcome is Outcome.COMPLETED:
        return failed(
            f"truetag's check {claim.probe} ran and recorded nothing for this claim, so it is not "
            f"known whether it holds: {claim.statement}",
            "nothing is shown to be wrong, but the image may lack what this check looks at: "
            f"{next_steps.BUILD_ANEW}; if the check records nothing then, too, "
            f"{next_steps.REPORT}",
        )
    last_lines = record.log.strip().splitlines()[-3:]
    tail = " | ".join(line.strip() for line in last_lines)
    end = _describe_end(record)
    return failed(f"{end}: {tail}" if tail else end, next_steps.PROBE_ENDED)


def apply_judge(judging: Judge, claim: Claim, evidence: Mapping[str, Any]) -> Finding:
    """Return what a judge says about the evidence of a claim, or the finding that needs no judge.

    A finding is a status, such as PASS, and its reason. Two need no judge:

    - A claim whose `expect` says why it is not applicable here was not measured. The finding is
      NOT_APPLICABLE, with that reason.
    - A measurement that raised an error (`evidence["error"]`) is a FAIL. Its reason is the error,
      environment variables that may explain it, and the claim's own explanation (`fault`).

    judging: the function that judges such claims. It raises an error, such as KeyError,
        if it can't read the evidence.
    """
    not_applicable_reason = claim.expect.get("not_applicable")
    if not_applicable_reason:
        return not_applicable(not_applicable_reason)

    error = evidence.get("error")
    if isinstance(error, Mapping):
        # ` (OMP_NUM_THREADS=1 is set)`, or nothing.
        variables = suspects(evidence)
        reason = f"{root_cause(error)}{variables}"
        explanation = claim.expect.get("fault")
        return failed(f"{reason}. {explanation}" if explanation else reason)
    return judging(claim.subject, claim.expect, evidence)


def _describe_end(record: Record) -> str:
    """Return how a probe ended that did not complete."""
    ends = {
        Outcome.TIMED_OUT: f"did not end in {record.seconds:.0f} s, and was stopped",
        Outcome.SILENT: "ended with status 0 before it was done",
        Outcome.CRASHED: f"crashed (status {record.exit_code})",
    }
    return f"truetag's check {record.probe} {ends[record.outcome]}"
