"""The multinode tier without GPUs: its judges, NCCL's log, its claims, and how nodes meet."""

import copy
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from images.building import validating
from images.engine import host_gpus
from images.engine.gpus import Attachment
from images.hardware.inventory import Gpu, GpuMode, Inventory
from images.validation import containers
from images.validation.claims.context import ClaimContext
from images.validation.claims.multinode import ROWS, multinode_claims
from tests.support.cases import cases
from tests.support.judging import fails, judge_claim, spoiled_by, wrong
from tests.support.sources import SOURCES, image
from validate.checks.multigpu import _launch
from validate.checks.multigpu._ranks import Worker
from validate.checks.multigpu.collectives import OPERATIONS
from validate.checks.multinode import _nodes, collectives, rendezvous
from validate.checks.multinode.collectives import parse_nccl_log
from validate.checks.multinode.death import judge as judge_death
from validate.claims import Claim, ClaimSet, Tier
from validate.harness.forked import attempt
from validate.judging import Status
from validate.nodes import ADDRESSES_VARIABLE, NODE_VARIABLE, SHARED_FOLDER

H200 = Gpu(name="NVIDIA H200", capability=(9, 0), memory=143 << 30)
IMAGE = "cu130-torch211"
IMAGE_WITH_DEEPSPEED = "cu128-torch28-axolotl-multigpu"


def host_with(gpu_count: int) -> Inventory:
    return Inventory(driver="", gpus=(H200,) * gpu_count, source="")


def claims_for(gpu_count: int = 2, image_name: str = IMAGE, **context: Any) -> list[Claim]:
    """Return the claims of the multinode tier about an image, on a host with so many GPUs."""
    inventory = host_with(gpu_count) if gpu_count else None
    return list(
        multinode_claims(
            ClaimContext(
                image=image(image_name), facts=SOURCES.facts, inventory=inventory, **context
            )
        )
    )


def claim_about(subject: str) -> Claim:
    (claim,) = [claim for claim in claims_for() if claim.subject == subject]
    return claim


