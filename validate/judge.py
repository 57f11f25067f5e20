"""Claims against evidence: the only place where an image becomes PASS, FAIL or UNPROVEN. Pure.

`build` and `validate` exit with 1 for FAIL, not for UNPROVEN; the release gate accepts only PASS
(validate/judging.py says more).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from validate import checks, hints, host_faults
from validate.checks import Judge, Judges
from validate.claims import Claim, ClaimSet, Tier
from validate.evidence import Evidence, Measurement, Outcome, Record
from validate.hints import Hint
from validate.judging import Finding, Status, failed, not_applicable, root_cause, suspects, unproven


@dataclass(frozen=True, kw_only=True)
class ClaimVerdict:
    """One claim, judged."""

    claim: Claim
    status: Status
    reason: str
    seconds: float
    evidence: Mapping[str, Any]
    hints: tuple[Hint, ...] = ()
    """Known errors that its reason or evidence speaks of, once the verdict was explained."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """An image, judged. `digest` is of the image that was measured."""

    image: str
    digest: str
    claims: tuple[ClaimVerdict, ...]
    evidence_sha256: str = ""
    """Of the evidence that was judged; empty where there was none."""
    faults: tuple[str, ...] = ()
    """What is wrong with the machine that it was measured on (host_faults.py)."""

    @property
    def overall(self) -> Status:
        """FAIL if a required claim failed; PASS only if there are required claims and every one passed."""
        required = [verdict.status for verdict in self.claims if verdict.claim.required]
        if Status.FAIL in required:
            return Status.FAIL
        return Status.PASS if required and set(required) == {Status.PASS} else Status.UNPROVEN

    def claims_with(self, status: Status) -> tuple[ClaimVerdict, ...]:
        """Return the judged claims that have this status."""
        return tuple(verdict for verdict in self.claims if verdict.status is status)


def judge(
    claims: ClaimSet,
    evidence: Evidence,
    tiers: Sequence[Tier] = tuple(Tier),
    *,
    judges: Judges | None = None,
) -> Verdict:
    """Judge the claims of these tiers, by `judges` where they have a row for a claim, else by the check files.

    Raises ValueError if the evidence is of another image.
    """
    if evidence.image != claims.image:
        raise ValueError(f"the claims are {claims.image}'s, the evidence is {evidence.image}'s")
    verdicts = tuple(
        _judged(claim, evidence, judges or {}) for claim in claims.in_tiers(tiers).claims
    )
    return Verdict(
        image=claims.image,
        digest=evidence.digest,
        claims=verdicts,
        evidence_sha256=evidence.sha256,
        faults=tuple(evidence.host.get("faults") or ()),
    )


def explain(verdict: Verdict) -> Verdict:
    """The same verdict, with the hints that fit each claim that failed or is UNPROVEN."""
    explained = (
        replace(one, hints=hints.find([one.reason, *hints.texts(one.evidence)]))
        if one.status in (Status.FAIL, Status.UNPROVEN)
        else one
        for one in verdict.claims
    )
    return replace(verdict, claims=tuple(explained))


OF_HOST = "the host's fault: "
"""So begins what is UNPROVEN by a fault of the machine: it gives no name."""
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters, and what no UTF-8 holds: bytes of a file's name that are none."""


def _judged(claim: Claim, evidence: Evidence, judges: Judges) -> ClaimVerdict:
    record = evidence.record_of(claim.probe)
    measurement = record.measurement_of(claim.subject) if record else None
    if (
        record
        and record.outcome is Outcome.COMPLETED
        and record.seed != evidence.host.get("seed", record.seed)
    ):
        status, reason = failed(
            f"{claim.probe} drew its inputs with another seed than this run's: it is of another"
        )
    else:
        status, reason = _finding(
            claim, record, measurement, checks.row(judges, claim) or checks.judge_of(claim)
        )
    measured = dict(measurement.evidence) if measurement else {}
    fault = _fault_of_host(claim, measured, evidence.host)
    if status in (Status.FAIL, Status.KNOWN) and fault:
        status, reason = unproven(f"{OF_HOST}{fault}; here: {reason}")
    if record and record.outcome is not Outcome.COMPLETED:
        measured["probe"] = {
            "outcome": str(record.outcome),
            "exit_code": record.exit_code,
            "log": record.log,
        }
    # Where nothing was measured, what the probe took in vain.
    in_vain = record.seconds if record and not claim.unproven else 0.0
    return ClaimVerdict(
        claim=claim,
        status=status,
        reason=_UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), reason),
        seconds=measurement.seconds if measurement else in_vain,
        evidence=measured,
    )


def _fault_of_host(claim: Claim, measured: Mapping[str, Any], host: Mapping[str, Any]) -> str:
    """Return the fault of the machine that explains a failure on its GPUs; empty: none does, so it is the image's.

    What was seen of the host comes first, then the numbers of the errors that the probe met: never their wording.
    """
    if claim.tier not in (Tier.GPU, Tier.MULTIGPU):
        return ""
    for fault in host.get("faults") or ():
        return str(fault)
    return host_faults.of_evidence(measured)


def _finding(
    claim: Claim, record: Record | None, measurement: Measurement | None, judging: Judge | None
) -> Finding:
    if claim.unproven:
        return unproven(claim.unproven)
    if judging is None:
        return unproven(f"this suite has no judge for {claim.check}")
    # Nothing was tried, so nothing is known of the image; below, something was tried and did not work.
    if record is None:
        return unproven(f"{claim.probe} was not run")
    if record.outcome is Outcome.MISSING:
        return unproven(f"this suite has no probe {claim.probe}")
    if measurement is None:
        if record.outcome is Outcome.COMPLETED:
            return failed(f"{claim.probe} found nothing to measure for {claim.subject}")
        tail = " | ".join(line.strip() for line in record.log.strip().splitlines()[-3:])
        return failed(f"{_end(record)}: {tail}" if tail else _end(record))
    try:
        finding = by_judge(judging, claim, measurement.evidence)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        # A judge that can't read the evidence has not seen the claim kept.
        return failed(f"{claim.probe}'s evidence can't be read: {type(error).__name__}: {error}")
    if finding.status is Status.PASS and record.outcome is not Outcome.COMPLETED:
        return unproven(f"measured well ({finding.reason}), but {_end(record)}")
    return finding


def by_judge(judging: Judge, claim: Claim, evidence: Mapping[str, Any]) -> Finding:
    """What some hosts make not applicable is not measured (suite.py), and what raised (`attempt`) failed: neither has a
    judge."""
    if reason := claim.expect.get("not_applicable"):
        return not_applicable(reason)
    if isinstance(error := evidence.get("error"), Mapping):
        told = f"{root_cause(error)}{suspects(evidence)}"
        told = ". ".join([told, *filter(None, [claim.expect.get("fault")])])
        return failed(told)
    return judging(claim.subject, claim.expect, evidence)


def _end(record: Record) -> str:
    ends = {
        Outcome.TIMED_OUT: f"{record.probe} did not end in {record.seconds:.0f} s",
        Outcome.SILENT: f"{record.probe} ended with status 0 before it was done",
        Outcome.CRASHED: f"{record.probe} crashed (status {record.exit_code})",
    }
    return ends[record.outcome]
