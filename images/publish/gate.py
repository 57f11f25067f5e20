"""Decide whether an image has passed enough validation to be published: the gate.

Evidence is judged by the claims that today's matrix writes, never by the claims stored beside it:
whoever measured an image may have expected less of it. Nothing here reads files or the network.
"""

import json
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from images.errors import Problem, UserError, command, failed, wrong
from images.validation.validation_run import with_host_limits
from validate.claims import ORIGIN_PROBE, Claim, ClaimSet, Tier
from validate.evidence import Evidence
from validate.judge import ClaimVerdict, Verdict, judge
from validate.judging import Status, listed

STAGING_GATE = (Tier.STATIC, Tier.CPU)
"""The tiers that a machine without a GPU can measure: enough for a staging repository."""
RECORDS_PROBE = "static.records"
"""The probe that compares installed files with the RECORD of the wheels they came from."""
NO_SUCH_CLAIM = "the attestation has no such claim"
REVISION_CHECKS = ("image", "hygiene")
REVISION_KEYS = frozenset({"revision", "claims"})
"""Keys of the expectations of `REVISION_CHECKS` that change with every edit of the matrix: its
revision, and the digest over all claims. The probes measure the same without them."""
BOUNDED_CHECKS = ("silent-faults", "speed", "step")
BOUND_KEYS = frozenset(
    "at_most baseline fault known least most peak peak_operations times tolerance".split()
)
"""Keys of the expectations of `BOUNDED_CHECKS` that only their judges read: the probes measure the
same without them."""


