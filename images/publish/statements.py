"""Validation runs of an image, and in-toto statements about it in DSSE envelopes: the one form of what is attached.

| predicate | says |
|---|---|
| in-toto test result 0.1 | what passed, with the evidence of every validation run |
| SLSA provenance 1 | what it was built from |
| CycloneDX SBOM | what is in it |

One test result tells of every tier: `cosign verify-attestation --policy` and Kyverno want each statement of a type to
fit, so a policy could not ask for a tier that had a statement of its own. UNPROVEN and KNOWN are in no list of tests,
as consumers take `warnedTests` for passed ones. Sources: in-toto attestation framework 1.1, DSSE protocol 1.0.2.
"""

import base64
import json
import lzma
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self

from images.errors import command, failed
from images.host.hashing import sha256
from images.publish import gate
from images.validation.rows import OlderSchemaError, parse_evidence
from validate.claims import ORIGIN_PROBE, Tier
from validate.evidence import Evidence
from validate.judge import Verdict, judge
from validate.judging import Status, listed

TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
PROVENANCE = "https://slsa.dev/provenance/v1"
CYCLONEDX = "https://cyclonedx.org/bom"
NAMES: Mapping[str, str] = {TEST_RESULT: "test result", PROVENANCE: "provenance", CYCLONEDX: "SBOM"}
"""Predicate type -> what people call it. A published image has one of each at least."""
TIERS = "truetagTiers"
"""The field that admission policies read: the specification allows extension fields with names that nobody else uses.

Tier -> `result` (PASSED, FAILED or UNPROVEN), `measuredOn` (RFC 3339; missing where the evidence has no date),
`evidence` (digest of the evidence.json that it stands on), `gpus`, `driver`, `unproven` (claims not measured).
"""
ORIGIN_EXCEPTION = "truetagOriginException"
"""Why the image was published although the origin of its layers is UNPROVEN; missing where it is proven."""
PASSED, FAILED, UNPROVEN = "PASSED", "FAILED", "UNPROVEN"
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, lzma.LZMAError)
"""What JSON of another form raises where it is read: whoever may push may attach anything."""
EVIDENCE_FILE = "evidence.json"
_ORIGIN_TEST = f"{Tier.STATIC}/origin/layers"
_STATEMENT = "https://in-toto.io/Statement/v1"
_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_XZ = "application/x-xz"
_LARGEST_EVIDENCE = 256 * 1024**2
"""Bytes. Evidence has one or two million; who may push may attach what unpacks to anything."""


@dataclass(frozen=True, kw_only=True)
class Attestation:
    """A validation run, judged again when it was read."""

    verdict: Verdict
    """By the claims that it was measured for; `ReleasePolicy.judged` gives the one by today's."""
    evidence: Evidence
    evidence_file: bytes


