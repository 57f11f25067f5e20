"""The program of each rank: runs a probe's `rank(worker, claim)` for every claim, and writes each result to a file."""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

from validate.checks.multigpu import _launch
from validate.checks.multigpu._ranks import Rank
from validate.checks.multigpu._worker import Worker
from validate.claims import Claim
from validate.evidence import Measured, plain
from validate.harness.forked import described

_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.02
_TELL_BEFORE_SECONDS = 15.0


def main(place: Path, limit: float, patience: float) -> int:
    """Both in seconds: as `_launch.measure` has them. Exit status 0 only with the closing line written."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # nothing outlives torchrun
    _tell_before(_launch.LIMIT_SECONDS)
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
            write({"begun": claim.subject})
            write({"subject": claim.subject, "evidence": plain(_attempt(module, worker, claim, rank))})
            subject = claim.subject
            # By files, as collectives may be what is broken. Raises SystemExit where another rank stays away.
            until = time.monotonic() + patience
            missing = set(range(ranks))
            while missing:
                missing = {one for one in missing if subject not in _launch.listen(place / f"rank{one}").measured}
                if missing and time.monotonic() > until:
                    names = ", ".join(map(str, sorted(missing)))
                    sys.stderr.write(f"rank {rank}: rank {names} did not come out of {subject} in {patience:g} s\n")
                    raise SystemExit(1)
                time.sleep(_POLL_SECONDS if missing else 0)
        worker.leave()
        write({"closing": True})
    if worker.device.type == "cpu":
        _end_at_once()
    return 0


def _end_at_once() -> NoReturn:
    """End without the interpreter's own end, which gloo does not survive beside load.

    Its threads free tensors when they come to run, and need the interpreter's lock for that. One that asks for it
    while the interpreter ends aborts the process (ProcessGroupGloo::runLoop, TensorImpl::decref_pyobject; torch 2.11).
    All claims are measured by then; how an interpreter ends is none of them.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _tell_before(limit: float) -> None:
    """Print this rank's stack before the launch ends it."""
    faulthandler.dump_traceback_later(max(1.0, limit - _TELL_BEFORE_SECONDS))


def _attempt(module: Any, worker: Worker, claim: Claim, rank: int) -> Rank | Measured:
    try:
        return cast("Rank", {**module.rank(worker, claim), "device": worker.device_facts()})
    except Exception as error:
        traceback.print_exc()
        sys.stderr.write(f"rank {rank}: {claim.subject}: {_line(error)}\n")
        return {"error": described(error)}


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])))
    except Exception as failure:
        traceback.print_exc()
        sys.stderr.write(f"rank {os.environ.get('RANK', '?')}: {_line(failure)}\n")
        sys.exit(1)
