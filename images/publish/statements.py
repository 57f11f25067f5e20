"""Write and read the signed statements that are attached to a published image (in-toto, DSSE).

| predicate | contents |
|---|---|
| in-toto test result 0.1 | which claims passed, with the evidence of every validation run |
| SLSA provenance 1 | what the image was built from |
| CycloneDX SBOM | which packages it contains |

One test result covers every tier. `cosign verify-attestation --policy` and Kyverno want each
statement of a type to fit a policy, so no policy could ask for a tier with a statement of its own.
Claims that are UNPROVEN or KNOWN are in no list of tests, as consumers take `warnedTests` for
passed ones. Sources: in-toto attestation framework 1.1, DSSE protocol 1.0.2.
"""

import base64
import json
import lzma
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self

from images.errors import command, failed
from images.host.hashing import sha256
from images.publish import gate
from images.validation.rows import OlderSchemaError, parse_evidence
from validate.claims import Tier
from validate.evidence import Evidence
from validate.judge import Verdict, judge
from validate.judging import Status, listed

TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
PROVENANCE = "https://slsa.dev/provenance/v1"
CYCLONEDX = "https://cyclonedx.org/bom"
NAMES: Mapping[str, str] = {TEST_RESULT: "test result", PROVENANCE: "provenance", CYCLONEDX: "SBOM"}
"""Predicate type -> what people call it. A published image has at least one of each."""
TIERS = "truetagTiers"
"""The field of a test result that admission policies read. The specification allows extension
fields with names that nobody else uses.

Tier -> `result` (PASSED, FAILED or UNPROVEN), `measuredOn` (RFC 3339; missing where the evidence
has no date), `evidence` (digest of the evidence.json behind the result), `gpus`, `driver`,
`unproven` (claims that were not measured).
"""
ORIGIN_EXCEPTION = "truetagOriginException"
"""The field with the reason to publish the image although the origin of its layers is UNPROVEN;
missing where it is proven."""
PASSED, FAILED, UNPROVEN = "PASSED", "FAILED", "UNPROVEN"
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, lzma.LZMAError)
"""The errors that reading a malformed statement raises: whoever may push may attach anything."""
EVIDENCE_FILE = "evidence.json"
_ORIGIN_TEST = f"{Tier.STATIC}/origin/layers"
"""The test of the claim `origin`: see `find_test_result_faults`."""
_STATEMENT = "https://in-toto.io/Statement/v1"
_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_XZ = "application/x-xz"
_LARGEST_EVIDENCE = 256 * 1024**2
"""Bytes. Evidence has one or two million; an attacker may attach a file that unpacks to more."""


# --- validation runs ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Attestation:
    """A validation run of an image, judged again when it was read."""

    verdict: Verdict
    """By the claims that it was measured for; `ReleasePolicy.judge_run` judges by today's."""
    evidence: Evidence
    evidence_file: bytes

    @property
    def measured_on(self) -> str:
        """Return when the run was measured (RFC 3339, UTC); empty if its evidence has no date."""
        try:
            date = datetime.fromisoformat(str(self.evidence.host["date"]))
        except (LookupError, ValueError):
            return ""
        return date.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    @property
    def evidence_digest(self) -> str:
        """Return `sha256:...` of its evidence.json."""
        return f"sha256:{sha256(self.evidence_file)}"

    def has_tier(self, tier: Tier) -> bool:
        """Return whether the verdict has a claim of this tier."""
        return any(claim_verdict.claim.tier is tier for claim_verdict in self.verdict.claims)

    def required_claims(self, tier: Tier, status: Status) -> list[str]:
        """Return the names (`CHECK/SUBJECT`) of required claims with this tier and status."""
        names = []
        for claim_verdict in self.verdict.claims_with(status):
            claim = claim_verdict.claim
            if claim.tier is tier and claim.required:
                names.append(claim.key)
        return sorted(names)