def attested(evidence_file: bytes, where: str) -> Attestation:
    """Judge the evidence of a validation run again. Raises UserError: it can't be read, or was changed."""
    try:
        evidence = parse_evidence(evidence_file.decode())
    except OlderSchemaError as error:
        cause = (
            f"its evidence can't be judged here: {error}. It is signed, so it can't be converted: verify it with the "
            "release of truetag that published it, or validate the image again and publish it anew"
        )
        then = f"validate the image again: `{command('validate', 'NAME', '--image', 'REF')}`"
        raise failed(where, cause, then) from None
    except ValueError as error:
        then = f"validate the image again: `{command('validate', 'NAME', '--image', 'REF')}`"
        raise failed(where, f"is no attestation: {str(error).splitlines()[0]}", then) from None
    return Attestation(
        verdict=judge(evidence.claim_set, evidence), evidence=evidence, evidence_file=evidence_file
    )


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A statement as it is signed: its bytes are its identity. `signature`: in base64; empty where nobody signed it."""

    payload: bytes
    signature: str = ""

    @classmethod
    def of(
        cls, predicate_type: str, predicate: Mapping[str, Any], *, repository: str, digest: str
    ) -> Self:
        """Say something of `REPOSITORY@sha256:...`. The same content gives the same bytes."""
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
        """Read an envelope, by its first signature. Raises one of UNREADABLE."""
        data = json.loads(content)
        if data["payloadType"] != _PAYLOAD_TYPE:
            raise ValueError(f"its payload is {data['payloadType']}")
        found = cls(
            payload=base64.b64decode(data["payload"], validate=True),
            signature=str(data["signatures"][0]["sig"]) if data["signatures"] else "",
        )
        _ = found.predicate_type, found.subjects  # both can be read
        return found

    @property
    def envelope(self) -> bytes:
        signatures = [{"keyid": "", "sig": self.signature}] if self.signature else []
        payload = base64.b64encode(self.payload).decode()
        data = {"payload": payload, "payloadType": _PAYLOAD_TYPE, "signatures": signatures}
        return json.dumps(data, separators=(",", ":")).encode()

    @property
    def signed_bytes(self) -> bytes:
        """What a signature is made over: DSSE's pre-authentication encoding (PAE)."""
        kind = _PAYLOAD_TYPE.encode()
        return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(self.payload), self.payload)

    @property
    def predicate_type(self) -> str:
        return str(json.loads(self.payload)["predicateType"])

    @property
    def predicate(self) -> Mapping[str, Any]:
        """Raises one of UNREADABLE."""
        return dict(json.loads(self.payload)["predicate"])

    @property
    def origin_exception(self) -> str:
        """Why its image was published although its origin is UNPROVEN. Raises one of UNREADABLE."""
        return str(self.predicate.get(ORIGIN_EXCEPTION, ""))

    @property
    def subjects(self) -> frozenset[str]:
        """Digests (`sha256:...`) of what it is about."""
        rows = json.loads(self.payload)["subject"]
        return frozenset(f"{kind}:{value}" for row in rows for kind, value in row["digest"].items())

    @property
    def evidence(self) -> Sequence[bytes]:
        """The evidence.json of each validation run in a test result. Raises one of UNREADABLE."""
        found = []
        for row in self.predicate["configuration"]:
            unpacking = lzma.LZMADecompressor(lzma.FORMAT_XZ)
            found.append(
                unpacking.decompress(
                    base64.b64decode(row["content"], validate=True), _LARGEST_EVIDENCE
                )
            )
            if not unpacking.eof:
                raise ValueError("its evidence is cut off, or too much")
        return found

    def supersedes(self, old: Self) -> bool:
        """Whether it is a test result with all evidence of an older one."""
        if self.payload == old.payload or {self.predicate_type, old.predicate_type} != {
            TEST_RESULT
        }:
            return False
        try:
            return set(self.evidence) >= set(old.evidence)
        except UNREADABLE:
            return False


def test_result(found: Sequence[Attestation], origin_exception: str = "") -> dict[str, Any]:
    """The predicate of what all validation runs of an image say together, each with its verdict by today's claims:
    tests are named `TIER/CHECK/SUBJECT`. `origin_exception`: as the policy has it.
    """
    packed = [lzma.compress(one) for one in sorted({one.evidence_file for one in found})]
    rows = [
        {
            "name": f"{EVIDENCE_FILE}.xz",
            "digest": {"sha256": sha256(content)},
            "mediaType": _XZ,
            "content": base64.b64encode(content).decode(),
        }
        for content in packed
    ]
    return {**_summary(found, origin_exception), "configuration": rows}


def _summary(found: Sequence[Attestation], origin_exception: str) -> dict[str, Any]:
    tiers = {
        str(tier): _tier(found, tier, origin_exception)
        for tier in Tier
        if any(_judged(one, tier) for one in found)
    }
    statuses: dict[str, set[Status]] = {}
    for one in (row for run in found for row in run.verdict.claims):
        statuses.setdefault(f"{one.claim.tier}/{one.claim.key}", set()).add(one.status)
    failed = sorted(name for name, seen in statuses.items() if Status.FAIL in seen)
    return {
        "result": PASSED
        if tiers and all(one["result"] == PASSED for one in tiers.values())
        else FAILED,
        "passedTests": sorted(
            name for name, seen in statuses.items() if Status.PASS in seen and name not in failed
        ),
        "warnedTests": [],
        "failedTests": failed,
        TIERS: tiers,
        **({ORIGIN_EXCEPTION: origin_exception} if origin_exception else {}),
    }


