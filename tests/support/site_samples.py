"""Samples for the site: runs, nightly lines and published tags, with every state of an image.

Their texts hold strings that would break a page if they were not escaped.
"""

from datetime import UTC, date, datetime

from images.nightly.results import BreakageLine, Job, JobLine, Outcome
from images.planning import plan
from images.site.inputs import SiteInputs
from images.site.runs import Published, Run
from images.validation.rows import Change, ClaimRow, TierCount, tier_counts
from tests.support.sources import SOURCES
from validate.claims import Tier
from validate.judging import Status

TODAY = date(2026, 11, 21)
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7 * 7 }}"
NEW, OLD, OTHER = ("sha256:" + char * 64 for char in "abc")
H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"
VALIDATED, PARTLY, FAILING, STALE, UNDATED, REBUILT, ARCH = (
    "cu130-torch214",
    "cu126-torch27",
    "cu128-torch28",
    "cu130-torch213",
    "cu130-torch212",
    "cu128-torch29",
    "cu126-torch27-sm90",
)
NEVER = "cu132-torch215"
UNLOCKED = "cu126-torch28"
TORCH = {
    row.name: pin.version
    for row in plan.plan(SOURCES)
    if row.image and (pin := row.image.pin("torch"))
}


def claim(
    tier: Tier,
    verdict: Status = Status.PASS,
    *,
    subject: str = "torch",
    check: str = "pins",
    required: bool = True,
    **more: object,
) -> ClaimRow:
    plain = {
        "check": check,
        "tier": tier,
        "subject": subject,
        "required": required,
        "verdict": verdict,
    }
    return ClaimRow.model_validate({**plain, "reason": f"2.7.1, {HOSTILE}", **more})


def run(
    image: str, *claims: ClaimRow, day: date | None = TODAY, digest: str = NEW, **more: object
) -> Run:
    rows = claims or (claim(Tier.STATIC), claim(Tier.CPU, check="imports"))
    plain = {
        "packages": {
            one.subject: TORCH.get(image, "2.7.1")
            for one in rows
            if (one.check, one.verdict) == ("pins", Status.PASS)
        },
        "source": f"results/{image}/{'-'.join(tier_counts(rows))}-{day}",
        "size": 6_900_000_000,
    }
    moment = datetime(day.year, day.month, day.day, tzinfo=UTC) if day else None
    return Run(
        image=image,
        digest=digest,
        moment=moment,
        tiers=tier_counts(rows),
        claims=rows,
        **{**plain, **more},  # type: ignore[arg-type]
    )


def gpu(verdict: Status = Status.PASS, tier: Tier = Tier.GPU) -> ClaimRow:
    return claim(tier, verdict, subject="visible", check="device")


def job(image: str, kind: Job, outcome: Outcome, **more: object) -> JobLine:
    plain = {
        "date": datetime(2026, 11, 20, 5, tzinfo=UTC),
        "image": image,
        "job": kind,
        "outcome": outcome,
        "versions": "0123456789ab",
        "revision": "ba9876543210",
        "tiers": {Tier.STATIC: TierCount(verdict=Status.PASS, counts={Status.PASS: 31})},
        "digest": NEW,
        "bytes": 7_000_000_000,
        "seconds": 61.5,
    }
    return JobLine.model_validate({**plain, **more})


MOVE = Change(name="torchao", before="0.11.0", after="0.14.1", pinned=True)
FAILED = ClaimRow(
    check="symbols",
    subject="resolved",
    tier=Tier.STATIC,
    verdict=Status.FAIL,
    required=True,
    reason=f"undefined {HOSTILE}",
)


def breakage(**more: object) -> BreakageLine:
    plain: dict[str, object] = {
        "date": datetime(2026, 11, 20, 6, tzinfo=UTC),
        "image": PARTLY,
        "versions": "ab0123456789",
        "revision": "ba9876543210",
        "claims": [FAILED],
        "culprits": [MOVE],
        "sentence": f"torchao 0.11.0 -> 0.14.1 breaks symbols/resolved: {HOSTILE}",
        "key": "torchao-0.14.1",
    }
    return BreakageLine.model_validate({**plain, **more})


STATIC_CPU = (claim(Tier.STATIC), claim(Tier.CPU, check="imports"))
RUNS = (
    run(VALIDATED, *STATIC_CPU, gpu(), gpu(tier=Tier.MULTIGPU), gpus=(H200, H200)),
    run(VALIDATED, gpu(), gpus=(H100,)),
    run(
        PARTLY,
        claim(Tier.STATIC),
        claim(Tier.STATIC, Status.UNPROVEN, subject="flash-attn", required=False),
        claim(Tier.CPU, check="imports"),
    ),
    run(
        PARTLY,
        claim(Tier.STATIC),
        packages={"torch": "2.7.0"},
        day=date(2026, 11, 1),
        digest=OLD,
        size=6_100_000_000,
    ),
    run(FAILING, *STATIC_CPU, gpu(Status.FAIL), gpus=(H100,)),
    run(STALE, *STATIC_CPU, gpu(), gpus=(H100,), packages={"torch": "2.0"}),
    run(UNDATED, *STATIC_CPU, gpu(), gpus=(H100,), day=None),
    run(REBUILT, *STATIC_CPU, gpu(), gpus=(H100,), digest=OLD, day=date(2026, 11, 10)),
    run(ARCH, *STATIC_CPU),
)
NIGHTLY = (
    job(PARTLY, Job.CONTROL, Outcome.PASS),
    job(PARTLY, Job.CANARY, Outcome.FAIL, changes=[MOVE], failing=[FAILED], digest=OTHER),
    job(
        "cu128-torch27", Job.CANARY, Outcome.NOT_BUILT, cause=HOSTILE, digest="", tiers={}, bytes=0
    ),
    job("cu999-torch27", Job.CONTROL, Outcome.UNPROVEN),
    job("cu128-torch27", Job.CONTROL, Outcome.FAIL, failing=[FAILED]),
    breakage(),
)
TAG = Published(
    reference=f"registry.example/images@{OTHER}",
    digest=NEW,
    bytes=3_000_000_000,
    tags=(REBUILT, f"{REBUILT}-20261121-aaaaaaaaaaaa"),
)


def inputs_with(**more: object) -> SiteInputs:
    plain = {
        "sources": SOURCES,
        "today": TODAY,
        "runs": RUNS,
        "nightly": NIGHTLY,
        "repository": "registry.example/images",
        "published": {REBUILT: TAG},
        "closures": {PARTLY: {"torch": "2.7.1", HOSTILE: "1"}},
        "blocked": {
            UNLOCKED: f"no lock: can't be built here; `nox -s lock -- {UNLOCKED}` makes it"
        },
    }
    return SiteInputs(**{**plain, **more})  # type: ignore[arg-type]
