"""The multigpu tier without GPUs: each judge seen to fail on wrong evidence, the launcher's reading of what ranks left,
NCCL's log, and claims from a host's inventory."""

import copy
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from images.building import validating
from images.config.paths import RESOURCES as ROOT
from images.engine import host_gpus
from images.engine.gpus import Attachment
from images.hardware.inventory import Gpu, GpuMode, Inventory, Link, inventory_from
from images.validation import containers
from images.validation.claims.context import ClaimContext
from images.validation.claims.multigpu import ROWS, link_of, multigpu_claims
from tests.support.cases import cases
from tests.support.claims import bare_claims
from tests.support.judging import fails, judge_claim, spoiled_by, wrong
from tests.support.sources import SOURCES, image
from validate.checks.multigpu import _launch
from validate.checks.multigpu.collectives import OPERATIONS, parse_nccl_log
from validate.claims import Claim, Tier
from validate.harness.forked import find_free_port
from validate.judging import Status

H200 = Gpu(name="NVIDIA H200", capability=(9, 0), memory=143 << 30)
PAIR = Inventory(driver="580.1", gpus=(H200, H200), source="NVML", links=((0, 1, Link.NVLINK),))


def context(
    inventory: Inventory | None, name: str = "cu130-torch211", **options: Any
) -> ClaimContext:
    return ClaimContext(image=image(name), facts=SOURCES.facts, inventory=inventory, **options)


def claim(
    subject: str, inventory: Inventory | None = PAIR, name: str = "cu130-torch211", **options: Any
) -> Claim:
    (found,) = [
        one
        for one in multigpu_claims(context(inventory, name, **options))
        if one.subject == subject
    ]
    return found


def device(rank: int) -> dict[str, Any]:
    return {
        "type": "cuda",
        "backend": "nccl",
        "uuid": f"GPU-{rank}",
        "name": H200.name,
        "capability": [9, 0],
    }


def of_ranks(one: Mapping[str, Any]) -> dict[str, Any]:
    return {"ranks": [{**copy.deepcopy(dict(one)), "device": device(rank)} for rank in range(2)]}


COMPARISON = {"error": 6e-8, "controls": {"scaled by 1.01": 0.01, "not exchanged": 0.7}}
SIZES = ["1", "1027", "1048576"]
SUBJECTS = {row.subject for row in ROWS}
WELL: Mapping[str, Mapping[str, Any]] = {
    "torchrun": of_ranks(
        {
            "comparisons": {"gradients": COMPARISON, "weights": COMPARISON},
            "facts": {"same on every rank": True},
        }
    ),
    "exact": of_ranks(
        {
            "exact": {name: dict.fromkeys(SIZES, True) for name in OPERATIONS},
            "controls": {name: dict.fromkeys(SIZES, False) for name in OPERATIONS},
        }
    ),
    "transport": of_ranks({"peer_access": True, "connections": {"P2P/CUMEM": 16}, "taken": {}}),
    "dev-shm": {
        "size": 8 << 30,
        "refuses_more": True,
        "batch": 96 << 20,
        "handed_over": 4,
        "right": True,
    },
    "gradients": of_ranks(
        {
            "comparisons": {"gradients": {"error": 0.0, "controls": {"float32": 0.056}}},
            "figures": {"distance from float32": 0.056},
            "facts": {"sharded": True, "parts make the whole": True, "layers": ["Float8Linear"]},
        }
    ),
    "context": of_ranks(
        {
            "comparisons": {
                "gradients": {"error": 4e-3, "plain_error": 3e-3, "controls": {"apart": 0.4}}
            }
        }
    ),
}


@pytest.mark.parametrize("subject", WELL)
def test_what_was_measured_well_passes(subject: str) -> None:
    finding = judge_claim(claim(subject), WELL[subject])
    assert finding.status is Status.PASS and finding.reason, finding.reason


WRONG = wrong("multigpu")


