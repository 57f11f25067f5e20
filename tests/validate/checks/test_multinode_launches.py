"""Launches of the multinode tier: how nodes meet, what launchers are told, and what comes of it.

No rank is started. A test is one of the nodes, and writes what the other one or a rank would write.
"""

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from validate.checks.multigpu import _launch
from validate.checks.multinode import _nodes, rendezvous
from validate.claims import Claim, Tier
from validate.nodes import ADDRESSES_VARIABLE, NODE_VARIABLE


def claim_of(subject: str = "ddp", ranks: int = 2) -> Claim:
    return Claim(
        check="two-nodes",
        subject=subject,
        tier=Tier.MULTINODE,
        probe="multinode.training",
        statement="",
        expect={"device": "cuda", "ranks": ranks, "nodes": 2},
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the launch `a.check-ddp`, which both nodes share."""
    monkeypatch.setattr(_nodes, "SHARED_FOLDER", str(tmp_path))
    monkeypatch.setattr(_nodes, "MEETING_SECONDS", 0.5)
    monkeypatch.setenv(ADDRESSES_VARIABLE, "127.0.0.1,127.0.0.2")
    folder = tmp_path / "nodes" / "a.check-ddp"
    folder.mkdir(parents=True)
    return folder


def meet_as(
    node: int, folder: Path, monkeypatch: pytest.MonkeyPatch, *claims: Claim
) -> _nodes.Launch:
    monkeypatch.setenv(NODE_VARIABLE, str(node))
    return _nodes.meet(folder.name, "a.check", claims or [claim_of(ranks=4)])


# How nodes meet.


@pytest.mark.parametrize("node", [0, 1])
def test_a_node_that_comes_alone_says_so_and_does_not_launch(
    node: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(_nodes.NodeMissingError, match=f"node {1 - node} did not come to a.check"):
        meet_as(node, folder, monkeypatch)


def test_nodes_that_meet_have_the_same_port_and_ranks_of_their_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "arrived1").write_text("0")

    first = meet_as(0, folder, monkeypatch)
    second = meet_as(1, folder, monkeypatch)

    assert first.port == second.port > 0
    assert first.addresses == second.addresses == ["127.0.0.1", "127.0.0.2"]
    assert [file.name for file in first.own_report_files()] == ["rank0", "rank1"]
    assert [file.name for file in second.own_report_files()] == ["rank2", "rank3"]


def test_the_first_node_alone_writes_down_what_all_ranks_measure(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks read it while the second node may still be on its way."""
    work = folder / "work.json"
    (folder / "arrived0").write_text("29500")
    meet_as(1, folder, monkeypatch)
    assert not work.exists()

    meet_as(0, folder, monkeypatch, claim_of("ddp"), claim_of("hsdp"))

    written = json.loads(work.read_text())
    assert written["probe"] == "a.check"
    assert [claim["subject"] for claim in written["claims"]] == ["ddp", "hsdp"]


def test_nodes_that_tell_at_the_same_moment_do_not_disturb_each_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def rename_late(unfinished: Path, target: Path) -> None:
        monkeypatch.setattr(Path, "rename", rename)
        _nodes.tell(folder, 1, "arrived", "second")
        unfinished.rename(target)

    monkeypatch.setattr(Path, "rename", rename_late)
    _nodes.tell(folder, 0, "arrived", "first")

    assert _nodes.wait_for_nodes(folder, 0, "arrived") == ["first", "second"]


def test_a_node_waits_longer_for_the_other_than_a_launch_can_take() -> None:
    assert _nodes.MEETING_SECONDS > _nodes.START_SECONDS + _nodes.LIMIT_SECONDS


# What launchers are told.


@pytest.fixture
def launch(tmp_path: Path) -> _nodes.Launch:
    """A launch of four ranks, as the second node sees it."""
    return _nodes.Launch(
        node=1, ranks=4, folder=tmp_path, addresses=["127.0.0.1", "127.0.0.2"], port=29511
    )


OPTIONS = {
    "torchrun": (
        "--nnodes=2 --node-rank=1 --nproc-per-node=2 --master-addr=127.0.0.1 --master-port=29511"
    ),
    "torchrun-c10d": (
        "--nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:29511 "
        "--rdzv-id=29511 --rdzv-conf=is_host=0,join_timeout=300 --local-addr=127.0.0.2"
    ),
    "accelerate": (
        "--multi_gpu --num_machines=2 --num_processes=4 --machine_rank=1 "
        "--main_process_ip=127.0.0.1 --main_process_port=29511"
    ),
    # It numbers the machine's GPUs, whatever CUDA_VISIBLE_DEVICES says.
    "deepspeed": (
        "--include=node-0:0,1@node-1:2,3 --no_ssh --node_rank=1 --master_addr=127.0.0.1 "
        "--master_port=29511 --no_local_rank"
    ),
}
"""Launcher -> what it must be told on the second node: the first one's address, and its own part.
"""


@pytest.mark.parametrize("name", rendezvous.LAUNCHERS)
def test_each_launcher_is_told_where_the_first_node_is_and_which_ranks_are_this_nodes(
    name: str, launch: _nodes.Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_nodes, "program_path", lambda program: program)

    command = rendezvous.LAUNCHERS[name](launch)

    assert not set(OPTIONS[name].split()).difference(command)
    assert command[0] in (name, sys.executable)


def test_on_two_machines_deepspeed_counts_gpus_from_0_on_each(
    launch: _nodes.Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_nodes, "program_path", lambda program: program)

    command = rendezvous.deepspeed(replace(launch, machines=2))

    assert "--include=node-0:0,1@node-1:0,1" in command


def test_deepspeeds_hostfile_has_the_gpus_of_the_machine_on_each_node(
    launch: _nodes.Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_nodes, "program_path", lambda program: program)

    rendezvous.deepspeed(launch)

    hostfile = launch.folder / "hostfile-of-node1"
    assert hostfile.read_text() == "node-0 slots=4\nnode-1 slots=4\n"


def test_a_node_runs_its_own_ranks_and_gives_them_time_to_start_and_time_to_measure(
    launch: _nodes.Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Sequence[Any]] = []
    monkeypatch.setattr(_launch, "run_launcher", lambda *arguments: calls.append(arguments))

    _nodes.run(launch, ["torchrun"])

    ((command, log, files, _, limit, start_limit),) = calls
    # run_rank: the folder, then the limits of measuring, of patience and of starting.
    assert command == ["torchrun", _launch.PROGRAM, str(launch.folder), "120", "120", "300"]
    assert (limit, start_limit) == (120.0, 300.0)
    assert files == launch.own_report_files()
    # Both nodes write to the folder.
    assert log == launch.folder / "log-of-node1"


def test_a_launcher_is_the_one_beside_python_or_that_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    monkeypatch.setattr(shutil, "which", {"accelerate": "/opt/bin/accelerate"}.get)

    assert _nodes.program_path("accelerate") == "/opt/bin/accelerate"
    (tmp_path / "accelerate").touch()
    assert _nodes.program_path("accelerate") == str(tmp_path / "accelerate")
    with pytest.raises(FileNotFoundError, match="the image has no program deepspeed"):
        _nodes.program_path("deepspeed")


# What comes of a launch.


def report_of(rank: int, *subjects: str, closing: bool = True) -> str:
    """Return what a rank writes that measured these subjects: its number."""
    lines: list[dict[str, Any]] = []
    for subject in subjects:
        lines += [{"begun": subject}, {"subject": subject, "evidence": rank}]
    if closing:
        lines.append({"closing": True})
    return "\n".join(map(json.dumps, lines))


@pytest.fixture
def measure_as(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Iterator[tuple[str, Any]]]:
    """A function that measures two claims as one node, with these reports of both nodes' ranks.

    `other_failure`: how the launch of the other node failed; empty: it ended well.
    """

    def measure(
        node: int, reports: Sequence[str], other_failure: str = ""
    ) -> Iterator[tuple[str, Any]]:
        _nodes.tell(folder, 1 - node, "arrived", 29500)
        _nodes.tell(folder, 1 - node, "ended", other_failure)
        for rank, report in enumerate(reports):
            (folder / f"rank{rank}").write_text(report)
        monkeypatch.setenv(NODE_VARIABLE, str(node))
        monkeypatch.setattr(_nodes, "run", lambda *_: (0, ""))
        return _nodes.measure("a.check", [claim_of("ddp"), claim_of("hsdp")])

    return measure


@pytest.mark.parametrize(
    ("node", "measured"), [(0, [("ddp", {"ranks": [0, 1]}), ("hsdp", {"ranks": [0, 1]})]), (1, [])]
)
def test_the_first_node_yields_what_the_ranks_of_both_measured_and_the_second_one_nothing(
    node: int, measured: list[tuple[str, Any]], measure_as: Any
) -> None:
    reports = [report_of(0, "ddp", "hsdp"), report_of(1, "ddp", "hsdp")]

    assert list(measure_as(node, reports)) == measured


@pytest.mark.parametrize("slow_rank", [0, 1])
def test_a_claim_that_a_rank_of_either_node_has_not_finished_is_left_out(
    slow_rank: int, measure_as: Any
) -> None:
    reports = [report_of(0, "ddp", "hsdp"), report_of(1, "ddp", "hsdp")]
    reports[slow_rank] = report_of(slow_rank, "ddp")

    assert list(measure_as(0, reports)) == [("ddp", {"ranks": [0, 1]})]


@pytest.mark.parametrize("node", [0, 1])
def test_a_failure_of_the_other_node_is_one_of_this_node(node: int, measure_as: Any) -> None:
    reports = [report_of(0, "ddp", "hsdp"), report_of(1, "ddp", "hsdp")]

    with pytest.raises(_launch.RanksFailedError, match=f"^node {1 - node}: its rank died$"):
        list(measure_as(node, reports, "its rank died"))


@pytest.mark.parametrize("node", [0, 1])
def test_a_node_tells_of_its_own_ranks_by_their_numbers_among_all(
    node: int, folder: Path, measure_as: Any
) -> None:
    """Neither rank came to its end. With one rank on each, their numbers are the nodes'."""
    reports = [report_of(0, closing=False), report_of(1, closing=False)]
    failure = f"ended with status 0 before it was done (rank {node} in its start)"

    with pytest.raises(_launch.RanksFailedError) as raised:
        list(measure_as(node, reports))

    assert str(raised.value) == f"node {node}: {failure}"
    assert json.loads((folder / f"ended{node}").read_text()) == failure


def test_a_node_whose_probe_breaks_off_tells_the_other(
    folder: Path, measure_as: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(*_: object) -> None:
        raise OSError("no space left on device")

    measuring = measure_as(0, [])
    monkeypatch.setattr(_nodes, "run", break_off)
    with pytest.raises(OSError, match="no space left"):
        list(measuring)

    assert json.loads((folder / "ended0").read_text()) == "its probe broke off"


def test_a_launcher_that_fails_or_is_missing_hinders_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands: dict[str, object] = {}

    def measure(
        _probe: str, claims: Sequence[Claim], make_command: object
    ) -> Iterator[tuple[str, Any]]:
        (claim,) = claims
        commands[claim.subject] = make_command
        if claim.subject == "accelerate":
            raise FileNotFoundError("the image has no program accelerate")
        yield claim.subject, {"ranks": []}
        # A rank may die after all have measured.
        if claim.subject == "torchrun":
            raise _launch.RanksFailedError("node 1: its rank died")

    monkeypatch.setattr(_nodes, "measure", measure)
    evidence = list(rendezvous.measure([claim_of(name) for name in rendezvous.LAUNCHERS]))

    errors = {subject: measured.get("error") for subject, measured in evidence}
    assert [subject for subject, _ in evidence] == list(rendezvous.LAUNCHERS)
    assert errors["torchrun"]["message"] == "node 1: its rank died"
    assert errors["accelerate"]["message"] == "the image has no program accelerate"
    assert errors["torchrun-c10d"] is errors["deepspeed"] is None
    assert commands == rendezvous.LAUNCHERS