def test_result_faults(said: Statement, found: Sequence[Attestation]) -> Iterator[str]:
    """Where a test result says more than its own evidence (`found`): by the claims of its day it may say less.

    Raises one of UNREADABLE.
    """
    predicate = said.predicate
    # A record that came after the run may have proved the origin of its layers: only the gate can tell.
    found = [_without_open_origin(run) for run in found]
    again = _summary(found, said.origin_exception)
    passed = set(predicate["passedTests"]) - set(again["passedTests"]) - {_ORIGIN_TEST}
    failed = set(again["failedTests"]) - set(predicate["failedTests"])
    if passed:
        yield f"passedTests differ in {listed(sorted(passed), limit=5)}"
    if failed:
        yield f"failedTests differ in {listed(sorted(failed), limit=5)}"

    runs = {_evidence_digest(run): run for run in found}
    for name, tier in predicate[TIERS].items():
        run = runs.get(tier["evidence"])
        if run is None:
            yield f"the {name} tier stands on evidence that is not attached"
            continue
        if tier.get("measuredOn", "") != measured_on(run):
            yield f"the {name} tier was measured on {measured_on(run) or 'an unknown day'}"
        missing = gate.tier_refusals(
            [run.verdict], Tier(name), origin_exception=said.origin_exception
        )
        if tier["result"] == PASSED and missing:
            yield f"the {name} tier did not pass"
    if predicate["result"] == PASSED and any(
        tier["result"] != PASSED for tier in predicate[TIERS].values()
    ):
        yield "it says PASSED, and not every tier passed"


def _without_open_origin(run: Attestation) -> Attestation:
    """Leave out the claim `origin` where the run was UNPROVEN only because no two builds were recorded yet."""
    claims = tuple(
        row
        for row in run.verdict.claims
        if row.claim.probe != ORIGIN_PROBE
        or row.claim.unproven
        or row.status is not Status.UNPROVEN
    )
    return replace(run, verdict=replace(run.verdict, claims=claims))


def measured_on(one: Attestation) -> str:
    """RFC 3339 in UTC; empty where the evidence has no date."""
    try:
        return (
            datetime.fromisoformat(str(one.evidence.host["date"]))
            .astimezone(UTC)
            .strftime("%Y-%m-%dT%H:%M:%SZ")
        )
    except (LookupError, ValueError):
        return ""


def _tier(found: Sequence[Attestation], tier: Tier, origin_exception: str) -> dict[str, Any]:
    """A tier, by the newest run that passed it; where none did, by the newest that judged it."""
    refusals = partial(gate.tier_refusals, tier=tier, origin_exception=origin_exception)
    complete = [one for one in found if not refusals([one.verdict])]
    decides = max(complete or [one for one in found if _judged(one, tier)], key=measured_on)
    passed = not refusals([one.verdict for one in found])
    failed = any(_names(one, tier, Status.FAIL) for one in found)
    date = measured_on(decides)
    return {
        "result": PASSED if passed else FAILED if failed else UNPROVEN,
        "evidence": _evidence_digest(decides),
        "gpus": [str(gpu.get("name", "")) for gpu in decides.evidence.host.get("gpus") or ()],
        "driver": str(decides.evidence.host.get("driver") or ""),
        "unproven": _names(decides, tier, Status.UNPROVEN),
        **({"measuredOn": date} if date else {}),
    }


def _judged(one: Attestation, tier: Tier) -> bool:
    return any(row.claim.tier is tier for row in one.verdict.claims)


def _names(one: Attestation, tier: Tier, status: Status) -> list[str]:
    """Required claims of a tier that have a verdict."""
    rows = [
        row.claim
        for row in one.verdict.claims_with(status)
        if row.claim.tier is tier and row.claim.required
    ]
    return sorted(claim.key for claim in rows)


def _evidence_digest(one: Attestation) -> str:
    return f"sha256:{sha256(one.evidence_file)}"