def read_attestation(evidence_file: bytes, where: str) -> Attestation:
    """Read the evidence.json of a validation run and judge it by the claims that it contains.

    The file has the claims (what the image had to pass) and what was measured for them. `where`
    names it in error messages. Raises UserError where it cannot be read or is of an older schema.
    """
    again = command("validate", "NAME", "--image", "REF")
    then = (
        f"validate it again (`{again}`, NAME and REF being its name and reference), and publish it"
    )
    try:
        evidence = parse_evidence(evidence_file.decode())
    except OlderSchemaError as error:
        cause = (
            f"its evidence can't be judged here: {error}. It is signed, so it can't be converted: "
            "verify it with the release of truetag that published it, or validate the image again "
            "and publish it anew"
        )
        raise failed(where, cause, then) from None
    except ValueError as error:
        cause = f"its test result can't be read: {str(error).splitlines()[0]}"
        raise failed(where, cause, then) from None
    verdict = judge(evidence.claim_set, evidence)
    return Attestation(verdict=verdict, evidence=evidence, evidence_file=evidence_file)


# --- statements of every type ---------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Statement:
    """An in-toto statement. Its payload is the exact text that is signed."""

    payload: bytes
    signature: str = ""
    """In base64; empty where nobody signed the statement."""

    @classmethod
    def of(
        cls, predicate_type: str, predicate: Mapping[str, Any], *, repository: str, digest: str
    ) -> Self:
        """Make an unsigned statement about the image `repository`@`digest`.

        `predicate` is what it says of the image, `predicate_type` the URL that names the form of
        this content, and `digest` the manifest's: `sha256:...`. The same arguments always give the
        same bytes.
        """
        algorithm, _, value = digest.partition(":")
        content = {
            "_type": _STATEMENT,
            "subject": [{"name": repository, "digest": {algorithm: value}}],
            "predicateType": predicate_type,
            "predicate": predicate,
        }
        return cls(payload=json.dumps(content, sort_keys=True, separators=(",", ":")).encode())

    @classmethod
    def from_envelope(cls, content: bytes) -> Self:
        """Read a statement from a DSSE envelope, with the first signature only.

        An envelope is JSON: `payload` has the statement in base64, and `signatures` a list of
        signatures, which may be empty. The signature is not verified. Raises one of UNREADABLE for
        a malformed envelope, and for a payload without predicate type or subjects; the predicate
        itself is not read.
        """
        envelope = json.loads(content)
        if envelope["payloadType"] != _PAYLOAD_TYPE:
            raise ValueError(f"its payload is of the type {envelope['payloadType']}")
        signatures = envelope["signatures"]
        first_signature = str(signatures[0]["sig"]) if signatures else ""
        payload = base64.b64decode(envelope["payload"], validate=True)
        statement = cls(payload=payload, signature=first_signature)
        # Reading these two properties raises if the payload lacks them: here, and not at a caller.
        _ = statement.predicate_type, statement.subjects
        return statement

    @property
    def envelope(self) -> bytes:
        """Return the DSSE envelope with this statement and its signature, if it has one."""
        signatures = [{"keyid": "", "sig": self.signature}] if self.signature else []
        payload = base64.b64encode(self.payload).decode()
        data = {"payload": payload, "payloadType": _PAYLOAD_TYPE, "signatures": signatures}
        return json.dumps(data, separators=(",", ":")).encode()

    @property
    def signed_bytes(self) -> bytes:
        """Return the bytes to sign: the pre-authentication encoding (PAE) of DSSE."""
        kind = _PAYLOAD_TYPE.encode()
        return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(self.payload), self.payload)

    @property
    def predicate_type(self) -> str:
        return str(json.loads(self.payload)["predicateType"])

    @property
    def predicate(self) -> Mapping[str, Any]:
        """Return the content of the statement. Raises one of UNREADABLE."""
        return dict(json.loads(self.payload)["predicate"])

    @property
    def origin_exception(self) -> str:
        """Return the reason to publish although the origin is UNPROVEN; empty if there is none.

        Raises one of UNREADABLE.
        """
        return str(self.predicate.get(ORIGIN_EXCEPTION, ""))

    @property
    def subjects(self) -> frozenset[str]:
        """Return the digests (`sha256:...`) of the images that the statement is about."""
        digests = set()
        for subject in json.loads(self.payload)["subject"]:
            for algorithm, value in subject["digest"].items():
                digests.add(f"{algorithm}:{value}")
        return frozenset(digests)

    @property
    def evidence(self) -> Sequence[bytes]:
        """Return the unpacked evidence.json of each validation run in a test result.

        The evidence is what was measured of the image, and the claims it was measured for. Each
        file is packed with xz, in base64. Raises one of UNREADABLE, also for evidence that is cut
        off or too large, and for a statement that is no test result.
        """
        files = []
        for attached in self.predicate["configuration"]:
            packed = base64.b64decode(attached["content"], validate=True)
            # An attacker's file may unpack to far more: `decompress` stops at the limit, short of
            # the end (`eof`).
            decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ)
            files.append(decompressor.decompress(packed, _LARGEST_EVIDENCE))
            if not decompressor.eof:
                raise ValueError("its compressed evidence is cut off, or unpacks to too many bytes")
        return files

    def supersedes(self, old: Self) -> bool:
        """Return whether this and `old` are test results, and this one has all evidence of `old`.

        Then `old` may be removed: nothing that was measured is lost. A statement does not supersede
        itself, and nothing supersedes an unreadable statement.
        """
        if self.payload == old.payload:
            return False
        if self.predicate_type != TEST_RESULT or old.predicate_type != TEST_RESULT:
            return False
        try:
            return set(self.evidence) >= set(old.evidence)
        except UNREADABLE:
            return False