def two_ranks(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the evidence of two ranks that report the same, each on a GPU and node of its own."""
    ranks = []
    for number in range(2):
        device = {
            "type": "cuda",
            "backend": "nccl",
            "uuid": f"GPU-{number}",
            "node": number,
        }
        ranks.append({**copy.deepcopy(dict(report)), "device": device})
    return {"ranks": ranks}


# The judges.

COMPARISON = {"error": 6e-8, "controls": {"scaled by 1.01": 0.01, "not exchanged": 0.7}}
TRAINING = {"gradients": COMPARISON, "weights": dict(COMPARISON)}
SIZES = ["1", "1027", "1048576"]
SOCKETS = {"between": {"NET/Socket": 4}, "within": {}, "taken": {"NCCL_HOSTID": "node-0"}}
NVLINK = {"between": {"P2P/CUMEM": 24}, "within": {}, "taken": {}}
HEALTHY: Mapping[str, Mapping[str, Any]] = {
    "torchrun": two_ranks(
        {"facts": {"all ranks are in the sum": True, "one node is enough for it": False}}
    ),
    "collectives": two_ranks(
        {
            "exact": {name: dict.fromkeys(SIZES, True) for name in OPERATIONS},
            "controls": {name: dict.fromkeys(SIZES, False) for name in OPERATIONS},
        }
    ),
    "transport": {**two_ranks(SOCKETS), "control": two_ranks(NVLINK)},
    "ddp": two_ranks({"comparisons": TRAINING, "facts": {"same on every rank": True}}),
    "fsdp2": two_ranks(
        {"comparisons": TRAINING, "facts": {"sharded": True, "parts make the whole": True}}
    ),
    "hsdp": two_ranks(
        {"comparisons": TRAINING, "facts": {"placements": ["(Replicate(), Shard(dim=0))"]}}
    ),
    "checkpoint": {
        **two_ranks({"folder": "/var/tmp/nodes/x", "files": 2}),
        "reader": {
            "comparisons": {"third step": COMPARISON},
            "facts": {
                "differed before": True,
                "same weights": True,
                "same moments": True,
                "moments": 24,
            },
        },
    },
    "death": {
        "together": [0, 1],
        "died": True,
        "exit_code": 1,
        "seconds": 13.3,
        "message": "rank 0 ended with status 1: Connection reset by peer",
    },
}
"""Subject -> evidence of it without any fault."""
FAULTS = wrong("multinode")


@pytest.mark.parametrize("subject", HEALTHY)
def test_evidence_without_a_fault_passes_with_a_reason(subject: str) -> None:
    finding = judge_claim(claim_about(subject), HEALTHY[subject])

    assert finding.status is Status.PASS, finding.reason
    assert finding.reason


@pytest.mark.parametrize(
    ("subject", "reason", "changes"), FAULTS, ids=[f"{row[0]}-{row[1]}" for row in FAULTS]
)
def test_each_fault_fails_and_is_named(subject: str, reason: str, changes: dict[str, Any]) -> None:
    fails(judge_claim(claim_about(subject), spoiled_by(HEALTHY[subject], changes)), reason)


def test_a_launcher_that_was_stopped_reported_nothing() -> None:
    evidence = {**HEALTHY["death"], "exit_code": None}

    fails(
        judge_death("death", {"device": "cuda", "ranks": 2}, evidence),  # type: ignore[arg-type]
        "the first one still waited",
    )


def test_nccls_log_tells_connections_between_nodes_from_those_within_one() -> None:
    log = cases(__file__, "log")

    assert parse_nccl_log(log, ranks_of_node=2) == {
        "between": {"NET/Socket": 2},
        "within": {"P2P/CUMEM": 1, "SHM/direct/direct": 1},
        "taken": {"NCCL_HOSTID": "node-0"},
    }
    # The same log, if each rank were a node of its own.
    assert parse_nccl_log(log, ranks_of_node=1)["within"] == {}


# The claims.


@pytest.mark.parametrize(
    ("gpu_count", "ranks", "reason"),
    [
        (1, None, "the host has one GPU, and two nodes need equal halves"),
        (2, 2, ""),
        (3, 2, "the host has 3 GPUs, and two nodes need equal halves"),
        (4, 4, ""),
        (6, 4, ""),
        (8, 8, ""),
    ],
)
def test_two_nodes_need_equal_halves_of_the_gpus(
    gpu_count: int, ranks: int | None, reason: str
) -> None:
    for claim in claims_for(gpu_count):
        assert claim.unproven.startswith(reason)
        assert bool(claim.unproven) == bool(reason)
        assert claim.expect["ranks"] == ranks


def test_without_a_gpu_every_claim_is_there_and_unproven() -> None:
    claims = claims_for(0, IMAGE_WITH_DEEPSPEED, no_gpu="no GPU was found")

    assert {claim.key for claim in claims} == {f"{row.check}/{row.subject}" for row in ROWS}
    assert {claim.unproven for claim in claims} == {"no GPU was found"}


def test_only_an_image_with_deepspeed_has_a_claim_about_its_launcher() -> None:
    assert "rendezvous/deepspeed" in {claim.key for claim in claims_for(2, IMAGE_WITH_DEEPSPEED)}
    assert "rendezvous/deepspeed" not in {claim.key for claim in claims_for(2)}


def test_each_launcher_of_a_claim_has_a_command() -> None:
    subjects = {row.subject for row in ROWS if row.check == "rendezvous"}

    assert set(rendezvous.LAUNCHERS) == subjects


def test_deepspeed_gives_each_node_its_own_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It numbers the machine's GPUs, whatever CUDA_VISIBLE_DEVICES says."""
    monkeypatch.setattr(_nodes, "program_path", lambda name: name)
    launch = _nodes.Launch(
        node=1, ranks=4, folder=tmp_path, addresses=["127.0.0.1", "127.0.0.2"], port=29500
    )

    command = rendezvous.deepspeed(launch)

    assert "--include=node-0:0,1@node-1:2,3" in command
    assert "--node_rank=1" in command
    assert (tmp_path / "hostfile-of-node1").read_text() == "node-0 slots=4\nnode-1 slots=4\n"


# The containers.


def attached(inventory: Inventory | None) -> Attachment:
    return Attachment(mode=GpuMode.NVIDIA, reason="", inventory=inventory)


def test_the_nodes_are_two_hosts_to_nccl_with_half_of_the_gpus_each() -> None:
    first, second = containers.node_environments(host_with(4))

    assert (first["CUDA_VISIBLE_DEVICES"], second["CUDA_VISIBLE_DEVICES"]) == ("0,1", "2,3")
    assert first["NCCL_HOSTID"] != second["NCCL_HOSTID"]
    assert first["NCCL_SOCKET_IFNAME"] == second["NCCL_SOCKET_IFNAME"] == "lo"


def test_one_plan_is_for_both_nodes_and_has_a_folder_that_they_share() -> None:
    claims = ClaimSet(image=IMAGE, claims=tuple(claims_for()))

    (plan,) = containers.plan_containers("", claims, attached(host_with(2)))

    assert len(plan.nodes) == 2
    assert plan.mounts == {SHARED_FOLDER: "volume"}
    assert plan.claims.claims == claims.claims


def test_nothing_is_started_if_it_is_not_known_which_gpus_there_are() -> None:
    claims = ClaimSet(image=IMAGE, claims=tuple(claims_for(0)))

    assert containers.plan_containers("", claims, attached(None)) == []


def test_nodes_run_one_probe_at_a_time_so_that_both_are_at_the_same() -> None:
    claims = ClaimSet(image=IMAGE, claims=tuple(claims_for(8)))
    (plan,) = containers.plan_containers("", claims, attached(host_with(8)))
    engine: Any = SimpleNamespace(facts=SimpleNamespace(cpus=64, memory=1 << 40))
    info: Any = SimpleNamespace(handle="x", env={})

    spec = containers.container_spec(engine, info, plan, seed=1)

    assert list(spec.cmd)[-2:] == ["--jobs", "1"]


def test_the_tier_is_measured_only_if_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_gpus, "attach", lambda *_args, **_options: attached(host_with(2)))
    engine: Any = SimpleNamespace(facts=SimpleNamespace(architecture="amd64"))

    _, default_tiers = validating.find_gpus(engine, image(IMAGE), "auto", (), print)
    attachment, tiers = validating.find_gpus(engine, image(IMAGE), "auto", (Tier.MULTINODE,), print)

    assert Tier.MULTINODE not in default_tiers
    assert tiers == (Tier.MULTINODE,)
    assert attachment.attached


