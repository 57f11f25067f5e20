"""framework of the axolotl profiles: the timeout variable has effect.

Their examples train from configurations by axolotl's own commands, and are compared with plain torch.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TypedDict

from validate.checks._behaviour import judge_figures
from validate.harness.forked import LOG_TAIL_CHARACTERS, find_free_port, measure_claimed_subjects
from validate.judging import Finding

_PATIENCE = 240.0
_RANKS = 2
_TIMEOUT_SECONDS = 77
"""Unlike any default (accelerate's, torch's and axolotl's are 600 and 1800)."""
_TIMEOUT_PROGRAM = """
import json, os, sys, torch
from axolotl.utils import distributed
distributed.init_distributed_state()
group = torch.distributed.distributed_c10d._get_default_group()
backend = group._get_backend(torch.device("cpu"))
with open(os.path.join(sys.argv[1], os.environ["RANK"]), "w") as file:
    json.dump({"world": torch.distributed.get_world_size(), "seconds": backend.options._timeout.total_seconds()}, file)
torch.distributed.destroy_process_group()
"""
DEFAULT_TIMEOUT_SECONDS = 1800.0


class GroupTimeout(TypedDict):
    """How many ranks there are, and how many seconds their process group waits."""

    world: int
    seconds: float


class TimeoutEvidence(GroupTimeout):
    """With the variable; `default`: without."""

    asked: int
    default: float


def _nccl_timeout() -> TimeoutEvidence:
    """Two ranks on the CPU ask their process group how long it waits, with and without the variable."""
    return {
        "asked": _TIMEOUT_SECONDS,
        **_group_timeout({"AXOLOTL_NCCL_TIMEOUT": str(_TIMEOUT_SECONDS)}),
        "default": _group_timeout({})["seconds"],
    }


def _group_timeout(variables: Mapping[str, str]) -> GroupTimeout:
    """Start ranks with these variables, and return what the first wrote."""
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        program = Path(folder, "program.py")
        program.write_text(_TIMEOUT_PROGRAM)
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={_RANKS}"]
        command += [
            "--master-addr=127.0.0.1",
            f"--master-port={find_free_port()}",
            str(program),
            folder,
        ]
        environ = {
            **os.environ,
            "ACCELERATE_USE_CPU": "true",
            "GLOO_SOCKET_IFNAME": "lo",
            **variables,
        }
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=_PATIENCE
        )
        if done.returncode:
            raise RuntimeError(
                f"a rank failed: {(done.stdout + done.stderr)[-LOG_TAIL_CHARACTERS:]}"
            )
        result: GroupTimeout = json.loads(Path(folder, "0").read_text())
        return result


measure = partial(measure_claimed_subjects, measures={"AXOLOTL_NCCL_TIMEOUT": _nccl_timeout})


def judge_timeout(_subject: str, _expect: object, evidence: TimeoutEvidence) -> Finding:
    """Judge that two ranks wait as long as the variable says."""
    return judge_figures(
        evidence,
        equal={
            "world": _RANKS,
            "seconds": float(_TIMEOUT_SECONDS),
            "default": DEFAULT_TIMEOUT_SECONDS,
        },
    )


CLAIMS = {"framework/AXOLOTL_NCCL_TIMEOUT": judge_timeout}
