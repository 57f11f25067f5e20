"""Statements and their envelopes, and what a test result says of validation runs."""

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
EARLY_IN_UTC, LATE_IN_UTC = "2026-11-01T10:00:00Z", "2026-11-20T10:00:00Z"


def run_of(*claims: Claim, date: str = LATE, **more: Any) -> Attestation:
    """A validation run that measured these claims. With `version="1"`, they fail."""
    return validated(DIGEST, date, claims, **more)


def statement_of(predicate: Any, predicate_type: str = TEST_RESULT) -> Statement:
    return Statement.of(predicate_type, predicate, repository="x.org/y", digest=DIGEST)


def faults_of(predicate: Any, *runs: Attestation) -> list[str]:
    """What a test result claims beyond its validation runs."""
    return list(statements.find_test_result_faults(statement_of(predicate), runs))


# --- envelopes ------------------------------------------------------------------------------------


def test_what_is_signed_has_the_form_of_the_protocol() -> None:
    """The example in protocol.md, with our payload type: lengths in bytes, in decimal."""
    signed = Statement(payload="hellö".encode()).signed_bytes

    assert signed == b"DSSEv1 28 application/vnd.in-toto+json 6 hell\xc3\xb6"


@given(st.dictionaries(st.text(), st.text()), st.binary())
def test_an_envelope_is_read_back(predicate: dict[str, str], signature: bytes) -> None:
    unsigned = statement_of(predicate, PROVENANCE)
    statement = replace(unsigned, signature=base64.b64encode(signature).decode())

    assert Statement.from_envelope(statement.envelope) == statement
    assert statement.predicate == predicate
    assert statement.predicate_type == PROVENANCE
    assert statement.subjects == {DIGEST}


def envelope_of(payload: bytes, payload_type: bytes = b"application/vnd.in-toto+json") -> bytes:
    return b'{"payloadType": "%b", "payload": "%b", "signatures": [{"sig": ""}]}' % (
        payload_type,
        payload,
    )


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"no JSON", id="no JSON"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"{}", id="without fields"),
        pytest.param(envelope_of(b"", b"text/plain"), id="of another type"),
        pytest.param(envelope_of(b"???"), id="a payload that is no base64"),
        pytest.param(envelope_of(base64.b64encode(b"{}")), id="a statement without fields"),
        pytest.param(envelope_of(base64.b64encode(b"[]")), id="a list as the statement"),
    ],
)
def test_what_is_no_envelope_raises_one_of_few_errors(content: bytes) -> None:
    with pytest.raises((ValueError, LookupError, TypeError, AttributeError)):
        Statement.from_envelope(content)


# --- what a test result says ----------------------------------------------------------------------


def test_a_test_result_has_the_result_date_and_evidence_of_each_tier() -> None:
    static_run, gpu_run = run_of(PIP, date=EARLY), run_of(GPU_PIP)

    predicate = result_of([static_run, gpu_run])

    assert predicate["result"] == PASSED
    assert predicate["passedTests"] == ["gpu/pins/pip-on-gpu", "static/pins/pip"]
    assert not predicate["failedTests"]
    assert not predicate["warnedTests"]
    assert predicate[TIERS]["gpu"] == {
        "result": PASSED,
        "measuredOn": LATE_IN_UTC,
        "evidence": f"sha256:{sha256(gpu_run.evidence_file)}",
        "gpus": ["NVIDIA H100"],
        "driver": "580.95",
        "unproven": [],
    }
    assert predicate[TIERS]["static"]["measuredOn"] == EARLY_IN_UTC
    evidence_files = set(statement_of(predicate).evidence)
    assert evidence_files == {static_run.evidence_file, gpu_run.evidence_file}
    for packed in predicate["configuration"]:
        assert sha256(base64.b64decode(packed["content"])) == packed["digest"]["sha256"]


def test_a_tier_that_no_run_judged_is_left_out() -> None:
    assert list(result_of([run_of(PIP)])[TIERS]) == ["static"]


def test_a_test_result_without_runs_is_failed() -> None:
    assert result_of([])["result"] == FAILED


def test_the_newest_run_that_passed_a_whole_tier_is_the_one_that_is_named() -> None:
    """A newer one that measured only a part of the tier is not."""
    second_claim = replace(GPU_PIP, subject="more")
    whole_run = run_of(GPU_PIP, second_claim, date=EARLY)
    partial_run = run_of(GPU_PIP, date=LATE)

    predicate = result_of([whole_run, partial_run], replace(CLAIMS, claims=(GPU_PIP, second_claim)))

    assert predicate[TIERS]["gpu"]["result"] == PASSED
    assert predicate[TIERS]["gpu"]["measuredOn"] == EARLY_IN_UTC


