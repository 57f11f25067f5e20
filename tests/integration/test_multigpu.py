"""The probes of the multigpu and the multinode tier in a real image, over gloo on the CPU.

They measure with two ranks, in one container or in one each, and a rank that dies, hangs or leaves
is never green. What only GPUs can show is replayed from results/
(tests/validate/checks/test_replay.py).
"""

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from docker.errors import NotFound

from images.config.paths import CHECKOUT
from images.context import render
from images.context.hosting import host_settings
from images.context.labels import BaseContext
from images.engine import RUN_LABEL, ContainerSpec, Engine, ImageInfo
from images.engine.gpus import Attachment
from images.errors import UserError
from images.hardware.inventory import Gpu, GpuMode, Inventory
from images.locking import lock_file
from images.planning.image import Image
from images.validation import containers, validation_run
from images.validation.claims.context import ClaimContext
from images.validation.claims.multigpu import multigpu_claims
from images.validation.claims.multinode import multinode_claims
from tests.support import sources
from tests.support.cases import cases
from tests.support.engine_contents import built as built_image
from tests.support.sources import SOURCES
from validate.checks.multigpu import scaling
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
ONLY_ON_GPUS = {"transport", "context"}
"""NCCL's log, and attention that torch shards on GPUs only."""


@pytest.fixture(scope="module")
def image() -> Image:
    return sources.image(NAME)


@pytest.fixture(scope="module")
def tag(engine: Engine, image: Image, base: BaseContext, built: Mapping[str, Any]) -> Iterator[str]:
    """Yield an image of the real layers up to the kernels, not judged.

    It comes after the base image, which may be building the same layers.
    """
    host, locks = host_settings(), lock_file.read(image, CHECKOUT.locks).files
    # The layers above the kernels are empty.
    above = dict.fromkeys(("libraries.txt", "light.txt"), b"")
    context = dict(render.render(image, {**locks, **above}, base, host=host.files()))
    dockerfile = bytes(context.pop("Dockerfile")).decode()
    network = host.network(local=engine.facts.local)
    # Two workers may use it at the same time.
    name = f"truetag-test-ranks-{os.getpid()}"
    with built_image(engine, name, dockerfile, context, network) as reference:
        yield reference


def rehearsed(image: Image, *, scales: bool = False) -> ClaimSet:
    """Return the claims of the multigpu tier that two ranks of the CPU can measure.

    `scales`: those of `scaling`, which needs transformers; else all others.
    """
    context = ClaimContext(image=image, facts=SOURCES.facts, inventory=STAND_IN.inventory)
    claims = []
    for claim in multigpu_claims(context, device="cpu"):
        if claim.subject not in ONLY_ON_GPUS and (claim.check == "scaling") == scales:
            # A claim may not apply to a GPU's architecture. That says nothing about the CPU.
            expect = {key: value for key, value in claim.expect.items() if key != "not_applicable"}
            claims.append(replace(claim, expect=expect, required=True))
    return ClaimSet(image=NAME, claims=tuple(claims))


@pytest.fixture(scope="module")
def verdict(engine: Engine, image: Image, tag: str) -> Verdict:
    """Measure the claims that a CPU can rehearse, and return the verdict."""
    claims = rehearsed(image)
    evidence = validation_run.validate(engine, tag, claims, [Tier.MULTIGPU], STAND_IN)
    return judge(claims, evidence, [Tier.MULTIGPU])


def test_every_claim_that_a_cpu_can_rehearse_passes(verdict: Verdict) -> None:
    others = [row for row in verdict.claims if row.status is not Status.PASS]
    explanation = [f"{row.claim.key} {row.status}: {row.reason}\n{row.evidence}" for row in others]
    checks = {"collectives", "ddp", "fsdp2", "fp8-fsdp2", "shared-memory", "parallel"}

    assert verdict.overall is Status.PASS, "\n".join(explanation)
    assert {row.claim.check for row in verdict.claims} == checks


def test_both_ranks_measured_over_gloo(verdict: Verdict) -> None:
    for row in verdict.claims:
        if row.claim.subject != "dev-shm":
            assert [rank["device"]["backend"] for rank in row.evidence["ranks"]] == ["gloo", "gloo"]


