"""The multigpu tier's own probes in a real image, over gloo on two ranks of the CPU.

They measure, and a rank that dies, hangs or leaves is never green. What only GPUs can show is
replayed from results/ (tests/validate/checks/test_replay.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from images.config.paths import CHECKOUT
from images.context import render
from images.context.hosting import host_settings
from images.context.labels import BaseContext
from images.engine import ContainerSpec, Engine
from images.engine.gpus import Attachment
from images.hardware.inventory import Gpu, GpuMode, Inventory
from images.locking import lock_file
from images.planning.image import Image
from images.validation import containers, validation_run
from images.validation.claims.context import ClaimContext
from images.validation.claims.multigpu import multigpu_claims
from tests.support import sources
from tests.support.cases import cases
from tests.support.engine_contents import built as built_image
from tests.support.sources import SOURCES
from validate.checks.multigpu._ranks import (
    RanksEvidence,
    RanksExpect,
    Requirements,
    judge_requirements,
)
from validate.claims import Claim, ClaimSet, Tier
from validate.evidence import Evidence, Record
from validate.judge import Verdict, judge
from validate.judging import Finding, Status

pytestmark = pytest.mark.engine
NAME = "cu130-torch211"
CORE = Gpu(name="CPU", capability=(0, 0), memory=32 << 30)
STAND_IN = Attachment(
    mode=GpuMode.HOST_DRIVER,
    reason="cores stand in for GPUs",
    inventory=Inventory(driver="", gpus=(CORE, CORE), source="test"),
)
ON_GPUS_ALONE = {"transport", "context"}
"""NCCL's log, and attention that torch shards for GPUs alone."""


@pytest.fixture(scope="module")
def image() -> Image:
    return sources.image(NAME)


@pytest.fixture(scope="module")
def tag(engine: Engine, image: Image, base: BaseContext, built: Mapping[str, Any]) -> Iterator[str]:
    """Return an image of the real layers up to the kernels, not judged.

    It comes after the parent, which may be building the same layers.
    """
    host, locks = host_settings(), lock_file.read(image, CHECKOUT.locks).files
    above = dict.fromkeys(("libraries.txt", "light.txt"), b"")
    context = dict(render.render(image, {**locks, **above}, base, host=host.files()))
    dockerfile = bytes(context.pop("Dockerfile")).decode()
    with built_image(
        engine, "truetag-test-ranks", dockerfile, context, host.network(local=engine.facts.local)
    ) as made:
        yield made


def rehearsed(image: Image) -> ClaimSet:
    claims = multigpu_claims(
        ClaimContext(image=image, facts=SOURCES.facts, inventory=STAND_IN.inventory), device="cpu"
    )
    kept = [claim for claim in claims if claim.subject not in ON_GPUS_ALONE]
    # The GPU's gate is not the emulation's.
    return ClaimSet(
        image=NAME, claims=tuple(replace(one, expect=_ungated(one), required=True) for one in kept)
    )


def _ungated(claim: Claim) -> Mapping[str, object]:
    return {name: value for name, value in claim.expect.items() if name != "not_applicable"}


def tried(engine: Engine, reference: str, claims: ClaimSet) -> Verdict:
    evidence = validation_run.validate(engine, reference, claims, [Tier.MULTIGPU], STAND_IN)
    return judge(claims, evidence, [Tier.MULTIGPU])


@pytest.fixture(scope="module")
def verdict(engine: Engine, image: Image, tag: str) -> Verdict:
    return tried(engine, tag, rehearsed(image))


def test_every_claim_that_a_cpu_can_rehearse_passes(verdict: Verdict) -> None:
    others = [one for one in verdict.claims if one.status is not Status.PASS]
    told = (f"{one.claim.key} {one.status}: {one.reason}\n{one.evidence}" for one in others)
    assert verdict.overall is Status.PASS, "\n".join(told)
    assert {one.claim.check for one in verdict.claims} == {
        "collectives",
        "ddp",
        "fsdp2",
        "fp8-fsdp2",
        "shared-memory",
        "parallel",
    }


def test_both_ranks_measured_over_gloo(verdict: Verdict) -> None:
    for one in verdict.claims:
        if one.claim.subject != "dev-shm":
            assert [rank["device"]["backend"] for rank in one.evidence["ranks"]] == ["gloo", "gloo"]