@dataclass(frozen=True, kw_only=True)
class ReleasePolicy:
    """What the matrix and the command line require of an image before it is published."""

    gate: Sequence[Tier]
    """Tiers that must have passed before the image is published at all."""
    alias_gate: Sequence[Tier]
    """Tiers that must have passed before aliases (`latest`) move to it: the matrix's gate."""
    aliases_of: Callable[[str], Sequence[str]]
    """Image name -> its aliases."""
    claims_of: Callable[[Mapping[str, str], Evidence], ClaimSet | None]
    """Labels of an image, and a validation run -> the claims that the matrix writes today for the
    machine of that run; None where the matrix does not make the image. Raises UserError where they
    can't be written: the image has no lock, or one that is stale or damaged."""
    without_matrix: bool = False
    """True where there is no matrix: an image is then judged by the claims in its own evidence, for
    which only a signature vouches."""
    gate_is_assumed: bool = False
    """True where neither a matrix nor --gate says which tiers must have passed: `gate` is then
    truetag's default, and the matrix of the image may ask for fewer."""
    origin_exception: str = ""
    """The user's reason to publish an image whose claim `origin` is UNPROVEN; empty: such an image
    is refused. Its attestation repeats the reason."""
    row_of: Callable[[str], Sequence[str]] = lambda name: (name,)
    """Image name -> the images of its row in the matrix, one for each platform. The tags of a row
    with several images name an index."""

    def makes(self, labels: Mapping[str, str], runs: Sequence[Evidence]) -> bool:
        """Return whether the matrix makes an image with these labels.

        `runs` are the image's validation runs. True where there is no matrix, or no run. Raises
        UserError where today's claims of the image can't be written (`claims_of`).
        """
        if not runs:
            return True
        # Whether there are claims depends on the labels alone: one run is enough to ask.
        return self.claims_of(labels, runs[0]) is not None

    def judge_run(self, labels: Mapping[str, str], run: Evidence) -> Verdict:
        """Judge a validation run of an image by the claims that the matrix makes today.

        A claim is one check that the image must pass. `labels` are the image's, and `run` is what
        the validation run measured. A claim that failed by the matrix of the run's own day is a
        failure in the verdict, whatever the matrix says today. Raises UserError if the matrix makes
        no image with these labels, if it gives that image another name than the run has, or if
        today's claims can't be written.
        """
        claims = self.claims_of(labels, run)
        then = (
            f"build the image anew from this matrix.yaml (`{command('build', run.image)}`), or "
            "give the command with the matrix.yaml that it was built from (--matrix FILE)"
        )
        if claims is None:
            cause = "this image was built from another matrix.yaml than the one here"
            raise failed(run.image, cause, then)
        if claims.image != run.image:
            cause = (
                f"by its labels, this image is {claims.image}: it was tagged with a wrong "
                "name, or built from another matrix.yaml than the one here"
            )
            raise failed(run.image, cause, then)
        return with_earlier_failures(run, judge_by_claims(run, claims))

    def refusals(
        self,
        labels: Mapping[str, str],
        runs: Sequence[Evidence],
        tiers: Sequence[Tier],
        *,
        origin_exception: str = "",
    ) -> tuple[str, ...]:
        """Return the reasons why an image must not be published; empty if it may.

        If today's claims of the image can't be written, for example because the matrix does not
        make it, the reasons are why, and each claim that failed by the claims of a run's own day.

        labels: the image's.
        runs: what its validation runs measured.
        tiers: the groups of tests that must have passed.
        origin_exception: a reason to publish the image although it is not proved where its layers
            come from. It counts if this policy has none itself; empty: none.
        """
        exception = self.origin_exception or origin_exception
        try:
            verdicts = [self.judge_run(labels, run) for run in runs]
        except UserError as error:
            # A claim that failed when the image was measured closes the gate all the same.
            failures = find_failures([judge(run.claim_set, run) for run in runs])
            return (cause_and_step(error.problems[0]), *map(describe, failures))
        return find_refusals(verdicts, tiers, origin_exception=exception)

    def require_open(
        self,
        where: str,
        labels: Mapping[str, str],
        runs: Sequence[Evidence],
        *,
        origin_exception: str = "",
    ) -> None:
        """Raise UserError with each reason why an image must not be published, if there is one.

        where: names the image in the message.
        labels, runs, origin_exception: see `refusals`.
        """
        reasons = self.refusals(labels, runs, self.gate, origin_exception=origin_exception)
        if not reasons:
            return

        # An image that only lacks what needs a GPU may still be published in a staging repository:
        # suggest that.
        then = ""
        staging_refusals = self.refusals(
            labels, runs, STAGING_GATE, origin_exception=origin_exception
        )
        if Tier.GPU in self.gate and not staging_refusals:
            tiers = ",".join(self.gate)
            then = (
                f"the gate asks for {tiers}: validate the image on a machine with a GPU; for a "
                "staging repository, give --gate static,cpu"
            )
        elif not self.refusals(labels, runs, self.gate, origin_exception="any reason"):
            then = (
                "only the origin of its layers is not proved: `publish` takes the image with "
                '--origin-exception "WHY", where WHY is your reason to do so nevertheless'
            )
        validating = command("validate", labels.get("dev.truetag.image", "NAME"))
        problems: list[Problem] = []
        for reason in reasons:
            step = f"validate the image again (`{validating}`)"
            if not re.search(r"\((static|cpu)\)|the (static|cpu) tier", reason):
                step += (
                    ", on a machine that can measure this: the gpu tier needs a GPU, multigpu and "
                    "multinode need several"
                )
            if " is FAIL" in reason and not reason.endswith("something else)"):
                step = (
                    f"`{validating}` says below this claim, after `next:`, what to do; then build "
                    "the image again, and publish that"
                )
            # A step of several reasons is printed once, below the last of them.
            if problems and problems[-1].then == (then or step):
                problems[-1] = replace(problems[-1], then="")
            problems.append(Problem(where=where, cause=reason, then=then or step))
        raise UserError(problems, code=1)


def parse_tiers(text: str) -> tuple[Tier, ...]:
    """Return the tiers in a text like `static,cpu`, without repetitions.

    Raises UserError for a word that names no tier.
    """
    try:
        tiers = [Tier(word.strip()) for word in text.split(",")]
    except ValueError:
        then = f"give --gate tiers with a comma between them: {','.join(Tier)}, or some of these"
        raise wrong(f"--gate {text}", "one of these words is no tier", then) from None
    return tuple(dict.fromkeys(tiers))


# --- judging old evidence by today's claims -------------------------------------------------------