def test_the_trial_gives_ranks_room_in_shared_memory(engine: Engine, verdict: Verdict) -> None:
    (row,) = [row for row in verdict.claims if row.claim.check == "shared-memory"]

    assert row.evidence["size"] == containers.shared_memory(engine.facts.memory)


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
    claims = []
    files = {}
    for name, (subjects, limits, faulty) in RANKS.items():
        check = FAULTY.format(limits=limits, faulty=faulty)
        files[f"validate/checks/multigpu/{name}.py"] = check.encode()
        # A probe asks for its own subjects. The name before them only tells claims apart.
        for subject in subjects:
            claims.append(
                Claim(
                    check="ddp",
                    subject=f"{name} {subject}",
                    tier=Tier.MULTIGPU,
                    probe=f"multigpu.{name}",
                    statement="",
                    expect={"device": "cpu", "ranks": 2},
                )
            )
    claims += [claim for claim in rehearsed(image).claims if claim.check == "shared-memory"]
    claim_set = ClaimSet(image=NAME, claims=tuple(claims))
    evidence = measured(engine, tag, claim_set, files)
    # Only the container has these checks: their claims are judged as those of other ranks.
    return judge(claim_set, evidence, judges={"ddp": judge_place_only})


def judge_place_only(_subject: str, expect: RanksExpect, evidence: RanksEvidence) -> Finding:
    """Judge that ranks ended well, whatever they computed."""
    return judge_requirements(Requirements(), expect, evidence)


def measured(
    engine: Engine, reference: str, claims: ClaimSet, more: Mapping[str, bytes]
) -> Evidence:
    """Run the suite with more files in a container of an image, and return the evidence."""
    suite: Sequence[str] = ["python3", "-I", "-S", "/judge/validate"]
    command = [*suite, "--claims", "/judge/claims.json", "--jobs", "2"]
    tmpfs = dict.fromkeys(("/tmp", "/home/trainer"), "rw,exec,mode=1777")
    spec = ContainerSpec(reference, command, tmpfs=tmpfs, volumes=["/judge"])
    files = {**containers.suite_files(claims), **more}
    records: list[Record] = []
    probes = {claim.probe for claim in claims.claims}
    containers.run_suite(
        engine, spec, {"/judge": files}, timeout=1200, probes=probes, on_record=records.append
    )
    return Evidence(image=NAME, digest="", records=tuple(records), claims=claims.claims)


