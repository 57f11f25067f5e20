"""The plan: what is fresh, due, leased or impossible, and which jobs that makes."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from images.commands import fleet
from images.config.names import Arch
from images.config.platforms import Platform
from images.fleet import planning
from images.fleet.config import Fleet
from images.fleet.model import Job, MatrixCell
from images.fleet.planning import FleetImage, Known, State
from validate.claims import Claim, ClaimSet, Tier
from validate.judging import Status

NOW = datetime(2026, 11, 22, tzinfo=UTC)
DIGEST = "sha256:" + "ab" * 32
MACHINES = {"h100": ("9.0", 8), "l4": ("8.9", 1), "b200": ("10.0", 8)}
ON_GPUS = {name: {"arch": arch, "gpus": gpus} for name, (arch, gpus) in MACHINES.items()}
FLEET = Fleet.model_validate({"max_age_days": 14, "workers": {"cpu": {}, **ON_GPUS}})
CLAIMS = ClaimSet(
    image="cu126-torch27",
    claims=tuple(
        Claim(id=number, subject="torch", tier=tier, probe=f"{tier}.x", statement="", required=required)
        for number, tier, required in (
            ("S1", Tier.STATIC, True),
            ("C1", Tier.CPU, True),
            ("C2", Tier.CPU, False),
            ("G1", Tier.GPU, True),
            ("M1", Tier.MULTIGPU, True),
        )
    ),
)
IMAGE = FleetImage(
    name="cu126-torch27",
    digest=DIGEST,
    archs=(Arch(7, 5), Arch(8, 6), Arch(9, 0)),
    ptx=(Arch(9, 0),),
    claims=CLAIMS,
    reference=f"registry.test/images@{DIGEST}",
)


def known(
    tier: Tier, arch: str = "", *, days: int = 1, verdict: Status = Status.PASS, judged: str = "S1 C1 G1 M1"
) -> Any:
    cell = MatrixCell(image=IMAGE.name, digest=DIGEST, tier=tier, arch=arch)
    keys = frozenset(f"{number} torch" for number in judged.split())
    return {cell: Known(date=NOW - timedelta(days=days), verdict=verdict, judged=keys, source="cpu")}


def planned(**more: Any) -> dict[tuple[str, str], tuple[State, str]]:
    found = planning.plan([IMAGE], FLEET, NOW, **more)
    return {(str(one.cell.tier), one.cell.arch): (one.state, one.reason) for one in found}


def test_each_tier_is_due_once_and_those_on_gpus_once_on_each_architecture() -> None:
    found = planned()
    due = {key for key, (state, _) in found.items() if state is State.DUE}
    assert due == {("static", ""), ("cpu", ""), ("gpu", "8.9"), ("gpu", "9.0"), ("multigpu", "9.0")}
    assert found["gpu", "7.5"] == (State.IMPOSSIBLE, "no machine of the fleet has sm_75")
    assert found["gpu", "10.0"] == (State.IMPOSSIBLE, "the image has no machine code for sm_100")
    assert found["multigpu", "8.9"] == (State.IMPOSSIBLE, "l4 has 1 GPU, 2 are needed")


def test_a_young_record_of_the_same_digest_with_every_required_claim_is_fresh() -> None:
    assert planned(known=known(Tier.CPU))["cpu", ""] == (State.FRESH, "PASS on 2026-11-21 (cpu)")
    assert planned(known=known(Tier.GPU, "9.0"))["gpu", "9.0"][0] is State.FRESH
    assert planned(known=known(Tier.GPU, "9.0"))["gpu", "8.9"][0] is State.DUE


def test_what_makes_a_record_count_no_more_is_told() -> None:
    assert planned(known=known(Tier.CPU, days=14))["cpu", ""][0] is State.FRESH
    assert "more than 14 days ago" in planned(known=known(Tier.CPU, days=15))["cpu", ""][1]
    assert planned(known=known(Tier.CPU, verdict=Status.FAIL))["cpu", ""] == (State.DUE, "was FAIL on 2026-11-21")
    assert planned(known=known(Tier.CPU, verdict=Status.UNPROVEN))["cpu", ""][0] is State.DUE
    assert planned(known=known(Tier.CPU, judged="S1"))["cpu", ""][1] == "its record of 2026-11-21 lacks C1 torch"


def test_what_somebody_else_judges_now_is_left_to_them() -> None:
    cell = MatrixCell(image=IMAGE.name, digest=DIGEST, tier=Tier.STATIC)
    assert planned(leased={cell: "ann@login"})["static", ""] == (State.LEASED, "ann@login")


def test_an_image_is_due_on_machines_of_its_platform_alone() -> None:
    image = replace(IMAGE, platform=Platform.ARM64)
    found = planning.plan([image], FLEET, NOW)
    assert {one.state for one in found} == {State.IMPOSSIBLE}
    assert found[0].reason == "no machine of the fleet is linux/arm64"
    assert found[-1].reason == "no machine of the fleet has sm_90 on linux/arm64"
    grace = {"arch": "9.0", "gpus": 1, "platform": "linux/arm64"}
    both = Fleet.model_validate({"workers": {**FLEET.model_dump()["workers"], "gh200": grace}})
    there = planning.plan([image], both, NOW)
    due = [(one.cell.tier, one.worker) for one in there if one.state is State.DUE]
    assert due == [(tier, "gh200") for tier in (Tier.STATIC, Tier.CPU, Tier.GPU)]
    assert {job.platform for group in planning.jobs(there, [image], both).values() for job in group} == {Platform.ARM64}
    assert "gh200" not in {one.worker for one in planning.plan([IMAGE], both, NOW)}


def test_cells_that_nobody_answered_are_named() -> None:
    found = planning.plan([IMAGE], FLEET, NOW, known=known(Tier.CPU))
    jobs = [one for group in planning.jobs(found, [IMAGE], FLEET).values() for one in group]
    left = planning.unanswered(found, [one for one in jobs if one.arch != "9.0"])
    due = [(one.cell.tier, one.cell.arch) for one in left if one.state is State.DUE]
    assert due == [(Tier.GPU, "9.0"), (Tier.MULTIGPU, "9.0")]
    assert State.IMPOSSIBLE in {one.state for one in left} and State.FRESH not in {one.state for one in left}


def test_architectures_that_the_fleet_lacks_are_not_missed_where_another_was_judged() -> None:
    found = planning.plan([IMAGE], FLEET, NOW, tiers=(Tier.GPU,))
    (judged,) = (job for group in planning.jobs(found, [IMAGE], FLEET).values() for job in group if job.arch == "9.0")
    left = planning.unanswered(found, [judged])
    assert [(one.cell.arch, one.state) for one in left] == [("8.9", State.DUE)]
    assert {one.cell.arch for one in planning.unanswered(found, [])} == {"7.5", "8.6", "8.9", "9.0", "10.0"}


def test_an_image_that_is_nowhere_is_impossible() -> None:
    missing = FleetImage(name="a", digest="", archs=(), ptx=(), claims=CLAIMS, why_not="it is nowhere")
    found = planning.plan([missing], FLEET, NOW)
    assert {(one.state, one.reason) for one in found} == {(State.IMPOSSIBLE, "it is nowhere")}
    assert planning.jobs(found, [missing], FLEET) == {}


def test_the_plan_says_once_why_cells_are_impossible_and_fits_80_columns() -> None:
    nowhere = [FleetImage(name=one, digest="", archs=(), ptx=(), claims=CLAIMS, why_not=f"{one}: no") for one in "ab"]
    machine = Fleet.model_validate({"workers": {"this-machine": {}}})
    said = fleet.plan_table(planning.plan([IMAGE, *nowhere], machine, NOW))
    assert [line.split()[2] for line in said[1:3]] == ["static", "cpu"] and max(map(len, said[:3])) <= 80
    assert said[3:7] == [
        *(f"impossible: gpu, multigpu of cu126-torch27: no machine of the fleet has sm_{one}" for one in (75, 86, 90)),
        "impossible: static, cpu of a, b: NAME: no",
    ]


def test_an_image_that_staging_lacks_is_built_first_by_one_job_whatever_is_asked() -> None:
    """Its GPU tiers are due again once it is there: nobody knows its digest before."""
    context = "c" * 64
    lacking = replace(IMAGE, digest=context, reference="", staging="registry.test/staging")
    for tiers in (tuple(Tier), (Tier.GPU,)):
        cells = planning.plan([lacking], FLEET, NOW, tiers=tiers)
        due = {one.reason for one in cells if one.state is State.DUE}
        assert due == {"is built first: registry.test/staging has no image of this context"}
        ((worker, (job,)),) = planning.jobs(cells, [lacking], FLEET, ["C1"]).items()
        assert (worker, job.tiers, job.context) == ("cpu", (Tier.STATIC, Tier.CPU), context)
        assert job.staging == lacking.staging and not job.digest and not job.claims and not job.only
    assert {cell.digest for cell in job.cells} == {context}
    assert job.key == f"{IMAGE.name}-built-{context[:12]}-static-cpu"
    (one,) = planning.plan([lacking], FLEET, NOW, tiers=[Tier.CPU], leased=dict.fromkeys(job.cells, "ann"))
    assert one.reason == "ann"


def test_static_and_cpu_are_one_job_and_gpus_are_asked_for_by_tier() -> None:
    image = replace(IMAGE, described={"labels": {"a": "b"}, "history": []})
    jobs = planning.jobs(planning.plan([image], FLEET, NOW), [image], FLEET)
    assert {worker: [(job.tiers, job.arch, job.gpus) for job in group] for worker, group in jobs.items()} == {
        "cpu": [((Tier.STATIC, Tier.CPU), "", 0)],
        "h100": [((Tier.GPU,), "9.0", 1), ((Tier.MULTIGPU,), "9.0", 2)],
        "l4": [((Tier.GPU,), "8.9", 1)],
    }
    (job,) = jobs["cpu"]
    assert job.described == {} and [one.described for one in jobs["h100"]] == [image.described] * 2
    assert Job.model_validate_json(job.model_dump_json()) == job
    assert job.claim_set == CLAIMS.of([Tier.STATIC, Tier.CPU])
    assert [one.claim_set.claims for one in jobs["h100"]] == [(), ()], "a worker writes those for its own GPUs"


def test_keys_differ_where_jobs_differ() -> None:
    jobs = planning.jobs(planning.plan([IMAGE], FLEET, NOW), [IMAGE], FLEET)
    (job,) = jobs["cpu"]
    others = [
        job.model_copy(update=update)
        for update in ({"only": ("C1",)}, {"digest": "sha256:" + "c" * 64}, {"tiers": (Tier.CPU,)})
    ]
    keys = {one.key for group in jobs.values() for one in group} | {one.key for one in others}
    assert len(keys) == 7
    assert job.model_copy(update={"reference": "other.test/x@" + DIGEST}).key == job.key
