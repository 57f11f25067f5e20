"""One process a rank, as people start them: torchrun inside this container, evidence by files.

Run as a program, this is each rank: `rank(worker, claim)` of a probe's module, claim by claim, into the rank's file.
What every rank measured becomes `{"ranks": [rank 0's, rank 1's, ...]}`. Where a rank dies, hangs or ends too
early, what all had finished is given first, then RanksFailedError is raised: the probe's record never carries a PASS.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from validate.checks.multigpu._ranks import Worker
from validate.claims import Claim
from validate.environment import nvml
from validate.evidence import plain
from validate.harness.forked import describe_error, describe_exit, find_free_port

LIMIT_SECONDS = 480.0
"""Ranks start, and then are at work, for 5 to 30 s each: past this, one hangs. Beside load they are slow, not wrong."""
PATIENCE_SECONDS = 120.0
"""How long a rank that has finished a subject waits for the others: longer than the process group does."""
MOST_RANKS = 8
_ROOT = Path(__file__).resolve().parents[3]
_PROGRAM = "validate.checks.multigpu._launch"
_CULPRIT = re.compile(r"Root Cause.*?rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.DOTALL)
_END_SECONDS = 5.0
_POLL_SECONDS = 0.2


class RanksFailedError(RuntimeError):
    """A rank died, hung, or ended before it was done."""


def measure(
    probe: str,
    claims: Sequence[Claim],
    *,
    limit: float = LIMIT_SECONDS,
    patience: float = PATIENCE_SECONDS,
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Start the ranks of a probe's module, each running its `rank(worker, claim)` for every claim in turn.

    `limit`: seconds from when all ranks have begun until they must be done; to begin they have LIMIT_SECONDS.
    `patience`: seconds that a rank waits for the others after each claim. Raises RanksFailedError.
    """
    ranks = ranks_of(claims[0])
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        place = Path(folder)
        (place / "work.json").write_text(
            json.dumps({"probe": probe, "claims": [asdict(claim) for claim in claims]})
        )
        program = [_PROGRAM, str(place), f"{limit:g}", f"{patience:g}"]
        # A container without a network has the loopback interface alone, which gloo does not take by itself.
        lent = {"GLOO_SOCKET_IFNAME": "lo"} if claims[0].expect["device"] == "cpu" else {}
        code, log = _torchrun(place, ranks, program, {**os.environ, **lent}, limit)
        heard = [listen(place / f"rank{rank}") for rank in range(ranks)]
        for claim in claims:
            found = [
                one["measured"][claim.subject] for one in heard if claim.subject in one["measured"]
            ]
            if len(found) == len(heard):
                yield claim.subject, {"ranks": found}
        if trouble := end_of(code, log, heard, limit):
            raise RanksFailedError(trouble)


def ranks_of(claim: Claim) -> int:
    """How many the claim asks for; where it knows no host, as many as the driver names GPUs (a power of two)."""
    if wanted := claim.expect.get("ranks"):
        return int(wanted)
    return power_of_two(len(nvml.read_by_nvml()["gpus"]))


def power_of_two(count: int) -> int:
    """The largest power of two up to `count` and MOST_RANKS: meshes and shards are even then."""
    return 1 << (min(count, MOST_RANKS).bit_length() - 1) if count else 0


def end_of(code: int | None, log: str, heard: Sequence[Mapping[str, Any]], limit: float) -> str:
    """Why a launch does not count, in one line; empty: every rank closed its file and torchrun ended well."""
    behind = [
        f"rank {rank} in {one['begun'] or 'its start'}"
        for rank, one in enumerate(heard)
        if not one["closing"]
    ]
    where = f" ({', '.join(behind)})" if behind else ""
    if code is None:
        waited = limit if all(one["begun"] for one in heard) else LIMIT_SECONDS
        return f"torchrun did not end in {waited:g} s{where}"
    if found := _CULPRIT.search(log):
        rank, status = int(found[1]), int(found[2])
        return f"rank {rank} {'was ' * (status < 0)}{describe_exit(status)}{where}{_last_words(log, rank)}"
    if code:
        return f"torchrun ended with status {code}{where}{_last_words(log, None)}"
    return f"ended with status 0 before it was done{where}" if behind else ""


def listen(file: Path) -> dict[str, Any]:
    """What one rank left in its file: {pid, begun: the subject that it was last at work on, measured: {subject:
    evidence}, closing}. A torn last line is left out."""
    heard: dict[str, Any] = {"pid": 0, "begun": "", "measured": {}, "closing": False}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        with suppress(ValueError):
            entry = json.loads(line)
            heard |= {name: entry[name] for name in ("pid", "begun", "closing") if name in entry}
            if "subject" in entry:
                heard["measured"][entry["subject"]] = entry["evidence"]
    return heard


