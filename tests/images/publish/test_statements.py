"""Statements and their envelopes, by the protocol's own test vector; what a test result says, and where it lies."""

import base64
import lzma
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.errors import UserError
from images.host.hashing import sha256
from images.publish import gate, statements
from images.publish.statements import (
    FAILED,
    PASSED,
    PROVENANCE,
    TEST_RESULT,
    TIERS,
    UNPROVEN,
    Attestation,
    Statement,
)
from tests.support.attested import DIGEST, NAME, PIP, evidence
from tests.support.published import CLAIMS, GPU_PIP, result_of, validated
from validate.claims import ORIGIN_PROBE, Claim, ClaimSet, Tier
from validate.evidence import Measurement, Outcome, Record
from validate.judging import Status

EARLY, LATE = "2026-11-01T10:00:00+00:00", "2026-11-20T12:00:00+02:00"


def trial(*claims: Claim, date: str = LATE, **more: Any) -> Attestation:
    return validated(DIGEST, date, claims, **more)


def statement(predicate: Any, kind: str = TEST_RESULT) -> Statement:
    return Statement.of(kind, predicate, repository="x.org/y", digest=DIGEST)


def test_what_is_signed_is_as_the_protocol_has_it() -> None:
    """The form of protocol.md's example, with our payload type: lengths in bytes, in decimal."""
    signed = Statement(payload="hellö".encode()).signed_bytes
    assert signed == b"DSSEv1 28 application/vnd.in-toto+json 6 hell\xc3\xb6"


def test_an_exception_for_the_origin_is_named_in_the_test_result() -> None:
    origin = Claim(
        check="origin",
        subject="layers",
        tier=Tier.STATIC,
        probe=ORIGIN_PROBE,
        statement="x",
        unproven="by tag",
    )
    run = trial(PIP, origin)
    assert statements.make_test_result([run])[TIERS]["static"]["result"] == UNPROVEN
    said = statements.make_test_result([run], "the mirror is down")
    assert (
        said[statements.ORIGIN_EXCEPTION] == "the mirror is down"
        and said[TIERS]["static"]["result"] == PASSED
    )
    assert said[TIERS]["static"]["unproven"] == ["origin/layers"], (
        "it is named among what is not proven, too"
    )
    assert list(statements.find_test_result_faults(statement(said), [run])) == []
    silent = {key: value for key, value in said.items() if key != statements.ORIGIN_EXCEPTION}
    assert list(statements.find_test_result_faults(statement(silent), [run])) == [
        "the static tier did not pass"
    ]


def test_an_origin_that_was_recorded_after_the_run_is_no_fault() -> None:
    """`build`, then `tools/reproduce --record`, then `publish`: the gate judges the same evidence by the record."""

    def origin(*builds: str) -> Claim:
        row = {
            "layer": "base",
            "recipe": "r",
            "diff_id": "sha256:1" if builds else "",
            "written_as": [],
        }
        expect = {
            "recipe": "r",
            "layers": [{**row, "builds": [*builds]}],
            "arguments": NAME,
            "is_derived": False,
        }
        return replace(PIP, check="origin", subject="layers", probe=ORIGIN_PROBE, expect=expect)

    evidence = {
        "recipe": "r",
        "layers": [{"layer": "base", "diff_id": "sha256:1"}],
        "canonical": True,
    }
    measured = Measurement(
        subject="layers", seconds=0.1, evidence={**evidence, "beside_suite": [], "changes": []}
    )
    record = Record(
        probe=ORIGIN_PROBE, outcome=Outcome.COMPLETED, seconds=0.1, measurements=(measured,)
    )
    before = trial(PIP, origin()).evidence
    records = (*(row for row in before.records if row.probe != ORIGIN_PROBE), record)
    run = statements.read_attestation(replace(before, records=records).dumps().encode(), "a run")
    assert [row.status for row in run.verdict.claims] == [Status.PASS, Status.UNPROVEN]

    today = gate.judge_by_claims(
        run.evidence, ClaimSet(image=NAME, claims=(PIP, origin("20.10", "28.5")))
    )
    said = statements.make_test_result([replace(run, verdict=today)])
    assert said[TIERS]["static"]["result"] == PASSED
    assert list(statements.find_test_result_faults(statement(said), [run])) == []


@given(st.dictionaries(st.text(), st.text()), st.binary())
def test_an_envelope_is_read_back(predicate: dict[str, str], signature: bytes) -> None:
    said = replace(statement(predicate, PROVENANCE), signature=base64.b64encode(signature).decode())
    assert Statement.from_envelope(said.envelope) == said
    assert (said.predicate, said.predicate_type, said.subjects) == (predicate, PROVENANCE, {DIGEST})


@pytest.mark.parametrize(
    "content",
    [
        b"{}",
        b"[]",
        b"no JSON",
        b'{"payloadType": "text/plain", "payload": "", "signatures": [{"sig": ""}]}',
        b'{"payloadType": "application/vnd.in-toto+json", "payload": "???", "signatures": [{"sig": ""}]}',
        b'{"payloadType": "application/vnd.in-toto+json", "payload": "e30=", "signatures": []}',
        b'{"payloadType": "application/vnd.in-toto+json", "payload": "W10=", "signatures": []}',
    ],
)
def test_what_is_no_envelope_is_told_as_such(content: bytes) -> None:
    with pytest.raises((ValueError, LookupError, TypeError, AttributeError)):
        Statement.from_envelope(content)