def judge_by_claims(run: Evidence, claims: ClaimSet, tiers: Sequence[Tier] = ()) -> Verdict:
    """Judge an earlier validation run by other claims than those that it tested.

    `claims` are usually those that matrix.yaml makes today. A claim that was tested with another
    expectation is UNPROVEN, because the run recorded only what that expectation asked for. `tiers`
    are the groups of claims to judge; by default, all that the run tested.
    """
    measured_claims = {claim.key: claim for claim in run.claims}
    tiers = tiers or [claim.tier for claim in run.claims]

    # Packages whose wheels were compiled on the machine that built the image, and are not known
    # here: today's claims about them are unproven, and no other claim expects their RECORDs.
    unknown_packages = set()
    for claim in claims.claims:
        if claim.probe == RECORDS_PROBE and claim.unproven:
            unknown_packages.add(claim.subject)

    # A claim that is unproven already keeps its reason, whatever the run measured.
    claims_with_reasons: list[Claim] = []
    for claim in claims.in_tiers(tiers).claims:
        unproven = claim.unproven
        if not unproven:
            measured = measured_claims.get(claim.key)
            unproven = unproven_reason(claim, measured, unknown_packages)
        claims_with_reasons.append(replace(claim, unproven=unproven))

    claim_set = ClaimSet(image=claims.image, claims=tuple(claims_with_reasons))
    # What the machine of the run could not measure is unproven, too.
    return judge(with_host_limits(claim_set, run.host), run)


def unproven_reason(claim: Claim, measured: Claim | None, unknown_packages: Collection[str]) -> str:
    """Return why evidence for the claim `measured` cannot prove `claim`; empty if it can.

    Both are the same check of an image, as it was written then and today. `measured` is None where
    the evidence has no such claim. `unknown_packages` are packages whose compiled wheels only the
    machine that built the image knows: today's expectations may lack their files.
    """
    if measured is None:
        return NO_SUCH_CLAIM
    if measured.unproven:
        return measured.unproven
    # This claim expects records of layers, which may be made after the run. But its probe reads all
    # layers of the image, whatever is expected.
    if claim.probe == measured.probe == ORIGIN_PROBE:
        return ""

    # Every other probe recorded only what its claim asked for then. So the evidence proves nothing
    # about another expectation of today.
    expect_today = plain_json(claim.expect)
    expect_then = plain_json(measured.expect)
    if claim.probe == RECORDS_PROBE:
        remove_packages(expect_then, unknown_packages)

    # In some checks, a few keys may differ, as only judges read them: the matrix's revision, and
    # bounds such as `at_most`. The probe measures the same whatever they say.
    keys = expect_today.keys() | expect_then.keys()
    if claim.check in REVISION_CHECKS:
        keys -= REVISION_KEYS
    if claim.check in BOUNDED_CHECKS:
        keys -= BOUND_KEYS

    differing = [key for key in sorted(keys) if expect_today.get(key) != expect_then.get(key)]
    if claim.probe == measured.probe and not differing:
        return ""
    return (
        "since this was measured, what is expected of the image has changed "
        f"({listed(differing, limit=5)}), so it has to be measured again"
    )


def with_earlier_failures(run: Evidence, today: Verdict) -> Verdict:
    """Return today's verdict on a run, with the claims that failed by the run's own expectations.

    Today's matrix may expect something else of such a claim, or no longer have it. Then the run
    does not show whether the image holds what is claimed today; but it did fail.
    """
    # Name of a claim -> its verdict.
    verdicts = {claim_verdict.claim.key: claim_verdict for claim_verdict in today.claims}
    date = run.host.get("date", "on an unknown day")
    for failure in judge(run.claim_set, run).claims_with(Status.FAIL):
        name = failure.claim.key
        judged_today = verdicts.get(name)
        if judged_today and judged_today.status is Status.FAIL:
            continue
        # If the matrix still has the claim, it is required or not as the matrix says today.
        claim = judged_today.claim if judged_today else failure.claim
        reason = (
            f"{failure.reason} (as it was measured on {date}; today's matrix.yaml expects "
            "something else)"
        )
        verdicts[name] = replace(failure, claim=claim, reason=reason)
    return replace(today, claims=tuple(verdicts.values()))


def plain_json(expect: Mapping[str, Any]) -> dict[str, Any]:
    """Return an expectation as it looks after being written to JSON and read back."""
    return dict(json.loads(json.dumps(expect)))


def remove_packages(expect: Mapping[str, Any], packages: Collection[str]) -> None:
    """Remove packages from every table (package -> anything) of an expectation, in place."""
    for table in expect.values():
        if isinstance(table, dict):
            for package in packages:
                table.pop(package, None)


# --- the reasons that close a gate ----------------------------------------------------------------


