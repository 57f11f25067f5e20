"""The multigpu tier without GPUs: its judges, its launcher, NCCL's log, and its claims."""

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
from validate.checks.multigpu.scaling import STEPS
from validate.claims import Claim, Tier
from validate.harness.forked import find_free_port
from validate.judging import Status

H200 = Gpu(name="NVIDIA H200", capability=(9, 0), memory=143 << 30)
RTX_3090 = replace(H200, name="RTX 3090", capability=(8, 6))
TWO_H200S = Inventory(
    driver="580.1", gpus=(H200, H200), source="NVML", links=((0, 1, Link.NVLINK),)
)
IMAGE = "cu130-torch211"
IMAGE_WITH_ALL_PACKAGES = "cu128-torch28-axolotl-multigpu"


def host_with(*gpus: Gpu) -> Inventory:
    return Inventory(driver="", gpus=gpus, source="")


def claims_for(inventory: Inventory | None, image_name: str = IMAGE, **context: Any) -> list[Claim]:
    """Return the claims of the multigpu tier about an image, on a host with these GPUs."""
    return list(
        multigpu_claims(
            ClaimContext(
                image=image(image_name), facts=SOURCES.facts, inventory=inventory, **context
            )
        )
    )


def claim_about(
    subject: str,
    inventory: Inventory | None = TWO_H200S,
    image_name: str = IMAGE,
    **context: Any,
) -> Claim:
    claims = claims_for(inventory, image_name, **context)
    (claim,) = [claim for claim in claims if claim.subject == subject]
    return claim