def test_each_tier_has_a_result_a_date_and_its_evidence() -> None:
    said = result_of([static := trial(PIP, date=EARLY), gpu := trial(GPU_PIP)])
    assert said["result"] == PASSED and not said["failedTests"] and not said["warnedTests"]
    assert said["passedTests"] == ["gpu/pins/pip-on-gpu", "static/pins/pip"]
    assert said[TIERS]["gpu"] == {
        "result": PASSED,
        "measuredOn": "2026-11-20T10:00:00Z",
        "evidence": f"sha256:{sha256(gpu.evidence_file)}",
        "gpus": ["NVIDIA H100"],
        "driver": "580.95",
        "unproven": [],
    }
    assert said[TIERS]["static"]["measuredOn"] == "2026-11-01T10:00:00Z"
    assert set(statement(said).evidence) == {static.evidence_file, gpu.evidence_file}
    for row in said["configuration"]:
        assert sha256(base64.b64decode(row["content"])) == row["digest"]["sha256"]


def test_a_tier_that_nobody_judged_is_not_there() -> None:
    assert list(result_of([trial(PIP)])[TIERS]) == ["static"]
    assert result_of([])["result"] == FAILED


def test_the_newest_run_that_passed_a_tier_decides() -> None:
    """A newer one that measured a part of it does not make it younger."""
    other = replace(GPU_PIP, subject="more")
    claims = replace(CLAIMS, claims=(GPU_PIP, other))
    found = [trial(GPU_PIP, other, date=EARLY), trial(GPU_PIP, date=LATE)]
    said = result_of(found, claims)[TIERS]["gpu"]
    assert (said["result"], said["measuredOn"]) == (PASSED, "2026-11-01T10:00:00Z")


@pytest.mark.parametrize(
    ("found", "result"),
    [
        ([trial(GPU_PIP, version="1")], FAILED),
        ([trial(GPU_PIP), trial(GPU_PIP, version="1", date=EARLY)], FAILED),
        ([trial(replace(GPU_PIP, unproven="no GPU"))], UNPROVEN),
        ([trial(replace(GPU_PIP, subject="another"))], UNPROVEN),
    ],
    ids=["failed", "failed once", "not measured", "fewer claims than the matrix has"],
)
def test_nothing_but_a_whole_tier_that_passed_is_passed(
    found: list[Attestation], result: str
) -> None:
    said = result_of(found, replace(CLAIMS, claims=(GPU_PIP,)))
    assert said[TIERS]["gpu"]["result"] == result and said["result"] == FAILED


def test_what_was_not_measured_is_in_no_list_of_tests() -> None:
    said = result_of([trial(replace(GPU_PIP, unproven="no GPU"))])
    assert said["passedTests"] == said["warnedTests"] == said["failedTests"] == []
    assert said[TIERS]["gpu"]["unproven"] == ["pins/pip-on-gpu"]


@pytest.mark.parametrize(
    ("whole", "tier", "told"),
    [
        ({}, {"result": PASSED}, ["the gpu tier did not pass"]),
        (
            {},
            {"measuredOn": "2026-12-01T00:00:00Z"},
            ["the gpu tier was measured on 2026-11-20T10:00:00Z"],
        ),
        (
            {},
            {"evidence": "sha256:" + "0" * 64},
            ["the gpu tier stands on evidence that is not attached"],
        ),
        ({"result": PASSED}, {}, ["it says PASSED, and not every tier passed"]),
        # A verdict of an older judge, say: what was PASS then may be FAIL now.
        (
            {"passedTests": ["gpu/pins/pip-on-gpu"], "failedTests": []},
            {},
            [
                "passedTests differ in gpu/pins/pip-on-gpu",
                "failedTests differ in gpu/pins/pip-on-gpu",
            ],
        ),
    ],
)
def test_what_says_more_than_the_evidence_is_a_fault(
    whole: Any, tier: Any, told: list[str]
) -> None:
    failed = trial(GPU_PIP, version="1")
    said = {**result_of([failed]), **whole}
    said[TIERS]["gpu"] |= tier
    assert list(statements.find_test_result_faults(statement(said), [failed])) == told


def test_a_test_result_with_more_evidence_supersedes_one_with_less() -> None:
    first, later = trial(PIP, date=EARLY), trial(GPU_PIP)
    one, both = (statement(result_of(found)) for found in ([first], [first, later]))
    assert both.supersedes(one) and not one.supersedes(both) and not both.supersedes(both)
    assert not both.supersedes(statement({}, PROVENANCE)) and not statement({}).supersedes(one)


@pytest.mark.parametrize(
    "content", ["???", "bm8geHo=", base64.b64encode(lzma.compress(b"x" * 100)[:-4]).decode()]
)
def test_evidence_that_cannot_be_unpacked_is_told(content: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        _ = statement({"configuration": [{"content": content}]}).evidence


def test_evidence_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may push may attach a small file that fills the memory."""
    monkeypatch.setattr(statements, "_LARGEST_EVIDENCE", 1000)
    content = base64.b64encode(lzma.compress(bytes(1001))).decode()
    with pytest.raises(ValueError, match="too much"):
        _ = statement({"configuration": [{"content": content}]}).evidence


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda e: e.replace(b'"26.3"', b'"26.4"'), "changed after it was measured"),
        (lambda _: b"no JSON", "no attest"),
        (
            lambda e: e.replace(b'"schema_version": 3', b'"schema_version": 2'),
            "claims had numbers.* can't be converted",
        ),
    ],
)
def test_a_run_that_was_edited_is_refused(change: Callable[[bytes], bytes], words: str) -> None:
    with pytest.raises(UserError, match=words):
        statements.read_attestation(change(evidence(PIP).dumps().encode()), "here")