# --- test results ---------------------------------------------------------------------------------


def make_test_result(runs: Sequence[Attestation], origin_exception: str = "") -> dict[str, Any]:
    """Return the test result to attach to a published image: the content of the statement.

    It has the result of every tier (group of tests), and what each validation run measured, packed.
    Each of `runs` must have been judged by today's claims. `origin_exception` is the user's reason
    to publish the image although it is not proved where its layers come from; empty: none.
    """
    predicate = summarize(runs, origin_exception)
    # The field of the specification that may hold files, each as a ResourceDescriptor.
    predicate["configuration"] = []
    for evidence_file in sorted({run.evidence_file for run in runs}):
        packed = lzma.compress(evidence_file)
        descriptor = {
            "name": f"{EVIDENCE_FILE}.xz",
            "digest": {"sha256": sha256(packed)},
            "mediaType": _XZ,
            "content": base64.b64encode(packed).decode(),
        }
        predicate["configuration"].append(descriptor)
    return predicate


def summarize(runs: Sequence[Attestation], origin_exception: str) -> dict[str, Any]:
    """Return what a published image's test result says of its validation runs.

    It has the whole result, passed and failed tests, and the result of each tier (group of claims).
    Tests are claims, named `TIER/CHECK/SUBJECT`; one that failed in any run is listed as failed.
    The whole result is PASSED if the runs cover at least one tier, and each tier that they cover
    has the result PASSED.
    `origin_exception`: the reason to publish an image of unproven origin; empty: none.
    """
    tiers = {}
    for tier in Tier:
        if any(run.has_tier(tier) for run in runs):
            tiers[str(tier)] = summarize_tier(runs, tier, origin_exception)
    all_passed = all(tier["result"] == PASSED for tier in tiers.values())

    passed_tests: set[str] = set()
    failed_tests: set[str] = set()
    for run in runs:
        for claim_verdict in run.verdict.claims:
            test = f"{claim_verdict.claim.tier}/{claim_verdict.claim.key}"
            if claim_verdict.status is Status.PASS:
                passed_tests.add(test)
            elif claim_verdict.status is Status.FAIL:
                failed_tests.add(test)

    summary = {
        "result": PASSED if tiers and all_passed else FAILED,
        "passedTests": sorted(passed_tests - failed_tests),
        # Consumers take warned tests for passed ones.
        "warnedTests": [],
        "failedTests": sorted(failed_tests),
        TIERS: tiers,
    }
    if origin_exception:
        summary[ORIGIN_EXCEPTION] = origin_exception
    return summary


def summarize_tier(
    runs: Sequence[Attestation], tier: Tier, origin_exception: str
) -> dict[str, Any]:
    """Return one tier's part of the published test result, as it is written to JSON.

    A tier is a group of claims, such as those that need a GPU, and `runs` are all validation runs
    of the image. At least one of them must have measured the tier. `origin_exception` is the user's
    reason to publish the image although it is not proved where its layers come from; empty: none.
    """
    # All runs together decide: one that passed is enough, unless another one failed.
    if is_passed(runs, tier, origin_exception):
        result = PASSED
    elif any(run.required_claims(tier, Status.FAIL) for run in runs):
        result = FAILED
    else:
        result = UNPROVEN

    # GPU, driver and date are those of one run: the newest that passed by itself or, if none did,
    # the newest that measured the tier.
    passed_runs = [run for run in runs if is_passed([run], tier, origin_exception)]
    runs_with_tier = [run for run in runs if run.has_tier(tier)]
    shown_run = max(passed_runs or runs_with_tier, key=lambda run: run.measured_on)
    host = shown_run.evidence.host
    gpus = host.get("gpus") or ()
    summary = {
        "result": result,
        "evidence": shown_run.evidence_digest,
        "gpus": [str(gpu.get("name", "")) for gpu in gpus],
        "driver": str(host.get("driver") or ""),
        "unproven": shown_run.required_claims(tier, Status.UNPROVEN),
    }
    if shown_run.measured_on:
        summary["measuredOn"] = shown_run.measured_on
    return summary


