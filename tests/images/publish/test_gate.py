"""What opens the gate, what a tag may come to mean, and when labels lie: plain calls over judged evidence."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from images.errors import UserError
from images.publish import gate
from images.publish.gate import Standing
from validate import report
from validate.claims import Claim, ClaimSet, Tier
from validate.evidence import Evidence, Measurement, Outcome, Record
from validate.judge import Verdict, judge
from validate.judging import Status

NAME, DIGEST = "cu126-torch27", "sha256:" + "ab" * 32
PIP = Claim(
    id="S1",
    subject="pip",
    tier=Tier.STATIC,
    probe="static.pins",
    statement="`import pip` is pip 26.3",
    expect={"version": "26.3", "locals": [""], "modules": ["pip"], "python": "3.11", "shares": []},
)
FOUND: dict[str, Any] = {
    "python": "3.11",
    "glibc": "2.36",
    "installed": [{"version": "26.3", "location": "/site", "tags": ["py3-none-any"], "has_record": True}],
    "modules": {"pip": {"file": "/site/pip.py", "through": "/site", "owners": ["pip"], "providers": ["pip"]}},
}


def evidence(*claims: Claim, version: str = "26.3", outcome: Outcome = Outcome.COMPLETED) -> Evidence:
    found = {**FOUND, "installed": [{**FOUND["installed"][0], "version": version}]}
    records = [
        Record(
            probe=probe,
            outcome=outcome,
            seconds=1.0,
            measurements=tuple(
                Measurement(subject=claim.subject, seconds=0.1, evidence=found)
                for claim in claims
                if claim.probe == probe
            ),
        )
        for probe in {claim.probe for claim in claims}
    ]
    return Evidence(image=NAME, digest=DIGEST, records=tuple(records), claims=claims)


def judged(*claims: Claim, **more: Any) -> Verdict:
    measured = evidence(*claims, **more)
    return judge(measured.claim_set, measured)


def files(measured: Evidence) -> tuple[bytes, bytes]:
    verdict = judge(measured.claim_set, measured)
    return json.dumps(report.json_data(verdict)).encode(), measured.dumps().encode()


CPU = replace(PIP, tier=Tier.CPU, probe="cpu.pins")
PASS = judged(PIP)
PROMISED = ClaimSet(image=NAME, claims=(PIP,))


def test_the_yardstick_is_real() -> None:
    assert PASS.overall is Status.PASS
    assert judged(PIP, version="25").overall is Status.FAIL


def test_a_wholly_proven_tier_opens_the_gate() -> None:
    assert gate.refusals([PASS], [Tier.STATIC], PROMISED) == ()
    assert gate.refusals([PASS], [Tier.STATIC], None) == ()


def test_a_tier_nobody_judged_keeps_it_shut() -> None:
    assert gate.refusals([PASS], [Tier.STATIC, Tier.GPU], PROMISED) == ("the gpu tier was not judged",)
    assert gate.refusals([], [Tier.STATIC], PROMISED) == ("the static tier was not judged",)


def test_a_tier_of_nothing_required_proves_nothing() -> None:
    assert gate.refusals([judged(replace(PIP, required=False))], [Tier.STATIC], None) == (
        "the static tier was not judged",
    )


def test_unproven_is_not_pass() -> None:
    (reason,) = gate.refusals([judged(replace(PIP, unproven="no wheel"))], [Tier.STATIC], None)
    assert reason == "S1 pip (static) is UNPROVEN: no wheel"


def test_machines_may_share_the_tiers_between_them() -> None:
    assert gate.refusals([PASS, judged(CPU)], [Tier.STATIC, Tier.CPU], None) == ()


def test_a_failure_is_not_made_up_for_by_another_proof() -> None:
    reasons = gate.refusals([PASS, judged(PIP, version="25")], [Tier.STATIC], PROMISED)
    assert len(reasons) == 1 and reasons[0].startswith("S1 pip (static) is FAIL")


def test_a_proof_of_less_than_is_promised_is_none() -> None:
    more = ClaimSet(image=NAME, claims=(PIP, replace(PIP, subject="torch")))
    assert gate.refusals([PASS], [Tier.STATIC], more) == (
        "the proof is of less than matrix.yaml promises: it lacks S1 torch",
    )


def test_a_claim_that_was_excused_in_the_proof_but_is_required_today_is_lacking() -> None:
    (row,) = PASS.claims
    excused = replace(row, claim=replace(PIP, required=False))
    verdict = replace(PASS, claims=(replace(row, claim=replace(PIP, subject="wheel")), excused))
    (reason,) = gate.refusals([verdict], [Tier.STATIC], PROMISED)
    assert reason.endswith("it lacks S1 pip")


def test_a_proof_is_judged_again() -> None:
    verdict_file, evidence_file = files(evidence(PIP))
    assert gate.proof(verdict_file, evidence_file, "here").verdict == PASS


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v, e: (v.replace(b'"PASS"', b'"FAIL"'), e), "not what the evidence says"),
        (lambda v, e: (v, e.replace(b'"26.3"', b'"26.4"')), "changed after it was measured"),
        (lambda v, e: (v.replace(b"ab", b"cd"), e), "the verdict is of cu126-torch27 sha256:cdcd"),
        (lambda v, e: (b"{}", e), "is no proof"),
        (lambda v, e: (v, b"nonsense"), "is no proof"),
        (lambda v, e: (json.dumps({**json.loads(v), "claims": []}).encode(), e), "S1 pip is PASS"),
    ],
)
def test_a_proof_that_was_touched_is_refused(change: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        gate.proof(*change(*files(evidence(PIP))), "here")


NOW = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)


def standing(torch: str = "2.7.1", age: int = 0, digest: str = DIGEST) -> Standing:
    return Standing(digest=digest, name=NAME, torch=torch, created=NOW - timedelta(hours=age))


OTHER = "sha256:" + "cd" * 32


@pytest.mark.parametrize(
    ("old", "taken", "words"),
    [
        (None, False, ""),
        (None, True, "not ours"),
        (standing(age=5), True, ""),
        (standing(age=5, digest=OTHER), True, ""),
        (standing(age=-5, digest=OTHER), True, "was built on 2026-11-21 08:00, this on 2026-11-21 03:00"),
        (standing("2.10.0", age=5, digest=OTHER), True, "has torch 2.10.0, this is 2.7.1"),
        (standing("2.6.0", age=-5, digest=OTHER), True, ""),
        (standing(digest=OTHER), True, ""),
    ],
)
def test_tags_move_forwards_only(old: Standing | None, taken: bool, words: str) -> None:
    found = gate.backwards("latest", standing(), old, taken=taken)
    assert words in found and bool(words) == bool(found)


def test_an_images_standing_is_read_from_its_labels() -> None:
    labels = {"dev.truetag.torch": "2.7.1", "dev.truetag.image": NAME}
    found = Standing.of(DIGEST, labels, "2026-11-21T03:20:36.065910682Z")
    assert found and found.created == datetime(2026, 11, 21, 3, 20, 36, 65910, tzinfo=UTC)
    assert Standing.of(DIGEST, {}, "2026-11-21T03:20:36Z") is None
    assert Standing.of(DIGEST, {**labels, "dev.truetag.torch": "new"}, "2026-11-21T03:20:36Z") is None
    assert Standing.of(DIGEST, labels, "yesterday") is None


def test_the_tag_that_never_moves() -> None:
    assert gate.immutable_tag(NAME, NOW, DIGEST) == "cu126-torch27-20261121-abababababab"


def labels(**more: str) -> dict[str, str]:
    own = {"image": NAME, "pins": '{"pip":"26.3"}', **more}
    return {f"dev.truetag.{key.replace('_', '-')}": value for key, value in own.items()}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, ()),
        ({"pins": '{"pip":"26.4"}'}, ("pip 26.4 is labelled, 26.3 was found",)),
        ({"pins": '{"pip":"26.3","torch":"2.7.1"}'}, ("torch 2.7.1 is labelled, nothing was found",)),
        ({"pins": "{"}, ("the label of pins can't be read",)),
        ({"image": "cu128-torch28"}, (f"the image is called {NAME}",)),
    ],
)
def test_labels_are_held_against_what_was_measured(more: dict[str, str], words: tuple[str, ...]) -> None:
    assert gate.label_faults(labels(**more), [PASS]) == words


def test_labels_of_versions_are_held_against_what_was_proven() -> None:
    torch = replace(PIP, subject="torch", expect={**PIP.expect, "cuda": "12.6"})
    row = replace(judged(PIP).claims[0], claim=torch)
    verdict = replace(PASS, claims=(*PASS.claims, row))
    good = {"torch": "26.3", "wheel_cuda": "12.6", "python": "3.11"}
    assert gate.label_faults(labels(**good), [verdict]) == ()
    assert gate.label_faults(labels(**{**good, "wheel_cuda": "12.8"}), [verdict]) == (
        "wheel-cuda 12.8 is labelled, 12.6 was proven",
    )


def test_the_sbom_is_held_against_the_label() -> None:
    assert gate.sbom_faults(labels(), {"pip": "26.3", "more": "1"}) == ()
    assert gate.sbom_faults(labels(), {}) == ("pip 26.3 is labelled, the SBOM has none",)


def test_tiers_are_read() -> None:
    assert gate.parse_tiers("static, cpu") == (Tier.STATIC, Tier.CPU)
    with pytest.raises(UserError, match="static, cpu, gpu, multigpu"):
        gate.parse_tiers("static,tpu")
