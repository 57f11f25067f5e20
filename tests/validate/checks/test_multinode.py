"""The multinode tier without GPUs: its judges, its claims, its containers, what is measured."""

import copy
import os
from collections.abc import Callable, Iterator, Mapping
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
from validate.checks.multigpu import _launch, ddp, fsdp, parallel
from validate.checks.multigpu import collectives as multigpu_collectives
from validate.checks.multigpu._ranks import Worker
from validate.checks.multigpu.collectives import OPERATIONS
from validate.checks.multigpu.scaling import STEPS
from validate.checks.multinode import (
    _nodes,
    checkpoint,
    collectives,
    death,
    rendezvous,
    training,
)
from validate.checks.multinode.collectives import parse_nccl_log
from validate.claims import Claim, ClaimSet, Tier
from validate.harness.forked import attempt
from validate.judging import Status
from validate.nodes import NODE_VARIABLE, SHARED_FOLDER

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


def claim_about(subject: str, gpu_count: int = 2) -> Claim:
    (claim,) = [claim for claim in claims_for(gpu_count) if claim.subject == subject]
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
TRAINED = {
    "run": {
        "time": {"seconds": 0.9, "spread": 0.01, "repeats": 8},
        "peak": 46_000_000_000,
        "losses": [10.4 - 0.2 * number for number in range(STEPS)],
    },
    "tokens": 16384,
    "common_loss": 8.1,
    "conditions": {"before": {}, "others": 0, "under_load": [{}]},
}
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
    "scaling": {**two_ranks(TRAINED), "alone": TRAINED},
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


def test_scaling_on_two_nodes_names_the_nodes() -> None:
    finding = judge_claim(claim_about("scaling"), HEALTHY["scaling"])

    assert finding.reason.startswith("2 GPUs on 2 nodes: 36,409 tokens/s, 2.00 times one GPU's")


def test_a_launcher_that_was_stopped_reported_nothing() -> None:
    evidence = {**HEALTHY["death"], "exit_code": None}

    fails(
        death.judge("death", {"device": "cuda", "ranks": 2}, evidence),  # type: ignore[arg-type]
        "the first one still waited",
    )


def test_each_rank_of_both_nodes_must_have_worked_before_the_death() -> None:
    fails(judge_claim(claim_about("death", 4), HEALTHY["death"]), "2 of 4 ranks worked together")


def test_without_a_host_each_node_has_one_rank_that_must_have_worked() -> None:
    (claim,) = [claim for claim in claims_for(0) if claim.subject == "death"]

    finding = judge_claim(claim, HEALTHY["death"])

    assert finding.status is Status.PASS, finding.reason
    fails(judge_claim(claim, {**HEALTHY["death"], "together": [0]}), "1 of 2 ranks worked")


@pytest.mark.parametrize("seconds", [0.0, 90.0])
def test_a_node_may_take_a_minute_to_report_the_death_of_the_other(seconds: float) -> None:
    finding = judge_claim(claim_about("death"), {**HEALTHY["death"], "seconds": seconds})

    assert finding.status is Status.PASS, finding.reason


def test_connections_of_all_ranks_are_counted_and_named_beside_those_on_one_host() -> None:
    finding = judge_claim(claim_about("transport"), HEALTHY["transport"])

    assert finding.reason == (
        "2 ranks on two nodes talk over NET/Socket (8 connections); on one host over P2P/CUMEM"
    )


def on_two_machines(claim: Claim) -> Claim:
    return replace(claim, expect={**claim.expect, "machines": 2})


def test_two_machines_may_talk_over_any_transport_which_is_reported() -> None:
    claim = on_two_machines(claim_about("transport"))
    evidence = two_ranks({**SOCKETS, "between": {"NET/IB": 4}})

    finding = judge_claim(claim, evidence)

    assert finding.status is Status.PASS
    assert finding.reason == "2 ranks on two nodes talk over NET/IB (8 connections)"
    fails(judge_claim(claim_about("transport"), {**HEALTHY["transport"], **evidence}), "not over")


def test_two_machines_of_whose_connections_nccl_says_nothing_fail() -> None:
    evidence = two_ranks({**SOCKETS, "between": {}})

    fails(judge_claim(on_two_machines(claim_about("transport")), evidence), "names no connection")