def is_passed(runs: Sequence[Attestation], tier: Tier, origin_exception: str) -> bool:
    """Return whether the gate accepts this tier on the strength of these runs."""
    verdicts = [run.verdict for run in runs]
    return not gate.find_tier_refusals(verdicts, tier, origin_exception=origin_exception)


def find_test_result_faults(statement: Statement, runs: Sequence[Attestation]) -> Iterator[str]:
    """Yield a sentence for each false thing that the test result of a published image says.

    For example `the gpu tier did not pass`. `statement` holds the test result, `runs` are the
    validation runs that it was written from, judged again. It may say less than they show, because
    fewer tests existed when it was written. Raises one of UNREADABLE if it is malformed.
    """
    test_result = statement.predicate
    exception = statement.origin_exception
    # The builds that prove where layers come from may have been recorded after the run. Whether
    # they prove it is left to the gate.
    runs = [without_open_origin(run) for run in runs]

    yield from _find_false_tests(test_result, summarize(runs, exception))
    yield from _find_false_tiers(test_result[TIERS], runs, exception)

    not_passed = [tier for tier in test_result[TIERS].values() if tier["result"] != PASSED]
    if test_result["result"] == PASSED and not_passed:
        yield "it says PASSED, and not every tier passed"


def _find_false_tests(test_result: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence if a published test result makes an image look better than it is.

    It does if it lists tests as passed that did not pass, or leaves out tests that failed.
    `expected` is the test result that the same validation runs give today (`summarize`).
    """
    # The test of the layers' origin is no lie: it may have passed by records that came after the
    # run.
    wrongly_passed = set(test_result["passedTests"]) - set(expected["passedTests"]) - {_ORIGIN_TEST}
    if wrongly_passed:
        yield f"passedTests differ in {listed(sorted(wrongly_passed), limit=5)}"
    left_out = set(expected["failedTests"]) - set(test_result["failedTests"])
    if left_out:
        yield f"failedTests differ in {listed(sorted(left_out), limit=5)}"


def _find_false_tiers(
    tiers: Mapping[str, Any], runs: Sequence[Attestation], origin_exception: str
) -> Iterator[str]:
    """Yield a sentence for each false thing that a test result says of its tiers (groups of tests).

    `tiers`: name of a tier -> its result, and the digest and date of the run that gave it; see
    TIERS. `runs`: all validation runs of the image.
    """
    runs_by_digest = {run.evidence_digest: run for run in runs}
    for name, tier in tiers.items():
        run = runs_by_digest.get(tier["evidence"])
        if run is None:
            yield f"the {name} tier stands on evidence that is not attached"
            continue
        if tier.get("measuredOn", "") != run.measured_on:
            yield f"the {name} tier was measured on {run.measured_on or 'an unknown day'}"
        passed = is_passed([run], Tier(name), origin_exception)
        if tier["result"] == PASSED and not passed:
            yield f"the {name} tier did not pass"


def without_open_origin(run: Attestation) -> Attestation:
    """Return a run without its claim `origin`, if only records of builds were missing to prove it.

    The claim says that each layer comes from a known build. Such records may be made later. The
    claim stays if a reason was known before the run why the origin could never be proven: that of a
    base image taken by its tag, for example.
    """
    claims = []
    for claim_verdict in run.verdict.claims:
        # `unproven`: why a claim cannot be measured, where that is known beforehand.
        was_known_before = bool(claim_verdict.claim.unproven)
        if gate.is_unproven_origin(claim_verdict) and not was_known_before:
            continue
        claims.append(claim_verdict)
    return replace(run, verdict=replace(run.verdict, claims=tuple(claims)))