def test_the_trial_gives_ranks_room_in_shared_memory(engine: Engine, verdict: Verdict) -> None:
    (found,) = [one.evidence for one in verdict.claims if one.claim.check == "shared-memory"]
    assert found["size"] == containers.shared_memory(engine.facts.memory)


# ---- ranks that fail

FAULTY = cases(__file__, "faulty")
"""A check whose ranks do nothing well but one thing."""
RANKS = cases(__file__, "ranks")
"""Check -> its subjects, the limits of its ranks, and what a rank does."""


@pytest.fixture(scope="module")
def failing(engine: Engine, image: Image, tag: str) -> Verdict:
    """Run each of these checks beside the suite's own, in one container.

    It has Docker's default of 64 MiB for /dev/shm.
    """
    expect = {"device": "cpu", "ranks": 2}
    claims = [
        Claim(
            check="ddp",
            subject=f"{name} {subject}",
            tier=Tier.MULTIGPU,
            probe=f"multigpu.{name}",
            statement="",
            expect=expect,
        )
        for name, (subjects, _, _) in RANKS.items()
        for subject in subjects
    ]
    # A probe asks for its own subjects: the name before them is only there to tell claims apart.
    claims += [one for one in rehearsed(image).claims if one.check == "shared-memory"]
    asked = ClaimSet(image=NAME, claims=tuple(claims))
    files = {
        f"validate/checks/multigpu/{name}.py": FAULTY.format(limits=limits, faulty=faulty).encode()
        for name, (_, limits, faulty) in RANKS.items()
    }
    found = measured(engine, tag, asked, files)
    # Only the container has these checks: their claims are judged as those of other ranks.
    return judge(asked, found, judges={"ddp": judge_place_only})


def judge_place_only(_subject: str, expect: RanksExpect, evidence: RanksEvidence) -> Finding:
    """Judge that ranks ended well, whatever they computed."""
    return judge_requirements(Requirements(), expect, evidence)


def measured(
    engine: Engine, reference: str, claims: ClaimSet, more: Mapping[str, bytes]
) -> Evidence:
    command: Sequence[str] = [
        "python3",
        "-I",
        "-S",
        "/judge/validate",
        "--claims",
        "/judge/claims.json",
        "--jobs",
        "2",
    ]
    tmpfs = dict.fromkeys(("/tmp", "/home/trainer"), "rw,exec,mode=1777")
    spec, files = (
        ContainerSpec(reference, command, tmpfs=tmpfs, volumes=["/judge"]),
        {**containers.suite_files(claims), **more},
    )
    records: list[Record] = []
    probes = {claim.probe for claim in claims.claims}
    containers.run_suite(
        engine, spec, {"/judge": files}, timeout=1200, probes=probes, on_record=records.append
    )
    return Evidence(image=NAME, digest="", records=tuple(records), claims=claims.claims)


@pytest.mark.parametrize(
    ("subject", "status", "words"),
    [
        # a rank that dies fails its subject and greens no other, wherever the other rank is by then
        ("dies first", Status.UNPROVEN, ""),
        ("dies second", Status.FAIL, "rank 1 was killed by SIGKILL (rank 0 in dies "),
        ("dies third", Status.FAIL, ""),
        # one that hangs is named by the others, and all that hang are ended
        ("hangs first", Status.FAIL, "rank 0: rank 1 did not come out of hangs first in 8 s"),
        (
            "hangs_all first",
            Status.FAIL,
            "torchrun did not end in 12 s (rank 0 in hangs_all first, rank 1 in hangs_",
        ),
        # One that raises fails its subject only. Native threads that still work while a rank ends
        # do not undo what it measured.
        ("raises first", Status.FAIL, "rank 1: RuntimeError: no kernel image is available"),
        ("raises second", Status.PASS, ""),
        ("leaves first", Status.FAIL, "rank 1: rank 0 did not come out of leaves first in 8 s"),
        ("dev-shm", Status.FAIL, "too small: 64 MiB"),
    ],
)
def test_ranks_that_fail_are_named_and_never_green(
    failing: Verdict, subject: str, status: Status, words: str
) -> None:
    (found,) = [one for one in failing.claims if one.claim.subject == subject]
    assert (found.status, words in found.reason) == (status, True), found.reason