@pytest.mark.parametrize(
    ("subject", "reason", "changes"), WRONG, ids=[f"{row[0]}-{row[1]}" for row in WRONG]
)
def test_what_is_wrong_fails_and_is_named(
    subject: str, reason: str, changes: dict[str, Any]
) -> None:
    fails(judge_claim(claim(subject), spoiled_by(WELL[subject], changes)), reason)


def test_variables_that_the_run_lends_are_not_the_images() -> None:
    lent = {"NCCL_NVLS_ENABLE": "0"}
    slow = {
        "peer_access": True,
        "connections": {"NET/Socket": 4},
        "taken": {"NCCL_P2P_DISABLE": "1", **lent},
    }
    fails(judge_claim(claim("transport", injected=lent), of_ranks(slow)), "(NCCL_P2P_DISABLE=1)")


@pytest.mark.parametrize(
    ("links", "access", "ways", "status"),
    [
        (((0, 1, Link.APART),), False, "SHM/direct", Status.PASS),
        (((0, 1, Link.APART),), False, "NET/Socket", Status.FAIL),
        (
            (),
            True,
            "SHM/direct",
            Status.PASS,
        ),  # a host that can't tell: they may be below different host bridges
        ((), False, "SHM/direct", Status.PASS),
        ((), True, "NET/Socket", Status.FAIL),
        # Below different PCIe host bridges NCCL goes through shared memory by design.
        (((0, 1, Link.PCIE),), True, "SHM/direct/direct", Status.PASS),
        (((0, 1, Link.PCIE),), True, "P2P/direct pointer", Status.PASS),
        (((0, 1, Link.PCIE),), True, "NET/Socket", Status.FAIL),
        (((0, 1, Link.PCIE),), False, "SHM/direct/direct", Status.FAIL),
    ],
)
def test_the_link_decides_which_transports_will_do(
    links: Any, access: bool, ways: str, status: Status
) -> None:
    evidence = of_ranks({"peer_access": access, "connections": {ways: 2}, "taken": {}})
    assert judge_claim(claim("transport", replace(PAIR, links=links)), evidence).status is status


CLOSED, OPEN = (
    {"measured": {}, "begun": "x", "pid": 1, "closing": closed} for closed in (True, False)
)
TORCHRUN = cases(__file__, "torchrun")


@pytest.mark.parametrize(
    ("code", "log", "heard", "said"),
    [
        (0, "", [CLOSED, CLOSED], ""),
        (0, "", [CLOSED, OPEN], "ended with status 0 before it was done (rank 1 in x)"),
        (None, "", [OPEN], "torchrun did not end in 10 s (rank 0 in x)"),
        (None, "", [{**OPEN, "begun": ""}], "torchrun did not end in 480 s (rank 0 in its start)"),
        (1, "", [CLOSED], "torchrun ended with status 1"),
        (
            1,
            TORCHRUN,
            [OPEN, OPEN],
            "rank 1 was killed by SIGSEGV (rank 0 in x, rank 1 in x): rank 1: second: RuntimeError: boom",
        ),
    ],
)
def test_a_launch_counts_only_if_all_ranks_closed_files(
    code: int | None, log: str, heard: list[dict[str, Any]], said: str
) -> None:
    assert _launch.describe_failure(code, log, heard, 10) == said


class Launch:
    """torchrun on a clock of its own: when its rank begins, and when it ends."""

    def __init__(self, file: Path, begins: float, ends: float) -> None:
        self.file, self.begins, self.ends, self.now = file, begins, ends, 0.0

    def wait(self, seconds: float) -> int:
        self.now += seconds
        if self.now >= self.begins:
            self.file.write_text('{"begun": "x"}\n')
        if self.now < self.ends:
            raise subprocess.TimeoutExpired("torchrun", seconds)
        return 0


