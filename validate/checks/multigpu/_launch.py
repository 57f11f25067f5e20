"""Run a check's rank function in several processes, started by torchrun, and collect its evidence.

`measure` runs in the suite: it starts torchrun inside this container. torchrun runs this module as
a program once for each rank (`run_rank`), which calls `rank(worker, claim)` of the check's module
for one claim after another. Each rank writes its evidence to a file of its own, line by line, so
what was measured survives a rank that dies, hangs or ends too early. Then `measure` yields what all
ranks finished and raises RanksFailedError, so that the probe's record never carries a PASS.
"""

import ctypes
import faulthandler
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict, cast

from validate.checks.multigpu._ranks import Worker
from validate.claims import Claim
from validate.environment import nvml
from validate.evidence import strict_json
from validate.harness.forked import describe_error, describe_exit, find_free_port

LIMIT_SECONDS = 480.0
"""How long ranks may take to start, and again to measure. Each takes them 5 to 30 s on an idle
machine: after this long, a rank hangs and is not only slow."""
PATIENCE_SECONDS = 120.0
"""How long a rank that has finished a subject waits for the others: longer than a collective's
limit (_ranks.TIMEOUT_SECONDS)."""
MOST_RANKS = 8
_ROOT = Path(__file__).resolve().parents[3]
PROGRAM = "validate.checks.multigpu._launch"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--max-restarts=0")
_ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.DOTALL)
"""The rank and the exit code in torchrun's summary of a failure."""
_END_SECONDS = 5.0
"""How long torchrun has to end by itself, after its ranks were killed."""
_POLL_SECONDS = 0.2
"""How often the suite looks at the ranks' reports."""


class RanksFailedError(RuntimeError):
    """A rank died, hung, or ended before it was done."""


class RankReport(TypedDict):
    """What a rank wrote to its file so far."""

    pid: int  # 0: it has not started
    begun: str  # the subject that it began last; empty: none
    measured: dict[str, Any]  # subject -> evidence
    closing: bool  # whether it came to its regular end


