"""framework of profiles with an entrypoint: how it sets NCCL_P2P_DISABLE for each answer of the driver on P2P."""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from validate.checks._behaviour import BehaviourEvidence, judge_figures
from validate.claims import Claim
from validate.harness.forked import attempt
from validate.judging import Finding

_PATIENCE = 120.0
_HEAD = "\t\033[4mGPU0\tGPU1\t\033[0m\n"
_LEGEND = "\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n  NS   = Not supported\n"
DRIVERS: Mapping[str, str | None] = {
    "linked": f"{_HEAD} GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n{_LEGEND}",
    "apart": f"{_HEAD} GPU0\tX\tCNS\t\n GPU1\tCNS\tX\t\n{_LEGEND}",
    "unsupported": f"{_HEAD} GPU0\tX\tNS\t\n GPU1\tNS\tX\t\n{_LEGEND}",
    "single": f"\t\033[4mGPU0\t\033[0m\n GPU0\tX\t\n{_LEGEND}",
    "none": None,
}
"""What `nvidia-smi topo -p2p r` prints, each beside its legend; None: there is no nvidia-smi."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, BehaviourEvidence]]:
    """The value of NCCL_P2P_DISABLE that a command sees behind the image's entrypoint."""
    for claim in claims:
        yield claim.subject, attempt(partial(_seen, claim.expect["program"]))


def _seen(program: str) -> BehaviourEvidence:
    values = {name: _value(program, printed, {}) for name, printed in DRIVERS.items()}
    return {**values, "given": _value(program, DRIVERS["apart"], {"NCCL_P2P_DISABLE": "0"})}


def _value(program: str, printed: str | None, variables: Mapping[str, str]) -> str:
    with tempfile.TemporaryDirectory(prefix="driver-") as folder:
        if printed is not None:
            smi, text = Path(folder, "nvidia-smi"), Path(folder, "matrix")
            text.write_text(printed)
            smi.write_text(f'#!/bin/sh\n[ "$*" = "topo -p2p r" ] && exec cat {text}\nexit 9\n')
            smi.chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if name != "NCCL_P2P_DISABLE"}
        environment = {**kept, **variables, "PATH": f"{folder}:/usr/bin:/bin"}
        command = [program, "sh", "-c", 'printf "%s" "${NCCL_P2P_DISABLE-unset}"']
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_PATIENCE, check=True)
        return done.stdout


EXPECTED = {
    "linked": "unset",
    "apart": "1",
    "unsupported": "1",
    "single": "unset",
    "none": "unset",
    "given": "0",
}
"""NCCL_P2P_DISABLE by what the driver says; `given`: where the user has set it."""


def judge(_subject: str, _expect: object, evidence: BehaviourEvidence) -> Finding:
    """Judge that P2P is switched off where GPUs can't reach each other, and nowhere else."""
    return judge_figures(evidence, equal=EXPECTED)


CLAIMS = {"framework/NCCL_P2P_DISABLE": judge}