@pytest.mark.parametrize(
    ("runs", "result"),
    [
        pytest.param([run_of(GPU_PIP, version="1")], FAILED, id="failed"),
        pytest.param(
            [run_of(GPU_PIP), run_of(GPU_PIP, version="1", date=EARLY)],
            FAILED,
            id="failed in one run and passed in another",
        ),
        pytest.param([run_of(replace(GPU_PIP, unproven="no GPU"))], UNPROVEN, id="not measured"),
        pytest.param(
            [run_of(replace(GPU_PIP, subject="another"))],
            UNPROVEN,
            id="fewer claims than the matrix has",
        ),
    ],
)
def test_only_a_whole_tier_that_passed_is_passed(runs: list[Attestation], result: str) -> None:
    predicate = result_of(runs, replace(CLAIMS, claims=(GPU_PIP,)))

    assert predicate[TIERS]["gpu"]["result"] == result
    assert predicate["result"] == FAILED


def test_what_was_not_measured_is_in_no_list_of_tests() -> None:
    predicate = result_of([run_of(replace(GPU_PIP, unproven="no GPU"))])

    assert predicate["passedTests"] == []
    assert predicate["warnedTests"] == []
    assert predicate["failedTests"] == []
    assert predicate[TIERS]["gpu"]["unproven"] == ["pins/pip-on-gpu"]


# --- an unproven origin ---------------------------------------------------------------------------

ORIGIN_OF_A_BASE_BY_TAG = Claim(
    check="origin",
    subject="layers",
    tier=Tier.STATIC,
    probe=ORIGIN_PROBE,
    statement="x",
    unproven="by tag",
)


def test_an_exception_for_the_origin_is_named_in_the_test_result() -> None:
    run = run_of(PIP, ORIGIN_OF_A_BASE_BY_TAG)

    predicate = statements.make_test_result([run], "the mirror is down")

    assert predicate[statements.ORIGIN_EXCEPTION] == "the mirror is down"
    assert predicate[TIERS]["static"]["result"] == PASSED
    assert predicate[TIERS]["static"]["unproven"] == ["origin/layers"]
    assert faults_of(predicate, run) == []


def test_without_an_exception_a_tier_with_an_unproven_origin_does_not_pass() -> None:
    run = run_of(PIP, ORIGIN_OF_A_BASE_BY_TAG)
    with_exception = statements.make_test_result([run], "the mirror is down")
    exception_removed = {**with_exception}
    del exception_removed[statements.ORIGIN_EXCEPTION]

    assert statements.make_test_result([run])[TIERS]["static"]["result"] == UNPROVEN
    assert faults_of(exception_removed, run) == ["the static tier did not pass"]


def origin_of_layers(*builds: str) -> Claim:
    """The claim about the origin of one layer, of which these builds are recorded."""
    layer = {
        "layer": "base",
        "recipe": "r",
        "diff_id": "sha256:1" if builds else "",
        "written_as": [],
        "builds": [*builds],
    }
    expect = {"recipe": "r", "layers": [layer], "arguments": NAME, "is_derived": False}
    return replace(PIP, check="origin", subject="layers", probe=ORIGIN_PROBE, expect=expect)


def run_before_its_builds_were_recorded() -> Attestation:
    """A run that read the layer of `origin_of_layers`, when no build of it was recorded."""
    measured_layers = {
        "recipe": "r",
        "layers": [{"layer": "base", "diff_id": "sha256:1"}],
        "canonical": True,
        "beside_suite": [],
        "changes": [],
    }
    measurement = Measurement(subject="layers", seconds=0.1, evidence=measured_layers)
    record = Record(
        probe=ORIGIN_PROBE,
        outcome=Outcome.COMPLETED,
        seconds=0.1,
        measurements=(measurement,),
    )
    measured = run_of(PIP, origin_of_layers()).evidence
    other_records = [row for row in measured.records if row.probe != ORIGIN_PROBE]
    measured = replace(measured, records=(*other_records, record))
    return statements.read_attestation(measured.dumps().encode(), "a run")


