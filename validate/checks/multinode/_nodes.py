"""Run ranks on two nodes, and collect their evidence.

The nodes are two containers of one machine (images/validation/containers.py, `node_environments`),
or two machines (validate/two_machines.py). The suite runs on both with the same claims. They share
a network and one folder, as nodes of a cluster share a file system. Each probe runs on both nodes
at once. It meets the probe of the other node for each launch, so that both launch the same, and
starts its own node's ranks. The first node yields the evidence of all ranks; the other one yields
nothing.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from validate.checks.multigpu import _launch
from validate.claims import Claim
from validate.harness.forked import find_free_port
from validate.nodes import (
    ADDRESSES_VARIABLE,
    FOLDER_VARIABLE,
    NODE_VARIABLE,
    NODES,
    SHARED_FOLDER,
)

START_SECONDS = 300.0
"""How long ranks may take to join the other node's. They take 10 to 30 s on an idle machine, and
ten times as long on one whose cores are all busy."""
LIMIT_SECONDS = 120.0
"""How long ranks may measure after that."""
MEETING_SECONDS = START_SECONDS + LIMIT_SECONDS + 30
"""How long a node waits for the other. It must be longer than a launch can take: after one that
failed early, this node comes first to the next."""
_POLL_SECONDS = 0.1


class NodeMissingError(RuntimeError):
    """The other node did not come to a launch."""


@dataclass(frozen=True)
class Launch:
    """One launch of ranks on both nodes, as one of them sees it."""

    node: int
    """This node's number: 0 or 1."""
    ranks: int
    """How many ranks both nodes have together."""
    folder: Path
    """Is shared with the other node, and of this launch only."""
    addresses: Sequence[str]
    """That of each node."""
    port: int
    """One that is free on the first node."""
    machines: int = 1
    """On how many machines the nodes are. On one, each has its part of the GPUs' numbers."""

    @property
    def ranks_of_node(self) -> int:
        """Return how many ranks this node starts."""
        return self.ranks // NODES

    @property
    def first_rank(self) -> int:
        """Return the number of this node's first rank."""
        return self.node * self.ranks_of_node

    def report_files(self) -> list[Path]:
        """Return the files that all ranks write their reports to, in the order of their numbers."""
        return [self.folder / f"rank{rank}" for rank in range(self.ranks)]

    def own_report_files(self) -> list[Path]:
        """Return the report files of this node's ranks."""
        return self.report_files()[self.first_rank : self.first_rank + self.ranks_of_node]


def torchrun(launch: Launch) -> list[str]:
    """Return torchrun's command where each node has a number and knows the first one's address."""
    return [
        *_launch.TORCHRUN,
        f"--nnodes={NODES}",
        f"--node-rank={launch.node}",
        f"--nproc-per-node={launch.ranks_of_node}",
        f"--master-addr={launch.addresses[0]}",
        f"--master-port={launch.port}",
        "-m",
    ]