def measure(
    probe: str,
    claims: Sequence[Claim],
    *,
    limit: float = LIMIT_SECONDS,
    patience: float = PATIENCE_SECONDS,
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Run a check in several processes that train together (ranks), one for each GPU.

    Yields for each claim its subject, and what each rank measured: `{"ranks": [evidence, ...]}`. A
    claim that not all ranks have finished is left out. If a rank failed, RanksFailedError is raised
    after the others were yielded.

    probe: the name of the check's module.
    limit: seconds from when all ranks have begun until they must be done.
    patience: how many seconds a rank waits for the others after each claim.
    """
    # All claims of a check run with the same ranks on the same kind of device.
    rank_count = count_ranks(claims[0])
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder_name:
        # Every rank reads its work from this file (run_rank).
        folder = Path(folder_name)
        work = {"probe": probe, "claims": [asdict(claim) for claim in claims]}
        (folder / "work.json").write_text(json.dumps(work))

        environment = dict(os.environ)
        if claims[0].expect["device"] == "cpu":
            # A container without a network has only the loopback interface, which gloo does not
            # choose by itself.
            environment["GLOO_SOCKET_IFNAME"] = "lo"
        program = [PROGRAM, str(folder), f"{limit:g}", f"{patience:g}"]
        launcher = [
            *TORCHRUN,
            f"--nproc-per-node={rank_count}",
            "--master-addr=127.0.0.1",
            f"--master-port={find_free_port()}",
            "-m",
        ]
        files = [folder / f"rank{rank}" for rank in range(rank_count)]
        command = [*launcher, *program]
        exit_code, log = run_launcher(command, folder / "log", files, environment, limit)

        # Yield the claims that all ranks have finished, even if one of them failed later.
        reports = [read_report(folder / f"rank{rank}") for rank in range(rank_count)]
        for claim in claims:
            if all(claim.subject in report["measured"] for report in reports):
                rank_evidence = [report["measured"][claim.subject] for report in reports]
                yield claim.subject, {"ranks": rank_evidence}
        failure = describe_failure(exit_code, log, reports, limit)
        if failure:
            raise RanksFailedError(failure)


def count_ranks(claim: Claim) -> int:
    """Return how many ranks a claim expects; if it does not say so, as many as there are GPUs.

    A claim that was written without a host says nothing. Then the driver counts the GPUs.
    """
    expected_count = claim.expect.get("ranks")
    if expected_count:
        return int(expected_count)
    return round_down_to_power_of_two(len(nvml.read_by_nvml()["gpus"]))


def round_down_to_power_of_two(count: int) -> int:
    """Return the largest power of two up to `count` and MOST_RANKS; 0 for 0.

    With a power of two as the number of ranks, meshes and shards are even.
    """
    if not count:
        return 0
    return 1 << (min(count, MOST_RANKS).bit_length() - 1)


def describe_failure(
    exit_code: int | None,
    log: str,
    reports: Sequence[RankReport],
    limit: float,
    start_limit: float = LIMIT_SECONDS,
    first_rank: int = 0,
) -> str:
    """Return in one line why a launch failed; empty if torchrun and every rank ended regularly.

    The line names each rank that did not finish, with the subject that it had begun last.

    `exit_code` and `log` are torchrun's; None means that it was ended after the time limit. `limit`
    is the limit for measuring, and `start_limit` that for beginning, in seconds. `reports` are
    those of the ranks from `first_rank` on.
    """
    unfinished = []
    for rank, report in enumerate(reports, first_rank):
        if not report["closing"]:
            unfinished.append(f"rank {rank} in {report['begun'] or 'its start'}")
    where = f" ({', '.join(unfinished)})" if unfinished else ""

    # The time was up. Ranks have `start_limit` to start, and `limit` to measure once all of them
    # have begun a subject (`wait_for_torchrun`): which of the two was it?
    if exit_code is None:
        all_have_begun = all(report["begun"] for report in reports)
        waited = limit if all_have_begun else start_limit
        return f"torchrun did not end in {waited:g} s{where}"

    # torchrun ended with an error. Its log names the rank that failed first, if it knows it.
    root_cause = _ROOT_CAUSE.search(log)
    if root_cause:
        rank, status = int(root_cause[1]), int(root_cause[2])
        # A negative status is a signal. `describe_exit` returns "killed by ..." for it, and
        # "ended with ..." for any other status.
        end = f"was {describe_exit(status)}" if status < 0 else describe_exit(status)
        return f"rank {rank} {end}{where}{find_last_message(log, rank)}"
    if exit_code:
        return f"torchrun ended with status {exit_code}{where}{find_last_message(log, None)}"

    # A library may end a rank early with status 0.
    if unfinished:
        return f"ended with status 0 before it was done{where}"
    return ""


def read_report(file: Path) -> RankReport:
    """Return what a rank has written to its file so far.

    The file has JSON lines, in the order of `run_rank`: `{"pid": 17}`, then for each claim
    `{"begun": SUBJECT}` and `{"subject": SUBJECT, "evidence": {...}}`, at last `{"closing": true}`.
    A missing file is a rank that has not started. A line that is not complete yet is left out.
    """
    report: RankReport = {"pid": 0, "begun": "", "measured": {}, "closing": False}
    if not file.exists():
        return report
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if "subject" in entry:
            report["measured"][entry["subject"]] = entry["evidence"]
        else:
            # `pid`, `begun` or `closing`. There is a line with `begun` for each claim: the last one
            # counts.
            report.update(entry)
    return report


def run_launcher(
    command: Sequence[str],
    log: Path,
    files: Sequence[Path],
    environment: Mapping[str, str],
    limit: float,
    start_limit: float = LIMIT_SECONDS,
) -> tuple[int | None, str]:
    """Run torchrun, or another launcher that ends with its ranks; return its exit code and output.

    The exit code is None if the ranks were killed because their time was up. The output goes to the
    file `log`, and is also printed, for the probe's log.

    files: where the ranks (its processes) write their reports.
    environment: all variables that it gets.
    limit: seconds that the ranks may measure, from when all of them have begun.
    start_limit: seconds that they may take to begin.
    """
    with log.open("wb") as output:
        torchrun = subprocess.Popen(
            command,
            cwd=_ROOT,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        exit_code = wait_for_torchrun(torchrun, files, limit, start_limit)
        if exit_code is None:
            kill_launch(torchrun, [read_report(file)["pid"] for file in files])
    text = log.read_text(encoding="utf-8", errors="replace")
    print(text, end="", flush=True)  # noqa: T201  the probe's log
    return exit_code, text


def wait_for_torchrun(
    torchrun: subprocess.Popen[bytes],
    files: Sequence[Path],
    limit: float,
    start_limit: float = LIMIT_SECONDS,
) -> int | None:
    """Wait until torchrun ends and return its exit code; None if it takes too long.

    The ranks, whose report files are `files`, have `start_limit` seconds until all of them have
    begun a subject, and from then on `limit` seconds until the end. Importing torch may take long
    on a busy machine and must not count as measuring.
    """
    have_begun = False
    deadline = time.monotonic() + start_limit
    while True:
        with suppress(subprocess.TimeoutExpired):
            return torchrun.wait(_POLL_SECONDS)
        if not have_begun and all(read_report(file)["begun"] for file in files):
            have_begun = True
            deadline = time.monotonic() + limit
        if time.monotonic() > deadline:
            return None


def kill_launch(torchrun: subprocess.Popen[bytes], rank_pids: Sequence[int]) -> None:
    """Kill the ranks and then torchrun, which gets a few seconds to end by itself.

    The ranks are killed one by one, because torchrun gives each a session of its own. A process ID
    of 0 is a rank that has not started.
    """
    for pid in rank_pids:
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    try:
        torchrun.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        torchrun.kill()
        torchrun.wait()


def find_last_message(log: str, rank: int | None) -> str:
    """Return the last line of a rank's own messages in a log, after `: `; empty if there is none.

    Ranks begin their messages with `rank NUMBER: `. None as the rank is any of them.
    """
    number = "[0-9]+" if rank is None else str(rank)
    messages = [line for line in log.splitlines() if re.match(rf"rank {number}: ", line)]
    return f": {messages[-1]}" if messages else ""


# All functions below run in each rank.

_PR_SET_PDEATHSIG = 1
"""The option of prctl(2): send this signal to the process when its parent ends."""
_PEER_POLL_SECONDS = 0.02
"""How often a rank looks at the reports of the others."""
_DUMP_BEFORE_SECONDS = 15.0
"""How long before its limit a rank prints its stack."""


def run_rank(
    folder: Path, limit: float, patience: float, start_limit: float = LIMIT_SECONDS
) -> int:
    """Measure all claims as one rank (one of the processes that work together), and return 0.

    torchrun starts it once for each GPU. It writes its evidence line by line to `folder`/rankN,
    where `measure` and the other ranks read it. Raises SystemExit if another rank does not finish a
    claim in time.

    folder: holds work.json, with the claims and the name of the check that measures them.
    limit: seconds to measure all claims; shortly before they are over, the stack is printed.
    patience: seconds to wait for the other ranks after each claim.
    start_limit: seconds to begin the first claim; shortly before, the stack is printed, too.
    """
    # The kernel kills this process when torchrun ends: nothing outlives it (prctl(2)).
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The time to start, until the first claim begins. The time to measure follows below.
    dump_stack_before(start_limit)
    rank = int(os.environ["RANK"])
    work = json.loads((folder / "work.json").read_text())
    claims = [Claim.from_json(claim) for claim in work["claims"]]
    with (folder / f"rank{rank}").open("w", encoding="utf-8") as report:

        def write(entry: Mapping[str, object]) -> None:
            """Write a line of this rank's report (`read_report`), for all to read at once."""
            report.write(json.dumps(entry) + "\n")
            report.flush()
            # On NFS, another machine sees it only then.
            os.fsync(report.fileno())

        write({"pid": os.getpid()})
        # Join the other ranks in one group.
        check = importlib.import_module(work["probe"])
        if hasattr(check, "environment"):
            # Set the check's variables, which libraries read when the group is formed.
            os.environ.update(check.environment(folder))
        worker = Worker.join(claims[0].expect["device"], folder)

        dump_stack_before(limit)
        for claim in claims:
            write({"begun": claim.subject})
            evidence = measure_claim(check.rank, worker, claim)
            write({"subject": claim.subject, "evidence": evidence})
            wait_for_other_ranks(worker, claim.subject, patience)
        if worker.device.type != "cpu":
            # NCCL warns of a group that is left over. A broken one raises here.
            worker.distributed.destroy_process_group()
        write({"closing": True})
    if worker.device.type == "cpu":
        # End without destroying the group, and without the interpreter's own shutdown. gloo does
        # not always survive them on a busy machine: its threads free tensors late and need the
        # interpreter's lock for that. A thread that asks for the lock during the shutdown aborts
        # the process (ProcessGroupGloo::runLoop, TensorImpl::decref_pyobject; torch 2.11), and
        # destroying a group has hung (torch 2.5).
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


def measure_claim(
    rank_function: Callable[[Worker, Claim], Mapping[str, object]], worker: Worker, claim: Claim
) -> dict[str, Any]:
    """Return this rank's evidence of a claim and its device, or `error` if measuring raised."""
    try:
        evidence = {**rank_function(worker, claim), "device": worker.device_facts()}
    except Exception as error:
        traceback.print_exc()
        sys.stderr.write(f"rank {worker.rank}: {claim.subject}: {format_error(error)}\n")
        evidence = {"error": describe_error(error)}
    return cast("dict[str, Any]", strict_json(evidence))


def wait_for_other_ranks(worker: Worker, subject: str, patience: float) -> None:
    """Wait until every rank has written its evidence of a subject.

    Ranks read each other's report files, since the collectives may be what is broken. Raises
    SystemExit if a rank has not finished after `patience` seconds.
    """
    deadline = time.monotonic() + patience
    while True:
        missing = []
        for rank in range(worker.world_size):
            if subject not in read_report(worker.folder / f"rank{rank}")["measured"]:
                missing.append(str(rank))
        if not missing:
            return
        if time.monotonic() > deadline:
            sys.stderr.write(
                f"rank {worker.rank}: rank {', '.join(missing)} did not come out of {subject} "
                f"in {patience:g} s\n"
            )
            raise SystemExit(1)
        time.sleep(_PEER_POLL_SECONDS)


def dump_stack_before(limit: float) -> None:
    """Arrange that this rank's stack is printed shortly before `limit` seconds have passed.

    After the limit the launch kills the rank. A later call replaces the time of an earlier one.
    """
    faulthandler.dump_traceback_later(max(1.0, limit - _DUMP_BEFORE_SECONDS))


def format_error(error: BaseException) -> str:
    """Return an exception's type and the first 300 characters of its message, in one line."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message[:300]}"


if __name__ == "__main__":
    try:
        sys.exit(run_rank(Path(sys.argv[1]), *map(float, sys.argv[2:])))
    except Exception as failure:
        traceback.print_exc()
        sys.stderr.write(f"rank {os.environ.get('RANK', '?')}: {format_error(failure)}\n")
        sys.exit(1)