def test_an_origin_that_was_recorded_after_the_run_is_no_fault() -> None:
    """`build`, then `reproduce --record`, then `publish`: no other run is needed."""
    run = run_before_its_builds_were_recorded()
    assert [row.status for row in run.verdict.claims] == [Status.PASS, Status.UNPROVEN]

    claims_today = ClaimSet(image=NAME, claims=(PIP, origin_of_layers("20.10", "28.5")))
    verdict_today = gate.judge_by_claims(run.evidence, claims_today)
    predicate = statements.make_test_result([replace(run, verdict=verdict_today)])

    assert predicate[TIERS]["static"]["result"] == PASSED
    assert faults_of(predicate, run) == []


# --- test results that say more than their evidence -----------------------------------------------


@pytest.mark.parametrize(
    ("change_of_whole", "change_of_tier", "faults"),
    [
        pytest.param(
            {}, {"result": PASSED}, ["the gpu tier did not pass"], id="a tier that passed"
        ),
        pytest.param(
            {},
            {"measuredOn": "2026-12-01T00:00:00Z"},
            [f"the gpu tier was measured on {LATE_IN_UTC}"],
            id="a later day",
        ),
        pytest.param(
            {},
            {"evidence": "sha256:" + "0" * 64},
            ["the gpu tier stands on evidence that is not attached"],
            id="other evidence",
        ),
        pytest.param(
            {"result": PASSED},
            {},
            ["it says PASSED, and not every tier passed"],
            id="that all passed",
        ),
        # A verdict of an older judge, say: what was PASS then may be FAIL now.
        pytest.param(
            {"passedTests": ["gpu/pins/pip-on-gpu"], "failedTests": []},
            {},
            [
                "passedTests differ in gpu/pins/pip-on-gpu",
                "failedTests differ in gpu/pins/pip-on-gpu",
            ],
            id="a test that passed",
        ),
    ],
)
def test_what_a_test_result_says_beyond_its_evidence_is_a_fault(
    change_of_whole: dict[str, Any], change_of_tier: dict[str, Any], faults: list[str]
) -> None:
    failed_run = run_of(GPU_PIP, version="1")
    predicate = {**result_of([failed_run]), **change_of_whole}
    predicate[TIERS]["gpu"] |= change_of_tier

    assert faults_of(predicate, failed_run) == faults


# --- which statement supersedes which -------------------------------------------------------------


def test_a_test_result_with_more_evidence_supersedes_one_with_less() -> None:
    first_run, later_run = run_of(PIP, date=EARLY), run_of(GPU_PIP)
    of_one_run = statement_of(result_of([first_run]))
    of_both_runs = statement_of(result_of([first_run, later_run]))

    assert of_both_runs.supersedes(of_one_run)
    assert not of_one_run.supersedes(of_both_runs)
    assert not of_both_runs.supersedes(of_both_runs)


def test_only_readable_test_results_supersede_each_other() -> None:
    test_result = statement_of(result_of([run_of(PIP)]))

    assert not test_result.supersedes(statement_of({}, PROVENANCE))
    assert not statement_of({}).supersedes(test_result)


# --- evidence -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("???", id="no base64"),
        pytest.param(base64.b64encode(b"no xz").decode(), id="not packed"),
        pytest.param(base64.b64encode(lzma.compress(b"x" * 100)[:-4]).decode(), id="cut off"),
    ],
)
def test_evidence_that_cannot_be_unpacked_is_an_error(content: str) -> None:
    statement = statement_of({"configuration": [{"content": content}]})

    with pytest.raises(ValueError, match=r"."):
        _ = statement.evidence


def test_evidence_that_unpacks_to_too_much_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may push may attach a small file that would fill the memory."""
    limit = 1000
    monkeypatch.setattr(statements, "_LARGEST_EVIDENCE", limit)
    content = base64.b64encode(lzma.compress(bytes(limit + 1))).decode()
    statement = statement_of({"configuration": [{"content": content}]})

    with pytest.raises(ValueError, match="too many bytes"):
        _ = statement.evidence


@pytest.mark.parametrize(
    ("edit", "cause"),
    [
        pytest.param(
            lambda file: file.replace(b'"26.3"', b'"26.4"'),
            "changed after it was measured",
            id="another version",
        ),
        pytest.param(lambda _file: b"no JSON", "test result can't be read", id="no JSON"),
        pytest.param(
            lambda file: file.replace(b'"schema_version": 3', b'"schema_version": 2'),
            "claims had numbers.* can't be converted",
            id="an older schema",
        ),
    ],
)
def test_a_run_that_was_edited_is_refused(edit: Callable[[bytes], bytes], cause: str) -> None:
    evidence_file = evidence(PIP).dumps().encode()

    with pytest.raises(UserError, match=cause):
        statements.read_attestation(edit(evidence_file), "ghcr.io/me/images@sha256:" + "0" * 64)