def two_ranks(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the evidence of two ranks that report the same, each on an H200 of its own."""
    ranks = []
    for number in range(2):
        device = {
            "type": "cuda",
            "backend": "nccl",
            "uuid": f"GPU-{number}",
            "name": H200.name,
            "capability": [9, 0],
        }
        ranks.append({**copy.deepcopy(dict(report)), "device": device})
    return {"ranks": ranks}


# The judges.

COMPARISON = {"error": 6e-8, "controls": {"scaled by 1.01": 0.01, "not exchanged": 0.7}}
SIZES = ["1", "1027", "1048576"]
QUIET = {"before": {"busy": 0}, "others": 600 << 20, "under_load": [{"clock": 1400}]}


def trained(seconds: float) -> dict[str, Any]:
    """Return what a rank reports whose training steps took so long."""
    return {
        "run": {
            "time": {"seconds": seconds, "spread": 0.01, "repeats": 8},
            "peak": 46_000_000_000,
            "losses": [10.4 - 0.2 * number for number in range(STEPS)],
        },
        "tokens": 16384,
        "common_loss": 8.1,
        "conditions": QUIET,
    }


SCALING = {**two_ranks(trained(0.31)), "alone": trained(0.3)}
HEALTHY: Mapping[str, Mapping[str, Any]] = {
    "torchrun": two_ranks(
        {
            "comparisons": {"gradients": COMPARISON, "weights": COMPARISON},
            "facts": {"same on every rank": True},
        }
    ),
    "exact": two_ranks(
        {
            "exact": {name: dict.fromkeys(SIZES, True) for name in OPERATIONS},
            "controls": {name: dict.fromkeys(SIZES, False) for name in OPERATIONS},
        }
    ),
    "transport": two_ranks({"peer_access": True, "connections": {"P2P/CUMEM": 16}, "taken": {}}),
    "dev-shm": {
        "size": 8 << 30,
        "refuses_more": True,
        "batch": 96 << 20,
        "handed_over": 4,
        "right": True,
    },
    "gradients": two_ranks(
        {
            "comparisons": {"gradients": {"error": 0.0, "controls": {"float32": 0.056}}},
            "figures": {"distance from float32": 0.056},
            "facts": {"sharded": True, "parts make the whole": True, "layers": ["Float8Linear"]},
        }
    ),
    "context": two_ranks(
        {
            "comparisons": {
                "gradients": {"error": 4e-3, "plain_error": 3e-3, "controls": {"apart": 0.4}}
            }
        }
    ),
    # A subject of `scaling`.
    "ddp": SCALING,
}
"""Subject -> evidence of it without any fault."""
FAULTS = wrong("multigpu")


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


def test_a_slow_transport_is_not_blamed_on_variables_that_the_run_itself_sets() -> None:
    injected = {"NCCL_NVLS_ENABLE": "0"}
    over_sockets = {
        "peer_access": True,
        "connections": {"NET/Socket": 4},
        "taken": {"NCCL_P2P_DISABLE": "1", **injected},
    }

    finding = judge_claim(claim_about("transport", injected=injected), two_ranks(over_sockets))

    fails(finding, "(NCCL_P2P_DISABLE=1)")


@pytest.mark.parametrize(
    ("links", "way"),
    [(((0, 1, Link.NVLINK),), " over NVLink"), (((0, 1, Link.PCIE),), " over PCIe"), ((), "")],
)
def test_scaling_reports_the_speed_of_the_slowest_rank_as_a_share_of_one_gpus(
    links: Any, way: str
) -> None:
    claim = claim_about("ddp", replace(TWO_H200S, links=links))
    evidence = spoiled_by(SCALING, {"ranks|1|run|time|seconds": 0.32})

    finding = judge_claim(claim, evidence)

    # 2 x 16,384 tokens in 0.32 s; 16,384 in 0.3 s.
    figures = "102,400 tokens/s, 1.88 times one GPU's (94%)"
    assert finding.reason.startswith(f"2 GPUs{way}: {figures}, 46.0 GB on each, loss 8.200")


@pytest.mark.parametrize(
    ("disturbed", "disturbance"),
    [
        ({"alone|conditions|before": {"busy": 80}}, "80 % busy"),
        ({"ranks|1|conditions|others": 30_000_000_000}, "other programs held 30.0 GB"),
        ({"ranks|0|conditions|under_load": [{"throttled": 0x20}]}, "slowed down (heat)"),
        ({"ranks|1|run|time|spread": 0.4}, "times vary by 40%"),
    ],
)
def test_a_disturbed_gpu_leaves_scaling_unproven_with_its_figures(
    disturbed: dict[str, Any], disturbance: str
) -> None:
    finding = judge_claim(claim_about("ddp"), spoiled_by(SCALING, disturbed))

    assert finding.status is Status.UNPROVEN
    assert disturbance in finding.reason
    assert "tokens/s" in finding.reason


def test_scaling_is_never_required_and_not_applicable_where_step_is_not() -> None:
    claim = claim_about("fsdp2", host_with(replace(H200, memory=16 << 30), H200))

    assert judge_claim(claim, {}).status is Status.NOT_APPLICABLE
    assert "22 GiB of GPU memory, there are 16" in claim.expect["not_applicable"]
    assert not claim_about("fsdp2").required


UNKNOWN_LINK = ()
APART = ((0, 1, Link.APART),)
OVER_PCIE = ((0, 1, Link.PCIE),)


@pytest.mark.parametrize(
    ("links", "has_peer_access", "transport", "status"),
    [
        (APART, False, "SHM/direct", Status.PASS),
        (APART, False, "NET/Socket", Status.FAIL),
        # A host that can't tell: its GPUs may be below different host bridges.
        (UNKNOWN_LINK, True, "SHM/direct", Status.PASS),
        (UNKNOWN_LINK, False, "SHM/direct", Status.PASS),
        (UNKNOWN_LINK, True, "NET/Socket", Status.FAIL),
        # Below different PCIe host bridges NCCL goes through shared memory by design.
        (OVER_PCIE, True, "SHM/direct/direct", Status.PASS),
        (OVER_PCIE, True, "P2P/direct pointer", Status.PASS),
        (OVER_PCIE, True, "NET/Socket", Status.FAIL),
        (OVER_PCIE, False, "SHM/direct/direct", Status.FAIL),
    ],
)
def test_the_hosts_link_decides_which_transports_are_right(
    links: Any, has_peer_access: bool, transport: str, status: Status
) -> None:
    claim = claim_about("transport", replace(TWO_H200S, links=links))
    evidence = two_ranks(
        {"peer_access": has_peer_access, "connections": {transport: 2}, "taken": {}}
    )

    assert judge_claim(claim, evidence).status is status


# The launcher.


def report(*, begun: str = "x", closing: bool) -> dict[str, Any]:
    """Return what a rank wrote to its file until it ended or was killed."""
    return {"measured": {}, "begun": begun, "pid": 1, "closing": closing}


CLOSED, OPEN = report(closing=True), report(closing=False)
LIMIT_SECONDS = 10
TORCHRUN_LOG = cases(__file__, "torchrun")


@pytest.mark.parametrize(
    ("exit_code", "log", "reports", "failure"),
    [
        (0, "", [CLOSED, CLOSED], ""),
        (0, "", [CLOSED, OPEN], "ended with status 0 before it was done (rank 1 in x)"),
        (None, "", [OPEN], "torchrun did not end in 10 s (rank 0 in x)"),
        (
            None,
            "",
            [report(begun="", closing=False)],
            "torchrun did not end in 480 s (rank 0 in its start)",
        ),
        (1, "", [CLOSED], "torchrun ended with status 1"),
        (
            1,
            TORCHRUN_LOG,
            [OPEN, OPEN],
            "rank 1 was killed by SIGSEGV (rank 0 in x, rank 1 in x): "
            "rank 1: second: RuntimeError: boom",
        ),
    ],
)
def test_a_launch_succeeds_only_if_every_rank_came_to_its_end(
    exit_code: int | None, log: str, reports: list[Any], failure: str
) -> None:
    assert _launch.describe_failure(exit_code, log, reports, LIMIT_SECONDS) == failure


class FakeTorchrun:
    """torchrun with one rank, on a clock of its own: when its rank begins, and when it ends."""

    def __init__(self, report_file: Path, begins: float, ends: float) -> None:
        self.report_file, self.begins, self.ends = report_file, begins, ends
        self.now = 0.0

    def wait(self, seconds: float) -> int:
        self.now += seconds
        if self.now >= self.begins:
            self.report_file.write_text('{"begun": "x"}\n')
        if self.now < self.ends:
            raise subprocess.TimeoutExpired("torchrun", seconds)
        return 0


NEVER = 1e9


@pytest.mark.parametrize(
    ("begins", "ends", "exit_code", "returned_at"),
    [
        pytest.param(1.0, 15.0, 0, 15, id="in time"),
        pytest.param(400.0, 410.0, 0, 410, id="starts late and is in time"),
        pytest.param(400.0, NEVER, None, 420, id="measures too long"),
        pytest.param(NEVER, NEVER, None, 480, id="never starts"),
    ],
)
def test_the_limit_of_measuring_counts_from_when_all_ranks_have_begun(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    begins: float,
    ends: float,
    exit_code: int | None,
    returned_at: float,
) -> None:
    """Importing torch takes as long as the rest of the machine lets it."""
    torchrun: Any = FakeTorchrun(tmp_path / "rank0", begins, ends)
    monkeypatch.setattr(_launch, "time", SimpleNamespace(monotonic=lambda: torchrun.now))

    assert _launch.wait_for_torchrun(torchrun, [torchrun.report_file], limit=20) == exit_code
    assert returned_at <= torchrun.now < returned_at + 1


def test_processes_that_ask_at_once_get_different_ports() -> None:
    """None of them listens yet when the next one asks."""
    program = "from validate.harness.forked import find_free_port; print(find_free_port()); input()"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(8)
    ]

    ports = [int(process.stdout.readline()) for process in processes if process.stdout]
    for process in processes:
        process.communicate(b"\n")

    assert len(set(ports)) == 8
    assert max(ports) < 32768


def test_a_port_that_is_taken_is_not_free() -> None:
    port = find_free_port()

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", port))
        assert find_free_port() != port


def test_a_rank_that_died_while_it_wrote_leaves_what_it_wrote_before(tmp_path: Path) -> None:
    file = tmp_path / "rank0"
    file.write_text(
        '{"pid": 7}\n'
        '{"begun": "a"}\n'
        '{"subject": "a", "evidence": {"x": 1}}\n'
        '{"begun": "b"}\n'
        '{"subject": "b", "ev'
    )

    assert _launch.read_report(file) == {
        "pid": 7,
        "begun": "b",
        "measured": {"a": {"x": 1}},
        "closing": False,
    }


def test_a_rank_without_a_file_has_not_started(tmp_path: Path) -> None:
    assert _launch.read_report(tmp_path / "none") == {
        "pid": 0,
        "begun": "",
        "measured": {},
        "closing": False,
    }


@pytest.mark.parametrize(
    ("gpu_count", "rank_count"), [(0, 0), (1, 1), (2, 2), (3, 2), (4, 4), (7, 4), (8, 8), (16, 8)]
)
def test_there_are_as_many_ranks_as_the_largest_power_of_two_of_gpus(
    gpu_count: int, rank_count: int
) -> None:
    assert _launch.round_down_to_power_of_two(gpu_count) == rank_count
    if gpu_count:
        claim = claim_about("torchrun", host_with(*[H200] * gpu_count))
        assert claim.expect["ranks"] == rank_count


def test_nccls_log_names_its_connections_and_variables() -> None:
    log = cases(__file__, "log")

    assert parse_nccl_log(log) == {
        "connections": {
            "NET/Socket": 1,
            "P2P/CUMEM": 1,
            "P2P/CUMEM/read": 1,
            "SHM/direct/direct": 1,
        },
        "taken": {"NCCL_NVLS_ENABLE": "0"},
    }


def test_an_empty_nccl_log_names_nothing() -> None:
    assert parse_nccl_log("") == {"connections": {}, "taken": {}}


# The claims.


@pytest.mark.parametrize(
    ("inventory", "no_gpu", "reason"),
    [
        (None, "no GPU was found", "no GPU was found"),
        (
            host_with(H200),
            "",
            "the host has one GPU (NVIDIA H200): validate on a machine with several",
        ),
    ],
)
def test_with_fewer_than_two_gpus_every_claim_is_there_and_unproven(
    inventory: Inventory | None, no_gpu: str, reason: str
) -> None:
    claims = claims_for(inventory, IMAGE_WITH_ALL_PACKAGES, no_gpu=no_gpu)

    assert {claim.check for claim in claims} == {
        "collectives",
        "ddp",
        "fsdp2",
        "fp8-fsdp2",
        "shared-memory",
        "parallel",
        "scaling",
    }
    assert {claim.unproven for claim in claims} == {reason}


def test_an_image_has_no_claim_about_packages_that_it_lacks() -> None:
    all_subjects = {row.subject for row in ROWS}
    of_image_with_all = {claim.subject for claim in claims_for(TWO_H200S, IMAGE_WITH_ALL_PACKAGES)}
    of_image_with_neither = {claim.subject for claim in claims_for(TWO_H200S)}

    assert of_image_with_all == all_subjects
    assert of_image_with_neither == all_subjects - {"ray-train", "zero3"}


def test_an_image_without_the_variable_that_deepspeed_needs_fails_without_a_gpu() -> None:
    """Beside a GPU, `import deepspeed` asks for an nvcc that the image does not have."""
    claims = bare_claims(IMAGE_WITH_ALL_PACKAGES).claims
    (claim,) = [claim for claim in claims if claim.key == "environment/variables"]
    variables = dict(claim.expect["required"])
    healthy = {
        "required": variables,
        "denied": {},
        "in_files": [],
        "settings_files": {},
        "start": {"flags": {"optimize": 0}, "code": []},
    }

    without_variable = {**healthy, "required": {**variables, "DS_IGNORE_CUDA_DETECTION": None}}

    assert judge_claim(claim, healthy).status is Status.PASS
    fails(judge_claim(claim, without_variable), "DS_IGNORE_CUDA_DETECTION is not set")


@pytest.mark.parametrize(
    ("beyond_host_or_image", "possible", "reason"),
    [
        pytest.param(
            claim_about("gradients", host_with(H200, RTX_3090)),
            claim_about("gradients"),
            "takes compute capability 8.9, RTX 3090 has 8.6",
            id="gpu too old",
        ),
        pytest.param(
            claim_about("4bit", image_name="cu126-torch27"),
            claim_about("4bit", image_name="cu128-torch28"),
            "takes torch 2.8, this is 2.7.1",
            id="torch too old",
        ),
    ],
)
def test_what_gpus_or_torch_cannot_do_is_not_applicable_and_not_required(
    beyond_host_or_image: Claim, possible: Claim, reason: str
) -> None:
    finding = judge_claim(beyond_host_or_image, {})

    assert finding.status is Status.NOT_APPLICABLE
    assert reason in finding.reason
    assert not beyond_host_or_image.required
    assert possible.required


@pytest.mark.parametrize(
    ("inventory", "link"),
    [
        pytest.param(TWO_H200S, "nvlink", id="one pair"),
        pytest.param(
            replace(TWO_H200S, links=((0, 1, Link.NVLINK), (0, 2, Link.APART), (1, 2, Link.PCIE))),
            "apart",
            id="three pairs",
        ),
        pytest.param(replace(TWO_H200S, links=()), "", id="links unknown"),
        pytest.param(None, "", id="host unknown"),
    ],
)
def test_the_link_of_a_host_is_that_of_its_farthest_pair_of_gpus(
    inventory: Inventory | None, link: str
) -> None:
    assert link_of(inventory) == link


def test_a_claim_without_a_host_expects_no_number_of_ranks_and_no_link() -> None:
    claim = claim_about("transport", inventory=None)

    assert claim.expect["ranks"] is None
    assert claim.expect["link"] == ""
    assert not claim.unproven


# What the host gives its containers.

PAGE_BYTES = 1 << 16


@pytest.mark.parametrize("machine_memory", [25_276_063_744, 25_276_063_745, 7_000_000_001, 1 << 40])
def test_shared_memory_is_whole_pages_up_to_a_quarter_of_the_machine(machine_memory: int) -> None:
    """The kernel gives whole pages: what the trial asks for is what is found."""
    most = min(machine_memory / 4, containers.SHARED_MEMORY)

    shared_memory = containers.shared_memory(machine_memory)

    assert shared_memory % PAGE_BYTES == 0
    assert most - PAGE_BYTES < shared_memory <= most


def test_an_inventory_has_the_links_that_nvml_reports() -> None:
    gpu = {"name": "H", "capability": [9, 0], "memory": 1}

    inventory = inventory_from({"driver": "1", "gpus": [gpu, gpu], "links": [[0, 1, "nvlink"]]})

    assert inventory is not None
    assert inventory.links == ((0, 1, Link.NVLINK),)


def test_a_hosts_ban_on_multicast_holds_in_its_containers() -> None:
    ban = {"NCCL_NVLS_ENABLE": "0"}

    attachment = Attachment(mode=GpuMode.NVIDIA, reason="", injected=ban)

    assert attachment.environment({"NCCL_NVLS_ENABLE": "1"}) == ban
    assert attachment.as_json()["environment"] == ban


def test_the_ban_is_injected_and_nccls_log_is_not() -> None:
    assert "NCCL_NVLS_ENABLE" in host_gpus.INJECTED
    assert "NCCL_DEBUG" not in host_gpus.INJECTED


@pytest.mark.parametrize(
    ("gpu_count", "gpu_tiers"), [(1, {Tier.GPU}), (2, {Tier.GPU, Tier.MULTIGPU})]
)
def test_a_build_judges_the_multigpu_tier_only_on_several_gpus(
    gpu_count: int, gpu_tiers: set[Tier], monkeypatch: pytest.MonkeyPatch
) -> None:
    inventory = host_with(*[H200] * gpu_count)
    attachment = Attachment(mode=GpuMode.NVIDIA, reason="", inventory=inventory)
    monkeypatch.setattr(host_gpus, "attach", lambda *_args, **_options: attachment)
    engine: Any = SimpleNamespace(facts=SimpleNamespace(architecture="amd64"))

    _, tiers = validating.find_gpus(engine, image(IMAGE), "auto", (), print)

    assert set(tiers) == {*validating.ANYWHERE, *gpu_tiers}
