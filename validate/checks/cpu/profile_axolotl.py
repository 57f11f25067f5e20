"""P1 of the axolotl profiles: commands are there, a bad configuration is refused, the timeout variable has effect."""

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from validate.checks._behaviour import BehaviourEvidence, judge
from validate.harness.forked import LOG_TAIL_CHARACTERS, asked, free_port

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
_CONFIGURATION: Mapping[str, object] = {
    "base_model": "tiny",
    "load_in_4bit": True,
    "adapter": "qlora",
    "lora_r": 8,
    "lora_alpha": 16,
    "lora_target_linear": True,
    "datasets": [{"path": "data.jsonl", "type": "alpaca"}],
    "micro_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "num_epochs": 1,
    "learning_rate": 2e-4,
    "optimizer": "adamw_bnb_8bit",
    "sequence_len": 128,
    "bf16": True,
    "output_dir": "out",
}
_CONTROL: Mapping[str, object] = {"load_in_8bit": True, "load_in_4bit": False}
"""QLoRA needs 4-bit weights: axolotl must refuse this."""


def _configuration() -> BehaviourEvidence:
    validate = importlib.import_module("axolotl.utils.config").validate_config
    dictionary = importlib.import_module("axolotl.utils.dict").DictDefault
    capabilities = {"bf16": True, "n_gpu": 1, "compute_capability": "sm_90", "fp8": True}
    versions = {"torch_version": importlib.import_module("torch").__version__.split("+")[0]}

    def checked(changes: Mapping[str, object]) -> Any:
        return validate(dictionary({**_CONFIGURATION, **changes}), capabilities, versions)

    found = checked({})
    refused = ""
    try:
        checked(_CONTROL)
    except ValueError as error:
        refused = str(error)[:200]
    return {
        "adapter": str(found.adapter),
        "load_in_4bit": bool(found.load_in_4bit),
        # For its own reason, not because some other key is wrong.
        "control_refused": "8bit" in refused,
        "refusal": refused,
    }


def _nccl_timeout() -> BehaviourEvidence:
    """Two ranks on the CPU ask their process group how long it waits, with and without the variable."""
    return {
        "asked": _TIMEOUT_SECONDS,
        **_group_timeout({"AXOLOTL_NCCL_TIMEOUT": str(_TIMEOUT_SECONDS)}),
        "default": _group_timeout({})["seconds"],
    }


def _group_timeout(variables: Mapping[str, str]) -> BehaviourEvidence:
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        program = Path(folder, "program.py")
        program.write_text(_TIMEOUT_PROGRAM)
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={_RANKS}"]
        command += ["--master-addr=127.0.0.1", f"--master-port={free_port()}", str(program), folder]
        environ = {**os.environ, "ACCELERATE_USE_CPU": "true", "GLOO_SOCKET_IFNAME": "lo", **variables}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=_PATIENCE)
        if done.returncode:
            raise RuntimeError(f"a rank failed: {(done.stdout + done.stderr)[-LOG_TAIL_CHARACTERS:]}")
        result: BehaviourEvidence = json.loads(Path(folder, "0").read_text())
        return result


_SUBJECTS = {
    "axolotl commands": lambda: {"commands": sorted(importlib.import_module("axolotl.cli.main").cli.commands)},
    "axolotl configuration": _configuration,
    "AXOLOTL_NCCL_TIMEOUT": _nccl_timeout,
}
measure = partial(asked, measures=_SUBJECTS)
CLAIMS = {"P1": judge}
