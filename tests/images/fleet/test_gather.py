"""What a plan learns of the fleet's records: their evidence by today's claims, whatever workers wrote beside it."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from images.building.validating import Described
from images.commands import fleet_tables
from images.config.platforms import Platform
from images.fleet import gather, planning, travel
from images.fleet.config import Fleet
from images.fleet.gather import Places
from images.fleet.ledger import Ledger
from images.fleet.model import Job, Pair
from images.fleet.planning import FleetImage, Known, PlanInputs, State
from images.fleet.travel import Found
from images.registry.reference import Reference, Repository
from tests.support.fleet_records import NAME, claim, claims, installed, job, judged
from validate.claims import ClaimSet, Tier

PIP = claims(claim("pip"))


def known(ledger: Ledger, image: FleetImage) -> dict[Pair, Known]:
    return gather.known(ledger, ledger.records_of(ledger.job_keys()), [], [image])


def planned(ledger: Ledger, one: Job, today: ClaimSet) -> tuple[State, str]:
    image = FleetImage(name=NAME, digest=one.digest, archs=(), ptx=(), claims=today)
    given = PlanInputs(
        fleet=Fleet.model_validate({"workers": {"cpu": {}}}),
        now=datetime.now(UTC),
        known=known(ledger, image),
    )
    (found,) = planning.plan([image], given)
    return found.state, found.reason


def test_a_record_is_fresh_by_the_claims_of_today(tmp_path: Path) -> None:
    ledger, one = Ledger(tmp_path), job(1, PIP)
    ledger.note([one])
    ledger.commit(judged(one, PIP, pip=installed()))
    assert planned(ledger, one, PIP)[0] is State.FRESH
    assert planned(ledger, one, claims(claim("pip", "26.0")))[1].startswith("was FAIL")
    more = claims(claim("pip"), claim("torch", probe="static.y"))
    assert "lacks S1 torch" in planned(ledger, one, more)[1]


def test_what_a_worker_did_not_require_is_required_here(tmp_path: Path) -> None:
    """Its line says PASS: of the claims that it took for required."""
    ledger, one = Ledger(tmp_path), job(1, claims(claim("pip"), claim("torch")))
    ledger.note([one])
    easy = claims(claim("pip"), claim("torch", required=False))
    ledger.commit(judged(one, easy, pip=installed(), torch={"installed": [], "python": "3.11", "glibc": "2.36"}))
    assert planned(ledger, one, one.claim_set)[1].startswith("was FAIL")
    (row,) = fleet_tables.status_rows(ledger)
    assert (row["state"], row["verdict"]) == ("judged", "static FAIL")


def test_a_record_with_damaged_evidence_is_due_and_says_why(tmp_path: Path) -> None:
    ledger, one = Ledger(tmp_path), job(1, PIP)
    ledger.note([one])
    ledger.commit(judged(one, PIP, pip=installed()))
    (ledger.pair(one.key) / "evidence.json").write_text("{}")
    state, reason = planned(ledger, one, PIP)
    assert state is State.DUE and "can't be used" in reason
    (row,) = fleet_tables.status_rows(ledger)
    assert row["state"] == "unusable" and row["told"]


@pytest.mark.parametrize(
    ("engine", "registry", "found"),
    [
        ({"a", "a-candidate"}, {"a"}, "engine a"),
        ({"a-candidate"}, {"a"}, "engine a-candidate"),
        (set(), {"a", "a-candidate"}, "registry a"),
        (set(), {"a-candidate"}, "registry a-candidate"),
        (set(), set(), ""),
    ],
)
def test_what_is_here_comes_before_what_was_published(
    monkeypatch: pytest.MonkeyPatch, engine: set[str], registry: set[str], found: str
) -> None:
    described = Described(labels={}, history=())

    def in_engine(_engine: object, name: str) -> Found | None:
        return Found(digest=f"engine {name}", described=described, home="/root") if name in engine else None

    def in_registry(reference: Reference, _platform: Platform) -> Found | None:
        tag = reference.identifier
        return Found(digest=f"registry {tag}", described=described, home="/root") if tag in registry else None

    monkeypatch.setattr(travel, "in_engine", in_engine)
    monkeypatch.setattr(travel, "in_registry", in_registry)
    places = Places(engine=object(), repository=Repository.parse("a.test/b"))  # type: ignore[arg-type]
    located = gather.by_name("a", places, Platform.AMD64)
    assert (located.digest if located else "") == found


@pytest.mark.parametrize("gpu", ["NVIDIA H100 80GB HBM3", "Novel 9000"])
def test_a_record_counts_for_the_architecture_that_its_job_was_for(tmp_path: Path, gpu: str) -> None:
    ledger, on_gpu = Ledger(tmp_path), claims(claim("pip", tier=Tier.GPU))
    one = job(1, on_gpu, tiers=(Tier.GPU,), arch="12.1", gpus=1)
    ledger.note([one])
    ledger.commit(judged(one, on_gpu, gpus=(gpu,), pip=installed()))
    image = FleetImage(name=NAME, digest=one.digest, archs=(), ptx=(), claims=on_gpu)
    assert list(known(ledger, image)) == [Pair(image=NAME, digest=one.digest, tier=Tier.GPU, arch="12.1")]
