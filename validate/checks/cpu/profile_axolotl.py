"""framework/AXOLOTL_NCCL_TIMEOUT: check that the variable sets how long ranks wait.

The profile's examples train from configurations by axolotl's own commands, and are compared with
plain torch.
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
from validate.next_steps import pin

_MOST_SECONDS = 240.0
"""How long the ranks may take to start and end."""
_RANKS = 2
_TIMEOUT_SECONDS = 77
"""Unlike any default: those of accelerate, torch and axolotl are 600 and 1800."""
_TIMEOUT_PROGRAM = """
import json, os, sys, torch
from axolotl.utils import distributed
distributed.init_distributed_state()
group = torch.distributed.distributed_c10d._get_default_group()
backend = group._get_backend(torch.device("cpu"))
seconds = backend.options._timeout.total_seconds()
with open(os.path.join(sys.argv[1], os.environ["RANK"]), "w") as file:
    json.dump({"world": torch.distributed.get_world_size(), "seconds": seconds}, file)
torch.distributed.destroy_process_group()
"""
"""Each rank forms the process group as axolotl does, and writes a GroupTimeout into the folder of
its first argument, to the file `RANK`."""
DEFAULT_TIMEOUT_SECONDS = 1800.0
"""How long ranks of axolotl wait without the variable."""


class GroupTimeout(TypedDict):
    """A process group of torch.distributed."""

    world: int  # number of ranks
    seconds: float  # how long a rank waits for the others


class TimeoutEvidence(GroupTimeout):
    """The process group with the variable, and its timeout without."""

    asked: int  # the value of the variable
    default: float  # seconds without the variable


def measure_timeouts() -> TimeoutEvidence:
    """Start two ranks on the CPU with the variable and two without, and read their timeouts."""
    with_variable = start_ranks({"AXOLOTL_NCCL_TIMEOUT": str(_TIMEOUT_SECONDS)})
    without_variable = start_ranks({})
    return {
        "asked": _TIMEOUT_SECONDS,
        **with_variable,
        "default": without_variable["seconds"],
    }


def start_ranks(variables: Mapping[str, str]) -> GroupTimeout:
    """Start two ranks of axolotl, and return what rank 0 says of its process group's timeout.

    A rank is one of the processes of a training. The result has the number of ranks, and how many
    seconds one waits for the others. `variables` are added to this process's environment. Raises
    RuntimeError if a rank fails, with the end of the output, and TimeoutExpired if they do not end.
    """
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        program = Path(folder, "program.py")
        program.write_text(_TIMEOUT_PROGRAM)
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={_RANKS}"]
        command += ["--master-addr=127.0.0.1", f"--master-port={find_free_port()}"]
        command += [str(program), folder]
        # A container without a network has only the loopback interface, which gloo does not choose
        # by itself.
        environ = {
            **os.environ,
            "ACCELERATE_USE_CPU": "true",
            "GLOO_SOCKET_IFNAME": "lo",
            **variables,
        }
        completed = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=_MOST_SECONDS
        )
        if completed.returncode:
            output = completed.stdout + completed.stderr
            raise RuntimeError(f"a rank failed: {output[-LOG_TAIL_CHARACTERS:]}")
        rank_0: GroupTimeout = json.loads(Path(folder, "0").read_text())
        return rank_0


measure = partial(measure_claimed_subjects, measures={"AXOLOTL_NCCL_TIMEOUT": measure_timeouts})


def judge_timeout(_subject: str, _expect: object, evidence: TimeoutEvidence) -> Finding:
    """Pass if axolotl sets NCCL's timeout to what AXOLOTL_NCCL_TIMEOUT says.

    In the evidence, `seconds` is NCCL's timeout where the variable is _TIMEOUT_SECONDS, `default`
    the timeout without the variable, and `world` the number of processes that have started.
    """
    return judge_figures(
        evidence,
        equal={
            "world": _RANKS,
            "seconds": float(_TIMEOUT_SECONDS),
            "default": DEFAULT_TIMEOUT_SECONDS,
        },
    )


CLAIMS = {"framework/AXOLOTL_NCCL_TIMEOUT": judge_timeout}
NEXT_STEPS = {
    "framework/AXOLOTL_NCCL_TIMEOUT": pin("a release of axolotl that reads AXOLOTL_NCCL_TIMEOUT")
    + "; or set `ddp_timeout` in the configuration of your training in place of the variable"
}