def find_refusals(
    verdicts: Sequence[Verdict], tiers: Sequence[Tier], *, origin_exception: str = ""
) -> tuple[str, ...]:
    """Return the reasons why an image must not be published; empty if it may.

    `verdicts` are the judged validation runs of the image. No required claim may have failed in any
    of them. For each of `tiers` (groups of claims), one run must have passed every required claim.
    `origin_exception` is the user's reason to publish an image whose layers are not proved to be
    ours; empty: none.
    """
    reasons = [describe(failure) for failure in find_failures(verdicts)]
    for tier in tiers:
        reasons += find_tier_refusals(verdicts, tier, origin_exception=origin_exception)
    # The failures in one of `tiers` are in both lists: name them once.
    return tuple(dict.fromkeys(reasons))


def find_tier_refusals(
    verdicts: Sequence[Verdict], tier: Tier, *, origin_exception: str = ""
) -> tuple[str, ...]:
    """Return the reasons why an image did not pass a tier (a group of claims); empty if it did.

    `verdicts` are the judged validation runs of the image. It passed the tier if none of them has a
    required claim that failed there, and if one of them passed all of the tier's required claims.
    With an `origin_exception` (the user's reason), it need not be proved where layers come from.
    """
    if not verdicts:
        return (f"the {tier} tier was not judged",)
    reasons = []
    for failure in find_failures(verdicts):
        if failure.claim.tier is tier:
            reasons.append(describe(failure))

    # One complete verdict is enough. If there is none, report the one that lacks the fewest claims.
    lacking = [find_lacking(verdict, tier, origin_exception) for verdict in verdicts]
    reasons += min(lacking, key=lambda of_run: of_run.claim_count).reasons
    # find_lacking has named failed claims, too, in the same words. A dict drops the second one.
    return tuple(dict.fromkeys(reasons))


def find_failures(verdicts: Sequence[Verdict]) -> list[ClaimVerdict]:
    """Return every required claim that is FAIL in one of these verdicts."""
    failures = []
    for verdict in verdicts:
        for claim_verdict in verdict.claims_with(Status.FAIL):
            if claim_verdict.claim.required:
                failures.append(claim_verdict)
    return failures


class Lacking(NamedTuple):
    """What one validation run lacks to pass a tier."""

    claim_count: int
    """How many required claims it did not pass, untested ones among them."""
    reasons: list[str]


def find_lacking(verdict: Verdict, tier: Tier, origin_exception: str) -> Lacking:
    """Return why one validation run did not pass a tier (a group of claims); no reason if it did.

    There is a reason for each required claim that did not pass, and one for all those that the run
    did not test. A tier without a required claim counts as not judged. With an `origin_exception`
    (the user's reason), it need not be proved where the image's layers come from.
    """
    required = []
    for claim_verdict in verdict.claims:
        if claim_verdict.claim.tier is tier and claim_verdict.claim.required:
            required.append(claim_verdict)
    if not required:
        # Every run that judged the tier lacks less.
        return Lacking(sys.maxsize, [f"the {tier} tier was not judged"])

    reasons: list[str] = []
    missing: list[str] = []
    for claim_verdict in required:
        if claim_verdict.status is Status.PASS:
            continue
        if origin_exception and is_unproven_origin(claim_verdict):
            continue
        # The claim is newer than the evidence (`unproven_reason`).
        if claim_verdict.reason == NO_SUCH_CLAIM:
            missing.append(claim_verdict.claim.key)
        else:
            reasons.append(describe(claim_verdict))
    # Until here, each reason is one claim.
    claim_count = len(reasons) + len(missing)
    if missing:
        reasons.append(
            f"its validation did not measure {listed(missing, limit=5)} ({tier}): these claims are "
            "newer, or it measured only some claims (`--claim`)"
        )
    return Lacking(claim_count, reasons)


def cause_and_step(problem: Problem) -> str:
    """Return why something failed, and what its user does, if that is known: `CAUSE: STEP`."""
    return f"{problem.cause}: {problem.then}" if problem.then else problem.cause


def is_unproven_origin(claim_verdict: ClaimVerdict) -> bool:
    """Return whether this is the claim about the origin of an image's layers, and UNPROVEN."""
    is_origin = claim_verdict.claim.probe == ORIGIN_PROBE
    return is_origin and claim_verdict.status is Status.UNPROVEN


def describe(claim_verdict: ClaimVerdict) -> str:
    """Return `pins/torch (static) is FAIL: REASON`."""
    claim = claim_verdict.claim
    return f"{claim.key} ({claim.tier}) is {claim_verdict.status}: {claim_verdict.reason}"