@pytest.mark.parametrize(
    ("subject", "status", "words"),
    [
        # A rank that dies fails its subject and greens no other, wherever the other rank is then.
        ("dies first", Status.UNPROVEN, ""),
        ("dies second", Status.FAIL, "rank 1 was killed by SIGKILL (rank 0 in dies "),
        ("dies third", Status.FAIL, ""),
        # One that hangs is named by the others, and all that hang are ended.
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
    (row,) = [row for row in failing.claims if row.claim.subject == subject]

    assert row.status is status, row.reason
    assert words in row.reason


# ---- scaling

FAULTY_SCALING = cases(__file__, "faulty_scaling")
"""A check whose ranks train as those of `scaling`, but for a fault in each subject."""
SCALING_FAULTS = {
    "apart": "rank 1: after training its loss on rank 0's tokens is ",
    "stands": "rank 0: the loss goes from ",
    "skips": "rank 1: it took 8 of 12 steps",
}
"""Subject -> how the reason begins."""


def test_two_ranks_scale_and_one_that_does_not_train_is_named(
    engine: Engine, image: Image, base_image: ImageInfo
) -> None:
    healthy = rehearsed(image, scales=True).claims
    faulty = [
        replace(healthy[0], subject=subject, probe="multigpu.faulty") for subject in SCALING_FAULTS
    ]
    claims = ClaimSet(image=NAME, claims=(*healthy, *faulty))
    files = {"validate/checks/multigpu/faulty.py": FAULTY_SCALING.encode()}

    evidence = measured(engine, base_image.handle, claims, files)
    verdict = judge(claims, evidence, judges={"scaling": scaling.judge})

    reasons = {row.claim.subject: row.reason for row in verdict.claims}
    statuses = {row.claim.subject: row.status for row in verdict.claims}
    ways = {"ddp": Status.PASS, "fsdp2": Status.PASS}
    assert statuses == {**ways, **dict.fromkeys(SCALING_FAULTS, Status.FAIL)}, reasons
    for subject, beginning in SCALING_FAULTS.items():
        assert reasons[subject].startswith(beginning)


# ---- two nodes

NOT_ON_CPU_NODES = {"transport", "accelerate", "scaling"}
"""NCCL's log, and what needs packages of a layer that this image does not have."""


def rehearsed_on_nodes(image: Image) -> ClaimSet:
    """Return the claims of the multinode tier that two ranks of the CPU can measure."""
    context = ClaimContext(image=image, facts=SOURCES.facts, inventory=STAND_IN.inventory)
    claims = []
    for claim in multinode_claims(context, device="cpu"):
        if claim.subject not in NOT_ON_CPU_NODES:
            claims.append(claim)
    return ClaimSet(image=NAME, claims=tuple(claims))


def containers_of_this_run(engine: Engine) -> list[str]:
    """Return the IDs of the containers that this engine object has made and not removed."""
    label = f"{RUN_LABEL}={engine.run_id}"
    return [row["Id"] for row in engine.sdk.containers(all=True, filters={"label": label})]


def test_two_nodes_do_all_that_a_cpu_can_rehearse(engine: Engine, image: Image, tag: str) -> None:
    claims = rehearsed_on_nodes(image)

    evidence = validation_run.validate(engine, tag, claims, [Tier.MULTINODE], STAND_IN)
    verdict = judge(claims, evidence, [Tier.MULTINODE])

    others = [row for row in verdict.claims if row.status is not Status.PASS]
    explanation = [f"{row.claim.key} {row.status}: {row.reason}\n{row.evidence}" for row in others]
    assert verdict.overall is Status.PASS, "\n".join(explanation)
    assert containers_of_this_run(engine) == []
    for row in verdict.claims:
        if row.claim.subject != "death":
            assert [rank["device"]["node"] for rank in row.evidence["ranks"]] == [0, 1]


def measured_on_nodes(
    engine: Engine, reference: str, claims: ClaimSet, more: Mapping[str, bytes]
) -> Evidence:
    """Run the suite with more files on two nodes of an image, and return the evidence."""
    (plan,) = containers.plan_containers("", claims, STAND_IN)
    plan = replace(plan, files={containers.SUITE_FOLDER: more})
    records: list[Record] = []
    containers.measure_in_container(
        engine, engine.inspect(reference), plan, seed=1, on_record=records.append
    )
    merged = validation_run.merge_records(records)
    return Evidence(image=NAME, digest="", records=merged, claims=claims.claims)


FAULTY_ON_NODES = cases(__file__, "faulty_on_nodes")
RANKS_ON_NODES = cases(__file__, "ranks_on_nodes")
"""Check -> what a node does before it meets the other, what a rank does, and what is reported."""


@pytest.mark.parametrize("name", RANKS_ON_NODES)
def test_a_node_that_fails_is_named_and_never_green(engine: Engine, tag: str, name: str) -> None:
    before, faulty, status, words = RANKS_ON_NODES[name]
    check = FAULTY_ON_NODES.format(before=before, faulty=faulty)
    claim = Claim(
        check="two-nodes",
        subject="x",
        tier=Tier.MULTINODE,
        probe=f"multinode.{name}",
        statement="",
        expect={"device": "cpu", "ranks": 2, "nodes": 2},
    )
    claims = ClaimSet(image=NAME, claims=(claim,))
    files = {f"validate/checks/multinode/{name}.py": check.encode()}

    evidence = measured_on_nodes(engine, tag, claims, files)

    (row,) = judge(claims, evidence, judges={"two-nodes": judge_place_only}).claims
    (record,) = evidence.records
    assert row.status is Status(status), row.reason
    assert words in record.log + row.reason
    assert containers_of_this_run(engine) == []


def test_if_a_nodes_container_is_killed_nothing_is_left_running(
    engine: Engine, image: Image, tag: str
) -> None:
    claims = rehearsed_on_nodes(image).named_by(["rendezvous/torchrun"])
    info = engine.inspect(tag)
    (plan,) = containers.plan_containers("", claims, STAND_IN)

    def kill_second_node() -> None:
        """Kill the container that has joined another's network, once it runs."""
        while True:
            for container_id in containers_of_this_run(engine):
                # A container of another claim may have gone since it was listed.
                with suppress(NotFound):
                    details = engine.sdk.inspect_container(container_id)
                    is_second = details["HostConfig"]["NetworkMode"].startswith("container:")
                    if is_second and details["State"]["Running"]:
                        engine.sdk.kill(container_id)
                        return
            time.sleep(0.2)

    killer = threading.Thread(target=kill_second_node, daemon=True)
    killer.start()
    with pytest.raises(UserError, match="the container `node-1` was killed"):
        containers.measure_in_container(engine, info, plan, seed=1, on_record=lambda _record: None)

    killer.join()
    assert containers_of_this_run(engine) == []
