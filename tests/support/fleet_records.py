"""Jobs of a fleet and what workers give back for them, without an engine: evidence that a judge reads."""

from datetime import UTC, datetime, timedelta
from typing import Any

from images.fleet.model import Job, JobRecord, JobResult, WorkerInfo
from validate.claims import Claim, ClaimSet, Tier
from validate.evidence import Evidence, MeasuredOn, Measurement, Outcome, Record

NAME = "cu126-torch27"


def claim(subject: str = "pip", version: str = "25.0", number: str = "S1", **more: Any) -> Claim:
    """A distribution at a version."""
    expect = {"version": version, "locals": [""], "modules": [], "python": "3.11"}
    plain = {"tier": Tier.STATIC, "probe": "static.pins", "statement": "x", "expect": expect}
    return Claim(id=number, subject=subject, **{**plain, **more})


def installed(version: str = "25.0") -> dict[str, Any]:
    """What the probe of S1 measures."""
    one = {"version": version, "location": "/x", "has_record": True, "tags": []}
    return {"installed": [one], "python": "3.11", "glibc": "2.36", "modules": {}}


def claims(*found: Claim) -> ClaimSet:
    return ClaimSet(image=NAME, claims=found)


def job(number: int, held_to: ClaimSet, **more: Any) -> Job:
    """A job of the static tier about an image of its own."""
    digest = "sha256:" + f"{number:02x}" * 32
    plain = [{**vars(one), "tier": str(one.tier)} for one in held_to.claims]
    data = {"image": NAME, "claims": plain}
    given = {"image": NAME, "digest": digest, "reference": f"a.test/b@{digest}", "tiers": (Tier.STATIC,)}
    return Job(**{**given, "claims": data, **more})


def result(
    one: Job,
    held_to: ClaimSet,
    digest: str = "",
    gpus: tuple[str, ...] = (),
    days: float = 0,
    node: str = "n1",
    build: dict[str, Any] | None = None,
    **measured: Any,
) -> JobResult:
    """What a worker gave back `days` ago. It measured `measured` (subject -> evidence), held to these claims."""
    found = tuple(Measurement(subject=name, seconds=0.1, evidence=value) for name, value in measured.items())
    record = Record(probe="static.pins", outcome=Outcome.COMPLETED, seconds=1, measurements=found)
    now = datetime.now(UTC) - timedelta(days=days)
    host: MeasuredOn = {"date": now.isoformat(), "gpus": [{"name": name} for name in gpus]}
    image = digest or one.digest
    evidence = Evidence(image=NAME, digest=image, records=(record,), host=host, claims=held_to.claims)
    return JobResult(
        record=JobRecord(
            key=one.key,
            worker=WorkerInfo(executor="obedient", node=node),
            started=now,
            ended=now,
            digest=image,
            reference=one.reference or f"a.test/b@{image}",
            evidence_sha256=Evidence.loads(evidence.dumps()).sha256,
            build=build or {},
        ),
        evidence=evidence.dumps(),
    )