def test_only_one_machine_measures_the_control_of_the_transport(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claim = claim_about("transport")
    monkeypatch.setattr(_nodes, "measure", lambda *_: [("transport", {"ranks": []})])
    monkeypatch.setattr(collectives, "measure_on_one_host", lambda _claim: {"ranks": []})

    (of_one,) = collectives.measure([claim])
    (of_two,) = collectives.measure([on_two_machines(claim)])

    assert "control" in of_one[1]
    assert "control" not in of_two[1]


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
        (16, 8, ""),
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


@pytest.mark.parametrize("package", ["accelerate", "deepspeed"])
def test_only_an_image_with_a_launchers_package_has_a_claim_about_it(package: str) -> None:
    with_package = image(IMAGE_WITH_DEEPSPEED)
    pins = [pin for pin in with_package.pins if pin.name != package]
    without_package = replace(with_package, pins=tuple(pins))

    subjects = []
    for planned in (with_package, without_package):
        context = ClaimContext(image=planned, facts=SOURCES.facts, inventory=host_with(2))
        subjects.append({claim.subject for claim in multinode_claims(context)})

    assert subjects[0] - subjects[1] == {package}


def test_without_a_host_claims_say_neither_how_many_ranks_nor_why_they_are_unproven() -> None:
    """An image carries such claims."""
    for claim in claims_for(0):
        expected = {"device": "cuda", "ranks": None, "nodes": 2}
        if claim.subject == "scaling":
            expected |= {"rows": 2, "link": ""}
        assert claim.expect == expected
        assert claim.unproven == ""


def test_each_launcher_of_a_claim_has_a_command() -> None:
    subjects = {row.subject for row in ROWS if row.check == "rendezvous"}

    assert set(rendezvous.LAUNCHERS) == subjects


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


# What is measured.


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


def test_the_control_on_one_host_needs_no_variable_of_a_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NCCL_HOSTID", raising=False)
    monkeypatch.setattr(_launch, "measure", lambda *_, **__: [("transport", {"ranks": []})])

    assert collectives.measure_on_one_host(claim_about("transport")) == {"ranks": []}
    assert "NCCL_HOSTID" not in os.environ


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_every_rank_sends_to_the_other_node_where_its_transport_is_read(
    world_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks_of_node = world_size // 2
    log = [
        f"0[0] -> {ranks_of_node - 1}[0] via P2P/CUMEM",
        f"0[0] -> {ranks_of_node}[0] via NET/Socket/0",
    ]
    for rank in range(world_size):
        (tmp_path / f"nccl-of-rank{rank}").write_text("\n".join(log))
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
        measured = collectives.measure_transport(worker)
        assert measured["within"] == {"P2P/CUMEM": 1}
        assert measured["between"] == {"NET/Socket": 1}
        receivers[rank] = dict(sent)["send"]

    for rank, receiver in receivers.items():
        assert rank // ranks_of_node != receiver // ranks_of_node


@pytest.mark.parametrize(
    ("check", "functions"),
    [
        (
            collectives,
            {
                "collectives": (multigpu_collectives, "measure_exactness"),
                "transport": (collectives, "measure_transport"),
            },
        ),
        (
            training,
            {
                "ddp": (ddp, "compare_ddp"),
                "fsdp2": (fsdp, "measure_float32"),
                "hsdp": (parallel, "measure_hsdp"),
            },
        ),
    ],
)
def test_each_subject_has_a_measurement_of_its_own(
    check: Any, functions: dict[str, tuple[Any, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for subject, (module, function) in functions.items():
        monkeypatch.setattr(module, function, lambda _worker, subject=subject: subject)
    worker: Any = None

    for subject in functions:
        assert check.rank(worker, claim_about(subject)) == subject


def test_only_the_transport_is_measured_on_one_host_too(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = [("collectives", {"ranks": []}), ("transport", {"ranks": []})]
    monkeypatch.setattr(_nodes, "measure", lambda *_: measured)
    monkeypatch.setattr(
        collectives, "measure_on_one_host", lambda claim: {"ranks": [claim.subject]}
    )

    evidence = dict(collectives.measure([claim_about(subject) for subject, _ in measured]))

    assert evidence["collectives"] == {"ranks": []}
    assert evidence["transport"] == {"ranks": [], "control": {"ranks": ["transport"]}}


def test_each_rank_logs_its_connections_and_settings_to_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = set()
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        variables = collectives.environment(tmp_path)
        assert variables["NCCL_DEBUG_FILE"] == str(collectives.nccl_log(tmp_path))
        files.add(variables["NCCL_DEBUG_FILE"])

    assert len(files) == 2
    assert variables["NCCL_DEBUG"] == "INFO"
    assert {"ENV", "P2P", "SHM", "NET"} <= {*variables["NCCL_DEBUG_SUBSYS"].split(",")}


def test_a_checkpoint_is_read_only_if_ranks_wrote_one(monkeypatch: pytest.MonkeyPatch) -> None:
    written = two_ranks({"folder": "/var/tmp/nodes/x"})
    calls: list[Any] = []
    monkeypatch.setattr(
        checkpoint, "read_checkpoint", lambda *arguments: calls.append(arguments) or {"facts": {}}
    )
    readers = []
    for ranks in (written, two_ranks({"error": {}})):
        monkeypatch.setattr(_nodes, "measure", lambda *_, ranks=ranks: [("checkpoint", ranks)])
        ((_, evidence),) = checkpoint.measure([claim_about("checkpoint")])
        readers.append(evidence["reader"])

    assert readers == [{"facts": {}}, {}]
    assert calls == [(Path("/var/tmp/nodes/x"), 2, "cuda")]


# Ranks that add up their numbers.


class Sum:
    """A tensor of one number, which `all_reduce` adds up over ranks."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __int__(self) -> int:
        return self.value


def worker_in(
    group: int,
    all_reduce: Callable[[Sum], None],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    rank: int = 0,
) -> Worker:
    """Return a rank of a group of so many."""
    distributed = SimpleNamespace(all_reduce=all_reduce, barrier=lambda: None)
    monkeypatch.setattr(Worker, "distributed", distributed)
    torch = SimpleNamespace(tensor=lambda value, device: Sum(value))
    return Worker(torch=torch, rank=rank, world_size=group, device="cuda:0", folder=folder)


@pytest.mark.parametrize(("ranks_in_sum", "is_one_group"), [(4, True), (2, False)])
def test_a_sum_over_one_node_is_told_from_that_over_both(
    ranks_in_sum: int, is_one_group: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add_others(total: Sum) -> None:
        total.value += sum(rank + 1 for rank in range(1, ranks_in_sum))

    worker = worker_in(4, add_others, tmp_path, monkeypatch)

    assert rendezvous.rank(worker, claim_about("torchrun"))["facts"] == {
        "all ranks are in the sum": is_one_group,
        "one node is enough for it": not is_one_group,
    }


@pytest.mark.parametrize("rank", range(4))
def test_after_all_worked_together_the_second_nodes_ranks_kill_their_launcher_and_themselves(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums = []
    killed: list[int] = []

    def add_others(total: Sum) -> None:
        """Add up three times; then the other node is gone."""
        sums.append(total)
        if len(sums) > 3:
            raise ConnectionError("reset by peer")
        total.value = 0 + 1 + 2 + 3

    monkeypatch.setattr(os, "kill", lambda process, _signal: killed.append(process))
    monkeypatch.setattr(death.time, "time", lambda: 100.5)
    worker = worker_in(4, add_others, tmp_path, monkeypatch, rank)

    with pytest.raises(SystemExit, match=f"rank {rank}: ConnectionError: reset by peer"):
        death.rank(worker, claim_about("death"))

    is_of_second_node = rank >= 2
    assert (tmp_path / f"together{rank}").exists()
    assert killed == ([os.getppid(), os.getpid()] if is_of_second_node else [])
    assert (tmp_path / "died").exists() == is_of_second_node
    if is_of_second_node:
        assert (tmp_path / "died").read_text() == "100.5"


def test_ranks_that_add_up_wrongly_did_not_work_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The sum stays this rank's own number. In the end the other node is gone.
    sums = iter([None] * 3)
    worker = worker_in(4, lambda _total: next(sums), tmp_path, monkeypatch)

    with pytest.raises(ValueError, match="the sum of all ranks is 0"):
        death.rank(worker, claim_about("death"))

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("files", "evidence"),
    [
        (
            {"together0": "", "together3": "", "died": "100.0"},
            {"together": [0, 3], "died": True, "seconds": 13.3},
        ),
        ({"together1": ""}, {"together": [1], "died": False, "seconds": 0.0}),
    ],
)
def test_the_first_node_reports_who_worked_together_and_how_long_after_a_death_it_ended(
    files: dict[str, str],
    evidence: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    launch = _nodes.Launch(node=0, ranks=4, folder=tmp_path, addresses=["", ""], port=1)
    log = "rank 0: ConnectionError: reset by peer"
    monkeypatch.setattr(_nodes, "run", lambda *_: (17, log))
    monkeypatch.setattr(death.time, "time", lambda: 113.26)

    measured = {}
    for node in (0, 1):
        monkeypatch.setattr(_nodes, "meet", lambda *_, node=node: replace(launch, node=node))
        measured[node] = list(death.measure([claim_about("death")]))

    ((subject, reported),) = measured[0]
    message = reported.pop("message")
    assert (subject, reported) == ("death", {**evidence, "exit_code": 17})
    assert message.endswith(log)
    assert measured[1] == []