@pytest.mark.parametrize(
    ("begins", "ends", "code", "at"),
    [(400.0, 410.0, 0, 410), (400.0, 1e9, None, 420), (1.0, 15.0, 0, 15), (1e9, 1e9, None, 480)],
)
def test_a_limit_counts_from_when_all_ranks_have_begun(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    begins: float,
    ends: float,
    code: int | None,
    at: float,
) -> None:
    """Importing torch takes as long as the rest of the machine lets it."""
    launch: Any = Launch(tmp_path / "rank0", begins, ends)
    monkeypatch.setattr(_launch, "time", SimpleNamespace(monotonic=lambda: launch.now))
    assert _launch.wait_for_torchrun(launch, [launch.file], 20) == code
    assert at <= launch.now < at + 1


def test_processes_that_ask_at_once_get_ports_of_their_own() -> None:
    """None of them listens yet when the next one asks; a port that somebody listens on is given to none."""
    program = "from validate.harness.forked import find_free_port; print(find_free_port()); input()"
    asking = [
        subprocess.Popen(
            [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(8)
    ]
    given = [int(one.stdout.readline()) for one in asking if one.stdout]
    for one in asking:
        one.communicate(b"\n")
    assert len(set(given)) == 8 and max(given) < 32768
    first = find_free_port()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", first))
        assert find_free_port() != first


def test_a_torn_line_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "rank0"
    file.write_text(
        '{"pid": 7}\n{"begun": "a"}\n{"subject": "a", "evidence": {"x": 1}}\n{"begun": "b"}\n{"subject": "b", "ev'
    )
    assert _launch.read_report(file) == {
        **OPEN,
        "measured": {"a": {"x": 1}},
        "begun": "b",
        "pid": 7,
    }
    assert _launch.read_report(tmp_path / "none") == {**OPEN, "begun": "", "pid": 0}


@pytest.mark.parametrize(
    ("count", "ranks"), [(0, 0), (1, 1), (2, 2), (3, 2), (4, 4), (7, 4), (8, 8), (16, 8)]
)
def test_ranks_are_a_power_of_two(count: int, ranks: int) -> None:
    assert _launch.round_down_to_power_of_two(count) == ranks
    if count:
        assert (
            claim("torchrun", Inventory(driver="", gpus=(H200,) * count, source="")).expect["ranks"]
            == ranks
        )


LOG = cases(__file__, "log")


def test_nccls_log_says_its_transport() -> None:
    found = parse_nccl_log(LOG)
    assert found["connections"] == {
        "NET/Socket": 1,
        "P2P/CUMEM": 1,
        "P2P/CUMEM/read": 1,
        "SHM/direct/direct": 1,
    }
    assert found["taken"] == {"NCCL_NVLS_ENABLE": "0"}
    assert parse_nccl_log("") == {"connections": {}, "taken": {}}


ALL = "cu128-torch28-axolotl-multigpu"


def test_without_a_gpu_or_with_one_every_claim_is_there_and_unproven() -> None:
    for found_gpus, options, reason in (
        (None, {"no_gpu": "no GPU was found"}, "no GPU was found"),
        (
            Inventory(driver="", gpus=(H200,), source=""),
            {},
            "the host has one GPU (NVIDIA H200), several are needed",
        ),
    ):
        found = list(multigpu_claims(context(found_gpus, ALL, **options)))
        assert {one.check for one in found} == {
            *("collectives", "ddp", "fsdp2", "fp8-fsdp2", "shared-memory", "parallel")
        }
        assert {one.unproven for one in found} == {reason}


def test_what_an_image_does_not_hold_is_not_promised() -> None:
    subjects = {one.subject for one in multigpu_claims(context(PAIR))}
    assert subjects == SUBJECTS - {"ray-train"}
    assert {one.subject for one in multigpu_claims(context(PAIR, ALL))} == SUBJECTS


def test_an_image_without_the_variable_that_deepspeed_needs_fails_without_a_gpu() -> None:
    """Beside a GPU, `import deepspeed` asks for an nvcc that the image does not have."""
    (claim,) = [one for one in bare_claims(ALL).claims if one.key == "environment/variables"]
    well = {
        "required": dict(claim.expect["required"]),
        "denied": {},
        "in_files": [],
        "settings_files": {},
        "start": {"flags": {"optimize": 0}, "code": []},
    }
    assert judge_claim(claim, well).status is Status.PASS
    without = {**claim.expect["required"], "DS_IGNORE_CUDA_DETECTION": None}
    fails(judge_claim(claim, {**well, "required": without}), "DS_IGNORE_CUDA_DETECTION is not set")


OLD = Inventory(
    driver="", gpus=(H200, replace(H200, name="RTX 3090", capability=(8, 6))), source=""
)


@pytest.mark.parametrize(
    ("asked", "other", "why"),
    [
        (
            claim("gradients", OLD),
            claim("gradients"),
            "takes compute capability 8.9, RTX 3090 has 8.6",
        ),
        (
            claim("4bit", name="cu126-torch27"),
            claim("4bit", name="cu128-torch28"),
            "takes torch 2.8, this is 2.7.1",
        ),
    ],
)
def test_what_gpus_or_torch_cannot_do_is_not_applicable_and_not_required(
    asked: Claim, other: Claim, why: str
) -> None:
    finding = judge_claim(asked, {})
    assert finding.status is Status.NOT_APPLICABLE and why in finding.reason
    assert (asked.required, other.required) == (False, True)


def test_the_weakest_pair_decides_about_the_link() -> None:
    three = replace(PAIR, links=((0, 1, Link.NVLINK), (0, 2, Link.APART), (1, 2, Link.PCIE)))
    assert [link_of(one) for one in (PAIR, three, None, replace(PAIR, links=()))] == [
        "nvlink",
        "apart",
        "",
        "",
    ]
    of_image = claim("transport", None)
    assert (of_image.expect["ranks"], of_image.expect["link"], of_image.unproven) == (None, "", "")


@pytest.mark.parametrize("machine", [25_276_063_744, 25_276_063_745, 7_000_000_001, 1 << 40])
def test_ranks_get_whole_pages_of_shared_memory_on_any_machine(machine: int) -> None:
    """The kernel gives whole pages: what the trial asks for is what is found."""
    found = containers.shared_memory(machine)
    assert found % (1 << 16) == 0 and found <= machine / 4 and found <= containers.SHARED_MEMORY
    assert found > min(machine / 4, containers.SHARED_MEMORY) - (1 << 16)


def test_links_are_part_of_the_inventory() -> None:
    row = {"name": "H", "capability": [9, 0], "memory": 1}
    found = inventory_from({"driver": "1", "gpus": [row, row], "links": [[0, 1, "nvlink"]]})
    assert found is not None
    assert found.links == ((0, 1, Link.NVLINK),)


def test_a_hosts_ban_on_multicast_holds_in_its_containers() -> None:
    assert "NCCL_NVLS_ENABLE" in host_gpus.INJECTED and "NCCL_DEBUG" not in host_gpus.INJECTED
    lent = {"NCCL_NVLS_ENABLE": "0"}
    attachment = Attachment(mode=GpuMode.NVIDIA, reason="", injected=lent)
    assert attachment.environment({"NCCL_NVLS_ENABLE": "1"}) == lent
    assert attachment.as_json()["environment"] == lent


@pytest.mark.parametrize(("count", "tiers"), [(1, {Tier.GPU}), (2, {Tier.GPU, Tier.MULTIGPU})])
def test_a_build_judges_the_tier_where_there_are_several_gpus(
    count: int, tiers: set[Tier], monkeypatch: pytest.MonkeyPatch
) -> None:
    inventory = Inventory(driver="", gpus=(H200,) * count, source="")
    attachment = Attachment(mode=GpuMode.NVIDIA, reason="", inventory=inventory)
    monkeypatch.setattr(host_gpus, "attach", lambda *_args, **_options: attachment)
    engine: Any = SimpleNamespace(facts=SimpleNamespace(architecture="amd64"))
    _, found = validating.find_gpus(engine, image("cu130-torch211"), "auto", (), print)
    assert set(found) == {*validating.ANYWHERE, *tiers}