def _torchrun(
    place: Path, ranks: int, program: Sequence[str], environment: Mapping[str, str], limit: float
) -> tuple[int | None, str]:
    """torchrun's status (None: ended by force when time was up) and everything that was printed."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nproc-per-node={ranks}",
        "--max-restarts=0",
    ]
    command += ["--master-addr=127.0.0.1", f"--master-port={find_free_port()}", "-m", *program]
    log = place / "log"
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            cwd=_ROOT,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        files = [place / f"rank{rank}" for rank in range(ranks)]
        code = _ended(child, files, limit)
        if code is None:
            _end(child, [listen(file)["pid"] for file in files])
    text = log.read_text(encoding="utf-8", errors="replace")
    print(text, end="", flush=True)  # noqa: T201  the probe's log
    return code, text


def _ended(child: subprocess.Popen[bytes], files: Sequence[Path], limit: float) -> int | None:
    """torchrun's status; None if it still runs `limit` seconds after all ranks have begun, or they never began."""
    begun, until = False, time.monotonic() + LIMIT_SECONDS
    while True:
        with suppress(subprocess.TimeoutExpired):
            return child.wait(_POLL_SECONDS)
        if not begun and all(listen(file)["begun"] for file in files):
            begun, until = True, time.monotonic() + limit
        if time.monotonic() > until:
            return None


def _end(child: subprocess.Popen[bytes], ranks: Sequence[int]) -> None:
    """torchrun gives each rank a session of its own."""
    for pid in filter(None, ranks):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    try:
        child.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _last_words(log: str, rank: int | None) -> str:
    """The last line that says what went wrong: ranks mark theirs."""
    marks = [
        line
        for line in log.splitlines()
        if re.match(rf"rank {rank if rank is not None else '[0-9]+'}: ", line)
    ]
    return f": {marks[-1]}" if marks else ""


_PR_SET_PDEATHSIG = 1
_PEER_POLL_SECONDS = 0.02
_TELL_BEFORE_SECONDS = 15.0


def main(place: Path, limit: float, patience: float) -> int:
    """Both in seconds: as `measure` has them. Exit status 0 only with the closing line written."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # nothing outlives torchrun
    _tell_before(LIMIT_SECONDS)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    work = json.loads((place / "work.json").read_text())
    claims = [Claim.from_json(claim) for claim in work["claims"]]
    with (place / f"rank{rank}").open("w", encoding="utf-8") as lines:

        def write(entry: Mapping[str, object]) -> None:
            lines.write(json.dumps(entry) + "\n")
            lines.flush()

        write({"pid": os.getpid()})
        module = importlib.import_module(work["probe"])
        if hasattr(module, "environment"):
            os.environ.update(module.environment(place))
        worker = Worker.joined(claims[0].expect["device"], place)
        _tell_before(limit)
        for claim in claims:
            subject = claim.subject
            write({"begun": subject})
            try:
                evidence = {**module.rank(worker, claim), "device": worker.device_facts()}
            except Exception as error:
                traceback.print_exc()
                sys.stderr.write(f"rank {rank}: {subject}: {_line(error)}\n")
                evidence = {"error": describe_error(error)}
            write({"subject": subject, "evidence": plain(evidence)})
            # By files, as collectives may be what is broken. Raises SystemExit where another rank stays away.
            until = time.monotonic() + patience
            missing = set(range(ranks))
            while missing:
                missing = {
                    one
                    for one in missing
                    if subject not in listen(place / f"rank{one}")["measured"]
                }
                if missing and time.monotonic() > until:
                    names = ", ".join(map(str, sorted(missing)))
                    sys.stderr.write(
                        f"rank {rank}: rank {names} did not come out of {subject} in {patience:g} s\n"
                    )
                    raise SystemExit(1)
                time.sleep(_PEER_POLL_SECONDS if missing else 0)
        worker.distributed.destroy_process_group()  # NCCL warns of one that is left, and a broken one raises
        write({"closing": True})
    if worker.device.type == "cpu":
        # gloo does not survive the interpreter's own end beside load. Its threads free tensors when they come to run,
        # and need the interpreter's lock for that. One that asks for it while the interpreter ends aborts the process
        # (ProcessGroupGloo::runLoop, TensorImpl::decref_pyobject; torch 2.11). All claims are measured by then.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


def _tell_before(limit: float) -> None:
    """Print this rank's stack before the launch ends it."""
    faulthandler.dump_traceback_later(max(1.0, limit - _TELL_BEFORE_SECONDS))


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])))
    except Exception as failure:
        traceback.print_exc()
        sys.stderr.write(f"rank {os.environ.get('RANK', '?')}: {_line(failure)}\n")
        sys.exit(1)