# How nodes meet.


@pytest.fixture
def shared_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(_nodes, "SHARED_FOLDER", str(tmp_path))
    monkeypatch.setattr(_nodes, "MEETING_SECONDS", 0.5)
    monkeypatch.setenv(ADDRESSES_VARIABLE, "127.0.0.1,127.0.0.2")
    return tmp_path / "nodes" / "x"


def meet_as(node: int, monkeypatch: pytest.MonkeyPatch) -> _nodes.Launch:
    monkeypatch.setenv(NODE_VARIABLE, str(node))
    return _nodes.meet("x", "a.check", [replace(claim_about("ddp"), expect={"ranks": 4})])


@pytest.mark.parametrize("node", [0, 1])
def test_a_node_that_comes_alone_says_so_and_does_not_launch(
    node: int, shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(_nodes.NodeMissingError, match=f"node {1 - node} did not come to x "):
        meet_as(node, monkeypatch)


def test_nodes_that_meet_have_the_same_port_and_ranks_of_their_own(
    shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_folder.mkdir(parents=True)
    (shared_folder / "arrived1").write_text("0")

    first = meet_as(0, monkeypatch)
    second = meet_as(1, monkeypatch)

    assert first.port == second.port > 0
    assert [file.name for file in first.own_report_files()] == ["rank0", "rank1"]
    assert [file.name for file in second.own_report_files()] == ["rank2", "rank3"]
    work = json.loads((shared_folder / "work.json").read_text())
    assert work["probe"] == "a.check"


@pytest.mark.parametrize("fails_there", [False, True])
def test_after_the_control_on_one_host_a_node_still_knows_its_number(
    fails_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_node = {"NCCL_HOSTID": "1", "CUDA_VISIBLE_DEVICES": "1", NODE_VARIABLE: "1"}
    for name, value in of_node.items():
        monkeypatch.setenv(name, value)
    seen: list[set[str]] = []

    def launch(*_: object, **__: object) -> Iterator[tuple[str, dict[str, Any]]]:
        seen.append(of_node.keys() & os.environ.keys())
        if fails_there:
            raise _launch.RanksFailedError("rank 0 failed")
        yield "transport", {"ranks": []}

    monkeypatch.setattr(_launch, "measure", launch)
    control = attempt(partial(collectives.measure_on_one_host, claim_about("transport")))

    assert ("error" in control) == fails_there
    assert seen == [set()]
    assert {name: os.environ.get(name) for name in of_node} == of_node


def test_a_node_whose_probe_breaks_off_tells_the_other(
    shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shared_folder.parent / "a.check-transport"
    folder.mkdir(parents=True)
    (folder / "arrived1").write_text("0")
    monkeypatch.setenv(NODE_VARIABLE, "0")

    def break_off(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(_nodes, "run", break_off)
    with pytest.raises(OSError, match="no space left"):
        list(_nodes.measure("a.check", [claim_about("transport")]))

    assert json.loads((folder / "ended0").read_text()) == "its probe broke off"


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_every_rank_sends_to_the_other_node_where_its_transport_is_read(
    world_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(world_size):
        (tmp_path / f"nccl-of-rank{rank}").write_text("")
    receivers = {}
    for rank in range(world_size):
        monkeypatch.setenv("RANK", str(rank))
        torch = SimpleNamespace(
            ones=lambda *_, **__: None,
            empty_like=lambda _: None,
            cuda=SimpleNamespace(synchronize=lambda: None),
        )
        worker = Worker(
            torch=torch, rank=rank, world_size=world_size, device="cuda:0", folder=tmp_path
        )
        sent = []
        distributed = SimpleNamespace(
            isend="send",
            irecv="receive",
            P2POp=lambda operation, _tensor, peer: (operation, peer),
            batch_isend_irecv=lambda operations, sent=sent: sent.extend(operations) or [],
        )
        monkeypatch.setattr(Worker, "distributed", distributed)
        collectives.measure_transport(worker)
        receivers[rank] = dict(sent)["send"]

    ranks_of_node = world_size // 2
    for rank, receiver in receivers.items():
        assert rank // ranks_of_node != receiver // ranks_of_node