def measure(
    probe: str,
    claims: Sequence[Claim],
    make_command: Callable[[Launch], list[str]] = torchrun,
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Run a check's rank function on both nodes, in one launch for all of these claims.

    Yields on the first node, for each claim, its subject and what each rank measured:
    `{"ranks": [evidence, ...]}`. A claim that not all ranks have finished is left out. If a rank of
    either node failed, RanksFailedError is raised on both after the others were yielded.

    probe: the name of the check's module.
    make_command: returns the launcher's command, to which a module and its arguments are added.
    """
    launch = meet(f"{probe}-{claims[0].subject}", probe, claims)
    own_failure = "its probe broke off"
    try:
        exit_code, log = run(launch, make_command(launch))

        reports = [_launch.read_report(file) for file in launch.report_files()]
        for claim in claims:
            is_complete = all(claim.subject in report["measured"] for report in reports)
            if launch.node == 0 and is_complete:
                rank_evidence = [report["measured"][claim.subject] for report in reports]
                yield claim.subject, {"ranks": rank_evidence}

        own_failure = _launch.describe_failure(
            exit_code,
            log,
            [_launch.read_report(file) for file in launch.own_report_files()],
            LIMIT_SECONDS,
            START_SECONDS,
            launch.first_rank,
        )
    finally:
        # Also if this probe breaks off: the other node would wait in vain, and come too late to all
        # later launches.
        tell(launch.folder, launch.node, "ended", own_failure)

    # A launch that one node ended well may have failed on the other.
    failures = wait_for_nodes(launch.folder, launch.node, "ended")
    failed = [f"node {node}: {failure}" for node, failure in enumerate(failures) if failure]
    if failed:
        raise _launch.RanksFailedError("; ".join(failed))


def run(launch: Launch, launcher: Sequence[str]) -> tuple[int | None, str]:
    """Run this node's ranks by a launcher, and return its exit code and its output.

    The exit code is None if the launcher was killed because it took too long (run_launcher).
    """
    limits = [f"{LIMIT_SECONDS:g}", f"{LIMIT_SECONDS:g}", f"{START_SECONDS:g}"]
    # The launcher starts a process for each rank: this program, with these arguments.
    command = [*launcher, _launch.PROGRAM, str(launch.folder), *limits]
    log = launch.folder / f"log-of-node{launch.node}"
    files = launch.own_report_files()
    return _launch.run_launcher(command, log, files, os.environ, LIMIT_SECONDS, START_SECONDS)


def meet(name: str, probe: str, claims: Sequence[Claim]) -> Launch:
    """Wait until the other node has come to the launch of this name, and return the launch.

    The first node writes down what the ranks are to measure, and a free port. Raises
    NodeMissingError if the other node does not come in time.
    """
    node = int(os.environ[NODE_VARIABLE])
    folder = Path(os.environ.get(FOLDER_VARIABLE, SHARED_FOLDER), "nodes", name)
    folder.mkdir(parents=True, exist_ok=True)
    port = 0
    if node == 0:
        work = {"probe": probe, "claims": [asdict(claim) for claim in claims]}
        (folder / "work.json").write_text(json.dumps(work))
        port = find_free_port()
    tell(folder, node, "arrived", port)
    ports = wait_for_nodes(folder, node, "arrived")
    return Launch(
        node=node,
        ranks=_launch.count_ranks(claims[0]),
        folder=folder,
        addresses=os.environ[ADDRESSES_VARIABLE].split(","),
        port=ports[0],
        machines=claims[0].expect.get("machines", 1),
    )


def tell(folder: Path, node: int, event: str, content: object) -> None:
    """Tell the other node of an event of a launch, in the folder that they share.

    `node` is the number of this node. `content` is written as JSON.
    """
    # A rename is atomic, so the other node reads either nothing or the whole.
    unfinished = folder / f"unfinished{node}"
    unfinished.write_text(json.dumps(content))
    unfinished.rename(folder / f"{event}{node}")


def wait_for_nodes(folder: Path, node: int, event: str) -> list[Any]:
    """Wait until both nodes have told of an event, and return what they told, in their order.

    Raises NodeMissingError if the other node does not tell in time.
    """
    files = [folder / f"{event}{number}" for number in range(NODES)]
    deadline = time.monotonic() + MEETING_SECONDS
    while not all(file.exists() for file in files):
        if time.monotonic() > deadline:
            raise NodeMissingError(
                f"node {1 - node} did not come to {folder.name} ({event}) in "
                f"{MEETING_SECONDS:g} s: see above how it ended there, and give the command again"
            )
        # Touching the folder makes a client of NFS ask its server. Otherwise it may remember for
        # 30 s that a file is missing (nfs(5), acdirmin).
        os.utime(folder)
        time.sleep(_POLL_SECONDS)
    return [json.loads(file.read_text()) for file in files]


def program_path(name: str) -> str:
    """Return the path of a program beside Python, or on PATH. Raises FileNotFoundError."""
    beside_python = Path(sys.executable).with_name(name)
    path = str(beside_python) if beside_python.exists() else shutil.which(name)
    if path is None:
        raise FileNotFoundError(f"the image has no program {name}")
    return path
